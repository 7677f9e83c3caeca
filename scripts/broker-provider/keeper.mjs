/**
 * Starts the JVMs of a provided broker, and ends them when its parent is gone.
 *
 * A process of its own, because a parent that is killed with -9 runs no handler: its pipe to our standard input closes, which we see.
 * Owns: the JVMs and the data folder. Does not own: their configuration.
 * Invariants:
 * 1. A JVM is started by this process only, so there is no moment in which one runs that nobody would end.
 * 2. Signals of the terminal do not end this process; the end of the pipe does.
 *
 * Lines of JSON in: {op:'own',folder} {op:'start',id,command,args,log} {op:'kill',id,signal}; out: {event:'started'|'exited',id,...}
 */
import { spawn } from 'node:child_process'
import { closeSync, openSync, rmSync } from 'node:fs'
import { createInterface } from 'node:readline'

/** @type {Map<string, import('node:child_process').ChildProcess>} */
const children = new Map()
/** @type {string[]} */
const folders = []
let closing = false

for (const signal of /** @type {const} */ (['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGPIPE'])) process.on(signal, () => undefined)
// The parent that would read our words may be gone.
process.stdout.on('error', () => undefined)

const lines = createInterface({ input: process.stdin })
lines.on('line', (line) => take(JSON.parse(line)))
lines.on('close', () => {
  closing = true
  for (const child of children.values()) child.kill('SIGKILL')
  endIfDone()
})

/** @param {any} message */
function take(message) {
  if (message.op === 'own') folders.push(message.folder)
  else if (message.op === 'start') start(message)
  else if (message.op === 'kill') children.get(message.id)?.kill(message.signal)
}

/** @param {{ id: string, command: string, args: string[], log: string }} order */
function start({ id, command, args, log }) {
  const output = openSync(log, 'a')
  const child = spawn(command, args, { stdio: ['ignore', output, output], detached: true })
  closeSync(output)
  children.set(id, child)
  child.once('error', (error) => ended(id, child, `could not be started: ${error.message}`))
  child.once('exit', (code, signal) => ended(id, child, signal === null ? `exit code ${code}` : `ended by ${signal}`))
  if (child.pid !== undefined) say({ event: 'started', id, pid: child.pid })
}

/** @param {string} id @param {import('node:child_process').ChildProcess} child @param {string} reason */
function ended(id, child, reason) {
  if (children.get(id) !== child) return
  children.delete(id)
  say({ event: 'exited', id, reason })
  endIfDone()
}

function endIfDone() {
  if (!closing || children.size > 0) return
  for (const folder of folders) rmSync(folder, { recursive: true, force: true, maxRetries: 5 })
  process.exit(0)
}

/** @param {object} message */
function say(message) {
  if (!closing) process.stdout.write(`${JSON.stringify(message)}\n`)
}
