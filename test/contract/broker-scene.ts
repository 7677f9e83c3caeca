/** The vocabulary of the broker contract: topics, producers, members and readings of one test, and the failures they meet. */
import { expect } from 'vitest'
import type {
  BrokerRecord,
  ChangelogReader,
  GroupConsumer,
  GroupConsumerOptions,
  OffsetToCommit,
  PartitionEnd,
  PollResult,
  ProducerOptions,
  TransactionalProducer,
} from '../../src/broker/port.ts'
import { partitionName, type TopicPartition, type TopicPartitionOffset } from '../../src/common/topic-partition.ts'
import { BrokerError } from '../../src/errors/broker-error.ts'
import type { BrokerWorld, ContractCluster, ContractProcess, StrikableProcess } from './broker-world.ts'

/** For calls that are expected to be answered; ends failing tests only. */
export const LIMIT_MS = 60_000
/** Nobody is meant to be put out by it. */
const LONG_SESSION_MS = 30_000
const HEARTBEAT_MS = 300
const POLL_MS = 100
const RETRY_MS = 25

export const bytes = (text: string): Buffer => Buffer.from(text)

/** What an operation was refused with. Fails where it was not, or where something else than a `BrokerError` came (P1). */
export async function failureOf(operation: Promise<unknown> | (() => unknown)): Promise<BrokerError> {
  try {
    await (typeof operation === 'function' ? operation() : operation)
  } catch (error) {
    expect(error).toBeInstanceOf(BrokerError)
    return error as BrokerError
  }
  throw new Error('expected a refusal, and there was none')
}

/** One who polls: collects what comes, and stands still while it is moved. */
abstract class Poller {
  readonly records: BrokerRecord[] = []
  readonly ends: PartitionEnd[] = []
  readonly failures: BrokerError[] = []
  /** Most records of one poll. */
  maxRecords = 1_000
  /** Polls that were issued. */
  protected polls = 0
  readonly #world: BrokerWorld
  #polling: Promise<void> | undefined
  #isStopped = true

  constructor(world: BrokerWorld) {
    this.#world = world
  }

  protected abstract poll(maxRecords: number, timeoutMs: number): Promise<PollResult>

  /** False: what this poll brought of the partition was fetched for an assignment that is over. */
  protected isValid(_poll: number, _partition: TopicPartition): boolean {
    return true
  }

  async #take(maxRecords: number): Promise<void> {
    const poll = ++this.polls
    const { records, ends } = await this.poll(maxRecords, POLL_MS)
    this.records.push(...records.filter((record) => this.isValid(poll, record)))
    this.ends.push(...ends.filter((end) => this.isValid(poll, end)))
  }

  go(): void {
    this.#isStopped = false
    this.#polling = this.#run()
  }

  /** No poll is outstanding afterwards. */
  async halt(): Promise<void> {
    this.#isStopped = true
    await this.#polling
  }

  /** Polls for single records until there are so many, and stands still then. */
  async take(count: number): Promise<void> {
    await this.halt()
    while (this.records.length < count) await this.#take(1)
  }

  async #run(): Promise<void> {
    while (!this.#isStopped) {
      try {
        await this.#take(this.maxRecords)
      } catch (error) {
        this.failures.push(error as BrokerError)
        await this.#world.pause(RETRY_MS)
      }
    }
  }

  values(partition?: number): string[] {
    return this.records.filter((record) => partition === undefined || record.partition === partition).map(({ value }) => String(value))
  }

  /** The last end of the partition that was told. */
  endOf(partition = 0): number | undefined {
    return this.ends.findLast((end) => end.partition === partition)?.offset
  }

  endsOf(partition = 0): number[] {
    return this.ends.filter((end) => end.partition === partition).map(({ offset }) => offset)
  }

  codes(): number[] {
    return this.failures.map(({ code }) => code)
  }
}

export class Reading extends Poller {
  readonly reader: ChangelogReader

  constructor(world: BrokerWorld, reader: ChangelogReader) {
    super(world)
    this.reader = reader
  }

  protected poll(maxRecords: number, timeoutMs: number): Promise<PollResult> {
    return this.reader.poll(maxRecords, timeoutMs)
  }

  /** Replaces the assignment between two polls. */
  async assign(...positions: readonly TopicPartitionOffset[]): Promise<void> {
    await this.halt()
    this.reader.assign(positions)
    this.go()
  }
}

export interface MemberEvent {
  readonly member: string
  readonly kind: 'assigned' | 'revoked' | 'lost' | 'released'
  readonly partitions: readonly number[]
}

interface MemberSettings {
  readonly topic: string
  readonly name: string
  readonly timeline: MemberEvent[]
  /** Where partitions are assigned, paused: within the log of each. */
  readonly insideLog: number
}

