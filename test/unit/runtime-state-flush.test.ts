/** When state goes to disk, and with which checkpoint (src/runtime/state-flush.ts, docs/decisions/0004): X2, X3. */
import { describe, expect, test } from 'vitest'
import { silentLogger, type Logger } from '../../src/common/ports.ts'
import { CorruptedStoreError } from '../../src/errors/errors.ts'
import { AssignedTask } from '../../src/runtime/assigned-task.ts'
import { flushState } from '../../src/runtime/state-flush.ts'
import type { WorkerSettings } from '../../src/runtime/worker-options.ts'
import { createMemoryBackend, MemoryDisk } from '../../src/state/memory/memory-backend.ts'
import type { DedupeStore } from '../../src/state/store.ts'
import type { SubTopology } from '../../src/topology/nodes.ts'
import { InstantTimers, ManualClock } from '../helpers/manual-time.ts'
import { refusal, ScriptedBroker } from '../helpers/scripted-broker.ts'

const CHANGELOG = 'app-seen-changelog'
const T0 = 1_700_000_000_000
const spec = { kind: 'dedupe', name: 'seen', windowMs: 3_600_000, refresh: false, keepOrigin: false, version: 1 } as const
const stateful: SubTopology = { id: 0, nodes: [], inputs: ['in'], stores: [spec] }
const stateless: SubTopology = { id: 1, nodes: [], inputs: ['in'], stores: [] }

async function scene() {
  const clock = new ManualClock(T0)
  const timers = new InstantTimers(clock)
  const disk = new MemoryDisk()
  const broker = new ScriptedBroker()
  const warnings: string[] = []
  const logger: Logger = { ...silentLogger, warn: (_details, message) => warnings.push(message) }
  const backend = createMemoryBackend({ owner: { slot: 's', pid: 1, host: 'h' }, timers, clock, disk })
  const openTask = async (partition: number) => {
    const task = new AssignedTask(partition, 'app-tasks', stateful, partition, stateful.inputs)
    task.state = await backend.open(task.name, stateful.stores)
    task.moveTo('restoring')
    task.moveTo('running')
    return task
  }
  const storeOf = (task: AssignedTask): DedupeStore => task.state!.stores.get('seen') as DedupeStore
  return {
    clock,
    timers,
    broker,
    warnings,
    openTask,
    /** The ids are processed and their transaction has committed: they are in memory, and in the changelog. */
    remember(task: AssignedTask, ...ids: string[]) {
      const store = storeOf(task)
      for (const id of ids) store.observe(id, T0, T0, 0, 0)
      store.prepare(Buffer.alloc(16, 1), () => {})
      store.commit()
    },
    /** The changelog's last stable offset and high watermark. */
    changelogIs(partition: number, stable: number, end = stable) {
      const at = { topic: CHANGELOG, partition, logStart: 0 }
      broker.admin.bounds.set(`${CHANGELOG}[${partition}]`, { ...at, highWatermark: end })
      broker.admin.stable.set(`${CHANGELOG}[${partition}]`, stable)
    },
    flush: (tasks: readonly AssignedTask[], commit: () => Promise<boolean>, until: 'any' | 'all decided' = 'any') =>
      flushState(tasks, until, commit, { broker, clock, timers, logger, settings: { applicationId: 'app' } as WorkerSettings }),
    /** What a process that starts on this disk finds. */
    async onDisk(partition: number, id: string) {
      const other = createMemoryBackend({ owner: { slot: 't', pid: 2, host: 'h' }, timers, clock, disk, lockTimeoutMs: 0 })
      const state = await other.open(`0_${partition}`, stateful.stores)
      const store = state.stores.get('seen') as DedupeStore
      store.beginRecord()
      const verdict = store.observe(id, T0, T0, 0, 0)
      store.abort()
      const checkpoint = state.checkpoint('seen')
      state.close()
      return { checkpoint, knows: verdict === 'duplicate' }
    },
  }
}
const committed = (): Promise<boolean> => Promise.resolve(true)
const refused = (): Promise<boolean> => Promise.resolve(false)

