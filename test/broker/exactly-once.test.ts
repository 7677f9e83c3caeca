/** End to end on a real broker, apps in this process: each id once, records as they were, scaling, restarts (X1, X2, X8, CASES G5, G7). */
import { rmSync } from 'node:fs'
import { afterAll, describe, expect, test } from 'vitest'
import { appOf, dedupeTopology, eventTopic, events, idOf, processed, scene, startApp } from '../helpers/apps.ts'
import { until } from '../helpers/condition.ts'
import { committedOffsets, createTopic, disconnectKafka, groupLag, notOnce, readAll, send, sendInTransactions } from '../helpers/kafka.ts'
import { deadLetters, topology } from '../../src/topology/index.ts'

afterAll(disconnectKafka)

const ids = (records: readonly { value: string | null }[]): string[] => records.map(({ value }) => idOf(value))
const names = (prefix: string, count: number): string[] => Array.from({ length: count }, (_, index) => `${prefix}${index}`)

describe('one worker', () => {
  test('X8: an input with duplicates gives each id once', async () => {
    const place = await scene('once', 3)
    const input = events('a', 2_000)
    await send(place.input, [...input, ...input.slice(500, 1_500), ...input.slice(0, 100)])
    const { app } = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    await processed(place)
    await send(place.input, input.slice(1_900))
    await processed(place)
    expect(notOnce(ids(await readAll(place.output)), names('a', 2_000))).toEqual({})
    expect(app.status()).toMatchObject({ state: 'running', records: 3_200, outputs: 2_000, duplicates: 1_200, lag: 0, tasks: 3 })
  })

  test('G5: key, timestamp and headers are forwarded, and the order of a key is kept (X5)', async () => {
    const place = await scene('pass', 2)
    const sent = Array.from({ length: 50 }, (_, index) => ({
      key: `k${index % 5}`,
      value: JSON.stringify({ id: `p${index}` }),
      timestamp: 1_700_000_000_000 + index,
      headers: { trace: `t${index}`, twice: ['1', '2'] },
    }))
    await send(place.input, sent)
    const { app } = await startApp(
      topology(place.application, ({ stream }) => stream(eventTopic(place.input)).to(eventTopic(place.output))),
      { stateDir: place.stateDir, transactionMaxRecords: 7 },
    )
    await processed(place)
    const found = await readAll(place.output)
    expect(found).toHaveLength(50)
    for (const { key, value, timestamp, headers } of found) {
      const index = Number(idOf(value).slice(1))
      expect({ key, timestamp, headers }).toEqual({
        key: `k${index % 5}`,
        timestamp: 1_700_000_000_000 + index,
        headers: [
          ['trace', `t${index}`],
          ['twice', '1'],
          ['twice', '2'],
        ],
      })
    }
    for (let key = 0; key < 5; key++) {
      const ofKey = found.filter((record) => record.key === `k${key}`).map(({ value }) => Number(idOf(value).slice(1)))
      expect(ofKey).toEqual([...ofKey].sort((x, y) => x - y))
    }
    expect(app.status().transactions).toBeGreaterThan(5)
  })

  test('B20: idle means no transactions; input that is filtered out still commits its offsets', async () => {
    const place = await scene('idle', 2)
    const { commits, app } = await startApp(
      topology(place.application, ({ stream }) =>
        stream(eventTopic(place.input))
          .filter(() => false)
          .to(eventTopic(place.output)),
      ),
      { stateDir: place.stateDir },
    )
    await send(place.input, events('a', 100))
    await processed(place)
    expect(await readAll(place.output)).toEqual([])
    await until('the commit event', () => app.status().records === 100)
    const afterInput = { commits: commits.length, transactions: app.status().transactions }
    expect(afterInput.commits).toBeGreaterThan(0)
    // A second worker's whole start is time enough for a transaction to happen, if idling made any.
    const other = await scene('clock', 1)
    await startApp(dedupeTopology(other), { stateDir: other.stateDir })
    expect({ commits: commits.length, transactions: app.status().transactions }).toEqual(afterInput)
  })

  test('B24, B25: input whose last offsets are control records: lag reaches 0, also when all of it was aborted', async () => {
    const place = await scene('control', 1)
    await sendInTransactions(place.input, [
      { records: events('a', 3) },
      { records: events('gone', 2), abort: true },
      { records: events('b', 2) },
      { records: events('gone', 2), abort: true },
    ])
    const { app } = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    await processed(place)
    expect(ids(await readAll(place.output))).toEqual(['a0', 'a1', 'a2', 'b0', 'b1'])
    expect(app.status().lag).toBe(0)
  })

  test('B25: a partition that holds nothing but aborted records ends with lag 0', async () => {
    const place = await scene('aborted', 1)
    await sendInTransactions(place.input, [{ records: events('gone', 2), abort: true }])
    await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    await until('lag 0', async () => (await groupLag(place.application, place.input)) === 0, 15_000)
  })

  test('A12: many tiny transactions back to back, none fails', async () => {
    const place = await scene('tiny', 2)
    await send(place.input, events('a', 300))
    // Time enough for a busy machine: what fails here fails for the transactions' sake.
    const patient = { transactionTimeout: '30s', sessionTimeout: '45s', maxPollInterval: '60s' } as const
    const { app, log } = await startApp(dedupeTopology(place), { stateDir: place.stateDir, transactionMaxRecords: 1, ...patient })
    await processed(place)
    expect(notOnce(ids(await readAll(place.output)), names('a', 300))).toEqual({})
    await until('all counted', () => app.status().records === 300)
    expect(log.filter(({ level }) => level !== 'info')).toEqual([])
    // One each, and that of the start positions.
    expect(app.status().transactions).toBeGreaterThanOrEqual(300)
    expect(app.status().aborts).toBe(0)
  })
})

