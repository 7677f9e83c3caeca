/**
 * Calls inside one native client. The client must not be closed under them: its object is freed, and a call on another thread goes on in it (SIGSEGV).
 * A call that our watchdog gave up is still inside.
 */
import { UnderWay } from '../../common/under-way.ts'
import type { BrokerOperation } from '../../errors/broker-error.ts'
import { call, withWatchdog } from './errors.ts'

/** How long a close waits for calls that are under way; they have time-outs of their own. */
export const CLOSE_WAIT_MS = 12_000

type Start<T> = (done: (error: unknown, result?: T) => void) => void

export class NativeCalls {
  readonly #inside = new UnderWay()

  run<T>(operation: BrokerOperation, start: Start<T>): Promise<T> {
    return this.#inside.add(call(operation, start))
  }

  runWithWatchdog<T>(operation: BrokerOperation, timeoutMs: number, start: Start<T>): Promise<T> {
    return withWatchdog(operation, timeoutMs, this.run(operation, start))
  }

  /** Resolves when the calls that are inside now have come back. */
  allLeft(): Promise<void> {
    return this.#inside.ended()
  }

  /** True when no call is inside any more; waits for `limitMs` at most. */
  left(limitMs: number): Promise<boolean> {
    return endedWithin(this.#inside, limitMs)
  }
}

/** True when all of it has ended; waits for `limitMs` at most, and leaves no timer behind. */
export async function endedWithin(work: UnderWay, limitMs: number): Promise<boolean> {
  if (work.isEmpty) return true
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<false>((resolve) => (timer = setTimeout(() => resolve(false), limitMs)))
  try {
    return await Promise.race([work.ended().then(() => true), late])
  } finally {
    clearTimeout(timer)
  }
}
