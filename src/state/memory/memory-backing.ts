/** Buckets of one dedupe store as exact tables in memory. */
import { Buffer } from 'node:buffer'
import { entryBytes, keyBucketEnd, readTime } from '../../serde/dedupe-changelog.ts'
import type { BloomFilter, FilterChain } from '../bloom-filter.ts'
import { BloomFilter as Filter } from '../bloom-filter.ts'
import type { DedupeBacking, DedupeEntry, StoredBucket } from '../dedupe-backing.ts'
import { DigestTable } from '../digest-table.ts'

interface MemoryBucket {
  readonly start: number
  readonly end: number
  readonly rows: DigestTable
  ids: number
  /** Copies, as a disk would hold them: the store's own filters may run ahead. */
  filters: Buffer[]
}

export class MemoryDedupeBacking implements DedupeBacking {
  readonly #buckets = new Map<number, MemoryBucket>()
  readonly #segments = new Map<string, Buffer>()
  readonly #digest = new Int32Array(4)
  #nextId = 1

  load(): readonly StoredBucket[] {
    return [...this.#buckets].map(([id, bucket]) => ({
      id,
      start: bucket.start,
      end: bucket.end,
      ids: bucket.ids,
      filters: bucket.filters.map((blob): BloomFilter => Filter.fromBlob(blob)),
    }))
  }

  get(bucket: number, digest: Int32Array, entry: DedupeEntry): boolean {
    const rows = this.#bucket(bucket).rows
    const at = rows.find(digest)
    if (at < 0) return false
    entry.time = rows.times[at] as number
    entry.originTime = rows.originTimes[at] as number
    entry.partition = rows.partitions[at] as number
    entry.offset = rows.offsets[at] as number
    return true
  }

  createBucket(start: number, end: number): number {
    const id = this.#nextId++
    this.#buckets.set(id, { start, end, rows: new DigestTable(true), ids: 0, filters: [] })
    return id
  }

  writeRows(bucket: number, rows: Buffer, count: number, hasOrigin: boolean): void {
    const table = this.#bucket(bucket).rows
    const digest = this.#digest
    const size = entryBytes(hasOrigin)
    for (let i = 0, at = 0; i < count; i++, at += size) {
      for (let word = 0; word < 4; word++) digest[word] = rows.readInt32BE(at + word * 4)
      const time = readTime(rows, at + 16)
      let entry = table.find(digest)
      if (entry < 0) entry = table.insert(digest, time)
      else if ((table.times[entry] as number) < time) table.times[entry] = time
      else continue
      if (hasOrigin) table.setOrigin(entry, readTime(rows, at + 24), rows.readInt32BE(at + 32), readTime(rows, at + 36))
      else table.setOrigin(entry, time, -1, -1)
    }
  }

  saveBucket(bucket: number, ids: number, filters: FilterChain): void {
    const target = this.#bucket(bucket)
    target.ids = ids
    for (let i = filters.firstChanged; i < filters.filters.length; i++) target.filters[i] = (filters.filters[i] as BloomFilter).toBlob()
  }

  dropBucket(bucket: number): void {
    this.#buckets.delete(bucket)
  }

  addSegments(keys: Iterable<Buffer>): void {
    for (const key of keys) this.#segments.set(key.toString('latin1'), key)
  }

  removeSegments(keys: Iterable<Buffer>): void {
    for (const key of keys) this.#segments.delete(key.toString('latin1'))
  }

  expiredSegments(endAtMost: number, limit: number): Buffer[] {
    const expired: Buffer[] = []
    for (const key of this.#segments.values()) if (keyBucketEnd(key) <= endAtMost) expired.push(key)
    return expired.sort((a, b) => Buffer.compare(a, b)).slice(0, limit)
  }

  clear(): void {
    this.#buckets.clear()
    this.#segments.clear()
  }

  #bucket(id: number): MemoryBucket {
    return this.#buckets.get(id) as MemoryBucket
  }
}
