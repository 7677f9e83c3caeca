/** What the broker or the client said to one operation; `classify` turns it into a reaction. */
import { CLOSED, NOT_KNOWN_YET } from './broker-codes.ts'

export type BrokerOperation =
  | 'connect'
  | 'poll'
  | 'seek'
  | 'committed'
  | 'init'
  | 'begin'
  | 'produce'
  | 'flush'
  | 'sendOffsets'
  | 'commit'
  | 'abort'
  | 'read'
  | 'admin'
  | 'close'

export class BrokerError extends Error {
  override readonly name = 'BrokerError'
  readonly operation: BrokerOperation
  /** Kafka protocol code (positive) or librdkafka code (negative). */
  readonly code: number
  readonly isFatal: boolean
  readonly isRetriable: boolean
  readonly isAbortRequired: boolean

  constructor(
    operation: BrokerOperation,
    code: number,
    message: string,
    flags: { readonly isFatal?: boolean; readonly isRetriable?: boolean; readonly isAbortRequired?: boolean } = {},
    cause?: unknown,
  ) {
    super(`${operation}: ${message} (code ${code})`, cause === undefined ? undefined : { cause })
    this.operation = operation
    this.code = code
    this.isFatal = flags.isFatal ?? false
    this.isRetriable = flags.isRetriable ?? false
    this.isAbortRequired = flags.isAbortRequired ?? false
  }
}

/** An admin's answer that does not know of something yet, which was made or found a moment ago. Retriable. */
export function notKnownYet(message: string, cause?: unknown): BrokerError {
  return new BrokerError('admin', NOT_KNOWN_YET, message, { isRetriable: true }, cause)
}

/** The answer to every call that comes after the client was closed. */
export function closedError(operation: BrokerOperation): BrokerError {
  return new BrokerError(operation, CLOSED, 'the client was closed')
}

/** Given up by ourselves, for a reason of our own: nothing the broker said. */
export const GIVEN_UP = -10_002
/** Given up because one record took longer than a transaction may be open. */
export const TOO_SLOW = -10_003
/** Our own time-out on an operation that may never answer (CLIENT-FACTS 7, 23). */
export const WATCHDOG = -10_001
