/**
 * How long one commit may take, all its retries and the settling of an unknown outcome included: less than the poll interval, because a revoke may wait
 * for it, and a member that has not answered by then is thrown out of the group (CASES A16). What is not settled by then goes on beside the loop.
 */
import type { WorkerSettings } from './worker-options.ts'

export interface TransactionBudgets {
  /** One call to the broker. */
  readonly callTimeoutMs: number
  /** Flush, offsets and commit with their retries; after it the outcome is called unknown. */
  readonly commitMs: number
  /** Everything: the commit, and the abort or the replacement of the producer after it. */
  readonly totalMs: number
}

const MAX_CALL_TIMEOUT_MS = 5_000
/** The rest of the poll interval is for closing the state, and for a call that was under way when its budget ended. */
const SHARE_OF_POLL_INTERVAL = 0.6

export function transactionBudgets({
  maxPollIntervalMs,
  transactionTimeoutMs,
}: Pick<WorkerSettings, 'maxPollIntervalMs' | 'transactionTimeoutMs'>): TransactionBudgets {
  const totalMs = maxPollIntervalMs * SHARE_OF_POLL_INTERVAL
  const callTimeoutMs = Math.min(MAX_CALL_TIMEOUT_MS, totalMs / 5)
  return { callTimeoutMs, commitMs: Math.min(transactionTimeoutMs + callTimeoutMs, totalMs / 2), totalMs }
}
