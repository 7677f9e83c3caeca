/**
 * The client facts about transactions, each with the rule that answers it, on a real broker: whoever takes the rule out sees its test fail
 * (docs/rules-under-test.md). Faults strike in the client below the adapter.
 */
import { afterAll, describe, expect, onTestFinished, test } from 'vitest'
import { withWatchdog } from '../../src/broker/kafka/errors.ts'
import { WATCHDOG } from '../../src/errors/broker-error.ts'
import { changelogTopic } from '../../src/topology/internal-topics.ts'
import { nullable, string } from '../../src/serde/index.ts'
import { deadLetters, topic, topology, type Topology } from '../../src/topology/index.ts'
import { appOf, dedupeTopology, eventTopic, events, idOf, processed, scene, startApp, type Event, type Scene } from '../helpers/apps.ts'
import { countConsumerCalls, FAILURES, intercept, interceptProduce } from '../helpers/client-faults.ts'
import { jsonOf } from '../helpers/codecs.ts'
import { until } from '../helpers/condition.ts'
import { committedOffsets, createTopic, disconnectKafka, kafka, notOnce, readAll, send } from '../helpers/kafka.ts'

afterAll(disconnectKafka)

const ids = (records: readonly { value: string | null }[]): string[] => records.map(({ value }) => idOf(value))
const names = (prefix: string, count: number): string[] => Array.from({ length: count }, (_, index) => `${prefix}${index}`)
const forward = ({ application, input, output }: Scene): Topology =>
  topology(application, ({ stream }) => stream(eventTopic(input)).to(eventTopic(output)))

/** Running, its start positions committed, so that the next commit is the one of the first input. */
async function started(place: Scene, topologyOfApp = dedupeTopology(place), config: Parameters<typeof startApp>[1] = {}) {
  const running = await startApp(topologyOfApp, { stateDir: place.stateDir, ...config })
  await until('the start positions', () => running.commits.length > 0)
  return running
}

describe('CF23: offsets', () => {
  test('a request that the connection took with it is sent again before the commit: outputs are never visible without their offsets', async () => {
    const place = await scene('offsets', 1)
    const { commits } = await started(place, forward(place))
    let left = 2
    intercept(place.application, 'sendOffsetsToTransaction', (call) => {
      if (left-- > 0) call.answer(FAILURES.connectionClosed)
      else call.pass()
    })
    await send(place.input, events('a', 10))
    // The very commit that made the first output visible must have moved the offset with it.
    await until('the first input is committed', () => commits.some(({ records }) => records > 0))
    const visible = (await readAll(place.output)).length
    expect(left).toBeLessThan(0)
    expect((await committedOffsets(place.application, place.input)).get(0)).toBe(visible)
  })
})

describe('CF23: a call that the client never answers', () => {
  test('is given up after its own time-out and some grace, as no answer', async () => {
    const hanging = withWatchdog('sendOffsets', 1, new Promise(() => undefined), 1)
    await expect(hanging).rejects.toMatchObject({ operation: 'sendOffsets', code: WATCHDOG })
  })
})

describe('CF24, X3: a commit that the group must be able to refuse', () => {
  test('every transaction carries offsets, those that move nothing included', async () => {
    const place = await scene('carries', 2)
    const sent = new Map<string, unknown[]>()
    intercept(place.application, 'sendOffsetsToTransaction', (call) => {
      sent.set(call.transactionalId, call.args[0] as unknown[])
      call.pass()
    })
    const without: number[] = []
    intercept(place.application, 'commitTransaction', (call) => {
      if ((sent.get(call.transactionalId)?.length ?? 0) === 0) without.push(call.call)
      sent.delete(call.transactionalId)
      call.pass()
    })
    // State is flushed after each commit, by a transaction of its own that moves no offset.
    const { app, commits } = await started(place, dedupeTopology(place), { stateFlushInterval: '1ms', transactionMaxRecords: 20 })
    await send(place.input, events('a', 200))
    await processed(place)
    await until('a flush', () => commits.some(({ reason }) => reason === 'flush'))
    await app.close()
    expect(without).toEqual([])
    expect(notOnce(ids(await readAll(place.output)), names('a', 200))).toEqual({})
  })
})