describe('limits of topics', () => {
  test('a topic that takes small batches only: many small records go through', async () => {
    const place = await scene('narrow', 1, { 'max.message.bytes': '4000' })
    await send(place.input, events('a', 1_000))
    await processed(place, await startApp(dedupeTopology(place), { stateDir: place.stateDir }))
    expect(notOnce(ids(await readAll(place.output)), names('a', 1_000))).toEqual({})
  })

  test('a record of 1.5 MB goes through topics that take 5 MB; one that its sink does not take becomes a dead letter, by its size', async () => {
    const wide = { 'max.message.bytes': '5000000' }
    const place = await scene('large', 1, wide, wide)
    const failed = await createTopic(`${place.application}.failed`, 1, wide)
    const narrow = await createTopic(`${place.application}.narrow`, 1)
    const large = JSON.stringify({ id: 'x'.repeat(1_500_000) })
    await send(place.input, [...events('a', 2), { key: 'large', value: large }, ...events('b', 2)])
    const to = (application: string, sink: string) =>
      topology(application, { onError: { to: deadLetters(failed) } }, ({ stream }) =>
        stream(eventTopic(place.input)).dedupe({ by: 'key', window: '1h' }).to(eventTopic(sink)),
      )
    await processed(place, await startApp(to(place.application, place.output), { stateDir: place.stateDir }))
    expect((await readAll(place.output)).map(({ key }) => key)).toEqual(['a0', 'a1', 'large', 'b0', 'b1'])
    expect(await readAll(failed)).toEqual([])

    const other = { ...place, application: `${place.application}-narrow` }
    const { app } = await startApp(to(other.application, narrow), { stateDir: place.stateDir })
    await processed(other)
    expect((await readAll(narrow)).map(({ key }) => key)).toEqual(['a0', 'a1', 'b0', 'b1'])
    const [letter, ...more] = await readAll(failed)
    expect(more).toEqual([])
    expect(letter!.value).toBe(large)
    expect(Object.fromEntries(letter!.headers)['millrace.message']).toMatch(/max\.message\.bytes is 1048588/)
    expect(app.status().aborts).toBe(0)
  })
})

