import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { FatalError, StoreMismatchError } from '../../src/errors/errors.ts'
import {
  allocateValue,
  entryBytes,
  HEADER_BYTES,
  keyBucketEnd,
  keyRangeEnd,
  MAX_VALUE_BYTES,
  maxEntries,
  packKey,
  PackedReader,
  readTime,
  writeTime,
} from '../../src/serde/dedupe-changelog.ts'
import { digestOf, encodeDedupeId } from '../../src/serde/digest.ts'
import { DigestTable } from '../../src/state/digest-table.ts'

function digest(id: string | Uint8Array): number[] {
  const words = new Int32Array(4)
  digestOf(id, words)
  return [...words]
}
const elements = fc.array(
  fc.oneof(fc.string({ minLength: 1, unit: 'grapheme' }), fc.double({ noNaN: true, noDefaultInfinity: true }), fc.bigInt()),
  {
    minLength: 1,
    maxLength: 4,
  },
)
const times = fc.maxSafeInteger()

describe('the digest of an id', () => {
  it('is the first half of SHA-256 over its UTF-8 bytes', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme' }), (text) => {
        const expected = createHash('sha256').update(text, 'utf8').digest()
        expect(digest(text)).toEqual([0, 4, 8, 12].map((at) => expected.readInt32BE(at)))
        expect(digest(Buffer.from(text, 'utf8'))).toEqual(digest(text))
      }),
    )
  })

  it('differs for strings that UTF-8 cannot tell apart', () => {
    expect(digest('\ud800')).not.toEqual(digest('\ud801'))
    expect(digest('a\ud800')).not.toEqual(digest('a\ufffd'))
  })
})

describe('a tuple as id', () => {
  it('is equal to a tuple with the same elements of the same types, and to nothing else', () => {
    const key = (tuple: readonly unknown[]) =>
      tuple.map((element) => `${typeof element}:${String(element).length}:${String(element)}`).join('|')
    fc.assert(
      fc.property(elements, elements, (one, two) => {
        const same = Buffer.compare(Buffer.from(encodeDedupeId(one) as Uint8Array), Buffer.from(encodeDedupeId(two) as Uint8Array)) === 0
        expect(same).toBe(key(one) === key(two))
      }),
    )
    const different = [['a', 'bc'], ['ab', 'c'], ['abc'], 'abc', ['1'], [1], [1n], [Buffer.from('1')], ['\ud800'], ['\ud801'], ['\ufffd']]
    expect(new Set(different.map((id) => digest(encodeDedupeId(id)).join())).size).toBe(different.length)
  })

  it.each([
    [null, 'dedupe id is null'],
    [undefined, 'dedupe id is undefined'],
    ['', 'dedupe id is an empty string'],
    [new Uint8Array(0), 'dedupe id is empty bytes'],
    [7, 'dedupe id is a number (7)'],
    [{ orderId: 'a' }, 'dedupe id is an object'],
    [[], 'empty tuple'],
    [['a', undefined], 'element 1 of the dedupe id is undefined'],
    [['a', null], 'element 1 of the dedupe id is null'],
    [[Number.NaN], 'element 0 of the dedupe id is NaN'],
    [[Number.POSITIVE_INFINITY], 'element 0 of the dedupe id is Infinity'],
    [['', 'created'], 'element 0 of the dedupe id is an empty string'],
    [[['nested']], 'element 0 of the dedupe id is an array'],
    [[true], 'element 0 of the dedupe id is a boolean'],
  ])('%j is refused with the reason', (id, reason) => {
    expect(() => encodeDedupeId(id)).toThrow(TypeError)
    expect(() => encodeDedupeId(id)).toThrow(reason)
  })
})

describe('a packed changelog record', () => {
  it('gives back what was packed, with and without origins', () => {
    const entry = fc.record({
      id: fc.string(),
      time: times,
      originTime: times,
      partition: fc.nat(),
      offset: fc.nat(Number.MAX_SAFE_INTEGER),
    })
    fc.assert(
      fc.property(fc.uniqueArray(entry, { minLength: 1, selector: ({ id }) => id }), fc.boolean(), (entries, hasOrigin) => {
        const table = new DigestTable(hasOrigin, 2)
        const value = allocateValue(entries.length, hasOrigin)
        entries.forEach(({ id, time, originTime, partition, offset }, i) => {
          const at = table.insert(Int32Array.from(digest(id)), time)
          table.setOrigin(at, originTime, partition, offset)
          table.writeEntry(at, value, HEADER_BYTES + i * entryBytes(hasOrigin), hasOrigin)
        })
        const reader = new PackedReader()
        reader.open(value)
        for (const { id, time, originTime, partition, offset } of entries) {
          expect(reader.next()).toBe(true)
          expect([[...reader.words], reader.time]).toEqual([digest(id), time])
          if (hasOrigin) expect([reader.originTime, reader.partition, reader.offset]).toEqual([originTime, partition, offset])
        }
        expect(reader.next()).toBe(false)
      }),
    )
  })

  it('sorts its times and bucket ends as numbers', () => {
    fc.assert(
      fc.property(times, times, (a, b) => {
        const bytes = [a, b].map((time) => {
          const buffer = Buffer.alloc(8)
          writeTime(buffer, 0, time)
          expect(readTime(buffer, 0)).toBe(time)
          return buffer
        }) as [Buffer, Buffer]
        expect(Buffer.compare(...bytes)).toBe(a < b ? -1 : a > b ? 1 : 0)
      }),
    )
    const nonce = Buffer.alloc(16, 0xff)
    const key = packKey(5_000, nonce, 65_535)
    expect(keyBucketEnd(key)).toBe(5_000)
    expect(Buffer.compare(key, keyRangeEnd(5_000))).toBe(-1)
    expect(Buffer.compare(key, keyRangeEnd(4_999))).toBe(1)
  })

  it('fits its largest number of entries into 256 KB', () => {
    for (const hasOrigin of [false, true]) {
      expect(allocateValue(maxEntries(hasOrigin), hasOrigin).length).toBeLessThanOrEqual(MAX_VALUE_BYTES)
      expect(allocateValue(maxEntries(hasOrigin) + 1, hasOrigin).length).toBeGreaterThan(MAX_VALUE_BYTES)
    }
  })

  it('is refused when it is cut, extended, empty, or of another format or hash', () => {
    const good = allocateValue(2, false).fill(0, HEADER_BYTES)
    const reader = new PackedReader()
    const changed = (at: number, byte: number) => {
      const value = Buffer.from(good)
      value[at] = byte
      return value
    }
    reader.open(good)
    for (const bad of [
      good.subarray(0, 55),
      good.subarray(0, 3),
      Buffer.concat([good, Buffer.alloc(1)]),
      changed(2, 2),
      changed(3, 1),
      changed(7, 3),
      allocateValue(0, false),
    ]) {
      expect(() => reader.open(bad)).toThrow(FatalError)
    }
    expect(() => reader.open(changed(0, 9))).toThrow(/value format 9, this version reads 1/)
    expect(() => reader.open(changed(1, 9))).toThrow(StoreMismatchError)
    expect(() => keyBucketEnd(Buffer.alloc(27, 2))).toThrow(StoreMismatchError)
    expect(() => keyBucketEnd(Buffer.alloc(26, 1))).toThrow(/26 bytes/)
    expect(() => keyBucketEnd(Buffer.alloc(0))).toThrow(FatalError)
  })
})
