/** Exact short texts of durations and sizes, as one would write them in a configuration. */

const DURATIONS = [
  ['d', 86_400_000],
  ['h', 3_600_000],
  ['m', 60_000],
  ['s', 1_000],
] as const
const SIZES = [
  ['GiB', 1024 ** 3],
  ['MiB', 1024 ** 2],
  ['KiB', 1024],
] as const

/** `90_000` -> `90s`, `60_000` -> `1m`, `1_500` -> `1500ms`. */
export function durationText(ms: number): string {
  return withUnit(ms, DURATIONS, 'ms')
}

/** `16_777_216` -> `16MiB`. */
export function sizeText(bytes: number): string {
  return withUnit(bytes, SIZES, 'B')
}

function withUnit(amount: number, units: readonly (readonly [string, number])[], smallest: string): string {
  for (const [unit, factor] of units) if (amount >= factor && amount % factor === 0) return `${amount / factor}${unit}`
  return `${amount}${smallest}`
}
