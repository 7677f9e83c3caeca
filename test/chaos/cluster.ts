/** The brokers of a run, each behind a proxy of its own, and the topics. */
import { provideBroker, type JavaTools, type ProvidedBroker } from '../../scripts/broker-provider/provider.ts'
import { startKafkaProxy, type KafkaProxy } from '../helpers/kafka-proxy/kafka-proxy.ts'
import { BareClient } from './bare-client.ts'
import type { Scenario } from './scenario.ts'

export interface ClusterOptions {
  readonly nodes: 1 | 3
  readonly version: string | undefined
  readonly onProgress: (line: string) => void
}

export class ChaosCluster {
  readonly broker: ProvidedBroker
  readonly client: BareClient
  /** Past the proxies. */
  readonly directBrokers: string
  #down: Promise<void> = Promise.resolve()

  /** In front of the brokers, in their order; for the workers only. */
  readonly proxies: readonly KafkaProxy[]

  private constructor(broker: ProvidedBroker, proxies: readonly KafkaProxy[]) {
    this.broker = broker
    this.proxies = proxies
    this.directBrokers = broker.directBrokers
    this.client = new BareClient(broker.directBrokers)
  }

  static async start({ nodes, version, onProgress }: ClusterOptions): Promise<ChaosCluster> {
    const proxies = await Promise.all(Array.from({ length: nodes }, () => startKafkaProxy()))
    try {
      const broker = await provideBroker({
        nodes,
        onProgress,
        ...(version === undefined ? {} : { version }),
        advertise: ({ id, address }) => {
          const proxy = proxies[id - 1]
          if (proxy === undefined) throw new Error(`there is no proxy for broker ${id}`)
          proxy.connectTo(address)
          return proxy.address
        },
      })
      return new ChaosCluster(broker, proxies)
    } catch (error) {
      await Promise.all(proxies.map((proxy) => proxy.close()))
      throw error
    }
  }

  /** For the workers: through the proxies. */
  get brokers(): string {
    return this.broker.brokers
  }

  get java(): JavaTools | undefined {
    return this.broker.java
  }

  async createTopics({ input, output, duplicates, deadLetters, partitions }: Scenario): Promise<void> {
    const replicas = this.broker.nodes.length >= 3 ? 3 : 1
    const topics = [input, output, duplicates, deadLetters]
    for (const topic of topics) await this.client.createTopic(topic, partitions, replicas)
    // A topic is known to one broker after the other.
    for (const address of this.directBrokers.split(',')) {
      const client = new BareClient(address)
      for (const topic of topics) await client.ends(topic, partitions)
    }
  }

  /** Records between the committed offsets and the end, by partition; undefined where there are records and no offset. */
  async lag({ application, input, partitions }: Scenario): Promise<ReadonlyMap<number, number | undefined>> {
    const ends = await this.client.ends(input, partitions)
    const committed = await this.client.committed(application, input, partitions)
    return new Map(
      [...ends].map(([partition, end]) => {
        const offset = committed.get(partition)
        return [partition, end === 0 ? 0 : offset === undefined ? undefined : end - offset]
      }),
    )
  }

  /** One broker at a time: with two of three down nothing could be committed, and nobody promises that. Resolves when all are in sync again. */
  async withBrokerDown(id: number, work: () => Promise<void>): Promise<void> {
    const before = this.#down
    let done: () => void = () => undefined
    this.#down = new Promise((resolve) => (done = resolve))
    await before
    try {
      const node = this.broker.nodes.find((each) => each.id === id)
      if (node === undefined) throw new Error(`there is no broker ${id}`)
      await node.kill('SIGKILL')
      try {
        await work()
      } finally {
        await node.start()
      }
    } finally {
      done()
    }
  }

  async stop(): Promise<void> {
    await Promise.all(this.proxies.map((proxy) => proxy.close()))
    await this.broker.stop()
  }
}
