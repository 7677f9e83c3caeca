/** Partitions that are added to an input (X6): stateless topologies pick them up, stateful ones stop with the plan. */
import { afterAll, describe, expect, onTestFinished, test } from 'vitest'
import { KafkaBroker } from '../../src/broker/kafka/broker.ts'
import { silentLogger } from '../../src/common/ports.ts'
import type { Config } from '../../src/config/define.ts'
import { topology, type Topology } from '../../src/topology/index.ts'
import { tasksTopic } from '../../src/topology/internal-topics.ts'
import {
  appOf,
  dedupeTopology,
  eventTopic,
  events,
  idOf,
  processed,
  scene,
  startApp,
  type Scene,
  type StartedApp,
} from '../helpers/apps.ts'
import { until } from '../helpers/condition.ts'
import { brokers, createTopic, disconnectKafka, notOnce, readAll, send, sharedAdmin, unique, type InputRecord } from '../helpers/kafka.ts'

afterAll(disconnectKafka)

const POLL = { metadataPoll: '500ms' } as const
const ANEW = 'tasks were assigned before this worker knew of them: joining the group anew'

function copy({ application, input, output }: Scene, startFrom: 'earliest' | 'latest' = 'earliest'): Topology {
  return topology(application, ({ stream }) => stream(eventTopic(input), { startFrom }).to(eventTopic(output)))
}

/** Records of `events`, spread over the first `partitions` partitions. */
function spread(prefix: string, count: number, partitions: number): InputRecord[] {
  return events(prefix, count).map((event, index) => ({ ...event, partition: index % partitions }))
}
const names = (prefix: string, count: number): string[] => Array.from({ length: count }, (_, index) => `${prefix}${index}`)
const idsOf = async (topic: string): Promise<string[]> => (await readAll(topic)).map(({ value }) => idOf(value))

async function partitionsOf(topic: string): Promise<number> {
  return (await (await sharedAdmin()).fetchTopicMetadata({ topics: [topic] })).topics[0]?.partitions.length ?? 0
}

async function grow(topic: string, count: number): Promise<void> {
  await (await sharedAdmin()).createPartitions({ topicPartitions: [{ topic, count }] })
  await until(`${count} partitions of ${topic}`, async () => (await partitionsOf(topic)) === count)
  // The clients of the helpers know the topic as it was, and leave out what they do not know: new ones.
  await disconnectKafka()
}

/** The tasks an app has now: assigned once more than revoked. */
function tasksOf({ assigned, revoked }: StartedApp): string[] {
  const gone = revoked.flat()
  return [...new Set(assigned.flat())]
    .filter((task) => assigned.flat().filter((each) => each === task).length > gone.filter((each) => each === task).length)
    .sort()
}

/** Both apps are members, and each has one of the first two tasks. */
async function twoWorkers(place: Scene, first: Partial<Config>, second: Partial<Config>): Promise<[StartedApp, StartedApp]> {
  const one = await startApp(copy(place), { stateDir: place.stateDir, slot: 0, ...first })
  const two = await startApp(copy(place), { stateDir: place.stateDir, slot: 1, ...second })
  await until('a task for each', () => tasksOf(one).length === 1 && tasksOf(two).length === 1, 60_000)
  return [one, two]
}

