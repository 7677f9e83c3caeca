/**
 * Writes memtables and checkpoints, in three steps: (1) read the changelog's last stable offset, (2) commit a transaction that carries the task's offsets,
 * (3) only if that committed, write the rows and the offset read in (1) as checkpoint.
 *
 * Why (2) lies between: the offset alone proves nothing about us. Without it: (a) this worker stalls past its session time-out, (b) another one takes the
 * task over and commits ids, (c) this one wakes, does not know of its loss yet, and reads a last stable offset that lies behind records it never saw,
 * (d) it writes that offset, and when the task comes back to it, it restores nothing: those ids pass a second time. The group fences the commit in (2) by
 * generation and member, so when it succeeds nobody else wrote to the changelog between (1) and (2) (X2, X3; docs/decisions/0004).
 *
 * The checkpoint may lag behind the rows; replay converges.
 */
import type { Clock, Logger, Timers } from '../common/ports.ts'
import { delay } from '../common/delay.ts'
import { CorruptedStoreError } from '../errors/errors.ts'
import { changelogTopic } from '../topology/internal-topics.ts'
import type { AssignedTask } from './assigned-task.ts'
import type { WorkerOptions } from './worker-options.ts'

/** How long a clean end waits for the markers of its own last transactions: measured up to 10 ms (DESIGN 3). */
const DECIDED_WITHIN_MS = 2_000
const DECIDED_PAUSE_MS = 10

/** A task whose file turned out to be damaged while it was written. */
export interface Damage {
  readonly task: AssignedTask
  readonly error: CorruptedStoreError
}

export interface FlushOptions extends Pick<WorkerOptions, 'broker' | 'settings'> {
  readonly clock: Clock
  readonly timers: Timers
  readonly logger: Logger
}

type Checkpoints = ReadonlyMap<AssignedTask, ReadonlyMap<string, number>>

/**
 * `commit` is asked to commit the tasks, which are marked for it. `all decided`: waits a moment first until the changelog's last records are decided, so
 * that a clean start restores nothing. Returns tasks that must be rebuilt; their committed state is in the changelog.
 */
export async function flushState(
  tasks: readonly AssignedTask[],
  until: 'any' | 'all decided',
  commit: () => Promise<boolean>,
  options: FlushOptions,
): Promise<readonly Damage[]> {
  const stateful = tasks.filter((task) => task.phase === 'running' && task.subTopology.stores.length > 0)
  const checkpoints = await readCheckpoints(stateful, until, options)
  for (const task of checkpoints.keys()) task.touched = true
  return (await commit()) ? writeCheckpoints(checkpoints) : []
}

async function readCheckpoints(
  tasks: readonly AssignedTask[],
  until: 'any' | 'all decided',
  { broker, settings, clock, timers, logger }: FlushOptions,
): Promise<Checkpoints> {
  const partitions = tasks.flatMap((task) =>
    task.subTopology.stores.map(({ name }) => ({
      task,
      store: name,
      topic: changelogTopic(settings.applicationId, name),
      partition: task.partition,
    })),
  )
  const checkpoints = new Map<AssignedTask, Map<string, number>>()
  if (partitions.length === 0) return checkpoints
  let stable: readonly number[]
  try {
    stable = await broker.admin.lastStableOffsets(partitions)
    if (until === 'all decided') {
      const ends = (await broker.admin.offsets(partitions)).map(({ highWatermark }) => highWatermark)
      const deadline = clock.monotonic() + DECIDED_WITHIN_MS
      while (stable.some((offset, index) => offset < (ends[index] ?? 0)) && clock.monotonic() < deadline) {
        await delay(timers, DECIDED_PAUSE_MS)
        stable = await broker.admin.lastStableOffsets(partitions)
      }
    }
  } catch (error) {
    // No checkpoint, no flush: memory keeps what is committed, and the changelog has it too.
    logger.warn({ error: String(error) }, 'state is not flushed now: the changelog\u2019s last stable offset could not be read')
    return checkpoints
  }
  partitions.forEach(({ task, store }, index) => {
    const ofTask = checkpoints.get(task) ?? new Map<string, number>()
    ofTask.set(store, stable[index] ?? 0)
    checkpoints.set(task, ofTask)
  })
  return checkpoints
}

function writeCheckpoints(checkpoints: Checkpoints): readonly Damage[] {
  const damaged: Damage[] = []
  for (const [task, offsets] of checkpoints) {
    if (task.phase !== 'running') continue // given up or restarted by the commit
    try {
      task.state?.flush(offsets)
    } catch (error) {
      if (!(error instanceof CorruptedStoreError)) throw error
      damaged.push({ task, error })
    }
  }
  return damaged
}
