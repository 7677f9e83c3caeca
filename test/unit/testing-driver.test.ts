/** The public test driver without faults: what goes in, what comes out, its clock, and what it refuses. */
import { bytes, deadLetters, int64, nullable, string, topic, topology } from 'millrace'
import { createTestDriver, TestDriverError } from 'millrace/testing'
import { afterEach, describe, expect, test, vi } from 'vitest'
import { PoisonedRecordError } from '../../src/errors/errors.ts'
import { GroupOffsets } from '../../src/testing/sim/cluster/group-offsets.ts'
import { murmur2Partition } from '../../src/testing/sim/murmur2.ts'

const numbers = topic('numbers', { key: string(), value: int64() })
const unique = topic('unique', { key: string(), value: int64() })
const others = topic('others', { key: string(), value: int64() })
const byAnyKey = topic('any-key', { key: nullable(string()), value: nullable(string()) })
const copied = topic('copied', { key: nullable(string()), value: nullable(string()) })

const dedupe = topology('dedupe', ({ stream }) => stream(numbers).dedupe({ by: 'key', window: '1h' }).to(unique))
const copy = topology('copy', ({ stream }) => stream(byAnyKey).to(copied))
const failing = topology('failing', ({ stream }) =>
  stream(numbers)
    .mapValues((value) => {
      if (value === 13) throw new Error('unlucky')
      return value
    })
    .to(unique),
)

describe('what goes in and comes out', () => {
  test('partition by key, timestamps from the start, headers', async () => {
    await using driver = await createTestDriver(copy, { partitions: 4, startAt: new Date('2026-01-02T00:00:00Z') })
    await driver.pipe(
      byAnyKey,
      { key: 'a', value: 'x', at: '90s', headers: { text: 'one', raw: new Uint8Array([1]) } },
      { key: 'a', value: 'y', partition: 3 },
    )
    const [first, second] = driver.records(copied)
    const partition = murmur2Partition(Buffer.from('a'), 4)
    expect(first).toMatchObject({ key: 'a', value: 'x', timestamp: Date.UTC(2026, 0, 2, 0, 1, 30), partition })
    expect([first?.headers.get('text'), first?.headers.bytes('raw')]).toEqual(['one', Buffer.from([1])])
    expect(second).toMatchObject({ value: 'y', timestamp: Date.UTC(2026, 0, 2), partition })
  })

  test('records without a key go to one partition after the other', async () => {
    const partitions: number[] = []
    const watched = topology('watched', ({ stream }) =>
      stream(byAnyKey)
        .peek((_, { partition }) => partitions.push(partition))
        .to(copied),
    )
    await using driver = await createTestDriver(watched, { partitions: 3 })
    for (let index = 0; index < 4; index++) await driver.pipe(byAnyKey, { key: null, value: String(index) })
    expect(partitions).toEqual([0, 1, 2, 0])
  })

  test('a topic as a table: the last value of each key, deleted keys left out', async () => {
    await using driver = await createTestDriver(copy)
    const rows: [string | null, string | null][] = [
      ['a', '1'],
      ['b', '1'],
      ['a', '2'],
      ['b', null],
      [null, '9'],
    ]
    await driver.pipe(byAnyKey, ...rows.map(([key, value]) => ({ key, value })))
    expect(driver.latest(copied)).toEqual(new Map([['a', '2']]))
    expect(driver.pairs(copied)).toEqual(rows)
  })

  test('dead letters name where the record was read, also those of a topic that only a function names', async () => {
    const failed = deadLetters('failed')
    const routed = topology('routed', { onError: () => ({ to: failed }) }, ({ stream }) => stream(numbers).to(unique))
    await using driver = await createTestDriver(routed, { topics: [failed] })
    await driver.pipe(numbers, { key: 'a', value: 1 })
    await driver.pipe(topic('numbers', { key: string(), value: bytes() }), { key: 'b', value: Buffer.from('12') })
    expect(driver.deadLetters()).toEqual([
      { topic: 'numbers', partition: 0, offset: 1, error: expect.stringMatching(/^CodecError: int64/), value: Buffer.from('12') },
    ])
    expect(driver.metrics).toMatchObject({ records: 2, deadLetters: 1 })
  })

  test('several workers share the tasks, and their counters are added up', async () => {
    await using driver = await createTestDriver(dedupe, { partitions: 4, workers: 3 })
    await driver.pipe(numbers, ...Array.from({ length: 40 }, (_, index) => ({ key: `k${index % 20}`, value: 1 })))
    expect(driver.values(unique)).toHaveLength(20)
    expect(driver.metrics).toMatchObject({ records: 40, outputs: 20, duplicates: 20 })
  })

  test('describes the topology with its application id', async () => {
    await using driver = await createTestDriver(dedupe, { config: { applicationId: 'shop' } })
    expect(driver.describe().stores).toMatchObject([{ changelog: 'shop-dedupe-changelog' }])
  })
})

