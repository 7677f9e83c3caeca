/** Restore on a scripted changelog reader: when it ends, where it goes on, and what it says when it cannot (X7, CASES B24, B25, C26). */
import { describe, expect, test } from 'vitest'
import type { BrokerRecord } from '../../src/broker/port.ts'
import { silentLogger, type Logger } from '../../src/common/ports.ts'
import { BrokerUnavailableError, CorruptedStoreError } from '../../src/errors/errors.ts'
import { AssignedTask } from '../../src/runtime/assigned-task.ts'
import { Restorer, type RestoreProgress } from '../../src/runtime/restore.ts'
import { createMemoryBackend, MemoryDisk } from '../../src/state/memory/memory-backend.ts'
import type { DedupeStore, TaskState } from '../../src/state/store.ts'
import type { SubTopology } from '../../src/topology/nodes.ts'
import { InstantTimers, ManualClock } from '../helpers/manual-time.ts'
import { ScriptedReader } from '../helpers/scripted-broker.ts'

const CHANGELOG = 'app-seen-changelog'
const WINDOW = 3_600_000
const T0 = 1_700_000_000_000
const spec = { kind: 'dedupe', name: 'seen', windowMs: WINDOW, refresh: false, keepOrigin: false, version: 1 } as const
const sub: SubTopology = { id: 0, nodes: [], inputs: ['in'], stores: [spec] }

interface Setup {
  readonly reader: ScriptedReader
  readonly restorer: Restorer
  readonly done: RestoreProgress[]
  readonly warnings: string[]
  readonly clock: ManualClock
  readonly disk: MemoryDisk
  task(partition?: number): Promise<{ task: AssignedTask; store: DedupeStore; state: TaskState }>
}

function setup({ memtableBytes = 1_000_000, noProgressMs = 60_000, disk = new MemoryDisk() } = {}): Setup {
  const clock = new ManualClock(T0)
  const reader = new ScriptedReader()
  const done: RestoreProgress[] = []
  const warnings: string[] = []
  const logger: Logger = { ...silentLogger, warn: (_details, message) => warnings.push(message) }
  const restorer = new Restorer({
    connectReader: () => Promise.resolve(reader),
    clock,
    logger,
    noProgressMs,
    memtableBytes,
    onDone: (progress) => done.push(progress),
  })
  const backend = createMemoryBackend({ owner: { slot: 's', pid: 1, host: 'h' }, timers: new InstantTimers(clock), clock, disk })
  return {
    reader,
    restorer,
    done,
    warnings,
    clock,
    disk,
    async task(partition = 0) {
      const state = await backend.open(`0_${partition}`, sub.stores)
      const task = new AssignedTask(partition, 'app-tasks', sub, partition, sub.inputs)
      task.state = state
      task.moveTo('restoring')
      return { task, state, store: state.stores.get('seen') as DedupeStore }
    },
  }
}

/** Changelog records as a store really writes them: one for each list of ids. */
async function changelog(...transactions: string[][]): Promise<{ key: Buffer; value: Buffer | null }[]> {
  const { task } = setup()
  const { store } = await task()
  const records: { key: Buffer; value: Buffer | null }[] = []
  transactions.forEach((ids, index) => {
    for (const id of ids) store.observe(id, T0, T0, 0, 0)
    store.prepare(Buffer.alloc(16, index + 1), (key, value) => records.push({ key, value }))
    store.commit()
  })
  return records
}

const at = (offset: number, { key, value }: { key: Buffer; value: Buffer | null }, partition = 0): BrokerRecord => ({
  topic: CHANGELOG,
  partition,
  offset,
  timestamp: T0,
  key,
  value,
  headers: [],
})
const end = (offset: number, partition = 0) => ({ topic: CHANGELOG, partition, offset })
const knows = (store: DedupeStore, id: string): boolean => {
  store.beginRecord()
  const verdict = store.observe(id, T0, T0, 0, 0)
  store.rollbackRecord()
  return verdict === 'duplicate'
}

