/**
 * From a business id to the 128 bits that stand for it everywhere below: tables, filters, changelog, disk.
 *
 * The digest is the first half of SHA-256, because ids come from outside: nobody can craft two ids that meet (64 bits, murmur3 or md5 do not give that),
 * and at a billion ids the chance of an accidental meeting is below 1e-20. `crypto.hash` to a latin1 string (Node names it 'binary' too) is the quickest form on Node 20
 * (about 0.4-0.6 us for 24 characters; asking for a Buffer costs 1.6 us).
 *
 * What is equal: a string and its UTF-8 bytes are one id, so moving a field from a string codec to bytes forgets nothing. A tuple equals only a tuple with
 * elements of the same types and values: its bytes start with 0xff, which no UTF-8 text does.
 */
import { Buffer } from 'node:buffer'
import { hash } from 'node:crypto'

/** Names the digest on disk and in the changelog. Change it with the function below, never otherwise. 1 = SHA-256, first 16 bytes. */
export const HASH_VERSION = 1
export const DIGEST_BYTES = 16
export const DIGEST_WORDS = 4

/** `string`, bytes, or a tuple: the shape a `by` function may return. */
export type DedupeIdValue = string | Uint8Array | readonly (string | number | bigint | Uint8Array)[]

const TUPLE_MARK = 0xff
const ILL_FORMED_MARK = 0xfe
const TAG = { string: 0x73, illFormed: 0x75, number: 0x6e, bigint: 0x69, bytes: 0x62 } as const

/** ES2024, present since Node 20; the type library of the project is ES2023. */
interface WellFormedString {
  isWellFormed(): boolean
}

/**
 * Writes the digest of `id` into `words` (four Int32, big-endian order) and returns the whole hash as a one-byte-per-character string,
 * for a cache that wants a key. Allocates that string only.
 */
export function digestOf(id: string | Uint8Array, words: Int32Array): string {
  const text = hash('sha256', typeof id === 'string' && !isWellFormed(id) ? illFormedBytes(id) : id, 'binary')
  words[0] = wordAt(text, 0)
  words[1] = wordAt(text, 4)
  words[2] = wordAt(text, 8)
  words[3] = wordAt(text, 12)
  return text
}

function wordAt(text: string, at: number): number {
  return (text.charCodeAt(at) << 24) | (text.charCodeAt(at + 1) << 16) | (text.charCodeAt(at + 2) << 8) | text.charCodeAt(at + 3)
}

function isWellFormed(text: string): boolean {
  return (text as unknown as WellFormedString).isWellFormed()
}

/** UTF-8 turns every lone surrogate into U+FFFD, so different ids would meet and a record be lost: such a string is hashed as UTF-16 behind a mark. */
function illFormedBytes(text: string): Buffer {
  const bytes = Buffer.allocUnsafe(1 + text.length * 2)
  bytes[0] = ILL_FORMED_MARK
  bytes.write(text, 1, 'utf16le')
  return bytes
}

/**
 * Checks what a `by` function returned and turns a tuple into unambiguous bytes: `['a', 'bc']` and `['ab', 'c']`, `1` and `'1'` and `1n` all differ.
 *
 * Throws a TypeError that says what is wrong: null, undefined, an object, NaN, an empty tuple, and also **an empty string or empty bytes, alone or inside a
 * tuple**. An empty id is nearly always a missing field; were it accepted, all records without the field would be duplicates of each other and be dropped.
 * Who means it writes a word: `order.coupon ?? 'none'`.
 */
export function encodeDedupeId(id: unknown): string | Uint8Array {
  if (typeof id === 'string' || id instanceof Uint8Array) {
    if (id.length === 0)
      throw new TypeError(
        `dedupe id is ${typeof id === 'string' ? 'an empty string' : 'empty bytes'}: a field that is missing in the record?`,
      )
    return id
  }
  if (!Array.isArray(id))
    throw new TypeError(`dedupe id is ${describe(id)}; it must be a string, bytes, or a tuple of strings, numbers and bigints`)
  return encodeTuple(id)
}

function encodeTuple(elements: readonly unknown[]): Uint8Array {
  if (elements.length === 0) throw new TypeError('dedupe id is an empty tuple; it must have at least one element')
  let size = 1
  for (let i = 0; i < elements.length; i++) size += 5 + largestSize(elements[i], i)
  const bytes = Buffer.allocUnsafe(size)
  bytes[0] = TUPLE_MARK
  let at = 1
  for (const element of elements) {
    const written = writeElement(bytes, at + 5, element)
    bytes[at] = tagOf(element)
    bytes.writeUInt32BE(written, at + 1)
    at += 5 + written
  }
  return bytes.subarray(0, at)
}

function largestSize(element: unknown, index: number): number {
  switch (typeof element) {
    case 'string':
      if (element.length === 0)
        throw new TypeError(`element ${index} of the dedupe id is an empty string: a field that is missing in the record?`)
      return element.length * 3
    case 'number':
      if (!Number.isFinite(element)) throw new TypeError(`element ${index} of the dedupe id is ${element}; a number must be finite`)
      return 32
    case 'bigint':
      return element.toString().length
    default:
      if (!(element instanceof Uint8Array))
        throw new TypeError(`element ${index} of the dedupe id is ${describe(element)}; it must be a string, number, bigint or bytes`)
      if (element.length === 0)
        throw new TypeError(`element ${index} of the dedupe id is empty bytes: a field that is missing in the record?`)
      return element.length
  }
}

function writeElement(bytes: Buffer, at: number, element: unknown): number {
  if (typeof element === 'string') return isWellFormed(element) ? bytes.write(element, at) : bytes.write(element, at, 'utf16le')
  if (element instanceof Uint8Array) {
    bytes.set(element, at)
    return element.length
  }
  return bytes.write(String(element), at, 'latin1')
}

function tagOf(element: unknown): number {
  if (typeof element === 'string') return isWellFormed(element) ? TAG.string : TAG.illFormed
  if (typeof element === 'number') return TAG.number
  return typeof element === 'bigint' ? TAG.bigint : TAG.bytes
}

function describe(value: unknown): string {
  if (value === null || value === undefined) return `${value}`
  if (Array.isArray(value)) return 'an array'
  if (typeof value === 'number' || typeof value === 'bigint') return `a ${typeof value} (${value})`
  return typeof value === 'object' ? 'an object' : `a ${typeof value}`
}
