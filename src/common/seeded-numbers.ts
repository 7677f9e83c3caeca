/** Random numbers that a seed decides, the same everywhere. Not for anything secret. The algorithm is mulberry32: 32 bits of state. */
export class SeededNumbers {
  #state: number

  constructor(seed: number) {
    this.#state = seed
  }

  /** From 0 (included) to 1 (excluded). */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0
    return mix(this.#state) / 4_294_967_296
  }

  /** A whole number from 0 to `count - 1`, all alike. */
  below(count: number): number {
    return Math.floor(this.next() * count)
  }
}

/** A number below 2^32 that depends on all bits of `value`. */
export function mix(value: number): number {
  let bits = value | 0
  bits = Math.imul(bits ^ (bits >>> 15), bits | 1)
  bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61)
  return (bits ^ (bits >>> 14)) >>> 0
}
