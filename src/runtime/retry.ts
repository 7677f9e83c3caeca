/** Repeats a look-up that may fail for a moment (a leader moves, a topic was just created) until it answers or its time is over. */
import { delay } from '../common/delay.ts'
import type { Clock, Logger, Timers } from '../common/ports.ts'
import { BrokerError } from '../errors/broker-error.ts'
import { classify } from '../errors/classify.ts'

export interface RetryOptions {
  readonly clock: Clock
  readonly timers: Timers
  readonly logger: Logger
  readonly timeoutMs: number
  /** Shown in the log while waiting. */
  readonly what: string
  readonly isOver?: () => boolean
}

/** The last error is thrown as it is when the time is over; errors that are not retriable at once. */
export async function untilAnswered<T>(
  ask: () => Promise<T>,
  { clock, timers, logger, timeoutMs, what, isOver }: RetryOptions,
): Promise<T> {
  const started = clock.monotonic()
  for (let attempt = 1; ; attempt++) {
    try {
      return await ask()
    } catch (error) {
      if (!(error instanceof BrokerError) || classify(error).reaction !== 'retriable' || isOver?.() === true) throw error
      const waitedMs = clock.monotonic() - started
      if (waitedMs >= timeoutMs) throw error
      if (attempt > 3) logger.info({ waitedMs, code: error.code, error: error.message }, `waiting: ${what}`)
      await delay(timers, Math.min(1_000, 50 * 2 ** Math.min(attempt, 5)))
    }
  }
}
