/**
 * What the demo asks the cluster, by clients of its own: committed offsets and ends of the input, whether a killed worker left a transaction open, and
 * the topics themselves. Nothing here goes through millrace.
 */
import { setTimeout as delay } from 'node:timers/promises'
import kafkaClient from '@confluentinc/kafka-javascript'
import { Kafka, logLevel, type Admin } from 'kafkajs'

/** By partition. */
export type Offsets = ReadonlyMap<number, number>

const ASK_INTERVAL_MS = 40
/** A commit that was on its way when the process was killed has arrived by then. */
const SETTLE_MS = 100
const REQUEST_TIMEOUT_MS = 10_000
const PATIENCE_MS = 60_000
const PATIENCE_PAUSE_MS = 250

export class Cluster {
  readonly #admin: Admin
  readonly #brokers: string

  private constructor(admin: Admin, brokers: string) {
    this.#admin = admin
    this.#brokers = brokers
  }

  static async connect(brokers: string): Promise<Cluster> {
    const admin = new Kafka({ clientId: 'demo', brokers: brokers.split(','), logLevel: logLevel.NOTHING }).admin()
    await admin.connect()
    return new Cluster(admin, brokers)
  }

  /** Those of `topics` that exist. */
  async existing(topics: readonly string[]): Promise<readonly string[]> {
    const all = new Set(await this.#admin.listTopics())
    return topics.filter((topic) => all.has(topic))
  }

  async createTopics(topics: readonly string[], partitions: number): Promise<void> {
    await this.#admin.createTopics({
      waitForLeaders: true,
      topics: topics.map((topic) => ({ topic, numPartitions: partitions, replicationFactor: -1 })),
    })
  }

  /** Removes `topics` and every other topic whose name starts with `prefix`, and the groups. What cannot be removed is named in the error. */
  async remove(topics: readonly string[], prefix: string, groups: readonly string[]): Promise<void> {
    const all = await this.#admin.listTopics()
    await this.#admin.deleteTopics({ topics: all.filter((topic) => topics.includes(topic) || topic.startsWith(prefix)) })
    // A static member that has left for good keeps its group for a session time-out: such a group expires by itself.
    await this.#admin.deleteGroups([...groups]).catch(() => undefined)
  }

  /** High watermarks. */
  async ends(topic: string): Promise<Offsets> {
    const offsets = await patiently(() => this.#admin.fetchTopicOffsets(topic))
    return new Map(offsets.map(({ partition, high }) => [partition, Number(high)]))
  }

  /** Committed offsets; 0 where none is. */
  async committed(groupId: string, topic: string): Promise<Offsets> {
    const [answer] = await patiently(() => this.#admin.fetchOffsets({ groupId, topics: [topic] }))
    return new Map((answer?.partitions ?? []).map(({ partition, offset }) => [partition, Math.max(0, Number(offset))]))
  }

  /**
   * Waits until the group has committed something new for one of `partitions`, and returns when that was seen, as ms since 1970.
   * Undefined when there is nothing left to process in them, when `timeoutMs` passed, or after an abort.
   */
  async nextCommit(
    groupId: string,
    topic: string,
    partitions: readonly number[],
    timeoutMs: number,
    signal: AbortSignal,
  ): Promise<number | undefined> {
    await delay(SETTLE_MS)
    const before = await this.committed(groupId, topic)
    const giveUpAt = Date.now() + timeoutMs
    while (Date.now() < giveUpAt && !signal.aborted) {
      const now = await this.committed(groupId, topic)
      if (partitions.some((partition) => (now.get(partition) ?? 0) > (before.get(partition) ?? 0))) return Date.now()
      const ends = await this.ends(topic)
      if (partitions.every((partition) => (now.get(partition) ?? 0) >= (ends.get(partition) ?? 0))) return undefined
      await delay(ASK_INTERVAL_MS)
    }
    return undefined
  }

  /**
   * Whether a transaction with records in one of `partitions` is open: the last stable offset is below the high watermark. Undefined when it cannot be
   * told: it is a figure of one moment, and a later answer would be that of another moment.
   */
  async hasOpenTransaction(topic: string, partitions: readonly number[]): Promise<boolean | undefined> {
    const { READ_COMMITTED, READ_UNCOMMITTED } = kafkaClient.IsolationLevel
    // A client of its own each time: what a longer-lived one knows about leaders may be old, and then it is refused until it looks again.
    const client = kafkaClient.AdminClient.create({ 'bootstrap.servers': this.#brokers, 'client.id': 'demo-offsets' })
    const list = (isolationLevel: number): Promise<Offsets> =>
      new Promise((resolve, reject) => {
        const wanted = partitions.map((partition) => ({ topic, partition, offset: kafkaClient.OffsetSpec.LATEST }))
        client.listOffsets(wanted, { timeout: REQUEST_TIMEOUT_MS, isolationLevel }, (error, offsets) => {
          if (error) reject(new Error(error.message))
          else resolve(new Map(offsets.map(({ partition, offset }) => [partition, offset])))
        })
      })
    try {
      // In this order: a transaction that ends in between counts as ended.
      const high = await list(READ_UNCOMMITTED)
      const stable = await list(READ_COMMITTED)
      return partitions.some((partition) => (stable.get(partition) ?? 0) < (high.get(partition) ?? 0))
    } catch {
      return undefined
    } finally {
      client.disconnect()
    }
  }

  async close(): Promise<void> {
    await this.#admin.disconnect()
  }
}

/** A broker that a busy machine has stopped for seconds is no reason to end a demo: the question is asked again. */
async function patiently<T>(ask: () => Promise<T>): Promise<T> {
  const giveUpAt = performance.now() + PATIENCE_MS
  for (;;) {
    try {
      return await ask()
    } catch (error) {
      if (performance.now() > giveUpAt) throw error
      await delay(PATIENCE_PAUSE_MS)
    }
  }
}

export function sum(offsets: Offsets): number {
  let total = 0
  for (const offset of offsets.values()) total += offset
  return total
}
