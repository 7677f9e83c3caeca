/** Harm to the state file of a task whose owner is down. Both take the task's lock first: where somebody holds it, nothing is done. */
import { closeSync, existsSync, fstatSync, openSync, readSync, rmSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'

/** Types of b-tree pages in the SQLite file format. */
const PAGE_TYPES: ReadonlySet<number> = new Set([2, 5, 10, 13])
const MOST_PAGES = 8

/** Everything but the lock is gone. True: done. */
export function deleteState(stateDir: string, application: string, task: string): boolean {
  const folder = join(stateDir, application, task)
  return (
    underLock(folder, () => {
      if (!existsSync(join(folder, 'state.db'))) return 0
      for (const file of ['state.db', 'state.db-wal', 'state.db-shm', 'owner.json', 'quarantine', 'damaged'])
        rmSync(join(folder, file), { recursive: true, force: true })
      return 1
    }) === 1
  )
}

/** Turns the type byte of some pages, which any check of the file must find. Returns how many pages. The first page, by which the file is known as ours, stays. */
export function damageState(stateDir: string, application: string, task: string): number {
  const folder = join(stateDir, application, task)
  return underLock(folder, () => {
    const path = join(folder, 'state.db')
    if (!existsSync(path)) return 0
    // Pages in the write-ahead log would hide the damage: SQLite moves them into the file.
    const database = new Database(path)
    const pageSize = database.pragma('page_size', { simple: true }) as number
    database.pragma('wal_checkpoint(TRUNCATE)')
    database.close()
    const file = openSync(path, 'r+')
    try {
      const pages = Math.floor(fstatSync(file).size / pageSize)
      const byte = Buffer.alloc(1)
      let damaged = 0
      for (let page = pages - 1; page >= 1 && damaged < MOST_PAGES; page--) {
        readSync(file, byte, 0, 1, page * pageSize)
        const type = byte[0] ?? 0
        if (!PAGE_TYPES.has(type)) continue
        byte[0] = type ^ 0xff
        writeSync(file, byte, 0, 1, page * pageSize)
        damaged++
      }
      return damaged
    } finally {
      closeSync(file)
    }
  })
}

function underLock(folder: string, work: () => number): number {
  const path = join(folder, 'lock.db')
  if (!existsSync(path)) return 0
  const lock = new Database(path, { timeout: 0 })
  try {
    lock.exec('BEGIN EXCLUSIVE')
    return work()
  } catch {
    return 0
  } finally {
    lock.close()
  }
}
