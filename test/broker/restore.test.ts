/**
 * Restores on a real broker: what holds them up, what is deleted in front of them, and who restores what when workers come and go (X2, X7, CASES A13, B24, C).
 * A restore is held in its middle by an open transaction in the changelog, which ends when the test says so: nothing here depends on how long anything takes.
 */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import kafkajs, { type Kafka, type Transaction } from 'kafkajs'
import { afterAll, describe, expect, inject, onTestFinished, test } from 'vitest'
import { startJvmBroker } from '../../scripts/broker-provider/jvm-broker.ts'
import { createResolvedApp } from '../../src/app.ts'
import { resolveConfig } from '../../src/config/resolve.ts'
import { writeMetadata } from '../../src/runtime/offset-metadata.ts'
import {
  appOf,
  dedupeTopology,
  events,
  idOf,
  processed,
  QUICK,
  scene,
  startApp,
  temporaryFolder,
  type Scene,
  type StartedApp,
} from '../helpers/apps.ts'
import { packedIds, packedNoise, type PackedRecord } from '../helpers/changelog-records.ts'
import { workerChild, type Child } from '../helpers/children.ts'
import { until } from '../helpers/condition.ts'
import { brokers, disconnectKafka, highWatermarks, kafka, notOnce, readAll, send, sharedAdmin, unique } from '../helpers/kafka.ts'

afterAll(disconnectKafka)

const { ConfigResourceTypes } = kafkajs
const names = (prefix: string, count: number): string[] => Array.from({ length: count }, (_, index) => `${prefix}${index}`)
const ids = (records: readonly { value: string | null }[]): string[] => records.map(({ value }) => idOf(value))
const changelogOf = ({ application }: Scene): string => `${application}-dedupe-changelog`

/** A scene whose topology has run once over ids a0, a1, ..., and has been closed: topics, offsets and a changelog are there. */
async function ranOnce(name: string, partitions: number, count = 300): Promise<Scene> {
  const place = await scene(name, partitions)
  await send(place.input, events('a', count))
  const first = await startApp(dedupeTopology(place), { stateDir: place.stateDir, transactionMaxRecords: 50 })
  await processed(place, first)
  await first.app.close({ leave: true })
  return place
}

async function append(topic: string, partition: number, records: readonly PackedRecord[]): Promise<void> {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  try {
    for (let from = 0; from < records.length; from += 3)
      await producer.send({ topic, acks: -1, messages: records.slice(from, from + 3).map(({ key, value }) => ({ key, value, partition })) })
  } finally {
    await producer.disconnect()
  }
}

/** A producer with a transaction of its own; whatever is open at the end of the test is aborted. */
async function transactions(transactionalId = unique('holder'), client: Kafka = kafka) {
  const producer = client.producer({ idempotent: true, maxInFlightRequests: 1, transactionalId, transactionTimeout: 600_000 })
  await producer.connect()
  let open: Transaction | undefined
  const end = async (how: 'commit' | 'abort'): Promise<void> => {
    const ending = open
    open = undefined
    await ending?.[how]()
  }
  onTestFinished(async () => {
    await end('abort').catch(() => undefined)
    await producer.disconnect()
  })
  return {
    end,
    async begin(): Promise<Transaction> {
      return (open = await producer.transaction())
    },
    /** Opens a transaction with one record in it. */
    async hold(topic: string, partition: number): Promise<void> {
      const [record] = packedIds(['of-the-holder'])
      await (await this.begin()).send({ topic, messages: [{ key: record!.key, value: record!.value, partition }] })
    },
    /** As a worker under this id would commit offsets. The broker may still be at work on the transaction before. */
    async sendOffsets(place: Scene, partition: number, offset: number, metadata: string): Promise<void> {
      const topics = [{ topic: place.input, partitions: [{ partition, offset: String(offset), metadata }] }]
      await until('offsets in the transaction', () =>
        open!.sendOffsets({ consumerGroupId: place.application, topics }).then(
          () => true,
          (error: { type?: string }) => {
            if (error.type === 'CONCURRENT_TRANSACTIONS') return false
            throw error
          },
        ),
      )
    },
  }
}

