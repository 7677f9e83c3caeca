/** ISO text of a time in ms, for messages; no clock is read. */
export function isoTime(ms: number): string {
  return Math.abs(ms) <= 8_640_000_000_000_000 ? new Date(ms).toISOString() : String(ms)
}
