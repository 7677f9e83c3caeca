/** Tasks that come and go while their preparation waits for the broker (src/runtime/task-lifecycle.ts). */
import { describe, expect, test } from 'vitest'
import { silentLogger } from '../../src/common/ports.ts'
import type { AssignedTask } from '../../src/runtime/assigned-task.ts'
import { CommitCycle } from '../../src/runtime/commit-cycle.ts'
import { InputReader } from '../../src/runtime/input-reader.ts'
import { writeMetadata } from '../../src/runtime/offset-metadata.ts'
import { LogStarts } from '../../src/runtime/log-starts.ts'
import { OwnedTasks } from '../../src/runtime/owned-tasks.ts'
import { ProducerRing } from '../../src/runtime/producer-ring.ts'
import { PositionCheck } from '../../src/runtime/position-check.ts'
import { RecordAttempts } from '../../src/runtime/record-attempts.ts'
import { RecordOutbox } from '../../src/runtime/record-outbox.ts'
import { Restorer } from '../../src/runtime/restore.ts'
import { SinkCheck } from '../../src/runtime/sink-limits.ts'
import { SlotOwnership } from '../../src/runtime/slot-ownership.ts'
import { TaskLifecycle } from '../../src/runtime/task-lifecycle.ts'
import { TaskLayouts } from '../../src/runtime/task-layout.ts'
import { PROGRESS, progressKey } from '../../src/runtime/task-table.ts'
import { TransactionMachine } from '../../src/runtime/transaction.ts'
import { WorkerMetrics } from '../../src/runtime/worker-metrics.ts'
import type { WorkerOptions, WorkerSettings } from '../../src/runtime/worker-options.ts'
import { string } from '../../src/serde/index.ts'
import { createMemoryBackend, MemoryDisk } from '../../src/state/memory/memory-backend.ts'
import { topic, topology } from '../../src/topology/index.ts'
import { compileTopology } from '../../src/topology/plan.ts'
import { countingRandom, InstantTimers, ManualClock, settle } from '../helpers/manual-time.ts'
import { record, refusal, ScriptedBroker } from '../helpers/scripted-broker.ts'
import { jsonOf } from '../helpers/codecs.ts'

const events = (name: string) => topic(name, { key: string(), value: jsonOf<unknown>() })
const plan = compileTopology(topology('app', ({ stream }) => stream(events('in')).dedupe({ by: 'key', window: '1h' }).to(events('out'))))
const TASKS_TOPIC = 'app-tasks'