/** Kafka refuses DeleteRecords on a topic that is compacted only, and so it is ours until the records are gone. */
async function deleteHead(topic: string, partition: number, before: number): Promise<void> {
  const admin = await sharedAdmin()
  const policy = (value: string) =>
    admin.alterConfigs({
      validateOnly: false,
      resources: [
        {
          type: ConfigResourceTypes.TOPIC,
          name: topic,
          configEntries: [
            { name: 'cleanup.policy', value },
            { name: 'retention.ms', value: '-1' },
          ],
        },
      ],
    })
  await policy('compact,delete')
  await until('the head to be deleted', () =>
    admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before) }] }).then(
      () => true,
      () => false,
    ),
  )
  await policy('compact')
}

/** Not started to its end: the caller waits for what it wants to see. A failure is in `failed`. */
function beginApp(
  place: Scene,
  more: Parameters<typeof appOf>[1] = {},
): StartedApp & { readonly failed: () => Error | undefined; readonly ready: Promise<void> } {
  const started = appOf(dedupeTopology(place), { stateDir: place.stateDir, ...more })
  let failure: Error | undefined
  const ready = started.app.start()
  ready.catch((error: Error) => (failure = error))
  return { ...started, failed: () => failure, ready }
}

/** The restore of the partition has come to `done` offsets and stands there. */
async function restoredTo(app: ReturnType<typeof beginApp>, task: string, done: number): Promise<void> {
  await until(`the restore of ${task} to reach ${done}`, () => {
    if (app.failed() !== undefined) throw app.failed()!
    return app.app.status().restoring.some((restoring) => restoring.task === task && restoring.done === done)
  })
}

describe('what ends a restore', () => {
  test.each<[string, (place: Scene) => Promise<void>]>([
    ['a commit marker', () => Promise.resolve()],
    [
      'an abort marker',
      async (place) => {
        const one = await transactions()
        await one.hold(changelogOf(place), 0)
        await one.end('abort')
      },
    ],
    [
      'several markers in a row, of transactions that wrote nothing else there',
      async (place) => {
        const all = await Promise.all([transactions(), transactions(), transactions()])
        for (const each of all) await each.hold(changelogOf(place), 0)
        for (const [index, each] of all.entries()) await each.end(index === 1 ? 'commit' : 'abort')
      },
    ],
    [
      'nothing at all, with an end above zero',
      async (place) => deleteHead(changelogOf(place), 0, (await highWatermarks(changelogOf(place))).get(0)!),
    ],
  ])('B24, B25: a changelog that ends in %s is restored, with nothing left to do', async (_name, prepare) => {
    const place = await ranOnce('ends', 1)
    await prepare(place)
    const { restores, app } = await startApp(dedupeTopology(place), { stateDir: temporaryFolder() })
    for (const { done, total, waitingFor } of restores) expect([total - done, waitingFor]).toEqual([0, undefined])
    expect(app.status().restoring).toEqual([])
  })
})

describe('an open transaction in the changelog', () => {
  test('C26, X7, A13: is waited for, named after the last committer; what was committed behind it is there', async () => {
    const place = await ranOnce('held', 1)
    const held = (await highWatermarks(changelogOf(place))).get(0)!
    const holder = await transactions()
    await holder.hold(changelogOf(place), 0)
    await append(changelogOf(place), 0, packedIds(names('y', 100)))
    const app = beginApp(place, { stateDir: temporaryFolder() })
    await restoredTo(app, '0_0', held)
    const ring = `${place.application}-test-0-0 or ${place.application}-test-0-1`
    await until('its name in the log', () => app.log.some(({ message }) => message === `restore waits for an open transaction of ${ring}`))
    await send(place.input, [...events('a', 300), ...events('y', 100), ...events('b', 10)])
    await holder.end('abort')
    await app.ready
    await processed(place, app)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 300), ...names('b', 10)])).toEqual({})
    expect(app.restores).toMatchObject([{ waitingFor: undefined, rebuild: undefined }])
  })

  test('A13: one that holds the committed offsets is waited for by name too, and holds up no other task', async () => {
    const place = await ranOnce('offsets', 2)
    // Which transactional ids a dead owner used is on record with the offsets it committed last.
    const ghost = await transactions(`${place.application}-ghost-0-0`)
    const metadata = writeMetadata({
      nonce: 'n',
      streamTime: 0,
      transactionalIdPrefix: `${place.application}-ghost-0`,
      ringSize: 2,
      committedAt: 0,
    })
    const end = (await highWatermarks(place.input)).get(0)!
    await ghost.begin()
    // The native client ends metadata with a zero byte, and takes one off when it reads them.
    await ghost.sendOffsets(place, 0, end, `${metadata}\0`)
    await ghost.end('commit')
    await ghost.begin()
    await ghost.sendOffsets(place, 0, end, `${metadata}\0`)
    const app = beginApp(place)
    const expected = `the committed offsets of the task are held back: it waits for an open transaction of ${place.application}-ghost-0-0 or ${place.application}-ghost-0-1`
    await until('its name in the log', () => app.log.some(({ message, details }) => message === expected && details['task'] === '0_0'))
    await send(place.input, [...events('a', 300), ...events('b', 100)])
    await until('the other task at work', () => app.app.status().records > 0)
    await ghost.end('abort')
    await app.ready
    await processed(place, app)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 300), ...names('b', 100)])).toEqual({})
  })
})

