/**
 * The world as the core sees it. Everything that is not a pure function comes in through one of these,
 * so that a test can hand in a manual clock and a seeded random source.
 */

export interface Clock {
  /** Wall clock, ms since the epoch. May jump. */
  now(): number
  /** Monotonic clock, ms since an arbitrary start. Never goes back; use it for every duration. */
  monotonic(): number
}

export interface Timers {
  /** Runs `callback` once after `delayMs`; the returned function cancels it (idempotent). */
  after(delayMs: number, callback: () => void): () => void
}

export interface Random {
  /** `size` random bytes. Used for nonces, so a real adapter must be cryptographically strong. */
  bytes(size: number): Buffer
}

export interface Logger {
  debug(details: object, message: string): void
  info(details: object, message: string): void
  warn(details: object, message: string): void
  error(details: object, message: string): void
}

/** Writes nowhere. */
export const silentLogger: Logger = { debug() {}, info() {}, warn() {}, error() {} }
