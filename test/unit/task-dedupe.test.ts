/** The dedupe step of a task: ids, duplicates, late records (DESIGN 5, CASES E). The store itself has its own contract suite. */
import { describe, expect, test } from 'vitest'
import { bytes, nullable, string } from '../../src/serde/index.ts'
import { deadLetters, topic, topology, type DedupeOptions } from '../../src/topology/index.ts'
import { record } from '../helpers/scripted-broker.ts'
import { TaskDriver } from '../helpers/task-driver.ts'
import { jsonOf } from '../helpers/codecs.ts'

type Event = { id?: string | null }
const input = topic('in', { key: string(), value: jsonOf<Event>() })
const out = topic('out', { key: string(), value: jsonOf<Event>() })
const again = topic('again', { key: string(), value: jsonOf<Event>() })
const late = topic('late', { key: string(), value: jsonOf<Event>() })
const failed = deadLetters('failed')
const HOUR = 3_600_000
const T0 = 1_700_000_000_000

const dedupe = (options: Partial<DedupeOptions<string, Event>> = {}) =>
  TaskDriver.of(
    topology('app', { onError: { to: failed } }, ({ stream }) =>
      stream(input)
        .dedupe({ by: (event) => event.id as string, window: '1h', partitioned: 'by-key', ...options })
        .to(out),
    ),
  )
const event = (offset: number, id: string, timestamp = T0 + offset) => record('in', offset, 'k', JSON.stringify({ id }), { timestamp })
const topicsOf = (sent: readonly { topic: string }[]): string[] => sent.map(({ topic: name }) => name)

describe('X8: of the records with one id exactly one goes downstream', () => {
  test('within a transaction, after a commit, and after an abort', async () => {
    const driver = await dedupe()
    expect(topicsOf(driver.run(event(0, 'a')))).toEqual(['out'])
    expect(driver.run(event(1, 'a'))).toEqual([])
    driver.abort()
    expect(topicsOf(driver.run(event(0, 'a')))).toEqual(['out'])
    expect(driver.commit()).toMatchObject({ records: 1, duplicates: 0 })
    expect(driver.run(event(1, 'a'))).toEqual([])
    expect(driver.commit()).toMatchObject({ records: 1, duplicates: 1 })
  })

  test('a duplicate exactly at the end of the window is new', async () => {
    const driver = await dedupe()
    driver.run(event(0, 'a', T0))
    expect(driver.run(event(1, 'a', T0 + HOUR - 1))).toEqual([])
    expect(topicsOf(driver.run(event(2, 'a', T0 + HOUR)))).toEqual(['out'])
  })

  test('refresh restarts the window on each duplicate', async () => {
    const driver = await dedupe({ refresh: true })
    driver.run(event(0, 'a', T0))
    driver.run(event(1, 'a', T0 + HOUR - 1))
    expect(driver.run(event(2, 'a', T0 + HOUR + 1_000))).toEqual([])
  })

  test('the wall clock never goes back within a task', async () => {
    const driver = await dedupe({ clock: 'wall-clock' })
    driver.run(event(0, 'a', 5))
    driver.clock.advance(HOUR - 1)
    expect(driver.run(event(1, 'a', 5))).toEqual([])
    driver.clock.setWall(driver.clock.now() - 10 * HOUR)
    expect(driver.run(event(2, 'a', 5))).toEqual([])
  })

  test('tuples, texts and bytes are ids; tuples that only look alike differ', async () => {
    const driver = await dedupe({ by: (value) => JSON.parse(value.id!) as string[] })
    expect(topicsOf(driver.run(event(0, '["a","bc"]')))).toEqual(['out'])
    expect(topicsOf(driver.run(event(1, '["ab","c"]')))).toEqual(['out'])
    expect(driver.run(event(2, '["a","bc"]'))).toEqual([])
  })
})

