/**
 * What a task needs before its restore: its state opened, its committed offsets, and where each changelog begins and ends.
 *
 * Runs beside the loop and touches nothing but the task's own state file; its result goes in as an event.
 * Order matters: the committed offsets are stable ones (they wait for a dead peer's transaction), and the changelog's end is read after them, so that
 * it lies behind every record of the transactions that committed those offsets (restore R1).
 */
import type { CommittedOffset, GroupConsumer, PartitionOffsets } from '../broker/port.ts'
import { delay } from '../common/delay.ts'
import { partitionName, type TopicPartition } from '../common/topic-partition.ts'
import { BrokerError } from '../errors/broker-error.ts'
import { classify } from '../errors/classify.ts'
import { BrokerUnavailableError, ConfigError } from '../errors/errors.ts'
import type { TaskState } from '../state/store.ts'
import { CHANGELOG_TOPIC_CONFIG, changelogTopic, tasksTopic } from '../topology/internal-topics.ts'
import type { AssignedTask } from './assigned-task.ts'
import { readMetadata } from './offset-metadata.ts'
import { openTransactionOf, SETTLE_REMEDY, suspectedTransactions } from './open-transactions.ts'
import { changelogShrunk, trustedForMs, type RebuildReason } from './rebuilds.ts'
import type { RestoreRequest } from './restore.ts'
import { untilAnswered } from './retry.ts'
import { readTaskRecords } from './task-table.ts'
import type { WorkerOptions } from './worker-options.ts'

export interface InputOffsets {
  readonly committed: number | undefined
  readonly start: number
  /** The log as it was then: a position outside of it is a matter of policy. */
  readonly logStart: number
  readonly highWatermark: number
  readonly streamTime: number
  /** Wall clock of the last commit, ms; 0 when unknown. */
  readonly committedAt: number
}

export interface PreparedTask {
  readonly task: AssignedTask
  readonly state: TaskState
  /** By input topic. */
  readonly offsets: ReadonlyMap<string, InputOffsets>
  /** Only stores that have something to read, or were emptied. */
  readonly restores: readonly RestoreRequest[]
}

/** For all tasks in one request, then for one at a time. A coordinator that holds them back never answers, one that is well answers within milliseconds. */
const COMMITTED_TIMEOUT_MS = 2_000
const HELD_TIMEOUT_MS = 1_000
const HELD_PAUSE_MS = 200
const HELD_WARN_EVERY_MS = 10_000
const TASK_RECORDS_TIMEOUT_MS = 30_000

type Committed = ReadonlyMap<string, CommittedOffset>

/**
 * `done` gets each task as soon as it is ready. `isWanted` is asked between all steps: a task that was given up meanwhile
 * is dropped at once. Files are opened last, so that nobody holds a lock while it waits for the broker.
 * `waiting` says, by task name, what a task waits for, while it does; for the status.
 */
export async function prepareTasks(
  tasks: readonly AssignedTask[],
  consumer: GroupConsumer,
  options: WorkerOptions,
  isWanted: (task: AssignedTask) => boolean,
  done: (prepared: PreparedTask) => void,
  waiting: Map<string, string> = new Map(),
): Promise<void> {
  const opening: Promise<void>[] = []
  const prepare = async (ready: readonly AssignedTask[], committed: Committed): Promise<void> => {
    const offsets = await inputOffsets(ready, await trusted(ready, committed, consumer, isWanted, options), options)
    const logs = await readChangelogs(ready, options)
    for (const task of ready) {
      if (!isWanted(task)) continue
      // Not awaited here: one file that another process holds must not keep the others waiting.
      const opened = openState(task, offsets.get(task) ?? new Map(), logs, options, isWanted, done)
      opened.catch(() => undefined) // reported below; until then it is not unhandled
      opening.push(opened)
    }
  }
  const answered = await committedOffsets(tasks, consumer, COMMITTED_TIMEOUT_MS).catch(() => undefined)
  const wanted = tasks.filter(isWanted)
  if (answered !== undefined) await prepare(wanted, answered)
  else await prepareOneByOne(wanted, consumer, options, isWanted, prepare, waiting)
  await Promise.all(opening)
}

/**
 * Some offsets are held: by an open transaction of the task's last owner, as a rule a dead one. Asked in turn, so that a task that has to wait holds up no
 * other; each ends up prepared, given up, or with an error that names the transactional ids (CASES A13).
 */
