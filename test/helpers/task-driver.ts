/** Runs records through one real Task, on the memory state backend and the real outbox; what goes out is collected. No broker. */
import type { BrokerRecord, HeaderList } from '../../src/broker/port.ts'
import { RecordOutbox } from '../../src/runtime/record-outbox.ts'
import { SinkCheck, type SinkLimits } from '../../src/runtime/sink-limits.ts'
import { createMemoryBackend } from '../../src/state/memory/memory-backend.ts'
import type { TaskState } from '../../src/state/store.ts'
import { Task, type TaskCounters } from '../../src/task/task.ts'
import type { Failure, Topology } from '../../src/topology/index.ts'
import { compileTopology } from '../../src/topology/plan.ts'
import { InstantTimers, ManualClock } from './manual-time.ts'

export interface Sent {
  readonly topic: string
  readonly partition: number | null
  readonly key: string | null
  readonly value: string | null
  readonly timestamp: number
  readonly headers: Readonly<Record<string, string>>
}

const UNLIMITED: SinkLimits = {
  partitions: 4,
  maxMessageBytes: 1_000_000,
  compacted: false,
  timestampBeforeMaxMs: Number.MAX_SAFE_INTEGER,
  timestampAfterMaxMs: Number.MAX_SAFE_INTEGER,
}

export class TaskDriver {
  readonly clock = new ManualClock()
  readonly failures: { failure: Failure; reaction: string }[] = []
  readonly outbox: RecordOutbox
  readonly task: Task
  readonly state: TaskState
  /** Raw outputs of the last record, for identity checks. */
  raw: { key: Buffer | null; value: Buffer | null; headers: HeaderList }[] = []
  readonly #sinks: SinkCheck
  #nonce = 0

  private constructor(topology: Topology, state: TaskState, limits: Readonly<Record<string, Partial<SinkLimits>>>, maxOutputBytes: number) {
    const plan = compileTopology(topology)
    this.state = state
    const sinks = new Map(plan.sinks.map((name) => [name, { ...UNLIMITED, ...limits[name] }]))
    this.#sinks = new SinkCheck(sinks, this.clock)
    this.outbox = new RecordOutbox(this.#sinks, maxOutputBytes)
    this.task = new Task({
      plan,
      subTopology: plan.subTopologies[0]!,
      stores: state.stores,
      outbox: this.outbox,
      clock: this.clock,
      countAttempt: () => 1,
      onFailure: (failure, reaction) => this.failures.push({ failure, reaction }),
    })
  }

  static async of(
    topology: Topology,
    limits: Readonly<Record<string, Partial<SinkLimits>>> = {},
    maxOutputBytes = 1_000_000,
  ): Promise<TaskDriver> {
    const clock = new ManualClock()
    const backend = createMemoryBackend({ owner: { slot: 's', pid: 1, host: 'h' }, timers: new InstantTimers(clock), clock })
    const state = await backend.open('0_0', compileTopology(topology).subTopologies[0]!.stores)
    return new TaskDriver(topology, state, limits, maxOutputBytes)
  }

  /** Runs one record and returns what it put out. */
  run(record: BrokerRecord): Sent[] {
    const sent: Sent[] = []
    this.raw = []
    this.task.process(record)
    this.outbox.deliver((topic, partition, key, value, timestamp, headers) => {
      this.raw.push({ key, value, headers })
      sent.push({
        topic,
        partition,
        key: key === null ? null : key.toString(),
        value: value === null ? null : value.toString(),
        timestamp,
        headers: Object.fromEntries(headers.map(([name, bytes]) => [name, String(bytes)])),
      })
      return true
    })
    return sent
  }

  /** The worker has read the limits of a topic that was not known before. */
  learn(topic: string): void {
    this.#sinks.learn(new Map([[topic, UNLIMITED]]))
  }

  /** The transaction commits: stores hand over their changes and merge, the task counts. */
  commit(): TaskCounters {
    for (const store of this.state.stores.values()) {
      if (store.hasChanges) store.prepare(Buffer.alloc(16, ++this.#nonce), () => {})
      store.commit()
    }
    return this.task.commit()
  }

  abort(): void {
    for (const store of this.state.stores.values()) store.abort()
    this.task.abort()
  }
}
