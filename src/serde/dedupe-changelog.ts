/**
 * The packed changelog records of a dedupe store: a transaction writes a handful of them, not one per id (DESIGN 4).
 *
 *   key    27 bytes: format (1) | end of the time bucket (8, order-preserving) | nonce (16) | sequence (2)
 *   value  format (1) | hash version (1) | flags (1) | zero (1) | number of entries (4) | entries
 *   entry  digest (16) | time (8, order-preserving) [ | origin time (8) | partition (4) | offset (8) ]     with flag 1
 *
 * A null value is a tombstone: that packed record is forgotten, which the writer says only of buckets no id of which can still be remembered. The bucket is
 * named by its *end* so that the key alone decides that, whatever the bucket length was when it was written. The nonce is never used again: a counter would be
 * re-used by the task's next owner and overwrite live ids. Disk rows use the same entry layout.
 */
import { Buffer } from 'node:buffer'
import { FatalError, StoreMismatchError } from '../errors/errors.ts'
import { HASH_VERSION } from './digest.ts'

export const DEDUPE_CHANGELOG_FORMAT = 1
export const NONCE_BYTES = 16
export const KEY_BYTES = 27
export const HEADER_BYTES = 8
export const PLAIN_ENTRY_BYTES = 24
export const ORIGIN_ENTRY_BYTES = 44
/** Largest value, below every usual `max.message.bytes`. */
export const MAX_VALUE_BYTES = 256 * 1024
const FLAG_ORIGIN = 1
const HIGH = 2 ** 32
const SIGN = 0x8000_0000

export function entryBytes(hasOrigin: boolean): number {
  return hasOrigin ? ORIGIN_ENTRY_BYTES : PLAIN_ENTRY_BYTES
}

export function maxEntries(hasOrigin: boolean): number {
  return Math.floor((MAX_VALUE_BYTES - HEADER_BYTES) / entryBytes(hasOrigin))
}

/** A whole number of ms as int64 with the sign bit turned, so that bytes compare as numbers do. */
export function writeTime(target: Buffer, at: number, time: number): void {
  const high = Math.floor(time / HIGH)
  target.writeInt32BE((high ^ SIGN) | 0, at)
  target.writeUInt32BE(time - high * HIGH, at + 4)
}

export function readTime(source: Buffer, at: number): number {
  return ((source.readInt32BE(at) ^ SIGN) | 0) * HIGH + source.readUInt32BE(at + 4)
}

export function packKey(bucketEnd: number, nonce: Buffer, sequence: number): Buffer {
  const key = Buffer.allocUnsafe(KEY_BYTES)
  key[0] = DEDUPE_CHANGELOG_FORMAT
  writeTime(key, 1, bucketEnd)
  nonce.copy(key, 9, 0, NONCE_BYTES)
  key.writeUInt16BE(sequence, 25)
  return key
}

/** The end of the bucket a key names: every id in that record has an earlier time. */
export function keyBucketEnd(key: Buffer): number {
  if (key.length !== KEY_BYTES || key[0] !== DEDUPE_CHANGELOG_FORMAT) {
    if (key.length > 0 && key[0] !== DEDUPE_CHANGELOG_FORMAT) throw otherFormat('key format', key[0] ?? -1, DEDUPE_CHANGELOG_FORMAT)
    throw malformed(`key has ${key.length} bytes, ${KEY_BYTES} expected`)
  }
  return readTime(key, 1)
}

/** Keys of buckets that end at `endAtMost` or before are those that sort before this one. */
export function keyRangeEnd(endAtMost: number): Buffer {
  const end = Buffer.alloc(9)
  end[0] = DEDUPE_CHANGELOG_FORMAT
  writeTime(end, 1, endAtMost + 1)
  return end
}

/** A value with room for exactly `count` entries, its header written. */
export function allocateValue(count: number, hasOrigin: boolean): Buffer {
  const value = Buffer.allocUnsafe(HEADER_BYTES + count * entryBytes(hasOrigin))
  value[0] = DEDUPE_CHANGELOG_FORMAT
  value[1] = HASH_VERSION
  value[2] = hasOrigin ? FLAG_ORIGIN : 0
  value[3] = 0
  value.writeUInt32BE(count, 4)
  return value
}

/** Reads packed values entry by entry into its own fields; one reader serves for ever, nothing is allocated per entry. */
export class PackedReader {
  readonly words = new Int32Array(4)
  time = 0
  hasOrigin = false
  originTime = 0
  partition = -1
  offset = -1
  count = 0
  #value: Buffer = Buffer.alloc(0)
  #at = 0

  /** Checks the header and the length. Throws before anything of the record is applied. */
  open(value: Buffer): void {
    if (value.length < HEADER_BYTES) throw malformed(`value has ${value.length} bytes, at least ${HEADER_BYTES} expected`)
    if (value[0] !== DEDUPE_CHANGELOG_FORMAT) throw otherFormat('value format', value[0] ?? -1, DEDUPE_CHANGELOG_FORMAT)
    if (value[1] !== HASH_VERSION) throw otherFormat('hash version', value[1] ?? -1, HASH_VERSION)
    const flags = value[2] ?? 0
    if ((flags & ~FLAG_ORIGIN) !== 0 || value[3] !== 0) throw malformed(`unknown flags ${flags}, ${value[3]}`)
    const hasOrigin = (flags & FLAG_ORIGIN) !== 0
    const count = value.readUInt32BE(4)
    const expected = HEADER_BYTES + count * entryBytes(hasOrigin)
    if (value.length !== expected || count === 0) throw malformed(`${count} entries make ${expected} bytes, the value has ${value.length}`)
    this.#value = value
    this.#at = HEADER_BYTES
    this.hasOrigin = hasOrigin
    this.count = count
  }

  next(): boolean {
    const value = this.#value
    const at = this.#at
    if (at >= value.length) return false
    const words = this.words
    words[0] = value.readInt32BE(at)
    words[1] = value.readInt32BE(at + 4)
    words[2] = value.readInt32BE(at + 8)
    words[3] = value.readInt32BE(at + 12)
    this.time = readTime(value, at + 16)
    if (this.hasOrigin) {
      this.originTime = readTime(value, at + 24)
      this.partition = value.readInt32BE(at + 32)
      this.offset = readTime(value, at + 36)
    }
    this.#at = at + entryBytes(this.hasOrigin)
    return true
  }
}

function malformed(what: string): FatalError {
  return new FatalError(`dedupe changelog record is malformed: ${what}`, {
    code: 'changelog-malformed',
    remedy:
      'Something else writes to this changelog topic, or its records were altered; restore the topic, or delete it together with the state and the committed offsets.',
  })
}

function otherFormat(what: string, found: number, expected: number): StoreMismatchError {
  return new StoreMismatchError(`dedupe changelog record has ${what} ${found}, this version reads ${expected}`, {
    code: 'changelog-format',
    remedy: 'Run the version of millrace that wrote it, or reset the application (state, changelog and committed offsets).',
  })
}
