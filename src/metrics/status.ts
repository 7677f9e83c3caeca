/** What a worker says about itself once a second: plain data that survives IPC and JSON. */

/** What only grows, since the start of the worker; committed work only, but for `aborts`. Sums over workers and over the processes of a slot mean something. */
export interface Counters {
  readonly records: number
  readonly outputs: number
  readonly duplicates: number
  /** Records older than the window of a dedupe. */
  readonly late: number
  readonly deadLetters: number
  /** Failed records passed over under `onError: 'skip'`. */
  readonly skipped: number
  readonly transactions: number
  readonly aborts: number
  /** Aborts because a producer was fenced: a time-out, or another process. */
  readonly fences: number
  /** Offsets passed over under the policy `offsetOutOfRange`. */
  readonly offsetsPassedOver: number
  /** Stores read to the end of their changelogs, and the changelog records applied, of unfinished restores too. */
  readonly restores: number
  readonly restoredRecords: number
  /** Stores emptied and read from the start of their changelogs; why is in `rebuildsByReason`. */
  readonly rebuilds: number
}

export const NO_COUNTS: Counters = Object.freeze({
  records: 0,
  outputs: 0,
  duplicates: 0,
  late: 0,
  deadLetters: 0,
  skipped: 0,
  transactions: 0,
  aborts: 0,
  fences: 0,
  offsetsPassedOver: 0,
  restores: 0,
  restoredRecords: 0,
  rebuilds: 0,
})

export function addCounts(one: Counters, other: Counters): Counters {
  const sum: Record<keyof Counters, number> = { ...NO_COUNTS }
  for (const name of Object.keys(NO_COUNTS) as (keyof Counters)[]) sum[name] = one[name] + other[name]
  return sum
}

export interface RestoreStatus {
  readonly task: string
  readonly store: string
  /** Changelog records applied so far, of `total` (both by offset, so an estimate on compacted topics). */
  readonly done: number
  readonly total: number
  readonly ratePerSecond: number
  /** Undefined until a rate is known. */
  readonly etaMs: number | undefined
  /** What keeps the restore from going on, in words: an open transaction, named. Undefined while it goes on. */
  readonly waitingFor?: string | undefined
}

export type WorkerState = 'created' | 'starting' | 'restoring' | 'running' | 'rebalancing' | 'closing' | 'closed' | 'failed'

export interface WorkerStatus extends Counters {
  readonly state: WorkerState
  /** Input records a second, over the last second or so. */
  readonly recordsPerSecond: number
  /** Input records not yet processed, over all tasks of this worker. */
  readonly lag: number
  /** Over the recent commits; 0 before the first. */
  readonly commitP50Ms: number
  readonly commitP99Ms: number
  /** Of the open transaction; 0 while none is open. */
  readonly transactionAgeMs: number
  /** The longest that a transaction has been open since the start. */
  readonly oldestTransactionMs: number
  /** Since the start, by `<operation>:<code>`, as docs/errors.md names the codes. */
  readonly abortsByCause: Readonly<Record<string, number>>
  /** Since the start; the reasons are those of `RebuildReason`. */
  readonly rebuildsByReason: Readonly<Record<string, number>>
  readonly restoring: readonly RestoreStatus[]
  readonly tasks: number
  readonly rssBytes: number
}
