/**
 * A task this worker owns, with its input positions. Plain state, moved by the worker loop alone.
 *
 *   preparing --> restoring --> running
 *    |    ^           |            |
 *    |    +-----------+------------+   (state in doubt or damaged: from the broker again)
 *    +----------------+------------+--> closed
 */
import type { BrokerRecord } from '../broker/port.ts'
import { invariant } from '../common/invariant.ts'
import { partitionName, type TopicPartition } from '../common/topic-partition.ts'
import type { StateStore, TaskState } from '../state/store.ts'
import type { Task, TaskCounters } from '../task/task.ts'
import type { SubTopology } from '../topology/nodes.ts'
import type { TaskAssignment } from './task-layout.ts'

export type TaskPhase = 'preparing' | 'restoring' | 'running' | 'closed'

export const TASK_PHASES: Readonly<Record<TaskPhase, readonly TaskPhase[]>> = {
  preparing: ['restoring', 'closed'],
  restoring: ['running', 'preparing', 'closed'],
  running: ['preparing', 'closed'],
  closed: [],
}

const NOTHING: TaskCounters = { records: 0, duplicates: 0, late: 0, skipped: 0, deadLetters: 0 }

/** One real input partition of a task. */
export interface InputPartition {
  readonly topic: string
  readonly partition: number
  readonly task: AssignedTask
  /** Where the client was told to begin in the callback, before anything was known of it (log-starts). */
  assignedAt: number
  /** Offset the group has on record; undefined: none yet. */
  committed: number | undefined
  /** Where to begin when nothing was ever committed. */
  start: number
  /** Next offset to process. */
  next: number
  /** Epoch guard: records of polls before this one are stale (they were fetched before an assignment or a rewind). */
  validFromPoll: number
  /** Wall clock of the last commit, ms, whoever made it; for the keep-alive. */
  committedAt: number
}

export class AssignedTask {
  /** Partition of the task topic. */
  readonly number: number
  readonly subTopology: SubTopology
  readonly partition: number
  /** As the layout has it; also the folder of its state. */
  readonly name: string
  /** Its partitions were added after the application began (task-layout). */
  readonly isAdded: boolean
  readonly inputs: readonly InputPartition[]
  /** What is assigned in the client for this task: its partition of the task topic and its inputs. */
  readonly assigned: readonly TopicPartition[]
  state: TaskState | undefined
  task: Task | undefined
  #phase: TaskPhase = 'preparing'

  constructor(
    number: number,
    tasksTopic: string,
    subTopology: SubTopology,
    partition: number,
    inputs: readonly string[],
    { name, extension }: Pick<TaskAssignment, 'name' | 'extension'> = { name: `${subTopology.id}_${partition}`, extension: 0 },
  ) {
    this.number = number
    this.subTopology = subTopology
    this.partition = partition
    this.name = name
    this.isAdded = extension > 0
    this.inputs = inputs.map((topic) => ({
      topic,
      partition,
      task: this,
      committed: undefined,
      start: 0,
      next: 0,
      assignedAt: 0,
      validFromPoll: Number.MAX_SAFE_INTEGER,
      committedAt: 0,
    }))
    this.assigned = [{ topic: tasksTopic, partition: number }, ...inputs.map((topic) => ({ topic, partition }))]
  }

  get phase(): TaskPhase {
    return this.#phase
  }

  /** Runs one record; only while running. */
  process(record: BrokerRecord): void {
    invariant(this.task !== undefined, 'A3', { task: this.name, phase: this.#phase })
    this.task.process(record)
  }

  /** Sends one record down the error path without running it. */
  refuse(record: BrokerRecord, error: Error): void {
    invariant(this.task !== undefined, 'A3', { task: this.name, phase: this.#phase })
    this.task.refuse(record, error)
  }

  moveTo(phase: TaskPhase): void {
    invariant(TASK_PHASES[this.#phase].includes(phase), 'A1', { task: this.name, from: this.#phase, to: phase })
    this.#phase = phase
  }

  /** True when the open transaction carries something of this task: a record was processed or an offset moved. */
  get dirty(): boolean {
    return (
      this.#phase === 'running' &&
      (this.touched || this.inputs.some(({ committed, next, start }) => next !== committed && (committed !== undefined || next !== start)))
    )
  }

  /** Set by the loop when a record was processed or its offset must be committed anew. */
  touched = false

  stores(): Iterable<StateStore> {
    return this.state?.stores.values() ?? []
  }

  /** The transaction committed: write-sets are merged, positions become committed ones (X1, X2). Returns what this transaction counted. */
  commit(now: number): Readonly<TaskCounters> {
    for (const store of this.stores()) store.commit()
    for (const input of this.inputs) {
      input.committed = input.next
      input.committedAt = now
    }
    this.touched = false
    return this.task?.commit() ?? NOTHING
  }

  /** It did not: write-sets are dropped. Positions go back by `rewind`. */
  abort(): void {
    for (const store of this.stores()) store.abort()
    this.task?.abort()
    this.touched = false
  }

  /** Releases the state. What was not flushed is in the changelog. */
  close(): void {
    if (this.#phase !== 'closed') this.moveTo('closed')
    this.releaseState()
  }

  releaseState(): void {
    this.state?.close()
    this.state = undefined
    this.task = undefined
    this.touched = false
  }

  describe(): string {
    return `${this.name} (${this.inputs.map(({ topic, partition }) => partitionName(topic, partition)).join(', ')})`
  }
}
