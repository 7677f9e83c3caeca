/**
 * State as the runtime and the tasks see it. `sqlite/` and `memory/` implement it; one contract suite runs over both.
 *
 * Life of a write (DESIGN 3, 4): open write-set -> prepare (changes leave as data, for the changelog) -> commit (merged into the memtable, after the
 * Kafka transaction committed) or abort (dropped) -> flush (memtable rows and checkpoint in one SQLite transaction).
 *
 * Invariants:
 *  S1. Nothing of an open write-set reaches the memtable, a cache, a filter or the disk before `commit()`.
 *  S2. The disk is never ahead of the committed changelog (X2): only `flush` writes, and only what was committed before its checkpoint was read.
 *  S3. Reads see, newest first: write-set, memtable, clean cache, filter + disk.
 *  S4. Damage met while reading or writing throws CorruptedStoreError; opening the task anew moves the file aside and starts it empty.
 *  S5. Memory is bounded: `memoryBytes` counts write-set, memtable and what else waits for a flush; the owner flushes or commits before the budget is exceeded.
 */

import type { StoreSpec } from '../common/store-spec.ts'

/** Takes the changes of a write-set as changelog records. A null value is a tombstone. The buffers are not reused by the store. */
export type ChangeSink = (key: Buffer, value: Buffer | null) => void

export interface ChangelogRecord {
  readonly offset: number
  readonly key: Buffer
  readonly value: Buffer | null
}

export interface StateStore {
  readonly name: string
  /** True when a commit of this store would write to its changelog. */
  readonly hasChanges: boolean
  /** True between the first write of an entry and commit or abort: waiting tombstones alone do not count. */
  readonly isWriteSetOpen: boolean
  /** Bytes held by the write-set, the memtable and what else waits for a flush. */
  readonly memoryBytes: number
  /** Live entries in all layers; an estimate where layers overlap. */
  readonly size: number
  /** Start of one record's work: `rollbackRecord` returns the write-set to here. */
  beginRecord(): void
  rollbackRecord(): void
  /** Hands the write-set's changes to `sink`. `nonce` is unique for ever (16 bytes). The write-set stays open until commit or abort; calling twice is an error. */
  prepare(nonce: Buffer, sink: ChangeSink): void
  /** The Kafka transaction committed: merge the write-set. */
  commit(): void
  /** It did not: drop the write-set. Nothing else to undo (S1). */
  abort(): void
  /**
   * The task's committed stream time (or the wall clock, for a store that goes by it) at its assignment; ms. Told once, before the restore: what has expired
   * by then is neither read nor kept. Only ever moves forward, and survives `reset`. Must not be ahead of what was committed: expired is forgotten for good.
   */
  resumeAt(now: number): void
  /** Applies committed changelog records during a restore, in offset order. Only while no write-set is open. */
  restore(records: readonly ChangelogRecord[]): void
}

/** Where the first record of an id came from. Kept only when the store was opened with `keepOrigin`. */
export interface Origin {
  readonly time: number
  readonly partition: number
  readonly offset: number
}

/** Verdict of `observe`. */
export type DedupeVerdict = 'first' | 'duplicate'

export interface DedupeStore extends StateStore {
  /**
   * Records `id` with `time` and says whether it was new. An id is remembered while `now < time of the first + window` (half-open); `now` is the task's
   * stream time, the present record included (or the wall clock), and never goes back within a task. With `refresh` a duplicate moves the time forward.
   * `partition` and `offset` are where the record was read.
   */
  observe(id: string | Uint8Array, time: number, now: number, partition: number, offset: number): DedupeVerdict
  /** The first record of the id that `observe` just called a duplicate. */
  lastOrigin(): Origin | undefined
  /** Hits by layer since the start, for metrics. */
  readonly hits: {
    readonly writeSet: number
    readonly memtable: number
    readonly cache: number
    readonly disk: number
    readonly filterFalsePositives: number
  }
}

/** The state of one task: its stores, in one file. */
export interface TaskState {
  /** The stores, by name. */
  readonly stores: ReadonlyMap<string, StateStore>
  /** Bytes in all write-sets and memtables. */
  readonly memoryBytes: number
  /** The memtable is large or old enough to be written (budget, or `flushIntervalMs`). */
  readonly flushDue: boolean
  /** Next changelog offset to restore from, by store; undefined: nothing on disk yet. */
  checkpoint(store: string): number | undefined
  /** Wall time up to which that checkpoint knew the changelog, ms: what was deleted since may have left nothing but a tombstone behind it. */
  checkpointTime(store: string): number | undefined
  /**
   * Writes the memtables and, in the same SQLite transaction, the checkpoints given. Never with an open write-set. `knownAt`: wall time, ms, at which the
   * changelog was known up to them; now, unless a restore that has not come to its end is kept.
   */
  flush(checkpoints: ReadonlyMap<string, number>, knownAt?: number): void
  /** Empties one store, disk included: its checkpoint is too old or its log start has passed. */
  reset(store: string): void
  /** Releases file and lock. What was not flushed is lost, by design: the changelog has it. Idempotent, never throws. */
  close(): void
}

/** The exclusive lock of one worker slot, and a note that its next holder finds. */
export interface SlotLock {
  /** The last note of a holder of this slot; undefined when there is none. May be cut off: a process can die while it writes. */
  readNote(): string | undefined
  /** Replaces the note, at once. Survives the process, not the loss of the disk. Never throws: a note that cannot be written is none. */
  writeNote(text: string): void
  release(): void
}

export interface StateBackend {
  /**
   * Opens (or creates) the state of one task. Waits at most `lockTimeoutMs` for another process to let go; after that the task starts in a sibling place of
   * its own, which is reported through `onLocked` with the owner's name, and catches up from the changelog there. What the other process holds is not touched.
   * A later open that finds the task's own place free uses it and removes siblings that nobody holds.
   * Throws StateLockedError (names the owner; 16 siblings are taken too, or another program has the file open), StateDirectoryError (not writable), StoreMismatchError (format, hash or schema version changed).
   * A damaged file is moved aside and reported through `onQuarantine`; the store then starts empty.
   */
  open(taskId: string, specs: readonly StoreSpec[]): Promise<TaskState>
  /** Takes the exclusive lock of one worker slot, or throws StateLockedError after `lockTimeoutMs`: one slot has one worker. Released, without ever throwing, by `close()` or the end of the process. */
  lockSlot(slotName: string): Promise<SlotLock>
  close(): void
}
