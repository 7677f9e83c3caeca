/**
 * A proxy between the workers and a broker of its own holds or loses single requests and replies (CASES A3, A16, A17, C26; CLIENT-FACTS 7, 22, 23).
 * Loaders, readers and the second worker of a group go past it.
 *
 * A transaction's fate is told apart by what readers see: every id once (neither lost nor doubled), and a group lag of 0, which a transaction that
 * committed outputs without its offsets would never reach.
 */
import { Kafka, logLevel, type Producer } from 'kafkajs'
import { afterAll, afterEach, beforeAll, describe, expect, inject, onTestFinished, test } from 'vitest'
import { provideBroker, type ProvidedBroker } from '../../scripts/broker-provider/provider.ts'
import type { Config } from '../../src/config/define.ts'
import { topology, type Topology } from '../../src/topology/index.ts'
import { BareClient } from '../chaos/bare-client.ts'
import { dedupeTopology, eventTopic, events, idOf, startApp, temporaryFolder, type Scene, type StartedApp } from '../helpers/apps.ts'
import { workerChild } from '../helpers/children.ts'
import { until } from '../helpers/condition.ts'
import { API, startKafkaProxy, type Hold, type KafkaProxy, type Loss } from '../helpers/kafka-proxy/kafka-proxy.ts'
import { notOnce, readAll, unique } from '../helpers/kafka.ts'

/** Time-outs of which every part of a commit's budget is seconds, so that a busy machine alone does not use it up. */
const PATIENT: Partial<Config> = {
  transactionTimeout: '10s',
  sessionTimeout: '20s',
  heartbeatInterval: '500ms',
  maxPollInterval: '20s',
  taskTimeout: '60s',
}
const LIMIT_MS = 180_000

const names = (prefix: string, count: number): string[] => Array.from({ length: count }, (_, index) => `${prefix}${index}`)
const passThrough = ({ application, input, output }: Scene): Topology =>
  topology(application, ({ stream }) => stream(eventTopic(input)).to(eventTopic(output)))

