/** Tasks that come and go while their preparation waits for the broker (src/runtime/task-lifecycle.ts). */
import { describe, expect, test } from 'vitest'
import { silentLogger } from '../../src/common/ports.ts'
import { CommitCycle } from '../../src/runtime/commit-cycle.ts'
import { InputReader } from '../../src/runtime/input-reader.ts'
import { OwnedTasks } from '../../src/runtime/owned-tasks.ts'
import { ProducerRing } from '../../src/runtime/producer-ring.ts'
import { RecordOutbox } from '../../src/runtime/record-outbox.ts'
import { Restorer } from '../../src/runtime/restore.ts'
import { SinkCheck } from '../../src/runtime/sink-limits.ts'
import { TaskLifecycle } from '../../src/runtime/task-lifecycle.ts'
import { TransactionMachine } from '../../src/runtime/transaction.ts'
import { WorkerMetrics } from '../../src/runtime/worker-metrics.ts'
import type { WorkerOptions, WorkerSettings } from '../../src/runtime/worker-options.ts'
import { string } from '../../src/serde/index.ts'
import { createMemoryBackend, MemoryDisk } from '../../src/state/memory/memory-backend.ts'
import { topic, topology } from '../../src/topology/index.ts'
import { compileTopology } from '../../src/topology/plan.ts'
import { countingRandom, InstantTimers, ManualClock, settle } from '../helpers/manual-time.ts'
import { ScriptedBroker } from '../helpers/scripted-broker.ts'
import { jsonOf } from '../helpers/codecs.ts'

const events = (name: string) => topic(name, { key: string(), value: jsonOf<unknown>() })
const plan = compileTopology(topology('app', ({ stream }) => stream(events('in')).dedupe({ by: 'key', window: '1h' }).to(events('out'))))
const TASKS_TOPIC = 'app-tasks'

function lifecycleOn(broker = new ScriptedBroker(), disk = new MemoryDisk()) {
  const clock = new ManualClock()
  const timers = new InstantTimers(clock)
  const owner = { slot: 'a-0', pid: 1, host: 'h' }
  const backend = createMemoryBackend({ owner, clock, timers, disk, lockTimeoutMs: 15_000 })
  const settings = { applicationId: 'app', taskTimeoutMs: 300_000, producerRingSize: 2 } as WorkerSettings
  const events: string[] = []
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
  const reader = new InputReader({ consumer, tasks, slotName: 'app-a-0', tasksTopic: TASKS_TOPIC, clock, timers, logger: silentLogger })
  const restorer = new Restorer({
    connectReader: () => broker.connectReader(),
    clock,
    logger: silentLogger,
    noProgressMs: 60_000,
    memtableBytes: 1_000_000,
    onDone() {},
  })
  const outbox = new RecordOutbox(new SinkCheck(new Map(), clock), 1_000)
  const ring = new ProducerRing({
    broker,
    idPrefix: 'app-a-0',
    size: 2,
    transactionTimeoutMs: 10_000,
    initTimeoutMs: 1_000,
    clock,
    timers,
    logger: silentLogger,
  })
  const budgets = { callTimeoutMs: 100, commitBudgetMs: 1_000, replaceBudgetMs: 1_000 }
  const cycle = new CommitCycle({
    ...worker,
    machine: new TransactionMachine(ring, budgets, clock, silentLogger),
    consumer,
    reader,
    tasks,
    outbox,
    metrics: new WorkerMetrics(clock),
    transactionalIdPrefix: 'app-a-0',
    progressTopic: TASKS_TOPIC,
    restart: (restarted, reason) => lifecycle.restart(restarted, reason),
  })
  const lifecycle: TaskLifecycle = new TaskLifecycle({
    worker,
    tasks,
    layout: { tasks: [{ subTopology: 0, partition: 0, inputs: ['in'] }], partitions: [1] },
    tasksTopic: TASKS_TOPIC,
    consumer,
    outbox,
    reader,
    cycle: () => cycle,
    restorer,
  })
  return { broker, lifecycle, tasks, backend, disk, clock, events, worker }
}
const mine = [{ topic: TASKS_TOPIC, partition: 0 }]

describe('a task whose preparation waits', () => {
  test('L3, X7: is assigned paused, and runs only when its committed offsets and its state are there', async () => {
    const { lifecycle, tasks, broker, events } = lifecycleOn()
    let open = () => {}
    broker.consumer.committedGate = new Promise((resolve) => (open = resolve))
    expect(lifecycle.assigned(mine)).toEqual([...mine, { topic: 'in', partition: 0 }])
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

  test('a task number that the table does not have is an error with the way out', async () => {
    const { lifecycle } = lifecycleOn()
    lifecycle.assigned([{ topic: TASKS_TOPIC, partition: 7 }])
    await expect(lifecycle.handleEvents()).rejects.toMatchObject({
      code: 'unknown-task',
      message: expect.stringContaining('task 7 of app-tasks'),
    })
  })
})
