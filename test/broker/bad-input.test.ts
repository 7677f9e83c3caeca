/** Everything a user can get wrong or that breaks around the worker: a clear message, an exit code, nothing lost (X6, X10, CASES B21, D43, F50, F52). */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { changelogTopic, tasksTopic } from '../../src/topology/internal-topics.ts'
import { deadLetters, topology } from '../../src/topology/index.ts'
import { appOf, dedupeTopology, eventTopic, events, idOf, processed, scene, startApp, temporaryFolder } from '../helpers/apps.ts'
import { commandChild, dedupeSource, workerChild } from '../helpers/children.ts'
import { until } from '../helpers/condition.ts'
import {
  brokers,
  committedOffsets,
  createTopic,
  disconnectKafka,
  highWatermarks,
  notOnce,
  readAll,
  send,
  sharedAdmin,
  unique,
} from '../helpers/kafka.ts'

afterAll(disconnectKafka)

const ids = (records: readonly { value: string | null }[]): string[] => records.map(({ value }) => idOf(value))
const names = (prefix: string, count: number): string[] => Array.from({ length: count }, (_, index) => `${prefix}${index}`)
const quick = ['--transaction-timeout', '2s', '--session-timeout', '12s', '--max-poll-interval', '15s', '--instance', 'command']

describe('records that cannot be processed', () => {
  test('F50: bad JSON and a handler that throws become dead letters, with the offset in one transaction; the others are processed once', async () => {
    const place = await scene('poison', 2)
    const failed = await createTopic(`${place.application}.failed`, 1)
    const app = topology(place.application, { onError: { to: deadLetters(failed) } }, ({ stream }) => {
      stream(eventTopic(place.input))
        .dedupe({ by: (event) => event.id, window: '1h', partitioned: 'by-key' })
        .mapValues((event) => {
          if (event.id === 'a13') throw new RangeError('unlucky')
          return event
        })
        .to(eventTopic(place.output))
    })
    await send(place.input, [
      ...events('a', 50),
      { key: 'bad', value: '{"id":', headers: { trace: 't' } },
      { key: null, value: '{}' },
      ...events('a', 50),
    ])
    const { app: running, failures } = await startApp(app, { stateDir: place.stateDir, transactionMaxRecords: 10 })
    await processed(place)
    expect(
      notOnce(
        ids(await readAll(place.output)),
        names('a', 50).filter((id) => id !== 'a13'),
      ),
    ).toEqual({})
    const letters = await readAll(failed)
    // The failed first of a13 is not remembered, so its resend fails as well.
    expect(letters.map(({ value }) => value).sort()).toEqual(['{"id":', '{"id":"a13"}', '{"id":"a13"}', '{}'])
    const bad = letters.find(({ value }) => value === '{"id":')!
    expect(bad.key).toBe('bad')
    expect(Object.fromEntries(bad.headers)).toMatchObject({
      trace: 't',
      'millrace.topic': place.input,
      'millrace.phase': 'decode',
      'millrace.error': 'CodecError',
    })
    expect(failures.every(({ reaction }) => reaction === 'dead-letter')).toBe(true)
    expect(running.state).toBe('running')
  })

  test("X6: with onError 'fail' the worker stops with code 4 and the record by name, nothing of it is committed, and after the mend nothing is missing", async () => {
    const place = await scene('fail', 1)
    await send(place.input, [...events('a', 20), { key: 'k', value: 'no json' }, ...events('b', 20)])
    const child = commandChild(dedupeSource(place), ['--brokers', brokers, '--state-dir', place.stateDir, ...quick])
    expect(await child.exit, child.text).toEqual({ code: 4, signal: null })
    expect(child.text).toContain(`record ${place.input}[0] offset 20 failed in node`)
    expect(child.text).toContain('onError')
    expect((await committedOffsets(place.application, place.input)).get(0)).toBeLessThanOrEqual(20)
    await startApp(dedupeTopology(place, { onError: 'skip' }), { stateDir: place.stateDir, instance: 'command' })
    await processed(place)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 20), ...names('b', 20)])).toEqual({})
  })
})

