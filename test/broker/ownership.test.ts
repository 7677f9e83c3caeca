/**
 * Who owns what: places in the group that are kept and given up, slots that are taken, fences, and rebalances under load (CASES A1, A5, A7, A8, A9, C29;
 * CLIENT-FACTS 9, 19 to 21). Nothing here waits for a session time-out: where one is long, it outlives the test.
 */
import { setImmediate as turn } from 'node:timers/promises'
import { afterAll, describe, expect, onTestFinished, test } from 'vitest'
import { KafkaBroker } from '../../src/broker/kafka/broker.ts'
import { silentLogger } from '../../src/common/ports.ts'
import { topology, type Topology } from '../../src/topology/index.ts'
import { dedupeTopology, eventTopic, events, idOf, processed, scene, startApp, temporaryFolder, type StartedApp } from '../helpers/apps.ts'
import { workerChild } from '../helpers/children.ts'
import { FAILURES, intercept } from '../helpers/client-faults.ts'
import { until } from '../helpers/condition.ts'
import { brokers, createTopic, disconnectKafka, kafka, notOnce, readAll, send, sharedAdmin, unique } from '../helpers/kafka.ts'
import { tasksTopic } from '../../src/topology/internal-topics.ts'

afterAll(disconnectKafka)

const ids = (records: readonly { value: string | null }[]): string[] => records.map(({ value }) => idOf(value))
const names = (prefix: string, count: number): string[] => Array.from({ length: count }, (_, index) => `${prefix}${index}`)
/** No test lives as long as these. */
const LONG = { transactionTimeout: '10m', sessionTimeout: '20m', maxPollInterval: '20m', heartbeatInterval: '500ms' } as const

const membersOf = async (group: string): Promise<number> =>
  (await (await sharedAdmin()).describeGroups([group])).groups[0]?.members.length ?? 0
const fences = ({ log }: StartedApp): number => log.filter(({ message }) => message.startsWith('a producer was fenced:')).length

describe('CF19: places in the group', () => {
  test('G1: a worker killed with -9, and one that was stopped, come back to their place: the same tasks, no rebalance for the others, no dead members', async () => {
    const place = await scene('place', 4)
    const peer = await startApp(dedupeTopology(place), { stateDir: place.stateDir, instance: 'peer', ...LONG })
    const first = workerChild(place, LONG)
    await first.says('assigned')
    await until('both have tasks', () => peer.app.status().tasks === 2 && peer.app.state === 'running')
    const mine = (first.of('assigned').at(-1)?.['tasks'] as string[]).toSorted()
    expect(mine).toHaveLength(2)
    const callbacks = [peer.assigned.length, peer.revoked.length]
    await send(place.input, events('a', 200))
    await processed(place)
    await first.kill()
    const second = workerChild(place, LONG)
    await second.says('running')
    expect(
      second
        .of('assigned')
        .flatMap(({ tasks }) => tasks as string[])
        .toSorted(),
    ).toEqual(mine)
    second.signal('SIGTERM')
    expect(await second.exit, second.text).toEqual({ code: 0, signal: null })
    const third = workerChild(place, LONG)
    await third.says('running')
    expect(
      third
        .of('assigned')
        .flatMap(({ tasks }) => tasks as string[])
        .toSorted(),
    ).toEqual(mine)
    await send(place.input, [...events('a', 200), ...events('b', 200)])
    await processed(place)
    expect([peer.assigned.length, peer.revoked.length]).toEqual(callbacks)
    expect(await membersOf(place.application)).toBe(2)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 200), ...names('b', 200)])).toEqual({})
  })

  test('a worker that leaves gives its tasks up at once, however long the session time-out is', async () => {
    const place = await scene('leaves', 4)
    const stays = await startApp(dedupeTopology(place), { stateDir: `${place.stateDir}/a`, instance: 'stays', ...LONG })
    const goes = await startApp(dedupeTopology(place), { stateDir: `${place.stateDir}/b`, instance: 'goes', onClose: 'leave', ...LONG })
    await until('both have tasks', () => stays.app.status().tasks === 2 && goes.app.status().tasks === 2)
    await send(place.input, events('a', 100))
    await goes.app.close()
    await send(place.input, [...events('a', 100), ...events('b', 100)])
    await processed(place)
    expect(stays.app.status().tasks).toBe(4)
    expect(await membersOf(place.application)).toBe(1)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 100), ...names('b', 100)])).toEqual({})
  })
})

