/**
 * The transactional producer, as librdkafka is one: records wait in a local queue and leave in batches, each partition is registered before its first
 * batch, and what a broker refuses shows at commit (CLIENT-FACTS 29).
 */
import { murmur2Partition } from '../murmur2.ts'
import type { GroupConsumer, HeaderList, OffsetToCommit, ProducerOptions, TransactionalProducer } from '../../../broker/port.ts'
import { TIMED_OUT, UNKNOWN_TOPIC_LOCALLY } from '../../../errors/broker-codes.ts'
import { BrokerError, type BrokerOperation } from '../../../errors/broker-error.ts'
import type { SimCluster } from '../cluster/cluster.ts'
import type { LogRecord } from '../cluster/partition-log.ts'
import { CODES } from '../cluster/refusal.ts'
import { sizeOf } from '../cluster/topics.ts'
import type { ProducerIdentity } from '../cluster/transactions.ts'
import { never, type SimProcess } from '../process.ts'
import { Connection } from './connection.ts'
import { membershipOf } from './consumer.ts'

const UNKNOWN_PARTITION = -190
const WRONG_STATE = -172
const LINGER_MS = 1
const QUEUE_RECORDS = 10_000
/** A batch that had no answer is sent again; its sequence number makes that harmless. */
const RESEND_MS = 100
const BATCH_TIMEOUT_MS = 1_000

interface Queued {
  readonly topic: string
  readonly partition: number
  readonly record: LogRecord
}

export class SimProducer implements TransactionalProducer {
  readonly transactionalId: string
  readonly #options: ProducerOptions
  readonly #process: SimProcess
  readonly #cluster: SimCluster
  readonly #connection: Connection
  #identity: ProducerIdentity | undefined
  #state: 'new' | 'ready' | 'open' | 'closed' = 'new'
  /** Fatal: nothing works any more. */
  #fatal: BrokerError | undefined
  /** A record was refused: the transaction can only abort. */
  #refusal: BrokerError | undefined
  #queue: Queued[] = []
  readonly #registered = new Set<string>()
  #hasOffsets = false
  readonly #sequences = new Map<string, number>()
  #sending = false
  #idle: (() => void)[] = []

  constructor(options: ProducerOptions, process: SimProcess, cluster: SimCluster) {
    this.transactionalId = options.transactionalId
    this.#options = options
    this.#process = process
    this.#cluster = cluster
    this.#connection = new Connection(process)
  }

