/** What all workers together do, as numbers and as one line. Pure. */
import { formatDuration } from '../common/duration.ts'
import { addCounts, type Counters, type RestoreStatus } from '../metrics/status.ts'
import type { WorkerView } from './supervisor.ts'

/** Counters are since `run` started, over all processes it had. */
export interface Totals extends Counters {
  readonly workers: number
  /** Workers that run, of `workers`. */
  readonly running: number
  readonly tasks: number
  readonly recordsPerSecond: number
  readonly lag: number
  /** The slowest worker's. */
  readonly commitP50Ms: number
  readonly commitP99Ms: number
  readonly rssBytes: number
  readonly restoring: readonly RestoreStatus[]
}

export function totalsOf(workers: readonly WorkerView[], past: Counters): Totals {
  const statuses = workers.flatMap((worker) => worker.status ?? [])
  const sum = (of: (status: (typeof statuses)[number]) => number): number => statuses.reduce((total, status) => total + of(status), 0)
  const most = (of: (status: (typeof statuses)[number]) => number): number =>
    statuses.reduce((highest, status) => Math.max(highest, of(status)), 0)
  return {
    workers: workers.length,
    running: workers.filter((worker) => worker.state === 'running').length,
    tasks: sum((status) => status.tasks),
    recordsPerSecond: Math.round(sum((status) => status.recordsPerSecond)),
    ...statuses.reduce(addCounts, past),
    lag: sum((status) => status.lag),
    commitP50Ms: tenths(most((status) => status.commitP50Ms)),
    commitP99Ms: tenths(most((status) => status.commitP99Ms)),
    rssBytes: sum((status) => status.rssBytes),
    restoring: statuses.flatMap((status) => status.restoring),
  }
}

function tenths(value: number): number {
  return Math.round(value * 10) / 10
}

const NUMBER = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 })

/** `2/2 workers  41,200 records/s  1,020 duplicates  lag 310  commit p99 12 ms` */
export function statusText(totals: Totals): string {
  const parts = [
    `${totals.running}/${totals.workers} ${totals.workers === 1 ? 'worker' : 'workers'}`,
    `${NUMBER.format(totals.recordsPerSecond)} records/s`,
    `${NUMBER.format(totals.duplicates)} duplicates`,
    `lag ${NUMBER.format(totals.lag)}`,
    `commit p99 ${NUMBER.format(totals.commitP99Ms)} ms`,
  ]
  if (totals.deadLetters > 0) parts.push(`${NUMBER.format(totals.deadLetters)} dead letters`)
  if (totals.skipped > 0) parts.push(`${NUMBER.format(totals.skipped)} skipped`)
  if (totals.aborts > 0) parts.push(`${NUMBER.format(totals.aborts)} aborts`)
  return parts.join('  ')
}

/** What stands beside a restore's bar. */
export function restoreText(restore: RestoreStatus): string {
  const eta = restore.etaMs === undefined ? '' : `, ${formatDuration(restore.etaMs)} left`
  return `${NUMBER.format(restore.done)} of ${NUMBER.format(restore.total)} records, ${NUMBER.format(restore.ratePerSecond)}/s${eta}`
}