describe('when a restore ends', () => {
  test('B24: a changelog that ends in control records ends the restore: the end lies past them', async () => {
    const { reader, restorer, done, task } = setup()
    const { task: assigned, store } = await task()
    const [first] = await changelog(['a', 'b'])
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 5 })
    reader.deliver([at(0, first!)]).deliver([], [end(5)])
    expect((await restorer.step(0)).finished).toEqual([])
    expect((await restorer.step(0)).finished).toEqual([assigned])
    expect([knows(store, 'a'), knows(store, 'b'), knows(store, 'c')]).toEqual([true, true, false])
    // B25: nothing is left to do by its own account.
    expect(done).toMatchObject([{ task: '0_0', store: 'seen', records: 1, done: 5, total: 5 }])
    expect(restorer.active).toBe(false)
  })

  test('B24: an empty changelog with a non-zero end is restored without a record', async () => {
    const { reader, restorer, task, done } = setup()
    const { task: assigned, store } = await task()
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 8 })
    reader.deliver([], [end(8)])
    expect((await restorer.step(0)).finished).toEqual([assigned])
    expect(done).toMatchObject([{ records: 0, done: 8, total: 8 }])
  })

  test('X7, C26: an end below the target is an open transaction: it is waited for, and what came after it is restored too', async () => {
    const { reader, restorer, task, warnings, clock } = setup()
    const { task: assigned, store } = await task()
    const [first, second] = await changelog(['a'], ['y'])
    // X is open at offset 1, Y committed at 2: the last stable offset is 1, the high watermark 4.
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 4 })
    reader.deliver([at(0, first!)], [end(1)])
    expect((await restorer.step(0)).finished).toEqual([])
    clock.advance(6_000)
    expect((await restorer.step(0)).finished).toEqual([])
    expect(warnings).toEqual(['restore waits: an open transaction holds the changelog at its first record'])
    reader.deliver([at(2, second!)], [end(4)])
    expect((await restorer.step(0)).finished).toEqual([assigned])
    expect(knows(store, 'y')).toBe(true)
  })

  test('a task with two partitions in the works is finished with its last one, another task on its own', async () => {
    const { reader, restorer, task } = setup()
    const one = await task(0)
    const two = await task(1)
    restorer.add({ task: one.task, store: one.store, topic: CHANGELOG, partition: 0, from: 0, target: 2 })
    restorer.add({ task: one.task, store: one.store, topic: 'app-other-changelog', partition: 0, from: 0, target: 2 })
    restorer.add({ task: two.task, store: two.store, topic: CHANGELOG, partition: 1, from: 0, target: 2 })
    reader.deliver([], [end(2, 0), end(2, 1)])
    expect((await restorer.step(0)).finished).toEqual([two.task])
    reader.deliver([], [{ topic: 'app-other-changelog', partition: 0, offset: 2 }])
    expect((await restorer.step(0)).finished).toEqual([one.task])
  })
})

