/** One record through the steps of a task: what goes out, what is inherited, what is restored for siblings (CASES G5). */
import { describe, expect, test } from 'vitest'
import { bytes, nullable, string } from '../../src/serde/index.ts'
import { topic, topology, type Sources } from '../../src/topology/index.ts'
import { record } from '../helpers/scripted-broker.ts'
import { TaskDriver } from '../helpers/task-driver.ts'
import { jsonOf } from '../helpers/codecs.ts'

const numbers = topic('in', { key: string(), value: jsonOf<number>() })
const out = topic('out', { key: string(), value: jsonOf<number>() })
const other = topic('other', { key: string(), value: jsonOf<number>() })
const app = (use: (sources: Sources) => void) => TaskDriver.of(topology('app', use))
const withHeaders = record('in', 3, 'k', '5', {
  timestamp: 1_700_000_000_500,
  headers: [
    ['a', Buffer.from('1')],
    ['a', Buffer.from('2')],
    ['none', null],
  ],
})

describe('G5: pass-through', () => {
  test('key, value, timestamp and headers go on as they came, with the very same key bytes and header list', async () => {
    const driver = await app(({ stream }) => stream(numbers).to(out))
    expect(driver.run(withHeaders)).toMatchObject([{ topic: 'out', partition: null, key: 'k', value: '5', timestamp: 1_700_000_000_500 }])
    expect(driver.raw[0]!.key).toBe(withHeaders.key)
    expect(driver.raw[0]!.headers).toBe(withHeaders.headers)
  })

  test('null key, empty key and tombstone stay three different things', async () => {
    const raw = topic('in', { value: nullable(bytes()) })
    const sink = topic('out', { value: nullable(bytes()) })
    const driver = await TaskDriver.of(topology('app', ({ stream }) => stream(raw).to(sink)))
    expect(driver.run(record('in', 0, null, 'v'))).toMatchObject([{ key: null, value: 'v' }])
    expect(driver.run(record('in', 1, '', 'v'))).toMatchObject([{ key: '', value: 'v' }])
    expect(driver.run(record('in', 2, 'k', null))).toMatchObject([{ key: 'k', value: null }])
  })

  test('bytes that are no canonical encoding of the key still pass through, where the key was not changed', async () => {
    const loose = topic('in', { key: jsonOf<{ n: number }>(), value: jsonOf<number>() })
    const sink = topic('out', { key: jsonOf<{ n: number }>(), value: jsonOf<number>() })
    const driver = await TaskDriver.of(topology('app', ({ stream }) => stream(loose).to(sink)))
    // An object may have been changed in place, so it is encoded anew; a text cannot.
    expect(driver.run(record('in', 0, '{ "n": 1 }', '1'))[0]!.key).toBe('{"n":1}')
  })
})

