/** What a task waits for before its restore, by name, and when its file is emptied (src/runtime/task-preparation.ts): A13, C32, X2, X7. */
import { describe, expect, test } from 'vitest'
import type { CommittedOffset } from '../../src/broker/port.ts'
import { silentLogger, type Logger } from '../../src/common/ports.ts'
import { partitionName } from '../../src/common/topic-partition.ts'
import { AssignedTask } from '../../src/runtime/assigned-task.ts'
import { writeMetadata } from '../../src/runtime/offset-metadata.ts'
import { prepareTasks, type PreparedTask } from '../../src/runtime/task-preparation.ts'
import type { WorkerOptions, WorkerSettings } from '../../src/runtime/worker-options.ts'
import { string } from '../../src/serde/index.ts'
import { createMemoryBackend, MemoryDisk } from '../../src/state/memory/memory-backend.ts'
import { topic, topology } from '../../src/topology/index.ts'
import { compileTopology } from '../../src/topology/plan.ts'
import { jsonOf } from '../helpers/codecs.ts'
import { countingRandom, InstantTimers, ManualClock } from '../helpers/manual-time.ts'
import { refusal, ScriptedBroker } from '../helpers/scripted-broker.ts'

const events = (name: string) => topic(name, { key: string(), value: jsonOf<unknown>() })
const plan = compileTopology(topology('app', ({ stream }) => stream(events('in')).dedupe({ by: 'key', window: '1h' }).to(events('out'))))
const [sub] = plan.subTopologies
const CHANGELOG = 'app-dedupe-changelog'
const DAY_MS = 86_400_000

function scene() {
  const broker = new ScriptedBroker()
  const clock = new ManualClock()
  const timers = new InstantTimers(clock)
  const logged: { message: string; details: Record<string, unknown> }[] = []
  const logger: Logger = {
    ...silentLogger,
    warn: (details, message) => void logged.push({ message, details: details as Record<string, unknown> }),
  }
  const backend = createMemoryBackend({ owner: { slot: 'a-0', pid: 1, host: 'h' }, clock, timers, disk: new MemoryDisk() })
  const options = {
    plan,
    settings: { applicationId: 'app', taskTimeoutMs: 60_000 } as WorkerSettings,
    broker,
    backend,
    clock,
    timers,
    random: countingRandom(),
    logger,
    listener: {} as WorkerOptions['listener'],
  } satisfies WorkerOptions
  const tasks = (count: number) => Array.from({ length: count }, (_, number) => new AssignedTask(number, 'app-tasks', sub!, number, ['in']))
  /** Partitions whose committed offsets an open transaction holds. */
  const held = new Set<string>()
  const asked: string[][] = []
  broker.consumer.committed = (partitions) => {
    const wanted = partitions.map(({ topic, partition }) => partitionName(topic, partition))
    asked.push(wanted)
    if (wanted.some((name) => held.has(name))) return Promise.reject(refusal('committed', -185))
    return Promise.resolve(partitions.map((at): CommittedOffset => ({ ...at, offset: 5, metadata: '' })))
  }
  const logIs = (partition: number, logStart: number, highWatermark: number) =>
    broker.admin.bounds.set(`${CHANGELOG}[${partition}]`, { topic: CHANGELOG, partition, logStart, highWatermark })
  const committedBy = (prefix: string, partition = 0, ringSize = 2) =>
    broker.admin.present.set(`in[${partition}]`, {
      topic: 'in',
      partition,
      offset: 5,
      metadata: writeMetadata({ nonce: 'n', streamTime: 0, transactionalIdPrefix: prefix, ringSize, committedAt: 0 }),
    })
  const prepared: PreparedTask[] = []
  const waiting = new Map<string, string>()
  const prepare = (given: readonly AssignedTask[], isWanted: (task: AssignedTask) => boolean = () => true) =>
    prepareTasks(given, broker.consumer, options, isWanted, (each) => prepared.push(each), waiting)
  /** A file that is complete up to `checkpoint`, left behind by an earlier process. */
  const fileAt = async (checkpoint: number) => {
    const state = await backend.open('0_0', sub!.stores)
    state.flush(new Map([['dedupe', checkpoint]]))
    state.close()
  }
  return { broker, clock, timers, logged, tasks, held, asked, logIs, committedBy, prepare, prepared, waiting, fileAt }
}

