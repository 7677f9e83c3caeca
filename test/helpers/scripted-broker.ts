/**
 * A broker at the port that does what a script says. Every call is noted in order; an operation succeeds unless an answer was put in its queue.
 * It models nothing: it is for the reactions to single failures. What a broker really does is tested on a real one.
 */
import type {
  Broker,
  BrokerAdmin,
  BrokerRecord,
  ChangelogReader,
  CommittedOffset,
  GroupConsumer,
  GroupDescription,
  OffsetToCommit,
  PartitionEnd,
  PartitionOffsets,
  PollResult,
  RebalanceListener,
  TopicDescription,
  TopicToCreate,
  TransactionalProducer,
} from '../../src/broker/port.ts'
import { partitionName, type TopicPartition, type TopicPartitionOffset } from '../../src/common/topic-partition.ts'
import { BrokerError, type BrokerOperation } from '../../src/errors/broker-error.ts'

type Flags = ConstructorParameters<typeof BrokerError>[3]

export function refusal(operation: BrokerOperation, code: number, flags: Flags = {}): BrokerError {
  return new BrokerError(operation, code, 'scripted', flags)
}

export interface Produced {
  readonly topic: string
  readonly partition: number | null
  readonly key: Buffer | null
  readonly value: Buffer | null
  readonly timestamp: number
}

/** Answers by operation, taken in order; `undefined` in a queue is a success. */
export class Script {
  readonly #queues = new Map<BrokerOperation, (BrokerError | undefined)[]>()
  readonly calls: string[] = []

  fail(operation: BrokerOperation, ...answers: (BrokerError | undefined)[]): this {
    this.#queues.set(operation, [...(this.#queues.get(operation) ?? []), ...answers])
    return this
  }

  take(operation: BrokerOperation, who: string): void {
    this.calls.push(`${operation} ${who}`)
    const failure = this.#queues.get(operation)?.shift()
    if (failure !== undefined) throw failure
  }

  /** The calls, without who did them. */
  get operations(): string[] {
    return this.calls.map((call) => call.split(' ')[0] as string)
  }
}

export class ScriptedProducer implements TransactionalProducer {
  readonly transactionalId: string
  readonly #script: Script
  readonly produced: Produced[] = []
  readonly sentOffsets: OffsetToCommit[][] = []
  isClosed = false
  /** Calls of `produce` that find the queue full before the next one is taken. */
  fullFor = 0

  constructor(script: Script, transactionalId: string, generation: number) {
    this.#script = script
    this.transactionalId = transactionalId
    this.name = `${transactionalId}#${generation}`
  }

  /** Transactional id and number of the producer object under that id. */
  readonly name: string

  async init(): Promise<void> {
    this.#script.take('init', this.name)
  }
  async begin(): Promise<void> {
    this.#script.take('begin', this.name)
  }
  produce(topic: string, partition: number | null, key: Buffer | null, value: Buffer | null, timestamp: number): boolean {
    if (this.fullFor > 0) {
      this.fullFor--
      return false
    }
    this.#script.take('produce', this.name)
    this.produced.push({ topic, partition, key, value, timestamp })
    return true
  }
  async writable(): Promise<void> {}
  async flush(): Promise<void> {
    this.#script.take('flush', this.name)
  }
  async sendOffsets(_consumer: GroupConsumer, offsets: readonly OffsetToCommit[]): Promise<void> {
    this.#script.take('sendOffsets', this.name)
    this.sentOffsets.push([...offsets])
  }
  async commit(): Promise<void> {
    this.#script.take('commit', this.name)
  }
  async abort(): Promise<void> {
    this.#script.take('abort', this.name)
  }
  async close(): Promise<void> {
    if (!this.isClosed) this.#script.calls.push(`close ${this.name}`)
    this.isClosed = true
  }
}

