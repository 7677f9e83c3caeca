/** Partitions that are added to inputs: the rule that all workers agree by, what is refused, and the order of the steps while running (X6, X8). */
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { silentLogger } from '../../src/common/ports.ts'
import type { BrokerError } from '../../src/errors/broker-error.ts'
import { InputGrowth } from '../../src/runtime/input-growth.ts'
import { agreeOnTasks, type AgreementOptions } from '../../src/runtime/task-agreement.ts'
import {
  compareInputs,
  layoutOf,
  tableOf,
  TaskLayouts,
  TaskTableFold,
  tasksForGrowth,
  type TableExtension,
  type TaskLayout,
} from '../../src/runtime/task-layout.ts'
import { string } from '../../src/serde/index.ts'
import { topic, topology, type Sources } from '../../src/topology/index.ts'
import type { TopologyPlan } from '../../src/topology/nodes.ts'
import { compileTopology } from '../../src/topology/plan.ts'
import { jsonOf } from '../helpers/codecs.ts'
import { countingRandom, InstantTimers, ManualClock, settle } from '../helpers/manual-time.ts'
import { refusal, ScriptedBroker } from '../helpers/scripted-broker.ts'
import { taskTopicOn, type TaskTopicLog } from '../helpers/task-topic.ts'

const topicOf = (name: string) => topic(name, { key: string(), value: jsonOf<unknown>() })
const [a, b, c, out] = [topicOf('a'), topicOf('b'), topicOf('c'), topicOf('out')]
const planOf = (use: (sources: Sources) => void) => compileTopology(topology('app', use))
/** Two inputs in one stateless part, a third in another. */
const stateless = planOf(({ stream }) => {
  stream([a, b]).to(out)
  stream(c).to(out)
})
const stateful = planOf(({ stream }) => stream([a, b]).dedupe({ by: 'key', window: '1h' }).to(out))

type Counts = Readonly<Record<string, number>>
const countsOf = (counts: Counts): ReadonlyMap<string, number> => new Map(Object.entries(counts))
const namesOf = ({ tasks }: TaskLayout): string[] => tasks.map(({ name }) => name)
const INTERVAL_MS = 30_000

interface Scripted {
  readonly broker: ScriptedBroker
  readonly log: TaskTopicLog
  readonly clock: ManualClock
  readonly options: AgreementOptions
  resize(counts: Counts): void
}

/** A broker whose task topic has the table of `plan` as it was with `counts`. */
function scripted(plan: TopologyPlan, counts: Counts): Scripted {
  const broker = new ScriptedBroker()
  const table = tableOf(plan, countsOf(counts))
  const log = taskTopicOn(broker, 'app-tasks', ['table/0', JSON.stringify(table)])
  const resize = (now: Counts): void => {
    for (const [name, partitions] of Object.entries(now)) broker.admin.topics.set(name, { partitions, config: {} })
  }
  resize({ ...counts, 'app-tasks': layoutOf(table, []).tasks.length })
  const clock = new ManualClock()
  const options = {
    broker,
    plan,
    applicationId: 'app',
    random: countingRandom(),
    clock,
    timers: new InstantTimers(clock),
    logger: silentLogger,
    timeoutMs: 10_000,
  }
  return { broker, log, clock, options, resize }
}
const sizeOf = ({ broker }: Scripted, name: string): number => broker.admin.topics.get(name)!.partitions
const start = ({ options }: Scripted) => agreeOnTasks({ ...options, instanceId: 'app-a-0', replicationFactor: 1 })