async function prepareOneByOne(
  tasks: readonly AssignedTask[],
  consumer: GroupConsumer,
  options: WorkerOptions,
  isWanted: (task: AssignedTask) => boolean,
  prepare: (ready: readonly AssignedTask[], committed: Committed) => Promise<void>,
  waiting: Map<string, string>,
): Promise<void> {
  const { clock, timers, logger, settings, broker } = options
  const startedAt = clock.monotonic()
  const warnedAt = new Map<AssignedTask, number>()
  let held = tasks
  try {
    while (held.length > 0) {
      const still: AssignedTask[] = []
      for (const task of held) {
        if (!isWanted(task)) continue
        let committed: Committed
        try {
          committed = await committedOffsets([task], consumer, HELD_TIMEOUT_MS)
        } catch (error) {
          if (!isWanted(task)) continue
          if (!(error instanceof BrokerError) || classify(error).reaction !== 'retriable') throw error
          const suspects = await suspectedTransactions(task, broker.admin, settings.applicationId)
          const what = suspects === undefined ? 'the group coordinator, which does not answer' : openTransactionOf(suspects)
          const waitedMs = clock.monotonic() - startedAt
          if (waitedMs >= settings.taskTimeoutMs) throw offsetsHeld(task, what, waitedMs, suspects, error)
          if (waiting.get(task.name) !== what || clock.monotonic() - (warnedAt.get(task) ?? 0) >= HELD_WARN_EVERY_MS) {
            warnedAt.set(task, clock.monotonic())
            logger.warn(
              { task: task.name, waitedMs, transactionalIds: suspects ?? [], error: error.message },
              `the committed offsets of the task are held back: it waits for ${what}`,
            )
          }
          waiting.set(task.name, what)
          still.push(task)
          continue
        }
        waiting.delete(task.name)
        await prepare([task], committed)
      }
      held = still
      if (held.length > 0) await delay(timers, HELD_PAUSE_MS)
    }
  } finally {
    for (const { name } of tasks) waiting.delete(name)
  }
}

function offsetsHeld(
  task: AssignedTask,
  what: string,
  waitedMs: number,
  suspects: readonly string[] | undefined,
  cause: BrokerError,
): BrokerUnavailableError {
  return new BrokerUnavailableError(
    `the committed offsets of task ${task.describe()} could not be read for ${Math.round(waitedMs)} ms (option taskTimeout): they wait for ${what}`,
    {
      code: 'offsets-held',
      remedy: suspects === undefined ? 'Check the brokers: the coordinator of the group does not answer.' : SETTLE_REMEDY,
      cause,
    },
  )
}

async function openState(
  task: AssignedTask,
  offsets: PreparedTask['offsets'],
  logs: ReadonlyMap<string, Changelog>,
  options: WorkerOptions,
  isWanted: (task: AssignedTask) => boolean,
  done: (prepared: PreparedTask) => void,
): Promise<void> {
  const state = await options.backend.open(task.name, task.subTopology.stores)
  try {
    if (!isWanted(task)) state.close()
    else done({ task, state, offsets, restores: restoresOf(task, state, logs, options) })
  } catch (error) {
    state.close()
    throw error
  }
}

async function committedOffsets(tasks: readonly AssignedTask[], consumer: GroupConsumer, timeoutMs: number): Promise<Committed> {
  const inputs = tasks.flatMap((task) => task.inputs)
  const answer = inputs.length === 0 ? [] : await consumer.committed(inputs, timeoutMs)
  return new Map(answer.map((offset) => [partitionName(offset.topic, offset.partition), offset]))
}

/** One partition of a changelog, as it was after the committed offsets were read. */
interface Changelog extends PartitionOffsets {
  readonly deleteRetentionMs: number
}

/** By partition name. */
async function readChangelogs(tasks: readonly AssignedTask[], options: WorkerOptions): Promise<ReadonlyMap<string, Changelog>> {
  const partitions = tasks.flatMap((task) =>
    task.subTopology.stores.map((store) => ({
      topic: changelogTopic(options.settings.applicationId, store.name),
      partition: task.partition,
    })),
  )
  if (partitions.length === 0) return new Map()
  const bounds = await logBounds(partitions, options)
  const retention = await deleteRetention([...new Set(partitions.map(({ topic }) => topic))], options)
  return new Map(
    bounds.map((bound) => [
      partitionName(bound.topic, bound.partition),
      { ...bound, deleteRetentionMs: retention.get(bound.topic) ?? DEFAULT_DELETE_RETENTION_MS },
    ]),
  )
}

