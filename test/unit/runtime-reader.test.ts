/** Reading: which polled record still counts, and what a refused position means (src/runtime/input-reader.ts, CASES B24, F52). */
import { describe, expect, test } from 'vitest'
import { silentLogger } from '../../src/common/ports.ts'
import type { BrokerError } from '../../src/errors/broker-error.ts'
import { AssignedTask } from '../../src/runtime/assigned-task.ts'
import { InputReader } from '../../src/runtime/input-reader.ts'
import { LogStarts } from '../../src/runtime/log-starts.ts'
import { OwnedTasks } from '../../src/runtime/owned-tasks.ts'
import { PositionCheck } from '../../src/runtime/position-check.ts'
import { confirmTaken, SlotOwnership } from '../../src/runtime/slot-ownership.ts'
import { WorkerMetrics } from '../../src/runtime/worker-metrics.ts'
import type { OffsetOutOfRangePolicy } from '../../src/runtime/worker-options.ts'
import type { SubTopology } from '../../src/topology/nodes.ts'
import { InstantTimers, ManualClock } from '../helpers/manual-time.ts'
import { refusal, ScriptedBroker } from '../helpers/scripted-broker.ts'

const sub: SubTopology = { id: 0, nodes: [], inputs: ['in'], stores: [] }
const CHECK_MS = 30_000

/** Two running tasks at offsets 5 and 7. */
async function scene({ policy = 'fail' }: { policy?: OffsetOutOfRangePolicy } = {}) {
  const clock = new ManualClock()
  const broker = new ScriptedBroker()
  const tasks = new OwnedTasks()
  const metrics = new WorkerMetrics(clock)
  const slot = new SlotOwnership(broker.consumer, tasks, 'app-a-0')
  const watch = { admin: broker.admin, intervalMs: CHECK_MS, clock, logger: silentLogger }
  const logStarts = new LogStarts({ ...watch, partitions: () => [...tasks.inputs()] })
  const reader = new InputReader({
    consumer: broker.consumer,
    tasks,
    slot,
    positions: new PositionCheck({ ...watch, tasks, logStarts, policy, metrics }),
    logStarts,
    tasksTopic: 'app-tasks',
    clock,
    timers: new InstantTimers(clock),
    logger: silentLogger,
  })
  const running = async (partition: number, next: number): Promise<AssignedTask> => {
    const task = new AssignedTask(partition, 'app-tasks', sub, partition, sub.inputs)
    tasks.add(task)
    broker.consumer.assigned.push(...task.assigned)
    task.inputs[0]!.committed = task.inputs[0]!.next = next
    task.moveTo('restoring')
    tasks.activate(task)
    await reader.start(task)
    task.moveTo('running')
    return task
  }
  const first = await running(0, 5)
  const second = await running(1, 7)
  const logs = (...bounds: [logStart: number, highWatermark: number][]): void =>
    bounds.forEach(([logStart, highWatermark], partition) =>
      broker.admin.bounds.set(`in[${partition}]`, { topic: 'in', partition, logStart, highWatermark }),
    )
  return { clock, broker, tasks, reader, slot, metrics, first, second, logs, logStarts }
}

describe('records that are stale', () => {
  test('a poll issued before a rewind does not count, the next one does', async () => {
    const { reader, first } = await scene()
    await reader.poll(10, 0)
    expect(reader.accept('in', 0)).toBe(first.inputs[0])
    await reader.rewind(first)
    expect(reader.accept('in', 0)).toBeUndefined()
    // Another task's records are as good as before.
    expect(reader.accept('in', 1)).toBeDefined()
    await reader.poll(10, 0)
    expect(reader.accept('in', 0)).toBe(first.inputs[0])
  })

  test('B24: an end of a stale poll moves no position; one that counts steps over control records', async () => {
    const { reader, first } = await scene()
    await reader.poll(10, 0)
    await reader.rewind(first)
    reader.stepOverControlRecords([{ topic: 'in', partition: 0, offset: 9 }])
    expect(first.inputs[0]!.next).toBe(5)
    await reader.poll(10, 0)
    reader.stepOverControlRecords([{ topic: 'in', partition: 0, offset: 9 }])
    expect(first.inputs[0]!.next).toBe(9)
    expect(first.dirty).toBe(true)
  })

  test('what was paused counts no more, whatever is polled', async () => {
    const { reader, first, broker } = await scene()
    reader.pause([first])
    await reader.poll(10, 0)
    expect(reader.accept('in', 0)).toBeUndefined()
    expect([...broker.consumer.paused]).toEqual(['in[0]'])
  })
})

