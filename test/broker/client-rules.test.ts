/**
 * Client and broker facts that need a broker of its own, where offsets and transactional ids expire within seconds and the broker itself ends no
 * transaction (CLIENT-FACTS 4, 24, 26, 27, 32; CASES F52). The long waits run beside the other tests of this file.
 */
import { Kafka, logLevel, type Admin, type Producer } from 'kafkajs'
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest'
import { startJvmBroker } from '../../scripts/broker-provider/jvm-broker.ts'
import type { ProvidedBroker } from '../../scripts/broker-provider/provider.ts'
import { createApp, type App } from '../../src/app.ts'
import type { Config } from '../../src/config/define.ts'
import { topology } from '../../src/topology/index.ts'
import { appOf, dedupeTopology, events, eventTopic, idOf, QUICK, startApp, temporaryFolder, type Scene } from '../helpers/apps.ts'
import { workerChild } from '../helpers/children.ts'
import { until } from '../helpers/condition.ts'
import { fieldChild } from '../helpers/field-children.ts'
import { notOnce, readAll, unique } from '../helpers/kafka.ts'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const names = (prefix: string, count: number): string[] => Array.from({ length: count }, (_, index) => `${prefix}${index}`)
/** As short as the rules across options allow. */
const SHORT: Partial<Config> = {
  ...QUICK,
  transactionTimeout: '1s',
  sessionTimeout: '11s',
  heartbeatInterval: '500ms',
  maxPollInterval: '60s',
}

