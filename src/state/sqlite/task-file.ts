/**
 * The SQLite file of one task.
 *
 * Owns: connection, schema, identity (format and hash version), check for damage, quarantine. Does not own: the lock (FileLock; held by whoever opens this),
 * the rows of a store (SqliteDedupeBacking).
 *
 * Why these settings. WAL with `synchronous=NORMAL`: SQLite syncs at its own checkpoints only, some 1-2 per flush, and the file is whole after a kill and after a
 * power cut alike; what a power cut may take is the last flushes, rows and changelog checkpoint together, and the changelog has them. OFF would save those few
 * syncs and need a check of the whole file after every crash. `locking_mode=EXCLUSIVE` saves 2 us per look-up and the shared-memory file.
 *
 * Check at open: `quick_check` reads the whole file (about 4 ms per MB), so it runs on files up to 32 MiB always (about a million ids, 120 ms), on larger
 * ones only after the machine itself went down under the last owner. Damage SQLite meets later, in a look-up, stops the task with CorruptedStoreError and
 * leaves a note, upon which the next open moves the file aside. Not found by either: a flipped bit inside a row that leaves its table in order (SQLite pages
 * carry no checksum); filters do carry one.
 *
 * Invariants:
 *  1. A file is moved aside on proof of damage only, never because it is busy, full, foreign or of another version.
 *  2. Nothing is deleted: damaged files stay in `quarantine/` until a person removes them.
 */
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import Database, { type Statement } from 'better-sqlite3'
import { failpoint } from '../../common/failpoints.ts'
import type { DedupeStoreSpec } from '../../common/store-spec.ts'
import { CorruptedStoreError, StoreMismatchError, errorMessage } from '../../errors/errors.ts'
import { HASH_VERSION } from '../../serde/digest.ts'
import type { Checkpoint, DedupeBacking, TaskStorage } from '../dedupe-backing.ts'
import { ROWS_PER_BATCH } from '../dedupe-flush.ts'
import { checkSpec } from '../spec-check.ts'
import { SqliteDedupeBacking } from './sqlite-dedupe-backing.ts'
import { asStateError, isDamage } from './sqlite-errors.ts'

export const FILE_FORMAT = 1
/** Folder of damaged files, beside the state file. */
export const QUARANTINE = 'quarantine'
export const ALWAYS_CHECKED_BYTES = 32 * 1024 ** 2
/** 'mlrc': tells our files from others'. */
const APPLICATION_ID = 0x6d6c7263

const SCHEMA = `
  CREATE TABLE meta(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
  CREATE TABLE stores(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, spec TEXT NOT NULL, checkpoint INTEGER, checkpoint_time INTEGER);
  CREATE TABLE buckets(id INTEGER PRIMARY KEY AUTOINCREMENT, store INTEGER NOT NULL, start INTEGER NOT NULL, "end" INTEGER NOT NULL, ids INTEGER NOT NULL);
  CREATE TABLE filters(bucket INTEGER NOT NULL, position INTEGER NOT NULL, bits BLOB NOT NULL, PRIMARY KEY(bucket, position));
  CREATE TABLE segments(store INTEGER NOT NULL, key BLOB NOT NULL, PRIMARY KEY(store, key)) WITHOUT ROWID;
  CREATE TABLE numbers(i INTEGER PRIMARY KEY);
  WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ${ROWS_PER_BATCH - 1}) INSERT INTO numbers SELECT i FROM n;
  INSERT INTO meta VALUES ('format', ${FILE_FORMAT}), ('hash', ${HASH_VERSION});
  PRAGMA application_id = ${APPLICATION_ID};
`

/** What `onQuarantine` is told. The store starts empty and is rebuilt from its changelog. */
export interface QuarantineReport {
  readonly taskId: string
  readonly reason: string
  /** Where the damaged file is now. */
  readonly movedTo: string
}

interface StoreRow {
  readonly id: number
  readonly spec: string
}

export class TaskFile implements TaskStorage {
  readonly database: Database.Database
  readonly #path: string
  readonly #directory: string
  readonly #onClose: () => void
  readonly #statements = new Map<string, Statement>()
  #closed = false

  private constructor(database: Database.Database, directory: string, onClose: () => void) {
    this.database = database
    this.#directory = directory
    this.#path = statePath(directory)
    this.#onClose = onClose
  }

  /** Opens or creates the file; checks one of at most `checkedBytes` for damage. Throws SQLite's own error when it is busy or damaged, StoreMismatchError when it is not ours or of another version. */
  static open(directory: string, checkedBytes: number, onClose: () => void): TaskFile {
    const path = statePath(directory)
    if (existsSync(damageNote(directory)))
      throw new CorruptedStoreError(`state file ${path} was found damaged while it was in use`, { code: 'state-damaged' })
    const size = existsSync(path) ? statSync(path).size : 0
    const database = new Database(path, { timeout: 0 })
    try {
      database.pragma('locking_mode = EXCLUSIVE')
      database.pragma('journal_mode = WAL')
      database.pragma('synchronous = NORMAL')
      if (size > 0 && size <= checkedBytes) checkPages(database, path)
      checkIdentity(database, path)
      return new TaskFile(database, directory, onClose)
    } catch (error) {
      database.close()
      throw error
    }
  }