function lifecycleOn(broker = new ScriptedBroker(), disk = new MemoryDisk()) {
  const clock = new ManualClock()
  const timers = new InstantTimers(clock)
  const owner = { slot: 'a-0', pid: 1, host: 'h' }
  const backend = createMemoryBackend({ owner, clock, timers, disk, lockTimeoutMs: 15_000 })
  const settings = {
    applicationId: 'app',
    taskTimeoutMs: 300_000,
    producerRingSize: 2,
    transactionTimeoutMs: 10_000,
    heartbeatIntervalMs: 1_000,
  } as WorkerSettings
  const events: string[] = []
  const claims = { reads: 0, read: (): Promise<boolean> => Promise.resolve(true) }
  const worker: WorkerOptions = {
    plan,
    settings,
    broker,
    backend,
    clock,
    timers,
    random: countingRandom(),
    logger: silentLogger,
    listener: {
      state() {},
      assigned: (tasks) => events.push(`assigned ${tasks.join()}`),
      revoked: (tasks, lost) => events.push(`${lost ? 'lost' : 'revoked'} ${tasks.join()}`),
      restored() {},
      commit() {},
      failure() {},
    },
  }
  const tasks = new OwnedTasks()
  const { consumer } = broker
  const metrics = new WorkerMetrics(clock)
  const slot = new SlotOwnership(consumer, tasks, 'app-a-0')
  const logStarts = new LogStarts({ admin: broker.admin, partitions: () => [], intervalMs: 30_000, clock, logger: silentLogger })
  const positions = new PositionCheck({
    admin: broker.admin,
    tasks,
    logStarts,
    policy: 'fail',
    metrics,
    intervalMs: 30_000,
    clock,
    logger: silentLogger,
  })
  const reader = new InputReader({
    consumer,
    tasks,
    slot,
    positions,
    logStarts,
    tasksTopic: TASKS_TOPIC,
    clock,
    timers,
    logger: silentLogger,
  })
  const restorer = new Restorer({
    connectReader: () => broker.connectReader(),
    admin: broker.admin,
    groupId: 'app',
    clock,
    timers,
    logger: silentLogger,
    noProgressMs: 60_000,
    memtableBytes: 1_000_000,
    onDone() {},
  })
  const outbox = new RecordOutbox(new SinkCheck(new Map(), clock), 1_000)
  const attempts = new RecordAttempts({ readNote: () => undefined, writeNote() {} })
  const ring = new ProducerRing({
    broker,
    idPrefix: 'app-a-0',
    size: 2,
    transactionTimeoutMs: 10_000,
    initTimeoutMs: 1_000,
    patienceMs: 10_000,
    clock,
    timers,
    logger: silentLogger,
  })
  const budgets = { callTimeoutMs: 100, commitMs: 1_000, totalMs: 2_000 }
  const cycle = new CommitCycle({
    ...worker,
    machine: new TransactionMachine({ ring, budgets, clock, timers, logger: silentLogger }),
    consumer,
    reader,
    slot,
    tasks,
    attempts,
    outbox,
    metrics,
    transactionalIdPrefix: 'app-a-0',
    progressTopic: TASKS_TOPIC,
    restart: (restarted, reason) => lifecycle.restart(restarted, reason),
    hasLastClaim: () => {
      claims.reads++
      return claims.read()
    },
  })
  const layouts = new TaskLayouts(
    { tasks: [{ name: '0_0', subTopology: 0, partition: 0, inputs: ['in'], extension: 0 }], partitions: [1] },
    1,
  )
  const lifecycle: TaskLifecycle = new TaskLifecycle({
    worker,
    tasks,
    layouts,
    tasksTopic: TASKS_TOPIC,
    logStarts,
    consumer,
    outbox,
    reader,
    positions,
    cycle: () => cycle,
    attempts,
    restorer,
  })
  return { broker, lifecycle, layouts, tasks, backend, disk, clock, events, worker, cycle, ring, claims }
}
const mine = [{ topic: TASKS_TOPIC, partition: 0 }]
const CHANGELOG = 'app-dedupe-changelog'
const metadata = (nonce: string): string =>
  writeMetadata({ nonce, streamTime: 7, transactionalIdPrefix: 'app-a-0', ringSize: 2, committedAt: 3 })

/** Assigned, restored, running; producers are ready. */
async function runningOn(setup: ReturnType<typeof lifecycleOn>): Promise<AssignedTask> {
  await setup.ring.open({ maxMessageBytes: 1_000_000, batchBytes: 1_000_000 })
  setup.broker.consumer.assigned = setup.lifecycle.assigned(mine).slice()
  await setup.lifecycle.handleEvents()
  await settle()
  await setup.lifecycle.handleEvents()
  const task = setup.tasks.get(0)!
  expect(task.phase).toBe('running')
  return task
}

function hasOffset({ broker }: ReturnType<typeof lifecycleOn>, offset: number): void {
  broker.consumer.committedOffsets.set('in[0]', { topic: 'in', partition: 0, offset, metadata: metadata('n') })
  broker.admin.bounds.set('in[0]', { topic: 'in', partition: 0, logStart: 0, highWatermark: 1_000 })
}

describe('the position of an input', () => {
  test('F52: outside of its log is found at its start, before anything is read: refused with the range, unless the policy says otherwise', async () => {
    const setup = lifecycleOn()
    hasOffset(setup, 5)
    setup.broker.admin.bounds.set('in[0]', { topic: 'in', partition: 0, logStart: 9, highWatermark: 20 })
    await setup.ring.open({ maxMessageBytes: 1_000_000, batchBytes: 1_000_000 })
    setup.broker.consumer.assigned = setup.lifecycle.assigned(mine).slice()
    await setup.lifecycle.handleEvents()
    await settle()
    await expect(setup.lifecycle.handleEvents()).rejects.toMatchObject({
      code: 'offset-out-of-range',
      message: 'reading is not possible: in[0] at offset 5, which has offsets 9 to 20',
    })
  })
})

/** What the task topic has on record: a table, and notes of the tasks that ever committed. */
function hasProgress({ broker }: ReturnType<typeof lifecycleOn>, ...names: string[]): void {
  broker.admin.bounds.set('app-tasks[0]', { topic: 'app-tasks', partition: 0, logStart: 0, highWatermark: names.length })
  broker.reader.deliver(
    names.map((name, offset) => record('app-tasks', offset, String(progressKey(name)), String(PROGRESS))),
    [{ topic: 'app-tasks', partition: 0, offset: names.length }],
  )
}

