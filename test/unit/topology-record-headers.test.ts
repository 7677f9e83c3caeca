import { expect, test } from 'vitest'
import type { HeaderList } from '../../src/broker/port.ts'
import type { RecordHeaders } from '../../src/topology/index.ts'
import { EMPTY_HEADERS, headerList, recordHeaders } from '../../src/topology/record-headers.ts'

const list: HeaderList = Object.freeze([
  ['trace', Buffer.from('t-1')],
  ['nothing', null],
  ['trace', Buffer.from('t-2 é')],
  ['', Buffer.alloc(0)],
] as const)
const headers = recordHeaders(list)

test('the last value of a repeated name counts', () => {
  expect(headers.get('trace')).toBe('t-2 é')
  expect(headers.bytes('trace')).toEqual(Buffer.from('t-2 é'))
})

test('null, empty and missing are distinct', () => {
  expect([headers.get('nothing'), headers.bytes('nothing')]).toEqual([undefined, null])
  expect([headers.get(''), headers.bytes('')]).toEqual(['', Buffer.alloc(0)])
  expect([headers.get('other'), headers.bytes('other')]).toEqual([undefined, undefined])
})

test('iterate in order, repetitions included', () => {
  expect([...headers]).toEqual(list)
})

test('with() appends and without() removes all of a name; neither changes what it was called on', () => {
  const more = headers.with('trace', 't-3').with('raw', new Uint8Array([1, 2]))
  expect(more.get('trace')).toBe('t-3')
  expect([...more].map(([name]) => name)).toEqual(['trace', 'nothing', 'trace', '', 'trace', 'raw'])
  expect([...more.without('trace')].map(([name]) => name)).toEqual(['nothing', '', 'raw'])
  expect(more.without('trace').with('trace', 'only').get('trace')).toBe('only')
  expect([...headers]).toEqual(list)
  expect(headerList(more).every(([, value]) => value === null || Buffer.isBuffer(value))).toBe(true)
})

test('untouched headers give back the very list they were made of', () => {
  expect(headerList(headers)).toBe(list)
  expect(headerList(headers.without('other'))).toBe(list)
  expect(headerList(EMPTY_HEADERS)).toHaveLength(0)
  expect(recordHeaders([])).toBe(EMPTY_HEADERS)
})

test('headers of another implementation are converted', () => {
  const own: RecordHeaders = {
    get: () => undefined,
    bytes: () => undefined,
    with: () => own,
    without: () => own,
    *[Symbol.iterator]() {
      yield ['a', new Uint8Array([65])] as const
      yield ['b', null] as const
    },
  }
  expect(headerList(own)).toEqual([
    ['a', Buffer.from('A')],
    ['b', null],
  ])
})

test('with() refuses what is neither text nor bytes', () => {
  expect(() => headers.with('n', 7 as never)).toThrow("headers.with('n'): the value is neither a string nor bytes")
  expect(() => headers.with(undefined as never, 'x')).toThrow('headers.with(): the name is not a string')
})
