/**
 * What a task needs before its restore: its state opened, its committed offsets, and where each changelog begins and ends.
 *
 * Runs beside the loop and touches nothing but the task's own state file; its result goes in as an event.
 * Order matters: the committed offsets are stable ones (they wait for a dead peer's transaction), and the changelog's end is read after them, so that
 * it lies behind every record of the transactions that committed those offsets (restore R1).
 */
import type { GroupConsumer, PartitionOffsets } from '../broker/port.ts'
import { partitionName, type TopicPartition } from '../common/topic-partition.ts'
import type { TaskState } from '../state/store.ts'
import { CHANGELOG_TOPIC_CONFIG, changelogTopic } from '../topology/internal-topics.ts'
import type { AssignedTask } from './assigned-task.ts'
import { readMetadata } from './offset-metadata.ts'
import type { RestoreRequest } from './restore.ts'
import { untilAnswered } from './retry.ts'
import type { WorkerOptions } from './worker-options.ts'

export interface InputOffsets {
  readonly committed: number | undefined
  readonly start: number
  readonly streamTime: number
}

export interface PreparedTask {
  readonly task: AssignedTask
  readonly state: TaskState
  /** By input topic. */
  readonly offsets: ReadonlyMap<string, InputOffsets>
  /** Only stores that have something to read. */
  readonly restores: readonly RestoreRequest[]
}

const COMMITTED_TIMEOUT_MS = 5_000
/** A checkpoint this close to the tombstones' retention is not trusted: deleted keys would rise again (DESIGN 4). */
const RETENTION_MARGIN_MS = 3_600_000

export async function prepareTasks(
  tasks: readonly AssignedTask[],
  consumer: GroupConsumer,
  options: WorkerOptions,
  isOver: () => boolean,
): Promise<readonly PreparedTask[]> {
  const states: TaskState[] = []
  try {
    for (const task of tasks) states.push(await options.backend.open(task.name, task.subTopology.stores))
    const offsets = await inputOffsets(tasks, consumer, options, isOver)
    const changelogs = tasks.flatMap((task) =>
      task.subTopology.stores.map((store) => ({
        topic: changelogTopic(options.settings.applicationId, store.name),
        partition: task.partition,
      })),
    )
    const ends = byName(await logBounds(changelogs, options))
    return tasks.map((task, index) => {
      const state = states[index] as TaskState
      return {
        task,
        state,
        offsets: offsets.get(task) ?? new Map<string, InputOffsets>(),
        restores: restoresOf(task, state, ends, options),
      }
    })
  } catch (error) {
    for (const state of states) state.close()
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

async function inputOffsets(
  tasks: readonly AssignedTask[],
  consumer: GroupConsumer,
  options: WorkerOptions,
  isOver: () => boolean,
): Promise<ReadonlyMap<AssignedTask, ReadonlyMap<string, InputOffsets>>> {
  const { plan, clock, timers, logger, settings } = options
  const inputs = tasks.flatMap((task) => task.inputs)
  const committed =
    inputs.length === 0
      ? []
      : await untilAnswered(() => consumer.committed(inputs, COMMITTED_TIMEOUT_MS), {
          clock,
          timers,
          logger,
          timeoutMs: settings.taskTimeoutMs,
          what: 'committed offsets: a transaction that holds them is still open, or the coordinator is away',
          isOver,
        })
  const found = new Map(committed.map((answer) => [partitionName(answer.topic, answer.partition), answer]))
  const fresh = inputs.filter(({ topic, partition }) => found.get(partitionName(topic, partition))?.offset === undefined)
  const bounds = byName(await logBounds(fresh, options))
  const latest = new Set(
    plan.subTopologies.flatMap(({ nodes }) =>
      nodes.flatMap((node) => (node.kind === 'source' && node.startFrom === 'latest' ? node.topics : [])),
    ),
  )
  const answer = new Map<AssignedTask, Map<string, InputOffsets>>()
  for (const task of tasks) {
    const offsets = new Map<string, InputOffsets>()
    for (const { topic, partition } of task.inputs) {
      const name = partitionName(topic, partition)
      const bound = bounds.get(name)
      offsets.set(topic, {
        committed: found.get(name)?.offset,
        start: (latest.has(topic) ? bound?.highWatermark : bound?.logStart) ?? 0,
        streamTime: readMetadata(found.get(name)?.metadata ?? '')?.streamTime ?? -1,
      })
    }
    answer.set(task, offsets)
  }
  return answer
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
