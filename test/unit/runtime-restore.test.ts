/** Restore on a scripted changelog reader: when it ends, where it goes on, and what it says when it cannot (X7, CASES B24, B25, C26). */
import { describe, expect, test } from 'vitest'
import type { BrokerRecord, ChangelogReader } from '../../src/broker/port.ts'
import { silentLogger, type Logger } from '../../src/common/ports.ts'
import { BrokerUnavailableError, CorruptedStoreError } from '../../src/errors/errors.ts'
import { AssignedTask } from '../../src/runtime/assigned-task.ts'
import { writeMetadata } from '../../src/runtime/offset-metadata.ts'
import { Restorer, type RestoreProgress } from '../../src/runtime/restore.ts'
import { createMemoryBackend, MemoryDisk } from '../../src/state/memory/memory-backend.ts'
import type { DedupeStore, TaskState } from '../../src/state/store.ts'
import type { SubTopology } from '../../src/topology/nodes.ts'
import { InstantTimers, ManualClock, settle } from '../helpers/manual-time.ts'
import { refusal, ScriptedAdmin, ScriptedReader } from '../helpers/scripted-broker.ts'

const CHANGELOG = 'app-seen-changelog'
const WINDOW = 3_600_000
const T0 = 1_700_000_000_000
const spec = { kind: 'dedupe', name: 'seen', windowMs: WINDOW, refresh: false, keepOrigin: false, version: 1 } as const
/** Nothing of the changelog was read before T0; its tombstones stay for a week. */
const FRESH = { readAt: T0, deleteRetentionMs: 7 * 86_400_000 }
const sub: SubTopology = { id: 0, nodes: [], inputs: ['in'], stores: [spec] }

interface Setup {
  readonly reader: ScriptedReader
  readonly admin: ScriptedAdmin
  readonly restorer: Restorer
  readonly done: RestoreProgress[]
  readonly warnings: string[]
  readonly clock: ManualClock
  readonly disk: MemoryDisk
  task(partition?: number): Promise<{ task: AssignedTask; store: DedupeStore; state: TaskState }>
}

