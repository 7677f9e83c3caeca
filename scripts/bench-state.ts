/** What the dedupe store costs: `node --import tsx scripts/bench-state.ts [ids]`. Prints microseconds per id and milliseconds per flush. */
import { mkdtempSync, rmSync, statSync } from 'node:fs'
import { randomBytes } from 'node:crypto'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { DedupeStore, StateBackend } from '../src/state/store.ts'
import { createMemoryBackend } from '../src/state/memory/memory-backend.ts'
import { createSqliteBackend } from '../src/state/sqlite/sqlite-backend.ts'

const ids = Number(process.argv[2] ?? 1_000_000)
const perCommit = 2_000
const perFlush = 100_000
const windowMs = 24 * 3_600_000
const clock = { now: () => Date.now(), monotonic: () => performance.now() }
const timers = {
  after(delayMs: number, callback: () => void) {
    const timer = setTimeout(callback, delayMs)
    return () => clearTimeout(timer)
  },
}
const owner = { slot: 'bench', pid: process.pid, host: 'bench' }

async function measure(name: string, backend: StateBackend, size: () => string): Promise<void> {
  const open = () => backend.open('0_0', [{ kind: 'dedupe', name: 'dedupe', windowMs, refresh: false, keepOrigin: false, version: 1 }])
  let state = await open()
  let store = state.stores.get('dedupe') as DedupeStore
  const changelog: { offset: number; key: Buffer; value: Buffer | null }[] = []
  const flushMs: number[] = []
  const commitMs: number[] = []
  let observeMs = 0
  // Event time: the ids are spread over a third of the window, so that a few buckets are alive; 3 % are duplicates of any earlier id.
  for (let i = 0; i < ids;) {
    const batch: string[] = []
    for (let n = 0; n < perCommit; n++)
      batch.push(`order-${(n % 33 === 0 && i > 0 ? Math.floor(Math.random() * i) : i + n).toString().padStart(10, '0')}-created`)
    const start = performance.now()
    for (let n = 0; n < perCommit; n++) {
      const now = 1.7e12 + Math.floor(((i + n) / ids) * (windowMs / 3))
      store.beginRecord()
      store.observe(batch[n] as string, now, now, 0, i + n)
    }
    const observed = performance.now()
    store.prepare(randomBytes(16), (key, value) => changelog.push({ offset: changelog.length, key, value }))
    store.commit()
    observeMs += observed - start
    commitMs.push(performance.now() - observed)
    i += perCommit
    if (i % perFlush === 0) {
      const before = performance.now()
      state.flush(new Map([['dedupe', changelog.length]]))
      flushMs.push(performance.now() - before)
    }
  }
  commitMs.sort((a, b) => a - b)
  const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0)
  const at = (values: readonly number[], share: number) => values[Math.floor(values.length * share)]?.toFixed(2)
  console.log(`${name}: ${ids} ids, ${perCommit} per commit, a flush per ${perFlush}`)
  console.log(`  observe           ${((observeMs / ids) * 1_000).toFixed(2)} us per id   hits ${JSON.stringify(store.hits)}`)
  console.log(
    `  prepare + commit  ${((sum(commitMs) / ids) * 1_000).toFixed(2)} us per id, p50 ${at(commitMs, 0.5)} ms, p99 ${at(commitMs, 0.99)} ms`,
  )
  console.log(`  flush             ${flushMs.map((ms) => ms.toFixed(0)).join(' ')} ms   ${size()}`)
  const close = performance.now()
  state.close()
  const opening = performance.now()
  state = await open()
  console.log(`  close ${(opening - close).toFixed(0)} ms, open ${(performance.now() - opening).toFixed(0)} ms`)
  state.reset('dedupe')
  store = state.stores.get('dedupe') as DedupeStore
  const restoring = performance.now()
  for (let from = 0; from < changelog.length; from += 50) store.restore(changelog.slice(from, from + 50))
  console.log(`  restore into memory ${((ids / (performance.now() - restoring)) * 1_000).toFixed(0)} ids/s`)
  backend.close()
}

await measure('memory', createMemoryBackend({ clock, timers, owner }), () => '')
const directory = mkdtempSync(join(tmpdir(), 'millrace-bench-'))
try {
  await measure(
    'sqlite',
    createSqliteBackend({ directory, clock, timers, owner }),
    () => `${(statSync(join(directory, '0_0', 'state.db')).size / 2 ** 20).toFixed(0)} MiB`,
  )
} finally {
  rmSync(directory, { recursive: true, force: true })
}