describe.skipIf(inject('javaTools') === null)('behind a proxy', { timeout: LIMIT_MS }, () => {
  let proxy: KafkaProxy
  let broker: ProvidedBroker
  let bare: BareClient
  let producer: Producer
  const opened: (() => Promise<void>)[] = []

  beforeAll(async () => {
    proxy = await startKafkaProxy()
    opened.push(() => proxy.close())
    const advertise = ({ address }: { readonly address: string }): string => {
      proxy.connectTo(address)
      return proxy.address
    }
    // Nothing can be put in front of the brokers of KAFKA_BROKERS.
    broker = await provideBroker({ nodes: 1, heapMiB: 256, advertise }, { ...process.env, KAFKA_BROKERS: '' })
    opened.push(() => broker.stop())
    bare = new BareClient(broker.directBrokers)
    producer = new Kafka({ brokers: [broker.directBrokers], logLevel: logLevel.NOTHING }).producer({
      idempotent: true,
      maxInFlightRequests: 1,
    })
    await producer.connect()
    opened.push(() => producer.disconnect())
  })
  // Before the apps of a test are closed, which waits for what is held.
  afterEach(() => {
    proxy.restore()
  })
  afterAll(async () => {
    for (const close of opened.reverse()) await close()
  })

  interface OwnScene extends Scene {
    readonly partitions: number
  }

  async function ownScene(name: string, partitions = 1): Promise<OwnScene> {
    const application = unique(name)
    const place = { application, input: `${application}.in`, output: `${application}.out`, stateDir: temporaryFolder(), partitions }
    for (const topicName of [place.input, place.output]) {
      await bare.createTopic(topicName, partitions, 1)
      await bare.ends(topicName, partitions) // its leaders are known
    }
    onTestFinished(() => {
      proxy.restore()
    })
    return place
  }

  const send = (place: Scene, records: { key: string; value: string }[]): Promise<unknown> =>
    producer.send({ topic: place.input, acks: -1, messages: records })

  const behindProxy = (place: Scene, app: Topology, config: Partial<Config> = {}): Promise<StartedApp> =>
    startApp(app, { brokers: proxy.address, stateDir: place.stateDir, ...PATIENT, ...config })

  const pastProxy = (place: Scene, app: Topology, config: Partial<Config> = {}): Promise<StartedApp> =>
    startApp(app, { brokers: broker.directBrokers, stateDir: place.stateDir, ...PATIENT, ...config })

  async function lagOf({ application, input, partitions }: OwnScene): Promise<number> {
    const [ends, committed] = await Promise.all([bare.ends(input, partitions), bare.committed(application, input, partitions)])
    return [...ends].reduce((lag, [partition, end]) => lag + (end === 0 ? 0 : end - (committed.get(partition) ?? -Infinity)), 0)
  }

  /** All input is committed by the group; the failure of an app that is given ends the wait. */
  async function processed(place: OwnScene, ...apps: readonly StartedApp[]): Promise<void> {
    const done = until(`lag 0 of ${place.application}`, async () => (await lagOf(place)) === 0, 120_000)
    done.catch(() => undefined)
    await Promise.race([done, ...apps.map(({ app }) => app.finished)])
  }

  async function outputIds({ output, partitions }: OwnScene): Promise<string[]> {
    const ends = await bare.ends(output, partitions)
    return (await readAll(output, { brokers: broker.directBrokers, ends: new Map(ends) })).map(({ value }) => idOf(value))
  }

  const struck = (what: string, fault: Hold | Loss, times = 1): Promise<void> => until(what, () => fault.struck >= times)

  /** What the worker found out about commits without an answer, in order. */
  const settled = ({ log }: StartedApp): unknown[] =>
    log.filter(({ details }) => 'committed' in details && !('code' in details)).map(({ details }) => details['committed'])

  describe('A3: a commit without an answer', () => {
    test('A3: EndTxn arrives at the broker after the client gave up, while the next transaction of the same id is open: it changes nothing', async () => {
      const place = await ownScene('late-commit')
      // No commit for the sake of a flush in between; given up before the client, at the transaction time-out, sends EndTxn again by itself; and time to look
      // at the next transaction before that one is given up too.
      const started = await behindProxy(place, dedupeTopology(place), {
        producerRingSize: 1,
        stateFlushInterval: '10m',
        transactionTimeout: '25s',
        sessionTimeout: '40s',
        maxPollInterval: '45s',
      })
      await send(place, events('a', 200))
      await processed(place, started)
      const late = proxy.holdRequests({ apiKey: API.endTransaction, count: 1 })
      const next = proxy.holdRequests({ apiKey: API.endTransaction, count: 1 })
      // Each id twice: what a wrong merge or a wrong drop of the write-set would show.
      await send(place, [...events('b', 200), ...events('b', 200)])
      await struck('the next transaction is ready to commit', next)
      expect(settled(started)).toEqual([false])
      const [before, connections] = [await bare.ends(place.output, 1, 'stable'), proxy.connections]
      expect(late.release()).toBe(1)
      // The connection of its client, which is gone, was kept for the answer alone.
      await until('the late request is answered', () => proxy.connections < connections)
      expect(await bare.ends(place.output, 1, 'stable')).toEqual(before)
      expect(await bare.ends(place.output, 1)).not.toEqual(before)
      next.release()
      await send(place, [...events('c', 100), ...events('a', 200)])
      await processed(place, started)
      expect(notOnce(await outputIds(place), [...names('a', 200), ...names('b', 200), ...names('c', 100)])).toEqual({})
    })

    test('A3: the reply to EndTxn is held until the client gave up: nobody is there to get it, and the truth is read from the group', async () => {
      const place = await ownScene('late-reply')
      const started = await behindProxy(place, dedupeTopology(place), { producerRingSize: 1 })
      await send(place, events('a', 200))
      await processed(place, started)
      const late = proxy.holdReplies({ apiKey: API.endTransaction, count: 1 })
      await send(place, events('b', 200))
      await struck('the reply is held', late)
      await until('the outcome is found out', () => settled(started).length > 0)
      const next = proxy.holdReplies({ apiKey: API.endTransaction, count: 1 })
      await send(place, [...events('b', 200), ...events('c', 200)])
      await struck('the next transaction', next)
      // The producer that waited for it is closed (X4): a late answer cannot be taken for that of the next commit.
      expect(late.release()).toBe(0)
      next.release()
      await processed(place, started)
      expect(settled(started)).toEqual([true])
      expect(notOnce(await outputIds(place), [...names('a', 200), ...names('b', 200), ...names('c', 200)])).toEqual({})
      await until('all counted', () => started.app.status().records === 800)
      expect(started.app.status().duplicates).toBe(200)
    })

    test.each([
      ['the request', 'swallowRequests', false],
      ['the reply', 'swallowReplies', true],
    ] as const)('F22: %s of EndTxn is lost: the producer is replaced, each id once, nothing lost', async (_what, fault, took) => {
      const place = await ownScene('lost-commit')
      const started = await behindProxy(place, passThrough(place))
      await send(place, events('a', 200))
      await processed(place, started)
      const inits = proxy.requests(API.initProducerId)
      const loss = proxy[fault]({ apiKey: API.endTransaction, count: 1 })
      await send(place, events('b', 200))
      await struck('it is lost', loss)
      await send(place, events('c', 200))
      await processed(place, started)
      expect(settled(started)).toEqual([took])
      expect(proxy.requests(API.initProducerId)).toBeGreaterThan(inits)
      expect(notOnce(await outputIds(place), [...names('a', 200), ...names('b', 200), ...names('c', 200)])).toEqual({})
      expect(started.app.state).toBe('running')
    })

    test.each(['swallowRequests', 'swallowReplies'] as const)(
      'F22: the connection breaks at EndTxn (%s): each id once, nothing lost',
      async (fault) => {
        const place = await ownScene('broken-commit')
        const started = await behindProxy(place, passThrough(place))
        await send(place, events('a', 200))
        await processed(place, started)
        const loss = proxy[fault]({ apiKey: API.endTransaction, count: 1, close: true })
        await send(place, events('b', 200))
        await struck('it is broken', loss)
        await send(place, events('c', 200))
        await processed(place, started)
        expect(notOnce(await outputIds(place), [...names('a', 200), ...names('b', 200), ...names('c', 200)])).toEqual({})
        expect(started.app.state).toBe('running')
      },
    )

    test('C26, A13: EndTxn of a worker that was killed arrives after its slot started again: it changes nothing, and its ids are not taken for seen', async () => {
      const place = await ownScene('late-of-dead')
      const config = { ...PATIENT, transactionMaxRecords: 100, instance: 'child', brokers: proxy.address } as const
      const first = workerChild(place, config)
      await send(place, events('a', 200))
      await processed(place)
      const late = proxy.holdRequests({ apiKey: API.endTransaction, count: 1 })
      await send(place, events('b', 100))
      await struck('the commit is on its way', late)
      await first.kill()
      const second = workerChild(place, { ...config, brokers: broker.directBrokers })
      await second.says('running')
      await processed(place)
      const connections = proxy.connections
      expect(late.release()).toBe(1)
      await until('the late request is answered', () => proxy.connections < connections)
      await send(place, [...events('b', 100), ...events('a', 200), ...events('c', 100)])
      await processed(place)
      await second.kill()
      expect(notOnce(await outputIds(place), [...names('a', 200), ...names('b', 100), ...names('c', 100)])).toEqual({})
    })
  })

  describe('F23: offsets that do not get through', () => {
    test.each([
      // The client repeats a request by itself, about five times in the time-out of a call: 12 times outlast a call, and one failure reaches the worker.
      [12, 'TxnOffsetCommit', 'request', API.transactionOffsetCommit, 'swallowRequests'],
      [12, 'TxnOffsetCommit', 'reply', API.transactionOffsetCommit, 'swallowReplies'],
      [12, 'AddOffsetsToTxn', 'request', API.addOffsetsToTransaction, 'swallowRequests'],
      [1, 'TxnOffsetCommit', 'reply', API.transactionOffsetCommit, 'swallowReplies'],
    ] as const)(
      'F23: the connection breaks %i times at %s (%s): outputs and offsets move together, never one without the other',
      async (times, _api, _part, apiKey, fault) => {
        const place = await ownScene('broken-offsets')
        const started = await behindProxy(place, passThrough(place))
        await send(place, events('a', 200))
        await processed(place, started)
        const loss = proxy[fault]({ apiKey, count: times, close: true })
        // The last input there is: no later commit moves the offsets in its place.
        await send(place, events('b', 20))
        await struck('it is broken', loss, times)
        await processed(place, started)
        expect(notOnce(await outputIds(place), [...names('a', 200), ...names('b', 20)])).toEqual({})
        expect(started.app.state).toBe('running')
      },
    )

    // Of AddOffsetsToTxn the client says -195, retriable: a commit after it makes the outputs visible without their offsets (T1). Of TxnOffsetCommit it asks
    // for an abort.
    test.each([
      ['TxnOffsetCommit', API.transactionOffsetCommit],
      ['AddOffsetsToTxn', API.addOffsetsToTransaction],
    ] as const)('F23: every connection is lost while %s is on its way: outputs and offsets move together', async (_name, apiKey) => {
      const place = await ownScene('dropped-offsets')
      const started = await behindProxy(place, passThrough(place))
      await send(place, events('a', 200))
      await processed(place, started)
      const loss = proxy.swallowRequests({ apiKey, count: 1 })
      await send(place, events('b', 20))
      await struck('it is on its way', loss)
      const closed = proxy.strikes.dropped + proxy.connections
      proxy.drop()
      await until('a new connection is turned away', () => proxy.strikes.dropped > closed)
      proxy.restore()
      await processed(place, started)
      expect(notOnce(await outputIds(place), [...names('a', 200), ...names('b', 20)])).toEqual({})
      expect(started.app.state).toBe('running')
    })

    test.each([
      ['TxnOffsetCommit', API.transactionOffsetCommit],
      ['AddOffsetsToTxn', API.addOffsetsToTransaction],
    ] as const)(
      'F23: %s is swallowed: the worker goes on, or ends and is started again; each id once, nothing lost',
      async (_name, apiKey) => {
        const place = await ownScene('swallowed-offsets')
        const started = await behindProxy(place, passThrough(place))
        await send(place, events('a', 200))
        await processed(place, started)
        const loss = proxy.swallowRequests({ apiKey, count: 1 })
        await send(place, events('b', 200))
        await struck('it is swallowed', loss)
        const ended = await processed(place, started).then(
          () => undefined,
          (error: unknown) => error as Error & { code?: string },
        )
        if (ended !== undefined) {
          expect(ended.code).toBe('client-hangs')
          await processed(place, await pastProxy(place, passThrough(place)))
        }
        expect(notOnce(await outputIds(place), [...names('a', 200), ...names('b', 200)])).toEqual({})
      },
    )
  })

  describe('a commit that does not end while partitions are asked back', () => {
    /** The member of the group that a slot is, by the broker's account: another member id is another membership. */
    const memberOf = async (place: Scene, instance: string): Promise<string | undefined> =>
      (await bare.group(place.application)).members.find((member) => member.instance.includes(instance))?.member

    interface Group {
      readonly place: OwnScene
      readonly first: StartedApp
      readonly lost: boolean[]
      readonly member: string
    }

    /** Two tasks, both with the first worker, which goes through the proxy. */
    async function firstWorker(
      name: string,
      config: Partial<Config> = {},
      more: Parameters<typeof dedupeTopology>[1] = {},
    ): Promise<Group> {
      const place = await ownScene(name, 2)
      const first = await behindProxy({ ...place, stateDir: `${place.stateDir}/first` }, dedupeTopology(place, more), {
        instance: 'first',
        ...config,
      })
      const lost: boolean[] = []
      first.app.on('revoked', (event) => lost.push(event.lost))
      const member = await memberOf(place, 'first')
      expect(member).toBeDefined()
      return { place, first, lost, member: member! }
    }

    const joined = (place: Scene): Promise<StartedApp> =>
      pastProxy({ ...place, stateDir: `${place.stateDir}/second` }, dedupeTopology(place), { instance: 'second' })

    async function endsWell({ place, first, lost, member }: Group, second: StartedApp, ids: readonly string[]): Promise<void> {
      await until('the second has a task', () => second.app.status().tasks === 1 && second.app.state === 'running')
      // Given up in order, not taken away: it is still the same member.
      expect(lost).toEqual([false])
      expect(await memberOf(place, 'first')).toBe(member)
      proxy.restore()
      await processed(place, first, second)
      // Its task may still be on the way back from a commit whose outcome was in doubt.
      await until('the first has one task, and runs', () => first.app.status().tasks === 1 && first.app.state === 'running')
      expect(notOnce(await outputIds(place), ids)).toEqual({})
    }

    test.each([
      ['commit', []],
      ['commit, and the replacement of its producer,', [API.initProducerId]],
    ] as const)(
      'A16: a %s that does not end while another member joins: the revoke is answered in time, the member stays',
      async (_what, also) => {
        const group = await firstWorker('slow-commit')
        const { place, first } = group
        await send(place, events('a', 200))
        await processed(place, first)
        const holds = [API.endTransaction, ...also].map((apiKey) => proxy.holdRequests({ apiKey }))
        await send(place, events('b', 200))
        await struck('a commit is under way', holds[0]!)
        const joining = joined(place)
        await until('the revoke is answered', () => first.revoked.length > 0)
        // Still held when the partition was given up.
        for (const hold of holds) hold.release()
        await endsWell(group, await joining, [...names('a', 200), ...names('b', 200)])
      },
    )

    test('A17: the commit inside revoke fails: its write-set is dropped, the unassign happens, nothing is lost or doubled', async () => {
      const pace = new Int32Array(new SharedArrayBuffer(4))
      let isSlow = true
      const group = await firstWorker(
        'failing-revoke',
        { maxPollRecords: 10, commitInterval: '4s' },
        {
          by: ({ id }) => {
            // A transaction is open, and stays open, until the second worker has joined.
            if (isSlow) Atomics.wait(pace, 0, 0, 5)
            return id
          },
        },
      )
      const { place, first } = group
      const loss = proxy.swallowRequests({ apiKey: API.endTransaction })
      const commits = first.commits.length
      await send(place, [...events('a', 4_000), ...events('a', 100)])
      const joining = joined(place)
      await until('the revoke is answered', () => first.revoked.length > 0)
      isSlow = false
      expect(loss.struck).toBeGreaterThan(0)
      expect(first.commits.length).toBe(commits)
      loss.end()
      await endsWell(group, await joining, names('a', 4_000))
    })
  })
})
