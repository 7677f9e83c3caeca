/** What every state backend promises (src/state/store.ts). One body, run over each backend by state.test.ts. */
import { randomBytes } from 'node:crypto'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Clock, Timers } from '../../src/common/ports.ts'
import type { DedupeStoreSpec } from '../../src/common/store-spec.ts'
import { StateDirectoryError, StateLockedError, StoreMismatchError } from '../../src/errors/errors.ts'
import { MAX_VALUE_BYTES } from '../../src/serde/dedupe-changelog.ts'
import { LayeredDedupeStore } from '../../src/state/dedupe-store.ts'
import { MAX_GENERATIONS, type LockedReport } from '../../src/state/generations.ts'
import type { LockOwner } from '../../src/state/lock-wait.ts'
import type { StoreSetOptions } from '../../src/state/store-set.ts'
import type { ChangelogRecord, DedupeStore, StateBackend, TaskState } from '../../src/state/store.ts'

export const WINDOW_MS = 80_000
const T0 = 1_700_000_000_000

export interface BackendSettings extends StoreSetOptions {
  readonly owner: LockOwner
  readonly timers: Timers
  readonly lockTimeoutMs?: number
  readonly onLocked?: (report: LockedReport) => void
}

/** One place on disk (or its stand-in). Backends made from it see each other's flushed state. */
export interface StatePlace {
  backend(settings: BackendSettings): StateBackend
  remove(): void
}

/** A clock that is moved by hand, and timers that fire when it is. */
export class ManualTime implements Clock, Timers {
  time = 1_000
  readonly #due: { at: number; callback: () => void }[] = []
  now(): number {
    return 1_600_000_000_000 + this.time
  }
  monotonic(): number {
    return this.time
  }
  after(delayMs: number, callback: () => void): () => void {
    const timer = { at: this.time + delayMs, callback }
    this.#due.push(timer)
    return () => {
      const at = this.#due.indexOf(timer)
      if (at >= 0) this.#due.splice(at, 1)
    }
  }
  get pending(): number {
    return this.#due.length
  }
  /** Moves on in small steps, letting promises run in between. */
  async advance(ms: number): Promise<void> {
    const until = this.time + ms
    while (this.time < until) {
      this.time = Math.min(until, this.time + 5)
      for (const timer of this.#due.filter(({ at }) => at <= this.time)) {
        this.#due.splice(this.#due.indexOf(timer), 1)
        timer.callback()
      }
      await new Promise((resolve) => setImmediate(resolve))
    }
  }
}

export function dedupeSpec(changes: Partial<DedupeStoreSpec> = {}): DedupeStoreSpec {
  return { kind: 'dedupe', name: 'dedupe', windowMs: WINDOW_MS, refresh: false, keepOrigin: false, version: 1, ...changes }
}

/** A changelog topic as the store sees it. */
export class Changelog {
  readonly records: ChangelogRecord[] = []
  /** prepare, "Kafka commits", commit. Returns what was written. */
  commit(store: DedupeStore): ChangelogRecord[] {
    const written = this.prepare(store)
    this.records.push(...written)
    store.commit()
    return written
  }
  prepare(store: DedupeStore): ChangelogRecord[] {
    const written: ChangelogRecord[] = []
    store.prepare(randomBytes(16), (key, value) => written.push({ offset: this.records.length + written.length, key, value }))
    return written
  }
  /** The last value of each key, tombstones removed: what a compacted topic may be left with. */
  compacted(): ChangelogRecord[] {
    const last = new Map<string, ChangelogRecord>()
    for (const record of this.records) {
      last.delete(record.key.toString('hex'))
      if (record.value !== null) last.set(record.key.toString('hex'), record)
    }
    return [...last.values()].sort((a, b) => a.offset - b.offset)
  }
}

