/** Turns what the client throws or calls back with into a `BrokerError`; nothing else leaves the adapter (P1). */
import { BrokerError, WATCHDOG, type BrokerOperation } from '../../errors/broker-error.ts'

interface ClientError {
  readonly message?: string
  readonly code?: number
  readonly isFatal?: boolean
  readonly isRetriable?: boolean
  readonly isTxnRequiresAbort?: boolean
}

/** librdkafka's generic failure, for what carries no code. */
const UNKNOWN = -1

export function brokerError(operation: BrokerOperation, error: unknown): BrokerError {
  if (error instanceof BrokerError) return error
  const client = (typeof error === 'object' && error !== null ? error : { message: String(error) }) as ClientError
  return new BrokerError(
    operation,
    typeof client.code === 'number' ? client.code : UNKNOWN,
    client.message ?? 'unknown error',
    { isFatal: client.isFatal === true, isRetriable: client.isRetriable === true, isAbortRequired: client.isTxnRequiresAbort === true },
    error,
  )
}

/** A call of the client as a promise. A synchronous throw and an error of the callback both become a `BrokerError`. */
export function call<T>(operation: BrokerOperation, start: (done: (error: unknown, result?: T) => void) => void): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    try {
      start((error, result) => {
        if (error) reject(brokerError(operation, error))
        else resolve(result as T)
      })
    } catch (error) {
      reject(brokerError(operation, error))
    }
  })
}

/** Long enough for a broker that stalls: giving up on a call that is still in the client ends the worker. */
const WATCHDOG_GRACE_MS = 30_000

/**
 * Gives up on a call that is under way, `graceMs` after the client's own time-out: some never answer (CLIENT-FACTS 23). A late answer is dropped; the
 * caller must treat the outcome as unknown, and the client as still busy with it.
 */
export function withWatchdog<T>(
  operation: BrokerOperation,
  timeoutMs: number,
  answer: Promise<T>,
  graceMs = WATCHDOG_GRACE_MS,
): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const timer = setTimeout(() => {
      reject(new BrokerError(operation, WATCHDOG, `no answer within ${timeoutMs + graceMs} ms`))
    }, timeoutMs + graceMs)
    answer.then(
      (result) => {
        clearTimeout(timer)
        resolve(result)
      },
      (error: unknown) => {
        clearTimeout(timer)
        reject(brokerError(operation, error))
      },
    )
  })
}
