/**
 * The records of the task topic's partition 0: the table, its extensions (task-layout says what they mean), a note per task that ever committed an offset,
 * and the last claim of each slot. Each write of a table or an extension has a key of its own, so compaction never drops one (decision 1).
 */
import type { Broker } from '../broker/port.ts'
import { LOG_START } from '../broker/port.ts'
import type { Clock, Logger, Random, Timers } from '../common/ports.ts'
import { BrokerUnavailableError } from '../errors/errors.ts'
import { untilAnswered } from './retry.ts'
import { TaskTableFold, type TableExtension, type TaskTable } from './task-layout.ts'

const TABLE_PREFIX = 'table/'
const EXTENSION_PREFIX = 'extension/'
const PROGRESS_PREFIX = 'progress/'
const SLOT_PREFIX = 'slot/'
export const PROGRESS = Buffer.from('{"v":1}')

export interface TaskTableOptions {
  readonly random: Random
  readonly clock: Clock
  readonly timers: Timers
  readonly logger: Logger
  readonly timeoutMs: number
}

/** What the task topic has on record. */
export interface TaskRecords {
  /** The first table written; undefined when there is none. */
  readonly table: TaskTable | undefined
  /** The extensions that count, in order. */
  readonly extensions: readonly TableExtension[]
  /** Names of the tasks that ever committed an offset. */
  readonly progress: ReadonlySet<string>
  /** By slot, what the process wrote that started in it last. */
  readonly claims: ReadonlyMap<string, string>
}

/**
 * How far to read. `decided`: up to the last stable offset: a dead worker's open transaction would hold a start up for its time-out, the table lies below
 * it, and a note of progress that is not decided is none. `end`: up to the end of the log as it is now, open transactions waited out: an extension is
 * written outside of transactions and may lie behind an open one.
 */
export type ReadTo = 'decided' | 'end'

export async function readTaskRecords(
  broker: Broker,
  topic: string,
  options: TaskTableOptions,
  to: ReadTo = 'decided',
): Promise<TaskRecords> {
  const reader = await broker.connectReader()
  try {
    const { clock, timeoutMs } = options
    const partition = { topic, partition: 0 }
    const target = await untilAnswered(
      async () =>
        to === 'end' ? (await broker.admin.offsets([partition]))[0]?.highWatermark : (await broker.admin.lastStableOffsets([partition]))[0],
      { ...options, what: `the task table in ${topic}` },
    )
    const fold = new TaskTableFold()
    const progress = new Set<string>()
    const claims = new Map<string, string>()
    const found = (): TaskRecords => ({ table: fold.table, extensions: fold.extensions, progress, claims })
    if (target === undefined || target === 0) return found()
    reader.assign([{ ...partition, offset: LOG_START }])
    const deadline = clock.monotonic() + timeoutMs
    while (clock.monotonic() < deadline) {
      const { records, ends } = await reader.poll(100, 200)
      for (const { key, value } of records) {
        const name = key?.toString() ?? ''
        if (value === null) continue
        if (name.startsWith(TABLE_PREFIX)) fold.addTable(JSON.parse(value.toString()) as TaskTable)
        else if (name.startsWith(EXTENSION_PREFIX)) fold.addExtension(JSON.parse(value.toString()) as TableExtension)
        else if (name.startsWith(PROGRESS_PREFIX)) progress.add(name.slice(PROGRESS_PREFIX.length))
        else if (name.startsWith(SLOT_PREFIX)) claims.set(name.slice(SLOT_PREFIX.length), value.toString())
      }
      if (ends.some((end) => end.offset >= target)) return found()
    }
    throw unreadable(topic, timeoutMs)
  } finally {
    await reader.close()
  }
}

/** Writes a table. Whether it counts is known by reading. */
export function writeTable(broker: Broker, topic: string, table: TaskTable, options: TaskTableOptions): Promise<void> {
  return write(broker, topic, TABLE_PREFIX, table, options)
}

/** Writes an extension. Whether it counts is known by reading. */
export function writeExtension(broker: Broker, topic: string, extension: TableExtension, options: TaskTableOptions): Promise<void> {
  return write(broker, topic, EXTENSION_PREFIX, extension, options)
}

/**
 * Says that this process has the slot from now on. Written before the group is joined, so whoever is put out of a slot finds the claim of the one that came
 * (slot-ownership SO3).
 */
export function claimSlot(broker: Broker, topic: string, slotName: string, claim: string, timeoutMs: number): Promise<void> {
  return broker.writeRecord(topic, 0, Buffer.from(`${SLOT_PREFIX}${slotName}`), Buffer.from(claim), timeoutMs)
}

function write(
  broker: Broker,
  topic: string,
  prefix: string,
  record: TaskTable | TableExtension,
  { random, timeoutMs }: TaskTableOptions,
): Promise<void> {
  const key = Buffer.from(`${prefix}${random.bytes(16).toString('hex')}`)
  return broker.writeRecord(topic, 0, key, Buffer.from(JSON.stringify(record)), timeoutMs)
}

/** Key of the note that a task has committed offsets; written in the transaction of the first ones. */
export function progressKey(task: string): Buffer {
  return Buffer.from(`${PROGRESS_PREFIX}${task}`)
}

export function unreadable(topic: string, timeoutMs: number): BrokerUnavailableError {
  return new BrokerUnavailableError(`the task table in ${topic} could not be read within ${timeoutMs} ms`, {
    code: 'task-table-unreadable',
    remedy: 'Check that the brokers are up and that the topic has a leader, then start again.',
  })
}