export class Member extends Poller {
  readonly consumer: GroupConsumer
  readonly topic: string
  readonly events: MemberEvent[] = []
  /** Partitions of the subscribed topic that it was given and has not let go of. */
  owned: readonly number[] = []
  readonly #world: BrokerWorld
  /** By partition: the first poll that was issued with it assigned. One that was out at the time may bring records of the dummy offset (CF 9). */
  readonly #validFrom = new Map<number, number>()
  #gate: Promise<void> = Promise.resolve()
  #letGo: () => void = () => undefined

  constructor(world: BrokerWorld, consumer: GroupConsumer, { topic, name, timeline, insideLog }: MemberSettings) {
    super(world)
    this.#world = world
    this.consumer = consumer
    this.topic = topic
    const tell = (kind: MemberEvent['kind'], partitions: readonly TopicPartition[]): void => {
      const event = { member: name, kind, partitions: partitions.map(({ partition }) => partition).sort((x, y) => x - y) }
      this.events.push(event)
      timeline.push(event)
    }
    consumer.subscribe(topic, {
      assigned: (partitions) => {
        tell('assigned', partitions)
        this.owned = [...this.owned, ...partitions.map(({ partition }) => partition)].sort((x, y) => x - y)
        for (const { partition } of partitions) this.#validFrom.set(partition, this.polls + 1)
        return partitions.map((each) => ({ ...each, offset: insideLog }))
      },
      revoked: async (partitions, lost) => {
        tell(lost ? 'lost' : 'revoked', partitions)
        await this.#gate
        this.owned = this.owned.filter((owned) => !partitions.some(({ partition }) => partition === owned))
        tell('released', partitions)
        return partitions
      },
    })
    this.go()
  }

  protected poll(maxRecords: number, timeoutMs: number): Promise<PollResult> {
    return this.consumer.poll(maxRecords, timeoutMs)
  }

  protected override isValid(poll: number, { topic, partition }: TopicPartition): boolean {
    return topic === this.topic && poll >= (this.#validFrom.get(partition) ?? Number.MAX_SAFE_INTEGER)
  }

  /** Revokes are not answered until `letGo`. */
  holdOn(): void {
    this.#gate = new Promise((resolve) => (this.#letGo = resolve))
  }

  letGo(): void {
    this.#letGo()
  }

  async owns(...partitions: readonly number[]): Promise<void> {
    await this.#world.until(`it owns ${partitions.join()}`, () => this.owned.join() === partitions.join())
  }

  async ownsSome(count: number): Promise<void> {
    await this.#world.until(`it owns ${count} partitions`, () => this.owned.length === count)
  }

  /** Moves between two polls. The client may be busy with an assignment for a moment: tried again. */
  async seek(partition: number, offset: number): Promise<void> {
    await this.halt()
    await this.#world.until(`a seek to ${partitionName(this.topic, partition)}@${offset}`, async () => {
      try {
        await this.consumer.seek([{ topic: this.topic, partition, offset }], LIMIT_MS)
        return true
      } catch {
        return false
      }
    })
    this.go()
  }

  /** Of a partition that was assigned, which is paused then. */
  async readFrom(partition: number, offset: number): Promise<void> {
    await this.seek(partition, offset)
    this.consumer.resume([{ topic: this.topic, partition }])
  }

  position(partition = 0): number | undefined {
    return this.consumer.position(this.topic, partition)
  }

  async committed(partition = 0, timeoutMs = LIMIT_MS): Promise<{ readonly offset: number | undefined; readonly metadata: string }> {
    const [found] = await this.consumer.committed([{ topic: this.topic, partition }], timeoutMs)
    return { offset: found?.offset, metadata: String(found?.metadata) }
  }

  next(offset: number, metadata = '', partition = 0): OffsetToCommit {
    return { topic: this.topic, partition, offset, metadata }
  }
}

export interface ConsumerOptions extends Partial<GroupConsumerOptions> {
  readonly process?: ContractProcess
  readonly group?: string
}

export class Scene {
  readonly world: BrokerWorld
  /** Its one consumer group, where a test does not say another. */
  readonly group: string
  /** What members heard, in order. */
  readonly timeline: MemberEvent[] = []
  readonly #cluster: ContractCluster
  readonly #closers: (() => Promise<void>)[] = []
  #main: ContractProcess | undefined

  constructor(cluster: ContractCluster) {
    this.#cluster = cluster
    this.world = cluster.world()
    this.group = cluster.unique('group')
  }