describe('the fold', () => {
  const begin = { a: 1, b: 2, c: 1 }
  const table = tableOf(stateless, countsOf(begin))
  const fold = (log: readonly TableExtension[]): TaskLayout => {
    const folded = new TaskTableFold()
    folded.addTable(table)
    for (const extension of log) folded.addExtension(extension)
    return layoutOf(table, folded.extensions)
  }

  const step = fc.oneof(
    fc.record({ kind: fc.constant('grow' as const), topic: fc.constantFrom('a', 'b', 'c'), by: fc.integer({ min: 1, max: 3 }) }),
    fc.record({ kind: fc.constantFrom('look' as const, 'read' as const, 'write' as const), writer: fc.nat(2) }),
  )

  test('whatever the order in which three workers look, read and write: all agree, numbers never shift, each partition has one task', () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const sizes: Record<string, number> = { ...begin }
        const log: TableExtension[] = []
        // What each worker knows of the inputs and of the log: as old as its last look and its last read.
        const writers = [0, 1, 2].map(() => ({ sizes: countsOf(begin), read: 0 }))
        for (const each of steps) {
          if (each.kind === 'grow') {
            sizes[each.topic]! += each.by
            continue
          }
          const writer = writers[each.writer]!
          if (each.kind === 'look') writer.sizes = countsOf(sizes)
          else if (each.kind === 'read') writer.read = log.length
          else {
            const known = new TaskTableFold()
            known.addTable(table)
            for (const extension of log.slice(0, writer.read)) known.addExtension(extension)
            const { grown } = compareInputs(layoutOf(table, known.extensions), writer.sizes)
            if (grown.length > 0) log.push({ version: 1, base: known.extensions.length, tasks: tasksForGrowth(grown) })
          }
        }
        // Every prefix is what some reader may have seen: the next one only appends.
        let before = fold([])
        for (let length = 1; length <= log.length; length++) {
          const after = fold(log.slice(0, length)) // throws when a partition would have two tasks (TL3)
          expect(after.tasks.slice(0, before.tasks.length)).toEqual(before.tasks)
          before = after
        }
        expect(new Set(namesOf(before)).size).toBe(before.tasks.length)
        // Who looks and reads now can cover the rest in one write.
        const { grown } = compareInputs(before, countsOf(sizes))
        const accepted = new TaskTableFold()
        accepted.addTable(table)
        for (const extension of log) accepted.addExtension(extension)
        const all = layoutOf(table, [
          ...accepted.extensions,
          { version: 1, base: accepted.extensions.length, tasks: tasksForGrowth(grown) },
        ])
        expect(compareInputs(all, countsOf(sizes))).toEqual({ grown: [], shrunk: [] })
      }),
      { numRuns: 500 },
    )
  })

  test('an extension that was made on another state of the table does not count, and one before the first table neither', () => {
    const folded = new TaskTableFold()
    const extension = (base: number, partition: number): TableExtension => ({
      version: 1,
      base,
      tasks: [{ subTopology: 1, partition, inputs: ['c'] }],
    })
    folded.addExtension(extension(0, 9))
    folded.addTable(table)
    for (const each of [extension(1, 1), extension(0, 2), extension(0, 1), extension(1, 3)]) folded.addExtension(each)
    expect(folded.extensions).toEqual([extension(0, 2), extension(1, 3)])
  })

  test('an input that grows into partitions of another one gets tasks of its own, with names of their own', () => {
    const tasks = tasksForGrowth(compareInputs(layoutOf(table, []), countsOf({ a: 3, b: 3, c: 2 })).grown)
    expect(layoutOf(table, [{ version: 1, base: 0, tasks }]).tasks.slice(3)).toEqual([
      { name: '0_1-1', subTopology: 0, partition: 1, inputs: ['a'], extension: 1 },
      { name: '0_2', subTopology: 0, partition: 2, inputs: ['a', 'b'], extension: 1 },
      { name: '1_1', subTopology: 1, partition: 1, inputs: ['c'], extension: 1 },
    ])
  })
})

