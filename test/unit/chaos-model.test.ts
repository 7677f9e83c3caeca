import { describe, expect, it } from 'vitest'
import { TopicComparison } from '../chaos/comparison.ts'
import { EventSource } from '../chaos/events.ts'
import { commonSlope, lateSlopeOf, slopeOf } from '../chaos/memory.ts'
import { ReferenceModel, type OutputKind, type ReadRecord, type Reference } from '../chaos/model.ts'
import { ChangelogReplay } from '../chaos/state-files.ts'
import type { ChaosEvent } from '../chaos/scenario.ts'
import { allocateValue, writeTime } from '../../src/serde/dedupe-changelog.ts'

const WINDOW_MS = 1_000
const scenario = { input: 'input', partitions: 2, windowMs: WINDOW_MS }

function record(partition: number, offset: number, event: Partial<ChaosEvent> | string, timestamp = 10_000 + offset): ReadRecord {
  const value =
    typeof event === 'string'
      ? event
      : JSON.stringify({ id: `id${offset}`, key: `k${partition}`, sequence: 1, kind: 'keep', send: partition * 1_000 + offset, ...event })
  return { partition, offset, timestamp, key: `k${partition}`, value, headers: {} }
}

function fold(records: readonly ReadRecord[]): Reference {
  const model = new ReferenceModel(scenario)
  for (const each of records) model.add(each)
  return model.result()
}

describe('the reference model', () => {
  it('lets the first of an id through, and names it to the others', () => {
    const { output, duplicates } = fold([record(0, 0, { id: 'a' }), record(0, 1, { id: 'b' }), record(0, 2, { id: 'a' })])
    expect([...output.keys()]).toEqual(['0', '1'])
    expect([...duplicates.values()].map(({ from, headers }) => [from, headers])).toEqual([
      [[0, 2], { 'millrace.original.partition': '0', 'millrace.original.offset': '0', 'millrace.original.time': '10000' }],
    ])
  })

  it('remembers an id for the window, half-open, by the stream time of its partition', () => {
    const { output, expired } = fold([
      record(0, 0, { id: 'a' }, 10_000),
      record(0, 1, { id: 'a' }, 10_999),
      record(0, 2, { id: 'a' }, 11_000),
      record(1, 0, { id: 'b' }, 10_000),
      record(1, 1, { id: 'c' }, 30_000),
      // Its own time is inside the window; the stream is past it.
      record(1, 2, { id: 'b' }, 10_500),
    ])
    expect([...output.values()].map(({ from }) => from)).toEqual([
      [0, 0],
      [0, 2],
      [1, 0],
      [1, 1],
      [1, 2],
    ])
    expect(expired).toBe(2)
  })

  it('moves stream time by records that are filtered out, not by those that fail', () => {
    const filtered = fold([record(0, 0, { id: 'a' }, 10_000), record(0, 1, { kind: 'skip' }, 20_000), record(0, 2, { id: 'a' }, 10_100)])
    expect([...filtered.output.values()].map(({ from }) => from[1])).toEqual([0, 2])
    const failed = fold([record(0, 0, { id: 'a' }, 10_000), record(0, 1, '{"broken', 20_000), record(0, 2, { id: 'a' }, 10_100)])
    expect([...failed.duplicates.values()].map(({ from }) => from[1])).toEqual([2])
  })

  it('forgets what failed: a resend fails again, with its own coordinates', () => {
    const { deadLetters, output } = fold([
      record(0, 0, { id: 'a', kind: 'throw' }),
      record(0, 1, { id: 'a', kind: 'throw' }),
      record(0, 2, 'x'),
    ])
    expect([...deadLetters.keys()]).toEqual(['0/0', '0/1', '0/2'])
    expect(output.size).toBe(0)
  })
})