describe('CF20: a generation that rises under a kept worker', () => {
  test('A5: while others join and leave, it is never fenced and stays; offsets go out for assigned partitions only', async () => {
    const place = await scene('joins', 4)
    const strangers: string[] = []
    intercept(place.application, 'sendOffsetsToTransaction', (call) => {
      const [offsets, consumer] = call.args as [
        { topic: string; partition: number }[],
        { assignments(): { topic: string; partition: number }[] },
      ]
      const assigned = new Set(consumer.assignments().map(({ topic, partition }) => `${topic}[${partition}]`))
      for (const { topic, partition } of offsets) if (!assigned.has(`${topic}[${partition}]`)) strangers.push(`${topic}[${partition}]`)
      call.pass()
    })
    const config = (slot: number) =>
      ({ stateDir: `${place.stateDir}/${slot}`, slot, transactionMaxRecords: 5, commitInterval: '10ms' }) as const
    const kept = await startApp(dedupeTopology(place), config(0))
    const joiners: StartedApp[] = []
    const processedSoFar = (): number => [kept, ...joiners].reduce((sum, { app }) => sum + app.status().records, 0)
    let isSending = true
    let count = 0
    const sending = (async () => {
      for (; isSending; count += 20) {
        const batch = Array.from({ length: 20 }, (_, index) => ({ key: `k${index}`, value: JSON.stringify({ id: `s${count + index}` }) }))
        await send(place.input, batch)
        // Load, but no backlog: transactions are as small as they can be.
        await until('most of it is processed', () => !isSending || count - processedSoFar() < 100)
      }
    })()
    for (let round = 0; round < 3; round++) {
      const joins = await startApp(dedupeTopology(place), config(1))
      joiners.push(joins)
      await until('it works', () => joins.app.status().records > 0)
      await joins.app.close({ leave: true })
    }
    isSending = false
    await sending
    await processed(place, kept)
    expect([kept, ...joiners].map(fences)).toEqual([0, 0, 0, 0])
    expect(kept.app.state).toBe('running')
    expect(strangers).toEqual([])
    expect(notOnce(ids(await readAll(place.output)), names('s', count))).toEqual({})
  })

  test.each([
    ['sendOffsetsToTransaction', 'illegalGeneration'],
    ['commitTransaction', 'illegalGeneration'],
  ] as const)(
    'A5: a %s that is refused for its generation is aborted and done again on the same producers: no fence',
    async (operation, failure) => {
      const place = await scene('generation', 1)
      const running = await startApp(dedupeTopology(place), { stateDir: place.stateDir, transactionMaxRecords: 10 })
      await until('the start positions', () => running.commits.length > 0)
      let inits = 0
      intercept(place.application, 'initTransactions', (call) => {
        inits++
        call.pass()
      })
      intercept(place.application, operation, (call) => {
        if (call.call % 2 === 1 && call.call < 10) call.answer(FAILURES[failure])
        else call.pass()
      })
      await send(place.input, [...events('a', 60), ...events('a', 60)])
      await processed(place, running)
      expect(notOnce(ids(await readAll(place.output)), names('a', 60))).toEqual({})
      expect({ inits, fences: fences(running), aborts: running.app.status().aborts }).toEqual({ inits: 0, fences: 0, aborts: 5 })
    },
  )
})

