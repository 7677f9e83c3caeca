/** What only a real file, a real kernel and a real process can show. */
import { spawn, type ChildProcessByStdio } from 'node:child_process'
import { once } from 'node:events'
import {
  closeSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
  writeSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import Database from 'better-sqlite3'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { DedupeStoreSpec } from '../../src/common/store-spec.ts'
import { CorruptedStoreError, StateDirectoryError, StateLockedError, StoreMismatchError } from '../../src/errors/errors.ts'
import type { LockedReport } from '../../src/state/generations.ts'
import { createSqliteBackend, type SqliteBackendOptions } from '../../src/state/sqlite/sqlite-backend.ts'
import type { QuarantineReport } from '../../src/state/sqlite/task-file.ts'
import type { DedupeStore, StateBackend, TaskState } from '../../src/state/store.ts'
import { readChangelog, timeOf } from './state-changelog-file.ts'
import { Changelog, dedupeSpec, ManualTime, WINDOW_MS } from './state-suite.ts'

const childScript = fileURLToPath(new URL('state-child.ts', import.meta.url))
const T0 = 1_700_000_000_000

let root: string
let directory: string
let time: ManualTime
let backends: StateBackend[]
let reports: QuarantineReport[]
let lockedReports: LockedReport[]
let children: ChildProcessByStdio<null, Readable, null>[]

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'millrace-state-'))
  directory = join(root, 'app')
  time = new ManualTime()
  backends = []
  reports = []
  lockedReports = []
  children = []
})
afterEach(async () => {
  for (const child of children) if (child.exitCode === null && child.signalCode === null) await kill(child)
  for (const backend of backends) backend.close()
  rmSync(root, { recursive: true, force: true })
})

function makeBackend(changes: Partial<SqliteBackendOptions> = {}): StateBackend {
  const backend = createSqliteBackend({
    directory,
    owner: { slot: 'worker-1', pid: 4711, host: 'here' },
    lockTimeoutMs: 0,
    clock: time,
    timers: time,
    onQuarantine: (report) => reports.push(report),
    onLocked: (report) => lockedReports.push(report),
    ...changes,
  })
  backends.push(backend)
  return backend
}
const open = (task = '0_0', spec: DedupeStoreSpec = dedupeSpec()): Promise<TaskState> => makeBackend().open(task, [spec])
const storeOf = (state: TaskState) => state.stores.get('dedupe') as DedupeStore

function start(...args: string[]): ChildProcessByStdio<null, Readable, null> {
  const child = spawn(process.execPath, ['--import', 'tsx', childScript, ...args], { stdio: ['ignore', 'pipe', 'inherit'] })
  children.push(child)
  return child
}
async function kill(child: ChildProcessByStdio<null, Readable, null>): Promise<void> {
  const ended = once(child, 'exit')
  child.kill('SIGKILL')
  await ended
}
async function lineOf(child: ChildProcessByStdio<null, Readable, null>, wanted: (line: string) => boolean): Promise<void> {
  const lines = createInterface({ input: child.stdout })
  for await (const line of lines) if (wanted(line)) return
  throw new Error('the child ended before it said what was waited for')
}

/** A closed file with 20,000 ids in it. */
async function filled(task = '0_0'): Promise<string> {
  const state = await open(task)
  const changelog = new Changelog()
  for (let i = 0; i < 20_000; i++) storeOf(state).observe(`id-${i}`, T0, T0, 0, i)
  changelog.commit(storeOf(state))
  state.flush(new Map([['dedupe', 3]]))
  state.close()
  return join(directory, task, 'state.db')
}
function overwrite(file: string, at: number, bytes: Buffer): void {
  const descriptor = openSync(file, 'r+')
  writeSync(descriptor, bytes, 0, bytes.length, at)
  closeSync(descriptor)
}