/** Assigned, and the error that ends the worker. */
async function failureOf({ lifecycle }: ReturnType<typeof lifecycleOn>): Promise<unknown> {
  lifecycle.assigned(mine)
  await lifecycle.handleEvents()
  await settle()
  return lifecycle.handleEvents().then(
    () => undefined,
    (error: unknown) => error,
  )
}

describe('a task whose preparation waits', () => {
  test('L3, X7: is assigned paused, and runs only when its committed offsets and its state are there', async () => {
    const { lifecycle, tasks, broker, events } = lifecycleOn()
    let open = () => {}
    broker.consumer.committedGate = new Promise((resolve) => (open = resolve))
    expect(lifecycle.assigned(mine)).toEqual([
      { ...mine[0], offset: 0 },
      { topic: 'in', partition: 0, offset: 0 },
    ])
    await lifecycle.handleEvents()
    await settle()
    await lifecycle.handleEvents()
    expect(tasks.get(0)?.phase).toBe('preparing')
    expect(broker.consumer.seeks).toEqual([])
    open()
    await settle()
    await lifecycle.handleEvents()
    expect(tasks.get(0)?.phase).toBe('running')
    expect(broker.consumer.seeks).toEqual([{ topic: 'in', partition: 0, offset: 0 }])
    expect(events).toEqual(['assigned 0_0'])
  })

  test('L2: a revoke meanwhile is answered, once, and the late preparation changes nothing', async () => {
    const { lifecycle, tasks, broker, events } = lifecycleOn()
    let open = () => {}
    broker.consumer.committedGate = new Promise((resolve) => (open = resolve))
    lifecycle.assigned(mine)
    await lifecycle.handleEvents()
    const answered = lifecycle.revoked(mine, false)
    await lifecycle.handleEvents()
    expect(await answered).toEqual([...mine, { topic: 'in', partition: 0 }])
    open()
    await settle()
    await lifecycle.handleEvents()
    expect(tasks.size).toBe(0)
    expect(broker.consumer.seeks).toEqual([])
    expect(events).toEqual(['assigned 0_0', 'revoked 0_0'])
  })

  test('its state is free as soon as the task was given up, though its preparation still waits: the next owner is not locked out', async () => {
    const { lifecycle, broker, disk, clock } = lifecycleOn()
    // A dead peer's transaction holds the committed offsets, for up to its time-out and the scan of the broker.
    broker.consumer.committedGate = new Promise(() => {})
    lifecycle.assigned(mine)
    await lifecycle.handleEvents()
    await settle()
    const answered = lifecycle.revoked(mine, false)
    await lifecycle.handleEvents()
    await answered
    const next = createMemoryBackend({
      owner: { slot: 'b-0', pid: 2, host: 'h' },
      clock,
      timers: new InstantTimers(clock),
      disk,
      lockTimeoutMs: 15_000,
    })
    const state = await next.open('0_0', plan.subTopologies[0]!.stores)
    state.close()
  })

  test('the end of the worker answers the open revoke and closes late results (X10)', async () => {
    const { lifecycle, broker, disk } = lifecycleOn()
    let open = () => {}
    broker.consumer.committedGate = new Promise((resolve) => (open = resolve))
    lifecycle.assigned(mine)
    await lifecycle.handleEvents()
    const answered = lifecycle.revoked(mine, false)
    lifecycle.end()
    await answered
    open()
    await settle()
    expect(disk.locks.size).toBe(0)
  })

  test('a lookup that fails for good ends the worker through the loop, not as an unhandled rejection', async () => {
    const { lifecycle, broker } = lifecycleOn()
    broker.admin.offsets = () => Promise.reject(new TypeError('no such thing'))
    lifecycle.assigned(mine)
    await lifecycle.handleEvents()
    await settle()
    await expect(lifecycle.handleEvents()).rejects.toThrow('no such thing')
  })

  test('a task that another worker added is assigned, stays unread, and is given back with the next revoke', async () => {
    const { lifecycle, layouts } = lifecycleOn()
    expect(lifecycle.assigned([{ topic: TASKS_TOPIC, partition: 1 }])).toEqual([{ topic: TASKS_TOPIC, partition: 1, offset: 0 }])
    await lifecycle.handleEvents()
    expect(lifecycle.unknownTasks).toEqual([1])
    // Knowing it now does not help: inputs can be assigned in the callback only.
    const added = { name: '0_1', subTopology: 0, partition: 1, inputs: ['in'], extension: 1 }
    layouts.adopt({ tasks: [...layouts.layout.tasks, added], partitions: [2] }, 2)
    expect(lifecycle.unknownTasks).toEqual([1])
    expect(await lifecycle.revoked([{ topic: TASKS_TOPIC, partition: 1 }], false)).toEqual([{ topic: TASKS_TOPIC, partition: 1 }])
    expect(lifecycle.unknownTasks).toEqual([])
    expect(lifecycle.assigned([{ topic: TASKS_TOPIC, partition: 1 }]).map(({ topic, partition }) => [topic, partition])).toEqual([
      [TASKS_TOPIC, 1],
      ['in', 1],
    ])
  })
})