describe('C32: records deleted from the changelog’s head', () => {
  test('while the worker was down: rebuilt from the log start, once, with reason; the next start restores nothing', async () => {
    const place = await ranOnce('down', 2)
    const end = (await highWatermarks(changelogOf(place))).get(0)!
    await append(changelogOf(place), 0, [...packedIds(names('gone', 10)), ...packedIds(names('y', 10))])
    await deleteHead(changelogOf(place), 0, end + 1)
    const app = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    expect(app.restores).toMatchObject([{ task: '0_0', rebuild: 'checkpoint-before-log-start', records: 1, total: 1 }])
    expect(app.log.filter(({ message }) => message.startsWith('rebuilding'))).toMatchObject([
      { details: { task: '0_0', checkpoint: end, logStart: end + 1, reason: 'checkpoint-before-log-start' } },
    ])
    await app.app.close()
    expect((await startApp(dedupeTopology(place), { stateDir: place.stateDir })).restores).toEqual([])
  })

  test('during a restore: that store restarts from the log start, once; the other task is not touched; never "latest"', async () => {
    const place = await ranOnce('during', 2)
    const topic = changelogOf(place)
    const held = (await highWatermarks(topic)).get(0)!
    const holder = await transactions()
    await holder.hold(topic, 0)
    await append(topic, 0, [...packedIds(names('gone', 10)), ...packedIds(names('y', 10))])
    const app = beginApp(place, { stateDir: temporaryFolder() })
    await restoredTo(app, '0_0', held)
    // Beyond where the restore stands, and one record behind the open transaction.
    await deleteHead(topic, 0, held + 2)
    await until('the restart', () => {
      if (app.failed() !== undefined) throw app.failed()!
      return app.log.some(({ message }) => message.startsWith('rebuilding'))
    })
    await holder.end('abort')
    await app.ready
    expect(app.log.filter(({ message }) => message.startsWith('rebuilding'))).toMatchObject([
      { details: { task: '0_0', position: held, logStart: held + 2, reason: 'head-deleted' } },
    ])
    const restored = new Map(app.restores.map((restore) => [restore.task, restore]))
    expect(restored.get('0_0')).toMatchObject({ rebuild: 'head-deleted', records: 1 })
    expect(restored.get('0_1')).toMatchObject({ rebuild: undefined, records: expect.any(Number) })
    // The changelog is the truth: what is deleted there is forgotten, what it still has is not.
    const records = await readAll(place.input)
    await send(place.input, [
      ...records.map(({ key, value, partition }) => ({ key, value, partition })),
      ...events('y', 10).map((event) => ({ ...event, partition: 0 })),
    ])
    await processed(place, app)
    const forgotten = ids(records.filter(({ partition }) => partition === 0))
    expect(forgotten.length).toBeGreaterThan(0)
    expect(notOnce(ids(await readAll(place.output)), names('a', 300))).toEqual(Object.fromEntries(forgotten.map((id) => [id, 2])))
  })
})