describe('a checkpoint needs a fenced commit behind it', () => {
  test('F1: when the commit is refused nothing is written: another owner may have written to the changelog since', async () => {
    const { openTask, remember, changelogIs, flush, onDisk } = await scene()
    const task = await openTask(0)
    remember(task, 'a')
    // This worker was stopped for longer than its session; the new owner's records lie below 9, and this one never saw them.
    changelogIs(0, 9)
    expect(await flush([task], refused)).toEqual([])
    task.close()
    expect(await onDisk(0, 'a')).toEqual({ checkpoint: undefined, knows: false })
  })

  test('F1: the checkpoint is the offset from before the commit, so nothing that came after it is skipped by a restore', async () => {
    const { openTask, remember, changelogIs, flush, onDisk } = await scene()
    const task = await openTask(0)
    remember(task, 'a')
    changelogIs(0, 5)
    await flush([task], async () => {
      changelogIs(0, 9)
      return true
    })
    task.close()
    expect(await onDisk(0, 'a')).toEqual({ checkpoint: 5, knows: true })
  })

  test('an idle task is in that commit too: without its offsets the group would not fence it', async () => {
    const { openTask, flush } = await scene()
    const task = await openTask(0)
    task.inputs[0]!.committed = task.inputs[0]!.next = 4
    expect(task.dirty).toBe(false)
    let wasDirty = false
    await flush([task], async () => {
      wasDirty = task.dirty
      return true
    })
    expect(wasDirty).toBe(true)
  })

  test('a task that was given up or restarted by the commit is not written; the others are', async () => {
    const { openTask, remember, changelogIs, flush, onDisk } = await scene()
    const [gone, stays] = [await openTask(0), await openTask(1)]
    for (const task of [gone, stays]) remember(task, 'a')
    changelogIs(0, 3)
    changelogIs(1, 4)
    await flush([gone, stays], async () => {
      gone.close()
      return true
    })
    stays.close()
    expect(await onDisk(0, 'a')).toEqual({ checkpoint: undefined, knows: false })
    expect(await onDisk(1, 'a')).toEqual({ checkpoint: 4, knows: true })
  })

  test('when the last stable offset cannot be read, the commit happens and the flush does not', async () => {
    const { openTask, remember, broker, flush, onDisk, warnings } = await scene()
    const task = await openTask(0)
    remember(task, 'a')
    broker.admin.lastStableOffsets = () => Promise.reject(refusal('admin', -185))
    let commits = 0
    await flush([task], async () => ++commits > 0)
    task.close()
    expect(commits).toBe(1)
    expect(await onDisk(0, 'a')).toEqual({ checkpoint: undefined, knows: false })
    expect(warnings).toEqual([expect.stringContaining('state is not flushed now')])
  })

  test('tasks without a store, and tasks that are not running, are left alone', async () => {
    const { broker, flush } = await scene()
    const without = new AssignedTask(0, 'app-tasks', stateless, 0, stateless.inputs)
    without.moveTo('restoring')
    without.moveTo('running')
    const restoring = new AssignedTask(1, 'app-tasks', stateful, 1, stateful.inputs)
    restoring.moveTo('restoring')
    broker.admin.lastStableOffsets = () => Promise.reject(new Error('nobody should ask'))
    expect(await flush([without, restoring], committed)).toEqual([])
    expect([without.touched, restoring.touched]).toEqual([false, false])
  })

  test('a file that turns out to be damaged is handed back for its rebuild; the other one is written', async () => {
    const { openTask, remember, changelogIs, flush, onDisk } = await scene()
    const [bad, good] = [await openTask(0), await openTask(1)]
    for (const task of [bad, good]) remember(task, 'a')
    changelogIs(1, 2)
    const damage = new CorruptedStoreError('page 7 is wrong', { code: 'store-damaged' })
    bad.state!.flush = () => {
      throw damage
    }
    expect(await flush([bad, good], committed)).toEqual([{ task: bad, error: damage }])
    good.close()
    expect(await onDisk(1, 'a')).toEqual({ checkpoint: 2, knows: true })
  })
})

describe('a clean end', () => {
  test('waits until its own last records are decided, so that the next start restores nothing', async () => {
    const { openTask, remember, changelogIs, flush, onDisk, broker } = await scene()
    const task = await openTask(0)
    remember(task, 'a')
    changelogIs(0, 3, 5)
    const ask = broker.admin.lastStableOffsets.bind(broker.admin)
    let asked = 0
    broker.admin.lastStableOffsets = (partitions) => {
      if (++asked === 4) changelogIs(0, 5)
      return ask(partitions)
    }
    await flush([task], committed, 'all decided')
    task.close()
    expect(await onDisk(0, 'a')).toEqual({ checkpoint: 5, knows: true })
  })

  test('does not wait for ever for records that stay undecided: it writes the checkpoint it has', async () => {
    const { openTask, remember, changelogIs, flush, onDisk, clock } = await scene()
    const task = await openTask(0)
    remember(task, 'a')
    changelogIs(0, 3, 5)
    const before = clock.monotonic()
    await flush([task], committed, 'all decided')
    task.close()
    expect(await onDisk(0, 'a')).toEqual({ checkpoint: 3, knows: true })
    expect(clock.monotonic() - before).toBeLessThan(5_000)
  })
})