function setup({
  memtableBytes = 1_000_000,
  noProgressMs = 60_000,
  disk = new MemoryDisk(),
  reader = new ScriptedReader(),
  connectReader = (): Promise<ChangelogReader> => Promise.resolve(reader),
} = {}): Setup {
  const clock = new ManualClock(T0)
  const admin = new ScriptedAdmin()
  const timers = new InstantTimers(clock)
  const done: RestoreProgress[] = []
  const warnings: string[] = []
  const logger: Logger = { ...silentLogger, warn: (_details, message) => warnings.push(message) }
  const restorer = new Restorer({
    connectReader,
    admin,
    groupId: 'app',
    clock,
    timers,
    logger,
    noProgressMs,
    memtableBytes,
    onDone: (progress) => done.push(progress),
  })
  const backend = createMemoryBackend({ owner: { slot: 's', pid: 1, host: 'h' }, timers, clock, disk })
  return {
    reader,
    admin,
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
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 5, ...FRESH })
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
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 8, ...FRESH })
    reader.deliver([], [end(8)])
    expect((await restorer.step(0)).finished).toEqual([assigned])
    expect(done).toMatchObject([{ records: 0, done: 8, total: 8 }])
  })

  test('X7, C26: an end below the target is an open transaction: it is waited for, and what came after it is restored too', async () => {
    const { reader, restorer, task, warnings, clock, admin } = setup()
    const { task: assigned, store } = await task()
    admin.bounds.set(`${CHANGELOG}[0]`, { topic: CHANGELOG, partition: 0, logStart: 0, highWatermark: 4 })
    const [first, second] = await changelog(['a'], ['y'])
    // X is open at offset 1, Y committed at 2: the last stable offset is 1, the high watermark 4.
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 4, ...FRESH })
    reader.deliver([at(0, first!)], [end(1)])
    expect((await restorer.step(0)).finished).toEqual([])
    clock.advance(6_000)
    expect((await restorer.step(0)).finished).toEqual([])
    expect(warnings).toEqual(['restore waits for an open transaction of an unknown producer'])
    expect(restorer.progress()).toMatchObject([{ done: 1, total: 4, waitingFor: 'an open transaction of an unknown producer' }])
    reader.deliver([at(2, second!)], [end(4)])
    expect((await restorer.step(0)).finished).toEqual([assigned])
    expect(knows(store, 'y')).toBe(true)
  })

  test('a task with two partitions in the works is finished with its last one, another task on its own', async () => {
    const { reader, restorer, task } = setup()
    const one = await task(0)
    const two = await task(1)
    restorer.add({ task: one.task, store: one.store, topic: CHANGELOG, partition: 0, from: 0, target: 2, ...FRESH })
    restorer.add({ task: one.task, store: one.store, topic: 'app-other-changelog', partition: 0, from: 0, target: 2, ...FRESH })
    restorer.add({ task: two.task, store: two.store, topic: CHANGELOG, partition: 1, from: 0, target: 2, ...FRESH })
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
    before.restorer.add({ task: first.task, store: first.store, topic: CHANGELOG, partition: 0, from: 0, target: 3, ...FRESH })
    before.reader.deliver([at(0, records[0]!), at(1, records[1]!)])
    await before.restorer.step(0)
    expect(first.state.checkpoint('seen')).toBe(2)
    await before.restorer.close()
    first.state.close()

    const after = setup({ disk })
    const second = await after.task()
    expect(second.state.checkpoint('seen')).toBe(2)
    after.restorer.add({ task: second.task, store: second.store, topic: CHANGELOG, partition: 0, from: 2, target: 3, ...FRESH })
    after.reader.deliver([at(2, records[2]!)], [end(3)])
    await after.restorer.step(0)
    expect(after.reader.assignments[0]).toEqual([{ topic: CHANGELOG, partition: 0, offset: 2 }])
    expect(['a', 'b', 'c'].map((id) => knows(second.store, id))).toEqual([true, true, true])
  })

  test('C34: a restore that is given up half-way keeps what it has, also below the memtable budget', async () => {
    const { reader, restorer, task } = setup()
    const { task: assigned, store, state } = await task()
    const records = await changelog(['a'], ['b'])
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 3, ...FRESH })
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
    restorer.add({ task: one.task, store: one.store, topic: CHANGELOG, partition: 0, from: 0, target: 3, ...FRESH })
    restorer.add({ task: two.task, store: two.store, topic: CHANGELOG, partition: 1, from: 0, target: 3, ...FRESH })
    reader.deliver([at(1, first!, 0)])
    await restorer.step(0)
    restorer.saveAll()
    expect([one.state.checkpoint('seen'), two.state.checkpoint('seen')]).toEqual([2, undefined])
  })

  test('what an interrupted restore keeps is as old as its checkpoint was: keys it still has may have been deleted since, and their tombstones too', async () => {
    const { reader, restorer, task, clock, admin } = setup()
    const { task: assigned, store, state } = await task()
    const records = await changelog(['a'], ['b'])
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 2, ...FRESH, readAt: T0 - 5_000 })
    admin.bounds.set(`${CHANGELOG}[0]`, { topic: CHANGELOG, partition: 0, logStart: 0, highWatermark: 2 })
    reader.deliver([at(0, records[0]!)])
    await restorer.step(0)
    clock.advance(1_000)
    restorer.save(assigned)
    expect([state.checkpoint('seen'), state.checkpointTime('seen')]).toEqual([1, T0 - 5_000])
    // At its end it has seen everything up to now.
    reader.deliver([at(1, records[1]!)], [end(2)])
    await restorer.step(0)
    expect([state.checkpoint('seen'), state.checkpointTime('seen')]).toEqual([2, T0 + 1_000])
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
      restorer.add({ task: assigned, store, topic: CHANGELOG, partition: assigned.partition, from: 0, target: 1, ...FRESH })
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
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 1_000, ...FRESH })
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
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 2, ...FRESH })
    reader.deliver([at(0, first!)], [end(2)])
    await restorer.step(0)
    expect(state.checkpoint('seen')).toBe(2)
  })

  test('a task that was given up is left alone: late records of it change nothing', async () => {
    const { reader, restorer, task } = setup()
    const { task: assigned, store } = await task()
    const [first] = await changelog(['a'])
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 2, ...FRESH })
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
    restorer.add({ task: one.task, store: one.store, topic: CHANGELOG, partition: 0, from: 0, target: 9, ...FRESH })
    reader.deliver([at(4, first!)])
    await restorer.step(0)
    restorer.add({ task: two.task, store: two.store, topic: CHANGELOG, partition: 1, from: 3, target: 9, ...FRESH })
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
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 3, target: 7, ...FRESH })
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
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 5, ...FRESH })
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

