/** What a worker says about itself once a second. Pure types; plain data that survives IPC and JSON. */

export interface RestoreStatus {
  readonly task: string
  readonly store: string
  /** Changelog records applied so far, of `total` (both by offset, so an estimate on compacted topics). */
  readonly done: number
  readonly total: number
  readonly ratePerSecond: number
  /** Undefined until a rate is known. */
  readonly etaMs: number | undefined
}

export type WorkerState = 'created' | 'starting' | 'restoring' | 'running' | 'rebalancing' | 'closing' | 'closed' | 'failed'

export interface WorkerStatus {
  readonly state: WorkerState
  /** Input records a second, over the last second or so. */
  readonly recordsPerSecond: number
  /** Since the start of the worker, committed. */
  readonly records: number
  readonly outputs: number
  readonly duplicates: number
  /** Input records not yet processed, over all tasks of this worker. */
  readonly lag: number
  /** Over the recent commits; 0 before the first. */
  readonly commitP50Ms: number
  readonly commitP99Ms: number
  readonly restoring: readonly RestoreStatus[]
  /** Committed transactions since the start. */
  readonly transactions: number
  readonly aborts: number
  readonly tasks: number
  readonly rssBytes: number
}