describe('CF21: slots and fences', () => {
  test('A1: a stopped twin that wakes up after its slot was taken over ends with code 5; the new owner is never fenced, and nothing of the twin is visible', async () => {
    const place = await scene('twin', 1)
    await send(place.input, events('a', 200))
    const config = { ...LONG, transactionMaxRecords: 50 } as const
    const twin = workerChild(place, config, { operation: 'sendOffsetsToTransaction', when: 'before', call: 3, signal: 'SIGSTOP' })
    await twin.says('commit', 2)
    const owner = await startApp(dedupeTopology(place), { stateDir: temporaryFolder(), instance: 'child', ...config })
    await processed(place, owner)
    twin.signal('SIGCONT')
    await send(place.input, [...events('a', 200), ...events('b', 200)])
    expect(await twin.exit, twin.text).toEqual({ code: 5, signal: null })
    await send(place.input, events('c', 50))
    await processed(place, owner)
    expect(fences(owner)).toBe(0)
    expect(owner.app.status()).toMatchObject({ state: 'running', aborts: 0 })
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 200), ...names('b', 200), ...names('c', 50)])).toEqual({})
  })

  test('A1: a worker whose slot is taken while it has nothing to do ends with code 5 as well: no callback tells it', async () => {
    const place = await scene('idle', 2)
    const idle = await startApp(dedupeTopology(place), { stateDir: place.stateDir, ...LONG })
    await until('the start positions', () => idle.commits.length > 0)
    const taker = await startApp(dedupeTopology(place), { stateDir: temporaryFolder(), ...LONG })
    await expect(idle.app.finished).rejects.toMatchObject({ name: 'SlotTakenError', exitCode: 5 })
    expect(idle.revoked).toEqual([])
    await send(place.input, events('a', 50))
    await processed(place, taker)
    expect(fences(taker)).toBe(0)
    expect(taker.app.state).toBe('running')
  })

  /**
   * (1) The other process inits the ids of the slot, (2) this one's next transaction is fenced, (3) long before a heartbeat tells it of the other one. Would it
   * init them again at once, (4) it would fence the new owner, and so on for ever.
   */
  test('A1: a worker whose slot is taken under load is fenced before the group tells it, and waits for the group: the new owner is never fenced', async () => {
    const place = await scene('load', 1)
    const patient = { ...LONG, heartbeatInterval: '4s' } as const
    const first = await startApp(dedupeTopology(place), { stateDir: place.stateDir, ...patient })
    await until('the start positions', () => first.commits.length > 0)
    let isOver = false
    const ended = first.app.finished.finally(() => (isOver = true))
    ended.catch(() => undefined)
    const starting = startApp(dedupeTopology(place), { stateDir: temporaryFolder(), ...patient })
    let count = 0
    for (; !isOver; count += 5) {
      await send(
        place.input,
        Array.from({ length: 5 }, (_, index) => ({ key: 'k', value: JSON.stringify({ id: `s${count + index}` }) })),
      )
    }
    await expect(ended).rejects.toMatchObject({ name: 'SlotTakenError', exitCode: 5 })
    const owner = await starting
    await processed(place, owner)
    expect([fences(first), fences(owner)]).toEqual([1, 0])
    expect(notOnce(ids(await readAll(place.output)), names('s', count))).toEqual({})
  })

  test('A9: a fence that no rebalance follows is in the log and the counters, the worker goes on with new producers; a second one within a minute ends it', async () => {
    const place = await scene('fence', 1)
    const running = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    await until('the start positions', () => running.commits.length > 0)
    /** Somebody inits all ids of the slot, and goes. */
    const fenceAll = async (): Promise<void> => {
      for (const index of [0, 1]) {
        const rival = kafka.producer({ transactionalId: `${place.application}-test-0-${index}`, idempotent: true, maxInFlightRequests: 1 })
        await rival.connect()
        await (await rival.transaction()).abort()
        await rival.disconnect()
      }
    }
    await fenceAll()
    await send(place.input, events('a', 50))
    await processed(place, running)
    await until('all counted', () => running.app.status().records === 50)
    expect(fences(running)).toBe(1)
    expect(running.app.status()).toMatchObject({ state: 'running', aborts: 1 })
    expect(running.revoked).toEqual([])

    await fenceAll()
    await send(place.input, events('b', 50))
    await expect(running.app.finished).rejects.toMatchObject({ name: 'SlotTakenError', exitCode: 5 })
    const next = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    await processed(place, next)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 50), ...names('b', 50)])).toEqual({})
  })

  test('A8: a fence on the first record of a polled batch of ten drops the whole batch: the next record processed is that first one again', async () => {
    const place = await scene('batch', 1)
    const seen: number[] = []
    await send(place.input, events('a', 10))
    let commits = 0
    intercept(place.application, 'sendOffsetsToTransaction', (call) => {
      // The first is that of the start position, or of the first record where both came together.
      if (seen.length === 1 && commits++ === 0) call.answer(FAILURES.fenced)
      else call.pass()
    })
    const running = await startApp(
      topology(place.application, ({ stream }) =>
        stream(eventTopic(place.input))
          .peek((_, { offset }) => void seen.push(offset))
          .to(eventTopic(place.output)),
      ),
      { stateDir: place.stateDir, transactionMaxRecords: 1, maxPollRecords: 10 },
    )
    await processed(place, running)
    expect(seen).toEqual([0, ...Array.from({ length: 10 }, (_, offset) => offset)])
    expect(ids(await readAll(place.output))).toEqual(names('a', 10))
  })
})