describe('a stateless topology', () => {
  test('X6: an input that grows from 2 to 5 partitions under two workers: each new record once, no task of before moves, and a restart finds all', async () => {
    const place = await scene('grows', 2)
    const apps = await twoWorkers(place, { metadataPoll: '2s' }, { metadataPoll: '2s' })
    await send(place.input, spread('before', 200, 2))
    await grow(place.input, 5)
    const expected = names('before', 200)
    // Records flow into old and new partitions while nobody knows the new ones.
    for (let batch = 0; batch < 10; batch++) {
      await send(place.input, spread(`flow${batch}.`, 100, 5))
      expected.push(...names(`flow${batch}.`, 100))
    }
    await Promise.race([processed(place), ...apps.map(({ app }) => app.finished)])
    expect(notOnce(await idsOf(place.output), expected)).toEqual({})
    expect(apps.flatMap(tasksOf).sort()).toEqual(['0_0', '0_1', '0_2', '0_3', '0_4'])
    expect(await partitionsOf(tasksTopic(place.application))).toBe(5)
    // The one that had both at first gave one up to the other; nothing else was revoked, unless a worker had no time to look before the group did.
    const isAnew = apps.some(({ log }) => log.some(({ message }) => message.includes(ANEW)))
    if (!isAnew) expect(apps.flatMap(({ revoked }) => revoked.flat())).toHaveLength(1)

    for (const { app } of apps) await app.close()
    await send(place.input, spread('after', 100, 5))
    const again = await startApp(copy(place), { stateDir: place.stateDir, slot: 0, ...POLL })
    const other = await startApp(copy(place), { stateDir: place.stateDir, slot: 1, ...POLL })
    await processed(place)
    expect(notOnce(await idsOf(place.output), [...expected, ...names('after', 100)])).toEqual({})
    expect(new Set([...again.assigned.flat(), ...other.assigned.flat()]).size).toBe(5)
  })

  test('a worker that is assigned a task before it knows of it reads the table and joins anew', async () => {
    const place = await scene('late', 2)
    // The second one does not look before the group has spread the new tasks.
    const [one, two] = await twoWorkers(place, POLL, { metadataPoll: '20s' })
    await grow(place.input, 5)
    await send(place.input, spread('a', 200, 5))
    await Promise.race([processed(place), one.app.finished, two.app.finished])
    expect(notOnce(await idsOf(place.output), names('a', 200))).toEqual({})
    expect(two.log.map(({ message }) => message)).toContain(ANEW)
  })

  test("grown while nothing ran: the start adds the tasks, and reads new partitions from their beginning, also with startFrom 'latest'", async () => {
    const place = await scene('down', 2)
    await send(place.input, spread('old', 20, 2))
    const first = await startApp(copy(place, 'latest'), { stateDir: place.stateDir })
    await processed(place)
    await first.app.close({ leave: true })
    await grow(place.input, 4)
    await send(place.input, spread('new', 40, 4))
    const second = await startApp(copy(place, 'latest'), { stateDir: place.stateDir })
    // At once, not after the metadata poll of 30 s: nobody else is in the group.
    expect(second.assigned.flat().sort()).toEqual(['0_0', '0_1', '0_2', '0_3'])
    await processed(place)
    expect(notOnce(await idsOf(place.output), names('new', 40))).toEqual({})
  })

  test('of two inputs of one part the smaller grows: its new partitions get tasks of their own beside those of the other', async () => {
    const place = await scene('beside', 3)
    const small = await createTopic(`${place.application}.small`, 1)
    const both = topology(place.application, ({ stream }) =>
      stream([eventTopic(place.input), eventTopic(small)]).to(eventTopic(place.output)),
    )
    const started = await startApp(both, { stateDir: place.stateDir, ...POLL })
    await send(place.input, spread('a', 30, 3))
    await send(small, spread('b', 10, 1))
    await grow(small, 3)
    await send(small, spread('c', 30, 3))
    await processed(place, started)
    await processed({ ...place, input: small }, started)
    expect(notOnce(await idsOf(place.output), [...names('a', 30), ...names('b', 10), ...names('c', 30)])).toEqual({})
    expect(tasksOf(started)).toEqual(['0_0', '0_1', '0_1-1', '0_2', '0_2-1'])
  })
})

test('the ends of added partitions can be looked up at once, by a client that has looked up the others before', async () => {
  const topic = await createTopic(unique('looked-up'), 1)
  const broker = new KafkaBroker({
    brokers: brokers.split(','),
    clientId: 'looked-up',
    connectTimeoutMs: 10_000,
    metadataRefreshMs: 3_600_000,
    logger: silentLogger,
    client: {},
  })
  onTestFinished(() => broker.close())
  await broker.admin.offsets([{ topic, partition: 0 }])
  await broker.admin.createPartitions(topic, 2)
  await until('two partitions', async () => (await broker.admin.describeTopics([topic]))[0]?.partitions === 2)
  expect(await broker.admin.offsets([{ topic, partition: 1 }])).toEqual([{ topic, partition: 1, logStart: 0, highWatermark: 0 }])
  await expect(broker.admin.createPartitions(topic, 2)).rejects.toMatchObject({ code: 37 })
})

describe('a stateful topology', () => {
  test('X6: an input that grows while the worker runs stops it with the topic, both counts and the plan; so does every start after it', async () => {
    const place = await scene('stateful', 2)
    const { app } = await startApp(dedupeTopology(place), { stateDir: place.stateDir, ...POLL })
    await send(place.input, spread('a', 20, 2))
    await processed(place)
    await grow(place.input, 5)
    await send(
      place.input,
      events('a', 20).map((event, index) => ({ ...event, partition: 2 + (index % 3) })),
    )
    const refused = {
      name: 'ConfigError',
      code: 'input-grew',
      message: expect.stringContaining(`input ${place.input} grew from 2 to 5 partitions`),
      remedy: expect.stringContaining('new applicationId'),
      exitCode: 2,
    }
    await expect(app.finished).rejects.toMatchObject(refused)
    await expect(appOf(dedupeTopology(place), { stateDir: place.stateDir }).app.start()).rejects.toMatchObject(refused)
    // Not one id went through twice, and nothing of the new partitions was touched.
    expect(notOnce(await idsOf(place.output), names('a', 20))).toEqual({})
    expect(await partitionsOf(tasksTopic(place.application))).toBe(2)
  })
})
