/**
 * Errors, named by the reaction they ask for (DESIGN 7). Each carries a `code` for machines, and a message that says what happened, where
 * (topic, partition, offset, option), why, and what to do. The exit code of a worker follows from the class.
 */

export type Reaction = 'retriable' | 'abortable' | 'fenced' | 'ambiguous' | 'corrupted' | 'poisoned' | 'config' | 'fatal'

/** Exit codes of a worker and of `millrace run`; published in docs/errors.md. */
export const EXIT_CODES = {
  ok: 0,
  fatal: 1,
  config: 2,
  unavailable: 3,
  poisoned: 4,
  slotTaken: 5,
  state: 6,
} as const

export interface ErrorOptions {
  readonly code: string
  /** What the user can do, one sentence. Printed after the message. */
  readonly remedy?: string
  readonly cause?: unknown
}

export abstract class MillraceError extends Error {
  abstract readonly reaction: Reaction
  abstract readonly exitCode: number
  readonly code: string
  readonly remedy: string | undefined

  constructor(message: string, options: ErrorOptions) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.name = new.target.name
    this.code = options.code
    this.remedy = options.remedy
  }
}

/** Wrong option, topic or topology: refuse to start, name the option and both values. */
export class ConfigError extends MillraceError {
  readonly reaction = 'config'
  readonly exitCode: number = EXIT_CODES.config
}

/** The topology itself is wrong; the message names the node. */
export class TopologyError extends ConfigError {}

/** No broker answered in time. */
export class BrokerUnavailableError extends MillraceError {
  readonly reaction = 'retriable'
  readonly exitCode: number = EXIT_CODES.unavailable
}

/** Another process owns this slot (or fenced us twice within a minute). Never re-inited against it. */
export class SlotTakenError extends MillraceError {
  readonly reaction = 'fenced'
  readonly exitCode: number = EXIT_CODES.slotTaken
}

/** The state directory cannot be used: not writable, locked by another process, or of another format. */
export class StateDirectoryError extends MillraceError {
  readonly reaction: Reaction = 'config'
  readonly exitCode: number = EXIT_CODES.state
}

/** Another process holds the lock; `owner` is what it wrote about itself. */
export class StateLockedError extends StateDirectoryError {}

/** The file on disk was written with another format, hash, version or window. */
export class StoreMismatchError extends StateDirectoryError {}

/** A store file is proven damaged. It is moved aside and rebuilt, not reported as a failure of the worker. */
export class CorruptedStoreError extends StateDirectoryError {
  override readonly reaction = 'corrupted'
}

/** A record that cannot be decoded, processed or encoded, under `onError: 'fail'`. */
export class PoisonedRecordError extends MillraceError {
  readonly reaction = 'poisoned'
  readonly exitCode: number = EXIT_CODES.poisoned
}

/** Nothing that can be repaired from inside: stop with the code. */
export class FatalError extends MillraceError {
  readonly reaction = 'fatal'
  readonly exitCode: number = EXIT_CODES.fatal
}

/** The message of whatever was thrown. */
export function errorMessage(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}

export function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error))
}
