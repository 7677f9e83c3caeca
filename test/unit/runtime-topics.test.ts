/** Tasks and internal topics at start: how tasks are numbered, and what refuses to start (CASES F52, DESIGN 3). */
import { describe, expect, test } from 'vitest'
import { silentLogger } from '../../src/common/ports.ts'
import { ConfigError } from '../../src/errors/errors.ts'
import { ensureInternalTopics, internalTopics, refuseLostChangelogs } from '../../src/runtime/internal-topics.ts'
import { agreeOnTasks, differences } from '../../src/runtime/task-agreement.ts'
import { layoutOf, tableOf, type TaskTable } from '../../src/runtime/task-layout.ts'
import { PROGRESS, progressKey, readTaskRecords } from '../../src/runtime/task-table.ts'
import { string } from '../../src/serde/index.ts'
import { topic, topology, type Sources } from '../../src/topology/index.ts'
import type { TopologyPlan } from '../../src/topology/nodes.ts'
import { compileTopology } from '../../src/topology/plan.ts'
import { countingRandom, InstantTimers, ManualClock } from '../helpers/manual-time.ts'
import { record, refusal, ScriptedAdmin, ScriptedBroker } from '../helpers/scripted-broker.ts'
import { taskTopicOn } from '../helpers/task-topic.ts'
import { jsonOf } from '../helpers/codecs.ts'

const topicOf = (name: string) => topic(name, { key: string(), value: jsonOf<unknown>() })
const [a, b, out] = [topicOf('a'), topicOf('b'), topicOf('out')]
const planOf = (use: (sources: Sources) => void) => compileTopology(topology('app', use))
const stateful = planOf(({ stream }) => stream([a, b]).dedupe({ by: 'key', window: '1h' }).to(out))
const stateless = planOf(({ stream }) => stream([a, b]).to(out))
const two = planOf(({ stream }) => {
  stream(a).dedupe({ by: 'key', window: '1h' }).to(out)
  stream(b).to(out)
})
const adminWith = (partitions: Readonly<Record<string, number>>): ScriptedAdmin => {
  const admin = new ScriptedAdmin()
  for (const [name, count] of Object.entries(partitions)) admin.topics.set(name, { partitions: count, config: {} })
  return admin
}
const retry = () => {
  const clock = new ManualClock()
  return { clock, timers: new InstantTimers(clock), logger: silentLogger, timeoutMs: 10_000 }
}

const layOut = (plan: TopologyPlan, counts: Readonly<Record<string, number>>) =>
  layoutOf(tableOf(plan, new Map(Object.entries(counts))), [])
const start = (broker: ScriptedBroker, plan: TopologyPlan) =>
  agreeOnTasks({ ...retry(), random: countingRandom(), broker, plan, applicationId: 'app', instanceId: 'app-a-0', replicationFactor: 1 })

describe('tasks', () => {
  test('are numbered sub-topology by sub-topology, partition by partition', () => {
    expect(layOut(two, { a: 2, b: 3 })).toEqual({
      partitions: [2, 3],
      tasks: [
        { name: '0_0', subTopology: 0, partition: 0, inputs: ['a'], extension: 0 },
        { name: '0_1', subTopology: 0, partition: 1, inputs: ['a'], extension: 0 },
        { name: '1_0', subTopology: 1, partition: 0, inputs: ['b'], extension: 0 },
        { name: '1_1', subTopology: 1, partition: 1, inputs: ['b'], extension: 0 },
        { name: '1_2', subTopology: 1, partition: 2, inputs: ['b'], extension: 0 },
      ],
    })
  })

  test('an input that does not exist is named, and no topic is created', async () => {
    const broker = new ScriptedBroker()
    broker.admin.topics.set('a', { partitions: 2, config: {} })
    await expect(start(broker, two)).rejects.toMatchObject({
      code: 'topic-missing',
      message: 'topic b, read by this topology, does not exist',
      exitCode: 2,
    })
    expect(broker.admin.created).toEqual([])
  })

  test('inputs of a stateful part with different partition counts are refused, both counts named, and no topic is created', async () => {
    const broker = new ScriptedBroker()
    broker.admin.topics.set('a', { partitions: 2, config: {} }).set('b', { partitions: 3, config: {} })
    await expect(start(broker, stateful)).rejects.toMatchObject({
      code: 'inputs-not-co-partitioned',
      message: expect.stringContaining('a has 2, b has 3'),
    })
    expect(broker.admin.created).toEqual([])
  })

  test('a task of stateless inputs with different partition counts reads only partitions that are there', () => {
    expect(layOut(stateless, { a: 1, b: 2 }).tasks).toMatchObject([
      { subTopology: 0, partition: 0, inputs: ['a', 'b'] },
      { subTopology: 0, partition: 1, inputs: ['b'] },
    ])
  })
})

