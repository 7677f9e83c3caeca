/**
 * State in SQLite files: `<directory>/<task>/state.db`, with `lock.db` and `owner.json` beside it; slot locks in `<directory>/.slots/<slot>`.
 * A task whose lock another live process keeps starts in `<directory>/<task>.<n>` (generations.ts). The locks of those lie in `.generations/<task>.<n>` and stay,
 * so that a folder can be removed under its lock without anybody else holding a lock on a file that is gone. `directory` belongs to one application.
 */
import { mkdirSync, readdirSync, readFileSync, rmdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Clock, Timers } from '../../common/ports.ts'
import type { StoreSpec } from '../../common/store-spec.ts'
import { StateDirectoryError, StateLockedError, StoreMismatchError, errorMessage } from '../../errors/errors.ts'
import { STATE_DEFAULTS } from '../defaults.ts'
import { firstFreeGeneration, generationName, isGenerationName, MAX_GENERATIONS, type LockedReport } from '../generations.ts'
import { LockWaits, type LockOwner } from '../lock-wait.ts'
import { StoreSet, type StoreSetOptions } from '../store-set.ts'
import type { SlotLock, StateBackend, TaskState } from '../store.ts'
import { FileLock } from './file-lock.ts'
import { asStateError, isBusy, isDamage } from './sqlite-errors.ts'
import { ALWAYS_CHECKED_BYTES, QUARANTINE, TaskFile, quarantine, type QuarantineReport } from './task-file.ts'

export interface SqliteBackendOptions extends StoreSetOptions {
  /** The application's directory; created if missing. */
  readonly directory: string
  /** Written beside each lock, for the message of whoever finds it taken. */
  readonly owner: LockOwner
  readonly timers: Timers
  readonly clock: Clock
  /** How long to wait for another process to let go. Default: that of the option table. */
  readonly lockTimeoutMs?: number | undefined
  /** Files up to this size are checked for damage at every open, larger ones only after the machine itself went down. Default 32 MiB (about 0.1 s). */
  readonly alwaysCheckedBytes?: number | undefined
  /** Moves a file of another format version aside instead of refusing it; its task is rebuilt from the changelog. Default false. */
  readonly rebuildOtherFormats?: boolean | undefined
  /** A damaged file was moved aside; its task starts empty and is rebuilt from the changelog. */
  readonly onQuarantine?: ((report: QuarantineReport) => void) | undefined
  /** Another live process kept the task's lock for `lockTimeoutMs`; the task starts in a sibling folder. */
  readonly onLocked?: ((report: LockedReport) => void) | undefined
}

interface LockedFolder {
  readonly directory: string
  readonly lock: FileLock
}

export function createSqliteBackend(options: SqliteBackendOptions): StateBackend {
  return new SqliteBackend(options)
}

class SqliteBackend implements StateBackend {
  readonly #options: SqliteBackendOptions
  readonly #waits: LockWaits
  readonly #open = new Set<{ close(): void }>()

  constructor(options: SqliteBackendOptions) {
    this.#options = options
    this.#waits = new LockWaits(options.clock, options.timers, options.lockTimeoutMs ?? STATE_DEFAULTS.lockTimeoutMs)
  }

  async open(taskId: string, specs: readonly StoreSpec[]): Promise<TaskState> {
    const { directory, lock } = await this.#lockTask(taskId)
    try {
      const state = await this.#openStores(taskId, directory, lock, specs)
      this.#open.add(state)
      return state
    } catch (error) {
      lock.release()
      throw asStateError(error, directory)
    }
  }