describe('an open transaction', () => {
  test('R3, A13: is named after the last committer of the task, in the log, the status and the final error', async () => {
    const { reader, restorer, task, warnings, clock, admin } = setup({ noProgressMs: 20_000 })
    const { task: assigned, store } = await task()
    const metadata = writeMetadata({ nonce: 'n', streamTime: T0, transactionalIdPrefix: 'app-gone-3', ringSize: 2, committedAt: T0 })
    admin.present.set('in[0]', { topic: 'in', partition: 0, offset: 4, metadata })
    admin.bounds.set(`${CHANGELOG}[0]`, { topic: CHANGELOG, partition: 0, logStart: 0, highWatermark: 7 })
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 3, target: 7, ...FRESH })
    reader.deliver([], [end(5)])
    await restorer.step(0)
    clock.advance(6_000)
    await restorer.step(0)
    await settle()
    const holder = 'an open transaction of app-gone-3-0 or app-gone-3-1'
    expect(warnings.at(-1)).toBe(`restore waits for ${holder}`)
    expect(restorer.progress()).toMatchObject([{ waitingFor: holder }])
    clock.advance(20_000)
    await expect(restorer.step(0)).rejects.toMatchObject({
      code: 'restore-stalled',
      message: expect.stringContaining(`it waits for ${holder}`),
      remedy: expect.stringContaining('Start the slot that used the id again'),
    })
  })

  test('that is over is not reported any more', async () => {
    const { reader, restorer, task, clock, admin } = setup()
    const { task: assigned, store } = await task()
    admin.bounds.set(`${CHANGELOG}[0]`, { topic: CHANGELOG, partition: 0, logStart: 0, highWatermark: 7 })
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 3, target: 7, ...FRESH })
    reader.deliver([], [end(5)])
    await restorer.step(0)
    clock.advance(6_000)
    await restorer.step(0)
    reader.deliver([], [end(6)])
    await restorer.step(0)
    expect(restorer.progress()).toMatchObject([{ done: 3, waitingFor: undefined }])
  })
})

describe('C32: records deleted from the head of a changelog during its restore', () => {
  const bounds = ({ admin }: Setup, logStart: number, highWatermark: number, partition = 0) =>
    admin.bounds.set(`${CHANGELOG}[${partition}]`, { topic: CHANGELOG, partition, logStart, highWatermark })

  /** One task at offset 1 of its changelog, another one beside it; the reader stops one of them, without saying which. */
  async function stopped(logStart: number, highWatermark = 3) {
    const all = setup()
    bounds(all, logStart, highWatermark)
    bounds(all, 0, 3, 1)
    const { reader, restorer, task } = all
    const [one, two] = [await task(0), await task(1)]
    const records = await changelog(['a'], ['b'], ['c'])
    restorer.add({ task: one.task, store: one.store, topic: CHANGELOG, partition: 0, from: 0, target: 3, ...FRESH })
    restorer.add({ task: two.task, store: two.store, topic: CHANGELOG, partition: 1, from: 0, target: 3, ...FRESH })
    reader.deliver([at(0, records[0]!), at(0, records[0]!, 1)])
    await restorer.step(0)
    reader.polls.push(refusal('read', -140))
    await restorer.step(0)
    return { ...all, one, two, records }
  }

  test('that store restarts from the log start, once, with reason and counter; the other one reads on where it was', async () => {
    const scene = await stopped(2)
    const { reader, restorer, one, two, records, warnings, done } = scene
    await settle()
    reader.deliver([at(2, records[2]!), at(1, records[1]!, 1)], [end(3), end(3, 1)])
    expect((await restorer.step(0)).finished).toEqual([one.task, two.task])
    expect(reader.assignments[1]).toEqual([
      { topic: CHANGELOG, partition: 0, offset: 2 },
      { topic: CHANGELOG, partition: 1, offset: 1 },
    ])
    // What was deleted is gone here too: the changelog is the truth.
    expect(['a', 'b', 'c'].map((id) => knows(one.store, id))).toEqual([false, false, true])
    expect(['a', 'b'].map((id) => knows(two.store, id))).toEqual([true, true])
    expect(warnings).toEqual([
      expect.stringMatching(/rebuilding the store from its changelog once: records were deleted .* up to offset 2, .* at offset 1/),
    ])
    expect(done).toMatchObject([
      { task: '0_0', rebuild: 'head-deleted', done: 1, total: 1 },
      { task: '0_1', rebuild: undefined, done: 3 },
    ])
    expect(restorer.counters).toMatchObject({ started: 2, finished: 2, records: 4, rebuilds: { 'head-deleted': 1 } })
  })

  test('found also when the reader never says so: a restore without progress is compared with its log', async () => {
    const all = setup()
    const { reader, restorer, task, clock } = all
    const { task: assigned, store } = await task()
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 1, target: 3, ...FRESH })
    bounds(all, 2, 3)
    await restorer.step(0)
    clock.advance(6_000)
    await restorer.step(0)
    await settle()
    await restorer.step(0)
    expect(reader.assignments.at(-1)).toEqual([{ topic: CHANGELOG, partition: 0, offset: 2 }])
  })

  test('a second time within the same restore is an error that names the cause', async () => {
    const scene = await stopped(2)
    const { reader, restorer } = scene
    await settle()
    bounds(scene, 3, 3)
    reader.polls.push(refusal('read', -140))
    await restorer.step(0)
    await settle()
    await expect(restorer.step(0)).rejects.toMatchObject({
      name: 'FatalError',
      code: 'changelog-head-deleted-again',
      message: expect.stringContaining(`${CHANGELOG}[0]`),
      remedy: expect.stringContaining('cleanup.policy=compact'),
    })
  })

  test('a log that ends before what was read of it is an error, and the store stays as it is: it may be the last copy', async () => {
    const scene = await stopped(0, 0)
    const { restorer, one } = scene
    await settle()
    await expect(restorer.step(0)).rejects.toMatchObject({ code: 'changelog-shrunk', message: expect.stringContaining('ends at 0') })
    restorer.saveAll()
    expect([one.state.checkpoint('seen'), knows(one.store, 'a')]).toEqual([1, true])
  })

  test('nothing was deleted after all (a leader moved): every partition is read on where it was, nothing is emptied', async () => {
    const scene = await stopped(0)
    const { reader, restorer, one, two, records } = scene
    await settle()
    reader.deliver([at(1, records[1]!)], [end(3), end(3, 1)])
    expect((await restorer.step(0)).finished).toEqual([one.task, two.task])
    expect(reader.assignments[1]).toEqual([0, 1].map((partition) => ({ topic: CHANGELOG, partition, offset: 1 })))
    expect(knows(one.store, 'a')).toBe(true)
    expect(restorer.counters.rebuilds['head-deleted']).toBe(0)
  })

  test('a look at the log that fails is repeated until the broker answers', async () => {
    const scene = await stopped(0)
    const { reader, restorer, admin } = scene
    const ask = admin.offsets.bind(admin)
    // The first look is over; it found nothing outside.
    await settle()
    let asked = 0
    admin.offsets = (partitions) => (++asked < 3 ? Promise.reject(refusal('admin', -185)) : ask(partitions))
    bounds(scene, 2, 3)
    reader.polls.push(refusal('read', -140))
    for (let turn = 0; turn < 4; turn++) {
      await restorer.step(0)
      await settle()
    }
    expect(asked).toBe(3)
    expect(restorer.counters.rebuilds['head-deleted']).toBe(1)
  })

  test('a task that was given up between the look and its answer is left alone', async () => {
    const scene = await stopped(2)
    const { restorer, one } = scene
    restorer.remove(one.task)
    await settle()
    await restorer.step(0)
    expect([knows(one.store, 'a'), restorer.counters.rebuilds['head-deleted']]).toEqual([true, 0])
  })
})