describe('a process that is killed with -9', () => {
  it('leaves no lock behind, of a task or a slot; while it lives the report or the refusal names it', async () => {
    const child = start('hold', directory, '')
    await lineOf(child, (line) => line === 'ready')
    const owner = { slot: 'child', pid: child.pid, host: 'here' }
    const sibling = await open()
    expect(lockedReports).toEqual([{ taskId: '0_0', owner, directory: join(directory, '0_0.1') }])
    const refused = makeBackend().lockSlot('s')
    await expect(refused).rejects.toThrow(StateLockedError)
    await expect(refused).rejects.toThrow(new RegExp(`slot child, process ${child.pid} on here`))
    await kill(child)
    const state = await open()
    expect(lockedReports.length).toBe(1)
    const lock = await makeBackend().lockSlot('s')
    lock.release()
    state.close()
    expect(readdirSync(join(directory, '0_0')).sort()).toEqual(['lock.db', 'state.db'])
    // The sibling is in use here, so it stayed.
    expect(existsSync(join(directory, '0_0.1', 'state.db'))).toBe(true)
    sibling.close()
    ;(await open()).close()
    expect(existsSync(join(directory, '0_0.1'))).toBe(false)
  })

  it('while a sibling is used by another process, and another writes to its own place, leaves both files whole', async () => {
    const file = join(root, 'changelog')
    const child = start('write', directory, file)
    await lineOf(child, (line) => Number(line) >= 2_000)
    const sibling = await open()
    const changelog = new Changelog()
    for (let i = 0; i < 5_000; i++) storeOf(sibling).observe(`mine-${i}`, T0, T0, 0, i)
    changelog.commit(storeOf(sibling))
    sibling.flush(new Map([['dedupe', 1]]))
    await lineOf(child, (line) => Number(line) >= 6_000)
    await kill(child)
    const state = await open()
    expect(lockedReports.length).toBe(1)
    const committed = readChangelog(file)
    storeOf(state).restore(committed.records.filter(({ offset }) => offset >= (state.checkpoint('dedupe') ?? 0)))
    const now = timeOf(committed.ids)
    expect(storeOf(state).observe(`id-${committed.ids - 1}`, now, now, 0, 0)).toBe('duplicate')
    expect(storeOf(state).observe('mine-1', now, now, 0, 0)).toBe('first')
    for (let i = 0; i < 5_000; i++) expect(storeOf(sibling).observe(`mine-${i}`, T0, T0, 0, 0)).toBe('duplicate')
    sibling.close()
    state.close()
    for (const name of ['0_0', '0_0.1']) {
      const shell = new Database(join(directory, name, 'state.db'))
      expect(shell.pragma('integrity_check', { simple: true })).toBe('ok')
      shell.close()
    }
    expect(reports).toEqual([])
  }, 60_000)

  it('again and again between commits and flushes, has a file that with its changelog equals what was committed', async () => {
    const file = join(root, 'changelog')
    let ids = 0
    for (const moreIds of [3_000, 9_500, 4_000]) {
      const child = start('write', directory, file)
      await lineOf(child, (line) => Number(line) >= ids + moreIds)
      await kill(child)
      const committed = readChangelog(file)
      expect(committed.ids).toBeGreaterThanOrEqual(ids + moreIds)
      ids = committed.ids
      // A copy, so that the next child takes over what the kill left.
      const copy = join(root, `copy-${ids}`)
      mkdirSync(join(copy, '0_0'), { recursive: true })
      for (const name of readdirSync(join(directory, '0_0'))) copyFileSync(join(directory, '0_0', name), join(copy, '0_0', name))
      const state = await makeBackend({ directory: copy }).open('0_0', [dedupeSpec()])
      const checkpoint = state.checkpoint('dedupe') ?? 0
      expect(checkpoint).toBeGreaterThan(0)
      expect(checkpoint).toBeLessThanOrEqual(committed.nextOffset)
      const store = storeOf(state)
      store.restore(committed.records.filter(({ offset }) => offset >= checkpoint))
      const now = timeOf(ids)
      let wrong = 0
      for (let n = 0; n < ids; n++) {
        const expected = now < timeOf(n) + WINDOW_MS ? 'duplicate' : 'first'
        if (store.observe(`id-${n}`, now, now, 0, 0) !== expected) wrong++
      }
      for (let n = ids; n < ids + 2_000; n++) if (store.observe(`id-${n}`, now, now, 0, 0) !== 'first') wrong++
      expect(wrong).toBe(0)
      expect(reports).toEqual([])
      state.close()
    }
  }, 120_000)
})

