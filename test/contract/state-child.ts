/**
 * A worker's state in a process of its own, to be killed: `state-child.ts <mode> <directory> <changelog file>`.
 *   hold   opens task 0_0 and slot 's', says "ready", keeps them
 *   write  commits ids `id-<n>` for ever: prepare, append to the changelog file as one write (the "Kafka transaction"), commit; flushes now and then
 */
import { randomBytes } from 'node:crypto'
import { appendFileSync, existsSync, truncateSync } from 'node:fs'
import { createSqliteBackend } from '../../src/state/sqlite/sqlite-backend.ts'
import type { DedupeStore } from '../../src/state/store.ts'
import { frame, readChangelog, timeOf } from './state-changelog-file.ts'
import { dedupeSpec } from './state-suite.ts'

const [mode, directory, file] = process.argv.slice(2) as [string, string, string]
const clock = { now: () => Date.now(), monotonic: () => performance.now() }
const timers = {
  after(delayMs: number, callback: () => void) {
    const timer = setTimeout(callback, delayMs)
    return () => clearTimeout(timer)
  },
}
const backend = createSqliteBackend({
  directory,
  owner: { slot: 'child', pid: process.pid, host: 'here' },
  clock,
  timers,
  lockTimeoutMs: 5_000,
})
const state = await backend.open('0_0', [dedupeSpec()])
const store = state.stores.get('dedupe') as DedupeStore

if (mode === 'hold') {
  await backend.lockSlot('s')
  process.stdout.write('ready\n')
  setInterval(() => undefined, 1_000)
} else {
  const written = existsSync(file) ? readChangelog(file) : undefined
  if (written !== undefined) truncateSync(file, written.length)
  let ids = written?.ids ?? 0
  let offset = written?.nextOffset ?? 0
  const checkpoint = state.checkpoint('dedupe') ?? 0
  store.restore((written?.records ?? []).filter((record) => record.offset >= checkpoint))
  for (let commit = 1; ; commit++) {
    for (let n = 0; n < 500; n++, ids++) store.observe(`id-${ids}`, timeOf(ids), timeOf(ids), 0, ids)
    const frames: Buffer[] = []
    store.prepare(randomBytes(16), (key, value) => {
      frames.push(frame(key, value))
      offset++
    })
    // One write: it is in the file as a whole, or the commit did not happen.
    appendFileSync(file, Buffer.concat([...frames, frame(Buffer.from(`end ${ids}`), null)]))
    offset++
    store.commit()
    if (commit % 3 === 0) state.flush(new Map([['dedupe', offset]]))
    process.stdout.write(`${ids}\n`)
    // Lets the pipe drain, so that the parent can pick its moment.
    await new Promise((resolve) => setImmediate(resolve))
  }
}