describe('committed offsets at the start of a task', () => {
  test('F52: progress on record without an offset refuses to start: reading from the beginning would repeat every output', async () => {
    const setup = lifecycleOn()
    hasProgress(setup, '0_0')
    expect(await failureOf(setup)).toMatchObject({
      name: 'ConfigError',
      code: 'offsets-missing',
      message: expect.stringMatching(/task 0_0 .*in\[0\].* has worked before.*no committed offset for in\[0\]/),
      remedy: expect.stringContaining('--reset-offsets'),
    })
    expect(setup.disk.locks.size).toBe(0)
  })

  test('an offset that came while this process was stopped is no lost one: with progress on record the offsets are asked for again', async () => {
    // Asked for the first offset of the task, then stopped; another worker took it over and committed, and its progress is what this one finds.
    const setup = lifecycleOn()
    hasProgress(setup, '0_0')
    const { consumer } = setup.broker
    const ask = consumer.committed.bind(consumer)
    consumer.committed = async (partitions) => {
      const answer = await ask(partitions)
      hasOffset(setup, 15)
      return answer
    }
    await runningOn(setup)
    expect(setup.broker.consumer.seeks).toEqual([{ topic: 'in', partition: 0, offset: 15 }])
  })

  test('a task that was taken away meanwhile ends nobody, whatever its offsets say', async () => {
    const setup = lifecycleOn()
    hasProgress(setup, '0_0')
    setup.lifecycle.assigned(mine)
    await setup.lifecycle.handleEvents()
    void setup.lifecycle.revoked([{ topic: TASKS_TOPIC, partition: 0 }], true)
    await setup.lifecycle.handleEvents()
    await settle()
    await setup.lifecycle.handleEvents()
    expect(setup.tasks.get(0)).toBeUndefined()
  })

  test('progress of another task alone is no obstacle', async () => {
    const setup = lifecycleOn()
    hasProgress(setup, '0_1')
    await runningOn(setup)
  })

  test('a first start commits its start position at once, so the next owner begins there too', async () => {
    const setup = lifecycleOn()
    setup.broker.admin.bounds.set('in[0]', { topic: 'in', partition: 0, logStart: 12, highWatermark: 20 })
    const task = await runningOn(setup)
    expect(setup.broker.consumer.seeks).toEqual([{ topic: 'in', partition: 0, offset: 12 }])
    expect(task.dirty).toBe(true)
    expect(await setup.cycle.commit('drained')).toBe(true)
    expect(setup.broker.producers.flatMap(({ sentOffsets }) => sentOffsets)).toMatchObject([[{ topic: 'in', partition: 0, offset: 12 }]])
    expect(task.dirty).toBe(false)
  })

  test('the first offsets of a task go together with the note that there are some, later ones without', async () => {
    const setup = lifecycleOn()
    const task = await runningOn(setup)
    await setup.cycle.commit('drained')
    task.touched = true
    await setup.cycle.commit('drained')
    expect(setup.broker.producers.flatMap(({ produced }) => produced)).toMatchObject([
      { topic: TASKS_TOPIC, partition: 0, key: progressKey('0_0'), value: PROGRESS },
    ])
    // Transaction by transaction, each on its own producer of the ring.
    expect(setup.broker.script.operations.filter((operation) => operation === 'sendOffsets' || operation === 'produce')).toEqual([
      'produce',
      'sendOffsets',
      'sendOffsets',
    ])
  })

  test('a task that has offsets goes on from there, with nothing to commit', async () => {
    const setup = lifecycleOn()
    hasOffset(setup, 15)
    const task = await runningOn(setup)
    expect(setup.broker.consumer.seeks).toEqual([{ topic: 'in', partition: 0, offset: 15 }])
    expect([task.dirty, task.task!.streamTimeOf('in')]).toEqual([false, 7])
  })
})