describe('CF25: what is assigned', () => {
  test('is paused in the same tick: nothing of it is read before its seek and its resume, which begins exactly there', async () => {
    const application = unique('paused')
    const tasks = await createTopic(`${application}-tasks`, 1)
    const input = await createTopic(`${application}.in`, 2)
    await send(
      input,
      [0, 1].flatMap((partition) => events('a', 50).map((record) => ({ ...record, partition }))),
    )
    const broker = new KafkaBroker({
      brokers: brokers.split(','),
      clientId: application,
      connectTimeoutMs: 10_000,
      metadataRefreshMs: 30_000,
      logger: silentLogger,
      client: {},
    })
    onTestFinished(() => broker.close())
    const consumer = await broker.connectConsumer({
      groupId: application,
      groupInstanceId: `${application}-0`,
      sessionTimeoutMs: 30_000,
      heartbeatIntervalMs: 500,
      maxPollIntervalMs: 60_000,
      checkChecksums: true,
    })
    onTestFinished(() => consumer.close())
    const both = [0, 1].map((partition) => ({ topic: input, partition }))
    let isAssigned = false
    consumer.subscribe(tasks, {
      assigned: (partitions) => {
        isAssigned = true
        return [...partitions, ...both].map((partition) => ({ ...partition, offset: 0 }))
      },
      revoked: (partitions) => Promise.resolve([...partitions, ...both]),
    })
    const read: string[] = []
    const readUntil = (last: string) =>
      until(last, async () => {
        for (const { topic, partition, offset } of (await consumer.poll(100, 100)).records)
          if (topic === input) read.push(`${partition}:${offset}`)
        return read.includes(last)
      })
    await until('assigned', async () => {
      // The poll that was out while the callback ran may hold a few: the client can fetch between the two calls. The runtime takes them for stale.
      await consumer.poll(10, 100)
      return isAssigned
    })
    expect(consumer.assignments()).toHaveLength(3)
    // One of the two is read to its end: whatever the client has fetched of the other one would be there by then.
    await consumer.seek([{ topic: input, partition: 1, offset: 40 }], 5_000)
    consumer.resume([{ topic: input, partition: 1 }])
    await readUntil('1:49')
    await consumer.seek([{ topic: input, partition: 0, offset: 20 }], 5_000)
    consumer.resume([{ topic: input, partition: 0 }])
    await readUntil('0:49')
    const from = (partition: number, first: number) => Array.from({ length: 50 - first }, (_, index) => `${partition}:${first + index}`)
    expect(read).toEqual([...from(1, 40), ...from(0, 20)])
    consumer.unsubscribe()
    await until('left', async () => {
      await consumer.poll(1, 50)
      return consumer.assignments().length === 0
    })
  })
})

