/**
 * A small ring of transactional producers with the ids `<app>-<instance>-<slot>-<index>`. Back-to-back transactions on one producer wait for each
 * other's markers (CONCURRENT_TRANSACTIONS, CLIENT-FACTS 3); taking turns hides that.
 *
 * Owns: the producers, their initialisation and replacement. One init in flight per id; a late result of an abandoned one is not used.
 *
 * Invariants:
 *  PR1. The present place holds a producer that was inited and never failed for good.
 */
import type { Broker, TransactionalProducer } from '../broker/port.ts'
import { invariant } from '../common/invariant.ts'
import { allEnded, delay } from '../common/delay.ts'
import { UnderWay } from '../common/under-way.ts'
import { failpoint } from '../common/failpoints.ts'
import type { Clock, Logger, Timers } from '../common/ports.ts'
import { BrokerError } from '../errors/broker-error.ts'
import { classify } from '../errors/classify.ts'
import { BrokerUnavailableError } from '../errors/errors.ts'

export interface ProducerRingOptions {
  readonly broker: Broker
  readonly idPrefix: string
  readonly size: number
  readonly transactionTimeoutMs: number
  readonly initTimeoutMs: number
  /** How long a replacement is tried before the broker counts as gone. */
  readonly patienceMs: number
  readonly clock: Clock
  readonly timers: Timers
  readonly logger: Logger
}

/** Of the client: what the smallest and the largest of the topics written to accept. */
export interface ProducerSizes {
  readonly maxMessageBytes: number
  readonly batchBytes: number
}

export class ProducerRing {
  readonly #options: ProducerRingOptions
  readonly #producers: (TransactionalProducer | undefined)[]
  #index = 0
  #closed = false
  readonly #replacing = new UnderWay()
  #sizes: ProducerSizes = { maxMessageBytes: 1_000_000, batchBytes: 1_000_000 }

  constructor(options: ProducerRingOptions) {
    this.#options = options
    this.#producers = Array.from({ length: options.size }, () => undefined)
  }

  /** Inits all ids, in parallel: this aborts at once what a dead predecessor left open (CLIENT-FACTS 19). */
  async open(sizes: ProducerSizes): Promise<void> {
    this.#sizes = sizes
    await this.#replaceEach()
  }

  get current(): TransactionalProducer {
    const producer = this.#producers[this.#index]
    invariant(producer !== undefined, 'PR1', { ring: this.#index })
    return producer
  }

  /** Moves on to the next producer, for the next transaction. */
  next(): TransactionalProducer {
    this.#index = (this.#index + 1) % this.#producers.length
    return this.current
  }

  /** Goes on until it works, or rejects when `patienceMs` are over. The caller need not wait for it. */
  replaceCurrent(): Promise<void> {
    return this.#replace(this.#index)
  }

  replaceAll(): Promise<void> {
    return this.#replaceEach()
  }

  /** In parallel, and to the end: when one fails the others are in their places, so that `close` finds them. */
  #replaceEach(): Promise<void> {
    return allEnded(this.#producers.map((_, index) => this.#replace(index)))
  }

  /** False when the present producer was abandoned. */
  get isUsable(): boolean {
    return this.#producers[this.#index] !== undefined
  }

  /** A call of the present producer hangs in the native client: closing it would pull the client away under the call. It stays until the process ends. */
  abandonCurrent(): void {
    this.#producers[this.#index] = undefined
  }

  #replace(index: number): Promise<void> {
    return this.#replacing.add(this.#replaceAt(index))
  }

  /** Disconnects the old producer of a place and inits the same id on a new one, until it works or its time is over. */
  async #replaceAt(index: number): Promise<void> {
    const { broker, idPrefix, transactionTimeoutMs, initTimeoutMs, patienceMs, clock, timers, logger } = this.#options
    const transactionalId = `${idPrefix}-${index}`
    const deadline = clock.monotonic() + patienceMs
    const old = this.#producers[index]
    this.#producers[index] = undefined
    await old?.close()
    for (let attempt = 1; ; attempt++) {
      let producer: TransactionalProducer | undefined
      try {
        producer = await broker.connectProducer({ transactionalId, transactionTimeoutMs, ...this.#sizes })
        await producer.init(initTimeoutMs)
        failpoint('init:after')
        if (this.#closed) return await producer.close()
        this.#producers[index] = producer
        return
      } catch (error) {
        // The whole client is dropped: a late answer of its init cannot be taken for that of the next one.
        await producer?.close()
        if (!(error instanceof BrokerError)) throw error
        if (this.#closed) return
        const retriable = error.operation === 'connect' || classify(error).reaction === 'retriable'
        if (!retriable) throw error
        if (clock.monotonic() >= deadline) {
          throw new BrokerUnavailableError(
            `transactional id ${transactionalId} could not be initialised within ${patienceMs} ms: ${error.message}`,
            {
              code: 'producer-init-timed-out',
              remedy: 'Check that the brokers are up and that __transaction_state has its replicas, then start again: nothing was lost.',
              cause: error,
            },
          )
        }
        logger.warn({ transactionalId, attempt, code: error.code, error: error.message }, 'could not init a producer, trying again')
        await delay(timers, Math.min(2_000, 100 * 2 ** Math.min(attempt, 5)))
      }
    }
  }

  /** A replacement that is under way drops its producer at its next step, and is waited for. */
  async close(): Promise<void> {
    this.#closed = true
    await this.#replacing.ended()
    const producers = this.#producers.splice(0)
    await Promise.all(producers.map((producer) => producer?.close() ?? Promise.resolve()))
  }
}
