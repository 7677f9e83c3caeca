/** A clock that moves only when it is told to, and timers that run on it. */
import type { Clock, Random, Timers } from '../../src/common/ports.ts'

export class ManualClock implements Clock {
  #wall: number
  #monotonic = 0

  constructor(wall = 1_700_000_000_000) {
    this.#wall = wall
  }

  now(): number {
    return this.#wall
  }

  monotonic(): number {
    return this.#monotonic
  }

  advance(ms: number): void {
    this.#wall += ms
    this.#monotonic += ms
  }

  setWall(ms: number): void {
    this.#wall = ms
  }
}

/** Every wait is over at once, and moves the clock by its length: a budget of minutes is spent in no time. */
export class InstantTimers implements Timers {
  readonly #clock: ManualClock
  /** Lengths of all waits so far, ms. */
  readonly waits: number[] = []

  constructor(clock: ManualClock) {
    this.#clock = clock
  }

  after(delayMs: number, callback: () => void): () => void {
    let isCancelled = false
    setImmediate(() => {
      if (isCancelled) return
      this.waits.push(delayMs)
      this.#clock.advance(delayMs)
      callback()
    })
    return () => {
      isCancelled = true
    }
  }
}

/** 1, 2, 3, ... in every byte: nonces differ and are known. */
export function countingRandom(): Random {
  let calls = 0
  return { bytes: (size) => Buffer.alloc(size, ++calls) }
}

/** Lets everything that is ready run: promises, and the immediates of `InstantTimers`. */
export async function settle(rounds = 20): Promise<void> {
  for (let round = 0; round < rounds; round++) await new Promise((resolve) => setImmediate(resolve))
}
