/**
 * Our end of the keeper (keeper.mjs), the process that starts JVMs and ends them when we are gone.
 * Owns: the pipe, and what is known of each JVM. The keeper does not hold this process alive.
 */
import { spawn, type ChildProcessByStdio } from 'node:child_process'
import { createInterface } from 'node:readline'
import type { Readable, Writable } from 'node:stream'
import { fileURLToPath } from 'node:url'

export interface ProcessOrder {
  readonly command: string
  readonly args: readonly string[]
  /** File that gets the output, appended. */
  readonly log: string
}

interface Entry {
  pid: number | undefined
  /** Why it ended; undefined while it runs. */
  ended: string | undefined
  readonly exit: Promise<string>
  readonly resolveExit: (reason: string) => void
}

interface KeeperEvent {
  readonly event: 'started' | 'exited'
  readonly id: string
  readonly pid?: number
  readonly reason?: string
}

export class Keeper {
  readonly #child: ChildProcessByStdio<Writable, Readable, null>
  readonly #entries = new Map<string, Entry>()
  readonly #gone: Promise<void>
  #waiting = 0

  constructor() {
    // Its own session: Ctrl-C in the terminal reaches the program, which closes in order, before the broker goes.
    this.#child = spawn(process.execPath, [fileURLToPath(new URL('keeper.mjs', import.meta.url))], {
      stdio: ['pipe', 'pipe', 'ignore'],
      detached: true,
    })
    this.#gone = new Promise((resolve) => {
      this.#child.once('close', () => {
        for (const entry of this.#entries.values()) settle(entry, 'its keeper ended')
        resolve()
      })
    })
    this.#child.stdin.on('error', () => undefined)
    createInterface({ input: this.#child.stdout }).on('line', (line) => this.#take(JSON.parse(line) as KeeperEvent))
    this.#refer(false)
  }

  /** The folder is removed when the keeper ends, whatever ends it. */
  own(folder: string): void {
    this.#send({ op: 'own', folder })
  }

  start(id: string, order: ProcessOrder): void {
    if (this.isRunning(id)) throw new Error(`${id} is running already`)
    let resolveExit: (reason: string) => void = () => undefined
    const exit = new Promise<string>((resolve) => (resolveExit = resolve))
    this.#entries.set(id, { pid: undefined, ended: undefined, exit, resolveExit })
    this.#send({ op: 'start', id, ...order })
  }

  isRunning(id: string): boolean {
    const entry = this.#entries.get(id)
    return entry !== undefined && entry.ended === undefined
  }

  /** Process id; undefined before the start was reported and after the end. */
  pid(id: string): number | undefined {
    const entry = this.#entries.get(id)
    return entry === undefined || entry.ended !== undefined ? undefined : entry.pid
  }

  /** Why it ended; undefined while it runs. */
  ended(id: string): string | undefined {
    return this.#entries.get(id)?.ended
  }

  kill(id: string, signal: NodeJS.Signals): void {
    this.#send({ op: 'kill', id, signal })
  }

  /** Resolves when it has ended, with the reason. */
  async exit(id: string): Promise<string> {
    const entry = this.#entries.get(id)
    if (entry === undefined) throw new Error(`${id} was never started`)
    this.#holdProcess(true)
    try {
      return await entry.exit
    } finally {
      this.#holdProcess(false)
    }
  }

  /** Ends all JVMs, removes the folders, and resolves when the keeper itself is gone. */
  async close(): Promise<void> {
    this.#holdProcess(true)
    this.#child.stdin.end()
    await this.#gone
  }

  #take(event: KeeperEvent): void {
    const entry = this.#entries.get(event.id)
    if (entry === undefined) return
    if (event.event === 'started') entry.pid = event.pid
    else settle(entry, event.reason ?? 'ended')
  }

  #send(message: object): void {
    this.#child.stdin.write(`${JSON.stringify(message)}\n`)
  }

  /** Several may wait at once: the first that is done must not let the process go from under the others. */
  #holdProcess(hold: boolean): void {
    this.#waiting += hold ? 1 : -1
    this.#refer(this.#waiting > 0)
  }

  #refer(hold: boolean): void {
    for (const handle of [this.#child, this.#child.stdin, this.#child.stdout] as unknown as { ref?: () => void; unref?: () => void }[]) {
      if (hold) handle.ref?.()
      else handle.unref?.()
    }
  }
}

function settle(entry: Entry, reason: string): void {
  if (entry.ended !== undefined) return
  entry.ended = reason
  entry.resolveExit(reason)
}