describe('a damaged file', () => {
  it.each<[string, (file: string) => void]>([
    ['a page of zeros in the middle', (file) => overwrite(file, Math.floor(statSync(file).size / 8192) * 4096, Buffer.alloc(4096))],
    ['a header that is not one', (file) => overwrite(file, 0, Buffer.from('not a database at all'))],
    [
      'flipped bytes all over',
      (file) => {
        for (let at = 5_000; at < statSync(file).size; at += 1_999) overwrite(file, at, Buffer.from([0xa5]))
      },
    ],
    ['a cut end', (file) => writeFileSync(file, readFileSync(file).subarray(0, 4096 * 20))],
  ])('with %s is moved aside and reported, and the task starts empty; other tasks stay', async (_damage, damage) => {
    const file = await filled()
    await filled('0_1')
    damage(file)
    const state = await open()
    expect(reports).toMatchObject([{ taskId: '0_0', movedTo: join(directory, '0_0', 'quarantine', 'state.db-1') }])
    expect(existsSync(join(directory, '0_0', 'quarantine', 'state.db-1'))).toBe(true)
    expect(state.checkpoint('dedupe')).toBeUndefined()
    expect(storeOf(state).observe('id-1', T0, T0, 0, 0)).toBe('first')
    storeOf(state).abort()
    state.close()
    const other = await open('0_1')
    expect(storeOf(other).observe('id-1', T0, T0, 0, 0)).toBe('duplicate')
    storeOf(other).abort()
    other.close()
    // The new file is a good one, and a second damage gets its own place.
    ;(await open()).close()
    expect(reports.length).toBe(1)
    overwrite(file, 0, Buffer.alloc(100))
    ;(await open()).close()
    expect(reports[1]?.movedTo).toBe(join(directory, '0_0', 'quarantine', 'state.db-2'))
  })

  it('with one flipped bit in a stored filter is moved aside too', async () => {
    const file = await filled()
    const bits = new Database(file)
    const blob = bits.prepare<[], Buffer>('SELECT bits FROM filters').pluck().get() as Buffer
    blob[500] = (blob[500] as number) ^ 4
    bits.prepare('UPDATE filters SET bits = ?').run(blob)
    bits.close()
    ;(await open()).close()
    expect(reports).toMatchObject([{ reason: expect.stringContaining('checksum') as string }])
  })

  it('met in a look-up stops the task, and the next open moves it aside', async () => {
    const file = await filled()
    const state = await makeBackend({ alwaysCheckedBytes: 0 }).open('0_0', [dedupeSpec()])
    // Behind the back of the open connection, which has read no row yet: every page but the schema's.
    const whole = statSync(file).size
    for (let at = 4096 * 8; at < whole; at += 4096) overwrite(file, at, Buffer.alloc(4096, 0x5a))
    expect(() => {
      for (let i = 0; i < 20_000; i++) storeOf(state).observe(`id-${i}`, T0, T0, 0, 0)
    }).toThrow(CorruptedStoreError)
    state.close()
    const fresh = await makeBackend({ alwaysCheckedBytes: 0 }).open('0_0', [dedupeSpec()])
    expect(reports.length).toBe(1)
    expect(fresh.checkpoint('dedupe')).toBeUndefined()
    fresh.close()
  })
})