describe('the comparison', () => {
  const input = [record(0, 0, { id: 'a' }), record(0, 1, { id: 'b' }), record(0, 2, { id: 'a' }), record(0, 3, '{"broken')]
  const reference = fold(input)
  const right = {
    output: [...reference.output.values()].map(({ key, value, timestamp }, offset): ReadRecord => ({
      partition: 0,
      offset,
      timestamp,
      key,
      value,
      headers: {},
    })),
    duplicates: [...reference.duplicates.values()].map(({ key, value, timestamp, headers }, offset): ReadRecord => ({
      partition: 0,
      offset,
      timestamp,
      key,
      value,
      headers,
    })),
    'dead-letters': [...reference.deadLetters.values()].map(({ key, value, timestamp, headers }, offset): ReadRecord => ({
      partition: 0,
      offset,
      timestamp,
      key,
      value,
      headers,
    })),
  } satisfies Record<OutputKind, ReadRecord[]>
  const expected = { output: reference.output, duplicates: reference.duplicates, 'dead-letters': reference.deadLetters }

  function kinds(kind: OutputKind, records: readonly ReadRecord[]): string[] {
    const comparison = new TopicComparison(kind, 'topic', expected[kind])
    for (const each of records) comparison.add(each)
    return comparison.end().violations.map((violation) => violation.kind)
  }
  const [first, second] = right.output as [ReadRecord, ReadRecord]

  it('finds nothing where nothing is wrong', () => {
    for (const kind of ['output', 'duplicates', 'dead-letters'] as const) {
      expect(right[kind].length).toBeGreaterThan(0)
      expect(kinds(kind, right[kind])).toEqual([])
    }
  })

  it.each([
    ['a lost record', [first], ['lost']],
    ['an invented record', [first, second, { ...second, offset: 2, value: '{"send":77}' }], ['invented']],
    ['a record of something else', [first, second, { ...second, offset: 2, value: 'hello' }], ['invented']],
    ['a doubled record', [first, second, { ...first, offset: 2 }], ['doubled']],
    ['a re-ordered key', [second, { ...first, offset: 2 }], ['reordered']],
    ['another value', [first, { ...second, value: second.value?.replace('"from":[0,1]', '"from":[0,0]') ?? null }], ['changed']],
    ['another key', [first, { ...second, key: 'other' }], ['changed']],
    ['another time', [first, { ...second, timestamp: second.timestamp + 1 }], ['changed']],
  ])('finds %s in the output', (_what, records, violations) => {
    expect(kinds('output', records)).toEqual(violations)
  })

  it('finds a duplicate that names another original', () => {
    const [duplicate] = right.duplicates as [ReadRecord]
    const wrong = { ...duplicate, headers: { ...duplicate.headers, 'millrace.original.offset': '1' } }
    expect(kinds('duplicates', [wrong])).toEqual(['changed'])
    expect(kinds('duplicates', [])).toEqual(['lost'])
  })

  it('finds a dead letter with other coordinates, or none', () => {
    const [letter] = right['dead-letters'] as [ReadRecord]
    expect(kinds('dead-letters', [{ ...letter, headers: { ...letter.headers, 'millrace.offset': '4' } }])).toEqual(['invented', 'lost'])
    expect(kinds('dead-letters', [{ ...letter, headers: {} }])).toEqual(['invented', 'lost'])
    expect(kinds('dead-letters', [letter, { ...letter, offset: 9 }])).toEqual(['doubled'])
  })

  it('finds a reordering between two keys to be none', () => {
    const other = record(1, 0, { id: 'z' })
    const two = fold([record(0, 0, { id: 'a' }), other])
    const comparison = new TopicComparison('output', 'topic', two.output)
    for (const each of [...two.output.values()].reverse()) {
      comparison.add({ partition: 0, offset: 0, timestamp: each.timestamp, key: each.key, value: each.value, headers: {} })
    }
    expect(comparison.end().violations).toEqual([])
  })
})

describe('the replay of a changelog', () => {
  it('holds what its records say up to an offset, the newest time of an id, and nothing that has expired', () => {
    const value = (digest: number, time: number): Buffer => {
      const bytes = allocateValue(1, true)
      bytes.fill(digest, 8, 24)
      writeTime(bytes, 24, time)
      writeTime(bytes, 32, time)
      bytes.writeInt32BE(0, 40)
      writeTime(bytes, 44, 1)
      return bytes
    }
    const replay = new ChangelogReplay(100)
    replay.add({ offset: 0, value: value(1, 100) })
    replay.add({ offset: 1, value: value(2, 101) })
    replay.add({ offset: 3, value: value(2, 200) })
    replay.add({ offset: 4, value: null })
    expect([...replay.upTo(3).values()].map(({ time }) => time)).toEqual([101])
    expect([...replay.upTo(Infinity).values()].map(({ time }) => time)).toEqual([200])
    expect(replay.tombstones).toBe(1)
  })
})

describe('the events of a chaos run', () => {
  it('are decided by the seed: resends, broken records and failures among them', () => {
    const take = (seed: number): string[] => {
      const source = new EventSource(seed, 1_000)
      return Array.from({ length: 5_000 }, () => source.next().value)
    }
    expect(take(1)).toEqual(take(1))
    expect(take(2)).not.toEqual(take(1))
    const reference = fold(take(1).map((value, offset) => record(0, offset, value, 10_000)))
    expect(reference.duplicates.size).toBeGreaterThan(500)
    expect(reference.deadLetters.size).toBeGreaterThan(50)
    expect(reference.output.size).toBeGreaterThan(3_000)
  })
})

describe('the slope of memory', () => {
  const life = (label: string, startMiB: number, mibPerHour: number) => ({
    label,
    startedAt: 0,
    samples: Array.from({ length: 100 }, (_unused, index) => ({
      at: index * 1_000,
      rssBytes: (startMiB + (mibPerHour * index) / 3_600) * 1024 ** 2,
      heapBytes: 50 * 1024 ** 2,
      bufferBytes: (mibPerHour / 3_600) * index * 512 * 1024,
    })),
  })

  it('is that of the line, without the time a process takes to settle', () => {
    const grown = life('a', 100, 36)
    const early = { ...grown, samples: grown.samples.map((sample) => (sample.at < 10_000 ? { ...sample, rssBytes: 0 } : sample)) }
    expect(slopeOf(early, 10_000)?.mibPerHour).toBeCloseTo(36)
    expect(slopeOf(grown, 95_000)).toBeUndefined()
  })

  it('is told apart by what the memory is used for, and growth that ended is not seen in the later half', () => {
    expect(slopeOf(life('a', 100, 36), 0, 'heapBytes')?.mibPerHour).toBeCloseTo(0)
    expect(slopeOf(life('a', 100, 36), 0, 'bufferBytes')?.mibPerHour).toBeCloseTo(18)
    const levelled = life('a', 100, 36).samples.map((sample, index, all) =>
      index < 40 ? sample : { ...sample, rssBytes: all[40]!.rssBytes },
    )
    const one = { label: 'a', startedAt: 0, samples: levelled }
    expect(slopeOf(one, 0)?.mibPerHour).toBeGreaterThan(10)
    expect(lateSlopeOf(one, 0)?.mibPerHour).toBeCloseTo(0)
  })

  it('of several processes is a common one, however large each is', () => {
    expect(commonSlope([life('a', 100, 36), life('b', 900, 36)], 0)?.mibPerHour).toBeCloseTo(36)
    expect(commonSlope([life('a', 100, 0), life('b', 900, 0)], 0)?.mibPerHour).toBeCloseTo(0)
  })
})
