/**
 * The native admin client, renewed while calls are under way.
 *
 * Invariant:
 *  AC1. A client is closed, and let go of, only when no call is in it. Without it: (1) a leader changes, so a look-up asks for a new client, (2) the old one
 *      is closed and collected, (3) another look-up is still inside it on a thread of its own: the process dies by SIGSEGV (seen with a broker killed).
 */
import { closedError } from '../../errors/broker-error.ts'
import type { NativeAdmin } from './native.ts'
import { NativeCalls } from './native-calls.ts'

export class AdminClient {
  readonly #create: () => NativeAdmin
  readonly #closing = new Set<Promise<void>>()
  #closed = false
  #current: { readonly client: NativeAdmin; readonly calls: NativeCalls } | undefined

  constructor(create: () => NativeAdmin) {
    this.#create = create
  }

  /** One call, on the present client. */
  async call<T>(start: (client: NativeAdmin, done: (error: unknown, result?: T) => void) => void): Promise<T> {
    if (this.#closed) throw closedError('admin')
    const { client, calls } = (this.#current ??= { client: this.#create(), calls: new NativeCalls() })
    return calls.run<T>('admin', (done) => {
      start(client, done)
    })
  }

  /** The next call gets a new client. */
  renew(): void {
    if (this.#current === undefined) return
    const { client, calls } = this.#current
    this.#current = undefined
    const closed: Promise<void> = calls.allLeft().then(() => {
      client.disconnect()
      this.#closing.delete(closed)
    })
    this.#closing.add(closed)
  }

  /** Waits for what is under way; each call is bounded by its own time-out. Later calls are refused. */
  async close(): Promise<void> {
    this.#closed = true
    this.renew()
    await Promise.all(this.#closing)
  }
}
