/**
 * Split-block Bloom filters over digests: one 32-byte block per look-up, 16 bits per id, about 0.13 % false positives when full.
 * (Putze, Sanders, Singler: "Cache-, hash- and space-efficient Bloom filters", 2007.)
 *
 * A bucket does not know how many ids it will get, so it has a chain: a full filter stays as it is and a larger one follows. Only the last of a chain ever
 * changes, so a flush rewrites one blob of bounded size.
 *
 * Block and bits are taken from the second and third word of the digest; the tables index by the first, so the two stay independent.
 */
import { Buffer } from 'node:buffer'
import { crc32 } from 'node:zlib'
import { invariant } from '../common/invariant.ts'
import { CorruptedStoreError } from '../errors/errors.ts'

export const BITS_PER_ID = 16
export const MIN_FILTER_IDS = 4_096
/** 2 MiB of bits: what one flush rewrites at most. */
export const MAX_FILTER_IDS = 1_048_576
const WORDS_PER_BLOCK = 8
const BLOB_FORMAT = 1
const BLOB_HEADER_BYTES = 16

export class BloomFilter {
  /** Ids it is made for. */
  readonly capacity: number
  /** Ids added, repeated ones included. */
  count = 0
  readonly #bits: Int32Array
  readonly #blocks: number

  constructor(capacity: number) {
    this.capacity = capacity
    this.#blocks = Math.max(1, Math.ceil((capacity * BITS_PER_ID) / 256))
    this.#bits = new Int32Array(this.#blocks * WORDS_PER_BLOCK)
  }

  get isFull(): boolean {
    return this.count >= this.capacity
  }

  get bytes(): number {
    return this.#bits.byteLength
  }

  add(w1: number, w2: number): void {
    const bits = this.#bits
    const at = this.#block(w1)
    bits[at] = (bits[at] as number) | (1 << (Math.imul(w2, 0x47b6137b) >>> 27))
    bits[at + 1] = (bits[at + 1] as number) | (1 << (Math.imul(w2, 0x44974d91) >>> 27))
    bits[at + 2] = (bits[at + 2] as number) | (1 << (Math.imul(w2, 0x8824ad5b) >>> 27))
    bits[at + 3] = (bits[at + 3] as number) | (1 << (Math.imul(w2, 0xa2b7289d) >>> 27))
    bits[at + 4] = (bits[at + 4] as number) | (1 << (Math.imul(w2, 0x705495c7) >>> 27))
    bits[at + 5] = (bits[at + 5] as number) | (1 << (Math.imul(w2, 0x2df1424b) >>> 27))
    bits[at + 6] = (bits[at + 6] as number) | (1 << (Math.imul(w2, 0x9efc4947) >>> 27))
    bits[at + 7] = (bits[at + 7] as number) | (1 << (Math.imul(w2, 0x5c6bfb31) >>> 27))
    this.count++
  }

  mayContain(w1: number, w2: number): boolean {
    const bits = this.#bits
    const at = this.#block(w1)
    return (
      ((bits[at] as number) & (1 << (Math.imul(w2, 0x47b6137b) >>> 27))) !== 0 &&
      ((bits[at + 1] as number) & (1 << (Math.imul(w2, 0x44974d91) >>> 27))) !== 0 &&
      ((bits[at + 2] as number) & (1 << (Math.imul(w2, 0x8824ad5b) >>> 27))) !== 0 &&
      ((bits[at + 3] as number) & (1 << (Math.imul(w2, 0xa2b7289d) >>> 27))) !== 0 &&
      ((bits[at + 4] as number) & (1 << (Math.imul(w2, 0x705495c7) >>> 27))) !== 0 &&
      ((bits[at + 5] as number) & (1 << (Math.imul(w2, 0x2df1424b) >>> 27))) !== 0 &&
      ((bits[at + 6] as number) & (1 << (Math.imul(w2, 0x9efc4947) >>> 27))) !== 0 &&
      ((bits[at + 7] as number) & (1 << (Math.imul(w2, 0x5c6bfb31) >>> 27))) !== 0
    )
  }

  /** Format, capacity, count, checksum, bits. Little-endian, as the typed arrays of every platform Node runs on. */
  toBlob(): Buffer {
    const blob = Buffer.allocUnsafe(BLOB_HEADER_BYTES + this.#bits.byteLength)
    blob.writeUInt32LE(BLOB_FORMAT, 0)
    blob.writeUInt32LE(this.capacity, 4)
    blob.writeUInt32LE(this.count, 8)
    blob.set(new Uint8Array(this.#bits.buffer), BLOB_HEADER_BYTES)
    blob.writeUInt32LE(checksum(blob), 12)
    return blob
  }

  /** Throws CorruptedStoreError when a byte differs: a filter that forgets a bit lets a duplicate pass. */
  static fromBlob(blob: Buffer): BloomFilter {
    if (blob.length < BLOB_HEADER_BYTES || blob.readUInt32LE(12) !== checksum(blob)) throw damaged('its checksum does not match')
    if (blob.readUInt32LE(0) !== BLOB_FORMAT) throw damaged(`unknown format ${blob.readUInt32LE(0)}`)
    const filter = new BloomFilter(blob.readUInt32LE(4))
    if (blob.length !== BLOB_HEADER_BYTES + filter.#bits.byteLength) throw damaged(`it has ${blob.length} bytes`)
    filter.count = blob.readUInt32LE(8)
    new Uint8Array(filter.#bits.buffer).set(blob.subarray(BLOB_HEADER_BYTES))
    return filter
  }

  /** Maps 32 bits onto the blocks without a division: high half of the product, exact below 2^53. */
  #block(w1: number): number {
    return Math.floor(((w1 >>> 0) * this.#blocks) / 2 ** 32) * WORDS_PER_BLOCK
  }
}

function checksum(blob: Buffer): number {
  return crc32(blob.subarray(BLOB_HEADER_BYTES), crc32(blob.subarray(0, 12)))
}

function damaged(why: string): CorruptedStoreError {
  return new CorruptedStoreError(`a stored Bloom filter is damaged: ${why}`, { code: 'filter-checksum' })
}

/** The filters of one bucket, oldest first. */
export class FilterChain {
  readonly filters: BloomFilter[]
  /** Filters from here on differ from what is stored. */
  firstChanged: number

  constructor(stored: readonly BloomFilter[] = []) {
    this.filters = [...stored]
    this.firstChanged = stored.length
  }

  /** Makes room for `ids` more; a new filter is sized by `expected`, the ids the bucket will get in all if known (else 0), or doubles the last. */
  reserve(ids: number, expected: number): void {
    const last = this.filters.at(-1)
    if (last !== undefined && last.count + ids <= last.capacity) return
    const wanted = Math.max(ids, last === undefined ? expected : last.capacity * 2, MIN_FILTER_IDS)
    this.filters.push(new BloomFilter(Math.min(MAX_FILTER_IDS, wanted)))
  }

  add(w1: number, w2: number): void {
    let last = this.filters.at(-1)
    if (last === undefined || last.isFull) {
      this.reserve(1, 0)
      last = this.filters.at(-1)
    }
    invariant(last !== undefined, 'filter-chain-room')
    last.add(w1, w2)
    if (this.firstChanged >= this.filters.length) this.firstChanged = this.filters.length - 1
  }

  mayContain(w1: number, w2: number): boolean {
    const filters = this.filters
    for (let i = filters.length - 1; i >= 0; i--) if ((filters[i] as BloomFilter).mayContain(w1, w2)) return true
    return false
  }

  /** What is in memory is now also stored. */
  markStored(): void {
    this.firstChanged = this.filters.length
  }
}
