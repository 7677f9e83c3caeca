/** Tasks and internal topics at start: how tasks are numbered, and what refuses to start (CASES F52, DESIGN 3). */
import { describe, expect, test } from 'vitest'
import { silentLogger } from '../../src/common/ports.ts'
import { ConfigError } from '../../src/errors/errors.ts'
import { ensureInternalTopics, internalTopics, layOutTasks, refuseLostChangelogs } from '../../src/runtime/internal-topics.ts'
import { agreeOnTaskTable, differences, PROGRESS, progressKey, readTaskRecords, taskTable } from '../../src/runtime/task-table.ts'
import { string } from '../../src/serde/index.ts'
import { topic, topology, type Sources } from '../../src/topology/index.ts'
import { compileTopology } from '../../src/topology/plan.ts'
import { countingRandom, InstantTimers, ManualClock } from '../helpers/manual-time.ts'
import { record, refusal, ScriptedAdmin, ScriptedBroker } from '../helpers/scripted-broker.ts'
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

describe('tasks', () => {
  test('are numbered sub-topology by sub-topology, partition by partition', async () => {
    const layout = await layOutTasks(adminWith({ a: 2, b: 3 }), two)
    expect(layout).toEqual({
      partitions: [2, 3],
      tasks: [
        { subTopology: 0, partition: 0, inputs: ['a'] },
        { subTopology: 0, partition: 1, inputs: ['a'] },
        { subTopology: 1, partition: 0, inputs: ['b'] },
        { subTopology: 1, partition: 1, inputs: ['b'] },
        { subTopology: 1, partition: 2, inputs: ['b'] },
      ],
    })
  })

  test('an input that does not exist is named', async () => {
    await expect(layOutTasks(adminWith({ a: 2 }), two)).rejects.toMatchObject({
      code: 'topic-missing',
      message: 'topic b, read by this topology, does not exist',
      exitCode: 2,
    })
  })

  test('inputs of a stateful part with different partition counts are refused, both counts named', async () => {
    await expect(layOutTasks(adminWith({ a: 2, b: 3 }), stateful)).rejects.toMatchObject({
      code: 'inputs-not-co-partitioned',
      message: expect.stringContaining('a has 2, b has 3'),
    })
  })

  test('a task of stateless inputs with different partition counts reads only partitions that are there', async () => {
    const { tasks } = await layOutTasks(adminWith({ a: 1, b: 2 }), stateless)
    expect(tasks).toEqual([
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
    const checked = refuseLostChangelogs(admin, changelogs, new Set(progress)).then(
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
  const layout = { tasks: new Array<never>(5), partitions: [2, 3] }
  const mine = taskTable(two, layout)
  const options = () => ({ random: countingRandom(), ...retry() })
  const agree = async (broker: ScriptedBroker): Promise<void> =>
    agreeOnTaskTable(broker, 'app-tasks', mine, await readTaskRecords(broker, 'app-tasks', options()), options())
  const brokerWith = (...tables: unknown[]): ScriptedBroker => {
    const broker = new ScriptedBroker()
    broker.admin.bounds.set('app-tasks[0]', { topic: 'app-tasks', partition: 0, logStart: 0, highWatermark: tables.length })
    broker.reader.deliver(
      tables.map((table, offset) => record('app-tasks', offset, `table/${offset}`, JSON.stringify(table))),
      [{ topic: 'app-tasks', partition: 0, offset: tables.length }],
    )
    return broker
  }

  test('the first record wins: a later one of another topology does not count', async () => {
    const broker = brokerWith(mine, { ...mine, subTopologies: [] })
    await agree(broker)
    expect(broker.written).toEqual([])
  })

  test('is written when there is none, under a key of its own, and read back', async () => {
    const broker = brokerWith()
    // What is written becomes readable, with somebody else's table before it.
    const theirs = { ...mine, subTopologies: [{ inputs: ['other'], partitions: 2, stores: [] }] }
    broker.writeRecord = async (_topic, _partition, key, value) => {
      broker.written.push({ topic: 'app-tasks', key, value })
      broker.admin.bounds.set('app-tasks[0]', { topic: 'app-tasks', partition: 0, logStart: 0, highWatermark: 2 })
      broker.reader.polls.length = 0
      broker.reader.deliver(
        [record('app-tasks', 0, 'table/x', JSON.stringify(theirs)), record('app-tasks', 1, String(key), String(value))],
        [{ topic: 'app-tasks', partition: 0, offset: 2 }],
      )
    }
    await expect(agree(broker)).rejects.toMatchObject({ code: 'topology-does-not-fit' })
    expect(broker.written).toHaveLength(1)
    expect(String(broker.written[0]!.key)).toMatch(/^table\/[0-9a-f]{32}$/)
    expect(broker.reader.isClosed).toBe(true)
  })

  test('another fingerprint with the same tasks is fine', async () => {
    await agree(brokerWith({ ...mine, fingerprint: 'another' }))
  })

  test('records of the topic that are no tables are passed over', async () => {
    const broker = new ScriptedBroker()
    broker.admin.bounds.set('app-tasks[0]', { topic: 'app-tasks', partition: 0, logStart: 0, highWatermark: 2 })
    broker.reader.deliver(
      [record('app-tasks', 0, 'note', 'x'), record('app-tasks', 1, 'table/1', JSON.stringify(mine))],
      [{ topic: 'app-tasks', partition: 0, offset: 2 }],
    )
    await agree(broker)
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
    expect(recorded).toEqual({ table: mine, progress: new Set(['0_1', '1_2']) })
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
    expect(await readTaskRecords(broker, 'app-tasks', { ...options(), clock })).toEqual({ table: mine, progress: new Set() })
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

  test.each<[string, (table: ReturnType<typeof taskTable>) => unknown, string[]]>([
    ['a sub-topology more', (t) => [...t.subTopologies, t.subTopologies[0]], ['sub-topology 2: new (inputs a)']],
    ['a sub-topology less', (t) => t.subTopologies.slice(0, 1), ['sub-topology 1: gone (inputs b)']],
    ['other inputs', (t) => [{ ...t.subTopologies[0], inputs: ['c'] }, t.subTopologies[1]], ['sub-topology 0: inputs were a, are c']],
    [
      'other partitions',
      (t) => [{ ...t.subTopologies[0], partitions: 4 }, t.subTopologies[1]],
      ['sub-topology 0: partitions were 2, are 4'],
    ],
    ['other stores', (t) => [{ ...t.subTopologies[0], stores: [] }, t.subTopologies[1]], ['sub-topology 0: stores were dedupe, are none']],
  ])('differences: %s', (_name, change, lines) => {
    expect(differences(mine, { ...mine, subTopologies: change(mine) as typeof mine.subTopologies })).toEqual(lines)
  })

  test('a topology that does not fit is refused with every difference and both ways out', async () => {
    const other = { ...mine, subTopologies: [{ ...mine.subTopologies[0]!, partitions: 4, stores: [] }] }
    await expect(agree(brokerWith(other))).rejects.toMatchObject({
      message: expect.stringMatching(
        /app-tasks has on record:\n {2}sub-topology 0: partitions were 4, are 2\n {2}sub-topology 0: stores.*\n {2}sub-topology 1: new/,
      ),
      remedy: expect.stringContaining('another applicationId'),
    })
  })
})