describe('a restore that is interrupted', () => {
  test('C34: closed at half: the next start goes on there, and all ids are present', async () => {
    const place = await ranOnce('half', 1)
    const stateDir = temporaryFolder()
    const held = (await highWatermarks(changelogOf(place))).get(0)!
    const holder = await transactions()
    await holder.hold(changelogOf(place), 0)
    await append(changelogOf(place), 0, packedIds(names('y', 100)))
    const first = beginApp(place, { stateDir })
    await restoredTo(first, '0_0', held)
    await first.app.close()
    await holder.end('abort')
    const end = (await highWatermarks(changelogOf(place))).get(0)!
    const second = await startApp(dedupeTopology(place), { stateDir })
    expect(second.restores).toMatchObject([{ records: 1, done: end - held, total: end - held }])
    await send(place.input, [...events('a', 300), ...events('y', 100), ...events('b', 10)])
    await processed(place, second)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 300), ...names('b', 10)])).toEqual({})
  })

  test('C34: given up at half to another worker, and taken over again: goes on there', async () => {
    const place = await ranOnce('moved', 2)
    const stateDir = temporaryFolder()
    const held = (await highWatermarks(changelogOf(place))).get(0)!
    const holder = await transactions()
    await holder.hold(changelogOf(place), 0)
    const first = beginApp(place, { stateDir, instance: 'one' })
    await restoredTo(first, '0_0', held)
    // A second one gets a task; whichever it is, the first goes on with the other one.
    const second = beginApp(place, { stateDir: temporaryFolder(), instance: 'two' })
    await until('a task to move', () => first.revoked.length > 0 && second.assigned.length > 0)
    await holder.end('abort')
    await Promise.all([first.ready, second.ready])
    await second.app.close({ leave: true })
    await until('both tasks with the first again', () => first.app.status().tasks === 2 && first.app.state === 'running')
    await send(place.input, [...events('a', 300), ...events('b', 100)])
    await processed(place, first)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 300), ...names('b', 100)])).toEqual({})
    expect([...first.restores, ...second.restores].map(({ rebuild }) => rebuild).filter((rebuild) => rebuild !== undefined)).toEqual([])
  })

  test('C35: one that lasts five session time-outs and five poll intervals: still the same member, no task is taken away', async () => {
    const place = await ranOnce('long', 1)
    const held = (await highWatermarks(changelogOf(place))).get(0)!
    const holder = await transactions()
    await holder.hold(changelogOf(place), 0)
    const topologyOfApp = dedupeTopology(place)
    const config = resolveConfig({
      code: { brokers, instance: 'test', stateDir: temporaryFolder(), ...QUICK },
      topologyName: topologyOfApp.name,
    })
    // Below what the options allow, so that five of them fit into a test.
    const limitMs = 2_000
    const app = createResolvedApp(
      topologyOfApp,
      { ...config, sessionTimeoutMs: limitMs, maxPollIntervalMs: limitMs, heartbeatIntervalMs: 300 },
      { debug() {}, info() {}, warn() {}, error() {} },
    )
    onTestFinished(() => app.close({ timeout: '20s' }).catch(() => undefined))
    const revoked: unknown[] = []
    app.on('revoked', (event) => revoked.push(event))
    const ready = app.start()
    ready.catch(() => undefined)
    const member = async (): Promise<string | undefined> =>
      (await (await sharedAdmin()).describeGroups([place.application])).groups[0]?.members[0]?.memberId
    await until('the restore to stand', () => app.status().restoring.some(({ done }) => done === held))
    const [before, since] = [await member(), performance.now()]
    await until('five session time-outs', () => performance.now() - since > 5 * limitMs)
    expect([await member(), revoked, app.state]).toEqual([before, [], 'restoring'])
    expect(before).toBeTruthy()
    await send(place.input, [...events('a', 300), ...events('b', 10)])
    await holder.end('abort')
    await ready
    await processed(place)
    expect(await member()).toBe(before)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 300), ...names('b', 10)])).toEqual({})
  })
})

