import { execFileSync, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { dirname } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Kafka, logLevel, type Admin } from 'kafkajs'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { processIsAlive } from '../../scripts/bootstrap/file-lock.mjs'
import { consoleConsumer, GET_OFFSETS, javaTool, TOPIC_COMMAND, type ConsumedRecord } from '../../scripts/broker-provider/provider.ts'
import { describeCluster } from '../../scripts/broker-provider/cluster-check.ts'
import { readClusterView } from '../../scripts/broker-provider/metadata-request.ts'
import { startJvmBroker } from '../../scripts/broker-provider/jvm-broker.ts'
import { until } from '../helpers/condition.ts'
import { startKafkaProxy, type KafkaProxy } from '../helpers/kafka-proxy/kafka-proxy.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const provider = new URL('../../scripts/broker-provider/jvm-broker.ts', import.meta.url).href

describe('the shared broker', () => {
  const topic = `provider-${process.pid}`
  const kafka = new Kafka({ brokers: inject('brokers').split(','), logLevel: logLevel.NOTHING })
  const tools = inject('javaTools')

  beforeAll(async () => {
    const admin = kafka.admin()
    await admin.connect()
    await admin.createTopics({
      // A record of 2023 would be deleted by its age as soon as the broker looks for such.
      topics: [{ topic, numPartitions: 2, replicationFactor: 1, configEntries: [{ name: 'retention.ms', value: '-1' }] }],
      waitForLeaders: true,
    })
    await admin.disconnect()
    const committed = kafka.producer({ transactionalId: `${topic}-a`, maxInFlightRequests: 1, idempotent: true })
    await committed.connect()
    const first = await committed.transaction()
    await first.send({
      topic,
      messages: [
        { partition: 0, key: 'k', value: 'ümlaut', timestamp: '1700000000000' },
        { partition: 1, key: null, value: null },
        { partition: 1, key: '', value: '' },
      ],
    })
    await first.commit()
    const second = await committed.transaction()
    await second.send({ topic, messages: [{ partition: 0, key: 'k', value: 'aborted' }] })
    await second.abort()
    await committed.disconnect()
  })

  afterAll(async () => {
    const admin = kafka.admin()
    await admin.connect()
    await admin.deleteTopics({ topics: [topic] })
    await admin.disconnect()
  })

  it.skipIf(tools === null)('is read by the console consumer: committed records with partition, offset, time, key and value', async () => {
    const records: ConsumedRecord[] = []
    for await (const record of consoleConsumer(tools!, { topic })) records.push(record)
    records.sort((a, b) => a.partition - b.partition || a.offset - b.offset)
    expect(records).toEqual([
      { partition: 0, offset: 0, timestamp: 1_700_000_000_000, key: 'k', value: 'ümlaut' },
      { partition: 1, offset: 0, timestamp: expect.any(Number), key: null, value: null },
      { partition: 1, offset: 1, timestamp: expect.any(Number), key: '', value: '' },
    ])
  })

  it.skipIf(tools === null)('is read uncommitted, one partition only, when asked for', async () => {
    const values: (string | null)[] = []
    for await (const record of consoleConsumer(tools!, { topic, isolation: 'read_uncommitted', partition: 0 })) values.push(record.value)
    expect(values).toEqual(['ümlaut', 'aborted'])
  })

  it.skipIf(tools === null)('gives a reader of a topic that does not exist an error that names it', async () => {
    const read = async (): Promise<void> => {
      for await (const _record of consoleConsumer(tools!, { topic: `${topic}-none`, idleMs: 5_000 }));
    }
    await expect(read()).rejects.toThrow(new RegExp(`${topic}-none`))
  })

  it.skipIf(tools === null)('answers the Java tools, whose exit code and output come back', async () => {
    const offsets = await javaTool(tools!, GET_OFFSETS, ['--topic', topic])
    expect(offsets).toMatchObject({ code: 0 })
    // Two records, one of them aborted, and the markers of both transactions.
    expect(offsets.stdout).toContain(`${topic}:0:4`)
    const failing = await javaTool(tools!, TOPIC_COMMAND, ['--describe', '--topic', `${topic}-none`])
    expect(failing.code).not.toBe(0)
  })
})

