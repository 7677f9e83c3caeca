/**
 * Finds what a run left running: every process that inherited the run's mark in its environment, also those whose parent is gone.
 * Only such processes are ever ended here.
 */
import { execFile } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'

export const MARK = 'MILLRACE_TEST_RUN'
const POLL_MS = 200

/** @typedef {{ pid: number, command: string }} Leftover */

/**
 * Gives what is ending a moment, then says what is left.
 * @param {string} mark @param {number} graceMs @returns {Promise<Leftover[]>}
 */
export async function findLeftovers(mark, graceMs) {
  const deadline = performance.now() + graceMs
  for (;;) {
    const found = await markedProcesses(mark)
    if (found.length === 0 || performance.now() > deadline) return found
    await delay(POLL_MS)
  }
}

/** @param {Leftover[]} leftovers */
export function endLeftovers(leftovers) {
  for (const { pid } of leftovers) {
    try {
      process.kill(pid, 'SIGKILL')
    } catch {
      // Ended by itself meanwhile.
    }
  }
}

/** @param {string} mark @returns {Promise<Leftover[]>} */
async function markedProcesses(mark) {
  const wanted = `${MARK}=${mark}`
  return process.platform === 'linux' ? fromProc(wanted) : await fromPs(wanted)
}

/** @param {string} wanted @returns {Leftover[]} */
function fromProc(wanted) {
  const found = []
  for (const name of readdirSync('/proc')) {
    const pid = Number(name)
    if (!Number.isInteger(pid) || pid === process.pid) continue
    try {
      if (!readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0').includes(wanted)) continue
      const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ').trim()
      // A zombie has no command line: it has ended, and only its exit code waits to be read.
      if (command !== '') found.push({ pid, command })
    } catch {
      // Ended while we looked, or another user's.
    }
  }
  return found
}

/** @param {string} wanted @returns {Promise<Leftover[]>} */
function fromPs(wanted) {
  return new Promise((resolve) => {
    execFile('ps', ['axeww', '-o', 'pid=,command='], { maxBuffer: 64 * 1024 * 1024 }, (error, stdout) => {
      if (error !== null) return resolve([])
      const found = []
      for (const line of stdout.split('\n')) {
        const match = /^\s*(\d+)\s+(.*)$/.exec(line)
        if (match !== null && line.includes(wanted) && Number(match[1]) !== process.pid)
          found.push({ pid: Number(match[1]), command: match[2] ?? '' })
      }
      resolve(found)
    })
  })
}
