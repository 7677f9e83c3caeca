/** Field cases on a real broker: what users of comparable systems met (CASES A2, A12, B18, B23, B24, E49, F53, G2, G3, G4, G6, G8). */
import { rmSync } from 'node:fs'
import { afterAll, describe, expect, onTestFinished, test } from 'vitest'
import { readMetadata } from '../../src/runtime/offset-metadata.ts'
import { changelogTopic } from '../../src/topology/internal-topics.ts'
import { topology, type Topology } from '../../src/topology/index.ts'
import { dedupeTopology, eventTopic, events, idOf, processed, scene, startApp, type Event, type Scene } from '../helpers/apps.ts'
import { workerChild } from '../helpers/children.ts'
import { FAILURES, intercept, interceptProduce } from '../helpers/client-faults.ts'
import { until } from '../helpers/condition.ts'
import { createTopic, disconnectKafka, highWatermarks, kafka, notOnce, readAll, send, sharedAdmin } from '../helpers/kafka.ts'
import { fieldChild } from '../helpers/field-children.ts'
import { TaskDriver } from '../helpers/task-driver.ts'

afterAll(disconnectKafka)

const ids = (records: readonly { value: string | null }[]): string[] => records.map(({ value }) => idOf(value))
const names = (prefix: string, count: number): string[] => Array.from({ length: count }, (_, index) => `${prefix}${index}`)

/** Up to `end`. A compacted topic lets nothing be deleted, so it is another kind of topic meanwhile. */
async function deleteAll(topic: string, end: number): Promise<void> {
  const admin = await sharedAdmin()
  const policy = (value: string) =>
    admin.alterConfigs({ validateOnly: false, resources: [{ type: 2, name: topic, configEntries: [{ name: 'cleanup.policy', value }] }] })
  await policy('delete')
  await until('the broker lets it', () =>
    admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: String(end) }] }).then(
      () => true,
      () => false,
    ),
  )
  await policy('compact')
}

describe('many small transactions', () => {
  test('A12: a thousand back to back: none fails, none is aborted', async () => {
    const place = await scene('thousand', 2)
    await send(place.input, events('a', 1_000))
    const patient = { transactionTimeout: '30s', sessionTimeout: '45s', maxPollInterval: '60s' } as const
    const { app, log } = await startApp(dedupeTopology(place), { stateDir: place.stateDir, transactionMaxRecords: 1, ...patient })
    await processed(place)
    await until('all counted', () => app.status().records === 1_000)
    expect(app.status().transactions).toBeGreaterThanOrEqual(1_000)
    expect(app.status().aborts).toBe(0)
    expect(log.filter(({ level }) => level !== 'info')).toEqual([])
    expect(notOnce(ids(await readAll(place.output)), names('a', 1_000))).toEqual({})
  })
})

describe('open transactions', () => {
  test('B18, G6: an application that was killed for good holds readers of its output; the ids that end its transactions are with its committed offsets', async () => {
    const place = await scene('forgood', 1)
    await send(place.input, events('a', 200))
    const dead = workerChild(
      place,
      { transactionMaxRecords: 50, transactionTimeout: '10m', sessionTimeout: '20m', maxPollInterval: '20m' },
      { operation: 'sendOffsetsToTransaction', when: 'before', call: 3, signal: 'SIGKILL' },
    )
    await dead.exit
    const committed = dead.of('commit').reduce((sum, { records }) => sum + (records as number), 0)
    const [offsets] = await (await sharedAdmin()).fetchOffsets({ groupId: place.application, topics: [place.input] })
    const { transactionalIdPrefix, ringSize } = readMetadata((offsets!.partitions[0]!.metadata ?? '').replace(/\0+$/, ''))! // the client ends texts as C does
    for (let index = 0; index < ringSize; index++) {
      const settler = kafka.producer({ transactionalId: `${transactionalIdPrefix}-${index}`, idempotent: true, maxInFlightRequests: 1 })
      await settler.connect()
      await (await settler.transaction()).abort()
      await settler.disconnect()
    }
    // `readAll` waits for what is open, for as long as the test may take.
    expect(ids(await readAll(place.output))).toEqual(names('a', committed))
  })

  test('B23: a slow handler does not stretch its transaction: it is committed at the interval, though the polled batch is not through', async () => {
    const place = await scene('slow', 1)
    await send(place.input, events('a', 40))
    const wait = new Int32Array(new SharedArrayBuffer(4))
    const { commits } = await startApp(
      topology(place.application, ({ stream }) =>
        stream(eventTopic(place.input))
          .peek(() => void Atomics.wait(wait, 0, 0, 30))
          .to(eventTopic(place.output)),
      ),
      { stateDir: place.stateDir, commitInterval: '60ms' },
    )
    await processed(place)
    expect(Math.max(...commits.map(({ records }) => records))).toBeLessThan(20)
    expect(ids(await readAll(place.output))).toEqual(names('a', 40))
  })
})

