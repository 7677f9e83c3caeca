/** Bounded waiting for a lock without holding up the event loop. */
import type { Clock, Timers } from '../common/ports.ts'
import { StateDirectoryError } from '../errors/errors.ts'

const POLL_INTERVAL_MS = 25

export interface LockOwner {
  readonly slot: string
  readonly pid: number
  readonly host: string
}

/** The waits of one backend; `cancel` ends them all, so that a closed backend leaves no timer. */
export class LockWaits {
  readonly #clock: Clock
  readonly #timers: Timers
  readonly #timeoutMs: number
  readonly #pending = new Set<() => void>()
  #cancelled = false

  constructor(clock: Clock, timers: Timers, timeoutMs: number) {
    this.#clock = clock
    this.#timers = timers
    this.#timeoutMs = timeoutMs
  }

  /** Calls `attempt` until it returns something else than undefined; after the time-out throws what `timedOut` makes, given the ms waited. */
  async until<T>(attempt: () => T | undefined, timedOut: (waitedMs: number) => Error): Promise<T> {
    const start = this.#clock.monotonic()
    for (;;) {
      if (this.#cancelled)
        throw new StateDirectoryError('the state backend was closed while it waited for a lock', { code: 'state-closed' })
      const result = attempt()
      if (result !== undefined) return result
      const waited = this.#clock.monotonic() - start
      if (waited >= this.#timeoutMs) throw timedOut(Math.round(waited))
      await this.#pause(Math.min(POLL_INTERVAL_MS, this.#timeoutMs - waited))
    }
  }

  cancel(): void {
    this.#cancelled = true
    for (const wake of [...this.#pending]) wake()
  }

  #pause(delayMs: number): Promise<void> {
    return new Promise((resolve) => {
      const wake = () => {
        stop()
        this.#pending.delete(wake)
        resolve()
      }
      const stop = this.#timers.after(delayMs, wake)
      this.#pending.add(wake)
    })
  }
}
