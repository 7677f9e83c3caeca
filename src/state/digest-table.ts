/**
 * An exact map from 128-bit digests to a time (and, if asked for, where the first record was read). The write-set and the memtable are both made of it.
 *
 * Owns: dense entry columns in insertion order, and an open-addressing index (linear probing) that points into them.
 * Does not own: windows, buckets, what an entry means.
 *
 * Invariants:
 *  1. Entries are dense: 0 .. count - 1, in insertion order. A rehash inserts in that order, so the last entry is always the last inserted of the index
 *     too, and clearing its slot breaks no probe chain: `removeLast` is the only removal, and undo runs backwards.
 *  2. No call allocates unless the table grows.
 */
import type { Buffer } from 'node:buffer'
import { writeTime } from '../serde/dedupe-changelog.ts'

const EMPTY = 0

export class DigestTable {
  readonly keepOrigin: boolean
  /** Number of entries. */
  count = 0
  words: Int32Array
  times: Float64Array
  originTimes: Float64Array
  partitions: Int32Array
  offsets: Float64Array
  /** Entry number + 1, or 0. Its length is a power of two, at least twice the capacity of the columns. */
  #index: Int32Array
  readonly #initialCapacity: number

  constructor(keepOrigin: boolean, initialCapacity = 1024) {
    this.keepOrigin = keepOrigin
    const capacity = powerOfTwo(initialCapacity)
    this.#initialCapacity = capacity
    this.words = new Int32Array(capacity * 4)
    this.times = new Float64Array(capacity)
    this.originTimes = new Float64Array(keepOrigin ? capacity : 0)
    this.partitions = new Int32Array(keepOrigin ? capacity : 0)
    this.offsets = new Float64Array(keepOrigin ? capacity : 0)
    this.#index = new Int32Array(capacity * 2)
  }

  /** Bytes per entry: digest, time, two index slots, origin. */
  get bytesPerEntry(): number {
    return this.keepOrigin ? 52 : 32
  }

  /** Bytes the entries take; room that is kept for later ones is not counted. */
  get bytes(): number {
    return this.count * this.bytesPerEntry
  }

  get capacity(): number {
    return this.times.length
  }

  /** Entry number of a digest, or -1. */
  find(digest: Int32Array): number {
    const index = this.#index
    const words = this.words
    const mask = index.length - 1
    const w0 = digest[0] as number
    let slot = w0 & mask
    for (;;) {
      const entry = (index[slot] as number) - 1
      if (entry < 0) return -1
      const at = entry * 4
      if (words[at] === w0 && words[at + 1] === digest[1] && words[at + 2] === digest[2] && words[at + 3] === digest[3]) return entry
      slot = (slot + 1) & mask
    }
  }

  /** Adds a digest that is not in the table; returns its entry number. */
  insert(digest: Int32Array, time: number): number {
    if (this.count === this.times.length) this.#resize(this.times.length * 2)
    const entry = this.count++
    const at = entry * 4
    const words = this.words
    words[at] = digest[0] as number
    words[at + 1] = digest[1] as number
    words[at + 2] = digest[2] as number
    words[at + 3] = digest[3] as number
    this.times[entry] = time
    this.#link(entry)
    return entry
  }

  setOrigin(entry: number, originTime: number, partition: number, offset: number): void {
    if (!this.keepOrigin) return
    this.originTimes[entry] = originTime
    this.partitions[entry] = partition
    this.offsets[entry] = offset
  }

  /** Copies the digest of an entry into `digest`. */
  readDigest(entry: number, digest: Int32Array): void {
    const at = entry * 4
    const words = this.words
    digest[0] = words[at] as number
    digest[1] = words[at + 1] as number
    digest[2] = words[at + 2] as number
    digest[3] = words[at + 3] as number
  }

  /** Writes an entry in the changelog's layout; the origin only with `hasOrigin`. */
  writeEntry(entry: number, target: Buffer, at: number, hasOrigin: boolean): void {
    const words = this.words
    const from = entry * 4
    target.writeInt32BE(words[from] as number, at)
    target.writeInt32BE(words[from + 1] as number, at + 4)
    target.writeInt32BE(words[from + 2] as number, at + 8)
    target.writeInt32BE(words[from + 3] as number, at + 12)
    writeTime(target, at + 16, this.times[entry] as number)
    if (!hasOrigin) return
    writeTime(target, at + 24, this.originTimes[entry] as number)
    target.writeInt32BE(this.partitions[entry] as number, at + 32)
    writeTime(target, at + 36, this.offsets[entry] as number)
  }

  removeLast(): void {
    const entry = this.count - 1
    const index = this.#index
    const mask = index.length - 1
    let slot = (this.words[entry * 4] as number) & mask
    while (index[slot] !== entry + 1) slot = (slot + 1) & mask
    index[slot] = EMPTY
    this.count = entry
  }

  clear(): void {
    this.count = 0
    if (this.times.length > this.#initialCapacity * 64) this.#allocate(this.#initialCapacity)
    else this.#index.fill(EMPTY)
  }

  /** Drops every entry whose time is so old that `time + window <= now`, keeps the order of the others, and gives memory back. */
  dropExpired(now: number, window: number): void {
    let kept = 0
    for (let entry = 0; entry < this.count; entry++) {
      if ((this.times[entry] as number) + window <= now) continue
      if (kept !== entry) {
        this.words.copyWithin(kept * 4, entry * 4, entry * 4 + 4)
        this.times[kept] = this.times[entry] as number
        if (this.keepOrigin)
          this.setOrigin(kept, this.originTimes[entry] as number, this.partitions[entry] as number, this.offsets[entry] as number)
      }
      kept++
    }
    if (kept === this.count) return
    this.count = kept
    this.#resize(Math.max(this.#initialCapacity, powerOfTwo(kept + 1)))
  }

  /** Room for `capacity` entries (at least `count`), the index rebuilt in insertion order. */
  #resize(capacity: number): void {
    const { words, times, originTimes, partitions, offsets, count } = this
    this.#allocate(capacity)
    this.words.set(words.subarray(0, count * 4))
    this.times.set(times.subarray(0, count))
    if (this.keepOrigin) {
      this.originTimes.set(originTimes.subarray(0, count))
      this.partitions.set(partitions.subarray(0, count))
      this.offsets.set(offsets.subarray(0, count))
    }
    for (let entry = 0; entry < count; entry++) this.#link(entry)
  }

  #allocate(capacity: number): void {
    this.words = new Int32Array(capacity * 4)
    this.times = new Float64Array(capacity)
    if (this.keepOrigin) {
      this.originTimes = new Float64Array(capacity)
      this.partitions = new Int32Array(capacity)
      this.offsets = new Float64Array(capacity)
    }
    this.#index = new Int32Array(capacity * 2)
  }

  #link(entry: number): void {
    const index = this.#index
    const mask = index.length - 1
    let slot = (this.words[entry * 4] as number) & mask
    while (index[slot] !== EMPTY) slot = (slot + 1) & mask
    index[slot] = entry + 1
  }
}

function powerOfTwo(atLeast: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(2, atLeast)))
}
