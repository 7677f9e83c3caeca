/** The broker contract: topics, their settings, offsets and groups, as the admin sees them. */
import { expect } from 'vitest'
import { classify } from '../../src/errors/classify.ts'
import { NOT_KNOWN_YET, TIMED_OUT, UNKNOWN_TOPIC_OR_PARTITION } from '../../src/errors/broker-codes.ts'
import { bytes, failureOf, LIMIT_MS } from './broker-scene.ts'
import type { ContractTest } from './broker-suite.ts'

const TOPIC_ALREADY_EXISTS = 36
const INVALID_PARTITIONS = 37
/** Of a record for a topic that does not exist. */
const SHORT_MS = 1_000

export function adminContract(it: ContractTest): void {
  it('a topic is made with its partitions and settings, and only once', async ({ scene }) => {
    const { admin } = scene.main.broker
    const topic = { name: scene.name('made'), partitions: 3, replicationFactor: -1, config: { 'cleanup.policy': 'compact' } }
    await admin.createTopic(topic)
    await scene.until('its description', async () => (await admin.describeTopics([topic.name])).length === 1)
    expect(await admin.describeTopics([topic.name])).toEqual([{ name: topic.name, partitions: 3, replicationFactor: 1 }])
    expect((await admin.topicConfigs([topic.name])).get(topic.name)?.get('cleanup.policy')).toBe('compact')
    expect((await failureOf(admin.createTopic(topic))).code).toBe(TOPIC_ALREADY_EXISTS)
  })

  it('topics that do not exist are left out of a description', async ({ scene }) => {
    const { admin } = scene.main.broker
    const topic = await scene.topic(2)
    const found = await admin.describeTopics([scene.name('missing'), topic])
    expect(found.map(({ name, partitions }) => ({ name, partitions }))).toEqual([{ name: topic, partitions: 2 }])
    expect(await admin.describeTopics([])).toEqual([])
  })

  it('a topic grows to a total, and only grows', async ({ scene }) => {
    const { admin } = scene.main.broker
    const topic = await scene.topic(2)
    expect((await failureOf(admin.createPartitions(topic, 2))).code).toBe(INVALID_PARTITIONS)
    expect((await failureOf(admin.createPartitions(topic, 1))).code).toBe(INVALID_PARTITIONS)
    await admin.createPartitions(topic, 3)
    await scene.until('three partitions', async () => (await admin.describeTopics([topic]))[0]?.partitions === 3)
  })

  it('a setting is changed, and the others stay as they are', async ({ scene }) => {
    const { admin } = scene.main.broker
    const topic = await scene.topic(1, { 'max.message.bytes': '5000', 'delete.retention.ms': '1000' })
    await admin.changeTopicConfig(topic, { 'max.message.bytes': '6000' })
    await scene.until('the change', async () => (await admin.topicConfigs([topic])).get(topic)?.get('max.message.bytes') === '6000')
    const config = (await admin.topicConfigs([topic])).get(topic)
    expect(config?.get('delete.retention.ms')).toBe('1000')
    expect(config?.get('cleanup.policy')).toBe('delete')
    expect(config?.get('message.timestamp.type')).toBe('CreateTime')
    expect(Number(config?.get('message.timestamp.after.max.ms'))).toBe(3_600_000)
  })

  it('settings and offsets of a topic that does not exist are refused', async ({ scene }) => {
    const { admin } = scene.main.broker
    const missing = scene.name('missing')
    const topic = await scene.topic()
    // It may have been made a moment ago: asked again by those who know that it was.
    for (const ask of [
      () => admin.topicConfigs([topic, missing]),
      () => admin.changeTopicConfig(missing, { 'max.message.bytes': '6000' }),
      () => admin.offsets([{ topic: missing, partition: 0 }]),
      () => admin.offsets([{ topic, partition: 5 }]),
      () => admin.lastStableOffsets([{ topic: missing, partition: 0 }]),
    ]) {
      const failure = await failureOf(ask())
      expect(failure.code).toBe(NOT_KNOWN_YET)
      expect(classify(failure).reaction).toBe('retriable')
    }
    expect((await failureOf(admin.createPartitions(missing, 3))).code).toBe(UNKNOWN_TOPIC_OR_PARTITION)
  })

  it('offsets say where the log starts and ends, in the order asked', async ({ scene }) => {
    const { admin } = scene.main.broker
    const topic = await scene.topic(2)
    await scene.world.append(topic, 0, ['a', 'b', 'c'])
    await scene.world.append(topic, 1, ['d'])
    await scene.world.deleteBefore(topic, 0, 2)
    const asked = [
      { topic, partition: 1 },
      { topic, partition: 0 },
    ]
    expect(await admin.offsets(asked)).toEqual([
      { topic, partition: 1, logStart: 0, highWatermark: 1 },
      { topic, partition: 0, logStart: 2, highWatermark: 3 },
    ])
    expect(await admin.lastStableOffsets(asked)).toEqual([1, 3])
    expect(await admin.offsets([])).toEqual([])
    expect(await admin.lastStableOffsets([])).toEqual([])
  })

  it('the broker tells the settings that are checked at start', async ({ scene }) => {
    const config = await scene.main.broker.admin.brokerConfig()
    for (const name of [
      'transaction.max.timeout.ms',
      'group.min.session.timeout.ms',
      'group.max.session.timeout.ms',
      'offsets.retention.minutes',
    ])
      expect([name, Number(config.get(name)) > 0]).toEqual([name, true])
  })

  it('a group that nobody ever joined is not stable and has no members', async ({ scene }) => {
    expect(await scene.main.broker.admin.describeGroup(scene.name('nobody'))).toEqual({ stable: false, members: [] })
  })

  it('a group whose members left is not stable, has none, and keeps its offsets', async ({ scene }) => {
    const { admin } = scene.main.broker
    const topic = await scene.topic()
    const member = await scene.member({ topic })
    await member.owns(0)
    const producer = await scene.producer()
    await producer.begin()
    await producer.sendOffsets(member.consumer, [member.next(5, 'kept')], LIMIT_MS)
    await producer.commit(LIMIT_MS)
    await member.committed()
    member.consumer.unsubscribe()
    await scene.until('nobody is left', async () => (await admin.describeGroup(scene.group)).members.length === 0)
    expect(await admin.describeGroup(scene.group)).toEqual({ stable: false, members: [] })
    expect(await scene.groupOffset(topic)).toEqual({ offset: 5, metadata: 'kept' })
  })

  it('offsets of a group that never was are none', async ({ scene }) => {
    const topic = await scene.topic()
    expect(await scene.main.broker.admin.groupOffsets(scene.name('nobody'), [{ topic, partition: 0 }])).toEqual([
      { topic, partition: 0, offset: undefined, metadata: '' },
    ])
    expect(await scene.main.broker.admin.groupOffsets(scene.name('nobody'), [])).toEqual([])
  })

  it('a single record is written outside of any transaction', async ({ scene }) => {
    const topic = await scene.topic(2)
    await scene.main.broker.writeRecord(topic, 1, bytes('k'), bytes('x'), LIMIT_MS)
    await scene.main.broker.writeRecord(topic, 1, bytes('k'), bytes('y'), LIMIT_MS)
    expect(await scene.world.committedRecords(topic)).toMatchObject([
      { partition: 1, offset: 0, key: 'k', value: 'x', headers: [] },
      { partition: 1, offset: 1, key: 'k', value: 'y', headers: [] },
    ])
  })

  it('a single record for a topic that does not exist times out', async ({ scene }) => {
    const written = scene.main.broker.writeRecord(scene.name('missing'), 0, bytes('k'), bytes('x'), SHORT_MS)
    expect((await failureOf(written)).code).toBe(TIMED_OUT)
  })

  it('a single record above the limit of its topic is refused', async ({ scene }) => {
    const topic = await scene.topic(1, { 'max.message.bytes': '2000' })
    expect((await failureOf(scene.main.broker.writeRecord(topic, 0, bytes('k'), Buffer.alloc(5_000), LIMIT_MS))).code).toBe(10)
    expect(await scene.world.committedRecords(topic)).toEqual([])
  })
}