describe('several workers', () => {
  test('G7: two slots share the tasks; one leaves and comes back; nothing is lost or doubled', async () => {
    const place = await scene('scale', 4)
    const worker = (slot: number) =>
      startApp(dedupeTopology(place), { stateDir: `${place.stateDir}/${slot}`, slot, commitInterval: '20ms' })
    let isSending = true
    let count = 0
    const sending = (async () => {
      while (isSending) {
        const batch = Array.from({ length: 50 }, (_, index) => ({
          key: `k${(count + index) % 97}`,
          value: JSON.stringify({ id: `s${count + index}` }),
        }))
        // Each id twice, under the same key; the second time perhaps after the task moved.
        await send(place.input, batch)
        await send(place.input, batch.slice(0, 25))
        count += 50
      }
    })()
    const first = await worker(0)
    for (let round = 0; round < 2; round++) {
      const second = await worker(1)
      await until('both have tasks', () => first.app.status().tasks === 2 && second.app.status().tasks === 2)
      await until('the second works', () => second.app.status().records > 0)
      await second.app.close({ leave: true })
      await until('the first has all tasks again', () => first.app.status().tasks === 4 && first.app.state === 'running')
    }
    isSending = false
    await sending
    await processed(place)
    expect(notOnce(ids(await readAll(place.output)), names('s', count))).toEqual({})
  })

  test('C31: a rebalance of a stateless topology leaves no gap', async () => {
    const place = await scene('stateless', 4)
    const app = topology(place.application, ({ stream }) => stream(eventTopic(place.input)).to(eventTopic(place.output)))
    await send(place.input, events('a', 500))
    const first = await startApp(app, { stateDir: place.stateDir, slot: 0 })
    const second = await startApp(app, { stateDir: place.stateDir, slot: 1 })
    await send(place.input, events('b', 500))
    await until('shared', () => first.app.status().tasks === 2 && second.app.status().tasks === 2)
    await send(place.input, events('c', 500))
    await processed(place)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 500), ...names('b', 500), ...names('c', 500)])).toEqual({})
  })
})

describe('restarts', () => {
  test('a clean stop and start restores nothing (X2), and remembers every id', async () => {
    const place = await scene('restart', 2)
    const input = events('a', 1_000)
    const before = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    await send(place.input, input)
    await processed(place)
    await before.app.close()
    expect(before.app.state).toBe('closed')
    await send(place.input, input)
    const after = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    expect(after.restores).toEqual([])
    await processed(place)
    expect(notOnce(ids(await readAll(place.output)), names('a', 1_000))).toEqual({})
    await until('all counted', () => after.app.status().duplicates === 1_000)
  })

  test('a deleted state folder is restored from the changelog before the first record (X7)', async () => {
    const place = await scene('deleted', 2)
    const input = events('a', 1_000)
    const before = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    await send(place.input, input)
    await processed(place)
    await before.app.close()
    rmSync(place.stateDir, { recursive: true, force: true })
    await send(place.input, input)
    const after = await startApp(dedupeTopology(place), { stateDir: place.stateDir })
    expect(after.restores.map(({ task }) => task).sort()).toEqual(['0_0', '0_1'])
    expect(after.restores.every(({ records, done, total }) => records > 0 && done === total)).toBe(true)
    await processed(place)
    expect(notOnce(ids(await readAll(place.output)), names('a', 1_000))).toEqual({})
  })

  test('state moves to another slot with its own folder', async () => {
    const place = await scene('moved', 2)
    const input = events('a', 500)
    const before = await startApp(dedupeTopology(place), { stateDir: `${place.stateDir}/0`, slot: 0 })
    await send(place.input, input)
    await processed(place)
    await before.app.close({ leave: true })
    await send(place.input, input)
    const after = await startApp(dedupeTopology(place), { stateDir: `${place.stateDir}/1`, slot: 1 })
    await processed(place)
    expect(notOnce(ids(await readAll(place.output)), names('a', 500))).toEqual({})
    expect(after.restores).toHaveLength(2)
  })

  test('start and close at once, also before the start was done, leave nothing behind', async () => {
    const place = await scene('hasty', 1)
    const never = appOf(dedupeTopology(place), { stateDir: place.stateDir })
    await never.app.close()
    expect(await never.app.finished).toBeUndefined()
    const hasty = appOf(dedupeTopology(place), { stateDir: place.stateDir })
    const starting = hasty.app.start()
    await hasty.app.close()
    await starting
    expect(hasty.app.state).toBe('closed')
    // The slot and the state are free again.
    await startApp(dedupeTopology(place), { stateDir: place.stateDir, lockTimeout: '1s' })
    expect([...(await committedOffsets(place.application, place.input)).values()]).toEqual([-1])
  })
})
