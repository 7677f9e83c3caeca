/** The processes that the demo started: none of them outlives it. */
import type { ChildProcess } from 'node:child_process'
import { setTimeout as delay } from 'node:timers/promises'

export interface Exit {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
}

const all = new Map<ChildProcess, Promise<Exit>>()

/** Remembers the process until it ends. Its exit never rejects: one that could not be started counts as ended with code 1. */
export function track(child: ChildProcess): Promise<Exit> {
  const exit = new Promise<Exit>((resolve) => {
    child.once('exit', (code, signal) => resolve({ code, signal }))
    child.once('error', () => {
      if (child.pid === undefined) resolve({ code: 1, signal: null })
    })
  })
  all.set(child, exit)
  void exit.then(() => all.delete(child))
  return exit
}

/** Ends whatever still runs: asked twice (the second time a supervisor kills its workers), then killed. */
export async function endAll(): Promise<void> {
  for (const { signal, waitMs } of [
    { signal: 'SIGTERM', waitMs: 5_000 },
    { signal: 'SIGTERM', waitMs: 5_000 },
    { signal: 'SIGKILL', waitMs: 5_000 },
  ] as const) {
    if (all.size === 0) return
    for (const child of all.keys()) child.kill(signal)
    await Promise.race([Promise.all(all.values()), delay(waitMs, undefined, { ref: false })])
  }
}
