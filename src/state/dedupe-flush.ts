/** How a memtable becomes rows: grouped by time bucket, sorted by digest, handed over in batches. */
import { Buffer } from 'node:buffer'
import { entryBytes } from '../serde/dedupe-changelog.ts'
import { FilterChain } from './bloom-filter.ts'
import type { DedupeBacking } from './dedupe-backing.ts'
import type { DigestTable } from './digest-table.ts'

export interface LiveBucket {
  readonly id: number
  readonly start: number
  readonly end: number
  /** Rows, an estimate: an id that was refreshed inside its bucket counts again. */
  ids: number
  readonly filters: FilterChain
}

export type MemtableWrite = readonly { readonly bucket: LiveBucket; readonly added: number; readonly isNew: boolean }[]

/** Rows per statement: 4,096 x 24 bytes is a 98 KB blob, and more gained nothing. */
export const ROWS_PER_BATCH = 4_096
/** Entry numbers below this fit beside 32 bits of digest in one exact double, which sorts natively. */
const SORT_LIMIT = 2 ** 21

/**
 * Writes all live entries to `backing` and to the filters of their buckets. Filters may keep bits of a flush that fails, which costs a false positive and
 * no answer; everything else of the caller's state is changed after the commit, from the returned list.
 */
export function writeMemtable(
  memtable: DigestTable,
  buckets: readonly LiveBucket[],
  backing: DedupeBacking,
  windowMs: number,
  bucketMs: number,
  now: number,
): MemtableWrite {
  const groups = groupByBucket(memtable, windowMs, bucketMs, now)
  const rows = Buffer.allocUnsafe(Math.min(ROWS_PER_BATCH, Math.max(1, memtable.count)) * entryBytes(memtable.keepOrigin))
  const write: { bucket: LiveBucket; added: number; isNew: boolean }[] = []
  // Ascending by end, so that a new bucket can be sized like the one before it.
  let expectedIds = buckets[0]?.ids ?? 0
  for (const end of [...groups.keys()].sort((a, b) => a - b)) {
    const entries = groups.get(end) as number[]
    const start = end - bucketMs
    const known = buckets.find((bucket) => bucket.end === end && bucket.start === start)
    const bucket = known ?? { id: backing.createBucket(start, end), start, end, ids: 0, filters: new FilterChain() }
    bucket.filters.reserve(entries.length, Math.ceil(expectedIds * 1.25))
    for (let from = 0; from < entries.length; from += SORT_LIMIT) {
      writeSorted(memtable, sortByDigest(memtable, entries, from, Math.min(entries.length, from + SORT_LIMIT)), bucket, backing, rows)
    }
    backing.saveBucket(bucket.id, bucket.ids + entries.length, bucket.filters)
    write.push({ bucket, added: entries.length, isNew: known === undefined })
    expectedIds = bucket.ids + entries.length
  }
  return write
}

function groupByBucket(memtable: DigestTable, windowMs: number, bucketMs: number, now: number): Map<number, number[]> {
  const groups = new Map<number, number[]>()
  const times = memtable.times
  let lastEnd = Number.NaN
  let group: number[] = []
  for (let entry = 0; entry < memtable.count; entry++) {
    const time = times[entry] as number
    if (time + windowMs <= now) continue
    const end = (Math.floor(time / bucketMs) + 1) * bucketMs
    if (end !== lastEnd) {
      lastEnd = end
      const known = groups.get(end)
      group = known ?? []
      if (known === undefined) groups.set(end, group)
    }
    group.push(entry)
  }
  return groups
}

/** Entry numbers in ascending order of their digests' first 32 bits: near enough to write pages in sequence. */
function sortByDigest(memtable: DigestTable, entries: readonly number[], from: number, to: number): Float64Array {
  const keys = new Float64Array(to - from)
  const words = memtable.words
  for (let i = from; i < to; i++) keys[i - from] = ((words[(entries[i] as number) * 4] as number) >>> 0) * SORT_LIMIT + (i - from)
  keys.sort()
  for (let i = 0; i < keys.length; i++) keys[i] = entries[from + ((keys[i] as number) % SORT_LIMIT)] as number
  return keys
}

function writeSorted(memtable: DigestTable, order: Float64Array, bucket: LiveBucket, backing: DedupeBacking, rows: Buffer): void {
  const size = entryBytes(memtable.keepOrigin)
  const words = memtable.words
  for (let from = 0; from < order.length; from += ROWS_PER_BATCH) {
    const count = Math.min(ROWS_PER_BATCH, order.length - from)
    for (let i = 0; i < count; i++) {
      const entry = order[from + i] as number
      memtable.writeEntry(entry, rows, i * size, memtable.keepOrigin)
      bucket.filters.add(words[entry * 4 + 1] as number, words[entry * 4 + 2] as number)
    }
    backing.writeRows(bucket.id, rows, count, memtable.keepOrigin)
  }
}