describe('where a restore goes on', () => {
  test('C34: what was restored is flushed with its position, so the next restore begins there', async () => {
    const disk = new MemoryDisk()
    const records = await changelog(['a'], ['b'], ['c'])
    const before = setup({ memtableBytes: 1, disk })
    const first = await before.task()
    before.restorer.add({ task: first.task, store: first.store, topic: CHANGELOG, partition: 0, from: 0, target: 3 })
    before.reader.deliver([at(0, records[0]!), at(1, records[1]!)])
    await before.restorer.step(0)
    expect(first.state.checkpoint('seen')).toBe(2)
    await before.restorer.close()
    first.state.close()

    const after = setup({ disk })
    const second = await after.task()
    expect(second.state.checkpoint('seen')).toBe(2)
    after.restorer.add({ task: second.task, store: second.store, topic: CHANGELOG, partition: 0, from: 2, target: 3 })
    after.reader.deliver([at(2, records[2]!)], [end(3)])
    await after.restorer.step(0)
    expect(after.reader.assignments[0]).toEqual([{ topic: CHANGELOG, partition: 0, offset: 2 }])
    expect(['a', 'b', 'c'].map((id) => knows(second.store, id))).toEqual([true, true, true])
  })

  test('C34: a restore that is given up half-way keeps what it has, also below the memtable budget', async () => {
    const { reader, restorer, task } = setup()
    const { task: assigned, store, state } = await task()
    const records = await changelog(['a'], ['b'])
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 3 })
    reader.deliver(records.map((each, offset) => at(offset, each)))
    await restorer.step(0)
    restorer.save(assigned)
    restorer.remove(assigned)
    expect(state.checkpoint('seen')).toBe(2)
  })

  test('C34: a worker that ends in the middle of its restores keeps all of them; one that has read nothing keeps its checkpoint', async () => {
    const { reader, restorer, task } = setup()
    const one = await task(0)
    const two = await task(1)
    const [first] = await changelog(['a'])
    restorer.add({ task: one.task, store: one.store, topic: CHANGELOG, partition: 0, from: 0, target: 3 })
    restorer.add({ task: two.task, store: two.store, topic: CHANGELOG, partition: 1, from: 0, target: 3 })
    reader.deliver([at(1, first!, 0)])
    await restorer.step(0)
    restorer.saveAll()
    expect([one.state.checkpoint('seen'), two.state.checkpoint('seen')]).toEqual([2, undefined])
  })

  test('a store that turns out to be damaged is handed back for its rebuild; the other tasks are restored', async () => {
    const { reader, restorer, task } = setup()
    const one = await task(0)
    const two = await task(1)
    const [first] = await changelog(['a'])
    const damage = new CorruptedStoreError('page 7 is wrong', { code: 'store-damaged' })
    one.state.flush = () => {
      throw damage
    }
    for (const { task: assigned, store } of [one, two]) {
      restorer.add({ task: assigned, store, topic: CHANGELOG, partition: assigned.partition, from: 0, target: 1 })
    }
    reader.deliver([at(0, first!, 0), at(0, first!, 1)], [end(1, 0), end(1, 1)])
    expect(await restorer.step(0)).toEqual({ finished: [two.task], damaged: [{ task: one.task, error: damage }] })
    expect([knows(two.store, 'a'), restorer.active]).toEqual([true, false])
  })

  test('X9: large changelog records are read in small steps, however many of them there are', async () => {
    const { reader, restorer, task } = setup()
    const { task: assigned, store } = await task()
    const large = await changelog(Array.from({ length: 12_000 }, (_, index) => `id${index}`))
    const bytes = large.reduce((sum, { value }) => sum + (value?.length ?? 0), 0) / large.length
    expect(bytes).toBeGreaterThan(100_000)
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 1_000 })
    reader.deliver(large.map((each, offset) => at(offset, each)))
    await restorer.step(0)
    await restorer.step(0)
    expect(reader.asked.at(-1)! * bytes).toBeLessThanOrEqual(4_194_304)
    reader.deliver(Array.from({ length: 10 }, (_, offset) => at(large.length + offset, { key: large[0]!.key, value: null })))
    await restorer.step(0)
    await restorer.step(0)
    expect(reader.asked.at(-1)).toBe(2_000)
  })

  test('X2: the end of a restore is on disk with its checkpoint', async () => {
    const { reader, restorer, task } = setup()
    const { task: assigned, store, state } = await task()
    const [first] = await changelog(['a'])
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 2 })
    reader.deliver([at(0, first!)], [end(2)])
    await restorer.step(0)
    expect(state.checkpoint('seen')).toBe(2)
  })

  test('a task that was given up is left alone: late records of it change nothing', async () => {
    const { reader, restorer, task } = setup()
    const { task: assigned, store } = await task()
    const [first] = await changelog(['a'])
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 2 })
    restorer.remove(assigned)
    reader.deliver([at(0, first!)], [end(2)])
    expect((await restorer.step(0)).finished).toEqual([])
    expect(knows(store, 'a')).toBe(false)
    expect(reader.assignments.at(-1)).toEqual([])
  })

  test('a partition added later does not start the others anew', async () => {
    const { reader, restorer, task } = setup()
    const one = await task(0)
    const two = await task(1)
    const [first] = await changelog(['a'])
    restorer.add({ task: one.task, store: one.store, topic: CHANGELOG, partition: 0, from: 0, target: 9 })
    reader.deliver([at(4, first!)])
    await restorer.step(0)
    restorer.add({ task: two.task, store: two.store, topic: CHANGELOG, partition: 1, from: 3, target: 9 })
    await restorer.step(0)
    expect(reader.assignments.at(-1)).toEqual([
      { topic: CHANGELOG, partition: 0, offset: 5 },
      { topic: CHANGELOG, partition: 1, offset: 3 },
    ])
  })
})

describe('a restore without progress', () => {
  test('ends with a message that names partition, position, target and the way out', async () => {
    const { restorer, task, clock, reader } = setup({ noProgressMs: 10_000 })
    const { task: assigned, store } = await task()
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 3, target: 7 })
    reader.deliver([], [end(5)])
    await restorer.step(0)
    clock.advance(10_001)
    const stalled = restorer.step(0)
    await expect(stalled).rejects.toBeInstanceOf(BrokerUnavailableError)
    await expect(stalled).rejects.toMatchObject({
      code: 'restore-stalled',
      message: `restore of ${CHANGELOG}[0] made no progress for 10001 ms: at offset 5, target 7, read_committed end 5`,
      remedy: expect.stringContaining('kafka-transactions.sh'),
    })
  })

  test('C36: slow is not stalled: any record starts the deadline anew, and rate and rest are shown', async () => {
    const { restorer, task, clock, reader } = setup({ noProgressMs: 10_000 })
    const { task: assigned, store } = await task()
    const records = await changelog(['a'], ['b'], ['c'], ['d'])
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 5 })
    await restorer.step(0)
    for (const [offset, each] of records.entries()) {
      clock.advance(9_000)
      reader.deliver([at(offset, each)])
      await restorer.step(0)
    }
    expect(restorer.progress()).toMatchObject([
      { task: '0_0', store: 'seen', records: 4, done: 4, total: 5, elapsedMs: 36_000, etaMs: 9_000 },
    ])
  })
})
