/**
 * What a task needs before its restore: its state opened, its committed offsets, and where each changelog begins and ends.
 *
 * Runs beside the loop and touches nothing but the task's own state file; its result goes in as an event.
 * Order matters: the committed offsets are stable ones (they wait for a dead peer's transaction), and the changelog's end is read after them, so that
 * it lies behind every record of the transactions that committed those offsets (restore R1).
 */
import type { CommittedOffset, GroupConsumer, PartitionOffsets } from '../broker/port.ts'
import { partitionName, type TopicPartition } from '../common/topic-partition.ts'
import { ConfigError } from '../errors/errors.ts'
import type { TaskState } from '../state/store.ts'
import { CHANGELOG_TOPIC_CONFIG, changelogTopic, tasksTopic } from '../topology/internal-topics.ts'
import type { AssignedTask } from './assigned-task.ts'
import { readMetadata } from './offset-metadata.ts'
import type { RestoreRequest } from './restore.ts'
import { untilAnswered } from './retry.ts'
import { readTaskRecords } from './task-table.ts'
import type { WorkerOptions } from './worker-options.ts'

export interface InputOffsets {
  readonly committed: number | undefined
  readonly start: number
  readonly streamTime: number
  /** Wall clock of the last commit, ms; 0 when unknown. */
  readonly committedAt: number
}

export interface PreparedTask {
  readonly task: AssignedTask
  readonly state: TaskState
  /** By input topic. */
  readonly offsets: ReadonlyMap<string, InputOffsets>
  /** Only stores that have something to read. */
  readonly restores: readonly RestoreRequest[]
}

/** First try, for all tasks in one request; then task by task, so that one that waits for a dead peer's transaction does not hold up the others. */
const COMMITTED_TIMEOUT_MS = 2_000
/** A checkpoint this close to the tombstones' retention is not trusted: deleted keys would rise again (DESIGN 4). */
const RETENTION_MARGIN_MS = 3_600_000
const TASK_RECORDS_TIMEOUT_MS = 30_000

/**
 * `done` gets each task as soon as it is ready. `isWanted` is asked between all steps: a task that was given up meanwhile
 * is dropped at once. Files are opened last, so that nobody holds a lock while it waits for the broker.
 */
export async function prepareTasks(
  tasks: readonly AssignedTask[],
  consumer: GroupConsumer,
  options: WorkerOptions,
  isWanted: (task: AssignedTask) => boolean,
  done: (prepared: PreparedTask) => void,
): Promise<void> {
  const answered = await committedOffsets(tasks, consumer).catch(() => undefined)
  const opening: Promise<void>[] = []
  for (const task of tasks) {
    if (!isWanted(task)) continue
    const committed = answered ?? (await waitForCommitted(task, consumer, options, () => !isWanted(task)))
    if (committed === undefined) continue
    const offsets = await inputOffsets(task, committed, options)
    const changelogs = task.subTopology.stores.map((store) => ({
      topic: changelogTopic(options.settings.applicationId, store.name),
      partition: task.partition,
    }))
    const ends = byName(await logBounds(changelogs, options))
    // Not awaited here: one file that another process holds must not keep the others waiting.
    if (!isWanted(task)) continue
    const opened = openState(task, offsets, ends, options, isWanted, done)
    opened.catch(() => undefined) // reported below; until then it is not unhandled
    opening.push(opened)
  }
  await Promise.all(opening)
}

async function openState(
  task: AssignedTask,
  offsets: PreparedTask['offsets'],
  ends: ReadonlyMap<string, PartitionOffsets>,
  options: WorkerOptions,
  isWanted: (task: AssignedTask) => boolean,
  done: (prepared: PreparedTask) => void,
): Promise<void> {
  const state = await options.backend.open(task.name, task.subTopology.stores)
  try {
    if (!isWanted(task)) state.close()
    else done({ task, state, offsets, restores: restoresOf(task, state, ends, options) })
  } catch (error) {
    state.close()
    throw error
  }
}

type Committed = ReadonlyMap<string, CommittedOffset>

async function committedOffsets(tasks: readonly AssignedTask[], consumer: GroupConsumer): Promise<Committed> {
  const inputs = tasks.flatMap((task) => task.inputs)
  const answer = inputs.length === 0 ? [] : await consumer.committed(inputs, COMMITTED_TIMEOUT_MS)
  return new Map(answer.map((offset) => [partitionName(offset.topic, offset.partition), offset]))
}

