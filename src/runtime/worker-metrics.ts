/** Figures of one worker: counters, the last commits' durations, and the rate over the last second or so. */
import type { Clock } from '../common/ports.ts'

const WINDOW = 1_024

export class WorkerMetrics {
  readonly #clock: Clock
  readonly #durations = new Float64Array(WINDOW)
  #recent = 0
  transactions = 0
  aborts = 0
  records = 0
  outputs = 0
  duplicates = 0
  late = 0
  skipped = 0
  deadLetters = 0
  /** By the policy for offsets out of range. */
  offsetsPassedOver = 0
  fences = 0
  /** Age of the oldest transaction so far when it ended, ms. */
  oldestTransactionMs = 0
  /** Aborts by cause, for the log and the metrics. */
  readonly abortsByCause = new Map<string, number>()
  #rateAt: number
  #rateRecords = 0
  #rate = 0

  constructor(clock: Clock) {
    this.#clock = clock
    this.#rateAt = clock.monotonic()
  }

  committed(durationMs: number): void {
    this.#durations[this.transactions % WINDOW] = durationMs
    this.transactions++
    this.#recent = Math.min(WINDOW, this.#recent + 1)
  }

  transactionEnded(ageMs: number): void {
    this.oldestTransactionMs = Math.max(this.oldestTransactionMs, ageMs)
  }

  aborted(cause: string): void {
    this.aborts++
    this.abortsByCause.set(cause, (this.abortsByCause.get(cause) ?? 0) + 1)
  }

  /** Duration of recent commits at `quantile` (0..1), ms; 0 before the first. */
  commitMs(quantile: number): number {
    if (this.#recent === 0) return 0
    const sorted = this.#durations.slice(0, this.#recent).sort()
    return sorted[Math.min(this.#recent - 1, Math.floor(quantile * this.#recent))] ?? 0
  }

  /** Committed input records a second since the last call, if that was half a second ago or more; else the last answer. */
  recordsPerSecond(): number {
    const now = this.#clock.monotonic()
    const elapsed = now - this.#rateAt
    if (elapsed >= 500) {
      this.#rate = ((this.records - this.#rateRecords) * 1_000) / elapsed
      this.#rateAt = now
      this.#rateRecords = this.records
    }
    return this.#rate
  }
}
