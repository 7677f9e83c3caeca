/**
 * Compares the SQLite files of the tasks with replays of their committed changelog.
 *
 * A file may be behind (an earlier owner's), never ahead: what its checkpoint covers must be in it, and all that is in it must be in the changelog. Only ids
 * inside the window count: what has expired may be dropped on either side at any time.
 */
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { PackedReader, readTime } from '../../src/serde/dedupe-changelog.ts'
import type { RawRecord } from './bare-client.ts'
import type { Violation } from './comparison.ts'

const ENTRY_BYTES = 28
const DIGEST_BYTES = 16
/** One task by sub-topology: all inputs of the topology are one topic. */
const TASK_FOLDER = /^0_(\d+)(?:\.\d+)?$/

interface Write {
  readonly offset: number
  readonly digest: string
  readonly entry: string
  readonly time: number
}

/** The committed changelog of one partition, decoded. */
export class ChangelogReplay {
  readonly #writes: Write[] = []
  readonly #horizon: number
  #tombstones = 0
  /** Where the log ends, control records included. */
  end = 0

  /** Ids whose time is at `horizon` or before have expired by the stream time of the end. */
  constructor(horizon: number) {
    this.#horizon = horizon
  }

  /** Committed records by offset; tombstones name buckets that have expired. */
  add({ offset, value }: Pick<RawRecord, 'offset' | 'value'>): void {
    if (value === null) {
      this.#tombstones++
      return
    }
    const reader = new PackedReader()
    reader.open(value)
    if (!reader.hasOrigin) throw new Error(`changelog record at offset ${offset} has entries without origin`)
    for (let at = 8; reader.next(); at += DIGEST_BYTES + ENTRY_BYTES) {
      if (reader.time <= this.#horizon) continue
      this.#writes.push({
        offset,
        digest: value.toString('latin1', at, at + DIGEST_BYTES),
        entry: value.toString('latin1', at + DIGEST_BYTES, at + DIGEST_BYTES + ENTRY_BYTES),
        time: reader.time,
      })
    }
  }

  get tombstones(): number {
    return this.#tombstones
  }

  /** Live ids after the records below `end`; the newest time of an id wins. */
  upTo(end: number): Map<string, Write> {
    const ids = new Map<string, Write>()
    for (const write of this.#writes) {
      if (write.offset >= end) continue
      const before = ids.get(write.digest)
      if (before === undefined || write.time > before.time) ids.set(write.digest, write)
    }
    return ids
  }
}

export interface FileCheck {
  readonly path: string
  readonly task: number
  readonly checkpoint: number | undefined
  readonly ids: number
  /** Equal to the full replay, with its checkpoint at the end. */
  readonly isCurrent: boolean
}

/** All state files below `stateDir` of one application. */
export function checkStateFiles(
  stateDir: string,
  application: string,
  replays: readonly ChangelogReplay[],
  horizons: readonly number[],
): { readonly files: readonly FileCheck[]; readonly violations: readonly Violation[] } {
  const root = join(stateDir, application)
  const files: FileCheck[] = []
  const violations: Violation[] = []
  for (const folder of existsSync(root) ? readdirSync(root).sort() : []) {
    const task = Number(TASK_FOLDER.exec(folder)?.[1] ?? -1)
    const path = join(root, folder, 'state.db')
    const replay = replays[task]
    if (replay === undefined || !existsSync(path)) continue
    try {
      const { check, differences } = checkFile(path, task, replay, horizons[task] ?? -1)
      files.push(check)
      violations.push(...differences)
    } catch (error) {
      violations.push({ kind: 'state', text: `${path} could not be read: ${String(error)}` })
    }
  }
  return { files, violations }
}

function checkFile(path: string, task: number, replay: ChangelogReplay, horizon: number): { check: FileCheck; differences: Violation[] } {
  const { checkpoint, rows } = readRows(path, horizon)
  const differences: Violation[] = []
  const differs = (text: string): void =>
    void differences.push({ kind: 'state', text: `${path} (checkpoint ${checkpoint ?? 'none'}): ${text}` })
  const covered = replay.upTo(checkpoint ?? 0)
  const all = replay.upTo(Infinity)
  if ((checkpoint ?? 0) > replay.end) differs(`the checkpoint is past the changelog's end ${replay.end}`)
  for (const [digest, write] of covered) {
    const row = rows.get(digest)
    if (row === undefined) differs(`id ${hex(digest)}, time ${write.time}, of changelog offset ${write.offset} is missing`)
    else if (readTime(Buffer.from(row, 'latin1'), 0) < write.time)
      differs(`id ${hex(digest)} is older than changelog offset ${write.offset} says`)
  }
  let same = 0
  for (const [digest, row] of rows) {
    const write = all.get(digest)
    if (write === undefined)
      differs(`id ${hex(digest)}, time ${readTime(Buffer.from(row, 'latin1'), 0)}, is not in the committed changelog`)
    else if (write.entry === row) same++
    // An entry that a later one replaced, after this file was left behind.
    else if (write.time <= readTime(Buffer.from(row, 'latin1'), 0))
      differs(`id ${hex(digest)} has another entry than changelog offset ${write.offset}`)
  }
  const isCurrent = differences.length === 0 && checkpoint === replay.end && rows.size === all.size && same === all.size
  return { check: { path, task, checkpoint, ids: rows.size, isCurrent }, differences }
}

function readRows(path: string, horizon: number): { checkpoint: number | undefined; rows: Map<string, string> } {
  const database = new Database(path, { readonly: true, fileMustExist: true })
  try {
    const store = database.prepare<[], { checkpoint: number | null }>('SELECT checkpoint FROM stores').get()
    const buckets = database.prepare<[], { id: number }>('SELECT id FROM buckets').all()
    const rows = new Map<string, string>()
    for (const { id } of buckets) {
      const found = database.prepare<[], { id: Buffer; entry: Buffer }>(`SELECT id, entry FROM ids_${id}`).all()
      for (const row of found) {
        const time = readTime(row.entry, 0)
        if (time <= horizon) continue
        const digest = row.id.toString('latin1')
        const entry = row.entry.toString('latin1')
        const before = rows.get(digest)
        // Overlapping buckets: the newest time is the truth.
        if (before === undefined || readTime(Buffer.from(before, 'latin1'), 0) < time) rows.set(digest, entry)
      }
    }
    return { checkpoint: store?.checkpoint ?? undefined, rows }
  } finally {
    database.close()
  }
}

function hex(digest: string): string {
  return Buffer.from(digest, 'latin1').toString('hex')
}
