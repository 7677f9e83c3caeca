/**
 * Remembers which ids were seen inside the window: the state behind `dedupe()`.
 *
 * Owns: the layers write-set -> memtable -> cache of clean entries -> one Bloom filter chain per time bucket -> backing rows per time bucket; expiry.
 * Does not own: files and transactions on disk (the backing), when to commit or flush (the runtime), what a duplicate means (the task).
 * Calls across: the backing, only for look-ups and inside a flush.
 *
 * Invariants (S1-S4 of store.ts, and):
 *  1. Times of one id only move forward: an id gets a second entry only when the earlier one has expired or is refreshed. So the newest entry is the truth,
 *     layers are asked newest first, and replaying changelog records in order, or twice, converges by keeping the newest time.
 *  2. Every hit, in every layer, is checked against the window (`time + window > now`); dropping expired buckets is housekeeping only.
 *  3. The cache holds copies of backing rows. A write to an id deletes its copy at once (S1 allows it: a missing copy is never wrong), so no copy is ever stale.
 *  4. Only committed stream time expires anything: the time an aborted or rolled back record reached is forgotten with it. It is that of the task, not of
 *     what the store holds: `reset` keeps it, and an earlier `now` than it counts as it.
 *  5. An entry that is already outside the window when it is written is not kept: it could not be hit.
 */
import { Buffer } from 'node:buffer'
import { LRUCache } from 'lru-cache'
import { invariant } from '../common/invariant.ts'
import type { DedupeStoreSpec } from '../common/store-spec.ts'
import { FatalError, StoreMismatchError } from '../errors/errors.ts'
import {
  allocateValue,
  entryBytes,
  HEADER_BYTES,
  keyBucketEnd,
  maxEntries,
  NONCE_BYTES,
  packKey,
  PackedReader,
} from '../serde/dedupe-changelog.ts'
import { digestOf } from '../serde/digest.ts'
import { FilterChain } from './bloom-filter.ts'
import { ChangelogSegments, MAX_TOMBSTONES } from './changelog-segments.ts'
import type { DedupeBacking, DedupeEntry } from './dedupe-backing.ts'
import { writeMemtable, type LiveBucket, type MemtableWrite } from './dedupe-flush.ts'
import { STATE_DEFAULTS } from './defaults.ts'
import { DigestTable } from './digest-table.ts'
import type { ChangelogRecord, ChangeSink, DedupeStore, DedupeVerdict, Origin } from './store.ts'

/** Length of a time bucket: an eighth of the window, at least a second. */
export function bucketLengthMs(windowMs: number): number {
  return Math.max(1_000, Math.ceil(windowMs / 8))
}

export class LayeredDedupeStore implements DedupeStore {
  readonly name: string
  readonly hits = { writeSet: 0, memtable: 0, cache: 0, disk: 0, filterFalsePositives: 0 }
  readonly #spec: DedupeStoreSpec
  readonly #windowMs: number
  readonly #bucketMs: number
  readonly #backing: DedupeBacking
  readonly #writeSet: DigestTable
  readonly #memtable: DigestTable
  readonly #cache: LRUCache<string, DedupeEntry> | undefined
  readonly #segments = new ChangelogSegments()
  readonly #reader = new PackedReader()
  readonly #digest = new Int32Array(4)
  readonly #found: DedupeEntry = { time: 0, originTime: 0, partition: -1, offset: -1 }
  /** By end, latest first. Overlaps occur only with buckets written under another window. */
  #buckets: LiveBucket[] = []
  #dropped: LiveBucket[] = []
  #flushing: MemtableWrite | undefined
  #prepared = false
  #hasOrigin = false
  /** Latest `now` of committed work, of the open write-set, and of the write-set before the present record. */
  #committedNow = -Infinity
  #now = -Infinity
  #recordNow = -Infinity
  #sweptNow = -Infinity
  /** Entries of the write-set at `beginRecord`, and what the record changed in older ones. */
  #recordStart = 0
  #undone = 0
  readonly #undoEntry: number[] = []
  readonly #undoState: DedupeEntry[] = []

