/**
 * What runner and verifier ask the cluster, by the bare Kafka client and without a line of the runtime. Every question has a client of its own: what a
 * longer-lived one knows about leaders is old after a broker was killed. A question that fails is asked again, for as long as a cluster may take to recover.
 */
import { setTimeout as delay } from 'node:timers/promises'
import kafkaClient from '@confluentinc/kafka-javascript'
import { AssignerProtocol, Kafka, logLevel, type Admin as KafkaJsAdmin } from 'kafkajs'

/** By partition. */
export type Offsets = ReadonlyMap<number, number>

export interface GroupMember {
  /** Of a static member. */
  readonly instance: string
  readonly member: string
  readonly partitions: readonly string[]
}

export interface GroupView {
  readonly state: string
  readonly coordinator: number | undefined
  readonly members: readonly GroupMember[]
}

export interface RawRecord {
  readonly partition: number
  readonly offset: number
  readonly timestamp: number
  readonly key: Buffer | null
  readonly value: Buffer | null
  readonly headers: Readonly<Record<string, string>>
}

interface NativeMessage {
  readonly partition: number
  readonly offset: number
  readonly timestamp?: number
  readonly key?: Buffer | null
  readonly value: Buffer | null
  readonly headers?: readonly Record<string, Buffer | string | null>[]
}
interface BatchConsumer {
  consume(
    timeoutMs: number,
    records: number,
    onlyForFirst: boolean,
    done: (error: { message: string } | null, messages: NativeMessage[], ends: { partition: number; offset: number }[]) => void,
  ): void
}

/** The coordinator names a static member `<instance id>-<uuid>`. */
const STATIC_MEMBER_SUFFIX = /-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/
const OFFSETS_TOPIC = '__consumer_offsets'
const REQUEST_TIMEOUT_MS = 5_000
const PATIENCE_MS = 90_000
const PAUSE_MS = 250
const BATCH_RECORDS = 5_000
const BATCH_TIMEOUT_MS = 200
/** An open transaction ends by its time-out at the latest, which is seconds here; the broker looks for such every 10 s. */
const NO_PROGRESS_MS = 90_000
const { AdminClient, IsolationLevel, KafkaConsumer, OffsetSpec } = kafkaClient
type Admin = ReturnType<typeof AdminClient.create>

export class BareClient {
  readonly #brokers: string

  constructor(brokers: string) {
    this.#brokers = brokers
  }

