/**
 * The simulated brokers: topics, groups and transactions behind one door. Every operation happens at once, when its request arrives; what Kafka does
 * later (markers, expiries, sessions) are events of their own.
 */
import type { OffsetToCommit } from '../../../broker/port.ts'
import { partitionName } from '../../../common/topic-partition.ts'
import type { Choices } from '../choices.ts'
import type { VirtualTime } from '../virtual-time.ts'
import { GroupOffsets } from './group-offsets.ts'
import { Group } from './groups.ts'
import type { LogRecord } from './partition-log.ts'
import { CODES, Refusal } from './refusal.ts'
import { Topics } from './topics.ts'
import { isPreparing, Transactions, type ProducerIdentity, type TransactionEntry } from './transactions.ts'

export interface ClusterOptions {
  readonly time: VirtualTime
  readonly choices: Choices
  /** Ms since the epoch. */
  readonly wallClock: () => number
  /** Settings of the brokers, as `describeConfigs` shows them. */
  readonly brokerConfig?: Readonly<Record<string, string>>
}

const BROKER_CONFIG: Readonly<Record<string, string>> = {
  'transaction.max.timeout.ms': '900000',
  'group.min.session.timeout.ms': '6000',
  'group.max.session.timeout.ms': '1800000',
  'offsets.retention.minutes': '10080',
  'offset.metadata.max.bytes': '4096',
}

export interface GroupMembership {
  readonly groupId: string
  readonly memberId: string
  readonly instanceId: string
  readonly generation: number
}

export class SimCluster {
  readonly topics = new Topics()
  readonly transactions: Transactions
  readonly brokerConfig: ReadonlyMap<string, string>
  /** Told of every end of a transaction, as it is decided. */
  onDecided: (entry: TransactionEntry, kind: 'commit' | 'abort') => void = () => undefined
  /** Told of every offset that was committed. */
  onOffsets: (groupId: string, partition: string, offset: number) => void = () => undefined
  readonly #options: ClusterOptions
  readonly #groups = new Map<string, Group>()
  readonly #offsets = new Map<string, GroupOffsets>()
  /** The topic a group subscribes to. */
  readonly #subscribed = new Map<string, string>()
  readonly #watchers = new Set<() => void>()

  constructor(options: ClusterOptions) {
    this.#options = options
    this.brokerConfig = new Map(Object.entries({ ...BROKER_CONFIG, ...options.brokerConfig }))
    this.transactions = new Transactions({
      time: options.time,
      choices: options.choices,
      topics: this.topics,
      offsetsOf: (groupId) => this.offsets(groupId),
      decided: (entry, kind) => this.onDecided(entry, kind),
      changed: () => this.#changed(),
      maxTimeoutMs: Number(this.brokerConfig.get('transaction.max.timeout.ms')),
    })
  }

  /** The brokers' clock, ms since the epoch. */
  now(): number {
    return this.#options.wallClock()
  }

  /** Called whenever there may be more to read. Returns the function that stops it. */
  watch(look: () => void): () => void {
    this.#watchers.add(look)
    return () => this.#watchers.delete(look)
  }

  #changed(): void {
    for (const look of [...this.#watchers]) look()
  }

  append(topic: string, partition: number, records: readonly LogRecord[]): void {
    const log = this.topics.log(topic, partition)
    this.topics.check(topic, records, this.now())
    log.append(records)
    this.#changed()
  }

  /** A batch of a transaction. Answered alike when it is sent again. */
  appendTransactional(
    topic: string,
    partition: number,
    records: readonly LogRecord[],
    transactionalId: string,
    producer: ProducerIdentity,
    sequence: number,
  ): void {
    const log = this.topics.log(topic, partition)
    const entry = this.transactions.check(transactionalId, producer)
    if (entry.state !== 'ongoing' || !entry.partitions.has(`${topic}/${partition}`))
      throw new Refusal(CODES.INVALID_TXN_STATE, `${topic}[${partition}] is not part of a transaction of ${transactionalId}`)
    this.topics.check(topic, records, this.now())
    const result = log.appendTransactional(records, producer.producerId, producer.epoch, sequence)
    if (result === 'gap') throw new Refusal(CODES.OUT_OF_ORDER_SEQUENCE, `sequence ${sequence} for ${topic}[${partition}] does not follow`)
    this.#changed()
  }

  /** TxnOffsetCommit: fenced by member and generation of the group, by nothing else. */
  commitOffsets(transactionalId: string, producer: ProducerIdentity, member: GroupMembership, offsets: readonly OffsetToCommit[]): void {
    const entry = this.transactions.check(transactionalId, producer)
    if (entry.state !== 'ongoing' || !entry.groups.has(member.groupId))
      throw new Refusal(CODES.INVALID_TXN_STATE, `group ${member.groupId} is not part of a transaction of ${transactionalId}`)
    this.group(member.groupId).checkCommit(member.memberId, member.instanceId, member.generation)
    this.offsets(member.groupId).addPending(producer.producerId, offsets)
  }

  /**
   * Whether a transaction keeps anything from its readers. One that a late AddPartitionsToTxn or AddOffsetsToTxn has opened holds nothing: no producer knows
   * of it, and the coordinator ends it at its time-out.
   */
  holdsAnything({ producerId, partitions, groups }: TransactionEntry): boolean {
    return (
      [...partitions.values()].some(([topic, partition]) => this.topics.find(topic)?.partitions[partition]?.isOpen(producerId)) ||
      [...groups].some((groupId) => this.offsets(groupId).pendingOf(producerId).length > 0)
    )
  }

  /** Transactions that have not ended, or whose end has not reached every partition. */
  openTransactions(): readonly TransactionEntry[] {
    return [...this.transactions.entries.values()].filter((entry) => entry.state === 'ongoing' || isPreparing(entry))
  }

  /** Partitions that a group has not committed to their end. */
  lags(groupId: string, topics: readonly string[]): readonly { readonly name: string; readonly committed: number; readonly end: number }[] {
    const { committed } = this.offsets(groupId)
    return topics.flatMap((topic) =>
      this.topics.topic(topic).partitions.flatMap(({ highWatermark: end }, partition) => {
        const name = partitionName(topic, partition)
        const offset = committed.get(name)?.offset ?? 0
        return offset < end ? [{ name, committed: offset, end }] : []
      }),
    )
  }

  subscribe(groupId: string, topic: string): void {
    this.#subscribed.set(groupId, topic)
  }

  subscription(groupId: string): string {
    return this.#subscribed.get(groupId) ?? ''
  }

  hasGroup(groupId: string): boolean {
    return this.#groups.has(groupId)
  }

  group(groupId: string): Group {
    let group = this.#groups.get(groupId)
    if (group === undefined) {
      group = new Group({
        time: this.#options.time,
        partitions: () => this.topics.find(this.#subscribed.get(groupId) ?? '')?.partitions.length ?? 0,
      })
      this.#groups.set(groupId, group)
    }
    return group
  }

  offsets(groupId: string): GroupOffsets {
    let offsets = this.#offsets.get(groupId)
    if (offsets === undefined) {
      offsets = new GroupOffsets(Number(this.brokerConfig.get('offset.metadata.max.bytes')))
      offsets.onCommitted = (name, offset) => this.onOffsets(groupId, name, offset)
      this.#offsets.set(groupId, offsets)
    }
    return offsets
  }
}
