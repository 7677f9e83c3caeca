import { mix, SeededNumbers } from '../src/common/seeded-numbers.ts'

/** The same demo again with the same `--seed`. */
export class SeededRandom extends SeededNumbers {
  constructor(seed: number) {
    super(mix(seed))
  }

  /** A rank from 0 to `count - 1`; rank r comes about 1 / (r + 1) as often as rank 0: few are hot, most are cold (Zipf). */
  rank(count: number): number {
    return zipfRank(this.next(), count)
  }
}

/** A number below 2^32 that depends on all bits of both. */
export function hash(seed: number, value: number): number {
  return mix(mix(seed) ^ Math.imul(value + 1, 0x9e3779b1))
}

/** `uniform` from 0 to 1. */
export function zipfRank(uniform: number, count: number): number {
  return Math.min(count - 1, Math.floor(Math.exp(uniform * Math.log(count + 1))) - 1)
}
