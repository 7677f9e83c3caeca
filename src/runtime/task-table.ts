/**
 * Which task number stands for which sub-topology and partition, agreed on by all workers: a record in partition 0 of the task topic. Written if absent,
 * then read back from the log start, and the first one wins (DESIGN 3). Each write has a key of its own, so compaction never drops the first.
 * Beside it a note per task that ever committed an offset.
 */
import type { Broker } from '../broker/port.ts'
import { LOG_START } from '../broker/port.ts'
import type { Clock, Logger, Random, Timers } from '../common/ports.ts'
import { BrokerUnavailableError, ConfigError } from '../errors/errors.ts'
import type { TopologyPlan } from '../topology/nodes.ts'
import { untilAnswered } from './retry.ts'
import type { TaskLayout } from './internal-topics.ts'

const TABLE_PREFIX = 'table/'
const PROGRESS_PREFIX = 'progress/'
export const PROGRESS = Buffer.from('{"v":1}')

export interface TaskTable {
  readonly version: 1
  /** For information: another one is fine as long as the tasks fit. */
  readonly fingerprint: string
  readonly subTopologies: readonly { readonly inputs: readonly string[]; readonly partitions: number; readonly stores: readonly string[] }[]
}

export function taskTable(plan: TopologyPlan, layout: TaskLayout): TaskTable {
  return {
    version: 1,
    fingerprint: plan.fingerprint,
    subTopologies: plan.subTopologies.map((sub, index) => ({
      inputs: [...sub.inputs].sort(),
      partitions: layout.partitions[index] ?? 0,
      stores: sub.stores.map(({ name }) => name).sort(),
    })),
  }
}

export interface TaskTableOptions {
  readonly random: Random
  readonly clock: Clock
  readonly timers: Timers
  readonly logger: Logger
  readonly timeoutMs: number
}

/** Agrees on the table or refuses with the difference. */
export async function agreeOnTaskTable(
  broker: Broker,
  topic: string,
  mine: TaskTable,
  recorded: TaskRecords,
  options: TaskTableOptions,
): Promise<void> {
  let { table } = recorded
  if (table === undefined) {
    const key = Buffer.from(`${TABLE_PREFIX}${options.random.bytes(16).toString('hex')}`)
    await broker.writeRecord(topic, 0, key, Buffer.from(JSON.stringify(mine)), options.timeoutMs)
    table = (await readTaskRecords(broker, topic, options)).table
    if (table === undefined) throw unreadable(topic, options.timeoutMs)
  }
  const lines = differences(table, mine)
  if (lines.length > 0) {
    throw new ConfigError(`this topology does not fit the tasks that ${topic} has on record:\n  ${lines.join('\n  ')}`, {
      code: 'topology-does-not-fit',
      remedy: 'Deploy the topology that wrote it, or start this one under another applicationId, which begins anew with its own state.',
    })
  }
}

export function differences(recorded: TaskTable, mine: TaskTable): readonly string[] {
  const lines: string[] = []
  const count = Math.max(recorded.subTopologies.length, mine.subTopologies.length)
  for (let id = 0; id < count; id++) {
    const was = recorded.subTopologies[id]
    const is = mine.subTopologies[id]
    if (was === undefined || is === undefined) {
      lines.push(`sub-topology ${id}: ${was === undefined ? 'new' : 'gone'} (inputs ${(was ?? is)?.inputs.join(', ') ?? ''})`)
      continue
    }
    if (was.inputs.join() !== is.inputs.join())
      lines.push(`sub-topology ${id}: inputs were ${was.inputs.join(', ')}, are ${is.inputs.join(', ')}`)
    if (was.partitions !== is.partitions) lines.push(`sub-topology ${id}: partitions were ${was.partitions}, are ${is.partitions}`)
    if (was.stores.join() !== is.stores.join())
      lines.push(`sub-topology ${id}: stores were ${was.stores.join(', ') || 'none'}, are ${is.stores.join(', ') || 'none'}`)
  }
  return lines
}

/** What the task topic has on record. */
export interface TaskRecords {
  /** The first table written; undefined when there is none. */
  readonly table: TaskTable | undefined
  /** Names of the tasks that ever committed an offset. */
  readonly progress: ReadonlySet<string>
}

export async function readTaskRecords(broker: Broker, topic: string, options: TaskTableOptions): Promise<TaskRecords> {
  const reader = await broker.connectReader()
  try {
    const { clock, timeoutMs } = options
    // Not the high watermark: a dead worker's open transaction would hold this start up for its time-out. The table lies below it, and a note of progress
    // that is not decided is none.
    const [target = 0] = await untilAnswered(() => broker.admin.lastStableOffsets([{ topic, partition: 0 }]), {
      ...options,
      what: `the task table in ${topic}`,
    })
    let table: TaskTable | undefined
    const progress = new Set<string>()
    if (target === 0) return { table, progress }
    reader.assign([{ topic, partition: 0, offset: LOG_START }])
    const deadline = clock.monotonic() + timeoutMs
    while (clock.monotonic() < deadline) {
      const { records, ends } = await reader.poll(100, 200)
      for (const { key, value } of records) {
        const name = key?.toString() ?? ''
        if (value === null) continue
        if (name.startsWith(TABLE_PREFIX)) table ??= JSON.parse(value.toString()) as TaskTable
        else if (name.startsWith(PROGRESS_PREFIX)) progress.add(name.slice(PROGRESS_PREFIX.length))
      }
      if (ends.some((end) => end.offset >= target)) return { table, progress }
    }
    throw unreadable(topic, timeoutMs)
  } finally {
    await reader.close()
  }
}

/** Key of the note that a task has committed offsets; written in the transaction of the first ones. */
export function progressKey(task: string): Buffer {
  return Buffer.from(`${PROGRESS_PREFIX}${task}`)
}

function unreadable(topic: string, timeoutMs: number): BrokerUnavailableError {
  return new BrokerUnavailableError(`the task table in ${topic} could not be read within ${timeoutMs} ms`, {
    code: 'task-table-unreadable',
    remedy: 'Check that the brokers are up and that the topic has a leader, then start again.',
  })
}
