/**
 * One transactional producer over the classic client. Owns the native producer; knows nothing of transaction states (runtime/transaction does).
 *
 * Settings that matter (CLIENT-FACTS 2, 3, 12): a short retry back-off for CONCURRENT_TRANSACTIONS between back-to-back transactions; no delivery
 * reports; polling in the background; Java's murmur2 partitioner.
 */
import { BrokerError } from '../../errors/broker-error.ts'
import type { GroupConsumer, HeaderList, OffsetToCommit, ProducerOptions, TransactionalProducer } from '../port.ts'
import { baseConfig, connect, disconnect, type ConnectionSettings } from './connection.ts'
import { nativeConsumer } from './consumer.ts'
import { brokerError } from './errors.ts'
import { CLOSE_WAIT_MS, NativeCalls } from './native-calls.ts'
import { native, type NativeProducer } from './native.ts'
import { toNativeBytes, toNativeHeaders } from './records.ts'

const QUEUE_FULL = -184
/** To the client 0 means "now" (CLIENT-FACTS 12); the first millisecond of 1970 becomes the second. */
const EARLIEST_TIMESTAMP = 1
/** How long to wait before a full queue is tried again: a batch leaves every millisecond or so. */
const QUEUE_FULL_DELAY_MS = 2

export async function connectProducer(settings: ConnectionSettings, options: ProducerOptions): Promise<TransactionalProducer> {
  const producer = new KafkaTransactionalProducer(settings, options)
  await producer.connect()
  return producer
}

class KafkaTransactionalProducer implements TransactionalProducer {
  readonly transactionalId: string
  readonly #settings: ConnectionSettings
  readonly #client: NativeProducer
  readonly #native: ReturnType<NativeProducer['getClient']>
  readonly #calls = new NativeCalls()
  #closed = false

  constructor(settings: ConnectionSettings, options: ProducerOptions) {
    this.#settings = settings
    this.transactionalId = options.transactionalId
    this.#client = new native.Producer(
      {
        'retry.backoff.ms': 5,
        'linger.ms': 1,
        'queue.buffering.max.messages': 100_000,
        'queue.buffering.max.kbytes': 65_536,
        ...baseConfig(settings),
        'message.max.bytes': options.maxMessageBytes,
        'batch.size': options.batchBytes,
        'transactional.id': options.transactionalId,
        'transaction.timeout.ms': options.transactionTimeoutMs,
        'enable.idempotence': true,
      },
      { partitioner: 'murmur2_random' },
    )
    this.#native = this.#client.getClient()
  }

  async connect(): Promise<void> {
    await connect(this.#client, this.#settings, this.transactionalId)
    this.#client.setPollInBackground(true)
  }

  init(timeoutMs: number): Promise<void> {
    return this.#calls.runWithWatchdog('init', timeoutMs, (done) => {
      this.#client.initTransactions(timeoutMs, done)
    })
  }

  begin(): Promise<void> {
    return this.#calls.run('begin', (done) => {
      this.#client.beginTransaction(done)
    })
  }

  produce(
    topic: string,
    partition: number | null,
    key: Buffer | null,
    value: Buffer | null,
    timestamp: number,
    headers: HeaderList,
  ): boolean {
    let code: number
    try {
      code = this.#native.produce(
        topic,
        partition,
        toNativeBytes(value),
        toNativeBytes(key),
        timestamp === 0 ? EARLIEST_TIMESTAMP : timestamp,
        undefined,
        toNativeHeaders(headers),
      )
    } catch (error) {
      throw brokerError('produce', error)
    }
    if (code === 0) return true
    if (code === QUEUE_FULL) return false
    throw new BrokerError('produce', code, `a record for ${topic} was refused by the client`)
  }

  writable(): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, QUEUE_FULL_DELAY_MS))
  }

  flush(timeoutMs: number): Promise<void> {
    return this.#calls.runWithWatchdog('flush', timeoutMs, (done) => {
      this.#client.flush(timeoutMs, done)
    })
  }

  sendOffsets(consumer: GroupConsumer, offsets: readonly OffsetToCommit[], timeoutMs: number): Promise<void> {
    return this.#calls.runWithWatchdog('sendOffsets', timeoutMs, (done) => {
      this.#client.sendOffsetsToTransaction(
        offsets.map(({ topic, partition, offset, metadata }) => ({ topic, partition, offset, metadata })),
        nativeConsumer(consumer),
        timeoutMs,
        done,
      )
    })
  }

  commit(timeoutMs: number): Promise<void> {
    return this.#calls.runWithWatchdog('commit', timeoutMs, (done) => {
      this.#client.commitTransaction(timeoutMs, done)
    })
  }

  abort(timeoutMs: number): Promise<void> {
    return this.#calls.runWithWatchdog('abort', timeoutMs, (done) => {
      this.#client.abortTransaction(timeoutMs, done)
    })
  }

  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    if (!(await this.#calls.left(CLOSE_WAIT_MS))) {
      this.#settings.logger.warn(
        { client: this.transactionalId },
        'a call hangs in the Kafka client: it is left open until the process ends',
      )
      return
    }
    // What is still queued belongs to a transaction that ended or will be aborted: the client's default of 5 s would only delay its successor.
    await disconnect(this.#client, 100)
  }
}
