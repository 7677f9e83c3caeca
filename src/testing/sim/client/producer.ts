/**
 * The transactional producer, as librdkafka is one: records wait in a local queue and leave in batches, each partition is registered before its first
 * batch, and what a broker refuses shows at commit (CLIENT-FACTS 29).
 */
import { murmur2Partition } from '../murmur2.ts'
import type { GroupConsumer, HeaderList, OffsetToCommit, ProducerOptions, TransactionalProducer } from '../../../broker/port.ts'
import { TIMED_OUT } from '../../../errors/broker-codes.ts'
import { BrokerError, type BrokerOperation } from '../../../errors/broker-error.ts'
import type { SimCluster } from '../cluster/cluster.ts'
import type { LogRecord } from '../cluster/partition-log.ts'
import { CODES } from '../cluster/refusal.ts'
import { sizeOf } from '../cluster/topics.ts'
import type { ProducerIdentity } from '../cluster/transactions.ts'
import { never, type SimProcess } from '../process.ts'
import { Connection } from './connection.ts'
import { membershipOf, WRONG_STATE } from './consumer.ts'

const UNKNOWN_PARTITION = -190
const CONFLICT = -173
/** Records that never left the client. */
const NOT_DELIVERED = -149
/** What a producer that was fenced says to a record. */
const FATAL = -150
const LINGER_MS = 1
const QUEUE_RECORDS = 10_000
/** A batch that had no answer is sent again; its sequence number makes that harmless. */
const RESEND_MS = 100
const BATCH_TIMEOUT_MS = 1_000
/** How long records wait for a topic that the brokers do not know (the client's `topic.metadata.propagation.max.ms`). */
const PROPAGATION_MS = 30_000
const EMPTY = Buffer.alloc(0)

interface Queued {
  readonly topic: string
  /** Null: by the key, once the topic is known. */
  readonly partition: number | null
  readonly record: LogRecord
  readonly queuedAt: number
}