export class ScriptedConsumer implements GroupConsumer {
  readonly #script: Script
  listener: RebalanceListener | undefined
  assigned: TopicPartition[] = []
  isLost = false
  /** What `committed` finds, by partition name. */
  readonly committedOffsets = new Map<string, CommittedOffset>()
  /** While set, `committed` waits for it, as it does for a transaction that is still open. */
  committedGate: Promise<void> | undefined
  readonly polls: PollResult[] = []
  readonly seeks: TopicPartitionOffset[] = []
  readonly paused = new Set<string>()

  constructor(script: Script) {
    this.#script = script
  }

  subscribe(_topic: string, listener: RebalanceListener): void {
    this.#script.calls.push('subscribe consumer')
    this.listener = listener
  }
  async poll(): Promise<PollResult> {
    this.#script.take('poll', 'consumer')
    return this.polls.shift() ?? { records: [], ends: [] }
  }
  async seek(positions: readonly TopicPartitionOffset[]): Promise<void> {
    this.#script.take('seek', 'consumer')
    this.seeks.push(...positions)
  }
  pause(partitions: readonly TopicPartition[]): void {
    for (const { topic, partition } of partitions) this.paused.add(partitionName(topic, partition))
  }
  resume(partitions: readonly TopicPartition[]): void {
    for (const { topic, partition } of partitions) this.paused.delete(partitionName(topic, partition))
  }
  async committed(partitions: readonly TopicPartition[]): Promise<readonly CommittedOffset[]> {
    await this.committedGate
    this.#script.take('committed', 'consumer')
    return partitions.map(
      ({ topic, partition }) =>
        this.committedOffsets.get(partitionName(topic, partition)) ?? { topic, partition, offset: undefined, metadata: '' },
    )
  }
  position(): number | undefined {
    return undefined
  }
  knownEnd(): number | undefined {
    return undefined
  }
  assignments(): readonly TopicPartition[] {
    return this.assigned
  }
  assignmentLost(): boolean {
    return this.isLost
  }
  unsubscribe(): void {
    this.#script.calls.push('unsubscribe consumer')
  }
  async close(): Promise<void> {}
}

export class ScriptedReader implements ChangelogReader {
  readonly assignments: TopicPartitionOffset[][] = []
  readonly polls: (PollResult | BrokerError)[] = []
  /** How many records each poll asked for. */
  readonly asked: number[] = []
  isClosed = false

  assign(positions: readonly TopicPartitionOffset[]): void {
    this.assignments.push([...positions])
  }
  async poll(maxRecords: number): Promise<PollResult> {
    this.asked.push(maxRecords)
    const next = this.polls.shift()
    if (next instanceof BrokerError) throw next
    return next ?? { records: [], ends: [] }
  }
  async close(): Promise<void> {
    this.isClosed = true
  }

  /** The next poll delivers these. */
  deliver(records: readonly BrokerRecord[], ends: readonly PartitionEnd[] = []): this {
    this.polls.push({ records, ends })
    return this
  }
}

export class ScriptedAdmin implements BrokerAdmin {
  readonly topics = new Map<string, { partitions: number; config: Readonly<Record<string, string>> }>()
  readonly created: TopicToCreate[] = []
  readonly bounds = new Map<string, PartitionOffsets>()
  /** Last stable offsets, by partition name; the high watermark where none is set. */
  readonly stable = new Map<string, number>()
  readonly groups: (GroupDescription | BrokerError)[] = []
  readonly createFailures: (BrokerError | undefined)[] = []
  groupLooks = 0