describe('a restore that outlasts the tombstones', () => {
  const slow = { readAt: T0, deleteRetentionMs: 8_000 } // trusted for 6 s

  test('is done once more from the log start, counted: deleted keys would rise again', async () => {
    const { reader, restorer, task, clock, admin, warnings } = setup()
    const { task: assigned, store } = await task()
    const records = await changelog(['a'], ['b'])
    admin.bounds.set(`${CHANGELOG}[0]`, { topic: CHANGELOG, partition: 0, logStart: 0, highWatermark: 2 })
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 2, ...slow })
    reader.deliver([at(0, records[0]!)])
    await restorer.step(0)
    clock.advance(6_001)
    // At the end, but too late; by now a tombstone has removed the first record, and was removed itself.
    reader.deliver([at(1, records[1]!)], [end(2)])
    expect((await restorer.step(0)).finished).toEqual([])
    await settle()
    reader.deliver([at(1, records[1]!)], [end(2)])
    expect((await restorer.step(0)).finished).toEqual([assigned])
    expect(['a', 'b'].map((id) => knows(store, id))).toEqual([false, true])
    expect(warnings.at(-1)).toMatch(/6001 ms lie between .* tombstones for 8000 ms \(delete\.retention\.ms\)/)
    expect(restorer.counters.rebuilds['tombstones-too-old']).toBe(1)
  })

  test('twice is an error that names the setting', async () => {
    const { restorer, task, clock, admin } = setup()
    const { task: assigned, store } = await task()
    admin.bounds.set(`${CHANGELOG}[0]`, { topic: CHANGELOG, partition: 0, logStart: 0, highWatermark: 2 })
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 2, ...slow })
    const twice = async (): Promise<void> => {
      for (let turn = 0; turn < 4; turn++) {
        clock.advance(6_001)
        await restorer.step(0)
        await settle()
      }
    }
    await expect(twice()).rejects.toMatchObject({ code: 'restore-too-slow', remedy: expect.stringContaining('delete.retention.ms') })
  })
})