describe('CF9: positions', () => {
  test('A7: with the prefetch far ahead, after every abort and on every move of a task the first record processed is the committed one, on each partition', async () => {
    const place = await scene('prefetch', 4)
    /** By partition: what the group has, as the commits that came through say. */
    const committed = new Map<number, number>()
    const wrong: string[] = []
    const sent = new Map<string, { partition: number; offset: number }[]>()
    let isAborting = true
    intercept(place.application, 'sendOffsetsToTransaction', (call) => {
      sent.set(call.transactionalId, call.args[0] as { partition: number; offset: number }[])
      if (isAborting && call.call % 3 === 0) call.answer(FAILURES.illegalGeneration)
      else call.pass()
    })
    intercept(place.application, 'commitTransaction', (call) => {
      call.pass((error) => {
        if (!error) for (const { partition, offset } of sent.get(call.transactionalId) ?? []) committed.set(partition, offset)
        call.answer(error)
      })
    })
    const app = (): Topology => {
      /** Where this worker is; an abort or a move shows as a step that is not the next one, which must be to the committed offset. */
      const next = new Map<number, number>()
      return topology(place.application, ({ stream }) =>
        stream(eventTopic(place.input))
          .peek((_, { partition, offset }) => {
            if (offset !== next.get(partition) && offset !== (committed.get(partition) ?? 0))
              wrong.push(`[${partition}] at ${offset}, after ${next.get(partition)}, committed ${committed.get(partition)}`)
            next.set(partition, offset + 1)
          })
          .to(eventTopic(place.output)),
      )
    }
    await send(place.input, events('a', 12_000))
    const config = (slot: number) => ({ stateDir: place.stateDir, slot, transactionMaxRecords: 100, maxPollRecords: 40 }) as const
    const first = await startApp(app(), config(0))
    await until('work under way', () => first.app.status().aborts > 3)
    const second = await startApp(app(), config(1))
    await until('both work', () => second.app.status().records > 0)
    await processed(place, first)
    isAborting = false
    await second.app.close({ leave: true })
    await send(place.input, events('b', 400))
    await processed(place, first)
    expect(wrong).toEqual([])
    expect(first.app.status().aborts + second.app.status().aborts).toBeGreaterThan(20)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 12_000), ...names('b', 400)])).toEqual({})
  })
})

describe('a worker added under load', () => {
  test('C29, C31: ten partitions: the output is that of a single run, partition by partition and in its order', async () => {
    const place = await scene('added', 10)
    const worker = (slot: number) =>
      startApp(dedupeTopology(place), { stateDir: `${place.stateDir}/${slot}`, slot, commitInterval: '20ms' })
    let count = 0
    const sendMore = async (): Promise<void> => {
      const batch = Array.from({ length: 200 }, (_, index) => ({
        key: `k${(count + index) % 61}`,
        value: JSON.stringify({ id: `s${count + index}` }),
      }))
      count += 200
      await send(place.input, [...batch, ...batch.slice(50, 150)])
      await turn()
    }
    const first = await worker(0)
    await sendMore()
    let joined = false
    const joining = worker(1).finally(() => (joined = true))
    while (!joined) await sendMore()
    const second = await joining
    await until('shared', () => first.app.status().tasks === 5 && second.app.status().tasks === 5)
    for (let more = 0; more < 5; more++) await sendMore()
    await second.app.close({ leave: true })
    for (let more = 0; more < 5; more++) await sendMore()
    await processed(place, first)
    // A task writes its ids to the partition it read them from: keys are partitioned alike on both sides.
    const byPartition = (records: readonly { partition: number; value: string | null }[]): string[][] =>
      Array.from({ length: 10 }, (_, partition) => ids(records.filter((record) => record.partition === partition)))
    const singleRun = byPartition(await readAll(place.input)).map((sequence) => [...new Set(sequence)])
    expect(byPartition(await readAll(place.output))).toEqual(singleRun)
    expect(singleRun.flat()).toHaveLength(count)
  })
})

describe('CF32: metadata', () => {
  test('a task topic that has grown is noticed while the worker runs, and said loudly: nobody else would read its new input', async () => {
    const place = await scene('grown', 1)
    const running = await startApp(dedupeTopology(place), { stateDir: place.stateDir, metadataPoll: '500ms' })
    const admin = await sharedAdmin()
    await admin.createPartitions({ topicPartitions: [{ topic: tasksTopic(place.application), count: 2 }] })
    await expect(running.app.finished).rejects.toMatchObject({
      name: 'ConfigError',
      code: 'unknown-task',
      message: expect.stringContaining('partitions 1 of'),
    })
  })
})