  async describeTopics(names: readonly string[]): Promise<readonly TopicDescription[]> {
    return names.flatMap((name) => {
      const topic = this.topics.get(name)
      return topic === undefined ? [] : [{ name, partitions: topic.partitions, replicationFactor: 1 }]
    })
  }
  async createTopic(topic: TopicToCreate): Promise<void> {
    const failure = this.createFailures.shift()
    if (failure !== undefined) throw failure
    this.created.push(topic)
    this.topics.set(topic.name, { partitions: topic.partitions, config: topic.config })
  }
  async createPartitions(name: string, total: number): Promise<void> {
    const topic = this.topics.get(name)
    if (topic === undefined) throw refusal('admin', 3)
    if (topic.partitions >= total) throw refusal('admin', 37)
    this.topics.set(name, { ...topic, partitions: total })
  }
  async changeTopicConfig(name: string, config: Readonly<Record<string, string>>): Promise<void> {
    const topic = this.topics.get(name)
    if (topic !== undefined) this.topics.set(name, { ...topic, config: { ...topic.config, ...config } })
  }
  async topicConfigs(names: readonly string[]): Promise<ReadonlyMap<string, ReadonlyMap<string, string>>> {
    return new Map(names.map((name) => [name, new Map(Object.entries(this.topics.get(name)?.config ?? {}))]))
  }
  async brokerConfig(): Promise<ReadonlyMap<string, string>> {
    return new Map()
  }
  async offsets(partitions: readonly TopicPartition[]): Promise<readonly PartitionOffsets[]> {
    return partitions.map(
      ({ topic, partition }) => this.bounds.get(partitionName(topic, partition)) ?? { topic, partition, logStart: 0, highWatermark: 0 },
    )
  }
  async lastStableOffsets(partitions: readonly TopicPartition[]): Promise<readonly number[]> {
    return partitions.map(({ topic, partition }) => {
      const name = partitionName(topic, partition)
      return this.stable.get(name) ?? this.bounds.get(name)?.highWatermark ?? 0
    })
  }
  /** What `groupOffsets` finds, by partition name. */
  readonly present = new Map<string, CommittedOffset>()
  async groupOffsets(_groupId: string, partitions: readonly TopicPartition[]): Promise<readonly CommittedOffset[]> {
    return partitions.map(
      ({ topic, partition }) => this.present.get(partitionName(topic, partition)) ?? { topic, partition, offset: undefined, metadata: '' },
    )
  }
  async describeGroup(): Promise<GroupDescription> {
    this.groupLooks++
    const next = this.groups.length > 1 ? this.groups.shift() : this.groups[0]
    if (next instanceof BrokerError) throw next
    return next ?? { stable: true, members: [] }
  }
  async close(): Promise<void> {}
}

export class ScriptedBroker implements Broker {
  readonly script = new Script()
  readonly admin = new ScriptedAdmin()
  readonly consumer = new ScriptedConsumer(this.script)
  readonly reader = new ScriptedReader()
  /** Every producer ever connected, in order. */
  readonly producers: ScriptedProducer[] = []
  /** While set for an id, `connectProducer` waits for it. */
  readonly connectGates = new Map<string, Promise<void>>()
  readonly written: { topic: string; key: Buffer; value: Buffer }[] = []

  async connectConsumer(): Promise<GroupConsumer> {
    return this.consumer
  }
  async connectProducer({ transactionalId }: { readonly transactionalId: string }): Promise<TransactionalProducer> {
    await this.connectGates.get(transactionalId)
    this.script.take('connect', transactionalId)
    const generation = this.producers.filter((other) => other.transactionalId === transactionalId).length + 1
    const producer = new ScriptedProducer(this.script, transactionalId, generation)
    this.producers.push(producer)
    return producer
  }
  async writeRecord(topic: string, _partition: number, key: Buffer, value: Buffer): Promise<void> {
    this.written.push({ topic, key, value })
  }
  async connectReader(): Promise<ChangelogReader> {
    return this.reader
  }
  async close(): Promise<void> {}
}

export function record(
  topic: string,
  offset: number,
  key: string | null,
  value: string | null,
  more: Partial<Pick<BrokerRecord, 'partition' | 'timestamp' | 'headers'>> = {},
): BrokerRecord {
  return {
    topic,
    partition: more.partition ?? 0,
    offset,
    timestamp: more.timestamp ?? 1_700_000_000_000 + offset,
    key: key === null ? null : Buffer.from(key),
    value: value === null ? null : Buffer.from(value),
    headers: more.headers ?? [],
  }
}