describe('positions', () => {
  test.each([-140, 1])(
    'F52: a poll refused with %i, and an offset before its log: the worker ends, the partition and its bounds named, no other one',
    async (code) => {
      const { reader, broker, logs } = await scene()
      logs([6, 20], [0, 7])
      broker.script.fail('poll', refusal('poll', code))
      await expect(reader.poll(10, 0)).rejects.toMatchObject({
        name: 'ConfigError',
        code: 'offset-out-of-range',
        message: 'reading is not possible: in[0] at offset 5, which has offsets 6 to 20',
      })
    },
  )

  test('F52: an offset behind the end of its log is no better: the topic was re-created', async () => {
    const { reader, broker, logs } = await scene()
    logs([0, 5], [0, 3])
    broker.script.fail('poll', refusal('poll', -140))
    await expect(reader.poll(10, 0)).rejects.toThrow('in[1] at offset 7, which has offsets 0 to 3')
  })

  test('a refused poll while every position is inside its log is that of an assignment: nothing ends', async () => {
    const { reader, broker, logs } = await scene()
    logs([5, 5], [0, 7])
    broker.script.fail('poll', refusal('poll', -140))
    expect(await reader.poll(10, 0)).toEqual({ records: [], ends: [] })
  })

  test('an input that stands still without a word is found at the next look, and not before', async () => {
    const { reader, logs, clock } = await scene()
    logs([6, 20], [0, 7])
    await reader.checkPositionsWhenDue()
    clock.advance(CHECK_MS)
    await expect(reader.checkPositionsWhenDue()).rejects.toMatchObject({ code: 'offset-out-of-range' })
  })

  test('a broker that does not answer is no finding', async () => {
    const { reader, broker, clock } = await scene()
    broker.admin.offsets = () => Promise.reject(refusal('admin', -185))
    clock.advance(CHECK_MS)
    await reader.checkPositionsWhenDue()
    broker.script.fail('poll', refusal('poll', -140))
    expect(await reader.poll(10, 0)).toEqual({ records: [], ends: [] })
  })
})

describe('the policy for an offset out of range', () => {
  test.each([
    ['earliest', 6, 1],
    ['latest', 20, 15],
  ] as const)('%s goes on there, counted; the other input stays where it is', async (policy, to, passedOver) => {
    const { reader, broker, logs, first, second, metrics } = await scene({ policy })
    logs([6, 20], [0, 7])
    broker.consumer.seeks.length = 0
    broker.script.fail('poll', refusal('poll', -140))
    expect(await reader.poll(10, 0)).toEqual({ records: [], ends: [] })
    expect([first.inputs[0]!.next, second.inputs[0]!.next]).toEqual([to, 7])
    // The client has stopped the input for good: a seek would fail, a new assignment is needed.
    expect(broker.consumer.seeks).toEqual([])
    expect(reader.mustRejoin).toBe(true)
    expect(metrics.offsetsPassedOver).toBe(passedOver)
    // Committed at once: the next start must not meet it again.
    expect([first.dirty, second.dirty]).toEqual([true, false])
  })
})

describe('a partition that the client has stopped, since its log lost its head just before it was assigned there', () => {
  const stopped = refusal('seek', -172)

  test('the worker joins anew, with the starts of the logs as they are now', async () => {
    const { reader, broker, first, logs, logStarts } = await scene()
    logs([3, 20], [0, 7])
    broker.script.fail('seek', ...Array.from({ length: 100 }, () => stopped))
    await reader.rewind(first)
    expect(reader.mustRejoin).toBe(true)
    expect(logStarts.of('in', 0)).toBe(3)
  })

  test('any other seek that keeps failing ends the worker', async () => {
    const { reader, broker, first, logs } = await scene()
    logs([0, 20], [0, 7])
    broker.script.fail('seek', ...Array.from({ length: 1_000 }, () => stopped))
    await expect(reader.rewind(first)).rejects.toMatchObject({ code: 'seek-failed' })
  })
})