  /** The process of everybody who is given none. */
  get main(): ContractProcess {
    return (this.#main ??= this.process('main'))
  }

  process(name: string): ContractProcess {
    return this.#kept(this.world.process(this.name(name)))
  }

  strikable(name: string): StrikableProcess {
    return this.#kept(this.world.strikable(this.name(name)))
  }

  #kept<T extends ContractProcess>(process: T): T {
    this.#closers.push(() => process.broker.close())
    return process
  }

  name(name: string): string {
    return this.#cluster.unique(name)
  }

  async topic(partitions = 1, config: Readonly<Record<string, string>> = {}): Promise<string> {
    const name = this.name('topic')
    await this.world.createTopic(name, partitions, config)
    return name
  }

  async connectProducer(options: Partial<ProducerOptions> & { readonly process?: ContractProcess } = {}): Promise<TransactionalProducer> {
    const { process = this.main, ...settings } = options
    const producer = await process.broker.connectProducer({
      transactionalId: this.name('id'),
      transactionTimeoutMs: LIMIT_MS,
      maxMessageBytes: 1_000_000,
      batchBytes: 1_000_000,
      ...settings,
    })
    this.#closers.push(() => producer.close())
    return producer
  }

  /** One that may begin. */
  async producer(options: Partial<ProducerOptions> & { readonly process?: ContractProcess } = {}): Promise<TransactionalProducer> {
    const producer = await this.connectProducer(options)
    await producer.init(LIMIT_MS)
    return producer
  }

  /** One that has not joined yet. */
  async consumer({ process = this.main, group = this.group, ...options }: ConsumerOptions = {}): Promise<GroupConsumer> {
    const consumer = await process.broker.connectConsumer({
      groupId: group,
      groupInstanceId: process.name,
      sessionTimeoutMs: LONG_SESSION_MS,
      heartbeatIntervalMs: HEARTBEAT_MS,
      maxPollIntervalMs: LIMIT_MS,
      checkChecksums: true,
      ...options,
    })
    this.#closers.push(() => consumer.close())
    return consumer
  }

  async member(options: ConsumerOptions & { readonly topic: string; readonly insideLog?: number }): Promise<Member> {
    const { topic, insideLog = 0, ...ofConsumer } = options
    const consumer = await this.consumer(ofConsumer)
    const { name } = options.process ?? this.main
    const member = new Member(this.world, consumer, { topic, name, timeline: this.timeline, insideLog })
    this.#closers.push(async () => {
      member.letGo() // a revoke without an answer hangs the close
      await member.halt()
    })
    return member
  }

  async reading(...positions: readonly TopicPartitionOffset[]): Promise<Reading> {
    const reader = await this.main.broker.connectReader()
    const reading = new Reading(this.world, reader)
    this.#closers.push(async () => {
      await reading.halt()
      await reader.close()
    })
    await reading.assign(...positions)
    return reading
  }

  until(what: string, ask: () => boolean | Promise<boolean>): Promise<void> {
    return this.world.until(what, ask)
  }

  async committedValues(topic: string): Promise<(string | null)[]> {
    return (await this.world.committedRecords(topic)).map(({ value }) => value)
  }

  /** Committed offset of the scene's group as it is now, waiting for nothing. */
  async groupOffset(topic: string, partition = 0): Promise<{ readonly offset: number | undefined; readonly metadata: string }> {
    const [found] = await this.main.broker.admin.groupOffsets(this.group, [{ topic, partition }])
    return { offset: found?.offset, metadata: String(found?.metadata) }
  }

  async end(): Promise<void> {
    await this.world.end(this.#closers.reverse())
  }
}

/** Puts one record per value into the transaction that is open. */
export function produceAll(producer: TransactionalProducer, topic: string, values: readonly string[], partition = 0): void {
  for (const value of values) expect(producer.produce(topic, partition, bytes(value), bytes(value), 1_700_000_000_000, [])).toBe(true)
}

/** One whole transaction. */
export async function commitAll(producer: TransactionalProducer, topic: string, values: readonly string[], partition = 0): Promise<void> {
  await producer.begin()
  produceAll(producer, topic, values, partition)
  await producer.commit(LIMIT_MS)
}

/** Where members of the group owned a partition at the same time. A process that was struck says nothing, and is left out. */
export function ownedTwice(timeline: readonly MemberEvent[]): string[] {
  const owners = new Map<number, string>()
  const twice: string[] = []
  for (const { member, kind, partitions } of timeline) {
    for (const partition of partitions) {
      const owner = owners.get(partition)
      if (kind === 'released' && owner === member) owners.delete(partition)
      if (kind !== 'assigned') continue
      if (owner !== undefined) twice.push(`${partition}: ${owner} and ${member}`)
      owners.set(partition, member)
    }
  }
  return twice
}
