/**
 * Topics, offsets and settings. The native client does all but `describeConfigs`, which it lacks: kafkajs does that (CLIENT-FACTS, Choice).
 * Both connect on first use.
 */
import kafkajs, { type ConfigResourceTypes as ConfigResourceType } from 'kafkajs'
import type { TopicPartition } from '../../common/topic-partition.ts'
import { FENCED_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION } from '../../errors/broker-codes.ts'
import { BrokerError, notKnownYet } from '../../errors/broker-error.ts'
import type { BrokerAdmin, CommittedOffset, GroupDescription, PartitionOffsets, TopicDescription, TopicToCreate } from '../port.ts'
import { baseConfig, type ConnectionSettings } from './connection.ts'
import { AdminClient } from './admin-client.ts'
import { LookUps } from './look-ups.ts'
import { IsolationLevel, native, OffsetSpec } from './native.ts'

// A CommonJS package whose enums Node's import analysis does not see.
const { AssignerProtocol, ConfigResourceTypes } = kafkajs

/** Kafka's ConfigSource: set for this topic, not a default. */
const SET_FOR_TOPIC = 1
/**
 * By default three refresh intervals. A partition that was added meanwhile is not in the client's cache, and `listOffsets` for it waits in vain until its
 * time-out (seen). Look-ups are rare, so one more metadata request each costs nothing.
 */
const METADATA_MAX_AGE_MS = 1_000

export class KafkaAdmin implements BrokerAdmin {
  readonly #settings: ConnectionSettings
  readonly #native: AdminClient
  readonly #lookUps: LookUps

  constructor(settings: ConnectionSettings) {
    this.#settings = settings
    this.#lookUps = new LookUps(settings)
    this.#native = new AdminClient(() => native.AdminClient.create({ ...baseConfig(settings), 'metadata.max.age.ms': METADATA_MAX_AGE_MS }))
  }

  async describeTopics(names: readonly string[]): Promise<readonly TopicDescription[]> {
    if (names.length === 0) return []
    const answers = await this.#native.call<Description[]>((client, done) => {
      client.describeTopics([...names], { timeout: this.#settings.connectTimeoutMs }, done)
    })
    return describe(answers)
  }

