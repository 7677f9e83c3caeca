/** A length of time: milliseconds, or a number with a unit: `'500ms'`, `'30s'`, `'5m'`, `'24h'`, `'7d'`. */
export type Duration = number | `${number}${'ms' | 's' | 'm' | 'h' | 'd'}`
/** A size: bytes, or a number with a unit (powers of 1024): `'64KiB'`, `'256MiB'`, `'2GiB'`. */
export type ByteSize = number | `${number}${'B' | 'KiB' | 'MiB' | 'GiB'}`

const DURATION_UNITS: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 }
const SIZE_UNITS: Readonly<Record<string, number>> = { B: 1, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3 }

/**
 * Milliseconds of a duration, a whole number >= 0. `what` names the option in the message.
 * Refuses what the type cannot: negative, NaN, infinite, `'1e3s'`, `' 5m'`, fractions of a millisecond.
 */
export function durationMs(value: Duration, what: string): number {
  return parseQuantity(
    value,
    what,
    /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/,
    DURATION_UNITS,
    `a number of milliseconds or a text such as '500ms', '30s', '5m', '24h', '7d'`,
  )
}

/** Bytes of a size, a whole number >= 0. */
export function sizeBytes(value: ByteSize, what: string): number {
  return parseQuantity(
    value,
    what,
    /^(\d+(?:\.\d+)?)(B|KiB|MiB|GiB)$/,
    SIZE_UNITS,
    `a number of bytes or a text such as '64KiB', '256MiB', '2GiB'`,
  )
}

function parseQuantity(
  value: number | string,
  what: string,
  pattern: RegExp,
  units: Readonly<Record<string, number>>,
  wanted: string,
): number {
  let amount = Number.NaN
  if (typeof value === 'number') amount = value
  else if (typeof value === 'string') {
    const match = pattern.exec(value)
    if (match !== null) amount = Number(match[1]) * (units[match[2] ?? ''] ?? Number.NaN)
  }
  if (!Number.isSafeInteger(amount) || amount < 0)
    throw new RangeError(`${what}: ${JSON.stringify(value) ?? String(value)} is not ${wanted}`)
  return amount
}

/** Short text for people: `350 ms`, `2.4 s`, `3 min 5 s`. */
export function formatDuration(ms: number): string {
  if (ms < 1_000) return `${Math.round(ms)} ms`
  if (ms < 60_000) return `${(ms / 1_000).toFixed(1)} s`
  const minutes = Math.floor(ms / 60_000)
  return `${minutes} min ${Math.round((ms - minutes * 60_000) / 1_000)} s`
}
