/**
 * State without a disk, for the test driver and the simulation. The same stores run on it; only the rows, segments and checkpoints lie in a `MemoryDisk`.
 * A disk outlives its backends, so a crash is "drop the backend, open another on the same disk": what was not flushed is gone, as with SQLite.
 */
import type { Timers } from '../../common/ports.ts'
import type { DedupeStoreSpec, StoreSpec } from '../../common/store-spec.ts'
import { StateLockedError } from '../../errors/errors.ts'
import type { Checkpoint, DedupeBacking, TaskStorage } from '../dedupe-backing.ts'
import { STATE_DEFAULTS } from '../defaults.ts'
import { firstFreeGeneration, generationName, MAX_GENERATIONS, type LockedReport } from '../generations.ts'
import { LockWaits, type LockOwner } from '../lock-wait.ts'
import { checkSpec } from '../spec-check.ts'
import { StoreSet, type StoreSetOptions } from '../store-set.ts'
import type { SlotLock, StateBackend, TaskState } from '../store.ts'
import { MemoryDedupeBacking } from './memory-backing.ts'

interface MemoryTask {
  readonly specs: Map<string, DedupeStoreSpec>
  readonly backings: Map<string, MemoryDedupeBacking>
  readonly checkpoints: Map<string, Checkpoint>
}

/** What survives a crash of a simulated process: flushed state by task. Locks do not: the backend that held them releases them when it is closed. */
export class MemoryDisk {
  readonly tasks = new Map<string, MemoryTask>()
  readonly locks = new Map<string, LockOwner>()
  /** By slot name. */
  readonly notes = new Map<string, string>()
}

export interface MemoryBackendOptions extends StoreSetOptions {
  readonly owner: LockOwner
  readonly timers: Timers
  /** Default: that of the option table. */
  readonly lockTimeoutMs?: number | undefined
  /** Default: a new, empty one. */
  readonly disk?: MemoryDisk | undefined
  /** Another backend kept the task's lock for `lockTimeoutMs`; the task starts in a sibling. */
  readonly onLocked?: ((report: LockedReport) => void) | undefined
}

export function createMemoryBackend(options: MemoryBackendOptions): StateBackend {
  return new MemoryBackend(options)
}

class MemoryBackend implements StateBackend {
  readonly #options: MemoryBackendOptions
  readonly #disk: MemoryDisk
  readonly #waits: LockWaits
  readonly #release = new Set<() => void>()

  constructor(options: MemoryBackendOptions) {
    this.#options = options
    this.#disk = options.disk ?? new MemoryDisk()
    this.#waits = new LockWaits(options.clock, options.timers, options.lockTimeoutMs ?? STATE_DEFAULTS.lockTimeoutMs)
  }

  async open(taskId: string, specs: readonly StoreSpec[]): Promise<TaskState> {
    const { name, release } = await this.#lockTask(taskId)
    try {
      const state: TaskState = new StoreSet(new MemoryTaskStorage(this.#task(name), name, release), specs, this.#options, () =>
        this.#release.delete(close),
      )
      const close = () => state.close()
      this.#release.add(close)
      return state
    } catch (error) {
      release()
      throw error
    }
  }

  async lockSlot(slotName: string): Promise<SlotLock> {
    const unlock = await this.#lock(`slot ${slotName}`)
    const release = () => {
      unlock()
      this.#release.delete(release)
    }
    this.#release.add(release)
    const { notes } = this.#disk
    return { readNote: () => notes.get(slotName), writeNote: (text) => void notes.set(slotName, text), release }
  }

  close(): void {
    this.#waits.cancel()
    for (const release of [...this.#release]) release()
  }

  async #lockTask(taskId: string): Promise<{ name: string; release: () => void }> {
    try {
      const release = await this.#lock(`task ${taskId}`)
      for (let generation = 1; generation <= MAX_GENERATIONS; generation++) {
        const name = generationName(taskId, generation)
        if (!this.#disk.locks.has(`task ${name}`)) this.#disk.tasks.delete(name)
      }
      return { name: taskId, release }
    } catch (error) {
      if (!(error instanceof StateLockedError)) throw error
      const owner = this.#disk.locks.get(`task ${taskId}`)
      return firstFreeGeneration(taskId, error, (name) => {
        const release = this.#tryLock(`task ${name}`)
        if (release === undefined) return undefined
        try {
          this.#options.onLocked?.({ taskId, owner, directory: name })
        } catch (failure) {
          release()
          throw failure
        }
        return { name, release }
      })
    }
  }

  #tryLock(what: string): (() => void) | undefined {
    const locks = this.#disk.locks
    if (locks.has(what)) return undefined
    const mine = { ...this.#options.owner }
    locks.set(what, mine)
    return () => {
      if (locks.get(what) === mine) locks.delete(what)
    }
  }

  async #lock(what: string): Promise<() => void> {
    return this.#waits.until(
      () => this.#tryLock(what),
      (waitedMs) => {
        const owner = this.#disk.locks.get(what)
        return new StateLockedError(
          `state of ${what} is in use by slot ${owner?.slot}, process ${owner?.pid} on ${owner?.host}; waited ${waitedMs} ms`,
          { code: 'state-locked' },
        )
      },
    )
  }

  #task(taskId: string): MemoryTask {
    let task = this.#disk.tasks.get(taskId)
    if (task === undefined) {
      task = { specs: new Map(), backings: new Map(), checkpoints: new Map() }
      this.#disk.tasks.set(taskId, task)
    }
    return task
  }
}

class MemoryTaskStorage implements TaskStorage {
  readonly #task: MemoryTask
  readonly #taskId: string
  readonly #release: () => void

  constructor(task: MemoryTask, taskId: string, release: () => void) {
    this.#task = task
    this.#taskId = taskId
    this.#release = release
  }

  openDedupe(spec: DedupeStoreSpec): DedupeBacking {
    const { specs, backings } = this.#task
    const stored = specs.get(spec.name)
    if (stored !== undefined) checkSpec(stored, spec, `task ${this.#taskId}`)
    specs.set(spec.name, spec)
    const backing = backings.get(spec.name) ?? new MemoryDedupeBacking()
    backings.set(spec.name, backing)
    return backing
  }

  transaction(work: () => void): void {
    work()
  }

  readCheckpoint(store: string): Checkpoint | undefined {
    return this.#task.checkpoints.get(store)
  }

  writeCheckpoint(store: string, checkpoint: Checkpoint | undefined): void {
    if (checkpoint === undefined) this.#task.checkpoints.delete(store)
    else this.#task.checkpoints.set(store, checkpoint)
  }

  close(): void {
    this.#release()
  }
}