  async createTopic({ name, partitions, replicationFactor, config }: TopicToCreate): Promise<void> {
    await this.#native.call((client, done) => {
      client.createTopic(
        { topic: name, num_partitions: partitions, replication_factor: replicationFactor, config: { ...config } },
        this.#settings.connectTimeoutMs,
        done,
      )
    })
  }

  async createPartitions(topic: string, total: number): Promise<void> {
    await this.#native.call((client, done) => {
      client.createPartitions(topic, total, this.#settings.connectTimeoutMs, done)
    })
  }

  async topicConfigs(names: readonly string[]): Promise<ReadonlyMap<string, ReadonlyMap<string, string>>> {
    if (names.length === 0) return new Map()
    return this.#describeConfigs(names.map((name) => ({ type: ConfigResourceTypes.TOPIC, name })))
  }

  async changeTopicConfig(name: string, config: Readonly<Record<string, string>>): Promise<void> {
    await this.#lookUps.ask(async (admin) => {
      const type = ConfigResourceTypes.TOPIC
      // The request of kafkajs replaces all settings of the topic, so those that were set for it are sent again.
      const { resources } = await admin.describeConfigs({ resources: [{ type, name }], includeSynonyms: false })
      const own = (resources[0]?.configEntries ?? []).filter((entry) => (entry.configSource as number) === SET_FOR_TOPIC)
      const entries = new Map([...own.map(({ configName, configValue }) => [configName, configValue] as const), ...Object.entries(config)])
      await admin.alterConfigs({
        validateOnly: false,
        resources: [{ type, name, configEntries: [...entries].map(([key, value]) => ({ name: key, value })) }],
      })
    })
  }

  async brokerConfig(): Promise<ReadonlyMap<string, string>> {
    const { controller, brokers } = await this.#lookUps.ask((admin) => admin.describeCluster())
    const id = String(controller ?? brokers[0]?.nodeId ?? 1)
    return (await this.#describeConfigs([{ type: ConfigResourceTypes.BROKER, name: id }])).get(id) ?? new Map<string, string>()
  }

  async #describeConfigs(resources: { type: ConfigResourceType; name: string }[]): Promise<Map<string, ReadonlyMap<string, string>>> {
    const answer = await this.#lookUps.ask((admin) => admin.describeConfigs({ resources, includeSynonyms: false }))
    return new Map(
      answer.resources.map(({ resourceName, configEntries }) => [
        resourceName,
        new Map(configEntries.map(({ configName, configValue }) => [configName, configValue])),
      ]),
    )
  }

  async offsets(partitions: readonly TopicPartition[]): Promise<readonly PartitionOffsets[]> {
    const starts = await this.#listOffsets(partitions, OffsetSpec.EARLIEST, IsolationLevel.READ_UNCOMMITTED)
    const ends = await this.#listOffsets(partitions, OffsetSpec.LATEST, IsolationLevel.READ_UNCOMMITTED)
    return partitions.map(({ topic, partition }, index) => ({
      topic,
      partition,
      logStart: starts[index] ?? 0,
      highWatermark: ends[index] ?? 0,
    }))
  }

  lastStableOffsets(partitions: readonly TopicPartition[]): Promise<readonly number[]> {
    return this.#listOffsets(partitions, OffsetSpec.LATEST, IsolationLevel.READ_COMMITTED)
  }

  async #listOffsets(partitions: readonly TopicPartition[], offset: unknown, isolationLevel: number): Promise<readonly number[]> {
    if (partitions.length === 0) return []
    const answers = await this.#native.call<
      { topic: string; partition: number; offset: number; error?: { code: number; message: string } }[]
    >((client, done) => {
      client.listOffsets(
        partitions.map(({ topic, partition }) => ({ topic, partition, offset })),
        { timeout: this.#settings.connectTimeoutMs, isolationLevel },
        done,
      )
    })
    const byName = new Map(answers.map((answer) => [`${answer.topic}/${answer.partition}`, answer]))
    return partitions.map(({ topic, partition }) => {
      const answer = byName.get(`${topic}/${partition}`)
      if (answer === undefined)
        throw new BrokerError('admin', UNKNOWN_TOPIC_OR_PARTITION, `no offset was returned for ${topic}[${partition}]`)
      if (answer.error?.code === FENCED_LEADER_EPOCH) this.#native.renew()
      if (answer.error) throw new BrokerError('admin', answer.error.code, `offsets of ${topic}[${partition}]: ${answer.error.message}`)
      // Without an error and without an offset: the broker of that partition did not answer in time (seen: -1001, taken for the end of a log).
      if (answer.offset < 0) throw notKnownYet(`no offset of ${topic}[${partition}] yet (${answer.offset})`)
      return answer.offset
    })
  }

  /** By kafkajs, whose OffsetFetch is one without "require stable". The native client ends metadata with a zero byte when it writes them. */
  async groupOffsets(groupId: string, partitions: readonly TopicPartition[]): Promise<readonly CommittedOffset[]> {
    if (partitions.length === 0) return []
    const topics = [...new Set(partitions.map(({ topic }) => topic))]
    const answers = await this.#lookUps.ask((admin) => admin.fetchOffsets({ groupId, topics }))
    const found = new Map<string, CommittedOffset>()
    for (const { topic, partitions: ofTopic } of answers) {
      for (const { partition, offset, metadata } of ofTopic) {
        const at = Number(offset)
        found.set(`${topic}/${partition}`, {
          topic,
          partition,
          offset: at >= 0 ? at : undefined,
          metadata: (metadata ?? '').replace(/\0+$/, ''),
        })
      }
    }
    return partitions.map(
      ({ topic, partition }) => found.get(`${topic}/${partition}`) ?? { topic, partition, offset: undefined, metadata: '' },
    )
  }

  /**
   * By kafkajs: the native client dereferences a null string when the coordinator answers with an error, and the process dies by SIGSEGV (seen with the
   * coordinator killed). kafkajs does not read the instance id; our members have the same text as client id.
   */
  async describeGroup(groupId: string): Promise<GroupDescription> {
    const { groups } = await this.#lookUps.ask((admin) => admin.describeGroups([groupId]))
    const group = groups[0]
    if (group === undefined) return { stable: false, members: [] }
    return {
      stable: group.state === 'Stable',
      members: group.members.map(({ memberId, clientId, memberAssignment }) => ({
        memberId,
        instanceId: clientId,
        assigned: assignmentOf(memberAssignment),
      })),
    }
  }

  async close(): Promise<void> {
    await Promise.all([this.#native.close(), this.#lookUps.close()])
  }
}

function assignmentOf(bytes: Buffer): readonly TopicPartition[] {
  // A member that has not synchronised yet has none.
  const decoded = bytes.length === 0 ? null : AssignerProtocol.MemberAssignment.decode(bytes)
  return Object.entries(decoded?.assignment ?? {}).flatMap(([topic, partitions]) => partitions.map((partition) => ({ topic, partition })))
}

type Description = { name: string; error?: { code: number; message: string }; partitions: { partition: number; replicas: unknown[] }[] }

function describe(answers: readonly Description[]): readonly TopicDescription[] {
  const topics: TopicDescription[] = []
  for (const { name, error, partitions } of answers) {
    if (error && error.code === UNKNOWN_TOPIC_OR_PARTITION) continue
    if (error && error.code !== 0) throw new BrokerError('admin', error.code, `topic ${name}: ${error.message}`)
    topics.push({ name, partitions: partitions.length, replicationFactor: partitions[0]?.replicas.length ?? 0 })
  }
  return topics
}