describe.skipIf(inject('javaTools')?.via !== 'classpath')('a broker of its own', () => {
  test(
    'D42: paused during a restore and continued: the restore goes on where it was, nothing is emptied',
    { timeout: 240_000 },
    async () => {
      const own = await startJvmBroker({ nodes: 1, heapMiB: 256 })
      onTestFinished(() => own.stop())
      const client = new kafkajs.Kafka({
        brokers: [own.brokers],
        logLevel: kafkajs.logLevel.NOTHING,
        retry: { retries: 20, initialRetryTime: 100, maxRetryTime: 1_000 },
      })
      const impatient = new kafkajs.Kafka({
        brokers: [own.brokers],
        logLevel: kafkajs.logLevel.NOTHING,
        requestTimeout: 1_000,
        connectionTimeout: 1_000,
        retry: { retries: 0 },
      })
      const application = unique('paused')
      const place = { application, input: `${application}.in`, output: `${application}.out`, stateDir: temporaryFolder() }
      const [admin, probe] = [client.admin(), impatient.admin()]
      const producer = client.producer({ idempotent: true, maxInFlightRequests: 1 })
      for (const each of [admin, probe, producer]) {
        await each.connect()
        onTestFinished(() => each.disconnect())
      }
      await admin.createTopics({ waitForLeaders: true, topics: [place.input, place.output].map((topic) => ({ topic, numPartitions: 1 })) })
      const produce = (records: { key: string; value: string }[]) => producer.send({ topic: place.input, acks: -1, messages: records })
      const ownBroker = { brokers: own.brokers, sessionTimeout: '60s', maxPollInterval: '60s', taskTimeout: '60s' } as const
      await produce(events('a', 300))
      const first = await startApp(dedupeTopology(place), { stateDir: place.stateDir, transactionMaxRecords: 50, ...ownBroker })
      await until('all input', () => first.app.status().records === 300)
      await first.app.close()

      const topic = changelogOf(place)
      const held = Number((await admin.fetchTopicOffsets(topic))[0]!.high)
      const holder = await transactions(unique('holder'), client)
      await holder.hold(topic, 0)
      const app = beginApp({ ...place, stateDir: temporaryFolder() }, ownBroker)
      await restoredTo(app, '0_0', held)
      await own.nodes[0]!.kill('SIGSTOP')
      await until('requests to go unanswered', () =>
        probe.fetchTopicOffsets(topic).then(
          () => false,
          () => true,
        ),
      )
      await own.nodes[0]!.kill('SIGCONT')
      await holder.end('abort')
      await app.ready
      await produce([...events('a', 300), ...events('b', 10)])
      await until('all input', () => app.app.status().records === 310)
      await app.app.close()
      const writing = first.commits.filter(({ records }) => records > 0).length
      expect(app.restores).toMatchObject([{ rebuild: undefined, records: writing, total: held + 2 }]) // the record of the holder, and its marker
      expect(app.log.filter(({ message }) => message.startsWith('rebuilding'))).toEqual([])
      const output = await readAll(place.output, { brokers: own.brokers, ends: new Map([[0, 310]]) })
      expect(notOnce(ids(output), [...names('a', 300), ...names('b', 10)])).toEqual({})
    },
  )
})

describe('stop and start', () => {
  test('X2: a clean stop and start restores nothing, five times in a row, under load', async () => {
    const place = await scene('five', 2)
    const restored: number[] = []
    for (let round = 0; round < 6; round++) {
      await send(place.input, [...events(`r${round}-`, 800), ...events('r0-', 200)])
      const { app, restores, commits } = await startApp(dedupeTopology(place), { stateDir: place.stateDir, transactionMaxRecords: 100 })
      // Closed while there is input left, except the last time.
      await until('work under way', () => commits.length > 2)
      if (round === 5) await processed(place)
      await app.close()
      restored.push(restores.length)
    }
    expect(restored).toEqual([0, 0, 0, 0, 0, 0])
    expect(
      notOnce(
        ids(await readAll(place.output)),
        [0, 1, 2, 3, 4, 5].flatMap((round) => names(`r${round}-`, 800)),
      ),
    ).toEqual({})
  })

  test('X2: kill -9 under load replays what lies behind the file’s checkpoint, and no record more', async () => {
    const place = await scene('tail', 1)
    const config = { stateFlushInterval: '500ms', transactionMaxRecords: 100 } as const
    await send(place.input, events('a', 4_000))
    const first = workerChild(place, config)
    await until('a flush, and work after it', () => {
      const commits = first.of('commit')
      const flushed = commits.findIndex(({ reason }) => reason === 'flush')
      return flushed >= 0 && commits.length > flushed + 3
    })
    await first.kill()
    const file = join(place.stateDir, place.application, '0_0', 'state.db')
    expect(existsSync(file)).toBe(true)
    const database = new Database(file)
    const checkpoint = database.prepare<[], number>('SELECT checkpoint FROM stores').pluck().get()!
    database.close()
    const before = (await highWatermarks(changelogOf(place))).get(0)!
    const second = workerChild(place, config)
    await second.says('running')
    const [restore] = second.of('restore')
    // Its start aborts what the dead one left open, which adds a marker, and nothing else is written before the restore.
    const total = restore?.['total'] as number
    expect(checkpoint).toBeGreaterThan(0)
    expect([before - checkpoint, before + 1 - checkpoint]).toContain(total)
    expect(restore!['records'] as number).toBeLessThanOrEqual(before - checkpoint)
    console.log(`kill -9: checkpoint ${checkpoint}, end ${before}, ${String(restore!['records'])} changelog records replayed`)
    await processed(place)
    await second.kill()
    expect(notOnce(ids(await readAll(place.output)), names('a', 4_000))).toEqual({})
  })
})