describe('CF29: what is refused', () => {
  test('T4: a record that the client does not take dooms its transaction: nothing is committed without it', async () => {
    const place = await scene('thrown', 1)
    let refused = 0
    interceptProduce(place.application, (topic, value) => {
      if (topic !== place.output || value === null || idOf(value.toString()) !== 'a7' || refused > 0) return undefined
      refused++
      return -192
    })
    await started(place)
    await send(place.input, events('a', 20))
    await processed(place)
    expect(refused).toBe(1)
    expect(notOnce(ids(await readAll(place.output)), names('a', 20))).toEqual({})
  })

  test('F50: outputs without a key for a compacted topic, dated too far ahead, or for a partition that is not there become dead letters by name; no transaction is lost to them', async () => {
    const place = await scene('refused', 1, { 'cleanup.policy': 'compact' })
    const dated = await createTopic(`${place.application}.dated`, 1)
    const failed = await createTopic(`${place.application}.failed`, 1)
    await send(place.input, [
      ...events('a', 3),
      ...['nokey', 'future', 'nowhere'].map((id) => ({ key: id, value: JSON.stringify({ id }) })),
      ...events('b', 3),
    ])
    const keyless = topic(place.output, { key: nullable(string()), value: jsonOf<Event>() })
    const { app, failures } = await startApp(
      topology(place.application, { onError: { to: deadLetters(failed) } }, ({ stream }) => {
        const input = stream(eventTopic(place.input))
        input
          .map((event, { key, timestamp }) => ({
            key: event.id === 'nokey' ? null : key,
            value: event,
            timestamp: event.id === 'future' ? timestamp + 2 * 3_600_000 : timestamp,
          }))
          .to(keyless, { partition: (event) => (event.id === 'nowhere' ? 9 : 0) })
        input.to(eventTopic(dated))
      }),
      { stateDir: place.stateDir },
    )
    await processed(place)
    const good = [...names('a', 3), ...names('b', 3)]
    expect(ids(await readAll(place.output))).toEqual(good)
    // A record that fails in one branch leaves nothing in the other one.
    expect(ids(await readAll(dated))).toEqual(good)
    expect((await readAll(failed)).map(({ key }) => key)).toEqual(['nokey', 'future', 'nowhere'])
    expect(failures.map(({ error }) => error.message)).toEqual([
      expect.stringMatching(/key/),
      expect.stringMatching(/ahead|timestamp/),
      expect.stringMatching(/partition/),
    ])
    expect(app.status()).toMatchObject({ aborts: 0, deadLetters: 3, state: 'running' })
  })
})

describe('CF28: committed offsets that are not decided yet', () => {
  test('a task begins where a transaction that was still open at its start has committed, not before', async () => {
    const place = await scene('pending', 1)
    await send(place.input, events('a', 100))
    const peer = kafka.producer({
      transactionalId: `${place.application}-peer`,
      idempotent: true,
      maxInFlightRequests: 1,
      transactionTimeout: 60_000,
    })
    await peer.connect()
    onTestFinished(() => peer.disconnect())
    const transaction = await peer.transaction()
    await transaction.send({ topic: place.output, messages: events('a', 60) })
    await transaction.sendOffsets({
      consumerGroupId: place.application,
      topics: [{ topic: place.input, partitions: [{ partition: 0, offset: '60' }] }],
    })
    const asked = countConsumerCalls(place.application, 'committed')
    const starting = startApp(forward(place), { stateDir: place.stateDir })
    await until('the worker has asked for the committed offsets', () => asked() > 0)
    await transaction.commit()
    await starting
    await processed(place)
    expect(ids(await readAll(place.output))).toEqual(names('a', 100))
  })
})

describe('CF16, C26: the end of a restore', () => {
  test('a transaction that was open before the last ids were committed to the changelog is waited for: those ids are there, and pass no second time', async () => {
    const place = await scene('behind', 1)
    const before = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    await send(place.input, events('a', 50))
    await processed(place)
    const peer = kafka.producer({
      transactionalId: `${place.application}-peer`,
      idempotent: true,
      maxInFlightRequests: 1,
      transactionTimeout: 120_000,
    })
    await peer.connect()
    onTestFinished(() => peer.disconnect())
    const transaction = await peer.transaction()
    await transaction.send({
      topic: changelogTopic(place.application, 'dedupe'),
      messages: [{ key: 'of-another', value: 'open', partition: 0 }],
    })
    await send(place.input, events('b', 50))
    await processed(place)
    await before.app.close()

    // Another folder: all of it must come from the changelog, whose last stable offset lies before the b's.
    const folder = `${place.stateDir}/other`
    await send(place.input, [...events('a', 50), ...events('b', 50)])
    const after = appOf(dedupeTopology(place), { stateDir: folder })
    const starting = after.app.start()
    let ended = false
    starting.then(
      () => (ended = true),
      () => (ended = true),
    )
    // Not at its start: it has read what lies before the open transaction, and there is nothing more for it to read.
    await until(
      'the restore says that it waits, or is over',
      () => ended || after.log.some(({ message }) => message.startsWith('restore waits for')),
    )
    await transaction.abort()
    await starting
    await processed(place)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 50), ...names('b', 50)])).toEqual({})
    await until('all counted', () => after.app.status().duplicates === 100)
    // B25: the marker of the abort is the last thing in the changelog, and nothing is left to restore.
    expect(after.app.status().restoring).toEqual([])
    expect(after.restores.every(({ done, total }) => done === total)).toBe(true)
  })
})