/** These start JVMs of their own, whatever the shared broker is: three of them on a busy machine take their time. */
describe('a broker of JVMs', { timeout: 300_000 }, () => {
  it('of three nodes survives the loss of one, which comes back with its data', async () => {
    const broker = await startJvmBroker({ nodes: 3, topicDefaults: { 'retention.ms': '3600000' } })
    const folder = dataFolderOf(broker.nodes[0]?.pid)
    try {
      const kafka = new Kafka({ brokers: broker.brokers.split(','), logLevel: logLevel.NOTHING })
      const admin = kafka.admin()
      await admin.connect()
      await createReplicatedTopic(admin, 't')
      const settings = await admin.describeConfigs({
        includeSynonyms: false,
        resources: [{ type: 2, name: 't', configNames: ['retention.ms', 'min.insync.replicas'] }],
      })
      expect(Object.fromEntries(settings.resources[0]!.configEntries.map((entry) => [entry.configName, entry.configValue]))).toEqual({
        'retention.ms': '3600000',
        'min.insync.replicas': '2',
      })
      const producer = kafka.producer()
      await producer.connect()
      await producer.send({ topic: 't', acks: -1, messages: [{ value: 'before' }] })
      const victim = broker.nodes[2]!
      const pid = victim.pid!
      await victim.kill('SIGKILL')
      expect(processIsAlive(pid)).toBe(false)
      expect(victim.pid).toBeUndefined()
      await producer.send({ topic: 't', acks: -1, messages: [{ value: 'during' }] })
      await victim.start()
      expect(victim.pid).not.toBe(pid)
      expect((await admin.describeCluster()).brokers).toHaveLength(3)
      await producer.disconnect()
      await admin.disconnect()
      const values: (string | null)[] = []
      for await (const record of consoleConsumer(broker.java!, { topic: 't' })) values.push(record.value)
      expect(values.sort()).toEqual(['before', 'during'])
    } finally {
      const pids = broker.nodes.map((node) => node.pid)
      await broker.stop()
      expect(pids.filter((pid) => pid !== undefined && processIsAlive(pid))).toEqual([])
      expect(existsSync(folder)).toBe(false)
    }
  })

  it('of three nodes behind proxies: clients know the proxies only, the direct listener passes them by, a killed node comes back in sync', async () => {
    const proxies = new Map<number, KafkaProxy>()
    const broker = await startJvmBroker({
      nodes: 3,
      // Else a node that was killed is waited for until its session is over.
      serverProperties: { 'broker.session.timeout.ms': '3000', 'broker.heartbeat.interval.ms': '500' },
      advertise: async ({ id, address }) => {
        const proxy = proxies.get(id) ?? (await startKafkaProxy())
        proxies.set(id, proxy)
        proxy.connectTo(address)
        return proxy.address
      },
    })
    const advertised = [...proxies.values()].map(({ address }) => address).sort()
    const membersAt = async (brokers: string): Promise<string[]> =>
      (await describeCluster(brokers)).map(({ host, port }) => `${host}:${port}`).sort()
    try {
      expect(broker.brokers.split(',').sort()).toEqual(advertised)
      expect(await membersAt(broker.brokers)).toEqual(advertised)
      const direct = broker.directBrokers.split(',').sort()
      expect(await membersAt(broker.directBrokers)).toEqual(direct)
      expect(direct.filter((address) => advertised.includes(address))).toEqual([])

      for (const proxy of proxies.values()) proxy.drop()
      const kafka = new Kafka({
        brokers: direct,
        logLevel: logLevel.NOTHING,
        retry: { retries: 20, initialRetryTime: 50, maxRetryTime: 500 },
      })
      const admin = kafka.admin()
      await admin.connect()
      await createReplicatedTopic(admin, 't')
      const producer = kafka.producer()
      await producer.connect()
      const victim = broker.nodes[1]!
      await victim.kill('SIGKILL')
      await producer.send({
        topic: 't',
        acks: -1,
        messages: Array.from({ length: 30 }, (_, partition) => ({ partition: partition % 3, value: 'v' })),
      })
      await victim.start()
      expect(await outOfSync(broker.directBrokers.split(',')[1] ?? '', 't', victim.id)).toEqual([])
      await producer.disconnect()
      await admin.disconnect()

      for (const proxy of proxies.values()) proxy.restore()
      expect(await membersAt(broker.brokers)).toEqual(advertised)
    } finally {
      await broker.stop()
      await Promise.all([...proxies.values()].map((proxy) => proxy.close()))
    }
  })

  it.each(['SIGKILL', 'SIGINT', 'an uncaught exception'] as const)('does not outlive a parent that is ended by %s', async (end) => {
    const script = `
      import { startJvmBroker } from ${JSON.stringify(provider)}
      const broker = await startJvmBroker({ nodes: 1, heapMiB: 256 })
      console.log(JSON.stringify({ pid: broker.nodes[0].pid }))
      process.stdin.once('data', () => { throw new Error('on purpose') })`
    const parent = spawn(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', script], {
      cwd: root,
      stdio: ['pipe', 'pipe', 'ignore'],
    })
    const exit = new Promise<void>((resolve) => parent.once('exit', () => resolve()))
    const pid = await firstLine(parent.stdout).then((line) => (JSON.parse(line) as { pid: number }).pid)
    const folder = dataFolderOf(pid)
    expect(processIsAlive(pid)).toBe(true)
    expect(existsSync(folder)).toBe(true)
    if (end === 'an uncaught exception') parent.stdin.write('now\n')
    else parent.kill(end)
    await exit
    // The keeper sees the end of its pipe; the test's own time-out is the limit.
    while (processIsAlive(pid) || existsSync(folder)) await delay(50)
  })
})

