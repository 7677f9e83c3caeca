/** Random numbers that a seed decides: the same demo again with the same `--seed`. Not for anything secret. */
export class SeededRandom {
  #state: number

  constructor(seed: number) {
    this.#state = mix(seed)
  }

  /** From 0 (included) to 1 (excluded). The algorithm is mulberry32. */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0
    return mix(this.#state) / 4_294_967_296
  }

  /** A whole number from 0 to `count - 1`, all alike. */
  below(count: number): number {
    return Math.floor(this.next() * count)
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

function mix(value: number): number {
  let bits = value | 0
  bits = Math.imul(bits ^ (bits >>> 15), bits | 1)
  bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61)
  return (bits ^ (bits >>> 14)) >>> 0
}