it('checks a large file only when the machine went down under its last owner', async () => {
  const file = await filled()
  overwrite(file, Math.floor(statSync(file).size / 8192) * 4096, Buffer.alloc(4096))
  const owner = { slot: 'worker-1', pid: 4711, host: 'here', since: 'yesterday' }
  const bootId = await (async () => {
    const lock = await makeBackend().lockSlot('probe')
    const note = JSON.parse(readFileSync(join(directory, '.slots', 'probe', 'owner.json'), 'utf8')) as { bootId: string }
    lock.release()
    return note.bootId
  })()
  const openLarge = async (lastBoot: string) => {
    writeFileSync(join(directory, '0_0', 'owner.json'), JSON.stringify({ ...owner, bootId: lastBoot }))
    ;(await makeBackend({ alwaysCheckedBytes: 0 }).open('0_0', [dedupeSpec()])).close()
  }
  await openLarge(bootId)
  expect(reports).toEqual([])
  await openLarge('an earlier start')
  expect(reports.length).toBe(1)
})

describe('a file that is not damaged is never wiped', () => {
  it('when another program has it open: bounded wait, a clear refusal, and everything is there afterwards', async () => {
    const file = await filled()
    const shell = new Database(file)
    shell.exec('BEGIN')
    shell.prepare('SELECT count(*) FROM stores').get()
    const refused = expect(makeBackend({ lockTimeoutMs: 100 }).open('0_0', [dedupeSpec()])).rejects.toThrow(/held open by another program/)
    await time.advance(150)
    await refused
    shell.close()
    const state = await open()
    expect(storeOf(state).observe('id-1', T0, T0, 0, 0)).toBe('duplicate')
    expect(reports).toEqual([])
  })

  it.each([
    ['another format', "UPDATE meta SET value = 99 WHERE name = 'format'", /format version 99, this version of millrace reads 1/],
    ['another hash', "UPDATE meta SET value = 99 WHERE name = 'hash'", /hash version 99/],
    ['another application', 'PRAGMA application_id = 1', /not one of millrace/],
  ])('when it is of %s', async (_what, sql, message) => {
    const file = await filled()
    const shell = new Database(file)
    shell.exec(sql)
    shell.close()
    const error: unknown = await open().catch((reason: unknown) => reason)
    expect(error).toBeInstanceOf(StoreMismatchError)
    expect((error as StoreMismatchError).message).toMatch(message)
    expect((error as StoreMismatchError).remedy).toBeDefined()
    expect(reports).toEqual([])
    expect(statSync(file).size).toBeGreaterThan(500_000)
  })
})

describe('the policy for another format', () => {
  const change = (file: string, name: 'format' | 'hash'): void => {
    const shell = new Database(file)
    shell.exec(`UPDATE meta SET value = 99 WHERE name = '${name}'`)
    shell.close()
  }

  it("'rebuild' moves the file aside, reports it, and starts empty for the changelog", async () => {
    change(await filled(), 'format')
    const state = await makeBackend({ rebuildOtherFormats: true }).open('0_0', [dedupeSpec()])
    expect(state.checkpoint('dedupe')).toBeUndefined()
    expect(reports).toMatchObject([{ taskId: '0_0', reason: expect.stringContaining('format version 99') as string }])
    expect(existsSync(reports[0]!.movedTo)).toBe(true)
  })

  it('never rebuilds another hash: the changelog has the same digests', async () => {
    change(await filled(), 'hash')
    await expect(makeBackend({ rebuildOtherFormats: true }).open('0_0', [dedupeSpec()])).rejects.toMatchObject({ code: 'state-hash' })
    expect(reports).toEqual([])
  })
})

