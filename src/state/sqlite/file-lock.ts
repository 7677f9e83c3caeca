/**
 * An exclusive lock on a directory that its process cannot leave behind: an exclusive transaction on `lock.db`, which is a kernel lock and ends with the
 * process, kill -9 included. `owner.json` beside it only says who holds it; one that is left behind means that its writer did not close cleanly.
 *
 * Nothing else may open `lock.db` in this process other than through SQLite: closing any descriptor of a file drops this process's locks on it (POSIX).
 */
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { uptime } from 'node:os'
import Database from 'better-sqlite3'
import type { Clock } from '../../common/ports.ts'
import { StateLockedError } from '../../errors/errors.ts'
import type { LockOwner, LockWaits } from '../lock-wait.ts'
import { asStateError, isBusy } from './sqlite-errors.ts'

const BOOT_ID = '/proc/sys/kernel/random/boot_id'

interface OwnerRecord extends LockOwner {
  /** Wall time, ISO 8601. */
  readonly since: string
  readonly bootId: string
}

export class FileLock {
  readonly directory: string
  /** The last owner neither closed nor merely died: the machine itself went down under it. */
  readonly crashedWithMachine: boolean
  readonly #database: Database.Database
  #released = false

  private constructor(directory: string, database: Database.Database, crashedWithMachine: boolean) {
    this.directory = directory
    this.#database = database
    this.crashedWithMachine = crashedWithMachine
  }

  /** Creates `directory` and takes its lock, waiting for it. Throws StateLockedError naming the owner, or StateDirectoryError. */
  static acquire(directory: string, what: string, owner: LockOwner, waits: LockWaits, clock: Clock): Promise<FileLock> {
    return waits.until(
      () => FileLock.attempt(directory, owner, clock),
      (waitedMs) => locked(directory, what, waitedMs),
    )
  }

  /** Creates `directory` and takes its lock if nobody holds it. Throws StateDirectoryError. */
  static attempt(directory: string, owner: LockOwner, clock: Clock): FileLock | undefined {
    try {
      mkdirSync(directory, { recursive: true })
      const database = tryLock(join(directory, 'lock.db'))
      if (database === undefined) return undefined
      try {
        const bootId = currentBootId(clock)
        const previous = readOwner(directory)
        const record: OwnerRecord = {
          slot: owner.slot,
          pid: owner.pid,
          host: owner.host,
          since: new Date(clock.now()).toISOString(),
          bootId,
        }
        writeFileSync(join(directory, 'owner.json'), `${JSON.stringify(record)}\n`)
        return new FileLock(directory, database, previous !== undefined && previous.bootId !== bootId)
      } catch (error) {
        database.close()
        throw error
      }
    } catch (error) {
      throw asStateError(error, directory)
    }
  }

  /** What the holder of a lock wrote about itself; undefined: no readable note. */
  static ownerOf(directory: string): LockOwner | undefined {
    const owner = readOwner(directory)
    return owner === undefined ? undefined : { slot: owner.slot, pid: owner.pid, host: owner.host }
  }

  /** Idempotent. Never throws: it is called while something else is being given up, often because of an error that must not be hidden. */
  release(): void {
    if (this.#released) return
    this.#released = true
    try {
      rmSync(join(this.directory, 'owner.json'), { force: true })
    } catch {
      // The disk became read-only, or the folder another user's. The note is for people; left behind it costs one more check after a restart of the machine.
    }
    try {
      this.#database.close()
    } catch {
      // The lock ends with the process at the latest; until then others start in a sibling generation.
    }
  }
}

/** undefined: someone else holds it. */
function tryLock(path: string): Database.Database | undefined {
  // No busy time-out: SQLite would wait inside the call and hold up the event loop.
  const database = new Database(path, { timeout: 0 })
  try {
    database.exec('BEGIN EXCLUSIVE')
    return database
  } catch (error) {
    database.close()
    if (isBusy(error)) return undefined
    throw error
  }
}

function locked(directory: string, what: string, waitedMs: number): StateLockedError {
  const owner = readOwner(directory)
  const who = owner === undefined ? 'another process' : `slot ${owner.slot}, process ${owner.pid} on ${owner.host}, since ${owner.since}`
  return new StateLockedError(`${what} in ${directory} is in use by ${who}; waited ${waitedMs} ms`, {
    code: 'state-locked',
    remedy:
      'Stop that process, or give this one another slot or another stateDir. The lock ends with its process; there is nothing to delete.',
  })
}

function readOwner(directory: string): OwnerRecord | undefined {
  try {
    return JSON.parse(readFileSync(join(directory, 'owner.json'), 'utf8')) as OwnerRecord
  } catch {
    // Missing, or being written right now: the note is for people, the lock decides.
    return undefined
  }
}

/** Changes with every start of the machine. Elsewhere than on Linux: the minute it was started in. */
function currentBootId(clock: Clock): string {
  if (existsSync(BOOT_ID)) return readFileSync(BOOT_ID, 'utf8').trim()
  return `started-${Math.round((clock.now() - uptime() * 1_000) / 60_000)}`
}
