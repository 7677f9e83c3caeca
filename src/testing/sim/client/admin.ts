/** Look-ups and topic administration on the simulated brokers. */
import type { TopicPartition } from '../../../common/topic-partition.ts'
import type {
  BrokerAdmin,
  CommittedOffset,
  GroupDescription,
  PartitionOffsets,
  TopicDescription,
  TopicToCreate,
} from '../../../broker/port.ts'
import { closedError } from '../../../errors/broker-error.ts'
import type { SimCluster } from '../cluster/cluster.ts'
import { CODES, Refusal } from '../cluster/refusal.ts'
import { NOT_KNOWN_YET } from '../../../errors/broker-codes.ts'
import { never, type SimProcess } from '../process.ts'
import { Connection } from './connection.ts'

const TIMEOUT_MS = 10_000

export class SimAdmin implements BrokerAdmin {
  readonly #process: SimProcess
  readonly #cluster: SimCluster
  readonly #connection: Connection
  #closed = false

  constructor(process: SimProcess, cluster: SimCluster) {
    this.#process = process
    this.#cluster = cluster
    this.#connection = new Connection(process)
  }

  async #ask<T>(name: string, serve: () => T): Promise<T> {
    if (this.#closed) throw closedError('admin')
    if (!this.#process.survives(`${name}:before`)) return never()
    const known = (): T => {
      try {
        return serve()
      } catch (error) {
        // As the adapter says it: it may have been made a moment ago.
        if (error instanceof Refusal && error.code === CODES.UNKNOWN_TOPIC_OR_PARTITION) throw new Refusal(NOT_KNOWN_YET, error.message)
        throw error
      }
    }
    const serveAs = name === 'CreatePartitions' ? serve : known
    const answer = await this.#connection.call({ operation: 'admin', name, timeoutMs: TIMEOUT_MS }, serveAs)
    return this.#process.survives(`${name}:after`) ? answer : never()
  }

  describeTopics(names: readonly string[]): Promise<readonly TopicDescription[]> {
    return this.#ask('Metadata', () =>
      names.flatMap((name) => {
        const topic = this.#cluster.topics.find(name)
        return topic === undefined ? [] : [{ name, partitions: topic.partitions.length, replicationFactor: 1 }]
      }),
    )
  }

  createTopic(topic: TopicToCreate): Promise<void> {
    return this.#ask('CreateTopics', () => this.#cluster.topics.create(topic))
  }

  createPartitions(topic: string, total: number): Promise<void> {
    return this.#ask('CreatePartitions', () => this.#cluster.topics.grow(topic, total))
  }

  changeTopicConfig(name: string, config: Readonly<Record<string, string>>): Promise<void> {
    return this.#ask('AlterConfigs', () => {
      const topic = this.#cluster.topics.topic(name)
      for (const [key, value] of Object.entries(config)) topic.config.set(key, value)
    })
  }

  topicConfigs(names: readonly string[]): Promise<ReadonlyMap<string, ReadonlyMap<string, string>>> {
    return this.#ask('DescribeConfigs', () => new Map(names.map((name) => [name, new Map(this.#cluster.topics.topic(name).config)])))
  }

  brokerConfig(): Promise<ReadonlyMap<string, string>> {
    return this.#ask('DescribeConfigs', () => this.#cluster.brokerConfig)
  }

  offsets(partitions: readonly TopicPartition[]): Promise<readonly PartitionOffsets[]> {
    return this.#ask('ListOffsets', () =>
      partitions.map(({ topic, partition }) => {
        const { logStart, highWatermark } = this.#cluster.topics.log(topic, partition)
        return { topic, partition, logStart, highWatermark }
      }),
    )
  }

  lastStableOffsets(partitions: readonly TopicPartition[]): Promise<readonly number[]> {
    return this.#ask('ListOffsets', () => partitions.map(({ topic, partition }) => this.#cluster.topics.log(topic, partition).lastStable))
  }

  groupOffsets(groupId: string, partitions: readonly TopicPartition[]): Promise<readonly CommittedOffset[]> {
    return this.#ask('OffsetFetch', () => this.#cluster.offsets(groupId).fetch(partitions, false))
  }

  describeGroup(groupId: string): Promise<GroupDescription> {
    return this.#ask('DescribeGroups', () => {
      if (!this.#cluster.hasGroup(groupId)) return { stable: false, members: [] }
      const { state, members } = this.#cluster.group(groupId)
      const topic = this.#cluster.subscription(groupId)
      return {
        stable: state === 'stable',
        members: members.map(({ memberId, instanceId, assigned }) => ({
          memberId,
          instanceId,
          assigned: state === 'stable' ? assigned.map((partition) => ({ topic, partition })) : [],
        })),
      }
    })
  }

  async close(): Promise<void> {
    if (this.#process.isDead) return never()
    this.#closed = true
  }
}
