/**
 * The shared broker for tests: topics, input, and an independent read_committed reader. The reader is the bare client, without a line of the runtime:
 * what it sees is what any consumer of the output would see.
 */
import { randomBytes } from 'node:crypto'
import { createRequire } from 'node:module'
import { Kafka, logLevel, type Admin, type IHeaders, type Producer } from 'kafkajs'
import { inject } from 'vitest'
import { until } from './condition.ts'

export const brokers = inject('brokers')
export const kafka = new Kafka({ brokers: brokers.split(','), logLevel: logLevel.NOTHING, retry: { retries: 10, initialRetryTime: 50 } })

/** A name that no other test uses. */
export function unique(name: string): string {
  return `${name}-${randomBytes(4).toString('hex')}`
}

let admin: Promise<Admin> | undefined
let producer: Promise<Producer> | undefined

export function sharedAdmin(): Promise<Admin> {
  admin ??= (async () => {
    const connected = kafka.admin()
    await connected.connect()
    return connected
  })()
  return admin
}

function sharedProducer(): Promise<Producer> {
  producer ??= (async () => {
    const connected = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
    await connected.connect()
    return connected
  })()
  return producer
}

/** For `afterAll`: what this file opened is closed. */
export async function disconnectKafka(): Promise<void> {
  await (await producer)?.disconnect()
  await (await admin)?.disconnect()
  const consumer = await watcher
  if (consumer !== undefined) await new Promise<void>((resolve) => consumer.disconnect(() => resolve()))
  watcher = undefined
  producer = undefined
  admin = undefined
}

export async function createTopic(name: string, partitions: number, config: Readonly<Record<string, string>> = {}): Promise<string> {
  const connected = await sharedAdmin()
  await connected.createTopics({
    waitForLeaders: false,
    topics: [
      {
        topic: name,
        numPartitions: partitions,
        replicationFactor: 1,
        configEntries: Object.entries(config).map(([key, value]) => ({ name: key, value })),
      },
    ],
  })
  // kafkajs's own wait gives up on a broker that has not heard of the topic yet, which a busy one may not have.
  await until(`leaders of ${name}`, async () => {
    const found = await connected.fetchTopicMetadata({ topics: [name] }).catch(() => undefined)
    const leaders = found?.topics[0]?.partitions.filter(({ leader }) => leader >= 0) ?? []
    return leaders.length === partitions
  })
  return name
}

export interface InputRecord {
  readonly key: string | null
  readonly value: string | null
  readonly partition?: number
  readonly timestamp?: number
  readonly headers?: IHeaders
}

export async function send(topic: string, records: readonly InputRecord[]): Promise<void> {
  const connected = await sharedProducer()
  for (let start = 0; start < records.length; start += 2_000) {
    await connected.send({
      topic,
      acks: -1,
      messages: records.slice(start, start + 2_000).map(({ key, value, partition, timestamp, headers }) => ({
        key,
        value,
        ...(partition === undefined ? {} : { partition }),
        ...(timestamp === undefined ? {} : { timestamp: String(timestamp) }),
        ...(headers === undefined ? {} : { headers }),
      })),
    })
  }
}

/** In transactions of its own, so that the log ends in control records. */
export async function sendInTransactions(
  topic: string,
  transactions: readonly { readonly records: readonly InputRecord[]; readonly abort?: boolean }[],
): Promise<void> {
  const connected = kafka.producer({ idempotent: true, maxInFlightRequests: 1, transactionalId: unique('input') })
  await connected.connect()
  try {
    for (const { records, abort } of transactions) {
      const transaction = await connected.transaction()
      await transaction.send({
        topic,
        messages: records.map(({ key, value, partition }) => ({ key, value, ...(partition === undefined ? {} : { partition }) })),
      })
      if (abort === true) await transaction.abort()
      else await transaction.commit()
    }
  } finally {
    await connected.disconnect()
  }
}

export interface ReadRecord {
  readonly partition: number
  readonly offset: number
  readonly timestamp: number
  readonly key: string | null
  readonly value: string | null
  /** In order, names may repeat. */
  readonly headers: readonly (readonly [string, string | null])[]
}

interface BareMessage {
  partition: number
  offset: number
  timestamp: number
  key: Buffer | null
  value: Buffer | null
  headers?: Record<string, Buffer | null>[]
}
interface BareConsumer {
  connect(options: object, done: (error: unknown) => void): void
  disconnect(done: () => void): void
  assign(positions: { topic: string; partition: number; offset: number }[]): void
  queryWatermarkOffsets(
    topic: string,
    partition: number,
    timeoutMs: number,
    done: (error: unknown, found: { highOffset: number }) => void,
  ): void
  getClient(): {
    consume(
      timeoutMs: number,
      records: number,
      onlyForFirst: boolean,
      done: (error: unknown, messages: BareMessage[], ends: { partition: number; offset: number }[]) => void,
    ): void
  }
}
const { KafkaConsumer } = createRequire(import.meta.url)('@confluentinc/kafka-javascript') as {
  KafkaConsumer: new (config: object, topicConfig: object) => BareConsumer
}

/**
 * All records of a topic up to its present end. Read committed: up to the high watermark of now, so it waits for transactions that are open, as long as
 * the test may take.
 */