describe('the end of a changelog', () => {
  test('B24, B25: the marker of an abort, several markers, and a log that is empty with a non-zero end: the restore ends, and nothing is left to do', async () => {
    const place = await scene('ends', 1)
    const changelog = changelogTopic(place.application, 'dedupe')
    const first = await startApp(dedupeTopology(place), { stateDir: `${place.stateDir}/0`, transactionMaxRecords: 10 })
    await send(place.input, events('a', 30))
    await processed(place)
    // Every record of the changelog is followed by the marker of its abort, from here to the end.
    let aborts = 0
    intercept(place.application, 'sendOffsetsToTransaction', (call) => {
      if (aborts++ < 2) call.answer(FAILURES.illegalGeneration)
      else call.pass()
    })
    await send(place.input, events('b', 10))
    await until('two aborts', () => aborts >= 2)
    await processed(place)
    await first.app.close()
    const second = await startApp(dedupeTopology(place), { stateDir: `${place.stateDir}/1` })
    expect(second.restores.map(({ done, total }) => total - done)).toEqual([0])
    expect(second.app.status().restoring).toEqual([])
    await send(place.input, [...events('a', 30), ...events('b', 10)])
    await processed(place)
    await second.app.close()
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 30), ...names('b', 10)])).toEqual({})

    const end = (await highWatermarks(changelog)).get(0)!
    await deleteAll(changelog, end)
    const third = await startApp(dedupeTopology(place), { stateDir: `${place.stateDir}/2` })
    expect(third.restores).toEqual([])
    await send(place.input, events('c', 10))
    await processed(place)
    expect(third.app.state).toBe('running')
  })
})

