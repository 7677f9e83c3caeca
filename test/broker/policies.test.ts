/** The policies a user can set, on a real broker: each goes on only because it was told to, and says what it passed over (X6). */
import { closeSync, openSync, readdirSync, readFileSync, readSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { ConfigResourceTypes, Kafka, logLevel } from 'kafkajs'
import { afterAll, describe, expect, onTestFinished, test } from 'vitest'
import { provideBroker } from '../../scripts/broker-provider/provider.ts'
import { createApp } from '../../src/app.ts'
import { topology } from '../../src/topology/index.ts'
import { dedupeTopology, eventTopic, events, idOf, processed, scene, startApp, temporaryFolder, type Scene } from '../helpers/apps.ts'
import { until } from '../helpers/condition.ts'
import { disconnectKafka, kafka, notOnce, readAll, send, sharedAdmin, unique } from '../helpers/kafka.ts'

afterAll(disconnectKafka)

const configOf = ({ application, stateDir }: Scene) => ({ applicationId: application, stateDir })
/** One record in a transaction that stays open until it is aborted, at the latest at the end of the test. */
async function openTransaction() {
  const producer = kafka.producer({
    idempotent: true,
    maxInFlightRequests: 1,
    transactionalId: unique('holder'),
  })
  await producer.connect()
  const transaction = await producer.transaction()
  const abort = async (): Promise<void> => {
    if (transaction.isActive()) await transaction.abort()
  }
  onTestFinished(async () => {
    await abort().catch(() => undefined)
    await producer.disconnect()
  })
  return { abort, hold: (topic: string) => transaction.send({ topic, messages: [{ key: 'h', value: 'h', partition: 0 }] }) }
}

const idsOf = async ({ output }: Scene): Promise<string[]> => (await readAll(output)).map(({ value }) => idOf(value))

describe('offsetOutOfRange', () => {
  test.each([
    ['earliest', ['b']],
    ['latest', []],
  ] as const)(
    "'%s': records deleted before they were processed are passed over and counted; the rest is processed",
    async (policy, then) => {
      const where = await scene(`range-${policy}`, 1)
      await send(where.input, events('a', 10))
      const first = await startApp(dedupeTopology(where), configOf(where))
      await processed(where, first)
      await first.app.close()
      // Five more, of which the first three are deleted while the worker is down.
      await send(where.input, events('gone', 3))
      await send(where.input, events('b', 2))
      await (await sharedAdmin()).deleteTopicRecords({ topic: where.input, partitions: [{ partition: 0, offset: '13' }] })
      const second = await startApp(dedupeTopology(where), { ...configOf(where), offsetOutOfRange: policy })
      await processed(where, second)
      await send(where.input, events('c', 4))
      await processed(where, second)
      const expected = [...events('a', 10), ...(then.length > 0 ? events('b', 2) : []), ...events('c', 4)].map(({ value }) => idOf(value))
      expect(notOnce(await idsOf(where), expected)).toEqual({})
      expect(second.app.status().offsetsPassedOver).toBe(policy === 'earliest' ? 3 : 5)
      expect(second.log.filter(({ level, message }) => level === 'error' && message.startsWith('offset out of range'))).toHaveLength(1)
    },
  )

  test.each(['earliest', 'latest'] as const)(
    "'%s': a running worker that finds its next records deleted goes on in the same process, with the count of what it passed over",
    async (policy) => {
      const where = await scene(`range-running-${policy}`, 1)
      const log = (level: string, message: string): boolean => level === 'error' && message.startsWith('offset out of range')
      await send(where.input, events('a', 10))
      const worker = await startApp(dedupeTopology(where), { ...configOf(where), offsetOutOfRange: policy })
      await processed(where, worker)
      // An open transaction keeps the worker from reading what comes, so that its next records can be deleted in front of it.
      const holder = await openTransaction()
      await holder.hold(where.input)
      await send(where.input, events('b', 5))
      await (await sharedAdmin()).deleteTopicRecords({ topic: where.input, partitions: [{ partition: 0, offset: '13' }] })
      await until('the policy to be applied', () => worker.log.some(({ level, message }) => log(level, message)))
      await holder.abort()
      await send(where.input, events('c', 4))
      await processed(where, worker)
      // Offset 10 was the holder's; 11 and 12 were b-0 and b-1.
      const rest = policy === 'earliest' ? events('b', 5).slice(2) : []
      const expected = [...events('a', 10), ...rest, ...events('c', 4)].map(({ value }) => idOf(value))
      expect(notOnce(await idsOf(where), expected)).toEqual({})
      expect(worker.app.status()).toMatchObject({ state: 'running', offsetsPassedOver: policy === 'earliest' ? 3 : 6 })
    },
  )
})

describe('changelogs', () => {
  test("changelogMissing 'recreate': a deleted changelog begins empty, and so does the store: ids of before pass again, new ones once", async () => {
    const where = await scene('recreate', 2)
    await send(where.input, events('a', 10))
    const first = await startApp(dedupeTopology(where), configOf(where))
    await processed(where, first)
    await first.app.close()
    const changelog = `${where.application}-dedupe-changelog`
    await (await sharedAdmin()).deleteTopics({ topics: [changelog] })
    await until('the changelog to be gone', async () => !(await (await sharedAdmin()).listTopics()).includes(changelog))
    const second = await startApp(dedupeTopology(where), { ...configOf(where), changelogMissing: 'recreate' })
    await send(where.input, [...events('a', 10), ...events('b', 5), ...events('b', 5)])
    await processed(where, second)
    const twice = new Set(events('a', 10).map(({ value }) => idOf(value)))
    const ids = await idsOf(where)
    expect(ids.filter((id) => !twice.has(id)).sort()).toEqual(events('b', 5).map(({ value }) => idOf(value)))
    expect(ids.filter((id) => twice.has(id))).toHaveLength(20)
    expect(second.log.some(({ level, message }) => level === 'error' && message.includes('created empty'))).toBe(true)
  })

  test("changelogSettings 'repair': another cleanup policy is set back, the topic's other settings stay, and state goes on", async () => {
    const where = await scene('repair', 1)
    await send(where.input, events('a', 10))
    const first = await startApp(dedupeTopology(where), configOf(where))
    await processed(where, first)
    await first.app.close()
    const changelog = `${where.application}-dedupe-changelog`
    const admin = await sharedAdmin()
    await admin.alterConfigs({
      validateOnly: false,
      resources: [
        {
          type: ConfigResourceTypes.TOPIC,
          name: changelog,
          configEntries: [
            { name: 'cleanup.policy', value: 'delete' },
            { name: 'min.cleanable.dirty.ratio', value: '0.3' },
          ],
        },
      ],
    })
    const second = await startApp(dedupeTopology(where), { ...configOf(where), changelogSettings: 'repair' })
    await send(where.input, [...events('a', 10), ...events('b', 1)])
    await processed(where, second)
    expect(
      notOnce(
        await idsOf(where),
        [...events('a', 10), ...events('b', 1)].map(({ value }) => idOf(value)),
      ),
    ).toEqual({})
    const { resources } = await admin.describeConfigs({
      resources: [{ type: ConfigResourceTypes.TOPIC, name: changelog }],
      includeSynonyms: false,
    })
    const settings = new Map(resources[0]?.configEntries.map(({ configName, configValue }) => [configName, configValue]))
    expect([settings.get('cleanup.policy'), settings.get('min.cleanable.dirty.ratio')]).toEqual(['compact', '0.3'])
  })
})

/** Flips a byte in the middle of the last batch of a log, on the disk of a broker that is down. */
function damageLog(pid: number, topicPartition: string): void {
  const properties =
    readFileSync(`/proc/${pid}/cmdline`, 'utf8')
      .split('\0')
      .find((argument) => argument.endsWith('.properties')) ?? ''
  const folder = /^log\.dirs=(.*)$/m.exec(readFileSync(properties, 'utf8'))?.[1] ?? ''
  const segment = readdirSync(join(folder, topicPartition)).find((name) => name.endsWith('.log')) ?? ''
  const file = openSync(join(folder, topicPartition, segment), 'r+')
  const bytes = Buffer.alloc(1 << 20)
  const length = readSync(file, bytes, 0, bytes.length, 0)
  // Every batch begins with its base offset and its length; the marked record lies inside the value.
  const at = bytes.subarray(0, length).indexOf('damaged')
  writeSync(file, Buffer.from('D'), 0, 1, at)
  closeSync(file)
}

describe('corruptedRecord', () => {
  test('bytes damaged on the broker: fail stops the worker before the batch and names its offset; deliver hands the bytes to the codecs', async () => {
    await using broker = await provideBroker({ nodes: 1 })
    const pid = broker.nodes[0]?.pid
    if (broker.kind !== 'jvm' || pid === undefined) return // only a broker of this machine has its disk here
    const kafka = new Kafka({ brokers: broker.brokers.split(','), logLevel: logLevel.NOTHING })
    const admin = kafka.admin()
    const producer = kafka.producer()
    await admin.connect()
    await producer.connect()
    const application = unique('corrupted')
    const [input, output] = [`${application}.in`, `${application}.out`]
    await admin.createTopics({ topics: [input, output].map((topic) => ({ topic, numPartitions: 1, replicationFactor: 1 })) })
    for (const id of ['a', 'damaged', 'b'])
      await producer.send({ topic: input, acks: -1, messages: [{ key: 'k', value: JSON.stringify({ id }) }] })
    damageLog(pid, `${input}-0`)
    const stateDir = temporaryFolder()
    const app = (corruptedRecord: 'fail' | 'deliver') =>
      createApp(
        topology(application, ({ stream }) =>
          stream(eventTopic(input))
            .filter(() => true)
            .to(eventTopic(output)),
        ),
        { brokers: broker.brokers, instance: 'test', stateDir, corruptedRecord },
      )
    const failing = app('fail')
    await failing.start()
    await expect(failing.finished).rejects.toMatchObject({
      code: 'corrupted-record',
      message: expect.stringContaining('offset 1:') as string,
    })
    const delivering = app('deliver')
    await delivering.start()
    await until('the damaged record and the one behind it', () => delivering.status().records === 2)
    await delivering.close()
    const written = await readAll(output, {
      brokers: broker.brokers,
      ends: new Map([[0, Number((await admin.fetchTopicOffsets(output))[0]?.high)]]),
    })
    expect(written.map(({ value }) => idOf(value))).toEqual(['a', 'Damaged', 'b'])
    await producer.disconnect()
    await admin.disconnect()
  })
})