describe('time', () => {
  test('stands still but for advanceTime', async () => {
    const byWallClock = topology('wall-clock', ({ stream }) =>
      stream(numbers).dedupe({ by: 'key', window: '10m', clock: 'wall-clock' }).to(unique),
    )
    await using driver = await createTestDriver(byWallClock)
    const sent = async () => {
      await driver.pipe(numbers, { key: 'a', value: 1 })
      return driver.records(unique).map(({ timestamp }) => timestamp)
    }
    expect(await sent()).toEqual([0])
    await driver.advanceTime(599_999)
    expect(await sent()).toEqual([0])
    await driver.advanceTime(1)
    expect(await sent()).toEqual([0, 600_000])
    await driver.advanceTime('30d')
    expect(await sent()).toHaveLength(3)
    expect(await driver.differencesFromUndisturbedRun()).toEqual([])
  })

  describe('of the test runner', () => {
    afterEach(() => vi.useRealTimers())

    test('may be faked', async () => {
      vi.useFakeTimers()
      await using driver = await createTestDriver(dedupe)
      await driver.pipe(numbers, { key: 'a', value: 1 })
      expect(driver.values(unique)).toEqual([1])
    })
  })

  test('calls that are not awaited run one after the other', async () => {
    await using driver = await createTestDriver(copy)
    await Promise.all(['1', '2', '3'].map((value) => driver.pipe(byAnyKey, { key: 'a', value })))
    expect(driver.values(copied)).toEqual(['1', '2', '3'])
  })
})

describe('a worker that ends for good', () => {
  test('makes pipe reject with its own error, which names the record; what was committed can be read', async () => {
    await using driver = await createTestDriver(failing)
    await driver.pipe(numbers, { key: 'a', value: 1 })
    const failure = await driver.pipe(numbers, { key: 'a', value: 13 }).catch((error: unknown) => error)
    expect(failure).toBeInstanceOf(PoisonedRecordError)
    expect(String(failure)).toContain('record numbers[0] offset 1 failed in node "map-values" (process): unlucky')
    expect(driver.values(unique)).toEqual([1])
    await expect(driver.pipe(numbers, { key: 'a', value: 2 })).rejects.toThrow(
      'pipe(): the run of this driver has failed: record numbers[0]',
    )
  })

  test('what does not come to an end is said', async () => {
    const { decide } = GroupOffsets.prototype
    await using driver = await createTestDriver(dedupe)
    GroupOffsets.prototype.decide = () => undefined
    try {
      await expect(driver.pipe(numbers, { key: 'a', value: 1 })).rejects.toThrow(
        /^pipe 1 \(numbers, 1 record\) is not done after 300 s of simulated time: numbers\[0\] is committed up to 0 of 1; worker 0 is running/,
      )
    } finally {
      GroupOffsets.prototype.decide = decide
    }
  })

  test('a topology that would not start is refused at once', async () => {
    const config = { sessionTimeout: '10s' } as const
    await expect(createTestDriver(dedupe, { config })).rejects.toThrow('transactionTimeout')
  })
})

describe('is refused', () => {
  test('by name: a topic that the topology does not have, and one that it does not read', async () => {
    await using driver = await createTestDriver(dedupe)
    await expect(driver.pipe(others, { key: 'a', value: 1 })).rejects.toThrow(
      "pipe(): topology 'dedupe' has no topic 'others', only 'numbers', 'unique'",
    )
    await expect(driver.pipe(unique, { key: 'a', value: 1 })).rejects.toThrow("topology 'dedupe' does not read 'unique', only 'numbers'")
    expect(() => driver.values(others)).toThrow(TestDriverError)
    expect(() => driver.values('unique' as any)).toThrow('this is not a topic')
  })

  test('a record that cannot be written: value, partition, time; and then none of them is', async () => {
    await using driver = await createTestDriver(dedupe)
    const good = { key: 'a', value: 1 }
    await expect(driver.pipe(numbers, good, { key: 'a', value: '1' as any })).rejects.toThrow(
      "pipe('numbers'), record 2: its value cannot be encoded: int64",
    )
    await expect(driver.pipe(numbers, good, { ...good, partition: 1 })).rejects.toThrow('there is no partition 1')
    await expect(driver.pipe(numbers, good, { ...good, at: -1 })).rejects.toThrow("pipe('numbers'), record 2: at")
    expect(driver.metrics['records']).toBe(0)
  })

  test('options that make no sense', async () => {
    await expect(createTestDriver({} as any)).rejects.toThrow('not a topology')
    await expect(createTestDriver(dedupe, { partitions: 0 })).rejects.toThrow('partitions 0 is not a whole number from 1 to 64')
    await expect(createTestDriver(dedupe, { workers: 1.5 })).rejects.toThrow('workers 1.5')
    await expect(createTestDriver(dedupe, { startAt: new Date('no date') })).rejects.toThrow('startAt')
    await expect(createTestDriver(dedupe, { config: { commitIntervall: 1 } as any })).rejects.toThrow('commitInterval')
  })

  test('any use after the driver was disposed, and what was not awaited by then', async () => {
    const driver = await createTestDriver(dedupe)
    const running = driver.pipe(numbers, { key: 'a', value: 1 })
    const outcome = expect(running).rejects.toThrow(/disposed/)
    await Promise.all([driver[Symbol.asyncDispose](), outcome])
    await driver[Symbol.asyncDispose]()
    await expect(driver.pipe(numbers, { key: 'a', value: 1 })).rejects.toThrow('pipe(): this test driver was disposed')
    expect(() => driver.values(unique)).toThrow('this test driver was disposed')
  })
})