describe('map', () => {
  test('changes key, value, timestamp and headers', async () => {
    const driver = await app(({ stream }) =>
      stream(numbers)
        .map((value, { key, headers }) => ({
          key: `${key}!`,
          value: value + 1,
          timestamp: 77,
          headers: headers.without('a').with('b', 'x'),
        }))
        .to(out),
    )
    expect(driver.run(withHeaders)).toEqual([
      { topic: 'out', partition: null, key: 'k!', value: '6', timestamp: 77, headers: { none: 'null', b: 'x' } },
    ])
  })

  test('leaves the record of its siblings as it was: key, timestamp and headers are restored', async () => {
    const driver = await app(({ stream }) => {
      const all = stream(numbers)
      all.map((value, { headers }) => ({ key: 'other', value, timestamp: 1, headers: headers.with('b', 'x') })).to(out)
      all.to(other)
    })
    const [changed, untouched] = driver.run(withHeaders)
    expect(changed).toMatchObject({ topic: 'out', key: 'other', timestamp: 1 })
    expect(untouched).toMatchObject({ topic: 'other', key: 'k', timestamp: 1_700_000_000_500, headers: { a: '2', none: 'null' } })
    expect(driver.raw[1]!.headers).toBe(withHeaders.headers)
  })

  test('nested maps restore level by level', async () => {
    const driver = await app(({ stream }) => {
      const first = stream(numbers).map((value, { key }) => ({ key: `${key}1`, value }))
      first.map((value, { key }) => ({ key: `${key}2`, value })).to(out)
      first.to(other)
    })
    expect(driver.run(record('in', 0, 'k', '1')).map(({ topic: to, key }) => [to, key])).toEqual([
      ['out', 'k12'],
      ['other', 'k1'],
    ])
  })

  test('a failed record leaves nothing for the next one: key, headers and time are those of the new record', async () => {
    const driver = await TaskDriver.of(
      topology('app', { onError: 'skip' }, ({ stream }) =>
        stream(numbers)
          .map((value, { key, headers }) => ({ key: `${key}!`, value, timestamp: 9, headers: headers.with('b', 'x') }))
          .mapValues((value) => {
            if (value === 13) throw new Error('unlucky')
            return value
          })
          .to(out),
      ),
    )
    expect(driver.run(record('in', 0, 'bad', '13'))).toEqual([])
    expect(driver.run(record('in', 1, 'good', '1'))).toEqual([
      { topic: 'out', partition: null, key: 'good!', value: '1', timestamp: 9, headers: { b: 'x' } },
    ])
  })

  test.each([
    [
      'a promise',
      () => Promise.resolve({ key: 'k', value: 1 }),
      'map must return { key, value }, not a promise (callbacks here are synchronous)',
    ],
    ['null', () => null, 'map must return { key, value }, not null'],
    ['a bare value', () => 5, 'map must return { key, value }, not number 5'],
    ['half of it', () => ({ value: 1 }), 'map must return { key, value }, not an object without them'],
  ])('a map that returns %s fails with what it must return', async (_name, map, message) => {
    const driver = await app(({ stream }) =>
      stream(numbers)
        .map(map as never)
        .to(out as never),
    )
    expect(() => driver.run(withHeaders)).toThrow(message)
  })

  test.each([Number.NaN, -5, 1.5, Infinity, '2024-01-01', null])(
    'a map that returns the timestamp %s takes the error path',
    async (timestamp) => {
      const driver = await TaskDriver.of(
        topology('app', { onError: 'skip' }, ({ stream }) =>
          stream(numbers)
            .map((value) => ({ key: 'k', value, timestamp: timestamp as number }))
            .to(out),
        ),
      )
      expect(driver.run(withHeaders)).toEqual([])
      expect(driver.failures).toMatchObject([{ reaction: 'skip', failure: { node: 'map' } }])
    },
  )
})

describe('other steps', () => {
  test('filter and filterNot take the two halves', async () => {
    const driver = await app(({ stream }) => {
      const all = stream(numbers)
      all.filter((value) => value > 3).to(out)
      all.filterNot((value) => value > 3).to(other)
    })
    expect(driver.run(record('in', 0, 'k', '5')).map(({ topic: to }) => to)).toEqual(['out'])
    expect(driver.run(record('in', 1, 'k', '1')).map(({ topic: to }) => to)).toEqual(['other'])
  })

  test('a predicate that is truthy but not a boolean is an error, never a guess', async () => {
    const driver = await app(({ stream }) =>
      stream(numbers)
        .filter((() => 'yes') as never)
        .to(out),
    )
    expect(() => driver.run(withHeaders)).toThrow('a filter predicate must return true or false, not string')
  })

  test('peek sees the record and changes nothing', async () => {
    const seen: unknown[] = []
    const driver = await app(({ stream }) =>
      stream(numbers)
        .peek((value, { key, offset, topic: from }) => void seen.push([value, key, offset, from]))
        .to(out),
    )
    expect(driver.run(withHeaders)).toMatchObject([{ key: 'k', value: '5' }])
    expect(seen).toEqual([[5, 'k', 3, 'in']])
  })

  test('the partition function gets the number of partitions of its sink, and its answer is checked', async () => {
    const driver = await app(({ stream }) =>
      stream(numbers).to(out, { partition: (value, _record, partitions) => (value === 5 ? partitions - 1 : partitions) }),
    )
    expect(driver.run(withHeaders)).toMatchObject([{ partition: 3 }])
    expect(() => driver.run(record('in', 4, 'k', '6'))).toThrow('the partition function chose 4 for out, which has partitions 0 to 3')
  })

  test('the source timestamp is the event time below it, and a wrong one takes the error path', async () => {
    const driver = await TaskDriver.of(topology('app', ({ stream }) => stream(numbers, { timestamp: (value) => value * 1_000 }).to(out)))
    expect(driver.run(record('in', 0, 'k', '5'))).toMatchObject([{ timestamp: 5_000 }])
    expect(driver.task.streamTimeOf('in')).toBe(5_000)
    expect(() => driver.run(record('in', 1, 'k', '0.0001'))).toThrow('timestamp function gave the timestamp 0.1')
    expect(() => driver.run(record('in', 2, 'k', '-1'))).toThrow('must be a whole number of milliseconds since the epoch')
  })
})