describe('internal topics', () => {
  const { tasks, changelogs } = internalTopics(two, 'app', { tasks: new Array<never>(5), partitions: [2, 3] }, 3)
  const wanted = [tasks, ...changelogs]

  test('are the task topic, with a partition for each task, and one changelog for each store, both compacted', () => {
    expect(wanted).toMatchObject([
      { name: 'app-tasks', partitions: 5, replicationFactor: 3, config: { 'cleanup.policy': 'compact' } },
      {
        name: 'app-dedupe-changelog',
        subTopology: 0,
        partitions: 2,
        replicationFactor: 3,
        config: { 'cleanup.policy': 'compact', 'delete.retention.ms': '604800000', 'segment.bytes': '67108864' },
      },
    ])
  })

  test.each([
    ['read', { a: 'app-tasks', out: 'out' }, 'app-tasks'],
    ['written', { a: 'a', out: 'app-dedupe-changelog' }, 'app-dedupe-changelog'],
  ])('a topic that the topology itself has %s cannot be one of them', (_use, names, clash) => {
    const clashing = compileTopology(
      // Another name than the application's: the topology alone does not know.
      topology('other', ({ stream }) => stream(topicOf(names.a)).dedupe({ by: 'key', window: '1h' }).to(topicOf(names.out))),
    )
    expect(() => internalTopics(clashing, 'app', { tasks: [], partitions: [1] }, 1)).toThrow(
      expect.objectContaining({
        name: 'ConfigError',
        code: 'internal-topic-name',
        message: expect.stringContaining(`topic ${clash} is read or written`),
      }),
    )
  })

  test.each([
    ['is there: fine, whatever was committed', true, ['0_0'], undefined],
    ['is missing before the first commit: it will be created', false, [], undefined],
    ['is missing, and only tasks of another sub-topology committed: it will be created', false, ['1_0'], undefined],
    [
      'F52: is missing although its tasks committed: refused, for every remembered id would pass again',
      false,
      ['0_1'],
      'changelog-missing',
    ],
  ])('a changelog that %s', async (_name, isThere, progress, code) => {
    const admin = adminWith(isThere ? { 'app-dedupe-changelog': 2 } : {})
    const checked = refuseLostChangelogs(admin, changelogs, new Set(progress), { policy: 'fail', logger: silentLogger }).then(
      () => undefined,
      (error: unknown) => error,
    )
    const refused = await checked
    if (code === undefined) expect(refused).toBeUndefined()
    else {
      expect(refused).toBeInstanceOf(ConfigError)
      expect(refused).toMatchObject({ code, message: expect.stringContaining('app-dedupe-changelog') })
    }
    expect(admin.created).toEqual([])
  })

  test('are created where nothing is there', async () => {
    const admin = new ScriptedAdmin()
    expect([...(await ensureInternalTopics(admin, wanted, retry()))].sort()).toEqual(['app-dedupe-changelog', 'app-tasks'])
  })

  test('that another worker creates at the same moment are fine, and checked like any other', async () => {
    const admin = adminWith({})
    admin.createFailures.push(refusal('admin', 36), refusal('admin', 36))
    const ensured = ensureInternalTopics(admin, wanted, retry())
    for (const { name, partitions, config } of wanted) admin.topics.set(name, { partitions, config })
    expect(await ensured).toEqual([])
  })

  test.each([
    ['partitions', { partitions: 7, config: { 'cleanup.policy': 'compact' } }, 'app-dedupe-changelog: 7 partitions, expected 2'],
    [
      'cleanup policy',
      { partitions: 2, config: { 'cleanup.policy': 'delete' } },
      'app-dedupe-changelog: cleanup.policy=delete, expected compact',
    ],
    [
      'cleanup policy with deletion beside it',
      { partitions: 2, config: { 'cleanup.policy': 'compact,delete' } },
      'cleanup.policy=compact,delete, expected compact',
    ],
  ])('F52: with other %s are refused, found and expected named', async (_name, found, message) => {
    const admin = new ScriptedAdmin()
    admin.topics.set('app-dedupe-changelog', found)
    const ensured = ensureInternalTopics(admin, wanted, retry())
    await expect(ensured).rejects.toBeInstanceOf(ConfigError)
    await expect(ensured).rejects.toThrow(message)
  })
})