describe('a batch that does not fit its checksum', () => {
  test('X6: ends the worker: the client would never read on behind it', async () => {
    const { reader, broker } = await scene()
    broker.script.fail('poll', refusal('poll', -199))
    await expect(reader.poll(10, 0)).rejects.toMatchObject({ code: 'corrupted-record' })
  })
})

describe('I3: held reading', () => {
  test('nothing is delivered from any running task; released, each reads on where it stands', async () => {
    const { reader, broker, first } = await scene()
    reader.hold()
    expect([...broker.consumer.paused].sort()).toEqual(['in[0]', 'in[1]'])
    first.inputs[0]!.next = 6
    broker.consumer.seeks.length = 0
    await reader.release()
    expect([...broker.consumer.paused]).toEqual([])
    expect(broker.consumer.seeks.map(({ offset }) => offset)).toEqual([6, 7])
  })

  test('a task that starts meanwhile waits with the others', async () => {
    const { reader, broker, second } = await scene()
    reader.pause([second])
    reader.hold()
    await reader.start(second)
    expect(broker.consumer.paused).toContain('in[1]')
    await reader.release()
    expect([...broker.consumer.paused]).toEqual([])
  })
})

describe('what ends a poll', () => {
  test.each([
    [-150, 'slot-taken'],
    [29, 'reading-refused'],
    [-12_345, 'consumer-failed'],
  ])('%i ends the worker: %s', async (code, as) => {
    const { reader, broker } = await scene()
    broker.script.fail('poll', refusal('poll', code))
    await expect(reader.poll(10, 0)).rejects.toMatchObject({ code: as })
  })

  test.each([-195, -185, 22, 27])('%i passes: an empty poll', async (code) => {
    const { reader, broker } = await scene()
    broker.script.fail('poll', refusal('poll', code))
    expect(await reader.poll(10, 0)).toEqual({ records: [], ends: [] })
  })

  test('A1: an owned slot without assignments was taken, without any event', async () => {
    const { slot, broker } = await scene()
    expect(() => slot.check()).not.toThrow()
    broker.consumer.assigned = []
    expect(() => slot.check()).toThrow(expect.objectContaining({ name: 'SlotTakenError' }))
  })
})

describe('a slot that is said to be taken', () => {
  async function endsWith(claims: Promise<ReadonlyMap<string, string>>, cause?: BrokerError): Promise<Error> {
    const { slot } = await scene()
    return confirmTaken(slot.taken(cause), 'app-a-0', 'mine', () => claims, silentLogger)
  }
  const last = (...claims: [string, string][]) => Promise.resolve(new Map(claims))

  test('SO3: another process has claimed it since: this one stays away', async () => {
    expect(await endsWith(last(['app-a-0', 'of another']))).toMatchObject({ name: 'SlotTakenError', exitCode: 5 })
    expect(await endsWith(last(['app-a-1', 'mine']))).toMatchObject({ name: 'SlotTakenError', exitCode: 5 })
  })

  test('SO3: nobody has: its own join was answered too late, and it may start again at once', async () => {
    expect(await endsWith(last(['app-a-0', 'mine'], ['app-a-1', 'of another']))).toMatchObject({ code: 'membership-lost', exitCode: 3 })
  })

  test('SO3: the same when the client was put out of the group; but a fence of the producers has somebody behind it, with a claim or without (A9)', async () => {
    expect(await endsWith(last(['app-a-0', 'mine']), refusal('poll', -150))).toMatchObject({ code: 'membership-lost' })
    expect(await endsWith(last(['app-a-0', 'mine']), refusal('commit', -144))).toMatchObject({ code: 'slot-taken' })
  })

  test('SO3: claims that cannot be read leave the doubt, and the slot counts as taken', async () => {
    expect(await endsWith(Promise.reject(refusal('admin', 16)))).toMatchObject({ code: 'slot-taken' })
  })
})