const DEFAULT_DELETE_RETENTION_MS = Number(CHANGELOG_TOPIC_CONFIG['delete.retention.ms'])

/** `delete.retention.ms` by topic: somebody may have altered ours. Who may not read it gets what we created the topic with. */
async function deleteRetention(topics: readonly string[], { broker, logger }: WorkerOptions): Promise<ReadonlyMap<string, number>> {
  try {
    const configs = await broker.admin.topicConfigs(topics)
    return new Map(
      [...configs].flatMap(([topic, config]) => {
        const value = Number(config.get('delete.retention.ms') ?? Number.NaN)
        return Number.isFinite(value) ? [[topic, value] as const] : []
      }),
    )
  } catch (error) {
    if (!(error instanceof BrokerError)) throw error
    logger.debug({ error: error.message }, 'delete.retention.ms of the changelogs could not be read: taken as created')
    return new Map()
  }
}

const RECREATED = {
  reason: 'changelog-recreated',
  why: "its changelog is shorter than the file and counts as re-created (option changelogMissing is 'recreate'): what only the file knew is forgotten",
} as const

function restoresOf(
  task: AssignedTask,
  state: TaskState,
  logs: ReadonlyMap<string, Changelog>,
  { clock, logger, settings }: WorkerOptions,
): RestoreRequest[] {
  const requests: RestoreRequest[] = []
  for (const store of state.stores.values()) {
    const topic = changelogTopic(settings.applicationId, store.name)
    const { partition } = task
    const {
      logStart = 0,
      highWatermark: target = 0,
      deleteRetentionMs = DEFAULT_DELETE_RETENTION_MS,
    } = logs.get(partitionName(topic, partition)) ?? {}
    let checkpoint = state.checkpoint(store.name)
    const now = clock.now()
    let readAt = checkpoint === undefined ? now : (state.checkpointTime(store.name) ?? 0)
    let rebuild: RebuildReason | undefined
    if (checkpoint !== undefined) {
      const isShrunk = checkpoint > target
      if (isShrunk && settings.changelogMissing !== 'recreate')
        throw changelogShrunk(`the state of task ${task.describe()} is complete`, topic, partition, checkpoint, target)
      const found = isShrunk ? RECREATED : whyRebuild(checkpoint, readAt, logStart, target, deleteRetentionMs, now)
      if (found !== undefined) {
        rebuild = found.reason
        logger.warn(
          { task: task.name, store: store.name, topic, partition, checkpoint, logStart, target, reason: rebuild },
          `rebuilding the store from its changelog once: ${found.why}`,
        )
        state.reset(store.name)
        checkpoint = undefined
        readAt = now
      }
    }
    const from = checkpoint ?? logStart
    // An emptied store goes through the restore even if nothing is left to read: it ends with a checkpoint of its own.
    if (from < target || rebuild !== undefined) {
      requests.push({
        task,
        store,
        topic,
        partition,
        from,
        target: Math.max(from, target),
        readAt,
        deleteRetentionMs,
        ...(rebuild === undefined ? {} : { rebuild }),
      })
    }
  }
  return requests
}

/** A local file that cannot be caught up safely. Never a guess: each reason is proven by the log or the clock. */
function whyRebuild(
  checkpoint: number,
  checkpointTime: number,
  logStart: number,
  target: number,
  deleteRetentionMs: number,
  now: number,
): { readonly reason: RebuildReason; readonly why: string } | undefined {
  if (checkpoint < logStart)
    return { reason: 'checkpoint-before-log-start', why: `its checkpoint ${checkpoint} lies before the log start ${logStart}` }
  const ageMs = now - checkpointTime
  if (checkpoint < target && ageMs > trustedForMs(deleteRetentionMs))
    return {
      reason: 'tombstones-too-old',
      why: `its checkpoint was written ${ageMs} ms ago, and the changelog keeps tombstones for ${deleteRetentionMs} ms (delete.retention.ms): deleted keys would rise again`,
    }
  return undefined
}

/** By task, then by input topic. */
async function inputOffsets(
  tasks: readonly AssignedTask[],
  committed: Committed,
  options: WorkerOptions,
): Promise<ReadonlyMap<AssignedTask, PreparedTask['offsets']>> {
  const bounds = byName(
    await logBounds(
      tasks.flatMap(({ inputs }) => inputs),
      options,
    ),
  )
  return new Map(tasks.map((task) => [task, offsetsOf(task, committed, bounds)]))
}