describe('state and the handler', () => {
  test('G2, E45: a handler that throws after the id was remembered, and a process killed with -9 at that very point: the id passes once, and is counted once', async () => {
    const place = await scene('afterwrite', 1)
    const failed = await createTopic(`${place.application}.failed`, 1)
    await send(place.input, [...events('a', 30), ...events('a', 30)])
    const child = (onMark: 'kill' | 'throw' | 'pass') =>
      fieldChild(place, { mark: 'a17', onMark, failed }, { stateFlushInterval: '1ms', transactionMaxRecords: 10 })
    const killed = child('kill')
    expect(await killed.exit, killed.text).toEqual({ code: null, signal: 'SIGKILL' })
    const throws = child('throw')
    await throws.says('running')
    await processed(place)
    await throws.kill()
    // Both of its records failed, and neither is remembered.
    expect(ids(await readAll(failed))).toEqual(['a17', 'a17'])
    const passes = child('pass')
    await passes.says('running')
    await send(place.input, [...events('a', 30), ...events('a', 30)])
    await processed(place)
    passes.signal('SIGTERM')
    expect(await passes.exit, passes.text).toEqual({ code: 0, signal: null })
    expect(notOnce(ids(await readAll(place.output)), names('a', 30))).toEqual({})
  })

  test.each([
    ['longer', '1h', '2h'],
    ['shorter', '2h', '1h'],
  ] as const)(
    'E49: a window that is %s at the next start is taken over in place: ids inside the new one are still known, with their file and without it',
    async (_name, before, after) => {
      const place = await scene('window', 1)
      const at = (minutes: number, id: string) => ({
        key: id,
        value: JSON.stringify({ id }),
        timestamp: 1_700_000_000_000 + minutes * 60_000,
      })
      const old = await startApp(dedupeTopology(place, { window: before }), { stateDir: place.stateDir })
      await send(place.input, [at(0, 'a'), at(50, 'b')])
      await processed(place)
      await old.app.close()
      const next = await startApp(dedupeTopology(place, { window: after }), { stateDir: place.stateDir })
      // 55 minutes after a, 5 after b: inside either window. 100 minutes after b: inside the longer one alone.
      await send(place.input, [at(55, 'a'), at(55, 'b')])
      await processed(place)
      await next.app.close()
      rmSync(place.stateDir, { recursive: true, force: true })
      const restored = await startApp(dedupeTopology(place, { window: after }), { stateDir: place.stateDir })
      await send(place.input, [at(56, 'a'), at(56, 'b'), at(150, 'b')])
      await processed(place)
      expect(ids(await readAll(place.output))).toEqual(after === '2h' ? ['a', 'b'] : ['a', 'b', 'b'])
      expect(restored.log.filter(({ level }) => level !== 'info')).toEqual([])
    },
  )
})