describe('a state directory that cannot be used', () => {
  it('is refused with its path and the remedy, also for root', async () => {
    writeFileSync(directory, 'a file where the directory should be')
    const error: unknown = await open().catch((reason: unknown) => reason)
    expect(error).toBeInstanceOf(StateDirectoryError)
    expect((error as StateDirectoryError).message).toContain(directory)
    expect((error as StateDirectoryError).remedy).toContain('stateDir')
    await expect(makeBackend().lockSlot('s')).rejects.toThrow(StateDirectoryError)
  })

  it('is refused when a task name would leave it', async () => {
    for (const name of ['../0_0', '', '.', '.slots', '.generations', 'a/b'])
      await expect(open(name)).rejects.toThrow(/cannot name a folder/)
  })

  it('is refused when a task name is that of a sibling of another task', async () => {
    await expect(open('0_0.1')).rejects.toThrow(/would be a sibling generation/)
  })
})

describe('giving a lock up', () => {
  /** A folder in the place of the note cannot be removed as a file, not even by root. */
  const block = (folder: string) => {
    rmSync(join(folder, 'owner.json'))
    mkdirSync(join(folder, 'owner.json', 'x'), { recursive: true })
    return () => rmSync(join(folder, 'owner.json'), { recursive: true })
  }

  it('works and does not throw when its note cannot be removed: of a task', async () => {
    const state = await open()
    const unblock = block(join(directory, '0_0'))
    expect(() => state.close()).not.toThrow()
    unblock()
    const again = await open()
    expect(lockedReports).toEqual([])
    again.close()
  })

  it('works and does not throw when its note cannot be removed: of a slot', async () => {
    const lock = await makeBackend().lockSlot('s')
    const unblock = block(join(directory, '.slots', 's'))
    expect(() => lock.release()).not.toThrow()
    unblock()
    const again = await makeBackend().lockSlot('s')
    again.release()
  })
})

it('keeps the damaged files of a sibling when the sibling is removed', async () => {
  const own = await open()
  ;(await open()).close()
  overwrite(join(directory, '0_0.1', 'state.db'), 0, Buffer.from('not a database at all'))
  ;(await open()).close()
  expect(reports).toMatchObject([{ movedTo: join(directory, '0_0.1', 'quarantine', 'state.db-1') }])
  own.close()
  ;(await open()).close()
  expect(readdirSync(join(directory, '0_0.1'))).toEqual(['quarantine'])
})

describe('a file on disk', () => {
  it('gives the room of expired ids to new ones', async () => {
    const state = await open()
    const store = storeOf(state)
    const changelog = new Changelog()
    const sizes: number[] = []
    for (let day = 0; day < 6; day++) {
      for (let i = 0; i < 10_000; i++) store.observe(`id-${day}-${i}`, T0 + day * 200_000, T0 + day * 200_000, 0, 0)
      changelog.commit(store)
      state.flush(new Map([['dedupe', changelog.records.length]]))
      sizes.push(statSync(join(directory, '0_0', 'state.db-wal')).size + statSync(join(directory, '0_0', 'state.db')).size)
    }
    expect(store.size).toBe(10_000)
    state.close()
    expect(statSync(join(directory, '0_0', 'state.db')).size).toBeLessThan(2_500_000)
  })

  it('is as it was after a flush that failed, and the flush can be repeated', async () => {
    const state = await open()
    const store = storeOf(state)
    const changelog = new Changelog()
    for (let i = 0; i < 1_000; i++) store.observe(`id-${i}`, T0 + i * 60, T0 + i * 60, 0, 0)
    changelog.commit(store)
    // better-sqlite3 refuses to bind this, in the middle of the transaction.
    expect(() => state.flush(new Map([['dedupe', Symbol('no offset') as unknown as number]]))).toThrow()
    expect(state.checkpoint('dedupe')).toBeUndefined()
    expect(state.memoryBytes).toBeGreaterThan(0)
    state.flush(new Map([['dedupe', 9]]))
    state.close()
    const again = await open()
    expect(again.checkpoint('dedupe')).toBe(9)
    for (let i = 0; i < 1_000; i++) expect(storeOf(again).observe(`id-${i}`, T0 + 60_000, T0 + 60_000, 0, 0)).toBe('duplicate')
  })
})