describe('topics', () => {
  test('an unknown input topic: code 2, its name, and how to make it', async () => {
    const place = await scene('unknown', 1)
    const child = commandChild(dedupeSource({ ...place, input: 'no-such-topic' }), [
      '--brokers',
      brokers,
      '--state-dir',
      place.stateDir,
      ...quick,
    ])
    expect(await child.exit, child.text).toEqual({ code: 2, signal: null })
    expect(child.text).toContain('topic no-such-topic, read by this topology, does not exist')
    expect(child.text).toContain('kafka-topics.sh --create')
  })

  test('an unknown output topic is refused before anything is read', async () => {
    const place = await scene('unknown', 1)
    await send(place.input, events('a', 3))
    const { app } = appOf(dedupeTopology({ ...place, output: `${place.application}.nowhere` }), { stateDir: place.stateDir })
    await expect(app.start()).rejects.toMatchObject({
      name: 'ConfigError',
      code: 'topic-missing',
      message: expect.stringContaining(`${place.application}.nowhere`),
    })
    expect([...(await committedOffsets(place.application, place.input)).values()]).toEqual([-1])
  })

  test.each([
    ['partition count', 3, { 'cleanup.policy': 'compact' }, /3 partitions, expected 2/],
    ['cleanup policy', 2, { 'cleanup.policy': 'delete' }, /cleanup\.policy=delete, expected compact/],
  ])('F52: a changelog with another %s is refused, the difference named', async (_name, partitions, config, message) => {
    const place = await scene('internal', 2)
    await createTopic(changelogTopic(place.application, 'dedupe'), partitions, config)
    const { app } = appOf(dedupeTopology(place), { stateDir: place.stateDir })
    const started = app.start()
    await expect(started).rejects.toMatchObject({ name: 'ConfigError', code: 'internal-topic-differs' })
    await expect(started).rejects.toThrow(message)
  })

  test('F52: a changelog that was deleted after progress was committed is never silently re-created (X8: its ids would pass again)', async () => {
    const place = await scene('gone', 1)
    await send(place.input, events('a', 10))
    const before = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    await processed(place)
    await before.app.close()
    const changelog = changelogTopic(place.application, 'dedupe')
    const admin = await sharedAdmin()
    await admin.deleteTopics({ topics: [changelog] })
    await until('the changelog is gone', async () => !(await admin.listTopics()).includes(changelog))
    await send(place.input, events('a', 10))
    const { app } = appOf(dedupeTopology(place), { stateDir: place.stateDir })
    await expect(app.start()).rejects.toThrow(changelog)
    expect(notOnce(ids(await readAll(place.output)), names('a', 10))).toEqual({})
  })

  test('a topology that does not fit the recorded tasks is refused with the difference', async () => {
    const place = await scene('fit', 1)
    const first = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    await first.app.close()
    const { app } = appOf(
      topology(place.application, ({ stream }) => stream(eventTopic(place.input)).to(eventTopic(place.output))),
      { stateDir: place.stateDir },
    )
    await expect(app.start()).rejects.toMatchObject({
      code: 'topology-does-not-fit',
      message: expect.stringContaining('stores were dedupe, are none'),
    })
  })

  // Inputs that grow: input-growth.test.ts.

  test('a task topic with more partitions than there are tasks was altered by hand: refused, found and expected named', async () => {
    const place = await scene('altered', 1)
    await createTopic(tasksTopic(place.application), 3, { 'cleanup.policy': 'compact' })
    const { app } = appOf(dedupeTopology(place), { stateDir: place.stateDir })
    await expect(app.start()).rejects.toThrow(`${tasksTopic(place.application)}: 3 partitions, expected 1`)
  })

  test('records that were deleted before they were processed stop the worker: no silent jump', async () => {
    const place = await scene('deleted', 1)
    await send(place.input, events('a', 10))
    const first = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    await processed(place)
    await first.app.close()
    await send(place.input, events('b', 10))
    await (await sharedAdmin()).deleteTopicRecords({ topic: place.input, partitions: [{ partition: 0, offset: '15' }] })
    const next = appOf(dedupeTopology(place), { stateDir: place.stateDir })
    const started = next.app.start()
    started.catch(() => undefined)
    const failure = (await next.app.finished.catch((error: unknown) => error)) as Error
    expect(failure).toMatchObject({ name: 'ConfigError', code: 'offset-out-of-range' })
    expect(failure.message).toContain(`${place.input}[0] at offset 10`)
  })

  test('an input whose head was deleted by retention is read from where it begins, and from where the group stands', async () => {
    const place = await scene('trimmed', 8)
    await send(place.input, events('a', 400))
    const partitions = await highWatermarks(place.input)
    await (
      await sharedAdmin()
    ).deleteTopicRecords({
      topic: place.input,
      partitions: [...partitions].map(([partition, end]) => ({ partition, offset: String(end) })),
    })
    await send(place.input, events('b', 400))
    // Offset 0 is out of range in every partition, for a fresh start and for the starts after it.
    for (let round = 0; round < 3; round++) {
      const started = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
      await processed(place, started)
      await started.app.close()
      await started.app.finished
    }
    expect(notOnce(ids(await readAll(place.output)), names('b', 400))).toEqual({})
  })

  test('stateless inputs with different partition counts: every record of both is processed once', async () => {
    const place = await scene('unequal', 2)
    const small = await createTopic(`${place.application}.small`, 1)
    await send(place.input, events('a', 20))
    await send(small, events('b', 20))
    const started = await startApp(
      topology(place.application, ({ stream }) => stream([eventTopic(place.input), eventTopic(small)]).to(eventTopic(place.output))),
      { stateDir: place.stateDir },
    )
    await processed(place, started)
    await processed({ ...place, input: small }, started)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 20), ...names('b', 20)])).toEqual({})
  })
})

