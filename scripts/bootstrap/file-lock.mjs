/**
 * One holder at a time among the processes of one machine.
 *
 * Invariants:
 * 1. The lock file appears with its whole content at once (written aside, then linked), so a reader never sees half of it.
 * 2. Only a lock whose holder is dead is removed, and only under the break lock, after a second look: without it two waiters
 *    read the same dead holder, the first removes it and locks, and the second removes the lock of the first.
 */
import { linkSync, mkdirSync, readFileSync, statSync, unlinkSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'

const POLL_MS = 200
const BREAK_LOCK_MAX_AGE_MS = 10_000

/**
 * Waits until the lock is ours and returns the function that gives it back.
 * @param {string} path @param {{ onWait?: (pid: number) => void, isAlive?: (pid: number) => boolean }} [options]
 * @returns {Promise<() => void>}
 */
export async function acquireFileLock(path, { onWait, isAlive = processIsAlive } = {}) {
  mkdirSync(dirname(path), { recursive: true })
  const own = `${process.pid} ${process.hrtime.bigint().toString(36)}`
  let told = false
  for (;;) {
    if (createWhole(path, own)) return () => release(path, own)
    const holder = readText(path)
    if (holder === null) continue
    const pid = Number.parseInt(holder, 10)
    if (!Number.isInteger(pid) || !isAlive(pid)) {
      breakStale(path, holder)
      continue
    }
    if (!told) onWait?.(pid)
    told = true
    await delay(POLL_MS)
  }
}

/** @param {number} pid */
export function processIsAlive(pid) {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return /** @type {NodeJS.ErrnoException} */ (error).code === 'EPERM'
  }
}

/** @param {string} path @param {string} content */
function createWhole(path, content) {
  const aside = `${path}.${process.pid}-${process.hrtime.bigint().toString(36)}`
  writeFileSync(aside, content)
  try {
    linkSync(aside, path)
    return true
  } catch (error) {
    if (/** @type {NodeJS.ErrnoException} */ (error).code !== 'EEXIST') throw error
    return false
  } finally {
    unlinkSync(aside)
  }
}

/** @param {string} path @param {string} seen */
function breakStale(path, seen) {
  const breaker = `${path}.break`
  try {
    writeFileSync(breaker, String(process.pid), { flag: 'wx' })
  } catch {
    // Someone else is at it, or died there.
    try {
      if (Date.now() - statSync(breaker).mtimeMs > BREAK_LOCK_MAX_AGE_MS) unlinkSync(breaker)
    } catch {
      // Gone meanwhile.
    }
    return
  }
  try {
    if (readText(path) === seen) unlinkSync(path)
  } finally {
    unlinkSync(breaker)
  }
}

/** @param {string} path @param {string} own */
function release(path, own) {
  if (readText(path) === own) unlinkSync(path)
}

/** @param {string} path */
function readText(path) {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    if (/** @type {NodeJS.ErrnoException} */ (error).code === 'ENOENT') return null
    throw error
  }
}