/** Not with `waitForLeaders`: that gives up when the broker it asks has not heard of the topic yet. */
async function createReplicatedTopic(admin: Admin, topic: string): Promise<void> {
  await admin.createTopics({ waitForLeaders: false, topics: [{ topic, numPartitions: 3, replicationFactor: 3 }] })
  await until(`leaders of ${topic}`, async () => {
    const found = await admin.fetchTopicMetadata({ topics: [topic] }).catch(() => undefined)
    return found?.topics[0]?.partitions.length === 3 && found.topics[0].partitions.every(({ leader }) => leader >= 0)
  })
}

/** Partitions of the topic in which the node is not in sync, by the account of the broker at the address. */
async function outOfSync(address: string, topic: string, node: number): Promise<number[]> {
  const partitions = (await readClusterView(address, 10_000)).partitions.filter((each) => each.topic === topic)
  expect(partitions).toHaveLength(3)
  return partitions.filter(({ inSync }) => !inSync.includes(node)).map(({ partition }) => partition)
}

/** The data folder of a broker by its command line: the properties file is its last argument. */
function dataFolderOf(pid: number | undefined): string {
  const args = execFileSync('ps', ['-ww', '-o', 'args=', '-p', String(pid)], { encoding: 'utf8' })
    .trim()
    .split(' ')
  const properties = args.find((argument) => argument.endsWith('.properties'))
  if (properties === undefined) throw new Error(`process ${pid} is no broker: ${args.join(' ')}`)
  return dirname(properties)
}

async function firstLine(stream: NodeJS.ReadableStream): Promise<string> {
  for await (const line of createInterface({ input: stream })) return line
  throw new Error('the parent ended before its broker was ready')
}