  async createTopic(name: string, partitions: number, replicas: number, config: Readonly<Record<string, string>> = {}): Promise<void> {
    await this.#ask<void>((admin, done) =>
      admin.createTopic(
        { topic: name, num_partitions: partitions, replication_factor: replicas, config: { ...config } },
        REQUEST_TIMEOUT_MS,
        // -36 of a repeated question: it exists.
        (error) => done((error as { code?: number } | null)?.code === 36 ? null : error),
      ),
    )
  }

  /** Ends of the log: of `all` records, or below the first open transaction. */
  async ends(topic: string, partitions: number, which: 'all' | 'stable' = 'all'): Promise<Offsets> {
    const wanted = Array.from({ length: partitions }, (_unused, partition) => ({ topic, partition, offset: OffsetSpec.LATEST }))
    const isolationLevel = which === 'all' ? IsolationLevel.READ_UNCOMMITTED : IsolationLevel.READ_COMMITTED
    const found = await this.#ask<{ partition: number; offset: number; error?: { message: string } }[]>((admin, done) =>
      admin.listOffsets(wanted, { timeout: REQUEST_TIMEOUT_MS, isolationLevel }, (error, offsets) =>
        done(error ?? offsets.map(failureOf).find((failure) => failure !== undefined) ?? null, offsets),
      ),
    )
    return new Map(found.map(({ partition, offset }) => [partition, offset]))
  }

  /** Committed offsets of a group; partitions without one are left out. */
  committed(group: string, topic: string, partitions: number): Promise<Offsets> {
    return this.#askCoordinator(async (admin) => {
      const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
      const offsets = (found?.partitions ?? []).map(({ partition, offset }) => [partition, Number(offset)] as const)
      return new Map(offsets.filter(([partition, offset]) => partition < partitions && offset >= 0))
    })
  }

  group(group: string): Promise<GroupView> {
    return this.#askCoordinator(async (admin) => {
      const { topics } = await admin.fetchTopicMetadata({ topics: [OFFSETS_TOPIC] })
      const partitions = topics[0]?.partitions ?? []
      const own = partitions.find(({ partitionId }) => partitionId === javaHash(group) % partitions.length)
      const { groups } = await admin.describeGroups([group])
      return {
        state: groups[0]?.state ?? 'unknown',
        coordinator: own?.leader,
        members: (groups[0]?.members ?? []).map(({ memberId, memberAssignment }) => ({
          instance: memberId.replace(STATIC_MEMBER_SUFFIX, ''),
          member: memberId,
          partitions: Object.entries(AssignerProtocol.MemberAssignment.decode(memberAssignment)?.assignment ?? {}).map(
            ([name, numbers]) => `${name}[${numbers.join(', ')}]`,
          ),
        })),
      }
    })
  }

  /**
   * All committed records of a topic, up to its high watermark of now; in offset order per partition. Waits for transactions that are open.
   * Returns the ends it read to.
   */
  async readCommitted(topic: string, partitions: number, take: (record: RawRecord) => void): Promise<Offsets> {
    const ends = await this.ends(topic, partitions)
    const open = new Map([...ends].filter(([, end]) => end > 0))
    if (open.size === 0) return ends
    const consumer = new KafkaConsumer(
      {
        'bootstrap.servers': this.#brokers,
        // The client wants a group id; nothing joins or commits under it.
        'group.id': 'chaos-reader',
        'enable.auto.commit': false,
        'isolation.level': 'read_committed',
        'enable.partition.eof': true,
        'check.crcs': true,
        'fetch.wait.max.ms': 50,
      },
      { 'auto.offset.reset': 'error' },
    )
    await new Promise<void>((resolve, reject) =>
      consumer.connect({ timeout: 30_000 }, (error) => (error ? reject(new Error(error.message)) : resolve())),
    )
    try {
      consumer.assign([...open.keys()].map((partition) => ({ topic, partition, offset: 0 })))
      const client = consumer.getClient() as BatchConsumer
      let progressAt = performance.now()
      while (open.size > 0) {
        const { messages, reached } = await new Promise<{ messages: NativeMessage[]; reached: { partition: number; offset: number }[] }>(
          (resolve, reject) => {
            client.consume(BATCH_TIMEOUT_MS, BATCH_RECORDS, true, (error, found, atEnd) =>
              error ? reject(new Error(`${topic} could not be read: ${error.message}`)) : resolve({ messages: found, reached: atEnd }),
            )
          },
        )
        for (const message of messages) {
          const { partition, offset } = message
          if (offset < (ends.get(partition) ?? 0)) take(rawRecord(message))
        }
        for (const { partition, offset } of reached) if (offset >= (open.get(partition) ?? 0)) open.delete(partition)
        if (messages.length > 0) progressAt = performance.now()
        else if (performance.now() - progressAt > NO_PROGRESS_MS) {
          throw new Error(
            `the end of ${topic}[${[...open.keys()].join(', ')}] is not reached within ${NO_PROGRESS_MS / 1_000} s: a transaction is open there, or a broker is gone`,
          )
        }
      }
    } finally {
      await new Promise<void>((resolve) => consumer.disconnect(() => resolve()))
    }
    return ends
  }

  /**
   * By kafkajs: the native client ends its process when a coordinator answers describeGroups with an error (it reads a null text), and when it is closed
   * with such a question open (an assertion).
   */
  async #askCoordinator<T>(question: (admin: KafkaJsAdmin) => Promise<T>): Promise<T> {
    const giveUpAt = performance.now() + PATIENCE_MS
    for (;;) {
      const admin = new Kafka({ clientId: 'chaos', brokers: this.#brokers.split(','), logLevel: logLevel.NOTHING }).admin()
      try {
        await admin.connect()
        return await question(admin)
      } catch (error) {
        if (performance.now() > giveUpAt) throw error
        await delay(PAUSE_MS)
      } finally {
        await admin.disconnect().catch(() => undefined)
      }
    }
  }

  async #ask<T>(question: (admin: Admin, done: (error: { message: string } | null | undefined, answer?: T) => void) => void): Promise<T> {
    const giveUpAt = performance.now() + PATIENCE_MS
    for (;;) {
      const admin = AdminClient.create({ 'bootstrap.servers': this.#brokers, 'client.id': 'chaos' })
      try {
        return await new Promise<T>((resolve, reject) => {
          question(admin, (error, answer) => (error ? reject(new Error(error.message)) : resolve(answer as T)))
        })
      } catch (error) {
        if (performance.now() > giveUpAt) throw error
        await delay(PAUSE_MS)
      } finally {
        admin.disconnect()
      }
    }
  }
}

function rawRecord({ partition, offset, timestamp, key, value, headers }: NativeMessage): RawRecord {
  const texts: Record<string, string> = {}
  for (const header of headers ?? []) for (const [name, bytes] of Object.entries(header)) texts[name] = bytes === null ? '' : String(bytes)
  return { partition, offset, timestamp: timestamp ?? -1, key: key ?? null, value: value ?? null, headers: texts }
}

/** `String.hashCode` made positive, by which a broker finds the coordinator's partition of a group. */
function javaHash(text: string): number {
  let hash = 0
  for (const character of text) hash = (Math.imul(hash, 31) + character.charCodeAt(0)) | 0
  return hash & 0x7fff_ffff
}

/** An answer without an error may still hold none: its offset is -1001 then, for example when the connection was lost under it. */
function failureOf({
  partition,
  offset,
  error,
}: {
  partition: number
  offset: number
  error?: { message: string } | null
}): { message: string } | undefined {
  if (error) return error
  return offset < 0 ? { message: `partition ${partition} has no end (${offset})` } : undefined
}
