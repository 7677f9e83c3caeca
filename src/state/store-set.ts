/**
 * The stores of one task as one unit: they flush together, with their checkpoints, in one transaction of their storage.
 *
 * Owns: when a flush is due. Does not own: what the stores hold, where it lies (the storage), when a flush is safe (the runtime).
 *
 * Invariants:
 *  1. Memory is changed only after the storage committed, so a flush that fails can be repeated.
 *  2. After `close` nothing is read or written.
 */
import { invariant } from '../common/invariant.ts'
import type { Clock } from '../common/ports.ts'
import type { StoreSpec } from '../common/store-spec.ts'
import { STATE_DEFAULTS } from './defaults.ts'
import type { TaskStorage } from './dedupe-backing.ts'
import { LayeredDedupeStore } from './dedupe-store.ts'
import type { TaskState } from './store.ts'

/** What is left out has the default of the option table. */
export interface StoreSetOptions {
  /** Memtables of one task together, bytes; a flush is due above it. 8 MiB are about a quarter of a million ids. A flush holds up the event loop: keep it small. */
  readonly memtableBytes?: number | undefined
  /** A flush of a non-empty memtable is due after this long. It bounds what a restart has to replay. */
  readonly flushIntervalMs?: number | undefined
  /** Clean entries per store; 0 turns the cache off. */
  readonly cacheEntries?: number | undefined
  readonly clock: Clock
}

export class StoreSet implements TaskState {
  readonly stores: ReadonlyMap<string, LayeredDedupeStore>
  readonly #storage: TaskStorage
  readonly #clock: Clock
  readonly #memtableBytes: number
  readonly #flushIntervalMs: number
  readonly #onClose: () => void
  #lastFlush: number
  #closed = false

  constructor(storage: TaskStorage, specs: readonly StoreSpec[], options: StoreSetOptions, onClose: () => void = () => undefined) {
    this.#storage = storage
    this.#clock = options.clock
    this.#memtableBytes = options.memtableBytes ?? STATE_DEFAULTS.memtableBytes
    this.#flushIntervalMs = options.flushIntervalMs ?? STATE_DEFAULTS.flushIntervalMs
    this.#onClose = onClose
    this.#lastFlush = options.clock.monotonic()
    const stores = new Map<string, LayeredDedupeStore>()
    for (const spec of specs) {
      invariant(!stores.has(spec.name), 'S-store-names-differ', { name: spec.name })
      stores.set(spec.name, new LayeredDedupeStore(spec, storage.openDedupe(spec), options.cacheEntries))
    }
    this.stores = stores
  }

  get memoryBytes(): number {
    let bytes = 0
    for (const store of this.stores.values()) bytes += store.memoryBytes
    return bytes
  }

  get flushDue(): boolean {
    let bytes = 0
    for (const store of this.stores.values()) bytes += store.flushableBytes
    if (bytes >= this.#memtableBytes) return true
    return bytes > 0 && this.#clock.monotonic() - this.#lastFlush >= this.#flushIntervalMs
  }

  checkpoint(store: string): number | undefined {
    return this.#storage.readCheckpoint(this.#store(store).name)?.offset
  }

  checkpointTime(store: string): number | undefined {
    return this.#storage.readCheckpoint(this.#store(store).name)?.wallTime
  }

  flush(checkpoints: ReadonlyMap<string, number>, knownAt: number = this.#clock.now()): void {
    invariant(!this.#closed, 'S-open-state', { call: 'flush' })
    for (const name of checkpoints.keys()) this.#store(name)
    this.#storage.transaction(() => {
      for (const store of this.stores.values()) store.writeFlush()
      for (const [name, offset] of checkpoints) this.#storage.writeCheckpoint(name, { offset, wallTime: knownAt })
    })
    for (const store of this.stores.values()) store.completeFlush()
    this.#lastFlush = this.#clock.monotonic()
  }

  reset(name: string): void {
    invariant(!this.#closed, 'S-open-state', { call: 'reset' })
    const store = this.#store(name)
    this.#storage.transaction(() => {
      store.writeReset()
      this.#storage.writeCheckpoint(name, undefined)
    })
    store.completeReset()
  }

  close(): void {
    if (this.#closed) return
    this.#closed = true
    this.#storage.close()
    this.#onClose()
  }

  #store(name: string): LayeredDedupeStore {
    const store = this.stores.get(name)
    invariant(store !== undefined, 'S-known-store', { name })
    return store
  }
}
