/**
 * Why a store is emptied and restored from the start of its changelog (X2: never without one of these reasons), and what restores have done so far.
 *
 * Owns: the reasons, their counters, the error for a changelog that lost its end. Does not own: when a store is emptied (task-preparation, restore).
 */
import { partitionName } from '../common/topic-partition.ts'
import { ConfigError } from '../errors/errors.ts'

/**
 * `checkpoint-before-log-start`: found when the task was opened. `head-deleted`: records were deleted in front of a restore under way.
 * `tombstones-too-old`: more time lies between two looks at the changelog than it keeps tombstones. `changelog-recreated`: by the policy `changelogMissing`. `damaged`: the file, proven.
 */
export type RebuildReason = 'checkpoint-before-log-start' | 'head-deleted' | 'tombstones-too-old' | 'changelog-recreated' | 'damaged'

/** What only grows, since the start of the worker. */
export interface RestoreCounts {
  readonly started: number
  readonly finished: number
  /** Changelog records and bytes applied, of unfinished restores too. */
  readonly records: number
  readonly bytes: number
  readonly rebuilds: Readonly<Record<RebuildReason, number>>
}

export class RestoreCounters implements RestoreCounts {
  started = 0
  finished = 0
  records = 0
  bytes = 0
  readonly rebuilds: Record<RebuildReason, number> = {
    'checkpoint-before-log-start': 0,
    'head-deleted': 0,
    'tombstones-too-old': 0,
    'changelog-recreated': 0,
    damaged: 0,
  }

  rebuilt(reason: RebuildReason): void {
    this.rebuilds[reason]++
  }
}

const LARGEST_MARGIN_MS = 3_600_000

/**
 * How long what was read of a changelog can still be completed with what is there now. A tombstone stays readable for `delete.retention.ms` after the
 * compaction that removed the values it covers; whoever read such a value before and comes to the tombstone's place later than that never hears of the
 * deletion, and the key rises again (DESIGN 4). The margin is for clocks that differ.
 */
export function trustedForMs(deleteRetentionMs: number): number {
  return deleteRetentionMs - Math.min(LARGEST_MARGIN_MS, deleteRetentionMs / 4)
}

/** The log ends before what is known of it: emptying the store would destroy the last copy. `who` begins the message: "the state of task 0_1 reaches". */
export function changelogShrunk(who: string, topic: string, partition: number, known: number, end: number): ConfigError {
  return new ConfigError(
    `${who} up to offset ${known} of ${partitionName(topic, partition)}, but that log ends at ${end}: it was re-created or truncated`,
    {
      code: 'changelog-shrunk',
      remedy:
        'Restore the topic. If it is lost for good, start under another applicationId, which begins anew; or delete the task\u2019s folder below the state directory to go on with what the changelog still has.',
    },
  )
}
