/**
 * One source of every decision of a simulated run: what is late, what is lost, who dies. A run is its topology, its input and its choices; the same ones
 * give the same run, event by event.
 *
 * Choice 0 is always the ordinary way: nothing goes wrong. Every other one is a deviation, and a run is told by its deviations alone.
 */

import { SeededNumbers } from '../../common/seeded-numbers.ts'

/** The n-th decision of a run did not go the ordinary way. */
export type Deviations = ReadonlyMap<number, number>

/** A decision as it was made. */
export interface Decision {
  /** What was decided, for example `crash commit:after worker-1`. */
  readonly what: string
  readonly options: number
  readonly picked: number
}

export interface Choices {
  /** A number from 0 to `options - 1`. */
  pick(what: string, options: number): number
  /** All decisions so far. */
  readonly trace: readonly Decision[]
}

/** Everything goes the ordinary way but for the deviations given: for replay, shrinking, and exhaustive runs. */
export class ScriptedChoices implements Choices {
  readonly trace: Decision[] = []
  readonly #deviations: Deviations

  constructor(deviations: Deviations = new Map()) {
    this.#deviations = deviations
  }

  pick(what: string, options: number): number {
    const picked = Math.min(this.#deviations.get(this.trace.length) ?? 0, options - 1)
    this.trace.push({ what, options, picked })
    return picked
  }
}

/** Deviates at random, by seed. `oddsOf` says how likely a decision of that name deviates, 0 to 1. */
export class SeededChoices implements Choices {
  readonly trace: Decision[] = []
  readonly #random: SeededNumbers
  readonly #oddsOf: (what: string) => number

  constructor(seed: number, oddsOf: (what: string) => number) {
    this.#random = new SeededNumbers(seed)
    this.#oddsOf = oddsOf
  }

  pick(what: string, options: number): number {
    const deviates = options > 1 && this.#random.next() < this.#oddsOf(what)
    const picked = deviates ? 1 + this.#random.below(options - 1) : 0
    this.trace.push({ what, options, picked })
    return picked
  }
}

export function deviationsOf(trace: readonly Decision[]): Deviations {
  const deviations = new Map<number, number>()
  trace.forEach(({ picked }, index) => {
    if (picked !== 0) deviations.set(index, picked)
  })
  return deviations
}