describe('places', () => {
  test('no broker: code 3, the address, within the connect time-out', async () => {
    const place = { application: unique('nobody'), input: 'in', output: 'out', stateDir: temporaryFolder() }
    const child = commandChild(dedupeSource(place), ['--brokers', '127.0.0.1:9', '--state-dir', place.stateDir, ...quick])
    expect(await child.exit, child.text).toEqual({ code: 3, signal: null })
    expect(child.text).toContain('127.0.0.1:9')
    expect(child.text).toContain('--brokers')
  })

  test('a state directory that cannot be written: code 6 and the folder', async () => {
    const place = await scene('unwritable', 1)
    // A file in the way: it stops root as well.
    const file = join(place.stateDir, 'file')
    writeFileSync(file, '')
    const child = commandChild(dedupeSource(place), ['--brokers', brokers, '--state-dir', join(file, 'state'), ...quick])
    expect(await child.exit, child.text).toEqual({ code: 6, signal: null })
    expect(child.text).toContain(file)
  })

  test('D43: a second process on the same state directory and slot: code 6, the owner named, and the first is not disturbed', async () => {
    const place = await scene('locked', 1)
    const { app } = await startApp(dedupeTopology(place), { stateDir: place.stateDir, instance: 'command' })
    const child = commandChild(dedupeSource(place), [
      '--brokers',
      brokers,
      '--state-dir',
      place.stateDir,
      '--lock-timeout',
      '500ms',
      ...quick,
    ])
    expect(await child.exit, child.text).toEqual({ code: 6, signal: null })
    expect(child.text).toContain(`process ${process.pid}`)
    expect(child.text).toContain('command-0')
    await send(place.input, events('a', 10))
    await processed(place)
    expect(app.status()).toMatchObject({ state: 'running', aborts: 0 })
  })

  test('A1: a second process takes the slot from another folder: the first ends with code 5, and no id is doubled', async () => {
    const place = await scene('taken', 1)
    await send(place.input, events('a', 100))
    const first = workerChild(place)
    await first.says('running')
    await processed(place)
    const second = workerChild({ ...place, stateDir: temporaryFolder() })
    await second.says('running')
    await send(place.input, [...events('a', 100), ...events('b', 100)])
    expect(await first.exit, first.text).toEqual({ code: 5, signal: null })
    expect(first.text).toContain('slot')
    await processed(place)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 100), ...names('b', 100)])).toEqual({})
    await second.kill()
  })

  test('B21: time-outs that contradict each other are refused before anything connects, both values named', () => {
    const place = { application: 'never', input: 'in', output: 'out', stateDir: 'never' }
    const make = (config: Record<string, string>) => () => appOf(dedupeTopology(place), { brokers: '127.0.0.1:9', ...config })
    expect(make({ transactionTimeout: '10s', sessionTimeout: '15s' })).toThrow(/transactionTimeout 10s.*sessionTimeout 15s/)
    expect(make({ commitInterval: '1s', transactionTimeout: '1500ms' })).toThrow(/commitInterval 1s.*transactionTimeout 1\.?5/)
  })
})