describe('duplicates that are routed', () => {
  test('name the place and time of the original, and keep their own headers', async () => {
    const driver = await dedupe({ onDuplicate: { to: again } })
    driver.run(record('in', 11, 'k', '{"id":"a"}', { partition: 3, timestamp: T0 }))
    driver.commit()
    const [routed] = driver.run(
      record('in', 40, 'k', '{"id":"a"}', { partition: 3, timestamp: T0 + 9, headers: [['trace', Buffer.from('2')]] }),
    )
    expect(routed).toMatchObject({
      topic: 'again',
      timestamp: T0 + 9,
      headers: {
        trace: '2',
        'millrace.original.partition': '3',
        'millrace.original.offset': '11',
        'millrace.original.time': String(T0),
      },
    })
    expect(driver.commit()).toMatchObject({ duplicates: 1 })
  })

  test('leave the headers of siblings alone', async () => {
    const driver = await TaskDriver.of(
      topology('app', ({ stream }) => {
        const all = stream(input)
        all.dedupe({ by: (value) => value.id as string, window: '1h', partitioned: 'by-key', onDuplicate: { to: again } }).to(out)
        all.to(late)
      }),
    )
    driver.run(event(0, 'a'))
    const sent = driver.run(event(1, 'a'))
    expect(sent.map(({ topic: name, headers }) => [name, Object.keys(headers).length])).toEqual([
      ['again', 3],
      ['late', 0],
    ])
  })
})

describe('late records', () => {
  const old = (driver: TaskDriver) => {
    driver.run(event(0, 'new', T0 + 2 * HOUR))
    return [driver.run(event(1, 'old', T0)), driver.run(event(2, 'old', T0))] as const
  }

  test('pass by default: their ids cannot be judged', async () => {
    const driver = await dedupe()
    expect(old(driver).map(topicsOf)).toEqual([['out'], ['out']])
    expect(driver.commit()).toMatchObject({ late: 2, duplicates: 0 })
  })

  test('are dropped, counted', async () => {
    const driver = await dedupe({ late: 'drop' })
    expect(old(driver).map(topicsOf)).toEqual([[], []])
    expect(driver.commit()).toMatchObject({ late: 2 })
  })

  test('go to a topic of their own', async () => {
    const driver = await dedupe({ late: { to: late } })
    expect(old(driver).map(topicsOf)).toEqual([['late'], ['late']])
  })

  test('a record at the edge of the window is not late', async () => {
    const driver = await dedupe({ late: 'drop' })
    driver.run(event(0, 'new', T0 + HOUR))
    expect(topicsOf(driver.run(event(1, 'edge', T0 + 1)))).toEqual(['out'])
    expect(driver.run(event(2, 'past', T0))).toEqual([])
  })
})

describe('ids that are none take the error path (X6), never "all nulls are equal"', () => {
  test.each([
    ['null', '{"id":null}'],
    ['undefined', '{}'],
    ['a number', '{"id":5}'],
    ['an object', '{"id":{}}'],
  ])('%s', async (_name, value) => {
    const driver = await dedupe()
    expect(topicsOf(driver.run(record('in', 0, 'k', value)))).toEqual(['failed'])
    expect(topicsOf(driver.run(record('in', 1, 'k', value)))).toEqual(['failed'])
    const { failure } = driver.failures[0]!
    expect([failure.node, failure.phase]).toEqual(['dedupe', 'process'])
    expect(failure.error.message).toMatch(/dedupe/)
  })

  test('a function that throws', async () => {
    const driver = await dedupe({
      by: () => {
        throw new Error('no such field')
      },
    })
    const [letter] = driver.run(event(0, 'a'))
    expect(letter).toMatchObject({ topic: 'failed', headers: { 'millrace.node': 'dedupe', 'millrace.message': 'no such field' } })
  })

  test("by: 'key' without a key", async () => {
    const raw = topic('in', { value: nullable(bytes()) })
    const sink = topic('out', { value: nullable(bytes()) })
    const driver = await TaskDriver.of(
      topology('app', { onError: { to: failed } }, ({ stream }) => stream(raw).dedupe({ by: 'key', window: '1h' }).to(sink)),
    )
    expect(topicsOf(driver.run(record('in', 0, null, 'v')))).toEqual(['failed'])
    expect(driver.failures[0]!.failure.error.message).toBe('the record has no key, so it has no dedupe id')
  })
})

describe('E47: ids that may meet in different partitions', () => {
  test('are refused when the topology is built, with the reason', () => {
    expect(() =>
      topology('app', ({ stream }) =>
        stream(input)
          .dedupe({ by: (value) => value.id as string, window: '1h' })
          .to(out),
      ),
    ).toThrow(/partition/)
  })
})