describe('committed offsets that an open transaction holds', () => {
  test('A13: the wait names the transactional ids of the last committer, in the log and the status, and ends with it', async () => {
    const { tasks, held, committedBy, prepare, prepared, logged, waiting, timers } = scene()
    committedBy('app-gone-1', 0, 3)
    held.add('in[0]')
    const holder = 'an open transaction of app-gone-1-0 or app-gone-1-1 or app-gone-1-2'
    const seen: (string | undefined)[] = []
    const after = timers.after.bind(timers)
    timers.after = (delayMs, callback) => {
      seen.push(waiting.get('0_0'))
      if (seen.length === 3) held.clear()
      return after(delayMs, callback)
    }
    await prepare(tasks(1))
    expect(seen).toEqual([holder, holder, holder])
    expect(prepared.map(({ task }) => task.name)).toEqual(['0_0'])
    expect(waiting.size).toBe(0)
    // Once, not at every try.
    expect(logged).toMatchObject([
      {
        message: `the committed offsets of the task are held back: it waits for ${holder}`,
        details: { task: '0_0', transactionalIds: ['app-gone-1-0', 'app-gone-1-1', 'app-gone-1-2'] },
      },
    ])
  })

  test('hold up that task alone: every other one is prepared in the first round', async () => {
    const { tasks, held, asked, prepare, prepared } = scene()
    held.add('in[0]').add('in[2]')
    const all = tasks(4)
    let isThere = false
    await prepare(all, (task) => {
      if (prepared.length === 2) isThere = true
      return !isThere || !['0_0', '0_2'].includes(task.name) // given up when the others are there
    })
    expect(prepared.map(({ task }) => task.name)).toEqual(['0_1', '0_3'])
    expect(asked.slice(0, 5)).toEqual([['in[0]', 'in[1]', 'in[2]', 'in[3]'], ['in[0]'], ['in[1]'], ['in[2]'], ['in[3]']])
  })

  test('for longer than taskTimeout are an error that names the ids and the way out', async () => {
    const { tasks, held, committedBy, prepare, waiting } = scene()
    committedBy('app-gone-1')
    held.add('in[0]')
    await expect(prepare(tasks(1))).rejects.toMatchObject({
      name: 'BrokerUnavailableError',
      code: 'offsets-held',
      message: expect.stringMatching(
        /task 0_0 \(in\[0\]\) .* \(option taskTimeout\): they wait for an open transaction of app-gone-1-0 or app-gone-1-1/,
      ),
      remedy: expect.stringContaining('Start the slot that used the id again'),
    })
    expect(waiting.size).toBe(0)
  })

  test('are told apart from a coordinator that does not answer at all', async () => {
    const { tasks, held, broker, prepare } = scene()
    held.add('in[0]')
    broker.admin.groupOffsets = () => Promise.reject(refusal('admin', -185))
    await expect(prepare(tasks(1))).rejects.toMatchObject({
      code: 'offsets-held',
      message: expect.stringContaining('wait for the group coordinator, which does not answer'),
      remedy: expect.stringContaining('coordinator'),
    })
  })

  test('are not waited for once the task was given up', async () => {
    const { tasks, held, prepare, prepared, waiting, timers } = scene()
    held.add('in[0]')
    await prepare(tasks(1), () => timers.waits.length < 3)
    expect([prepared, waiting.size]).toEqual([[], 0])
  })

  test('an error that waiting cannot mend ends the preparation at once', async () => {
    const { tasks, broker, prepare, timers } = scene()
    broker.consumer.committed = () => Promise.reject(refusal('committed', 30))
    await expect(prepare(tasks(1))).rejects.toMatchObject({ code: 30 })
    expect(timers.waits).toEqual([])
  })
})

