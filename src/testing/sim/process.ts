/**
 * A simulated process: what runs in it has its clock, its timers and its connections here, and ends, or stands still, with it.
 *
 * Invariants:
 *  SP1. A dead process does nothing more to the world: its timers and answers are dropped, its calls never return, its disk is closed to it.
 *  SP2. A paused one is given everything that came meanwhile when it goes on, in order; its monotonic clock has run on, as under SIGSTOP.
 */
import type { Clock, Timers } from '../../common/ports.ts'
import type { Choices } from './choices.ts'
import type { VirtualTime } from './virtual-time.ts'

/** Thrown out of a call that a process died in. Nothing of it reaches the world. */
export class ProcessDied extends Error {
  override readonly name = 'ProcessDied'
}

export interface World {
  readonly time: VirtualTime
  readonly choices: Choices
  /** Ms since the epoch. */
  readonly wallClock: () => number
  /** Called at every place at which a process can be struck: `commit:before`, `commit:after`, ... May kill or pause it. */
  readonly passes: (process: SimProcess, place: string) => void
}

export class SimProcess implements Clock, Timers {
  readonly name: string
  readonly world: World
  #state: 'alive' | 'paused' | 'dead' = 'alive'
  #held: (() => void)[] = []
  #wallOffset = 0
  readonly #atDeath: (() => void)[] = []

  constructor(name: string, world: World) {
    this.name = name
    this.world = world
  }

  get isDead(): boolean {
    return this.#state === 'dead'
  }

  get isPaused(): boolean {
    return this.#state === 'paused'
  }

  now(): number {
    return this.world.wallClock() + this.#wallOffset
  }

  monotonic(): number {
    return this.world.time.now
  }

  /** The wall clock of this machine jumps. */
  jump(ms: number): void {
    this.#wallOffset += ms
  }

  after(delayMs: number, callback: () => void): () => void {
    return this.deliver(delayMs, callback)
  }

  /** Something reaches this process: an answer, a timer. */
  deliver(delayMs: number, run: () => void): () => void {
    let isCancelled = false
    const cancel = this.world.time.schedule(delayMs, () => {
      if (this.#state === 'dead') return
      if (this.#state === 'paused')
        this.#held.push(() => {
          if (!isCancelled) run()
        })
      else run()
    })
    return () => {
      isCancelled = true
      cancel()
    }
  }

  /** A place at which this process can be struck. Throws when it died here. */
  passes(place: string): void {
    if (this.#state === 'dead') throw new ProcessDied(`${this.name} is dead`)
    this.world.passes(this, place)
    if (this.isDead) throw new ProcessDied(`${this.name} died at ${place}`)
  }

  /** As `passes`, for calls that return a promise: one of a dead process never settles. False: it died. */
  survives(place: string): boolean {
    if (this.#state === 'dead') return false
    this.world.passes(this, place)
    return !this.isDead
  }

  kill(): void {
    if (this.#state === 'dead') return
    this.#state = 'dead'
    this.#held = []
    for (const act of this.#atDeath) act()
  }

  pause(): void {
    if (this.#state === 'alive') this.#state = 'paused'
  }

  resume(): void {
    if (this.#state !== 'paused') return
    this.#state = 'alive'
    const held = this.#held
    this.#held = []
    for (const run of held) this.deliver(0, run)
  }

  /** What the operating system does when a process ends: connections are closed, locks are released. */
  atDeath(act: () => void): void {
    this.#atDeath.push(act)
  }
}

/** Of a call that never returns. */
export function never<T>(): Promise<T> {
  return new Promise(() => undefined)
}