describe('at start', () => {
  test('a stateless input that grew is covered by new tasks, and the task topic grows before the worker joins', async () => {
    const place = scripted(stateless, { a: 1, b: 2, c: 1 })
    place.resize({ c: 3 })
    place.broker.admin.groups.push({ stable: true, members: [{ memberId: 'm', instanceId: 'app-a-0', assigned: [] }] }) // its own old place
    const { layout, taskPartitions } = await start(place)
    expect(namesOf(layout)).toEqual(['0_0', '0_1', '1_0', '1_1', '1_2'])
    expect(taskPartitions).toBe(5)
    expect(sizeOf(place, 'app-tasks')).toBe(5)
    // The next start finds it all there.
    expect((await start(place)).layout).toEqual(layout)
    expect(place.broker.written).toHaveLength(1)
  })

  test('a broker tells of added partitions a little later: the start waits, for a member that joins before spreads the old ones only', async () => {
    const place = scripted(stateless, { a: 1, b: 2, c: 1 })
    place.resize({ c: 3 })
    place.broker.admin.groups.push({ stable: true, members: [] })
    const known = place.clock.monotonic() + 3_000
    place.broker.admin.createPartitions = async () => undefined
    place.broker.admin.describeTopics = (names) => {
      if (place.clock.monotonic() >= known) place.resize({ 'app-tasks': 5 })
      return Object.getPrototypeOf(place.broker.admin).describeTopics.call(place.broker.admin, names)
    }
    expect((await start(place)).taskPartitions).toBe(5)
    expect(place.clock.monotonic()).toBeGreaterThanOrEqual(known)
  })

  test('with others in the group the task topic is left to them: they must read of the new tasks before they are assigned any', async () => {
    const place = scripted(stateless, { a: 1, b: 2, c: 1 })
    place.resize({ c: 3 })
    place.broker.admin.groups.push({ stable: true, members: [{ memberId: 'm', instanceId: 'app-a-1', assigned: [] }] })
    const { layout, taskPartitions } = await start(place)
    expect(layout.tasks).toHaveLength(5)
    expect([taskPartitions, sizeOf(place, 'app-tasks')]).toEqual([3, 3])
  })

  test('another worker may have let the task topic grow in the same moment', async () => {
    const place = scripted(stateless, { a: 1, b: 2, c: 1 })
    place.resize({ c: 3 })
    const createPartitions = place.broker.admin.createPartitions.bind(place.broker.admin)
    place.broker.admin.createPartitions = async (name, total) => {
      await createPartitions(name, total)
      await createPartitions(name, total)
    }
    expect((await start(place)).taskPartitions).toBe(5)
  })

  test('a worker whose extension comes second takes the other one, and adds only what that lacks', async () => {
    const place = scripted(stateless, { a: 1, b: 2, c: 1 })
    place.resize({ c: 4 })
    const first: TableExtension = { version: 1, base: 0, tasks: [{ subTopology: 1, partition: 1, inputs: ['c'] }] }
    place.log.beforeWrite = () => place.log.add('extension/first', JSON.stringify(first))
    const { layout } = await start(place)
    expect(layout.tasks.slice(3)).toMatchObject([
      { name: '1_1', extension: 1 },
      { name: '1_2', extension: 2 },
      { name: '1_3', extension: 2 },
    ])
  })

  test.each([
    ['all inputs of a stateful part', { a: 5, b: 5 }, 'input a grew from 2 to 5 partitions'],
    ['one input of a stateful part', { a: 2, b: 3 }, 'input b grew from 2 to 3 partitions'],
  ])('%s: refused with both counts and the plan, and nothing is written', async (_name, counts, message) => {
    const place = scripted(stateful, { a: 2, b: 2 })
    place.resize(counts)
    const started = start(place)
    await expect(started).rejects.toMatchObject({
      name: 'ConfigError',
      code: 'input-grew',
      message: expect.stringContaining(message),
      remedy: expect.stringMatching(/new topic with \d partitions.*new applicationId/),
    })
    expect(place.broker.written).toEqual([])
    expect(sizeOf(place, 'app-tasks')).toBe(2)
  })

  test('an input that seems to have shrunk is looked at again, for a broker can lag behind; then it is refused', async () => {
    const place = scripted(stateless, { a: 1, b: 2, c: 3 })
    place.resize({ c: 2 })
    await expect(start(place)).rejects.toMatchObject({
      code: 'topology-does-not-fit',
      message: expect.stringContaining('sub-topology 1: partitions of c were 3, are 2'),
    })
    expect(place.clock.monotonic()).toBeGreaterThanOrEqual(5_000)
    place.broker.admin.describeTopics = (names) => {
      if (place.clock.monotonic() > 7_000) place.resize({ c: 3 })
      return Object.getPrototypeOf(place.broker.admin).describeTopics.call(place.broker.admin, names)
    }
    expect((await start(place)).layout.tasks).toHaveLength(5)
  })

  test('a task topic with more partitions than tasks was altered by hand: refused, both counts named', async () => {
    const place = scripted(stateless, { a: 1, b: 2, c: 1 })
    place.resize({ 'app-tasks': 9 })
    await expect(start(place)).rejects.toMatchObject({
      code: 'internal-topic-differs',
      message: expect.stringContaining('app-tasks: 9 partitions, expected 3'),
    })
  })
})

