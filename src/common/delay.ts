import type { Timers } from './ports.ts'

/** Waits `ms`; with 0 only until other callbacks have had their turn. */
export function delay(timers: Timers, ms: number): Promise<void> {
  return new Promise((resolve) => {
    timers.after(ms, resolve)
  })
}

/** All of them to their end; then rejects with the first failure, if there was one: nothing of them goes on unseen. */
export async function allEnded(works: readonly Promise<void>[]): Promise<void> {
  for (const result of await Promise.allSettled(works)) if (result.status === 'rejected') throw result.reason
}

/** Waits for `work`, for `ms` at most: true when it is done. No timer is left behind. A rejection is passed on. */
export async function within(timers: Timers, ms: number, work: Promise<void>): Promise<boolean> {
  let cancel: (() => void) | undefined
  const late = new Promise<false>((resolve) => {
    cancel = timers.after(ms, () => {
      resolve(false)
    })
  })
  try {
    return await Promise.race([work.then(() => true as const), late])
  } finally {
    cancel?.()
  }
}