function offsetsOf(task: AssignedTask, committed: Committed, bounds: ReadonlyMap<string, PartitionOffsets>): PreparedTask['offsets'] {
  const latest = new Set(
    task.subTopology.nodes.flatMap((node) => (node.kind === 'source' && node.startFrom === 'latest' ? node.topics : [])),
  )
  return new Map(
    task.inputs.map(({ topic, partition }) => {
      const name = partitionName(topic, partition)
      const found = committed.get(name)
      const metadata = readMetadata(found?.metadata ?? '')
      const bound = bounds.get(name)
      return [
        topic,
        {
          committed: found?.offset,
          // Partitions that were added while the application existed are read from their beginning: what came before they were noticed is new, too.
          start: (latest.has(topic) && !task.isAdded ? bound?.highWatermark : bound?.logStart) ?? 0,
          logStart: bound?.logStart ?? 0,
          highWatermark: bound?.highWatermark ?? Number.MAX_SAFE_INTEGER,
          streamTime: metadata?.streamTime ?? -1,
          committedAt: metadata?.committedAt ?? 0,
        },
      ]
    }),
  )
}

/**
 * Recorded progress without an offset is refused: reading from the start would repeat every output. But no offset is an answer of its time: (1) this process
 * asks for the first offset of a task, and is stopped, (2) another one takes the task over and commits, (3) this one wakes and finds that progress. So
 * after progress was seen the offsets are asked for once more; what then has none has lost it. A task that is gone by now is its new owner's matter.
 */
async function trusted(
  tasks: readonly AssignedTask[],
  committed: Committed,
  consumer: GroupConsumer,
  isWanted: (task: AssignedTask) => boolean,
  { broker, settings, random, clock, timers, logger }: WorkerOptions,
): Promise<Committed> {
  if (!tasks.some((task) => isWithoutOffset(task, committed))) return committed
  const { progress } = await readTaskRecords(broker, tasksTopic(settings.applicationId), {
    random,
    clock,
    timers,
    logger,
    timeoutMs: TASK_RECORDS_TIMEOUT_MS,
  })
  const suspects = tasks.filter((task) => progress.has(task.name) && isWithoutOffset(task, committed))
  if (suspects.length === 0) return committed
  const retry = { clock, timers, logger, timeoutMs: settings.taskTimeoutMs, what: 'committed offsets, once more' }
  const isOver = (): boolean => !suspects.some(isWanted)
  let later: Committed
  try {
    later = await untilAnswered(() => committedOffsets(suspects, consumer, COMMITTED_TIMEOUT_MS), { ...retry, isOver })
  } catch (error) {
    if (isOver()) return committed
    throw error
  }
  const task = suspects.find((suspect) => isWanted(suspect) && isWithoutOffset(suspect, later))
  if (task === undefined) return new Map([...committed, ...later])
  const where = task.inputs.filter((input) => hasNoOffset(input, later)).map(({ topic, partition }) => partitionName(topic, partition))
  throw new ConfigError(
    `task ${task.describe()} has worked before, but group ${settings.applicationId} has no committed offset for ${where.join(', ')}`,
    {
      code: 'offsets-missing',
      remedy:
        'The offsets expired or were deleted. Set them on purpose (kafka-consumer-groups.sh --reset-offsets), or start under another applicationId, which begins anew.',
    },
  )
}

function isWithoutOffset(task: AssignedTask, committed: Committed): boolean {
  return task.inputs.some((input) => hasNoOffset(input, committed))
}

function hasNoOffset({ topic, partition }: TopicPartition, committed: Committed): boolean {
  return committed.get(partitionName(topic, partition))?.offset === undefined
}

/** A topic that was just created is not known to the client at once. */
function logBounds(
  partitions: readonly TopicPartition[],
  { broker, clock, timers, logger, settings }: WorkerOptions,
): Promise<readonly PartitionOffsets[]> {
  return untilAnswered(() => broker.admin.offsets(partitions), {
    clock,
    timers,
    logger,
    timeoutMs: settings.taskTimeoutMs,
    what: 'offsets of changelogs and inputs',
  })
}

function byName(offsets: readonly PartitionOffsets[]): ReadonlyMap<string, PartitionOffsets> {
  return new Map(offsets.map((offset) => [partitionName(offset.topic, offset.partition), offset]))
}