/** Undefined when the task was given up while waiting. */
async function waitForCommitted(
  task: AssignedTask,
  consumer: GroupConsumer,
  { clock, timers, logger, settings }: WorkerOptions,
  isOver: () => boolean,
): Promise<Committed | undefined> {
  try {
    return await untilAnswered(() => committedOffsets([task], consumer), {
      clock,
      timers,
      logger,
      timeoutMs: settings.taskTimeoutMs,
      what: `committed offsets of task ${task.describe()}: a transaction that holds them is still open, or the coordinator is away`,
      isOver,
    })
  } catch (error) {
    if (isOver()) return undefined
    throw error
  }
}

function restoresOf(
  task: AssignedTask,
  state: TaskState,
  ends: ReadonlyMap<string, PartitionOffsets>,
  options: WorkerOptions,
): RestoreRequest[] {
  const { clock, logger, settings } = options
  const requests: RestoreRequest[] = []
  for (const store of state.stores.values()) {
    const topic = changelogTopic(settings.applicationId, store.name)
    const { partition } = task
    const end = ends.get(partitionName(topic, partition))
    const logStart = end?.logStart ?? 0
    const target = end?.highWatermark ?? 0
    let checkpoint = state.checkpoint(store.name)
    if (checkpoint !== undefined && checkpoint > target) throw changelogShrunk(task, topic, checkpoint, target)
    if (checkpoint !== undefined) {
      const reason = whyRebuild(checkpoint, state.checkpointTime(store.name) ?? 0, logStart, target, clock.now())
      if (reason !== undefined) {
        logger.warn(
          { task: task.name, store: store.name, checkpoint, logStart, target },
          `rebuilding the store from its changelog once: ${reason}`,
        )
        state.reset(store.name)
        checkpoint = undefined
      }
    }
    const from = checkpoint ?? logStart
    if (from < target) requests.push({ task, store, topic, partition, from, target })
  }
  return requests
}

/** A local file that cannot be caught up safely. Never a guess: each reason is proven by the log or the clock. */
function whyRebuild(checkpoint: number, checkpointTime: number, logStart: number, target: number, now: number): string | undefined {
  if (checkpoint < logStart) return `its checkpoint ${checkpoint} lies before the log start ${logStart}`
  if (checkpoint > target)
    return `its checkpoint ${checkpoint} lies behind the log end ${target}: the changelog was re-created or truncated`
  const retentionMs = Number(CHANGELOG_TOPIC_CONFIG['delete.retention.ms'])
  if (checkpoint < target && now - checkpointTime > retentionMs - RETENTION_MARGIN_MS)
    return `its checkpoint is older than the tombstones' retention`
  return undefined
}

async function inputOffsets(task: AssignedTask, committed: Committed, options: WorkerOptions): Promise<ReadonlyMap<string, InputOffsets>> {
  const fresh = task.inputs.filter(({ topic, partition }) => committed.get(partitionName(topic, partition))?.offset === undefined)
  if (fresh.length > 0) await refuseLostOffsets(task, fresh, options)
  const bounds = byName(await logBounds(fresh, options))
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
          start: (latest.has(topic) ? bound?.highWatermark : bound?.logStart) ?? 0,
          streamTime: metadata?.streamTime ?? -1,
          committedAt: metadata?.committedAt ?? 0,
        },
      ]
    }),
  )
}

/** Recorded progress without an offset: reading from the start would repeat every output. */
async function refuseLostOffsets(
  task: AssignedTask,
  fresh: readonly TopicPartition[],
  { broker, settings, random, clock, timers, logger }: WorkerOptions,
): Promise<void> {
  const { progress } = await readTaskRecords(broker, tasksTopic(settings.applicationId), {
    random,
    clock,
    timers,
    logger,
    timeoutMs: TASK_RECORDS_TIMEOUT_MS,
  })
  if (!progress.has(task.name)) return
  const where = fresh.map(({ topic, partition }) => partitionName(topic, partition)).join(', ')
  throw new ConfigError(
    `task ${task.describe()} has worked before, but group ${settings.applicationId} has no committed offset for ${where}`,
    {
      code: 'offsets-missing',
      remedy:
        'The offsets expired or were deleted. Set them on purpose (kafka-consumer-groups.sh --reset-offsets), or start under another applicationId, which begins anew.',
    },
  )
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

/** The file knows more than the log: emptying it would destroy the last copy. */
function changelogShrunk(task: AssignedTask, topic: string, checkpoint: number, end: number): ConfigError {
  return new ConfigError(
    `the state of task ${task.describe()} was complete up to offset ${checkpoint} of ${topic}[${task.partition}], but that log ends at ${end}: it was re-created or truncated`,
    {
      code: 'changelog-shrunk',
      remedy:
        'Restore the topic. If it is lost for good, start under another applicationId, which begins anew; or delete the task\u2019s folder below the state directory to go on with what the changelog still has.',
    },
  )
}
