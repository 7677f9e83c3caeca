/**
 * Calls inside one native client. The client must not be closed under them: its object is freed, and a call on another thread goes on in it (SIGSEGV).
 * A call that our watchdog gave up is still inside.
 */
import type { BrokerOperation } from '../../errors/broker-error.ts'
import { call, withWatchdog } from './errors.ts'

/** How long a close waits for calls that are under way; they have time-outs of their own. */
export const CLOSE_WAIT_MS = 12_000

type Start<T> = (done: (error: unknown, result?: T) => void) => void

export class NativeCalls {
  readonly #inside = new Set<Promise<void>>()

  run<T>(operation: BrokerOperation, start: Start<T>): Promise<T> {
    const answer = call(operation, start)
    const ended: Promise<void> = answer.then(
      () => undefined,
      () => undefined, // for the caller
    )
    this.#inside.add(ended)
    void ended.then(() => this.#inside.delete(ended))
    return answer
  }

  runWithWatchdog<T>(operation: BrokerOperation, timeoutMs: number, start: Start<T>): Promise<T> {
    return withWatchdog(operation, timeoutMs, this.run(operation, start))
  }

  /** Resolves when the calls that are inside now have come back. */
  async allLeft(): Promise<void> {
    await Promise.all(this.#inside)
  }

  /** True when no call is inside any more; waits for `limitMs` at most. */
  async left(limitMs: number): Promise<boolean> {
    if (this.#inside.size === 0) return true
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<false>((resolve) => (timer = setTimeout(() => resolve(false), limitMs)))
    try {
      return await Promise.race([this.allLeft().then(() => true), late])
    } finally {
      clearTimeout(timer)
    }
  }
}