describe('the reader', () => {
  test('D42: a broker that is away is no end: failures that pass are waited out, nothing is emptied', async () => {
    const { reader, restorer, task } = setup()
    const { task: assigned, store } = await task()
    const records = await changelog(['a'], ['b'])
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 2, ...FRESH })
    reader.deliver([at(0, records[0]!)])
    reader.polls.push(refusal('read', -195), refusal('read', -185), refusal('read', -187))
    reader.deliver([at(1, records[1]!)], [end(2)])
    for (let turn = 0; turn < 4; turn++) await restorer.step(0)
    expect((await restorer.step(0)).finished).toEqual([assigned])
    expect(['a', 'b'].map((id) => knows(store, id))).toEqual([true, true])
    expect(reader.assignments).toHaveLength(2) // and none for the failures
  })

  test('is connected beside the loop: a step does not wait for it longer than it was told to, and a failure is tried again', async () => {
    let tries = 0
    let open = (): void => {}
    const reader = new ScriptedReader()
    const { restorer, task, clock } = setup({
      connectReader: () => {
        if (++tries === 1) return Promise.reject(refusal('connect', -195))
        return new Promise((resolve) => {
          open = () => resolve(reader)
        })
      },
    })
    const { task: assigned, store } = await task()
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 2, ...FRESH })
    await restorer.step(0)
    const before = clock.monotonic()
    await restorer.step(100)
    expect([tries, clock.monotonic() - before, reader.asked]).toEqual([2, 100, []])
    open()
    reader.deliver([], [end(2)])
    expect((await restorer.step(0)).finished).toEqual([assigned])
    await restorer.close()
    expect(reader.isClosed).toBe(true)
  })

  test('that cannot be connected at all ends with the no-progress deadline; one that connects after the end is closed', async () => {
    let open = (): void => {}
    const reader = new ScriptedReader()
    const { restorer, task, clock } = setup({
      noProgressMs: 10_000,
      connectReader: () =>
        new Promise((resolve) => {
          open = () => resolve(reader)
        }),
    })
    const { task: assigned, store } = await task()
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 2, ...FRESH })
    await restorer.step(0)
    clock.advance(10_001)
    await expect(restorer.step(0)).rejects.toMatchObject({ code: 'restore-stalled', remedy: expect.stringContaining('brokers') })
    const closed = restorer.close()
    open()
    await closed
    expect(reader.isClosed).toBe(true)
  })

  test.each([
    ['a batch of a changelog that does not fit its checksum', -199, 'FatalError', 'changelog-corrupted'],
    ['a changelog that is deleted meanwhile', 3, 'ConfigError', 'changelog-missing'],
  ])('X2, X6: %s stops the worker, named: it is never stepped over', async (_name, code, name, errorCode) => {
    const { reader, restorer, task } = setup()
    const { task: assigned, store } = await task()
    restorer.add({ task: assigned, store, topic: CHANGELOG, partition: 0, from: 0, target: 2, ...FRESH })
    reader.polls.push(refusal('read', code))
    await expect(restorer.step(0)).rejects.toMatchObject({ name, code: errorCode, message: expect.stringContaining(CHANGELOG) })
  })
})

describe('two stores of one task', () => {
  test('when one is done its checkpoint goes to disk together with the position of the other', async () => {
    const clock = new ManualClock(T0)
    const timers = new InstantTimers(clock)
    const backend = createMemoryBackend({ owner: { slot: 's', pid: 1, host: 'h' }, timers, clock })
    const state = await backend.open('0_0', [spec, { ...spec, name: 'other' }])
    const task = new AssignedTask(0, 'app-tasks', sub, 0, sub.inputs)
    task.state = state
    task.moveTo('restoring')
    const { reader, restorer } = setup()
    const records = await changelog(['a'], ['b'])
    const other = { topic: 'app-other-changelog', partition: 0 }
    restorer.add({ task, store: state.stores.get('seen')!, topic: CHANGELOG, partition: 0, from: 0, target: 2, ...FRESH })
    restorer.add({ task, store: state.stores.get('other')!, ...other, from: 0, target: 9, ...FRESH })
    reader.deliver([at(0, records[0]!), { ...at(3, records[1]!), ...other }], [end(2)])
    expect((await restorer.step(0)).finished).toEqual([])
    expect([state.checkpoint('seen'), state.checkpoint('other')]).toEqual([2, 4])
  })
})
