/**
 * What a dedupe store needs below its memtable. `sqlite/` and `memory/` implement it. Everything that writes is called inside `TaskStorage.transaction` only,
 * so one flush is one step on disk.
 */
import type { Buffer } from 'node:buffer'
import type { DedupeStoreSpec } from '../common/store-spec.ts'
import type { BloomFilter, FilterChain } from './bloom-filter.ts'

/** One id as a layer knows it; reused as an out-parameter. `partition` is -1 when no origin is known. */
export interface DedupeEntry {
  time: number
  originTime: number
  partition: number
  offset: number
}

/** Ids with `start <= time < end`. Buckets written under another window may overlap these. */
export interface StoredBucket {
  readonly id: number
  readonly start: number
  readonly end: number
  readonly ids: number
  readonly filters: readonly BloomFilter[]
}

export interface DedupeBacking {
  load(): readonly StoredBucket[]
  /** Looks a digest up in one bucket and fills `entry`. */
  get(bucket: number, digest: Int32Array, entry: DedupeEntry): boolean
  createBucket(start: number, end: number): number
  /** `count` rows in the changelog's entry layout, ascending by digest. An id that is there already keeps its newest time. */
  writeRows(bucket: number, rows: Buffer, count: number, hasOrigin: boolean): void
  saveBucket(bucket: number, ids: number, filters: FilterChain): void
  dropBucket(bucket: number): void
  /** Keys of packed changelog records that exist and are not yet forgotten by a tombstone. */
  addSegments(keys: Iterable<Buffer>): void
  removeSegments(keys: Iterable<Buffer>): void
  /** At most `limit` keys of buckets that end at `endAtMost` or before, oldest first. */
  expiredSegments(endAtMost: number, limit: number): Buffer[]
  /** Forgets all buckets and keys of this store. */
  clear(): void
}

export interface Checkpoint {
  readonly offset: number
  readonly wallTime: number
}

/** The place of one task's state: a SQLite file, or memory. */
export interface TaskStorage {
  openDedupe(spec: DedupeStoreSpec): DedupeBacking
  /** All of `work` or nothing. */
  transaction(work: () => void): void
  readCheckpoint(store: string): Checkpoint | undefined
  writeCheckpoint(store: string, checkpoint: Checkpoint | undefined): void
  /** Releases file and lock. Idempotent. */
  close(): void
}
