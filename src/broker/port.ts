/**
 * The broker port: all that the runtime may ask of Kafka.
 *
 * Owns: nothing; interfaces and record types only. `broker/kafka` is the real adapter, and the simulated broker is cut here too.
 * Rules for every implementation:
 *  P1. A method rejects with `BrokerError` and nothing else for what the broker or the client says.
 *  P2. `produce` is synchronous and copies: buffers may be reused after it returned.
 *  P3. The rebalance listener is called in the order in which the group coordinator decided, never two at once. Fetching is paused until a revoke was answered.
 *  P4. The answer to a rebalance (incremental assign / unassign) happens in the adapter's rebalance callback, one call site each.
 *  P5. After `close` of the broker every look-up, reader and write is refused with CLOSED; it resolves when those that were under way have ended. Without
 *      it: (1) a look-up beside the loop fails while the worker ends, (2) it is repeated, (3) the client it opens for that is closed by nobody.
 */
import type { TopicPartition, TopicPartitionOffset } from '../common/topic-partition.ts'

/** A header list as Kafka has it: ordered, names may repeat, values may be null. */
export type HeaderList = readonly (readonly [name: string, value: Buffer | null])[]

/** A record as it was read. Null key, empty key and tombstone are distinct. */
export interface BrokerRecord {
  readonly topic: string
  readonly partition: number
  readonly offset: number
  /** ms since the epoch, as the broker stored it; -1 when the record has none. */
  readonly timestamp: number
  readonly key: Buffer | null
  readonly value: Buffer | null
  readonly headers: HeaderList
}

/** Where read_committed reading has come to: every record below `offset` was delivered, control records included. */
export interface PartitionEnd extends TopicPartitionOffset {}

export interface PollResult {
  readonly records: readonly BrokerRecord[]
  /** Ends of partitions reached since the last poll. Fires again each time the end is reached. */
  readonly ends: readonly PartitionEnd[]
}

export interface CommittedOffset extends TopicPartition {
  /** Undefined: nothing was ever committed (or it expired). */
  readonly offset: number | undefined
  readonly metadata: string
}

export interface OffsetToCommit extends TopicPartitionOffset {
  readonly metadata: string
}

/** Called by the adapter inside the client's rebalance callback. Must not throw. */
export interface RebalanceListener {
  /**
   * Partitions of the subscribed (task) topic that are ours from now on. Returns what to assign, those included, each with an offset inside its log. The
   * adapter assigns at that offset and pauses in the same tick; nothing is read before `seek` and `resume`.
   */
  assigned(partitions: readonly TopicPartition[]): readonly TopicPartitionOffset[]
  /**
   * Partitions of the subscribed topic to give up. `lost`: they already belong to somebody else, nothing may be committed.
   * Resolves, once work on them is settled, with what to unassign, those included.
   */
  revoked(partitions: readonly TopicPartition[], lost: boolean): Promise<readonly TopicPartition[]>
}

export interface GroupConsumer {
  /** Joins the group. Resolves when the request is on its way; partitions come through the listener. */
  subscribe(topic: string, listener: RebalanceListener): void
  /** At most one outstanding. Resolves after `timeoutMs` at the latest, with what there is. */
  poll(maxRecords: number, timeoutMs: number): Promise<PollResult>
  /** Moves reading to explicit offsets. Never with a poll outstanding (CLIENT-FACTS 9). */
  seek(positions: readonly TopicPartitionOffset[], timeoutMs: number): Promise<void>
  /** Only partitions that are assigned; pausing twice is harmless. */
  pause(partitions: readonly TopicPartition[]): void
  /** Only partitions that are paused: resuming another repeats records. */
  resume(partitions: readonly TopicPartition[]): void
  /** Stable committed offsets of this group (waits while a transaction holds them pending, rejects retriable at the time-out). */
  committed(partitions: readonly TopicPartition[], timeoutMs: number): Promise<readonly CommittedOffset[]>
  /** Next offset to be read, control records stepped over; undefined when unknown. */
  position(topic: string, partition: number): number | undefined
  /** End of a partition as the last fetch saw it, without asking the broker; undefined before the first fetch. For lag. */
  knownEnd(topic: string, partition: number): number | undefined
  /** What the client believes to own, task topic included. Empty after the slot was taken, without any event. */
  assignments(): readonly TopicPartition[]
  assignmentLost(): boolean
  /** Sends LeaveGroup, also for a static member; the revoke comes through the listener. */
  unsubscribe(): void
  /** Disconnects; without `unsubscribe` before it a static member keeps its place. Idempotent. */
  close(): Promise<void>
}