interface Batch {
  readonly topic: string
  readonly partition: number
  readonly records: LogRecord[]
  bytes: number
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
  /** An end that was begun and had no answer: it may be repeated, and nothing else works (CLIENT-FACTS 22, 30). */
  #unresolved: 'commit' | 'abort' | undefined
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
      this.#forbidUnresolved('begin')
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
    if (this.#fatal !== undefined) throw new BrokerError('produce', FATAL, this.#fatal.message)
    if (this.#state !== 'open' || this.#unresolved !== undefined)
      throw new BrokerError('produce', WRONG_STATE, `produce in state ${this.#state}, with the ${this.#unresolved} unresolved`)
    if (this.#queue.length >= QUEUE_RECORDS) return false
    const record = {
      // To the real client 0 means "now", so its adapter writes 1. Here it stays: the clock of a test driver starts at 0.
      timestamp,
      key: copyOf(key),
      value: copyOf(value),
      // The client has no null headers (CLIENT-FACTS 12).
      headers: headers.map(([name, bytes]) => [name, copyOf(bytes) ?? EMPTY] as const),
    }
    if (sizeOf(record) > this.#options.maxMessageBytes)
      throw new BrokerError('produce', CODES.MESSAGE_TOO_LARGE, `a record of ${sizeOf(record)} bytes is above the client's own limit`)
    const partitions = this.#cluster.topics.find(topic)?.partitions.length
    if (partition !== null && partitions !== undefined && partition >= partitions)
      throw new BrokerError('produce', UNKNOWN_PARTITION, `${topic} has no partition ${partition}`)
    if (this.#process.world.choices.pick('fate of a record', 2) === 1)
      throw new BrokerError('produce', WRONG_STATE, `the client does not take the record for ${topic}`)
    this.#queue.push({ topic, partition, record, queuedAt: this.#process.monotonic() })
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
      // Nothing is asked of anybody then (CLIENT-FACTS 24).
      if (offsets.length === 0) return
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
      this.#forbidUnresolved('commit')
      if (this.#state !== 'open') throw new BrokerError('commit', WRONG_STATE, `commit in state ${this.#state}`)
      this.#unresolved = 'commit'
      await this.#flush('commit', timeoutMs)
      this.#throwFatal('commit') // of a record that was on its way until now
      if (this.#refusal !== undefined)
        throw new BrokerError('commit', this.#refusal.code, this.#refusal.message, { isAbortRequired: true }, this.#refusal)
      await this.#end('commit', timeoutMs)
    })
  }

  async abort(timeoutMs: number): Promise<void> {
    await this.#step('abort', async () => {
      this.#throwFatal('abort')
      this.#forbidUnresolved('abort')
      if (this.#state !== 'open') throw new BrokerError('abort', WRONG_STATE, `abort in state ${this.#state}`)
      this.#unresolved = 'abort'
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
      else if (failure.isAbortRequired) {
        this.#refusal ??= failure
        this.#unresolved = undefined
      }
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
    this.#unresolved = undefined
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
    while (this.#queue.length > 0 && this.#fatal === undefined && this.#refusal === undefined && this.#state !== 'closed') {
      const batches = this.#takeBatches()
      if (batches.length === 0) {
        await new Promise<void>((resolve) => this.#process.after(RESEND_MS, resolve))
        continue
      }
      try {
        await this.#register(batches)
        for (const batch of batches) await this.#sendBatch(batch)
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

  /** What is queued, in batches by partition, none above the limit of the client. Records of topics that are not known stay in the queue. */
  #takeBatches(): readonly Batch[] {
    const batches: Batch[] = []
    const filling = new Map<string, Batch>()
    const waiting: Queued[] = []
    for (const queued of this.#queue) {
      const { topic, record, queuedAt } = queued
      const partitions = this.#cluster.topics.find(topic)?.partitions.length
      if (partitions === undefined) {
        waiting.push(queued)
        if (this.#process.monotonic() - queuedAt >= PROPAGATION_MS)
          this.#refusal ??= new BrokerError('produce', NOT_DELIVERED, `topic ${topic} is not known`)
        continue
      }
      const partition = queued.partition ?? murmur2Partition(record.key, partitions)
      if (partition >= partitions) {
        this.#refusal ??= new BrokerError('produce', NOT_DELIVERED, `${topic} has no partition ${partition}`)
        continue
      }
      const name = `${topic}/${partition}`
      const bytes = sizeOf(record)
      let batch = filling.get(name)
      if (batch === undefined || batch.bytes + bytes > this.#options.batchBytes) {
        batch = { topic, partition, records: [], bytes: 0 }
        filling.set(name, batch)
        batches.push(batch)
      }
      batch.records.push(record)
      batch.bytes += bytes
    }
    this.#queue = waiting
    return batches
  }

  async #register(batches: readonly Batch[]): Promise<void> {
    const partitions = new Map<string, readonly [topic: string, partition: number]>()
    for (const { topic, partition } of batches) {
      const name = `${topic}/${partition}`
      if (!this.#registered.has(name)) partitions.set(name, [topic, partition])
    }
    if (partitions.size === 0) return
    await this.#repeat('AddPartitionsToTxn', () =>
      this.#cluster.transactions.addPartitions(this.transactionalId, this.#identity as ProducerIdentity, [...partitions.values()]),
    )
    for (const name of partitions.keys()) this.#registered.add(name)
  }

  async #sendBatch({ topic, partition, records }: Batch): Promise<void> {
    const name = `${topic}/${partition}`
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

  #forbidUnresolved(operation: 'begin' | 'commit' | 'abort'): void {
    if (this.#unresolved !== undefined && this.#unresolved !== operation)
      throw new BrokerError(operation, CONFLICT, `${operation} while the ${this.#unresolved} is unresolved`)
  }

  #throwFatal(operation: BrokerOperation): void {
    if (this.#fatal !== undefined) throw new BrokerError(operation, this.#fatal.code, this.#fatal.message, { isFatal: true }, this.#fatal)
  }
}

/** Buffers may be reused by the caller (P2). */
function copyOf(bytes: Buffer | null): Buffer | null {
  return bytes === null ? null : Buffer.from(bytes)
}
