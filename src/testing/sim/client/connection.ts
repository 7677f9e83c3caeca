/**
 * Requests of one simulated client. Its answers come in order, as over one TCP connection; what can go wrong with a request is decided here.
 */
import { BrokerError, type BrokerOperation } from '../../../errors/broker-error.ts'
import { TIMED_OUT, TRANSPORT } from '../../../errors/broker-codes.ts'
import { CODES, Refusal } from '../cluster/refusal.ts'
import type { SimProcess } from '../process.ts'

/** Way to the broker, or back. */
const NETWORK_MS = 1
/** Ordinary, late, very late. */
const DELAYS_MS = [0, 30, 700] as const
/**
 * What became of a request: it went through; it was lost; its effect was there and the answer lost; the connection broke before, and after the effect; it
 * lay in a broker until its sender had given it up, and what was sent since then overtook it; the broker died after the effect, and this client finds it
 * again after a while only.
 */
export const FATES = ['ok', 'request lost', 'reply lost', 'broken before', 'broken after', 'late', 'broker dies'] as const
/** How long a broker is away: shorter and longer than what a worker has for a commit. */
const AWAY_MS = [4_000, 300] as const
/** After the time-out of a late request, ms. */
const LATENESS_MS = [30, 1, 900] as const

export interface CallOptions {
  readonly operation: BrokerOperation
  /** As it is called in the trace, for example `EndTxn`. */
  readonly name: string
  readonly timeoutMs: number
  /** Codes that are asked again until the time is over, after this long. */
  readonly retryOn?: readonly number[]
  readonly retryMs?: number
  /** False: nothing goes wrong with it; for look-ups whose loss shows nothing. */
  readonly canFail?: boolean
}

export class Connection {
  readonly process: SimProcess
  #lastArrival = 0
  #awayUntil = 0

  constructor(process: SimProcess) {
    this.process = process
  }

  /** One way to the broker; requests do not overtake each other. */
  arrive(name: string, serve: () => void): void {
    const { time, choices } = this.process.world
    const delayMs = NETWORK_MS + (DELAYS_MS[choices.pick(`delay of ${name}`, DELAYS_MS.length)] as number)
    this.#lastArrival = Math.max(this.#lastArrival, time.now + delayMs)
    time.schedule(this.#lastArrival - time.now, serve)
  }

  /** The way back. */
  answer(run: () => void): void {
    this.process.deliver(NETWORK_MS, run)
  }

  /** Rejects with `BrokerError`: the code that was refused, or -185 and -195 for what had no answer. */
  call<T>(options: CallOptions, serve: () => T): Promise<T> {
    const { operation, name, timeoutMs, retryOn = [], retryMs = 20 } = options
    const { process } = this
    const endsAt = process.monotonic() + timeoutMs
    return new Promise<T>((resolve, reject) => {
      const timedOut = (): void => reject(new BrokerError(operation, TIMED_OUT, `${name}: no answer in time`, { isRetriable: true }))
      const attempt = (): void => {
        const { time, choices } = process.world
        const isAway = time.now < this.#awayUntil
        const fate = isAway ? 'request lost' : FATES[options.canFail === false ? 0 : choices.pick(`fate of ${name}`, FATES.length)]
        if (fate === 'broker dies') this.#awayUntil = time.now + (AWAY_MS[choices.pick(`lateness of a broker`, AWAY_MS.length)] as number)
        const leftMs = Math.max(0, endsAt - process.monotonic())
        if (fate === 'request lost' || fate === 'reply lost' || fate === 'late' || fate === 'broker dies') process.deliver(leftMs, timedOut)
        if (fate === 'late') {
          time.schedule(leftMs + (LATENESS_MS[choices.pick(`lateness of ${name}`, LATENESS_MS.length)] as number), () => unheard(serve))
          return
        }
        if (fate === 'broken before' || fate === 'broken after')
          process.deliver(2 * NETWORK_MS, () =>
            reject(new BrokerError(operation, TRANSPORT, `${name}: the connection broke`, { isRetriable: true })),
          )
        if (fate === 'request lost' || fate === 'broken before') return
        this.arrive(name, () => {
          let result: T
          try {
            result = serve()
          } catch (error) {
            if (!(error instanceof Refusal)) throw error
            if (fate !== 'ok') return
            this.answer(() => {
              if (!retryOn.includes(error.code)) reject(refused(operation, error))
              else if (process.monotonic() + retryMs >= endsAt) timedOut()
              else process.after(retryMs, attempt)
            })
            return
          }
          if (fate === 'ok') this.answer(() => resolve(result))
        })
      }
      attempt()
    })
  }
}

/** Nobody waits for the answer. */
function unheard(serve: () => unknown): void {
  try {
    serve()
  } catch (error) {
    if (!(error instanceof Refusal)) throw error
  }
}

/** The code as the native client reports it, with its flags. */
export function refused(operation: BrokerOperation, { code, message }: Refusal): BrokerError {
  switch (code) {
    case CODES.PRODUCER_FENCED:
    case CODES.INVALID_PRODUCER_EPOCH:
      return new BrokerError(operation, -144, message, { isFatal: true })
    case CODES.INVALID_TXN_STATE:
      return new BrokerError(operation, code, message, { isFatal: true })
    case CODES.ILLEGAL_GENERATION:
    case CODES.UNKNOWN_MEMBER_ID:
    case CODES.REBALANCE_IN_PROGRESS:
    case CODES.FENCED_INSTANCE_ID:
    case CODES.INVALID_PRODUCER_ID_MAPPING:
    case CODES.OUT_OF_ORDER_SEQUENCE:
    case CODES.OFFSET_METADATA_TOO_LARGE:
      return new BrokerError(operation, code, message, { isAbortRequired: operation !== 'poll' })
    case CODES.UNSTABLE_OFFSET_COMMIT:
    case CODES.CONCURRENT_TRANSACTIONS:
      return new BrokerError(operation, code, message, { isRetriable: true })
    default:
      return new BrokerError(operation, code, message)
  }
}
