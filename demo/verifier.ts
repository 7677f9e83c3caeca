/**
 * The independent judge: reads both topics from their beginning, read committed, and counts ids. It uses no code of millrace and trusts neither side.
 *
 * The reader is Kafka's own console consumer where Java is at hand, else a bare client of the C library. (Pure JavaScript clients are no judges here:
 * their read_committed filters let records of aborted transactions through.)
 */
import { setTimeout as delay } from 'node:timers/promises'
import kafkaClient from '@confluentinc/kafka-javascript'
import { consoleConsumer, type JavaTools } from '../scripts/broker-provider/provider.ts'
import type { Offsets } from './cluster.ts'

interface Count {
  readonly records: number
  readonly uniqueIds: number
}

export interface Verdict {
  /** Records of the input. */
  readonly input: number
  /** Different ids of the input. */
  readonly uniqueIds: number
  /** Records of the output. */
  readonly output: number
  /** Records of the output whose id came before. */
  readonly duplicates: number
  /** Ids of the input that are not in the output. */
  readonly lost: number
  /** Ids of the output that are not in the input. */
  readonly invented: number
  /** A few of the ids behind `duplicates`, `lost` and `invented`, for the search. */
  readonly examples: readonly string[]
}

const MOST_EXAMPLES = 10

/** Counts ids of records, one after the other. */
export class IdCounter implements Count {
  readonly #times = new Map<string, number>()
  #records = 0

  add(value: string | null): void {
    this.#records++
    const id = idOf(value)
    this.#times.set(id, (this.#times.get(id) ?? 0) + 1)
  }

  get records(): number {
    return this.#records
  }

  get uniqueIds(): number {
    return this.#times.size
  }

  timesOf(id: string): number {
    return this.#times.get(id) ?? 0
  }

  ids(): IterableIterator<string> {
    return this.#times.keys()
  }
}

/** The business id: order and event type. A record that is no order event is an id of its own, so that it shows as invented or lost. */
function idOf(value: string | null): string {
  try {
    const { orderId, type } = JSON.parse(value ?? '') as { orderId?: unknown; type?: unknown }
    if (typeof orderId === 'string' && typeof type === 'string') return `${orderId}/${type}`
  } catch {
    // Named below.
  }
  return `not an order event: ${String(value).slice(0, 100)}`
}

export function judge(input: IdCounter, output: IdCounter): Verdict {
  const examples: string[] = []
  const example = (text: string): void => {
    if (examples.length < MOST_EXAMPLES) examples.push(text)
  }
  let lost = 0
  let invented = 0
  for (const id of input.ids()) {
    if (output.timesOf(id) > 0) continue
    lost++
    example(`lost: ${id}`)
  }
  for (const id of output.ids()) {
    const times = output.timesOf(id)
    if (times > 1) example(`${times} times: ${id}`)
    if (input.timesOf(id) > 0) continue
    invented++
    example(`invented: ${id}`)
  }
  return {
    input: input.records,
    uniqueIds: input.uniqueIds,
    output: output.records,
    duplicates: output.records - output.uniqueIds,
    lost,
    invented,
    examples,
  }
}

/** What reads a whole topic, read committed, and hands over each value. */
export type TopicReader = (topic: string, take: (value: string | null) => void) => Promise<void>

/** `idleMs`: the console consumer cannot know where a transactional topic ends; it takes this long a silence for the end. */
export function javaReader(tools: JavaTools, idleMs: number): TopicReader {
  return async (topic, take) => {
    for await (const { value } of consoleConsumer(tools, { topic, isolation: 'read_committed', idleMs })) take(value)
  }
}

const BATCH_RECORDS = 2_000
const BATCH_TIMEOUT_MS = 200

/** `ends`: high watermarks of a topic that nobody writes to any more. Reads until each partition's read_committed end has reached them. */
export function nativeReader(brokers: string, ends: (topic: string) => Promise<Offsets>, noProgressMs = 30_000): TopicReader {
  return async (topic, take) => {
    const open = new Map([...(await ends(topic))].filter(([, end]) => end > 0))
    const consumer = new kafkaClient.KafkaConsumer(
      {
        'bootstrap.servers': brokers,
        'client.id': 'demo-verifier',
        // The client wants a group id; nothing joins or commits under it.
        'group.id': 'demo-verifier',
        'enable.auto.commit': false,
        'isolation.level': 'read_committed',
        'enable.partition.eof': true,
      },
      { 'auto.offset.reset': 'error' },
    )
    await new Promise<void>((resolve, reject) =>
      consumer.connect({ timeout: 10_000 }, (error) => (error ? reject(new Error(error.message)) : resolve())),
    )
    try {
      consumer.on('partition.eof', ({ partition, offset }: { partition: number; offset: number }) => {
        if (offset >= (open.get(partition) ?? 0)) open.delete(partition)
      })
      consumer.setDefaultConsumeTimeout(BATCH_TIMEOUT_MS)
      consumer.assign([...open.keys()].map((partition) => ({ topic, partition, offset: 0 })))
      let progressAt = performance.now()
      while (open.size > 0) {
        const records = await new Promise<{ value: Buffer | null }[]>((resolve, reject) => {
          consumer.consume(BATCH_RECORDS, (error, messages) => (error ? reject(new Error(error.message)) : resolve(messages)))
        })
        for (const { value } of records) take(value === null ? null : value.toString('utf8'))
        if (records.length > 0) progressAt = performance.now()
        else if (performance.now() - progressAt > noProgressMs)
          throw new Error(
            `the end of ${topic}[${[...open.keys()].join(', ')}] is not reached: a transaction is open there, or the broker is gone`,
          )
        // A read-only event loop turn for the end-of-partition events.
        await delay(0)
      }
    } finally {
      await new Promise<void>((resolve) => consumer.disconnect(() => resolve()))
    }
  }
}

export async function countTopic(reader: TopicReader, topic: string): Promise<IdCounter> {
  const counter = new IdCounter()
  await reader(topic, (value) => counter.add(value))
  return counter
}
