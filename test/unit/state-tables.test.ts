import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { CorruptedStoreError } from '../../src/errors/errors.ts'
import { digestOf } from '../../src/serde/digest.ts'
import { BloomFilter, FilterChain, MAX_FILTER_IDS } from '../../src/state/bloom-filter.ts'
import { DigestTable } from '../../src/state/digest-table.ts'

const words = new Int32Array(4)
function digest(id: string): Int32Array {
  digestOf(id, words)
  return words
}
/** Digests whose first words meet in the index, so that probing and undo are really used. */
function crowded(n: number): Int32Array {
  return Int32Array.of(n % 3, n, n * 7, -n)
}

describe('the digest table', () => {
  it('holds what a map holds, through growth, undo in reverse and clean-up', () => {
    const step = fc.oneof(
      { weight: 8, arbitrary: fc.record({ do: fc.constant('put' as const), n: fc.nat(200), time: fc.nat(1_000) }) },
      { weight: 3, arbitrary: fc.record({ do: fc.constant('undo' as const), n: fc.nat(20), time: fc.constant(0) }) },
      { weight: 1, arbitrary: fc.record({ do: fc.constant('expire' as const), n: fc.constant(0), time: fc.nat(1_000) }) },
      { weight: 1, arbitrary: fc.record({ do: fc.constant('clear' as const), n: fc.constant(0), time: fc.constant(0) }) },
    )
    fc.assert(
      fc.property(fc.array(step, { maxLength: 300 }), (path) => {
        const table = new DigestTable(true, 2)
        let model: [number, number][] = []
        for (const { do: what, n, time } of path) {
          if (what === 'put') {
            const at = table.find(crowded(n))
            const known = model.find(([id]) => id === n)
            expect(at >= 0).toBe(known !== undefined)
            if (known !== undefined) {
              table.times[at] = time
              known[1] = time
            } else {
              table.setOrigin(table.insert(crowded(n), time), n, n, n)
              model.push([n, time])
            }
          } else if (what === 'undo') {
            for (let i = 0; i < n && model.length > 0; i++) {
              table.removeLast()
              model.pop()
            }
          } else if (what === 'expire') {
            table.dropExpired(time, 100)
            model = model.filter(([, seen]) => seen + 100 > time)
          } else {
            table.clear()
            model = []
          }
        }
        expect(table.count).toBe(model.length)
        model.forEach(([n, time], entry) => {
          expect(table.find(crowded(n))).toBe(entry)
          expect([table.times[entry], table.partitions[entry], table.offsets[entry]]).toEqual([time, n, n])
        })
        for (let n = 0; n <= 200; n++) expect(table.find(crowded(n)) >= 0).toBe(model.some(([id]) => id === n))
      }),
    )
  })

  it('gives memory back after it was large', () => {
    const table = new DigestTable(false, 1_024)
    for (let i = 0; i < 100_000; i++) table.insert(crowded(i).fill(i, 0, 1), i)
    const large = table.capacity
    table.dropExpired(99_990 + 100, 100)
    expect([table.count, table.capacity]).toEqual([9, 1_024])
    for (let i = 0; i < 100_000; i++) if (i < 99_991) table.insert(crowded(i).fill(i, 0, 1), i)
    expect(table.capacity).toBe(large)
    table.clear()
    expect([table.count, table.bytes, table.capacity]).toEqual([0, 0, 1_024])
  })
})

describe('the Bloom filter', () => {
  it('never forgets an id and is wrong about 1 to 4 in 1,000 strangers when it is full', () => {
    const filter = new BloomFilter(50_000)
    for (let i = 0; i < 50_000; i++) {
      digest(`id-${i}`)
      filter.add(words[1] as number, words[2] as number)
    }
    let wrong = 0
    for (let i = 0; i < 100_000; i++) {
      digest(i < 50_000 ? `id-${i}` : `stranger-${i}`)
      const found = filter.mayContain(words[1] as number, words[2] as number)
      if (i < 50_000) expect(found).toBe(true)
      else if (found) wrong++
    }
    expect(filter.isFull).toBe(true)
    expect(wrong).toBeGreaterThan(0)
    expect(wrong / 50_000).toBeLessThan(0.004)
  })

  it('is the same after it was stored, and refuses a blob with any flipped bit', () => {
    const filter = new BloomFilter(100)
    for (let i = 0; i < 100; i++) filter.add(digest(`id-${i}`)[1] as number, words[2] as number)
    const blob = filter.toBlob()
    const copy = BloomFilter.fromBlob(blob)
    expect([copy.capacity, copy.count, copy.toBlob()]).toEqual([100, 100, blob])
    for (let bit = 0; bit < blob.length * 8; bit += 3) {
      const flipped = Buffer.from(blob)
      flipped[bit >> 3] = (flipped[bit >> 3] as number) ^ (1 << (bit & 7))
      expect(() => BloomFilter.fromBlob(flipped)).toThrow(CorruptedStoreError)
    }
    expect(() => BloomFilter.fromBlob(blob.subarray(0, 10))).toThrow(CorruptedStoreError)
  })

  it('grows as a chain of which only the last changes', () => {
    const chain = new FilterChain()
    const add = (from: number, to: number) => {
      for (let i = from; i < to; i++) chain.add(digest(`id-${i}`)[1] as number, words[2] as number)
    }
    add(0, 4_000)
    expect([chain.filters.length, chain.firstChanged]).toEqual([1, 0])
    chain.markStored()
    expect(chain.firstChanged).toBe(1)
    add(4_000, 4_050)
    expect(chain.firstChanged).toBe(0)
    chain.markStored()
    chain.reserve(6_000, 0)
    add(4_050, 10_050)
    expect([chain.filters.length, chain.firstChanged]).toEqual([2, 1])
    const reopened = new FilterChain(chain.filters)
    expect(reopened.firstChanged).toBe(2)
    for (let i = 0; i < 10_050; i++) expect(reopened.mayContain(digest(`id-${i}`)[1] as number, words[2] as number)).toBe(true)
    chain.reserve(10 * MAX_FILTER_IDS, 0)
    expect(chain.filters.at(-1)?.capacity).toBe(MAX_FILTER_IDS)
  })
})