describe('the file and its changelog', () => {
  /** A file that is complete up to `checkpoint`, left behind by an earlier process. */
  async function fileAt({ backend }: ReturnType<typeof lifecycleOn>, checkpoint: number): Promise<void> {
    const state = await backend.open('0_0', plan.subTopologies[0]!.stores)
    state.flush(new Map([['dedupe', checkpoint]]))
    state.close()
  }
  const log = (setup: ReturnType<typeof lifecycleOn>, logStart: number, highWatermark: number) =>
    setup.broker.admin.bounds.set(`${CHANGELOG}[0]`, { topic: CHANGELOG, partition: 0, logStart, highWatermark })

  test('F52: a log that ends before the checkpoint is an error with a plan, and the file, perhaps the last copy, stays as it is', async () => {
    const setup = lifecycleOn()
    hasOffset(setup, 15)
    await fileAt(setup, 40)
    log(setup, 0, 10)
    expect(await failureOf(setup)).toMatchObject({
      name: 'ConfigError',
      code: 'changelog-shrunk',
      message: expect.stringMatching(/offset 40 of app-dedupe-changelog\[0\].*ends at 10/),
    })
    const state = await setup.backend.open('0_0', plan.subTopologies[0]!.stores)
    expect(state.checkpoint('dedupe')).toBe(40)
  })

  test.each([
    ['at the end of the log: nothing is read', 10, 0, 10, undefined],
    ['before the end: read on from there', 4, 0, 10, 4],
    ['before the log start, C32: rebuilt from the log start, once', 4, 6, 10, 6],
  ])('a checkpoint %s', async (_name, checkpoint, logStart, end, from) => {
    const setup = lifecycleOn()
    hasOffset(setup, 15)
    await fileAt(setup, checkpoint)
    log(setup, logStart, end)
    setup.lifecycle.assigned(mine)
    await setup.lifecycle.handleEvents()
    await settle()
    await setup.lifecycle.handleEvents()
    expect(setup.tasks.get(0)!.phase).toBe(from === undefined ? 'running' : 'restoring')
    if (from !== undefined) {
      await setup.lifecycle.restoreStep(0)
      expect(setup.broker.reader.assignments).toEqual([[{ topic: CHANGELOG, partition: 0, offset: from }]])
    }
  })

  test('a checkpoint older than the retention of tombstones is rebuilt from the log start: deleted ids would rise again', async () => {
    const setup = lifecycleOn()
    hasOffset(setup, 15)
    await fileAt(setup, 4)
    log(setup, 0, 10)
    setup.clock.advance(7 * 86_400_000)
    setup.lifecycle.assigned(mine)
    await setup.lifecycle.handleEvents()
    await settle()
    await setup.lifecycle.handleEvents()
    await setup.lifecycle.restoreStep(0)
    expect(setup.broker.reader.assignments).toEqual([[{ topic: CHANGELOG, partition: 0, offset: 0 }]])
  })
})

describe('F1: a worker that woke up after its session was over', () => {
  test.each([
    ['the client knows of its loss', (setup: ReturnType<typeof lifecycleOn>) => (setup.broker.consumer.isLost = true)],
    [
      'the client does not know yet, the group refuses',
      (setup: ReturnType<typeof lifecycleOn>) =>
        setup.broker.script.fail('sendOffsets', refusal('sendOffsets', 25, { isAbortRequired: true })),
    ],
  ])('writes no checkpoint over the records of the new owner: %s', async (_name, loses) => {
    const setup = lifecycleOn()
    hasOffset(setup, 15)
    await runningOn(setup)
    // The new owner has written up to 9.
    setup.broker.admin.bounds.set(`${CHANGELOG}[0]`, { topic: CHANGELOG, partition: 0, logStart: 0, highWatermark: 9 })
    loses(setup)
    const answered = setup.lifecycle.revoked(mine, false)
    await setup.lifecycle.handleEvents()
    await answered
    expect(setup.tasks.size).toBe(0)
    const state = await setup.backend.open('0_0', plan.subTopologies[0]!.stores)
    expect(state.checkpoint('dedupe')).toBeUndefined()
    expect(setup.broker.script.operations).not.toContain('commit')
  })
})