export function stateContract(name: string, makePlace: () => StatePlace): void {
  describe(`state in ${name}`, () => {
    let place: StatePlace
    let time: ManualTime
    let changelog: Changelog
    let backends: StateBackend[]
    let reports: LockedReport[]
    let state: TaskState
    let store: DedupeStore

    beforeEach(() => {
      place = makePlace()
      time = new ManualTime()
      changelog = new Changelog()
      backends = []
      reports = []
    })
    afterEach(() => {
      for (const backend of backends) backend.close()
      place.remove()
      expect(time.pending).toBe(0)
    })

    function backend(changes: Partial<BackendSettings> = {}): StateBackend {
      const made = place.backend({
        clock: time,
        timers: time,
        owner: { slot: 'worker-1', pid: 4711, host: 'here' },
        lockTimeoutMs: 0,
        onLocked: (report) => reports.push(report),
        ...changes,
      })
      backends.push(made)
      return made
    }
    async function open(spec: DedupeStoreSpec = dedupeSpec(), changes: Partial<BackendSettings> = {}): Promise<void> {
      state = await backend(changes).open('0_3', [spec])
      store = state.stores.get(spec.name) as DedupeStore
    }
    /** The process dies and another takes over: what was not flushed comes from the changelog. */
    async function reopen(spec: DedupeStoreSpec = dedupeSpec()): Promise<void> {
      state.close()
      await open(spec)
      store.restore(changelog.records.slice(state.checkpoint(spec.name) ?? 0))
    }
    function flush(): void {
      state.flush(new Map([[store.name, changelog.records.length]]))
    }
    const observe = (id: string, at: number, now = at) => store.observe(id, at, now, 0, 0)

    it('calls the first record of an id first and the next a duplicate, also before anything is committed', async () => {
      await open()
      expect(observe('a', T0)).toBe('first')
      expect(observe('a', T0 + 1)).toBe('duplicate')
      expect(observe('b', T0 + 1)).toBe('first')
      expect(store.hits.writeSet).toBe(1)
    })

    describe('remembers an id up to, and not at, the end of its window', () => {
      const layers: Record<string, () => Promise<void> | void> = {
        'in the write-set': () => undefined,
        'in the memtable': () => void changelog.commit(store),
        'on disk': () => {
          changelog.commit(store)
          flush()
        },
        'in the cache': () => {
          changelog.commit(store)
          flush()
          expect(observe('a', T0 + 1)).toBe('duplicate')
          expect(store.hits.disk).toBe(1)
        },
        'on disk, opened again': async () => {
          changelog.commit(store)
          flush()
          await reopen()
        },
        'in a restored changelog': async () => {
          changelog.commit(store)
          await reopen()
        },
      }
      it.each(Object.entries(layers))('%s', async (_layer, arrange) => {
        await open()
        expect(observe('a', T0)).toBe('first')
        await arrange()
        expect(observe('a', T0 + WINDOW_MS - 1)).toBe('duplicate')
        expect(observe('a', T0 + WINDOW_MS)).toBe('first')
        expect(observe('a', T0 + WINDOW_MS)).toBe('duplicate')
      })
    })

    it('answers from the layer that holds the id', async () => {
      await open()
      observe('a', T0)
      changelog.commit(store)
      observe('a', T0)
      expect(store.hits).toMatchObject({ writeSet: 0, memtable: 1, cache: 0, disk: 0 })
      flush()
      observe('a', T0)
      observe('a', T0)
      expect(store.hits).toMatchObject({ writeSet: 0, memtable: 1, cache: 1, disk: 1 })
    })

    it('does not keep an id that is older than the window when it arrives', async () => {
      await open()
      observe('new', T0)
      expect(observe('old', T0 - WINDOW_MS, T0)).toBe('first')
      expect(observe('old', T0 - WINDOW_MS, T0)).toBe('first')
      expect(observe('late', T0 - WINDOW_MS + 1, T0)).toBe('first')
      expect(observe('late', T0 - WINDOW_MS + 1, T0)).toBe('duplicate')
    })

    it('can be asked about an id without remembering it, on every layer', async () => {
      await open()
      expect(store).toBeInstanceOf(LayeredDedupeStore)
      const knows = (now: number) => (store as LayeredDedupeStore).knows('a', now)
      expect([knows(T0), store.hasChanges]).toEqual([false, false])
      observe('a', T0)
      const askBoth = () => expect([knows(T0 + WINDOW_MS - 1), knows(T0 + WINDOW_MS)]).toEqual([true, false])
      askBoth()
      changelog.commit(store)
      askBoth()
      flush()
      askBoth()
      askBoth()
      expect(store.hits).toEqual({ writeSet: 0, memtable: 0, cache: 0, disk: 0, filterFalsePositives: 0 })
    })

    it('undoes one record of the write-set and nothing of the records before it', async () => {
      await open(dedupeSpec({ refresh: true }))
      store.beginRecord()
      observe('kept', T0)
      store.beginRecord()
      expect(observe('kept', T0 + 5_000)).toBe('duplicate')
      for (let i = 0; i < 3_000; i++) expect(observe(`dropped-${i}`, T0 + 5_000)).toBe('first')
      store.rollbackRecord()
      store.beginRecord()
      for (let i = 0; i < 3_000; i++) expect(observe(`dropped-${i}`, T0 + 5_000)).toBe('first')
      // The refresh was undone too: the window runs from T0.
      expect(observe('kept', T0 + WINDOW_MS)).toBe('first')
    })

    it('forgets an aborted write-set, a prepared one too', async () => {
      await open()
      observe('a', T0)
      changelog.commit(store)
      observe('b', T0)
      store.abort()
      observe('c', T0)
      changelog.prepare(store)
      store.abort()
      expect(store.hasChanges).toBe(false)
      expect([observe('a', T0), observe('b', T0), observe('c', T0)]).toEqual(['duplicate', 'first', 'first'])
    })

    it('expires nothing by the time that an aborted record reached', async () => {
      await open()
      observe('a', T0)
      changelog.commit(store)
      flush()
      observe('future', T0 + 10 * WINDOW_MS)
      store.abort()
      observe('b', T0 + 1)
      changelog.commit(store)
      flush()
      expect(observe('a', T0 + 1)).toBe('duplicate')
    })

    it('refuses work out of order: two prepares, a write after prepare, a commit without one, a flush or restore with an open write-set', async () => {
      await open()
      observe('a', T0)
      expect(() => store.commit()).toThrow('S-commit-prepared')
      expect(() => flush()).toThrow('S2-flush-without-write-set')
      expect(() => store.restore([])).toThrow('S-restore-without-write-set')
      changelog.prepare(store)
      expect(() => changelog.prepare(store)).toThrow('S-prepare-once')
      expect(() => observe('b', T0)).toThrow('S1-observe-after-prepare')
      store.abort()
      expect(() => observe('a', Number.NaN)).toThrow(RangeError)
    })

    it('counts a refreshed window from the latest duplicate, on every layer and after a replay', async () => {
      const spec = dedupeSpec({ refresh: true })
      await open(spec)
      observe('a', T0)
      const step = WINDOW_MS - 1
      expect(observe('a', T0 + step)).toBe('duplicate')
      changelog.commit(store)
      expect(observe('a', T0 + 2 * step)).toBe('duplicate')
      changelog.commit(store)
      flush()
      expect(observe('a', T0 + 3 * step)).toBe('duplicate')
      // A late duplicate does not take the window back.
      expect(observe('a', T0, T0 + 3 * step)).toBe('duplicate')
      changelog.commit(store)
      await reopen(spec)
      expect(observe('a', T0 + 4 * step)).toBe('duplicate')
      changelog.commit(store)
      flush()
      await reopen(spec)
      expect(observe('a', T0 + 4 * step + WINDOW_MS)).toBe('first')
    })

    it('does not answer from a cached copy that a refresh has made old', async () => {
      await open(dedupeSpec({ refresh: true }))
      observe('a', T0)
      changelog.commit(store)
      flush()
      observe('a', T0 + 10)
      store.abort()
      observe('a', T0 + 30_000)
      changelog.commit(store)
      flush()
      expect(observe('a', T0 + WINDOW_MS + 29_999)).toBe('duplicate')
    })

    it('names the first record of a duplicate when origins are kept, on every layer', async () => {
      const spec = dedupeSpec({ keepOrigin: true, refresh: true })
      await open(spec)
      const origin = { time: T0, partition: 2, offset: 4_294_967_301 }
      const again = (at: number) => {
        expect(store.observe('a', at, at, 7, 99)).toBe('duplicate')
        expect(store.lastOrigin()).toEqual(origin)
      }
      expect(store.observe('a', origin.time, origin.time, origin.partition, origin.offset)).toBe('first')
      expect(store.lastOrigin()).toBeUndefined()
      again(T0 + 1)
      changelog.commit(store)
      again(T0 + 1)
      flush()
      again(T0 + 1)
      again(T0 + 1)
      again(T0 + 20_000)
      changelog.commit(store)
      again(T0 + 20_000)
      flush()
      again(T0 + 20_000)
      await reopen(spec)
      again(T0 + 20_000)
      state.reset('dedupe')
      store.restore(changelog.compacted())
      again(T0 + 20_000)
    })

    it('keeps origins from when they are asked for; earlier ids have none', async () => {
      await open()
      observe('before', T0)
      observe('replayed', T0)
      changelog.commit(store)
      flush()
      const spec = dedupeSpec({ keepOrigin: true })
      await reopen(spec)
      expect(observe('before', T0)).toBe('duplicate')
      expect(store.lastOrigin()).toBeUndefined()
      store.observe('after', T0, T0, 1, 5)
      changelog.commit(store)
      flush()
      expect(observe('after', T0)).toBe('duplicate')
      expect(store.lastOrigin()).toEqual({ time: T0, partition: 1, offset: 5 })
      await reopen()
      expect([observe('after', T0), observe('before', T0)]).toEqual(['duplicate', 'duplicate'])
      expect(store.lastOrigin()).toBeUndefined()
    })

    it('loses what was committed and not flushed, and gets it back from the changelog', async () => {
      await open()
      expect(state.checkpoint('dedupe')).toBeUndefined()
      observe('flushed', T0)
      changelog.commit(store)
      flush()
      const flushedAt = time.now()
      observe('committed', T0)
      changelog.commit(store)
      time.time += 50
      state.close()
      await open()
      expect(state.checkpoint('dedupe')).toBe(1)
      expect(state.checkpointTime('dedupe')).toBe(flushedAt)
      expect(observe('flushed', T0)).toBe('duplicate')
      expect(observe('committed', T0)).toBe('first')
      store.abort()
      store.restore(changelog.records.slice(1))
      expect(observe('committed', T0)).toBe('duplicate')
    })

    it('is not changed by a replay of records it already knows', async () => {
      await open(dedupeSpec({ refresh: true }))
      for (let i = 0; i < 200; i++) {
        observe(`id-${i % 50}`, T0 + i * 300)
        if (i % 10 === 9) changelog.commit(store)
        if (i % 70 === 69) flush()
      }
      store.restore(changelog.records)
      flush()
      store.restore(changelog.records)
      for (let id = 0; id < 50; id++) {
        const last = T0 + (150 + id) * 300
        expect(observe(`id-${id}`, last + WINDOW_MS - 1)).toBe('duplicate')
        store.abort()
        expect(observe(`id-${id}`, last + WINDOW_MS)).toBe('first')
        store.abort()
      }
    })

    it('keeps the newest time of an id when older records of it are applied again', async () => {
      await open(dedupeSpec({ refresh: true }))
      observe('a', T0)
      changelog.commit(store)
      observe('a', T0 + 5_000)
      changelog.commit(store)
      store.restore(changelog.records.slice(0, 1))
      expect(observe('a', T0 + WINDOW_MS + 4_999)).toBe('duplicate')
      store.abort()
      flush()
      store.restore(changelog.records.slice(0, 1))
      flush()
      expect(observe('a', T0 + WINDOW_MS + 4_999)).toBe('duplicate')
    })

    it('does not answer from a cached copy that is older than what was restored', async () => {
      await open(dedupeSpec({ refresh: true }))
      observe('a', T0)
      changelog.commit(store)
      flush()
      observe('a', T0)
      expect(store.hits.disk).toBe(1)
      observe('a', T0 + 30_000)
      const elsewhere = changelog.prepare(store)
      store.abort()
      observe('a', T0)
      store.restore(elsewhere)
      flush()
      expect(observe('a', T0 + WINDOW_MS)).toBe('duplicate')
    })

    it('writes tombstones also for records that another owner wrote', async () => {
      await open()
      for (const id of ['a', 'b', 'c']) {
        observe(id, T0)
        changelog.commit(store)
      }
      state.reset('dedupe')
      store.restore(changelog.records)
      observe('later', T0 + 3 * WINDOW_MS)
      changelog.commit(store)
      observe('later still', T0 + 3 * WINDOW_MS)
      changelog.commit(store)
      expect(changelog.compacted().length).toBe(2)
    })

    it('packs many ids into few records of at most 256 KB, one bucket each', async () => {
      await open()
      for (let i = 0; i < 25_000; i++) observe(`id-${i}`, T0 + (i % 2) * (WINDOW_MS / 2))
      const written = changelog.commit(store)
      expect(written.length).toBe(4)
      expect(new Set(written.map(({ key }) => key.toString('hex'))).size).toBe(4)
      for (const { value } of written) expect(value?.length).toBeLessThanOrEqual(MAX_VALUE_BYTES)
      state.reset('dedupe')
      store.restore(changelog.records)
      let known = 0
      for (let i = 0; i < 25_000; i++) if (observe(`id-${i}`, T0, T0 + WINDOW_MS / 2) === 'duplicate') known++
      expect(known).toBe(25_000)
    })

    it('drops expired ids from every layer and writes each tombstone once, 64 per transaction', async () => {
      await open()
      for (let i = 0; i < 100; i++) {
        observe(`old-${i}`, T0 + i)
        changelog.commit(store)
        if (i === 49) flush()
      }
      expect(store.size).toBe(100)
      const later = T0 + 3 * WINDOW_MS
      const tombstones: string[] = []
      const commit = () =>
        tombstones.push(...changelog.commit(store).flatMap(({ key, value }) => (value === null ? [key.toString('hex')] : [])))
      observe('new', later)
      commit()
      expect(store.size).toBe(1)
      flush()
      // Enough wait to be worth a transaction of their own; the last few are not.
      expect(store.hasChanges).toBe(true)
      commit()
      expect(tombstones.length).toBe(64)
      expect(store.hasChanges).toBe(false)
      observe('newer', later)
      commit()
      observe('newest', later)
      commit()
      flush()
      await reopen()
      observe('and more', later)
      commit()
      flush()
      observe('and yet more', later)
      commit()
      expect(tombstones.length).toBe(100)
      expect(new Set(tombstones).size).toBe(100)
      expect(changelog.compacted().length).toBe(5)
    })

    it('writes the tombstones of an aborted transaction again', async () => {
      await open()
      observe('old', T0)
      const [old] = changelog.commit(store)
      observe('new', T0 + 3 * WINDOW_MS)
      changelog.commit(store)
      observe('a', T0 + 3 * WINDOW_MS)
      expect(changelog.prepare(store).filter(({ value }) => value === null).length).toBe(1)
      store.abort()
      observe('b', T0 + 3 * WINDOW_MS)
      expect(changelog.commit(store).filter(({ value }) => value === null)).toMatchObject([{ key: old?.key }])
      observe('c', T0 + 3 * WINDOW_MS)
      expect(changelog.commit(store).filter(({ value }) => value === null)).toEqual([])
    })

    it('frees memory when the stream time leaps, without a flush', async () => {
      await open()
      for (let i = 0; i < 50_000; i++) observe(`id-${i}`, T0)
      changelog.commit(store)
      const before = state.memoryBytes
      observe('much later', T0 + 10 * WINDOW_MS)
      changelog.commit(store)
      expect(state.memoryBytes).toBeLessThan(before / 100)
    })

    it('takes a shorter and a longer window over in place', async () => {
      await open()
      observe('a', T0)
      observe('b', T0 + 30_000)
      changelog.commit(store)
      flush()
      await reopen(dedupeSpec({ windowMs: 20_000 }))
      expect([observe('a', T0 + 30_000), observe('b', T0 + 30_000)]).toEqual(['first', 'duplicate'])
      changelog.commit(store)
      flush()
      // Old buckets of 10 s and new ones of 2.5 s lie across each other now; the newest time counts.
      expect(observe('a', T0 + 49_999)).toBe('duplicate')
      store.abort()
      await reopen(dedupeSpec({ windowMs: 160_000 }))
      expect([observe('a', T0 + 30_000 + 159_999), observe('b', T0 + 30_000 + 159_999)]).toEqual(['duplicate', 'duplicate'])
      expect([observe('a', T0 + 30_000 + 160_000), observe('b', T0 + 30_000 + 160_000)]).toEqual(['first', 'first'])
    })

    it('refuses a store of another version and names both', async () => {
      await open()
      state.close()
      await expect(backend().open('0_3', [dedupeSpec({ version: 2 })])).rejects.toThrow(StoreMismatchError)
      await expect(backend().open('0_3', [dedupeSpec({ version: 2 })])).rejects.toThrow(/version 1 on disk.*version 2/)
      // The refusal left nothing behind.
      await open()
    })

    it('is empty after a reset, on disk too', async () => {
      await open()
      observe('a', T0)
      changelog.commit(store)
      flush()
      observe('b', T0)
      state.reset('dedupe')
      expect(store.hasChanges).toBe(false)
      expect(state.checkpoint('dedupe')).toBeUndefined()
      state.close()
      await open()
      expect([observe('a', T0), observe('b', T0), store.size]).toEqual(['first', 'first', 2])
    })

    it('keeps stores of one task apart', async () => {
      state = await backend().open('0_3', [dedupeSpec(), dedupeSpec({ name: 'other' })])
      const [first, second] = [...state.stores.values()] as [DedupeStore, DedupeStore]
      expect(first.observe('a', T0, T0, 0, 0)).toBe('first')
      expect(second.observe('a', T0, T0, 0, 0)).toBe('first')
      changelog.commit(first)
      second.abort()
      state.flush(new Map([['dedupe', 7]]))
      expect([state.checkpoint('dedupe'), state.checkpoint('other')]).toEqual([7, undefined])
      expect(second.observe('a', T0, T0, 0, 0)).toBe('first')
    })

    it('asks for a flush when the memtable is large, or not empty and old', async () => {
      await open(dedupeSpec(), { memtableBytes: 32_000, flushIntervalMs: 5_000 })
      time.time += 6_000
      expect(state.flushDue).toBe(false)
      observe('a', T0)
      changelog.commit(store)
      expect(state.flushDue).toBe(true)
      flush()
      expect(state.flushDue).toBe(false)
      for (let i = 0; i < 2_000; i++) observe(`id-${i}`, T0)
      expect(state.memoryBytes).toBeGreaterThan(32_000)
      expect(state.flushDue).toBe(false)
      changelog.commit(store)
      expect(state.flushDue).toBe(true)
      flush()
      expect(state.memoryBytes).toBe(0)
    })

    describe('a task that another process keeps', () => {
      const other = { slot: 'worker-2', pid: 4712, host: 'there' }
      const storeIn = (opened: TaskState) => opened.stores.get('dedupe') as DedupeStore

      it('is waited for, and opened in its own place when that process lets go in time', async () => {
        await open()
        observe('a', T0)
        changelog.commit(store)
        flush()
        const waiting = backend({ owner: other, lockTimeoutMs: 200 }).open('0_3', [dedupeSpec()])
        await time.advance(60)
        state.close()
        await time.advance(60)
        state = await waiting
        expect(state.checkpoint('dedupe')).toBe(1)
        expect(reports).toEqual([])
      })

      it('starts in a sibling after the wait, empty, with the owner named; both go on and the first is as it was', async () => {
        await open()
        observe('a', T0)
        changelog.commit(store)
        flush()
        const waiting = backend({ owner: other, lockTimeoutMs: 200 }).open('0_3', [dedupeSpec()])
        await time.advance(150)
        expect(reports).toEqual([])
        await time.advance(150)
        const sibling = await waiting
        expect(reports).toMatchObject([{ taskId: '0_3', owner: { slot: 'worker-1', pid: 4711, host: 'here' } }])
        expect(reports[0]?.directory).toMatch(/0_3\.1$/)
        expect(sibling.checkpoint('dedupe')).toBeUndefined()
        storeIn(sibling).restore(changelog.records)
        expect(storeIn(sibling).observe('a', T0, T0, 0, 0)).toBe('duplicate')
        expect(storeIn(sibling).observe('b', T0, T0, 0, 0)).toBe('first')
        changelog.commit(storeIn(sibling))
        sibling.flush(new Map([['dedupe', 2]]))
        expect([observe('a', T0), observe('b', T0)]).toEqual(['duplicate', 'first'])
        store.abort()
        // What the other one wrote to the changelog lies behind this checkpoint.
        state.flush(new Map([['dedupe', 1]]))
        state.close()
        sibling.close()
        await reopen()
        expect([observe('a', T0), observe('b', T0)]).toEqual(['duplicate', 'duplicate'])
      })

      it('goes on in its sibling from the checkpoint there, while its own place is still held', async () => {
        await open()
        const first = await backend().open('0_3', [dedupeSpec()])
        storeIn(first).observe('b', T0, T0, 0, 0)
        changelog.commit(storeIn(first))
        first.flush(new Map([['dedupe', 1]]))
        first.close()
        const again = await backend().open('0_3', [dedupeSpec()])
        expect(again.checkpoint('dedupe')).toBe(1)
        expect(storeIn(again).observe('b', T0, T0, 0, 0)).toBe('duplicate')
      })

      it('loses the siblings that nobody holds, and only those, when its own place is free again', async () => {
        await open()
        const used: TaskState[] = []
        for (const id of ['in 1', 'in 2']) {
          const sibling = await backend().open('0_3', [dedupeSpec()])
          storeIn(sibling).observe(id, T0, T0, 0, 0)
          changelog.commit(storeIn(sibling))
          sibling.flush(new Map([['dedupe', changelog.records.length]]))
          used.push(sibling)
        }
        expect(reports.map(({ directory }) => directory.slice(-5))).toEqual(['0_3.1', '0_3.2'])
        used[0]?.close()
        state.close()
        await open()
        expect(state.checkpoint('dedupe')).toBeUndefined()
        // The one in use answers and can still be written.
        expect(storeIn(used[1] as TaskState).observe('in 2', T0, T0, 0, 0)).toBe('duplicate')
        storeIn(used[1] as TaskState).observe('more', T0, T0, 0, 0)
        changelog.commit(storeIn(used[1] as TaskState))
        used[1]?.flush(new Map([['dedupe', 3]]))
        const fresh = await backend().open('0_3', [dedupeSpec()])
        expect(reports.at(-1)?.directory).toMatch(/0_3\.1$/)
        expect(fresh.checkpoint('dedupe')).toBeUndefined()
        used[1]?.close()
        const kept = await backend().open('0_3', [dedupeSpec()])
        expect(kept.checkpoint('dedupe')).toBe(3)
      })

      it(`is refused, with its owner named, when ${MAX_GENERATIONS} siblings are held too`, async () => {
        await open()
        for (let n = 1; n <= MAX_GENERATIONS; n++) await backend({ owner: other }).open('0_3', [dedupeSpec()])
        const refused: unknown = await backend()
          .open('0_3', [dedupeSpec()])
          .catch((reason: unknown) => reason)
        expect(refused).toBeInstanceOf(StateLockedError)
        expect((refused as StateLockedError).message).toMatch(/slot worker-1, process 4711 on here.*16 sibling generations/)
        expect((refused as StateLockedError).remedy).toBeDefined()
        expect(reports.length).toBe(MAX_GENERATIONS)
      })

      it('is left to its holder when the report of it fails', async () => {
        await open()
        const failing = backend({
          onLocked: () => {
            throw new Error('no room for the report')
          },
        })
        await expect(failing.open('0_3', [dedupeSpec()])).rejects.toThrow('no room for the report')
        await backend().open('0_3', [dedupeSpec()])
        expect(reports[0]?.directory).toMatch(/0_3\.1$/)
      })
    })

    describe('resumed at the stream time that was committed', () => {
      const isTombstone = ({ value }: ChangelogRecord) => value === null
      /** Ten buckets of 100 ids that have expired at `later`, and one that has not. */
      const later = T0 + 3 * WINDOW_MS
      async function written(): Promise<void> {
        await open()
        for (let bucket = 0; bucket < 10; bucket++) {
          for (let i = 0; i < 100; i++) observe(`old-${bucket}-${i}`, T0 + bucket * 10_000)
          changelog.commit(store)
        }
        for (let i = 0; i < 100; i++) observe(`live-${i}`, later)
        changelog.commit(store)
        // What the topic holds before any of it was forgotten.
        changelog.records.splice(0, Infinity, ...changelog.records.filter((record) => !isTombstone(record)))
        expect(changelog.records.length).toBe(11)
        state.close()
        await open()
        state.reset('dedupe')
      }

      it('restores live ids only, and forgets the rest in the changelog with the next commits, each once', async () => {
        await written()
        store.resumeAt(later)
        for (const record of changelog.records) store.restore([record])
        expect(store.size).toBe(100)
        flush()
        expect(store.size).toBe(100)
        await reopen()
        store.resumeAt(later)
        // Found on disk at the first flush.
        flush()
        observe('next', later)
        const tombstones = changelog.commit(store).filter(isTombstone)
        observe('and next', later)
        tombstones.push(...changelog.commit(store).filter(isTombstone))
        expect(new Set(tombstones.map(({ key }) => key.toString('hex'))).size).toBe(10)
        expect(tombstones.length).toBe(10)
        expect(changelog.compacted().length).toBe(3)
        for (let i = 0; i < 100; i++) expect(observe(`live-${i}`, later)).toBe('duplicate')
      })

      it('writes the tombstones with the first commit after the restore, also without a flush', async () => {
        await written()
        store.resumeAt(later)
        store.restore(changelog.records)
        observe('next', later)
        expect(changelog.commit(store).filter(isTombstone).length).toBe(10)
        expect(changelog.compacted().length).toBe(2)
      })

      it('writes no second tombstone for what the restored changelog has forgotten already', async () => {
        await written()
        const tombstones = changelog.records.slice(0, 4).map(({ key }, index) => ({ offset: 11 + index, key, value: null }))
        changelog.records.push(...tombstones)
        store.resumeAt(later)
        for (const record of changelog.records) {
          store.restore([record])
          if (record.offset === 7) state.flush(new Map([['dedupe', 8]]))
        }
        observe('next', later)
        expect(changelog.commit(store).filter(isTombstone).length).toBe(6)
        flush()
        observe('and next', later)
        expect(changelog.commit(store).filter(isTombstone)).toEqual([])
      })

      it('bounds the memory of a changelog that has expired as a whole: its keys ask for a flush', async () => {
        await open(dedupeSpec(), { memtableBytes: 500_000 })
        observe('old', T0)
        const [old] = changelog.prepare(store)
        store.abort()
        store.resumeAt(later)
        let flushes = 0
        for (let n = 0; n < 10_000; n++) {
          const key = Buffer.from(old?.key ?? [])
          key.writeUInt32BE(n, 12)
          store.restore([{ offset: n, key, value: old?.value ?? null }])
          if (!state.flushDue) continue
          expect(state.memoryBytes).toBeLessThan(600_000)
          flushes++
          state.flush(new Map([['dedupe', n + 1]]))
        }
        expect(flushes).toBeGreaterThan(1)
        expect(store.size).toBe(0)
        // And all of them are forgotten, 64 per transaction.
        const forgotten = new Set<string>()
        for (let commit = 0; commit < 200; commit++) {
          for (const { key } of changelog.commit(store).filter(isTombstone)) forgotten.add(key.toString('hex'))
          if (commit % 50 === 49) state.flush(new Map([['dedupe', 10_000]]))
        }
        expect(forgotten.size).toBe(10_000)
      })

      it('drops buckets on disk that have expired by then', async () => {
        await open()
        observe('a', T0)
        changelog.commit(store)
        flush()
        state.close()
        await open()
        expect(store.size).toBe(1)
        store.resumeAt(later)
        expect(store.size).toBe(0)
        flush()
        state.close()
        await open()
        expect(store.size).toBe(0)
      })

      it('remembers an id up to, and not at, the end of its window, whatever an earlier time asks', async () => {
        await open()
        observe('a', T0)
        changelog.commit(store)
        await reopen()
        store.resumeAt(T0 + WINDOW_MS - 1)
        expect(observe('a', T0)).toBe('duplicate')
        store.resumeAt(T0 + WINDOW_MS)
        expect(observe('a', T0)).toBe('first')
        // Too old to be kept.
        expect(store.hasChanges).toBe(false)
      })

      it('does not move back, keeps its time over a reset, and is refused while a write-set is open', async () => {
        await written()
        store.resumeAt(later)
        store.resumeAt(T0)
        state.reset('dedupe')
        store.restore(changelog.records)
        expect(store.size).toBe(100)
        observe('open', later)
        expect(() => store.resumeAt(later + 1)).toThrow('S-resume-without-write-set')
      })
    })

    it('gives one slot to one owner', async () => {
      const lock = await backend().lockSlot('orders-1')
      await expect(backend().lockSlot('orders-1')).rejects.toThrow(/slot orders-1.*process 4711/)
      const other = await backend().lockSlot('orders-2')
      lock.release()
      lock.release()
      other.release()
      const again = await backend().lockSlot('orders-1')
      again.release()
    })

    it('ends a wait for a lock when the backend is closed', async () => {
      await open()
      const other = backend({ lockTimeoutMs: 60_000 })
      const waiting = expect(other.open('0_3', [dedupeSpec()])).rejects.toThrow(StateDirectoryError)
      await time.advance(50)
      other.close()
      await waiting
      expect(time.pending).toBe(0)
    })
  })
}