export async function readAll(
  topic: string,
  options: {
    readonly isolation?: 'read_committed' | 'read_uncommitted'
    readonly brokers?: string
    readonly ends?: ReadonlyMap<number, number>
  } = {},
): Promise<ReadRecord[]> {
  const ends = options.ends ?? (await highWatermarks(topic))
  const consumer = new KafkaConsumer(
    {
      'metadata.broker.list': options.brokers ?? brokers,
      'group.id': unique('reader'),
      'enable.auto.commit': false,
      'isolation.level': options.isolation ?? 'read_committed',
      'enable.partition.eof': true,
      'fetch.wait.max.ms': 20,
    },
    { 'auto.offset.reset': 'earliest' },
  )
  await new Promise<void>((resolve, reject) => {
    consumer.connect({ topic }, (error) => (error ? reject(new Error(String((error as Error).message))) : resolve()))
  })
  const records: ReadRecord[] = []
  try {
    const waiting = new Map(ends)
    for (const [partition, end] of ends) if (end === 0) waiting.delete(partition)
    consumer.assign([...ends.keys()].map((partition) => ({ topic, partition, offset: 0 })))
    while (waiting.size > 0) {
      const { messages, reached } = await new Promise<{ messages: BareMessage[]; reached: { partition: number; offset: number }[] }>(
        (resolve, reject) => {
          consumer.getClient().consume(200, 5_000, true, (error, found, found2) => {
            if (error) reject(new Error(String((error as Error).message)))
            else resolve({ messages: found, reached: found2 })
          })
        },
      )
      for (const { partition, offset, timestamp, key, value, headers } of messages) {
        records.push({
          partition,
          offset,
          timestamp,
          key: key === null || key === undefined ? null : key.toString(),
          value: value === null || value === undefined ? null : value.toString(),
          headers: (headers ?? []).flatMap((header) =>
            Object.entries(header).map(([name, bytes]) => [name, bytes === null ? null : String(bytes)] as const),
          ),
        })
      }
      for (const { partition, offset } of reached) if (offset >= (waiting.get(partition) ?? 0)) waiting.delete(partition)
    }
  } finally {
    await new Promise<void>((resolve) => consumer.disconnect(() => resolve()))
  }
  return records.sort((x, y) => x.partition - y.partition || x.offset - y.offset)
}

let watcher: Promise<BareConsumer> | undefined

function sharedWatcher(): Promise<BareConsumer> {
  watcher ??= (async () => {
    const consumer = new KafkaConsumer(
      { 'metadata.broker.list': brokers, 'group.id': unique('watcher'), 'isolation.level': 'read_uncommitted' },
      {},
    )
    await new Promise<void>((resolve, reject) => {
      consumer.connect({}, (error) => (error ? reject(new Error(String((error as Error).message))) : resolve()))
    })
    return consumer
  })()
  return watcher
}

/** Ends with open transactions included: kafkajs gives the last stable offsets instead, which may lie before markers that are on their way. */
export async function highWatermarks(topic: string): Promise<Map<number, number>> {
  const [metadata] = (await (await sharedAdmin()).fetchTopicMetadata({ topics: [topic] })).topics
  const consumer = await sharedWatcher()
  const ends = new Map<number, number>()
  for (const { partitionId } of metadata?.partitions ?? []) {
    const end = await new Promise<number>((resolve, reject) => {
      consumer.queryWatermarkOffsets(topic, partitionId, 10_000, (error, found) => {
        if (error) reject(new Error(String((error as Error).message)))
        else resolve(found.highOffset)
      })
    })
    ends.set(partitionId, end)
  }
  return ends
}

/** Committed offsets of a group on a topic, by partition; -1 where there is none. */
export async function committedOffsets(group: string, topic: string): Promise<Map<number, number>> {
  const connected = await sharedAdmin()
  let found: Awaited<ReturnType<Admin['fetchOffsets']>>[number] | undefined
  // A coordinator that is only just being elected answers with an error that kafkajs does not repeat.
  await until(`offsets of ${group}`, async () => {
    found = await connected.fetchOffsets({ groupId: group, topics: [topic] }).then(
      ([first]) => first,
      () => undefined,
    )
    return found !== undefined
  })
  return new Map((found?.partitions ?? []).map(({ partition, offset }) => [partition, Number(offset)]))
}

/** Records between the committed offset and the high watermark, over all partitions. Infinity while a partition that has records has no offset. */
export async function groupLag(group: string, topic: string): Promise<number> {
  const [ends, committed] = await Promise.all([highWatermarks(topic), committedOffsets(group, topic)])
  let lag = 0
  for (const [partition, end] of ends) {
    const offset = committed.get(partition) ?? -1
    if (end > 0) lag += offset < 0 ? Infinity : end - offset
  }
  return lag
}

/** How often each value occurs, and only those that do not occur exactly once. */
export function notOnce(values: readonly (string | null)[], expected: Iterable<string>): Record<string, number> {
  const counts = new Map<string, number>()
  for (const id of expected) counts.set(id, 0)
  for (const value of values) counts.set(String(value), (counts.get(String(value)) ?? 0) + 1)
  return Object.fromEntries([...counts].filter(([, count]) => count !== 1))
}