describe('the task table', () => {
  const mine = tableOf(
    two,
    new Map([
      ['a', 2],
      ['b', 3],
    ]),
  )
  const options = () => ({ random: countingRandom(), ...retry() })
  /** A broker with the inputs of `two` and this log of tables in the task topic. */
  const brokerWith = (...tables: unknown[]) => {
    const broker = new ScriptedBroker()
    broker.admin.topics.set('a', { partitions: 2, config: {} }).set('b', { partitions: 3, config: {} })
    return {
      broker,
      log: taskTopicOn(broker, 'app-tasks', ...tables.map((table, index) => [`table/${index}`, JSON.stringify(table)] as const)),
    }
  }

  test('the first record wins: a later one of another topology does not count', async () => {
    const { broker } = brokerWith(mine, { ...mine, subTopologies: [] })
    await start(broker, two)
    expect(broker.written).toEqual([])
  })

  test('is written when there is none, under a key of its own, and read back: it does not count behind that of another worker', async () => {
    const { broker, log } = brokerWith()
    const theirs = { ...mine, subTopologies: [{ inputs: ['other'], partitions: 2, stores: [] }] }
    log.beforeWrite = () => log.add('table/x', JSON.stringify(theirs))
    await expect(start(broker, two)).rejects.toMatchObject({ code: 'topology-does-not-fit' })
    expect(broker.written).toHaveLength(1)
    expect(String(broker.written[0]!.key)).toMatch(/^table\/[0-9a-f]{32}$/)
  })

  test('another fingerprint with the same tasks is fine', async () => {
    await start(brokerWith({ ...mine, fingerprint: 'another' }).broker, two)
  })

  test('one without the counts of each input is read as all of one size', async () => {
    const old = { ...mine, subTopologies: mine.subTopologies.map(({ counts: _counts, ...sub }) => sub) }
    expect((await start(brokerWith(old).broker, two)).layout).toEqual(layoutOf(mine, []))
  })

  test('records of the topic that are no tables are passed over', async () => {
    const { broker, log } = brokerWith()
    log.add('note', 'x')
    log.add('table/1', JSON.stringify(mine))
    await start(broker, two)
    expect(broker.written).toEqual([])
  })

  test('beside it is a note for each task that ever committed; a note that was deleted does not count', async () => {
    const broker = new ScriptedBroker()
    broker.admin.bounds.set('app-tasks[0]', { topic: 'app-tasks', partition: 0, logStart: 0, highWatermark: 5 })
    broker.reader.deliver(
      [
        record('app-tasks', 0, 'table/1', JSON.stringify(mine)),
        record('app-tasks', 1, String(progressKey('0_1')), String(PROGRESS)),
        record('app-tasks', 2, String(progressKey('1_2')), String(PROGRESS)),
        record('app-tasks', 3, String(progressKey('0_0')), null),
      ],
      // The end lies past the marker of the transaction that wrote the notes.
      [{ topic: 'app-tasks', partition: 0, offset: 5 }],
    )
    const recorded = await readTaskRecords(broker, 'app-tasks', options())
    expect(recorded).toEqual({ table: mine, extensions: [], progress: new Set(['0_1', '1_2']), claims: new Map() })
  })

  // Up to the high watermark it would wait for the dead worker's transaction to time out (G6).
  test('is read past nobody: the undecided first transaction of a dead worker, with its note, holds up no start', async () => {
    const broker = new ScriptedBroker()
    broker.admin.bounds.set('app-tasks[0]', { topic: 'app-tasks', partition: 0, logStart: 0, highWatermark: 2 })
    broker.admin.stable.set('app-tasks[0]', 1)
    const clock = new ManualClock()
    const polls = [{ records: [record('app-tasks', 0, 'table/1', JSON.stringify(mine))], ends: [] }]
    broker.reader.poll = () => {
      clock.advance(200)
      return Promise.resolve(polls.shift() ?? { records: [], ends: [{ topic: 'app-tasks', partition: 0, offset: 1 }] })
    }
    expect(await readTaskRecords(broker, 'app-tasks', { ...options(), clock })).toEqual({
      table: mine,
      extensions: [],
      progress: new Set(),
      claims: new Map(),
    })
  })

  test('SO3: beside it is who started last in each slot', async () => {
    const broker = new ScriptedBroker()
    broker.admin.bounds.set('app-tasks[0]', { topic: 'app-tasks', partition: 0, logStart: 0, highWatermark: 4 })
    broker.reader.deliver(
      [
        record('app-tasks', 0, 'table/1', JSON.stringify(mine)),
        record('app-tasks', 1, 'slot/app-a-0', 'first'),
        record('app-tasks', 2, 'slot/app-a-1', 'other'),
        record('app-tasks', 3, 'slot/app-a-0', 'second'),
      ],
      [{ topic: 'app-tasks', partition: 0, offset: 4 }],
    )
    const { claims } = await readTaskRecords(broker, 'app-tasks', options(), 'end')
    expect(Object.fromEntries(claims)).toEqual({ 'app-a-0': 'second', 'app-a-1': 'other' })
  })

  test('that cannot be read to its end within the time-out is no empty one: the worker refuses to start', async () => {
    const broker = new ScriptedBroker()
    broker.admin.bounds.set('app-tasks[0]', { topic: 'app-tasks', partition: 0, logStart: 0, highWatermark: 2 })
    const clock = new ManualClock()
    broker.reader.poll = () => {
      clock.advance(200)
      return Promise.resolve({ records: [], ends: [{ topic: 'app-tasks', partition: 0, offset: 1 }] })
    }
    await expect(readTaskRecords(broker, 'app-tasks', { ...options(), clock })).rejects.toMatchObject({
      name: 'BrokerUnavailableError',
      code: 'task-table-unreadable',
    })
    expect(broker.reader.isClosed).toBe(true)
  })

  test.each<[string, (table: TaskTable) => unknown, string[]]>([
    ['a sub-topology more', (t) => [...t.subTopologies, t.subTopologies[0]], ['sub-topology 2: new (inputs a)']],
    ['a sub-topology less', (t) => t.subTopologies.slice(0, 1), ['sub-topology 1: gone (inputs b)']],
    ['other inputs', (t) => [{ ...t.subTopologies[0], inputs: ['c'] }, t.subTopologies[1]], ['sub-topology 0: inputs were a, are c']],
    ['other stores', (t) => [{ ...t.subTopologies[0], stores: [] }, t.subTopologies[1]], ['sub-topology 0: stores were dedupe, are none']],
  ])('differences: %s', (_name, change, lines) => {
    expect(differences(mine, { ...mine, subTopologies: change(mine) as TaskTable['subTopologies'] })).toEqual(lines)
  })

  test('a topology that does not fit is refused with every difference and both ways out', async () => {
    const other = { ...mine, subTopologies: [{ ...mine.subTopologies[0]!, partitions: 4, counts: [4], stores: [] }] }
    const started = start(brokerWith(other).broker, two)
    await expect(started).rejects.toMatchObject({ remedy: expect.stringContaining('another applicationId') })
    await expect(started).rejects.toThrow(
      /app-tasks has on record:\n {2}sub-topology 0: stores were none.*\n {2}sub-topology 1: new.*\n {2}sub-topology 0: partitions of a were 4, are 2/,
    )
  })
})
