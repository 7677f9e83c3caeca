import type { Timers } from './ports.ts'

/** Waits `ms`; with 0 only until other callbacks have had their turn. */
export function delay(timers: Timers, ms: number): Promise<void> {
  return new Promise((resolve) => {
    timers.after(ms, resolve)
  })
}
