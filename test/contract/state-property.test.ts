/** Random lives of a dedupe store against a map with the window rule. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { createMemoryBackend, MemoryDisk } from '../../src/state/memory/memory-backend.ts'
import { createSqliteBackend } from '../../src/state/sqlite/sqlite-backend.ts'
import type { DedupeStore, StateBackend, TaskState } from '../../src/state/store.ts'
import { Changelog, dedupeSpec, ManualTime } from './state-suite.ts'

const WINDOW_MS = 16_000
const T0 = 1_700_000_000_000

type Step =
  | { readonly do: 'record'; readonly ids: readonly number[]; readonly age: number; readonly advance: number; readonly fails: boolean }
  | { readonly do: 'commit' }
  | { readonly do: 'abort'; readonly prepared: boolean }
  | { readonly do: 'flush'; readonly lag: number }
  | { readonly do: 'crash'; readonly resumes: boolean }
  | { readonly do: 'rebuild'; readonly compacted: boolean }

const record = fc.record({
  do: fc.constant('record' as const),
  ids: fc.array(fc.nat(24), { minLength: 1, maxLength: 4 }),
  age: fc.oneof(fc.constant(0), fc.nat(WINDOW_MS + 500)),
  advance: fc.oneof(fc.constantFrom(0, 1, 500, WINDOW_MS - 1, WINDOW_MS), fc.nat(4_000)),
  fails: fc.nat(5).map((value) => value === 0),
})
const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.oneof(
    { weight: 12, arbitrary: record },
    { weight: 5, arbitrary: fc.constant<Step>({ do: 'commit' }) },
    { weight: 1, arbitrary: fc.record({ do: fc.constant('abort' as const), prepared: fc.boolean() }) },
    { weight: 3, arbitrary: fc.record({ do: fc.constant('flush' as const), lag: fc.nat(5) }) },
    { weight: 1, arbitrary: fc.record({ do: fc.constant('crash' as const), resumes: fc.boolean() }) },
    { weight: 1, arbitrary: fc.record({ do: fc.constant('rebuild' as const), compacted: fc.boolean() }) },
  ),
  { minLength: 1, maxLength: 120 },
)

/** The rule itself, with the write-set and the stream time as copies. */
class Model {
  committed = new Map<string, number>()
  open = new Map<string, number>()
  committedNow = T0
  now = T0
  readonly refresh: boolean
  constructor(refresh: boolean) {
    this.refresh = refresh
  }
  observe(id: string, time: number): 'first' | 'duplicate' {
    const known = this.open.get(id)
    if (known !== undefined && this.now < known + WINDOW_MS) {
      if (this.refresh) this.open.set(id, Math.max(known, time))
      return 'duplicate'
    }
    if (this.now < time + WINDOW_MS) this.open.set(id, time)
    return 'first'
  }
  commit(): void {
    this.committed = new Map(this.open)
    this.committedNow = this.now
  }
  abort(): void {
    this.open = new Map(this.committed)
    this.now = this.committedNow
  }
}

async function live(makeBackend: () => StateBackend, path: readonly Step[], refresh: boolean, keepOrigin: boolean): Promise<void> {
  const spec = dedupeSpec({ windowMs: WINDOW_MS, refresh, keepOrigin })
  const model = new Model(refresh)
  const changelog = new Changelog()
  let backend = makeBackend()
  let state: TaskState = await backend.open('0_0', [spec])
  let store = state.stores.get('dedupe') as DedupeStore
  const observe = (id: string, time: number) =>
    expect(`${id} ${store.observe(id, time, model.now, 1, 2)}`).toBe(`${id} ${model.observe(id, time)}`)
  const commit = () => {
    if (store.hasChanges) changelog.commit(store)
    else store.commit()
    model.commit()
  }
  try {
    for (const step of path) {
      switch (step.do) {
        case 'record': {
          const before = { open: new Map(model.open), now: model.now }
          store.beginRecord()
          model.now += step.advance
          for (const id of step.ids) observe(`id-${id}`, model.now - step.age)
          if (!step.fails) break
          store.rollbackRecord()
          Object.assign(model, before)
          break
        }
        case 'commit':
          commit()
          break
        case 'abort':
          if (step.prepared) changelog.prepare(store)
          store.abort()
          model.abort()
          break
        case 'flush':
          // The checkpoint may lag (it is the last stable offset, read earlier), never lead.
          commit()
          state.flush(new Map([['dedupe', Math.max(state.checkpoint('dedupe') ?? 0, changelog.records.length - step.lag)]]))
          break
        case 'crash':
          backend.close()
          backend = makeBackend()
          state = await backend.open('0_0', [spec])
          store = state.stores.get('dedupe') as DedupeStore
          model.abort()
          if (step.resumes) store.resumeAt(model.now)
          store.restore(changelog.records.slice(state.checkpoint('dedupe') ?? 0))
          break
        case 'rebuild':
          store.abort()
          model.abort()
          state.reset('dedupe')
          store.restore(step.compacted ? changelog.compacted() : changelog.records)
          break
      }
    }
    commit()
    for (let id = 0; id <= 24; id++) observe(`id-${id}`, model.now)
  } finally {
    backend.close()
  }
}

describe('a dedupe store, whatever happens to it', () => {
  const settings = () => ({
    clock: new ManualTime(),
    timers: new ManualTime(),
    owner: { slot: 's', pid: 1, host: 'h' },
    lockTimeoutMs: 0,
    cacheEntries: 4,
  })

  it('answers as the window rule does, in memory', async () => {
    await fc.assert(
      fc.asyncProperty(steps, fc.boolean(), fc.boolean(), async (path, refresh, keepOrigin) => {
        const disk = new MemoryDisk()
        await live(() => createMemoryBackend({ ...settings(), disk }), path, refresh, keepOrigin)
      }),
      { numRuns: 300 },
    )
  })

  it('answers as the window rule does, on SQLite', async () => {
    const root = mkdtempSync(join(tmpdir(), 'millrace-state-'))
    let run = 0
    try {
      await fc.assert(
        fc.asyncProperty(steps, fc.boolean(), fc.boolean(), async (path, refresh, keepOrigin) => {
          const directory = join(root, String(run++))
          await live(() => createSqliteBackend({ ...settings(), directory }), path, refresh, keepOrigin)
          rmSync(directory, { recursive: true, force: true })
        }),
        { numRuns: 60 },
      )
    } finally {
      rmSync(root, { recursive: true, force: true })
    }
  })
})