describe('partitions and keys', () => {
  test('G3: keys that another partitioner put elsewhere: state and changelog stay in the task that read them, and with two workers each id still passes once', async () => {
    const place = await scene('elsewhere', 4)
    // Everything in partition 2, where murmur2 would put a quarter of it.
    const input = events('a', 200).map((record) => ({ ...record, partition: 2 }))
    await send(place.input, [...input, ...input.slice(0, 50)])
    const first = await startApp(dedupeTopology(place), { stateDir: `${place.stateDir}/0`, slot: 0 })
    await processed(place)
    const second = await startApp(dedupeTopology(place), { stateDir: `${place.stateDir}/1`, slot: 1 })
    await until('shared', () => first.app.status().tasks === 2 && second.app.status().tasks === 2)
    await send(place.input, input)
    await processed(place)
    const output = await readAll(place.output)
    expect(notOnce(ids(output), names('a', 200))).toEqual({})
    // Outputs go where a Java producer would put their keys, so to all partitions.
    expect(new Set(output.map(({ partition }) => partition)).size).toBe(4)
    const changelog = [...(await highWatermarks(changelogTopic(place.application, 'dedupe')))].filter(([, end]) => end > 0)
    expect(changelog.map(([partition]) => partition)).toEqual([2])
  })

  /** Changes the key, drops, routes duplicates: all that the language has now. */
  const rich = ({ application, input, output }: Scene, duplicates: string): Topology =>
    topology(application, ({ stream }) => {
      stream(eventTopic(input))
        .dedupe({ by: (event) => event.id, window: '1h', partitioned: 'by-key', onDuplicate: { to: eventTopic(duplicates) } })
        .filter(({ id }) => !id.endsWith('3'))
        .map((event: Event, { timestamp, headers }) => ({
          key: `k${event.id.length}-${event.id.at(-1)}`,
          value: { id: event.id },
          timestamp,
          headers: headers.with('seen', 'yes'),
        }))
        .to(eventTopic(output))
    })

  test('G4, F53: a stream that changes its keys: with two workers on a broker with four partitions the output is that of one worker, and that of the bare task', async () => {
    const place = await scene('rekey', 4)
    const alone = { ...place, application: `${place.application}-alone`, output: await createTopic(`${place.application}.alone`, 4) }
    const duplicates = [
      await createTopic(`${place.application}.twice`, 4),
      await createTopic(`${place.application}.alone.twice`, 4),
    ] as const
    const input = Array.from({ length: 600 }, (_, index) => ({
      key: `k${index % 37}`,
      value: JSON.stringify({ id: `s${index % 450}` }),
      timestamp: 1_700_000_000_000 + index,
      headers: { n: String(index) },
    }))
    // Ids meet in one partition.
    const byId = input.map((record) => ({ ...record, key: `k${Number((JSON.parse(record.value) as Event).id.slice(1)) % 37}` }))
    await send(place.input, byId)
    const workers = [0, 1].map((slot) =>
      startApp(rich(place, duplicates[0]), { stateDir: `${place.stateDir}/${slot}`, slot, transactionMaxRecords: 20 }),
    )
    await startApp(rich(alone, duplicates[1]), { stateDir: `${place.stateDir}/alone` })
    await Promise.all(workers)
    await processed(place)
    await processed(alone)
    const sorted = (records: Awaited<ReturnType<typeof readAll>>): string[] =>
      records
        .map(({ partition, key, value, timestamp, headers }) =>
          JSON.stringify([partition, key, value, timestamp, headers.filter(([name]) => !name.startsWith('millrace.'))]),
        )
        .toSorted()
    const output = await readAll(place.output)
    expect(sorted(output)).toEqual(sorted(await readAll(alone.output)))
    expect(sorted(await readAll(duplicates[0]))).toEqual(sorted(await readAll(duplicates[1])))
    // A key is in one partition, whichever worker wrote it.
    const places = new Map<string | null, Set<number>>()
    for (const { key, partition } of output) places.set(key, (places.get(key) ?? new Set()).add(partition))
    expect([...places.values()].every(({ size }) => size === 1)).toBe(true)

    const driven: string[] = []
    const read = await readAll(place.input)
    for (let partition = 0; partition < 4; partition++) {
      const driver = await TaskDriver.of(rich(place, duplicates[0]))
      for (const { key, value, timestamp, headers, offset } of read.filter((record) => record.partition === partition)) {
        const sent = driver.run({
          topic: place.input,
          partition,
          offset,
          timestamp,
          key: Buffer.from(key!),
          value: Buffer.from(value!),
          headers: headers.map(([name, text]) => [name, Buffer.from(text!)] as const),
        })
        driven.push(
          ...sent
            .filter(({ topic }) => topic === place.output)
            .map((record) => JSON.stringify([record.key, record.value, record.timestamp, Object.entries(record.headers)])),
        )
      }
    }
    const onBroker = output.map(({ key, value, timestamp, headers }) => JSON.stringify([key, value, timestamp, headers]))
    expect(driven.toSorted()).toEqual(onBroker.toSorted())
  })
})

describe('G8: throughput', () => {
  test('outputs and state changes of a batch go out without waiting for the broker in between: many records a turn of the event loop, one flush a transaction', async () => {
    const place = await scene('batched', 1)
    await send(place.input, events('a', 5_000))
    let turns = 0
    let isCounting = true
    const count = (): void => {
      turns++
      if (isCounting) setImmediate(count)
    }
    setImmediate(count)
    onTestFinished(() => {
      isCounting = false
    })
    const turnsOfOutputs = new Set<number>()
    interceptProduce(place.application, (topic) => {
      if (topic === place.output) turnsOfOutputs.add(turns)
      return undefined
    })
    const calls: Record<string, number> = {}
    for (const operation of ['flush', 'sendOffsetsToTransaction', 'commitTransaction'] as const) {
      intercept(place.application, operation, (call) => {
        calls[operation] = call.call
        call.pass()
      })
    }
    const { app } = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    await processed(place)
    await until('all counted', () => app.status().records === 5_000)
    const { transactions } = app.status()
    expect(calls).toEqual({ flush: transactions, sendOffsetsToTransaction: transactions, commitTransaction: transactions })
    // A round trip for each record would be a turn for each record.
    expect(turnsOfOutputs.size).toBeLessThan(500)
    expect(transactions).toBeLessThan(500)
    expect(notOnce(ids(await readAll(place.output)), names('a', 5_000))).toEqual({})
  })
})
