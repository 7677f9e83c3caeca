/**
 * The broker contract on a real broker. It is one of its own: the process that something happens to reaches it through a proxy, all others past it, and
 * transactions that timed out are looked for every half second.
 */
import { Kafka, logLevel, type Admin, type Producer } from 'kafkajs'
import { describe, inject } from 'vitest'
import { provideBroker, type ProvidedBroker } from '../../scripts/broker-provider/provider.ts'
import { KafkaBroker } from '../../src/broker/kafka/broker.ts'
import type { Broker } from '../../src/broker/port.ts'
import { silentLogger } from '../../src/common/ports.ts'
import { until } from '../helpers/condition.ts'
import { API, startKafkaProxy, type KafkaProxy } from '../helpers/kafka-proxy/kafka-proxy.ts'
import { readAll, unique } from '../helpers/kafka.ts'
import type { BrokerWorld, ContractCluster, ContractProcess, ContractRecord, StrikableProcess } from './broker-world.ts'
import { brokerContract } from './broker-suite.ts'

/** Ends failing tests only: the machine may be busy with something else. */
const LIMIT_MS = 240_000
const CLOSE_LIMIT_MS = 60_000
const METADATA_REFRESH_MS = 1_000

interface Tools {
  readonly proxy: KafkaProxy
  readonly provided: ProvidedBroker
  readonly admin: Admin
  readonly producer: Producer
  /** For what the suite itself asks. */
  readonly observer: Broker
}

function connectTo(address: string, clientId: string): Broker {
  return new KafkaBroker({
    brokers: [address],
    // The coordinator's description names members by it.
    clientId,
    connectTimeoutMs: 30_000,
    metadataRefreshMs: METADATA_REFRESH_MS,
    logger: silentLogger,
    client: {},
  })
}

class KafkaWorld implements BrokerWorld {
  readonly #tools: Tools
  #isStruck = false

  constructor(tools: Tools) {
    this.#tools = tools
  }

  start(): void {
    // Time passes by itself.
  }

  process(name: string): ContractProcess {
    return { name, broker: connectTo(this.#tools.provided.directBrokers, name), now: () => Date.now() }
  }

  strikable(name: string): StrikableProcess {
    const { proxy } = this.#tools
    if (this.#isStruck) throw new Error('one process of a test is behind the proxy')
    this.#isStruck = true
    return {
      name,
      broker: connectTo(proxy.address, name),
      now: () => Date.now(),
      kill: () => proxy.drop(),
      freeze: () => {
        proxy.halfClose('to-server')
        proxy.halfClose('to-client')
      },
      thaw: () => proxy.restore(),
      holdJoins: () => {
        const hold = proxy.holdReplies({ apiKey: API.joinGroup })
        return {
          get struck() {
            return hold.struck
          },
          release: () => void hold.release(),
        }
      },
    }
  }

  async createTopic(name: string, partitions: number, config: Readonly<Record<string, string>>): Promise<void> {
    const { admin } = this.#tools
    const configEntries = Object.entries(config).map(([key, value]) => ({ name: key, value }))
    await admin.createTopics({
      waitForLeaders: false,
      topics: [{ topic: name, numPartitions: partitions, replicationFactor: 1, configEntries }],
    })
    await until(`leaders of ${name}`, async () => {
      const found = await admin.fetchTopicMetadata({ topics: [name] }).catch(() => undefined)
      return found?.topics[0]?.partitions.filter(({ leader }) => leader >= 0).length === partitions
    })
  }

  async append(topic: string, partition: number, values: readonly string[]): Promise<void> {
    if (values.length === 0) return
    await this.#tools.producer.send({ topic, acks: -1, messages: values.map((value) => ({ partition, key: value, value })) })
  }

  async deleteBefore(topic: string, partition: number, offset: number): Promise<void> {
    await this.#tools.admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(offset) }] })
  }

  async committedRecords(topic: string): Promise<readonly ContractRecord[]> {
    const { observer, provided } = this.#tools
    const [description] = await observer.admin.describeTopics([topic])
    const partitions = Array.from({ length: description?.partitions ?? 0 }, (_, partition) => ({ topic, partition }))
    const ends = new Map((await observer.admin.offsets(partitions)).map(({ partition, highWatermark }) => [partition, highWatermark]))
    return readAll(topic, { brokers: provided.directBrokers, ends })
  }

  until(what: string, ask: () => boolean | Promise<boolean>): Promise<void> {
    return until(what, ask, LIMIT_MS / 2)
  }

  pause(ms: number): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, ms))
  }

  async end(closers: readonly (() => Promise<void>)[]): Promise<void> {
    this.#tools.proxy.restore()
    for (const close of closers) await within(CLOSE_LIMIT_MS, close())
  }
}

async function within(limitMs: number, closing: Promise<void>): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => (timer = setTimeout(() => reject(new Error('a client does not close')), limitMs)))
  await Promise.race([closing, late]).finally(() => clearTimeout(timer))
}

async function kafkaCluster(): Promise<ContractCluster> {
  const opened: (() => Promise<unknown>)[] = []
  const close = async (): Promise<void> => {
    for (const each of opened.splice(0).reverse()) await each()
  }
  try {
    const proxy = await startKafkaProxy()
    opened.push(() => proxy.close())
    // Nothing can be put in front of the brokers of KAFKA_BROKERS.
    const provided = await provideBroker(
      {
        nodes: 1,
        heapMiB: 256,
        serverProperties: { 'transaction.abort.timed.out.transaction.cleanup.interval.ms': '500' },
        advertise: ({ address }) => {
          proxy.connectTo(address)
          return proxy.address
        },
      },
      { ...process.env, KAFKA_BROKERS: '' },
    )
    opened.push(() => provided.stop())
    const kafka = new Kafka({
      brokers: [provided.directBrokers],
      logLevel: logLevel.NOTHING,
      retry: { retries: 20, initialRetryTime: 100, maxRetryTime: 1_000 },
    })
    const admin = kafka.admin()
    await admin.connect()
    opened.push(() => admin.disconnect())
    const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, allowAutoTopicCreation: false })
    await producer.connect()
    opened.push(() => producer.disconnect())
    const observer = connectTo(provided.directBrokers, 'observer')
    opened.push(() => observer.close())
    const tools: Tools = { proxy, provided, admin, producer, observer }
    return { unique, world: () => new KafkaWorld(tools), close }
  } catch (error) {
    await close()
    throw error
  }
}

describe.skipIf(inject('javaTools') === null)('with a broker of its own', { timeout: LIMIT_MS }, () => {
  brokerContract('a real broker', kafkaCluster)
})
