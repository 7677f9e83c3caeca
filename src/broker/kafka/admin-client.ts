/**
 * The native admin client, renewed while calls are under way.
 *
 * Invariant:
 *  AC1. A client is closed, and let go of, only when no call is in it. Without it: (1) a leader changes, so a look-up asks for a new client, (2) the old one
 *      is closed and collected, (3) another look-up is still inside it on a thread of its own: the process dies by SIGSEGV (seen with a broker killed).
 */
import { call } from './errors.ts'
import type { NativeAdmin } from './native.ts'

interface Handle {
  readonly client: NativeAdmin
  calls: number
  retired: boolean
}

export class AdminClient {
  readonly #create: () => NativeAdmin
  readonly #running = new Set<Promise<void>>()
  #current: Handle | undefined

  constructor(create: () => NativeAdmin) {
    this.#create = create
  }

  /** One call, on the present client. */
  async call<T>(start: (client: NativeAdmin, done: (error: unknown, result?: T) => void) => void): Promise<T> {
    const handle = (this.#current ??= { client: this.#create(), calls: 0, retired: false })
    handle.calls++
    const answer = call<T>('admin', (done) => {
      start(handle.client, done)
    })
    const ended = answer.then(
      () => undefined,
      () => undefined, // for the caller
    )
    this.#running.add(ended)
    try {
      return await answer
    } finally {
      this.#running.delete(ended)
      handle.calls--
      closeWhenIdle(handle)
    }
  }

  /** The next call gets a new client. */
  renew(): void {
    const handle = this.#current
    this.#current = undefined
    if (handle === undefined) return
    handle.retired = true
    closeWhenIdle(handle)
  }

  /** Waits for what is under way; each call is bounded by its own time-out. */
  async close(): Promise<void> {
    this.renew()
    await Promise.all(this.#running)
  }
}

function closeWhenIdle({ client, calls, retired }: Handle): void {
  if (retired && calls === 0) client.disconnect()
}
