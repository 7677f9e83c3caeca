/**
 * One partition of a topic: records, control markers, and who may see what.
 *
 * Invariants:
 *  PL1. Offsets only grow; a marker takes one, like a record.
 *  PL2. A read_committed reader sees nothing at or above the first record of an open transaction (the last stable offset), and nothing that was aborted.
 */
import type { HeaderList } from '../../../broker/port.ts'

/** A transaction as one partition sees it. */
export interface LogTransaction {
  outcome: 'open' | 'committed' | 'aborted'
  readonly firstOffset: number
}

export interface LogRecord {
  readonly timestamp: number
  readonly key: Buffer | null
  readonly value: Buffer | null
  readonly headers: HeaderList
}

interface DataEntry extends LogRecord {
  readonly offset: number
  readonly kind: 'data'
  readonly transaction: LogTransaction | undefined
}

interface ControlEntry {
  readonly offset: number
  readonly kind: 'commit' | 'abort'
}

type LogEntry = DataEntry | ControlEntry

export interface LogRead {
  readonly records: readonly (LogRecord & { readonly offset: number })[]
  /** Where reading goes on: past the records returned, and past what nobody may see behind them. */
  readonly next: number
}

/** Batches of one producer, for exactly one append each whatever is sent again. */
interface Sequence {
  readonly epoch: number
  next: number
}

export type AppendResult = 'appended' | 'duplicate' | 'gap'

export class PartitionLog {
  logStart = 0
  #entries: LogEntry[] = []
  #end = 0
  readonly #open = new Map<number, LogTransaction>()
  readonly #sequences = new Map<number, Sequence>()

  /** One past the last entry, open transactions included. */
  get highWatermark(): number {
    return this.#end
  }

  /** Everything below is decided. */
  get lastStable(): number {
    let stable = this.#end
    for (const { firstOffset } of this.#open.values()) stable = Math.min(stable, firstOffset)
    return stable
  }

  /** Whether records of this producer are not decided yet. */
  isOpen(producerId: number): boolean {
    return this.#open.has(producerId)
  }

  append(records: readonly LogRecord[]): void {
    for (const record of records) this.#entries.push({ ...record, offset: this.#end++, kind: 'data', transaction: undefined })
  }

  /** A batch of a transactional producer. `sequence`: the number of its first record, counted from 0 in each epoch. */
  appendTransactional(records: readonly LogRecord[], producerId: number, epoch: number, sequence: number): AppendResult {
    let known = this.#sequences.get(producerId)
    if (known === undefined || known.epoch !== epoch) {
      known = { epoch, next: 0 }
      this.#sequences.set(producerId, known)
    }
    if (sequence < known.next) return 'duplicate'
    if (sequence > known.next) return 'gap'
    known.next += records.length
    let transaction = this.#open.get(producerId)
    if (transaction === undefined) {
      transaction = { outcome: 'open', firstOffset: this.#end }
      this.#open.set(producerId, transaction)
    }
    for (const record of records) this.#entries.push({ ...record, offset: this.#end++, kind: 'data', transaction })
    return 'appended'
  }

  writeMarker(producerId: number, kind: 'commit' | 'abort'): void {
    const transaction = this.#open.get(producerId)
    if (transaction !== undefined) transaction.outcome = kind === 'commit' ? 'committed' : 'aborted'
    this.#open.delete(producerId)
    this.#entries.push({ offset: this.#end++, kind })
  }

  /** Read_committed, from `from` on. */
  read(from: number, maxRecords: number): LogRead {
    const stable = this.lastStable
    const records: DataEntry[] = []
    let next = Math.max(from, this.logStart)
    for (let index = this.#indexOf(from); index < this.#entries.length; index++) {
      const entry = this.#entries[index] as LogEntry
      if (entry.offset >= stable) break
      const isVisible = entry.kind === 'data' && (entry.transaction === undefined || entry.transaction.outcome === 'committed')
      if (isVisible) {
        if (records.length === maxRecords) return { records, next }
        records.push(entry)
      }
      next = entry.offset + 1
    }
    return { records, next: Math.max(next, stable) }
  }

  /** DeleteRecords, or retention. */
  deleteBefore(offset: number): void {
    this.logStart = Math.max(this.logStart, Math.min(offset, this.#end))
    this.#entries.splice(0, this.#indexOf(this.logStart))
  }

  /** Of each key the last committed record stays; aborted records go; so do tombstones older than `tombstonesBefore`. The last entry always stays. */
  compact(tombstonesBefore: number): void {
    const stable = this.lastStable
    const newest = new Map<string, number>()
    const keyOf = ({ key }: DataEntry): string => (key === null ? '' : key.toString('latin1'))
    for (const entry of this.#entries) {
      if (entry.offset >= stable) break
      if (entry.kind === 'data' && entry.transaction?.outcome !== 'aborted') newest.set(keyOf(entry), entry.offset)
    }
    this.#entries = this.#entries.filter((entry) => {
      if (entry.offset >= stable || entry.offset === this.#end - 1 || entry.kind !== 'data') return true
      if (entry.transaction?.outcome === 'aborted' || newest.get(keyOf(entry)) !== entry.offset) return false
      return entry.value !== null || entry.timestamp >= tombstonesBefore
    })
  }

  /** Index of the first entry at or above the offset. */
  #indexOf(offset: number): number {
    let low = 0
    let high = this.#entries.length
    while (low < high) {
      const middle = (low + high) >> 1
      if ((this.#entries[middle] as LogEntry).offset < offset) low = middle + 1
      else high = middle
    }
    return low
  }
}