describe('a file that cannot be caught up', () => {
  test('C32: its checkpoint lies before the log start: emptied, counted as such, read from the log start', async () => {
    const { tasks, prepare, prepared, logIs, fileAt, logged } = scene()
    await fileAt(4)
    logIs(0, 6, 10)
    await prepare(tasks(1))
    expect(prepared[0]!.restores).toMatchObject([{ from: 6, target: 10, rebuild: 'checkpoint-before-log-start' }])
    expect(prepared[0]!.state.checkpoint('dedupe')).toBeUndefined()
    expect(logged).toMatchObject([{ details: { reason: 'checkpoint-before-log-start', checkpoint: 4, logStart: 6 } }])
  })

  test('goes through a restore even when its log is empty, so that it ends with a checkpoint', async () => {
    const { tasks, prepare, prepared, logIs, fileAt } = scene()
    await fileAt(4)
    logIs(0, 10, 10)
    await prepare(tasks(1))
    expect(prepared[0]!.restores).toMatchObject([{ from: 10, target: 10, rebuild: 'checkpoint-before-log-start' }])
  })

  test.each([
    ['the setting the topic has', { 'delete.retention.ms': String(2 * DAY_MS) }, 2 * DAY_MS],
    ['a week, as we create it, where it cannot be read', undefined, 7 * DAY_MS],
  ])('its checkpoint is older than the tombstones: %s counts, less a margin', async (_name, config, retentionMs) => {
    for (const [ageMs, rebuild] of [
      [retentionMs - 3_600_001, undefined],
      [retentionMs - 3_599_999, 'tombstones-too-old'],
    ] as const) {
      const { tasks, prepare, prepared, logIs, fileAt, clock, broker } = scene()
      if (config === undefined) broker.admin.topicConfigs = () => Promise.reject(refusal('admin', 29))
      else broker.admin.topics.set(CHANGELOG, { partitions: 1, config })
      await fileAt(4)
      logIs(0, 0, 10)
      const writtenAt = clock.now()
      clock.advance(ageMs)
      await prepare(tasks(1))
      expect(prepared[0]!.restores).toMatchObject([{ from: rebuild === undefined ? 4 : 0, target: 10 }])
      expect(prepared[0]!.restores[0]!.rebuild).toBe(rebuild)
      // The time that counts for the restore goes on from the checkpoint, or begins anew.
      expect(prepared[0]!.restores[0]!.readAt).toBe(rebuild === undefined ? writtenAt : clock.now())
      expect(prepared[0]!.restores[0]!.deleteRetentionMs).toBe(retentionMs)
    }
  })

  test('an old checkpoint at the very end of its log is good: there is nothing to catch up', async () => {
    const { tasks, prepare, prepared, logIs, fileAt, clock } = scene()
    await fileAt(10)
    logIs(0, 0, 10)
    clock.advance(30 * DAY_MS)
    await prepare(tasks(1))
    expect(prepared[0]!.restores).toEqual([])
  })
})

test('X7: the ends of the changelogs are read after the committed offsets, for all tasks at once', async () => {
  const { tasks, prepare, prepared, broker, asked, logIs } = scene()
  for (let partition = 0; partition < 3; partition++) logIs(partition, 0, 7)
  const order: string[] = []
  const offsets = broker.admin.offsets.bind(broker.admin)
  broker.admin.offsets = (partitions) => {
    if (partitions.some(({ topic }) => topic.endsWith('-changelog')))
      order.push(`ends of ${partitions.map(({ partition }) => partition).join()} after ${asked.length} answers`)
    return offsets(partitions)
  }
  await prepare(tasks(3))
  expect(order).toEqual(['ends of 0,1,2 after 1 answers'])
  expect(prepared.flatMap(({ restores }) => restores.map(({ partition, target }) => [partition, target]))).toEqual([
    [0, 7],
    [1, 7],
    [2, 7],
  ])
})