  async lockSlot(slotName: string): Promise<SlotLock> {
    const directory = join(this.#options.directory, '.slots', folderName(slotName))
    const lock = await FileLock.acquire(directory, `slot ${slotName}`, this.#options.owner, this.#waits, this.#options.clock)
    const entry = { close: () => lock.release() }
    this.#open.add(entry)
    const note = join(directory, 'note.json')
    return {
      readNote: () => {
        try {
          return readFileSync(note, 'utf8')
        } catch {
          return undefined
        }
      },
      writeNote: (text) => {
        try {
          writeFileSync(note, text)
        } catch {
          // It counts attempts of bad records; a full disk shows elsewhere.
        }
      },
      release: () => {
        this.#open.delete(entry)
        lock.release()
      },
    }
  }

  close(): void {
    this.#waits.cancel()
    for (const entry of [...this.#open]) entry.close()
    this.#open.clear()
  }

  async #lockTask(taskId: string): Promise<LockedFolder> {
    const { owner, clock } = this.#options
    const directory = join(this.#options.directory, taskFolderName(taskId))
    try {
      const lock = await FileLock.acquire(directory, `state of task ${taskId}`, owner, this.#waits, clock)
      this.#removeGenerations(taskId)
      return { directory, lock }
    } catch (error) {
      if (!(error instanceof StateLockedError)) throw error
      const holder = FileLock.ownerOf(directory)
      const sibling = firstFreeGeneration(taskId, error, (name) => this.#lockGeneration(name))
      try {
        this.#options.onLocked?.({ taskId, owner: holder, directory: sibling.directory })
      } catch (failure) {
        sibling.lock.release()
        throw failure
      }
      return sibling
    }
  }

  #lockGeneration(name: string): LockedFolder | undefined {
    const { owner, clock } = this.#options
    const lock = FileLock.attempt(join(this.#options.directory, '.generations', name), owner, clock)
    if (lock === undefined) return undefined
    const directory = join(this.#options.directory, name)
    try {
      mkdirSync(directory, { recursive: true })
      return { directory, lock }
    } catch (error) {
      lock.release()
      throw asStateError(error, directory)
    }
  }

  /** Siblings that nobody holds are of no use any more: the task's own place is ours again. Files in quarantine stay (task-file.ts). */
  #removeGenerations(taskId: string): void {
    try {
      const present = new Set(readdirSync(this.#options.directory))
      for (let generation = 1; generation <= MAX_GENERATIONS; generation++) {
        const name = generationName(taskId, generation)
        if (!present.has(name)) continue
        const folder = this.#lockGeneration(name)
        if (folder === undefined) continue
        try {
          const files = readdirSync(folder.directory)
          for (const file of files) if (file !== QUARANTINE) rmSync(join(folder.directory, file), { recursive: true, force: true })
          if (!files.includes(QUARANTINE)) rmdirSync(folder.directory)
        } finally {
          folder.lock.release()
        }
      }
    } catch {
      // It costs disk space and no answer; the next open tries again.
    }
  }

  /** We hold the lock, so a busy file means a program that does not ask for it (an sqlite3 shell, a backup): bounded wait, then an error, never a wipe. */
  #openStores(taskId: string, directory: string, lock: FileLock, specs: readonly StoreSpec[]): Promise<TaskState> {
    return this.#waits.until<TaskState>(
      () => {
        try {
          return this.#openOnce(directory, lock, specs)
        } catch (error) {
          if (isBusy(error) || isBusy(causeOf(error))) return undefined
          const isOtherFormat = error instanceof StoreMismatchError && error.code === 'state-format'
          if (!isDamage(error) && !(isOtherFormat && this.#options.rebuildOtherFormats === true)) throw error
          this.#options.onQuarantine?.({ taskId, reason: errorMessage(error), movedTo: quarantine(directory) })
          return this.#openOnce(directory, lock, specs)
        }
      },
      (waitedMs) =>
        new StateLockedError(`${join(directory, 'state.db')} is held open by another program; waited ${waitedMs} ms`, {
          code: 'state-busy',
          remedy: 'Close that program (an sqlite3 shell, a backup); the file is used by one process at a time.',
        }),
    )
  }

  #openOnce(directory: string, lock: FileLock, specs: readonly StoreSpec[]): StoreSet {
    const checkedBytes = lock.crashedWithMachine ? Infinity : (this.#options.alwaysCheckedBytes ?? ALWAYS_CHECKED_BYTES)
    const file = TaskFile.open(directory, checkedBytes, () => lock.release())
    try {
      const state: StoreSet = new StoreSet(file, specs, this.#options, () => this.#open.delete(state))
      return state
    } catch (error) {
      // Only the connection: the lock is still needed, to move the file aside and open a new one.
      file.database.close()
      throw error
    }
  }
}

function causeOf(error: unknown): unknown {
  return error instanceof Error ? error.cause : undefined
}

/** The siblings' names are theirs. */
function taskFolderName(taskId: string): string {
  if (!isGenerationName(taskId)) return folderName(taskId)
  throw new StateDirectoryError(`${JSON.stringify(taskId)} cannot name a task: it would be a sibling generation of another one`, {
    code: 'state-name',
    remedy: 'Use a name that does not end in a dot and a number.',
  })
}

/** One path segment, and none that could leave the directory or hide in it. */
function folderName(name: string): string {
  if (!/^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$/.test(name)) {
    throw new StateDirectoryError(`${JSON.stringify(name)} cannot name a folder of the state directory`, {
      code: 'state-name',
      remedy: 'Use letters, digits, dot, underscore and dash, starting with a letter, digit or underscore.',
    })
  }
  return name
}
