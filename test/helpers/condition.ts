import { setTimeout as delay } from 'node:timers/promises'

/** Asks until the answer is true. The limit is the test's own time-out; `what` is shown when it strikes earlier. */
export async function until(what: string, ask: () => boolean | Promise<boolean>, limitMs = 90_000): Promise<void> {
  const start = performance.now()
  while (!(await ask())) {
    if (performance.now() - start > limitMs) throw new Error(`waited ${limitMs} ms for: ${what}`)
    await delay(25)
  }
}
