/**
 * The transaction coordinator: which producer a transactional id belongs to, and how far its transaction is.
 *
 *   empty, complete -> ongoing -> prepare-commit -> (a marker in each partition, each at its own time) -> complete-commit
 *                              -> prepare-abort  -> ...                                                -> complete-abort
 *
 * An end is decided when it is prepared, and answered then; what readers see follows with the markers (CLIENT-FACTS 16). No call of KIP-890's second
 * version: the client has none, so an epoch lasts for many transactions.
 */
import type { VirtualTime } from '../virtual-time.ts'
import type { Choices } from '../choices.ts'
import type { GroupOffsets } from './group-offsets.ts'
import { CODES, Refusal } from './refusal.ts'
import type { Topics } from './topics.ts'

export interface ProducerIdentity {
  readonly producerId: number
  readonly epoch: number
}

export interface TransactionEntry {
  readonly transactionalId: string
  readonly producerId: number
  epoch: number
  timeoutMs: number
  state: 'empty' | 'ongoing' | 'prepare-commit' | 'prepare-abort' | 'complete-commit' | 'complete-abort'
  /** Partitions of the transaction, as `[topic, partition]`, by name. */
  readonly partitions: Map<string, readonly [topic: string, partition: number]>
  readonly groups: Set<string>
  startedAt: number
  cancelExpiry: () => void
}

export interface TransactionsOptions {
  readonly time: VirtualTime
  readonly choices: Choices
  readonly topics: Topics
  /** Of a group; made when it is first asked for. */
  readonly offsetsOf: (groupId: string) => GroupOffsets
  /** Told of every end, as it is decided. */
  readonly decided: (entry: TransactionEntry, kind: 'commit' | 'abort') => void
  /** A log has grown, or more of it may be seen. */
  readonly changed: () => void
  /** The broker's `transaction.max.timeout.ms`. */
  readonly maxTimeoutMs: number
}

/** From the decision to a marker in a log; the late one of two lies far behind. */
const MARKER_MS = [1, 15, 400] as const
/** Transactions that are too old are looked for this often, at most. */
const EXPIRY_LATE_MS = [0, 5_000] as const

export class Transactions {
  readonly #options: TransactionsOptions
  readonly #entries = new Map<string, TransactionEntry>()
  #producerIds = 0

  constructor(options: TransactionsOptions) {
    this.#options = options
  }

  get entries(): ReadonlyMap<string, TransactionEntry> {
    return this.#entries
  }

  /** InitProducerId. What the id left open is aborted first, and the caller asks again until that is done. */
  init(transactionalId: string, timeoutMs: number): ProducerIdentity {
    if (timeoutMs > this.#options.maxTimeoutMs)
      throw new Refusal(CODES.INVALID_TRANSACTION_TIMEOUT, `transaction time-out ${timeoutMs} ms is above ${this.#options.maxTimeoutMs}`)
    let entry = this.#entries.get(transactionalId)
    if (entry === undefined) {
      entry = {
        transactionalId,
        producerId: ++this.#producerIds,
        epoch: -1,
        timeoutMs,
        state: 'empty',
        partitions: new Map(),
        groups: new Set(),
        startedAt: 0,
        cancelExpiry: () => undefined,
      }
      this.#entries.set(transactionalId, entry)
    }
    if (entry.state === 'ongoing') {
      entry.epoch++
      this.#prepare(entry, 'abort')
    }
    if (isPreparing(entry)) throw new Refusal(CODES.CONCURRENT_TRANSACTIONS, `${transactionalId} is still ending its transaction`)
    entry.epoch++
    entry.timeoutMs = timeoutMs
    entry.state = 'empty'
    return { producerId: entry.producerId, epoch: entry.epoch }
  }

  /** AddPartitionsToTxn. */
  addPartitions(transactionalId: string, producer: ProducerIdentity, partitions: readonly (readonly [string, number])[]): void {
    const entry = this.#started(transactionalId, producer)
    for (const [topic, partition] of partitions) {
      this.#options.topics.log(topic, partition)
      entry.partitions.set(`${topic}/${partition}`, [topic, partition])
    }
  }

  /** AddOffsetsToTxn. */
  addGroup(transactionalId: string, producer: ProducerIdentity, groupId: string): void {
    this.#started(transactionalId, producer).groups.add(groupId)
  }

  /** EndTxn. Sent again after it took effect it is answered the same way. */
  end(transactionalId: string, producer: ProducerIdentity, kind: 'commit' | 'abort'): void {
    const entry = this.check(transactionalId, producer)
    if (entry.state === `complete-${kind}`) return
    if (isPreparing(entry)) throw new Refusal(CODES.CONCURRENT_TRANSACTIONS, `${transactionalId} is still ending its transaction`)
    if (entry.state !== 'ongoing') throw new Refusal(CODES.INVALID_TXN_STATE, `${kind} of ${transactionalId}, which is ${entry.state}`)
    this.#prepare(entry, kind)
  }

  /** Throws when the caller is not the producer of today. */
  check(transactionalId: string, { producerId, epoch }: ProducerIdentity): TransactionEntry {
    const entry = this.#entries.get(transactionalId)
    if (entry?.producerId !== producerId) throw new Refusal(CODES.INVALID_PRODUCER_ID_MAPPING, `${transactionalId} has another producer id`)
    if (epoch !== entry.epoch) throw new Refusal(CODES.PRODUCER_FENCED, `epoch ${epoch} of ${transactionalId}, which is at ${entry.epoch}`)
    return entry
  }

  /** Ids that were not used for `transactional.id.expiration.ms` are forgotten. */
  forget(transactionalId: string): void {
    this.#entries.delete(transactionalId)
  }

  #started(transactionalId: string, producer: ProducerIdentity): TransactionEntry {
    const entry = this.check(transactionalId, producer)
    if (isPreparing(entry)) throw new Refusal(CODES.CONCURRENT_TRANSACTIONS, `${transactionalId} is still ending its transaction`)
    if (entry.state !== 'ongoing') this.#start(entry)
    return entry
  }

  #start(entry: TransactionEntry): void {
    const { time, choices } = this.#options
    entry.state = 'ongoing'
    entry.startedAt = time.now
    const lateMs = EXPIRY_LATE_MS[choices.pick('late expiry of a transaction', EXPIRY_LATE_MS.length)] as number
    entry.cancelExpiry = time.schedule(entry.timeoutMs + lateMs, () => {
      entry.epoch++ // its producer is fenced
      this.#prepare(entry, 'abort')
    })
  }

  #prepare(entry: TransactionEntry, kind: 'commit' | 'abort'): void {
    const { time, choices, topics, offsetsOf, changed } = this.#options
    entry.cancelExpiry()
    entry.state = `prepare-${kind}`
    this.#options.decided(entry, kind)
    const writes: (() => void)[] = []
    for (const [topic, partition] of entry.partitions.values())
      writes.push(() => topics.find(topic)?.partitions[partition]?.writeMarker(entry.producerId, kind))
    for (const groupId of entry.groups) writes.push(() => offsetsOf(groupId).decide(entry.producerId, kind))
    let left = writes.length
    const done = (): void => {
      entry.state = `complete-${kind}`
      entry.partitions.clear()
      entry.groups.clear()
    }
    if (left === 0) done()
    for (const write of writes) {
      const delayMs = MARKER_MS[choices.pick('late marker', MARKER_MS.length)] as number
      time.schedule(delayMs, () => {
        write()
        left--
        if (left === 0) done()
        changed()
      })
    }
  }
}

export function isPreparing({ state }: TransactionEntry): boolean {
  return state === 'prepare-commit' || state === 'prepare-abort'
}
