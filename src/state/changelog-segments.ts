/**
 * Which packed records a dedupe store has in its changelog, so that they can be forgotten there when their bucket expires.
 *
 * Owns: the keys that changed since the last flush, and a bounded queue of expired keys that wait for a tombstone. All other keys are on disk only: at ten
 * transactions a second and a window of a day there are 864,000 of them.
 * Does not own: the entries of those records.
 *
 * Invariants:
 *  1. A key is announced only after the transaction that wrote its record committed; a tombstone counts only after its transaction did. `abort` undoes both.
 *  2. At most MAX_TOMBSTONES per transaction; the rest waits for the next.
 *  3. A crash between a tombstone and the next flush loses nothing: the replay from the checkpoint holds that tombstone again.
 */
import type { Buffer } from 'node:buffer'
import { keyBucketEnd } from '../serde/dedupe-changelog.ts'
import type { DedupeBacking } from './dedupe-backing.ts'

/** Bounded work per commit. */
export const MAX_TOMBSTONES = 64
/** Expired keys that wait in memory; more of them wait on disk. */
const MAX_QUEUED = 4_096
/** What one key takes: the buffer, its name as a string, the entry of a Map. */
const BYTES_PER_KEY = 200

export class ChangelogSegments {
  /** Written since the last flush, not yet on disk. */
  readonly #added = new Map<string, Buffer>()
  /** Forgotten since the last flush, perhaps still on disk. */
  readonly #removed = new Map<string, Buffer>()
  /** Expired, waiting for a tombstone. A Map keeps the order. */
  readonly #expired = new Map<string, Buffer>()
  /** Earliest bucket end among `#added` that is not in `#expired` yet. */
  #firstEnd = Infinity
  readonly #preparedKeys: Buffer[] = []
  readonly #preparedTombstones: Buffer[] = []

  /** Bytes that a flush frees. */
  get bytes(): number {
    return (this.#added.size + this.#removed.size) * BYTES_PER_KEY
  }

  /** Tombstones that wait. */
  get waiting(): number {
    return this.#expired.size
  }

  /** The open transaction writes a record under this key. */
  prepareKey(key: Buffer): void {
    this.#preparedKeys.push(key)
  }

  /** Keys to write tombstones for in the open transaction. */
  prepareTombstones(): readonly Buffer[] {
    for (const key of this.#expired.values()) {
      if (this.#preparedTombstones.length === MAX_TOMBSTONES) break
      this.#preparedTombstones.push(key)
    }
    return this.#preparedTombstones
  }

  commit(): void {
    for (const key of this.#preparedKeys) this.remember(key)
    for (const key of this.#preparedTombstones) this.forget(key)
    this.abort()
  }

  abort(): void {
    this.#preparedKeys.length = 0
    this.#preparedTombstones.length = 0
  }

  /** A record with this key is in the changelog. */
  remember(key: Buffer): void {
    this.#added.set(key.toString('latin1'), key)
    this.#firstEnd = Math.min(this.#firstEnd, keyBucketEnd(key))
  }

  /** A tombstone for this key is in the changelog. Always noted for the disk too: in a replay the key can be both freshly added and stored. */
  forget(key: Buffer): void {
    const name = key.toString('latin1')
    this.#added.delete(name)
    this.#expired.delete(name)
    this.#removed.set(name, key)
  }

  /** Buckets that end at `endAtMost` or before have expired. What does not fit into the queue comes back from the disk (`flushed`). */
  expire(endAtMost: number): void {
    if (this.#firstEnd > endAtMost || this.#expired.size >= MAX_QUEUED) return
    let firstEnd = Infinity
    for (const [name, key] of this.#added) {
      const end = keyBucketEnd(key)
      if (end <= endAtMost) {
        this.#expired.set(name, key)
        if (this.#expired.size >= MAX_QUEUED) return
      } else if (end < firstEnd) firstEnd = end
    }
    this.#firstEnd = firstEnd
  }

  /** Inside the flush's transaction. */
  writeTo(backing: DedupeBacking): void {
    if (this.#added.size > 0) backing.addSegments(this.#added.values())
    if (this.#removed.size > 0) backing.removeSegments(this.#removed.values())
  }

  /** The flush is on disk. Fetches the next expired keys from there; right now no tombstone is unaccounted for, so none can be queued twice. */
  flushed(backing: DedupeBacking, endAtMost: number): void {
    this.#added.clear()
    this.#removed.clear()
    this.#firstEnd = Infinity
    if (this.#expired.size >= MAX_QUEUED || endAtMost === -Infinity) return
    for (const key of backing.expiredSegments(endAtMost, MAX_QUEUED)) this.#expired.set(key.toString('latin1'), key)
  }

  clear(): void {
    this.abort()
    this.#added.clear()
    this.#removed.clear()
    this.#expired.clear()
    this.#firstEnd = Infinity
  }
}