export interface TransactionalProducer {
  readonly transactionalId: string
  /** Registers the id, aborts what a predecessor left open and fences it. */
  init(timeoutMs: number): Promise<void>
  /** Local; the broker hears of it with the first record. */
  begin(): Promise<void>
  /**
   * Queues one record. Returns false when the local queue is full (nothing was queued: await `writable()` and try again). Any other refusal throws
   * `BrokerError`, after which the transaction must not be committed: a commit would succeed without that record (CLIENT-FACTS 29).
   * `partition` null: by the key's murmur2, as Java's producer. `timestamp` in ms.
   */
  produce(
    topic: string,
    partition: number | null,
    key: Buffer | null,
    value: Buffer | null,
    timestamp: number,
    headers: HeaderList,
  ): boolean
  /** Resolves when the local queue has room again. */
  writable(): Promise<void>
  /** Resolves when nothing is in flight. Says nothing about refusals: those show at commit. */
  flush(timeoutMs: number): Promise<void>
  /** Adds input offsets under the consumer's present group generation and member. May never answer: the caller has its own watchdog. */
  sendOffsets(consumer: GroupConsumer, offsets: readonly OffsetToCommit[], timeoutMs: number): Promise<void>
  commit(timeoutMs: number): Promise<void>
  abort(timeoutMs: number): Promise<void>
  /** Idempotent; after it the object is dead. An open transaction stays open until the id is inited again or times out. */
  close(): Promise<void>
}

/** Reads changelogs (and the task topic) read_committed, without a group. */
export interface ChangelogReader {
  /** Replaces the whole assignment. Offset -2 is the log start. Never with a poll outstanding. */
  assign(positions: readonly TopicPartitionOffset[]): void
  poll(maxRecords: number, timeoutMs: number): Promise<PollResult>
  close(): Promise<void>
}

export const LOG_START = -2

export interface TopicDescription {
  readonly name: string
  readonly partitions: number
  readonly replicationFactor: number
}

export interface TopicToCreate {
  readonly name: string
  readonly partitions: number
  /** -1: the broker's default. */
  readonly replicationFactor: number
  readonly config: Readonly<Record<string, string>>
}

export interface PartitionOffsets extends TopicPartition {
  readonly logStart: number
  /** High watermark: one past the last replicated record, open transactions included. */
  readonly highWatermark: number
}

/** A consumer group as its coordinator sees it. */
export interface GroupDescription {
  /** False while a rebalance is under way. */
  readonly stable: boolean
  readonly members: readonly {
    readonly memberId: string
    readonly instanceId: string | undefined
    readonly assigned: readonly TopicPartition[]
  }[]
}

export interface BrokerAdmin {
  /** Missing topics are left out of the answer. */
  describeTopics(names: readonly string[]): Promise<readonly TopicDescription[]>
  /** Rejects with code TOPIC_ALREADY_EXISTS (36) when it exists. */
  createTopic(topic: TopicToCreate): Promise<void>
  /** Raises the partition count of a topic to `total`. Rejects with code INVALID_PARTITIONS (37) when it has that many, or more. */
  createPartitions(topic: string, total: number): Promise<void>
  /** Changes these settings of a topic and leaves its others as they are. */
  changeTopicConfig(name: string, config: Readonly<Record<string, string>>): Promise<void>
  /** Effective settings of topics, by topic name. */
  topicConfigs(names: readonly string[]): Promise<ReadonlyMap<string, ReadonlyMap<string, string>>>
  /** Effective settings of one broker. */
  brokerConfig(): Promise<ReadonlyMap<string, string>>
  offsets(partitions: readonly TopicPartition[]): Promise<readonly PartitionOffsets[]>
  /** Last stable offsets: everything below is decided (committed or aborted). In the order asked. */
  lastStableOffsets(partitions: readonly TopicPartition[]): Promise<readonly number[]>
  /**
   * Committed offsets as they are at present, with their metadata: those of a transaction that is still open are neither waited for nor shown. For messages
   * only; the offsets to read from come from `GroupConsumer.committed`.
   */
  groupOffsets(groupId: string, partitions: readonly TopicPartition[]): Promise<readonly CommittedOffset[]>
  describeGroup(groupId: string): Promise<GroupDescription>
  close(): Promise<void>
}

export interface GroupConsumerOptions {
  readonly groupId: string
  readonly groupInstanceId: string
  readonly sessionTimeoutMs: number
  readonly heartbeatIntervalMs: number
  readonly maxPollIntervalMs: number
  /** A batch that does not fit its checksum fails the poll, for good; unchecked, its bytes are delivered as they are. */
  readonly checkChecksums: boolean
}

export interface ProducerOptions {
  readonly transactionalId: string
  readonly transactionTimeoutMs: number
  /** Largest record the client lets through; what a topic accepts is checked by the caller. */
  readonly maxMessageBytes: number
  /** Largest batch: a topic refuses a batch above its own limit, whatever the size of the records in it. */
  readonly batchBytes: number
}

/** The door to one cluster. Nothing connects before a method is called. */
export interface Broker {
  connectConsumer(options: GroupConsumerOptions): Promise<GroupConsumer>
  connectProducer(options: ProducerOptions): Promise<TransactionalProducer>
  /** A producer without transactions, for the task table alone. */
  writeRecord(topic: string, partition: number, key: Buffer, value: Buffer, timeoutMs: number): Promise<void>
  connectReader(): Promise<ChangelogReader>
  readonly admin: BrokerAdmin
  close(): Promise<void>
}