  async init(timeoutMs: number): Promise<void> {
    await this.#step('init', async () => {
      this.#identity = await this.#connection.call(
        { operation: 'init', name: 'InitProducerId', timeoutMs, retryOn: [CODES.CONCURRENT_TRANSACTIONS] },
        () => this.#cluster.transactions.init(this.transactionalId, this.#options.transactionTimeoutMs),
      )
      this.#sequences.clear()
      this.#state = 'ready'
    })
  }

  async begin(): Promise<void> {
    await this.#step('begin', () => {
      this.#throwFatal('begin')
      if (this.#state !== 'ready') throw new BrokerError('begin', WRONG_STATE, `begin in state ${this.#state}`)
      this.#state = 'open'
      this.#refusal = undefined
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
    this.#process.passes('produce:before')
    if (this.#queue.length >= QUEUE_RECORDS) return false
    const record = {
      timestamp,
      key: copyOf(key),
      value: copyOf(value),
      headers: headers.map(([name, bytes]) => [name, copyOf(bytes)] as const),
    }
    if (sizeOf(record) > this.#options.maxMessageBytes)
      throw new BrokerError('produce', CODES.MESSAGE_TOO_LARGE, `a record of ${sizeOf(record)} bytes is above the client's own limit`)
    const partitions = this.#cluster.topics.find(topic)?.partitions.length
    if (partitions === undefined) throw new BrokerError('produce', UNKNOWN_TOPIC_LOCALLY, `topic ${topic} is not known`)
    const target = partition ?? murmur2Partition(key, partitions)
    if (target >= partitions) throw new BrokerError('produce', UNKNOWN_PARTITION, `${topic} has no partition ${target}`)
    if (this.#process.world.choices.pick('fate of a record', 2) === 1)
      throw new BrokerError('produce', WRONG_STATE, `the client does not take the record for ${topic}[${target}]`)
    this.#queue.push({ topic, partition: target, record })
    if (!this.#sending) {
      this.#sending = true
      this.#process.after(LINGER_MS, () => void this.#send())
    }
    this.#process.passes('produce:after')
    return true
  }

  writable(): Promise<void> {
    return this.#drained()
  }

  async flush(timeoutMs: number): Promise<void> {
    await this.#step('flush', () => this.#flush('flush', timeoutMs))
  }

  async sendOffsets(consumer: GroupConsumer, offsets: readonly OffsetToCommit[], timeoutMs: number): Promise<void> {
    await this.#step('sendOffsets', async () => {
      this.#throwFatal('sendOffsets')
      if (this.#state !== 'open') throw new BrokerError('sendOffsets', WRONG_STATE, `sendOffsets in state ${this.#state}`)
      const identity = this.#identity as ProducerIdentity
      // Of now, not of the time at which the records were read (CLIENT-FACTS 6).
      const member = membershipOf(consumer)
      const { transactions } = this.#cluster
      const retryOn = [CODES.CONCURRENT_TRANSACTIONS]
      this.#hasOffsets = true
      await this.#connection.call({ operation: 'sendOffsets', name: 'AddOffsetsToTxn', timeoutMs, retryOn }, () =>
        transactions.addGroup(this.transactionalId, identity, member.groupId),
      )
      await this.#connection.call({ operation: 'sendOffsets', name: 'TxnOffsetCommit', timeoutMs }, () =>
        this.#cluster.commitOffsets(this.transactionalId, identity, member, offsets),
      )
    })
  }

  async commit(timeoutMs: number): Promise<void> {
    await this.#step('commit', async () => {
      this.#throwFatal('commit')
      if (this.#state !== 'open') throw new BrokerError('commit', WRONG_STATE, `commit in state ${this.#state}`)
      await this.#flush('commit', timeoutMs)
      if (this.#refusal !== undefined)
        throw new BrokerError('commit', this.#refusal.code, this.#refusal.message, { isAbortRequired: true }, this.#refusal)
      await this.#end('commit', timeoutMs)
    })
  }

  async abort(timeoutMs: number): Promise<void> {
    await this.#step('abort', async () => {
      this.#throwFatal('abort')
      if (this.#state !== 'open') throw new BrokerError('abort', WRONG_STATE, `abort in state ${this.#state}`)
      this.#queue = []
      await this.#flush('abort', timeoutMs)
      await this.#end('abort', timeoutMs)
    })
  }

  async close(): Promise<void> {
    if (this.#process.isDead) return never()
    this.#state = 'closed'
    this.#queue = []
  }

  /** One call of the port, with its places to be struck at. */
  async #step(operation: BrokerOperation, act: () => void | Promise<void>): Promise<void> {
    if (!this.#process.survives(`${operation}:before`)) return never()
    try {
      await act()
    } catch (error) {
      const failure = error as BrokerError
      if (failure.isFatal) this.#fatal ??= failure
      throw error
    }
    if (!this.#process.survives(`${operation}:after`)) return never()
  }

  async #end(kind: 'commit' | 'abort', timeoutMs: number): Promise<void> {
    if (this.#registered.size > 0 || this.#hasOffsets) {
      const identity = this.#identity as ProducerIdentity
      const retryOn = [CODES.CONCURRENT_TRANSACTIONS]
      await this.#connection.call({ operation: kind, name: 'EndTxn', timeoutMs, retryOn }, () =>
        this.#cluster.transactions.end(this.transactionalId, identity, kind),
      )
    }
    this.#registered.clear()
    this.#hasOffsets = false
    this.#state = 'ready'
  }

  async #flush(operation: BrokerOperation, timeoutMs: number): Promise<void> {
    if (this.#queue.length === 0 && !this.#sending) return
    await new Promise<void>((resolve, reject) => {
      const cancel = this.#process.after(timeoutMs, () =>
        reject(new BrokerError(operation, TIMED_OUT, 'records are still on their way', { isRetriable: true })),
      )
      this.#drained().then(() => {
        cancel()
        resolve()
      }, reject)
    })
  }

  #drained(): Promise<void> {
    if (this.#queue.length === 0 && !this.#sending) return Promise.resolve()
    return new Promise((resolve) => this.#idle.push(resolve))
  }

  /** Sends what is queued, batch after batch, until the queue is empty. */
  async #send(): Promise<void> {
    while (this.#queue.length > 0 && this.#fatal === undefined && this.#refusal === undefined) {
      const batches = new Map<string, { topic: string; partition: number; records: LogRecord[] }>()
      for (const { topic, partition, record } of this.#queue) {
        const name = `${topic}/${partition}`
        const batch = batches.get(name) ?? { topic, partition, records: [] }
        batches.set(name, batch)
        batch.records.push(record)
      }
      this.#queue = []
      try {
        await this.#register(
          [...batches].filter(([name]) => !this.#registered.has(name)).map(([, { topic, partition }]) => [topic, partition] as const),
        )
        for (const [name, { topic, partition, records }] of batches) await this.#sendBatch(name, topic, partition, records)
      } catch (error) {
        const failure = error as BrokerError
        if (failure.isFatal) this.#fatal ??= failure
        else this.#refusal ??= failure
        this.#queue = []
      }
    }
    this.#queue = []
    this.#sending = false
    const idle = this.#idle
    this.#idle = []
    for (const resolve of idle) resolve()
  }

  async #register(partitions: readonly (readonly [string, number])[]): Promise<void> {
    if (partitions.length === 0) return
    await this.#repeat('AddPartitionsToTxn', () =>
      this.#cluster.transactions.addPartitions(this.transactionalId, this.#identity as ProducerIdentity, partitions),
    )
    for (const [topic, partition] of partitions) this.#registered.add(`${topic}/${partition}`)
  }

  async #sendBatch(name: string, topic: string, partition: number, records: LogRecord[]): Promise<void> {
    const sequence = this.#sequences.get(name) ?? 0
    // Also when it is refused: the next batch does not follow then, and fails with 45 (CLIENT-FACTS 29).
    this.#sequences.set(name, sequence + records.length)
    await this.#repeat('Produce', () =>
      this.#cluster.appendTransactional(topic, partition, records, this.transactionalId, this.#identity as ProducerIdentity, sequence),
    )
  }

  /** Until it is answered, for as long as the transaction may last. */
  async #repeat(name: string, serve: () => void): Promise<void> {
    const endsAt = this.#process.monotonic() + this.#options.transactionTimeoutMs
    for (;;) {
      try {
        await this.#connection.call(
          { operation: 'produce', name, timeoutMs: BATCH_TIMEOUT_MS, retryOn: [CODES.CONCURRENT_TRANSACTIONS] },
          serve,
        )
        return
      } catch (error) {
        if ((error as BrokerError).isRetriable !== true || this.#process.monotonic() >= endsAt || this.#state === 'closed') throw error
        await new Promise<void>((resolve) => this.#process.after(RESEND_MS, resolve))
      }
    }
  }

  #throwFatal(operation: BrokerOperation): void {
    if (this.#fatal !== undefined) throw new BrokerError(operation, this.#fatal.code, this.#fatal.message, { isFatal: true }, this.#fatal)
  }
}

/** Buffers may be reused by the caller (P2). */
function copyOf(bytes: Buffer | null): Buffer | null {
  return bytes === null ? null : Buffer.from(bytes)
}