describe('workers that come and go', () => {
  const owned = (child: Child): string[] => {
    const tasks = new Set<string>()
    for (const { event, tasks: named } of child.lines) {
      if (event === 'assigned') for (const task of named as string[]) tasks.add(task)
      if (event === 'revoked') for (const task of named as string[]) tasks.delete(task)
    }
    return [...tasks].sort()
  }
  const ended = (children: readonly Child[]): string =>
    children.flatMap((child) => child.of('failed').map((line) => JSON.stringify(line))).join('\n')
  const worker = (place: Scene, instance: string): Child =>
    workerChild({ ...place, stateDir: temporaryFolder() }, { instance, onClose: 'leave', restoreTimeout: '60s' })

  test(
    'C28: four cold workers started close together on a large changelog: none fails, nothing stays paused, nothing is lost',
    { timeout: 240_000 },
    async () => {
      const place = await ranOnce('cold', 8, 2_000)
      for (let partition = 0; partition < 8; partition++) await append(changelogOf(place), partition, packedNoise(12))
      await send(place.input, [...events('a', 2_000), ...events('b', 2_000)])
      const children: Child[] = []
      for (let number = 0; number < 4; number++) {
        const child = worker(place, `w${number}`)
        children.push(child)
        // The next one comes while this one is restoring, or about to.
        await child.says('state', 2)
      }
      await until(
        'all four at work',
        () => {
          if (ended(children) !== '') throw new Error(ended(children))
          return children.every((child) => owned(child).length === 2)
        },
        180_000,
      )
      for (const child of children) await child.says('running')
      await processed(place)
      // Once more through every partition: none was left paused.
      await send(place.input, [...events('a', 2_000), ...events('c', 2_000)])
      await processed(place)
      expect(children.flatMap(owned).sort()).toEqual(names('0_', 8))
      expect(notOnce(ids(await readAll(place.output)), [...names('a', 2_000), ...names('b', 2_000), ...names('c', 2_000)])).toEqual({})
      expect(ended(children)).toBe('')
      const restores = children.flatMap((child) => child.of('restore'))
      expect(new Set(restores.map(({ task }) => task))).toEqual(new Set(names('0_', 8)))
      for (const child of children) await child.kill()
    },
  )

  test(
    'C30, X7: three workers down to one: it restores every task it takes over before that task’s first record',
    { timeout: 240_000 },
    async () => {
      const place = await scene('down', 6)
      await send(place.input, events('a', 3_000))
      const children = ['one', 'two', 'three'].map((instance) => worker(place, instance))
      await until('two tasks each', () => {
        if (ended(children) !== '') throw new Error(ended(children))
        return children.every((child) => owned(child).length === 2)
      })
      for (const child of children) await child.says('running')
      await processed(place)
      // Written by the owners of now, so nobody else has them on disk.
      await send(place.input, events('b', 3_000))
      await processed(place)
      const [survivor, ...others] = children as [Child, Child, Child]
      const taken = others.flatMap(owned)
      const before = survivor.of('restore').length
      for (const child of others) child.signal('SIGTERM')
      await send(place.input, [...events('b', 3_000), ...events('c', 3_000), ...events('a', 3_000)])
      for (const child of others) expect(await child.exit, child.text).toEqual({ code: 0, signal: null })
      await until('all tasks with one worker', () => owned(survivor).length === 6)
      await processed(place)
      expect(
        new Set(
          survivor
            .of('restore')
            .slice(before)
            .map(({ task }) => task),
        ),
      ).toEqual(new Set(taken))
      expect(notOnce(ids(await readAll(place.output)), [...names('a', 3_000), ...names('b', 3_000), ...names('c', 3_000)])).toEqual({})
      await survivor.kill()
    },
  )
})