describe.skipIf(inject('javaTools')?.via !== 'classpath')('a broker that forgets soon', () => {
  let broker: ProvidedBroker
  let kafka: Kafka
  let admin: Admin
  let producer: Producer
  /** Idle from the start of this file to its last test. */
  let idle: { place: Scene; app: App; aborts: string[] }

  beforeAll(async () => {
    broker = await startJvmBroker({
      nodes: 1,
      heapMiB: 256,
      serverProperties: {
        'offsets.retention.minutes': '1',
        'offsets.retention.check.interval.ms': '1000',
        // Longer than a session, so that it is not this that stops a zombie; shorter than the turn of an idle ring of four.
        'transactional.id.expiration.ms': '30000',
        'transaction.remove.expired.transaction.cleanup.interval.ms': '1000',
        // Whoever ends a transaction here, it is not the broker's scan.
        'transaction.abort.timed.out.transaction.cleanup.interval.ms': '600000',
        'auto.create.topics.enable': 'true',
      },
    })
    kafka = new Kafka({
      brokers: [broker.brokers],
      logLevel: logLevel.NOTHING,
      retry: { retries: 20, initialRetryTime: 100, maxRetryTime: 1_000 },
    })
    admin = kafka.admin()
    await admin.connect()
    producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, allowAutoTopicCreation: false })
    await producer.connect()
    idle = await startIdle()
  })
  afterAll(async () => {
    await idle?.app.close({ timeout: '20s' }).catch(() => undefined)
    if (idle !== undefined) rmSync(idle.place.stateDir, { recursive: true, force: true })
    await producer?.disconnect()
    await admin?.disconnect()
    await broker?.stop()
  })

  async function ownScene(name: string, partitions: number, stateDir = temporaryFolder()): Promise<Scene> {
    const application = unique(name)
    const place = { application, input: `${application}.in`, output: `${application}.out`, stateDir }
    const topics = [place.input, place.output, `${application}.failed`]
    await admin.createTopics({ topics: topics.map((topic) => ({ topic, numPartitions: partitions })) })
    await until('the topics', async () => {
      const found = await admin.fetchTopicMetadata({ topics }).catch(() => undefined)
      return (
        found?.topics.every((topic) => topic.partitions.length === partitions && topic.partitions.every(({ leader }) => leader >= 0)) ??
        false
      )
    })
    return place
  }
  const send = (place: Scene, ...batches: { key: string; value: string }[][]) =>
    producer.send({ topic: place.input, acks: -1, messages: batches.flat() })
  const offsetsOf = async (group: string, topic: string): Promise<number[]> => {
    const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
    return (found?.partitions ?? []).toSorted((x, y) => x.partition - y.partition).map(({ offset }) => Number(offset))
  }
  const endsOf = async (topic: string): Promise<Map<number, number>> =>
    new Map((await admin.fetchTopicOffsets(topic)).map(({ partition, high }) => [partition, Number(high)]))
  const caughtUp = (place: Scene) =>
    until(`lag 0 of ${place.application}`, async () => {
      const offsets = await offsetsOf(place.application, place.input)
      const ends = await endsOf(place.input)
      return offsets.every((offset, partition) => offset === ends.get(partition))
    })
  const outputOf = async (place: Scene): Promise<string[]> =>
    (await readAll(place.output, { brokers: broker.brokers, ends: await endsOf(place.output) })).map(({ value }) => idOf(value))

  async function startIdle(): Promise<typeof idle> {
    const place = await ownScene('keepalive', 1, mkdtempSync(join(tmpdir(), 'millrace-test-')))
    const aborts: string[] = []
    const logger = { debug() {}, info() {}, error() {}, warn: (_: object, message: string) => void aborts.push(message) }
    // Without state, whose flush would commit the offsets once more.
    const forward = topology(place.application, ({ stream }) => stream(eventTopic(place.input)).to(eventTopic(place.output)))
    const app = createApp(forward, {
      brokers: broker.brokers,
      instance: 'test',
      stateDir: place.stateDir,
      producerRingSize: 4,
      ...SHORT,
      logger,
    })
    await app.start()
    await send(place, events('a', 10))
    await caughtUp(place)
    // An offset that nobody commits again, for a topic the group does not subscribe to either: as ours, but not kept alive.
    const other = kafka.producer({ transactionalId: unique('canary'), idempotent: true, maxInFlightRequests: 1 })
    await other.connect()
    const transaction = await other.transaction()
    await transaction.sendOffsets({
      consumerGroupId: place.application,
      topics: [{ topic: place.output, partitions: [{ partition: 0, offset: '1' }] }],
    })
    await transaction.commit()
    await other.disconnect()
    expect(await offsetsOf(place.application, place.output)).toEqual([1])
    return { place, app, aborts }
  }

  test('F52: where the broker makes topics by itself, a missing output is refused all the same, and is not made', async () => {
    const place = await ownScene('automatic', 1)
    const output = `${place.application}.missing`
    const { app } = appOf(dedupeTopology({ ...place, output }), { brokers: broker.brokers, stateDir: place.stateDir, ...SHORT })
    await expect(app.start()).rejects.toMatchObject({
      name: 'ConfigError',
      code: 'topic-missing',
      message: expect.stringContaining(output),
    })
    expect(await admin.listTopics()).not.toContain(output)
  })

  test('CF4, CF24, X3: a worker that was stopped in mid-transaction past its session, while another one took over, commits nothing when it wakes: the group refuses its offsets', async () => {
    const place = await ownScene('zombie', 1)
    await send(place, events('a', 200))
    const config = { ...SHORT, brokers: broker.brokers, transactionMaxRecords: 50 } as const
    const zombie = workerChild(place, config, { operation: 'beginTransaction', when: 'after', call: 4, signal: 'SIGSTOP' })
    await zombie.says('commit', 2)
    const owner = await startApp(dedupeTopology(place), { ...config, stateDir: temporaryFolder(), instance: 'owner' })
    await until('the owner has it all', () => owner.app.status().tasks === 1 && owner.app.state === 'running')
    await caughtUp(place)
    // It has records polled and a transaction begun, and no other producer has its id: only the group stands between it and a commit.
    zombie.signal('SIGCONT')
    await zombie.says('revoked')
    await send(place, events('a', 200), events('b', 100))
    await caughtUp(place)
    expect(notOnce(await outputOf(place), [...names('a', 200), ...names('b', 100)])).toEqual({})
    expect(owner.app.state).toBe('running')
    expect(owner.log.map(({ message }) => message)).not.toContainEqual(expect.stringContaining('a producer was fenced'))
  })

  test('CF32: a handler that blocks the event loop for longer than the session time-out is still a member; a worker that joins meanwhile waits for it, and nothing is doubled', async () => {
    const place = await ownScene('blocked', 2)
    await send(place, events('a', 100))
    const config = { ...SHORT, brokers: broker.brokers }
    const blocked = fieldChild(place, { mark: 'a50', onMark: 'block', blockMs: 12_000, failed: `${place.application}.failed` }, config)
    await blocked.says('running')
    const joined = await startApp(dedupeTopology(place), { ...config, stateDir: temporaryFolder(), instance: 'other' })
    await until('shared', () => joined.app.status().tasks === 1)
    expect(blocked.of('marked').length).toBeGreaterThan(0)
    await send(place, events('a', 100), events('b', 100))
    await caughtUp(place)
    expect(blocked.of('revoked').map(({ lost }) => lost)).toEqual([false])
    expect(notOnce(await outputOf(place), [...names('a', 100), ...names('b', 100)])).toEqual({})
  })

  test(
    'CF26, CF27: an idle worker keeps its offsets while others of the same group expire, though its transactional ids expire in between',
    { timeout: 180_000 },
    async () => {
      const { place, app, aborts } = idle
      await until('the other offset has expired', async () => (await offsetsOf(place.application, place.output))[0] === -1, 150_000)
      expect(await offsetsOf(place.application, place.input)).toEqual([10])
      expect(app.state).toBe('running')
      expect(aborts).toContainEqual(expect.stringContaining('the transactional id expired'))
      await send(place, events('b', 10))
      await caughtUp(place)
      expect(notOnce(await outputOf(place), [...names('a', 10), ...names('b', 10)])).toEqual({})
    },
  )
})