describe('while running', () => {
  /** A worker that has started with `counts`. `turn` is a turn of its loop, with everything beside it done. */
  function running(plan: TopologyPlan, counts: Counts) {
    const place = scripted(plan, counts)
    const layout = layoutOf(tableOf(plan, countsOf(counts)), [])
    const layouts = new TaskLayouts(layout, layout.tasks.length)
    const prepared: string[] = []
    const growth = new InputGrowth({
      ...place.options,
      layouts,
      intervalMs: INTERVAL_MS,
      prepare: (partitions) => {
        prepared.push(...partitions.map(({ topic: name, partition }) => `${name}[${partition}]`))
        return Promise.resolve()
      },
    })
    const turn = async (): Promise<string[] | undefined> => {
      const early = growth.look()
      await settle()
      return (early ?? growth.look())?.map(({ name }) => name)
    }
    return { ...place, layouts, growth, prepared, turn }
  }

  test('nothing is looked at before the interval is over', async () => {
    const worker = running(stateless, { a: 1, b: 2, c: 1 })
    worker.resize({ c: 3 })
    worker.clock.advance(INTERVAL_MS - 1)
    expect(await worker.turn()).toBeUndefined()
    expect(worker.broker.written).toEqual([])
  })

  test('new tasks are on record and known, with the starts of their logs, an interval before the task topic grows', async () => {
    const worker = running(stateless, { a: 1, b: 2, c: 1 })
    worker.resize({ c: 3 })
    worker.clock.advance(INTERVAL_MS)
    expect(await worker.turn()).toEqual(['1_1', '1_2'])
    expect(worker.prepared).toContain('c[2]')
    expect(namesOf(worker.layouts.layout)).toEqual(['0_0', '0_1', '1_0', '1_1', '1_2'])
    expect([sizeOf(worker, 'app-tasks'), worker.growth.ownedTasks]).toEqual([3, 3])
    worker.clock.advance(INTERVAL_MS)
    await worker.turn()
    expect(sizeOf(worker, 'app-tasks')).toBe(5)
    // Without owner for no other reason than that the group has not noticed yet.
    expect(worker.growth.ownedTasks).toBe(3)
    worker.clock.advance(2 * INTERVAL_MS)
    expect(worker.growth.ownedTasks).toBe(5)
  })

  test('an extension of another worker is taken over without writing one', async () => {
    const worker = running(stateless, { a: 1, b: 2, c: 1 })
    worker.resize({ c: 3 })
    const [grown] = compareInputs(worker.layouts.layout, countsOf({ c: 3 })).grown
    worker.log.add('extension/x', JSON.stringify({ version: 1, base: 0, tasks: tasksForGrowth([grown!]) }))
    worker.clock.advance(INTERVAL_MS)
    expect(await worker.turn()).toEqual(['1_1', '1_2'])
    expect(worker.broker.written).toEqual([])
  })

  test('a task that was assigned before it is known is read about at once; one that is on no record ends the worker', async () => {
    const worker = running(stateless, { a: 1, b: 2, c: 1 })
    worker.resize({ c: 2, 'app-tasks': 4 })
    worker.log.add('extension/x', JSON.stringify({ version: 1, base: 0, tasks: [{ subTopology: 1, partition: 1, inputs: ['c'] }] }))
    worker.growth.readAgain([3])
    expect(await worker.turn()).toEqual(['1_1'])
    worker.growth.readAgain([3]) // known by now
    const { reads } = worker.log
    await worker.turn()
    expect(worker.log.reads).toBe(reads)
    worker.growth.readAgain([7])
    await expect(worker.turn()).rejects.toMatchObject({ code: 'unknown-task', message: expect.stringContaining('7 of app-tasks') })
  })

  test('X6: a stateful input that grew ends the worker, at every look of its loop', async () => {
    const worker = running(stateful, { a: 2, b: 2 })
    worker.resize({ a: 4, b: 4 })
    worker.clock.advance(INTERVAL_MS)
    await expect(worker.turn()).rejects.toMatchObject({ code: 'input-grew', message: expect.stringContaining('from 2 to 4') })
    expect(() => worker.growth.look()).toThrow(expect.objectContaining({ code: 'input-grew' }))
    expect(worker.broker.written).toEqual([])
  })

  test.each<[string, BrokerError, string | undefined]>([
    ['a broker that does not answer is asked again', refusal('admin', -185, { isRetriable: true }), undefined],
    ['X6: a missing right is no input without new records: the worker ends', refusal('admin', 29), 'input-growth-refused'],
  ])('%s', async (_name, failure, code) => {
    const worker = running(stateless, { a: 1, b: 2, c: 1 })
    worker.resize({ c: 3 })
    const { describeTopics } = worker.broker.admin
    worker.broker.admin.describeTopics = () => Promise.reject(failure)
    worker.clock.advance(INTERVAL_MS)
    if (code !== undefined) {
      await expect(worker.turn()).rejects.toMatchObject({ name: 'ConfigError', code })
      return
    }
    expect(await worker.turn()).toBeUndefined()
    worker.broker.admin.describeTopics = describeTopics
    expect(await worker.turn()).toBeUndefined()
    worker.clock.advance(INTERVAL_MS)
    expect(await worker.turn()).toEqual(['1_1', '1_2'])
  })

  test('an input that a lagging broker does not know for a moment ends nothing', async () => {
    const worker = running(stateless, { a: 1, b: 2, c: 1 })
    worker.broker.admin.topics.delete('c')
    worker.clock.advance(INTERVAL_MS)
    expect(await worker.turn()).toBeUndefined()
  })
})