  constructor(spec: DedupeStoreSpec, backing: DedupeBacking, cacheEntries: number = STATE_DEFAULTS.cacheEntries) {
    this.name = spec.name
    this.#spec = spec
    this.#windowMs = spec.windowMs
    this.#bucketMs = bucketLengthMs(spec.windowMs)
    this.#backing = backing
    this.#writeSet = new DigestTable(spec.keepOrigin, 1_024)
    this.#memtable = new DigestTable(spec.keepOrigin, 4_096)
    this.#cache = cacheEntries > 0 ? new LRUCache({ max: cacheEntries }) : undefined
    this.#load()
  }

  get hasChanges(): boolean {
    return this.#writeSet.count > 0 || this.#segments.waiting >= MAX_TOMBSTONES
  }

  /** True between the first write and commit or abort. */
  get isWriteSetOpen(): boolean {
    return this.#prepared || this.#writeSet.count > 0
  }

  /** Bytes that a flush frees. */
  get flushableBytes(): number {
    return this.#memtable.bytes + this.#segments.bytes
  }

  get memoryBytes(): number {
    return this.#writeSet.bytes + this.flushableBytes
  }

  get size(): number {
    let ids = this.#writeSet.count + this.#memtable.count
    for (const bucket of this.#buckets) ids += bucket.ids
    return ids
  }

  beginRecord(): void {
    this.#recordStart = this.#writeSet.count
    this.#recordNow = this.#now
    this.#undone = 0
  }

  rollbackRecord(): void {
    const writeSet = this.#writeSet
    while (this.#undone > 0) {
      const at = --this.#undone
      const entry = this.#undoEntry[at] as number
      const state = this.#undoState[at] as DedupeEntry
      writeSet.times[entry] = state.time
      writeSet.setOrigin(entry, state.originTime, state.partition, state.offset)
    }
    while (writeSet.count > this.#recordStart) writeSet.removeLast()
    this.#now = this.#recordNow
  }

  observe(id: string | Uint8Array, time: number, present: number, partition: number, offset: number): DedupeVerdict {
    if (!Number.isSafeInteger(time)) throw new RangeError(`dedupe store ${this.name}: time ${time} is not a whole number of milliseconds`)
    invariant(!this.#prepared, 'S1-observe-after-prepare')
    const writeSet = this.#writeSet
    const digest = this.#digest
    const window = this.#windowMs
    const key = digestOf(id, digest)
    this.#hasOrigin = false
    if (present > this.#now) this.#now = present
    const now = this.#now

    const own = writeSet.find(digest)
    if (own >= 0) {
      const known = writeSet.times[own] as number
      if (known + window > now) {
        this.hits.writeSet++
        this.#readEntry(writeSet, own)
        this.#hasOrigin = true
        if (this.#spec.refresh && time > known) {
          this.#saveForUndo(own)
          writeSet.times[own] = time
        }
        return 'duplicate'
      }
      if (time + window <= now) return 'first'
      this.#saveForUndo(own)
      writeSet.times[own] = time
      writeSet.setOrigin(own, time, partition, offset)
      return 'first'
    }

    const found = this.#found
    if (this.#findCommitted(key, now) && found.time + window > now) {
      this.#hasOrigin = true
      if (this.#spec.refresh && time > found.time) {
        writeSet.setOrigin(writeSet.insert(digest, time), found.originTime, found.partition, found.offset)
        this.#cache?.delete(key)
      }
      return 'duplicate'
    }
    if (time + window <= now) return 'first'
    writeSet.setOrigin(writeSet.insert(digest, time), time, partition, offset)
    this.#cache?.delete(key)
    return 'first'
  }

  /** Whether `id` is remembered at `now`. Writes nothing, moves no time and counts no hit. */
  knows(id: string | Uint8Array, now: number): boolean {
    const counted = { ...this.hits }
    const key = digestOf(id, this.#digest)
    const own = this.#writeSet.find(this.#digest)
    const known =
      own >= 0
        ? (this.#writeSet.times[own] as number) + this.#windowMs > now
        : this.#findCommitted(key, now) && this.#found.time + this.#windowMs > now
    Object.assign(this.hits, counted)
    return known
  }

  lastOrigin(): Origin | undefined {
    const found = this.#found
    if (!this.#hasOrigin || !this.#spec.keepOrigin || found.partition < 0) return undefined
    return { time: found.originTime, partition: found.partition, offset: found.offset }
  }

  prepare(nonce: Buffer, sink: ChangeSink): void {
    invariant(!this.#prepared, 'S-prepare-once', { store: this.name })
    invariant(nonce.length === NONCE_BYTES, 'S-nonce-16-bytes', { length: nonce.length })
    this.#prepared = true
    const writeSet = this.#writeSet
    const order = this.#liveByTime()
    const perRecord = maxEntries(this.#spec.keepOrigin)
    let sequence = 0
    for (let from = 0; from < order.length;) {
      const end = this.#bucketEnd(writeSet.times[order[from] as number] as number)
      let to = from + 1
      while (to < order.length && to - from < perRecord && (writeSet.times[order[to] as number] as number) < end) to++
      invariant(sequence <= 0xffff, 'S-changelog-sequence', { store: this.name })
      const key = packKey(end, nonce, sequence++)
      this.#segments.prepareKey(key)
      sink(key, this.#pack(order, from, to))
      from = to
    }
    for (const key of this.#segments.prepareTombstones()) sink(key, null)
  }

  commit(): void {
    invariant(this.#prepared || this.#writeSet.count === 0, 'S-commit-prepared', { store: this.name })
    const writeSet = this.#writeSet
    const digest = this.#digest
    const now = this.#now
    for (let entry = 0; entry < writeSet.count; entry++) {
      const time = writeSet.times[entry] as number
      if (time + this.#windowMs <= now) continue
      writeSet.readDigest(entry, digest)
      if (writeSet.keepOrigin) {
        this.#merge(
          digest,
          time,
          writeSet.originTimes[entry] as number,
          writeSet.partitions[entry] as number,
          writeSet.offsets[entry] as number,
        )
      } else this.#merge(digest, time, 0, -1, -1)
    }
    this.#committedNow = now
    this.#segments.commit()
    this.#closeWriteSet()
    this.#expire()
  }

  abort(): void {
    this.#now = this.#committedNow
    this.#segments.abort()
    this.#closeWriteSet()
  }

  resumeAt(now: number): void {
    invariant(!this.isWriteSetOpen, 'S-resume-without-write-set', { store: this.name })
    if (now <= this.#committedNow) return
    this.#committedNow = this.#now = this.#recordNow = now
    this.#expire()
  }

  restore(records: readonly ChangelogRecord[]): void {
    invariant(!this.isWriteSetOpen, 'S-restore-without-write-set', { store: this.name })
    this.#cache?.clear()
    for (const record of records) {
      try {
        this.#restoreRecord(record.key, record.value)
      } catch (error) {
        throw this.#located(error, record.offset)
      }
    }
    this.#segments.expire(this.#committedNow - this.#windowMs)
  }

  /** Inside the storage's transaction: rows, filters, segments and dropped buckets. Changes nothing that a failed transaction would have to undo. */
  writeFlush(): void {
    invariant(!this.isWriteSetOpen, 'S2-flush-without-write-set', { store: this.name })
    for (const bucket of this.#dropped) this.#backing.dropBucket(bucket.id)
    this.#flushing = writeMemtable(this.#memtable, this.#buckets, this.#backing, this.#windowMs, this.#bucketMs, this.#committedNow)
    this.#segments.writeTo(this.#backing)
  }

  /** The transaction of `writeFlush` committed. */
  completeFlush(): void {
    const write = this.#flushing
    invariant(write !== undefined, 'S-flush-in-order', { store: this.name })
    this.#flushing = undefined
    for (const change of write) {
      change.bucket.ids += change.added
      change.bucket.filters.markStored()
      if (change.isNew) this.#buckets.push(change.bucket)
    }
    this.#buckets.sort((a, b) => b.end - a.end)
    this.#dropped = []
    this.#memtable.clear()
    this.#segments.flushed(this.#backing, this.#committedNow - this.#windowMs)
  }

  /** Inside the storage's transaction: empties the store on disk. */
  writeReset(): void {
    this.#backing.clear()
  }

  /** The transaction of `writeReset` committed: empty in memory too. */
  completeReset(): void {
    this.#now = this.#committedNow
    this.#segments.clear()
    this.#closeWriteSet()
    this.#memtable.clear()
    this.#cache?.clear()
    this.#dropped = []
    this.#load()
  }

  #load(): void {
    this.#buckets = this.#backing
      .load()
      .map((bucket) => ({ id: bucket.id, start: bucket.start, end: bucket.end, ids: bucket.ids, filters: new FilterChain(bucket.filters) }))
      .sort((a, b) => b.end - a.end)
  }

  #bucketEnd(time: number): number {
    return (Math.floor(time / this.#bucketMs) + 1) * this.#bucketMs
  }

  /** Fills `#found` with the newest committed entry of `#digest`. */
  #findCommitted(key: string, now: number): boolean {
    const at = this.#memtable.find(this.#digest)
    if (at >= 0) {
      this.#readEntry(this.#memtable, at)
      if (this.#found.time + this.#windowMs > now) this.hits.memtable++
      return true
    }
    const copy = this.#cache?.get(key)
    if (copy !== undefined) {
      this.#copyToFound(copy)
      if (copy.time + this.#windowMs > now) this.hits.cache++
      return true
    }
    if (!this.#findInBuckets(now)) return false
    this.hits.disk++
    const { time, originTime, partition, offset } = this.#found
    this.#cache?.set(key, { time, originTime, partition, offset })
    return true
  }

  /** Looks for an entry inside the window, newest bucket first. Where buckets overlap (an earlier window), the newest time wins. */
  #findInBuckets(now: number): boolean {
    const found = this.#found
    const digest = this.#digest
    const w1 = digest[1] as number
    const w2 = digest[2] as number
    const buckets = this.#buckets
    let newest = -Infinity
    let best: DedupeEntry | undefined
    for (let i = 0; i < buckets.length; i++) {
      const bucket = buckets[i] as LiveBucket
      // Sorted by end: neither this nor any later bucket can hold a live entry, or one newer than the hit.
      if (bucket.end + this.#windowMs <= now || bucket.end <= newest) break
      if (!bucket.filters.mayContain(w1, w2)) continue
      if (!this.#backing.get(bucket.id, digest, found)) {
        this.hits.filterFalsePositives++
        continue
      }
      if (found.time + this.#windowMs <= now || found.time <= newest) continue
      newest = found.time
      if (i + 1 < buckets.length && (buckets[i + 1] as LiveBucket).end > newest) best = { ...found }
      else return true
    }
    if (best === undefined) return false
    this.#copyToFound(best)
    return true
  }

  #readEntry(table: DigestTable, entry: number): void {
    const found = this.#found
    found.time = table.times[entry] as number
    if (!table.keepOrigin) return
    found.originTime = table.originTimes[entry] as number
    found.partition = table.partitions[entry] as number
    found.offset = table.offsets[entry] as number
  }

  #copyToFound(entry: DedupeEntry): void {
    const found = this.#found
    found.time = entry.time
    found.originTime = entry.originTime
    found.partition = entry.partition
    found.offset = entry.offset
  }

  /** The present record is about to change an entry of the write-set in place. */
  #saveForUndo(entry: number): void {
    const at = this.#undone++
    const writeSet = this.#writeSet
    const state = (this.#undoState[at] ??= { time: 0, originTime: 0, partition: -1, offset: -1 })
    this.#undoEntry[at] = entry
    state.time = writeSet.times[entry] as number
    if (!writeSet.keepOrigin) return
    state.originTime = writeSet.originTimes[entry] as number
    state.partition = writeSet.partitions[entry] as number
    state.offset = writeSet.offsets[entry] as number
  }

  /** Entry numbers of the write-set inside the window, so that those of one bucket are neighbours. */
  #liveByTime(): Uint32Array {
    const { times, count } = this.#writeSet
    const order = new Uint32Array(count)
    let live = 0
    let earliest = Infinity
    let latest = -Infinity
    for (let entry = 0; entry < count; entry++) {
      const time = times[entry] as number
      if (time + this.#windowMs <= this.#now) continue
      order[live++] = entry
      if (time < earliest) earliest = time
      if (time > latest) latest = time
    }
    const entries = order.subarray(0, live)
    if (live > 0 && this.#bucketEnd(earliest) !== this.#bucketEnd(latest))
      entries.sort((a, b) => (times[a] as number) - (times[b] as number))
    return entries
  }

  #pack(order: Uint32Array, from: number, to: number): Buffer {
    const hasOrigin = this.#spec.keepOrigin
    const value = allocateValue(to - from, hasOrigin)
    const size = entryBytes(hasOrigin)
    for (let i = from, at = HEADER_BYTES; i < to; i++, at += size) this.#writeSet.writeEntry(order[i] as number, value, at, hasOrigin)
    return value
  }

  /** Into the memtable; the newest time of an id wins. */
  #merge(digest: Int32Array, time: number, originTime: number, partition: number, offset: number): void {
    const memtable = this.#memtable
    let entry = memtable.find(digest)
    if (entry < 0) entry = memtable.insert(digest, time)
    else if ((memtable.times[entry] as number) < time) memtable.times[entry] = time
    else return
    memtable.setOrigin(entry, originTime, partition, offset)
  }

  #closeWriteSet(): void {
    this.#writeSet.clear()
    this.#prepared = false
    this.#recordStart = 0
    this.#recordNow = this.#now
    this.#undone = 0
  }

  /** Drops what nobody can hit any more: whole buckets, and once per bucket length the expired part of the memtable. */
  #expire(): void {
    const endAtMost = this.#committedNow - this.#windowMs
    let last = this.#buckets.at(-1)
    while (last !== undefined && last.end <= endAtMost) {
      this.#dropped.push(last)
      this.#buckets.pop()
      last = this.#buckets.at(-1)
    }
    this.#segments.expire(endAtMost)
    // `!(… < …)` instead of `>=`: the first time, the difference of two infinities is NaN.
    if (!(this.#committedNow - this.#sweptNow < this.#bucketMs)) {
      this.#sweptNow = this.#committedNow
      this.#memtable.dropExpired(this.#committedNow, this.#windowMs)
    }
  }

  #restoreRecord(key: Buffer, value: Buffer | null): void {
    const end = keyBucketEnd(key)
    if (value === null) return this.#segments.forget(Buffer.from(key))
    // Nobody can hit any of its ids (2.), but its key still has to be forgotten in the changelog. At the end of a window that is most of what a topic holds.
    if (end + this.#windowMs <= this.#committedNow) return this.#segments.remember(Buffer.from(key))
    const reader = this.#reader
    reader.open(value)
    while (reader.next()) {
      if (reader.time >= end) {
        throw new FatalError(`dedupe changelog record is malformed: an id has time ${reader.time}, its bucket ends at ${end}`, {
          code: 'changelog-malformed',
        })
      }
      if (reader.hasOrigin) this.#merge(reader.words, reader.time, reader.originTime, reader.partition, reader.offset)
      else this.#merge(reader.words, reader.time, reader.time, -1, -1)
    }
    // A copy: the record's key is a slice of a fetch that is much larger.
    this.#segments.remember(Buffer.from(key))
  }

  #located(error: unknown, offset: number): unknown {
    const Kind = error instanceof StoreMismatchError ? StoreMismatchError : error instanceof FatalError ? FatalError : undefined
    if (Kind === undefined) return error
    const { code, remedy, message } = error as FatalError
    return new Kind(`store ${this.name}, changelog offset ${offset}: ${message}`, {
      code,
      cause: error,
      ...(remedy === undefined ? {} : { remedy }),
    })
  }
}
