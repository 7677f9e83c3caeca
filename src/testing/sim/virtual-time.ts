/**
 * Time that moves by events only. There is one queue for the whole simulated world; between two events, every promise that can go on does.
 *
 * Invariant:
 *  VT1. Events of one moment happen in the order in which they were scheduled, so the same decisions give the same run.
 */

/** Kept from the start: fake timers of a test runner replace the global one later, and simulated time must go on under them. */
const runWhenPromisesRan = setImmediate

interface ScheduledEvent {
  readonly at: number
  readonly order: number
  run: (() => void) | undefined
}

export class VirtualTime {
  /** A heap: the earliest is first. */
  readonly #events: ScheduledEvent[] = []
  #scheduled = 0
  #now = 0
  /** Events that have happened. */
  happened = 0

  /** ms since the start of the world. */
  get now(): number {
    return this.#now
  }

  /** Returns the function that takes it back; idempotent. */
  schedule(delayMs: number, run: () => void): () => void {
    const event: ScheduledEvent = { at: this.#now + Math.max(0, delayMs), order: this.#scheduled++, run }
    this.#push(event)
    return () => {
      event.run = undefined
    }
  }

  /** The next event, and everything that follows from it at once. False: nothing will ever happen any more. */
  async step(): Promise<boolean> {
    for (;;) {
      const event = this.#pop()
      if (event === undefined) return false
      const { run } = event
      if (run === undefined) continue
      this.#now = event.at
      this.happened++
      run()
      await promisesRun()
      return true
    }
  }

  /** When the next event will be; undefined when there is none. */
  get nextAt(): number | undefined {
    while (this.#events.length > 0 && this.#events[0]?.run === undefined) this.#pop()
    return this.#events[0]?.at
  }

  #push(event: ScheduledEvent): void {
    const events = this.#events
    let index = events.length
    events.push(event)
    while (index > 0) {
      const parent = (index - 1) >> 1
      const above = events[parent] as ScheduledEvent
      if (!isEarlier(event, above)) break
      events[index] = above
      index = parent
    }
    events[index] = event
  }

  #pop(): ScheduledEvent | undefined {
    const events = this.#events
    const first = events[0]
    const last = events.pop()
    if (first === undefined || last === undefined || events.length === 0) return first
    let index = 0
    for (;;) {
      let child = 2 * index + 1
      if (child >= events.length) break
      if (child + 1 < events.length && isEarlier(events[child + 1] as ScheduledEvent, events[child] as ScheduledEvent)) child++
      const below = events[child] as ScheduledEvent
      if (!isEarlier(below, last)) break
      events[index] = below
      index = child
    }
    events[index] = last
    return first
  }
}

function isEarlier(left: ScheduledEvent, right: ScheduledEvent): boolean {
  return left.at < right.at || (left.at === right.at && left.order < right.order)
}

/** All jobs of promises are done before an immediate runs. */
export function promisesRun(): Promise<void> {
  return new Promise((resolve) => runWhenPromisesRan(resolve))
}