// Seen under chaos: (1) a twin fences the producers of a worker, (2) the group puts that worker out, (3) its client joins again by itself, which puts the twin
// out, (4) the worker re-initialises its producers, which fences the twin: the one that came later ended.
describe('CC4: after a fence the claims of the slot are read', () => {
  async function fencedOnce(read: () => Promise<boolean>) {
    const setup = lifecycleOn()
    await runningOn(setup)
    const { cycle, clock, tasks, broker, claims } = setup
    claims.read = read
    broker.script.fail('sendOffsets', refusal('sendOffsets', -144, { isFatal: true }))
    expect(await cycle.begin()).toBe(true)
    tasks.get(0)!.touched = true
    expect(await cycle.commit('interval')).toBe(false)
    broker.script.calls.length = 0
    clock.advance(2_000)
    return setup
  }

  test('a later one ends the worker, before it inits a producer', async () => {
    const { cycle, broker } = await fencedOnce(() => Promise.resolve(false))
    await cycle.recover()
    await settle()
    await expect(cycle.recover()).rejects.toMatchObject({ code: 'slot-taken', cause: { code: -144 } })
    expect(broker.script.operations).not.toContain('init')
  })

  test('its own is the last: it goes on; they are read once, beside the loop, and nothing is inited meanwhile', async () => {
    let answer: (isOurs: boolean) => void = () => undefined
    const { cycle, broker, claims } = await fencedOnce(() => new Promise((resolve) => (answer = resolve)))
    for (let turn = 0; turn < 3; turn++) {
      await cycle.recover()
      await settle()
    }
    expect(claims.reads).toBe(1)
    expect(broker.script.operations).not.toContain('init')
    answer(true)
    await settle()
    for (let turn = 0; turn < 3; turn++) {
      await cycle.recover()
      await settle()
    }
    expect(cycle.isUsable).toBe(true)
  })

  test('they cannot be read: membership is the proof', async () => {
    const { cycle } = await fencedOnce(() => Promise.reject(refusal('admin', -185)))
    for (let turn = 0; turn < 4; turn++) {
      await cycle.recover()
      await settle()
    }
    expect(cycle.isUsable).toBe(true)
  })
})

describe('CC4: a second fence within a minute', () => {
  /** What ended the second of two fenced transactions; undefined when the worker went on. */
  async function fencedTwice(fence: (setup: ReturnType<typeof lifecycleOn>) => Promise<boolean>): Promise<unknown> {
    const setup = lifecycleOn()
    await runningOn(setup)
    const { cycle, clock, tasks } = setup
    for (const round of [1, 2]) {
      try {
        expect(await fence(setup)).toBe(false)
      } catch (error) {
        return { round, code: (error as { code?: string }).code }
      }
      // The way back: membership is proven, producers are new, the task restores.
      for (let turn = 0; turn < 10; turn++) {
        clock.advance(1_000)
        await cycle.recover()
        await settle()
        await setup.lifecycle.handleEvents()
      }
      expect(tasks.get(0)!.phase).toBe('running')
      expect(cycle.isUsable).toBe(true)
    }
    return undefined
  }

  const atOffsets =
    (ageMs: number) =>
    async ({ broker, cycle, clock, tasks }: ReturnType<typeof lifecycleOn>): Promise<boolean> => {
      broker.script.fail('sendOffsets', refusal('sendOffsets', -144, { isFatal: true }))
      expect(await cycle.begin()).toBe(true)
      tasks.get(0)!.touched = true
      clock.advance(ageMs)
      return cycle.commit('interval')
    }

  test('ends the worker: another process has the slot', async () => {
    expect(await fencedTwice(atOffsets(10))).toEqual({ round: 2, code: 'slot-taken' })
  })

  test('ends it too when it shows at begin after a long rest: the rest is not the age of a transaction', async () => {
    const atBegin = ({ broker, cycle, clock }: ReturnType<typeof lifecycleOn>): Promise<boolean> => {
      clock.advance(15_000)
      broker.script.fail('begin', refusal('begin', -144))
      return cycle.begin()
    }
    expect(await fencedTwice(atBegin)).toEqual({ round: 2, code: 'slot-taken' })
  })

  test('that a time-out explains does not: a process that is stopped twice is still the owner', async () => {
    expect(await fencedTwice(atOffsets(11_000))).toBeUndefined()
  })
})