  openDedupe(spec: DedupeStoreSpec): DedupeBacking {
    return this.run((database) => {
      const stored = database.prepare<[string], StoreRow>('SELECT id, spec FROM stores WHERE name = ?').get(spec.name)
      if (stored === undefined) {
        const { lastInsertRowid } = database.prepare('INSERT INTO stores(name, spec) VALUES (?, ?)').run(spec.name, JSON.stringify(spec))
        return new SqliteDedupeBacking(this, Number(lastInsertRowid))
      }
      checkSpec(JSON.parse(stored.spec) as DedupeStoreSpec, spec, this.#path)
      database.prepare('UPDATE stores SET spec = ? WHERE id = ? AND spec <> ?').run(JSON.stringify(spec), stored.id, JSON.stringify(spec))
      return new SqliteDedupeBacking(this, stored.id)
    })
  }

  transaction(work: () => void): void {
    this.run((database) => {
      failpoint('sqlite:begin')
      database.exec('BEGIN IMMEDIATE')
      try {
        work()
        failpoint('sqlite:rows')
        database.exec('COMMIT')
        failpoint('sqlite:commit')
      } catch (error) {
        if (database.inTransaction) database.exec('ROLLBACK')
        throw error
      }
    })
  }

  readCheckpoint(store: string): Checkpoint | undefined {
    return this.run(() => {
      const row = this.statement('SELECT checkpoint, checkpoint_time FROM stores WHERE name = ?').get(store) as
        { checkpoint: number | null; checkpoint_time: number | null } | undefined
      if (row === undefined || row.checkpoint === null) return undefined
      return { offset: row.checkpoint, wallTime: row.checkpoint_time ?? 0 }
    })
  }

  writeCheckpoint(store: string, checkpoint: Checkpoint | undefined): void {
    this.statement('UPDATE stores SET checkpoint = ?, checkpoint_time = ? WHERE name = ?').run(
      checkpoint?.offset ?? null,
      checkpoint?.wallTime ?? null,
      store,
    )
  }

  close(): void {
    if (this.#closed) return
    this.#closed = true
    try {
      this.database.close()
    } catch {
      // What SQLite could not move from its log into the file now, it moves at the next open; what was never flushed, the changelog has.
    }
    this.#onClose()
  }

  /** A prepared statement, kept. */
  statement(sql: string): Statement {
    let statement = this.#statements.get(sql)
    if (statement === undefined) {
      statement = this.database.prepare(sql)
      this.#statements.set(sql, statement)
    }
    return statement
  }

  run<T>(work: (database: Database.Database) => T): T {
    try {
      return work(this.database)
    } catch (error) {
      throw this.failed(error)
    }
  }

  /** Translates; proven damage is noted, so that the next open moves the file aside whatever a check says. */
  failed(error: unknown): unknown {
    if (isDamage(error)) {
      try {
        writeFileSync(damageNote(this.#directory), `${errorMessage(error)}\n`)
      } catch {
        // The error itself is on its way out and says the same.
      }
    }
    return asStateError(error, this.#path)
  }
}

/** Moves the state file aside, with all that belongs to it. Its connection must be closed. Returns its new path. */
export function quarantine(directory: string): string {
  const folder = join(directory, QUARANTINE)
  mkdirSync(folder, { recursive: true })
  const taken = new Set(readdirSync(folder))
  let number = 1
  while (taken.has(`state.db-${number}`)) number++
  const target = join(folder, `state.db-${number}`)
  for (const suffix of ['', '-wal', '-shm']) {
    const from = statePath(directory) + suffix
    if (existsSync(from)) renameSync(from, target + suffix)
  }
  rmSync(damageNote(directory), { force: true })
  return target
}

function statePath(directory: string): string {
  return join(directory, 'state.db')
}

function damageNote(directory: string): string {
  return join(directory, 'damaged')
}

function checkPages(database: Database.Database, path: string): void {
  const result = database.pragma('quick_check(1)', { simple: true })
  if (result !== 'ok') throw new CorruptedStoreError(`state file ${path} failed its check: ${String(result)}`, { code: 'state-damaged' })
}

/** Creates the schema in an empty file; refuses any other that is not of exactly this version. */
function checkIdentity(database: Database.Database, path: string): void {
  const tables = database.prepare<[], number>('SELECT count(*) FROM sqlite_schema').pluck().get() ?? 0
  if (tables === 0) {
    database.exec('BEGIN IMMEDIATE')
    database.exec(SCHEMA)
    database.exec('COMMIT')
    return
  }
  if (database.pragma('application_id', { simple: true }) !== APPLICATION_ID) {
    throw new StoreMismatchError(`${path} is an SQLite file, but not one of millrace`, {
      code: 'state-foreign',
      remedy: 'Choose another stateDir, or move that file away.',
    })
  }
  const versions = new Map(
    database
      .prepare<[], { name: string; value: number }>('SELECT name, value FROM meta')
      .all()
      .map(({ name, value }) => [name, value]),
  )
  for (const [name, expected] of [
    ['format', FILE_FORMAT],
    ['hash', HASH_VERSION],
  ] as const) {
    const found = versions.get(name)
    if (found === expected) continue
    throw new StoreMismatchError(`state file ${path} has ${name} version ${found ?? 'none'}, this version of millrace reads ${expected}`, {
      code: `state-${name}`,
      remedy:
        name === 'format'
          ? "Run the version of millrace that wrote it, or set storeFormat to 'rebuild': the state is then rebuilt from the changelog."
          : 'Run the version of millrace that wrote it: the changelog has the same hashes, and a rebuild would not help.',
    })
  }
}
