/**
 * Writes memtables and checkpoints. The checkpoint is the changelog's last stable offset, read between two transactions: everything of ours below it is
 * committed and merged, so the file is never ahead of the changelog (X2). It may lag; replay converges.
 */
import { delay } from '../common/delay.ts'
import { partitionName } from '../common/topic-partition.ts'
import { CorruptedStoreError } from '../errors/errors.ts'
import { changelogTopic } from '../topology/internal-topics.ts'
import type { AssignedTask } from './assigned-task.ts'
import type { WorkerOptions } from './worker-options.ts'

/** How long a clean end waits for the markers of its own last transactions: measured up to 10 ms (DESIGN 3). */
const DECIDED_WITHIN_MS = 2_000

/** A task whose file turned out to be damaged while it was written. */
export interface Damage {
  readonly task: AssignedTask
  readonly error: CorruptedStoreError
}

/** Returns the tasks that must be rebuilt; their committed state is in the changelog. */
export async function flushCheckpoint(
  tasks: readonly AssignedTask[],
  until: 'any' | 'all decided',
  { broker, settings, clock, timers, logger }: Pick<WorkerOptions, 'broker' | 'settings' | 'clock' | 'timers' | 'logger'>,
): Promise<readonly Damage[]> {
  const partitions = tasks.flatMap((task) =>
    task.subTopology.stores.map(({ name }) => ({
      task,
      store: name,
      topic: changelogTopic(settings.applicationId, name),
      partition: task.partition,
    })),
  )
  if (partitions.length === 0) return []
  let stable: readonly number[]
  try {
    stable = await broker.admin.lastStableOffsets(partitions)
    if (until === 'all decided') {
      const ends = (await broker.admin.offsets(partitions)).map(({ highWatermark }) => highWatermark)
      const deadline = clock.monotonic() + DECIDED_WITHIN_MS
      while (stable.some((offset, index) => offset < (ends[index] ?? 0)) && clock.monotonic() < deadline) {
        await delay(timers, 10)
        stable = await broker.admin.lastStableOffsets(partitions)
      }
    }
  } catch (error) {
    // No checkpoint, no flush: memory keeps what is committed, and the changelog has it too.
    logger.warn({ error: String(error) }, 'state was not flushed: the changelog\u2019s last stable offset could not be read')
    return []
  }
  const checkpoints = new Map<AssignedTask, Map<string, number>>()
  partitions.forEach(({ task, store, topic, partition }, index) => {
    const offset = stable[index]
    if (offset === undefined) throw new Error(`no last stable offset for ${partitionName(topic, partition)}`)
    const ofTask = checkpoints.get(task) ?? new Map<string, number>()
    ofTask.set(store, offset)
    checkpoints.set(task, ofTask)
  })
  const damaged: Damage[] = []
  for (const [task, offsets] of checkpoints) {
    if (task.phase !== 'running') continue // given up while the offsets were read
    try {
      task.state?.flush(offsets)
    } catch (error) {
      if (!(error instanceof CorruptedStoreError)) throw error
      damaged.push({ task, error })
    }
  }
  return damaged
}
