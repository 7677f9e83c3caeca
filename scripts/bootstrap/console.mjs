/**
 * What the set-up says while it works, and how it runs other programs.
 *
 * Owns: the step lines on stderr, the log file of the run, the child process at hand.
 * Does not own: what the steps do.
 */
import { spawn } from 'node:child_process'
import { appendFileSync, mkdirSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'

const HEARTBEAT_MS = 15_000
const SPINNER_MS = 120
const SPINNER = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏']
const TAIL_LINES = 30

/** A failure that the user can act on: its message is printed, never its stack. */
export class SetUpError extends Error {
  /** @param {string} message @param {{ tail?: string[], logFile?: string }} [details] */
  constructor(message, details = {}) {
    super(message)
    this.name = 'SetUpError'
    this.tail = details.tail ?? []
    this.logFile = details.logFile
  }
}

/** @param {number} ms */
export function seconds(ms) {
  return ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`
}

export class Console {
  #stream
  #logFile
  #logStarted = false
  #child = null
  #isTerminal
  /** How many steps did real work. */
  steps = 0

  /** @param {{ logFile: string, stream?: NodeJS.WriteStream }} options */
  constructor({ logFile, stream = process.stderr }) {
    this.#logFile = logFile
    this.#stream = stream
    this.#isTerminal = stream.isTTY === true && process.env.CI === undefined
  }

  /** @param {string} text */
  say(text) {
    this.#stream.write(`${text}\n`)
  }

  /** @param {string} text */
  log(text) {
    if (!this.#logStarted) {
      mkdirSync(dirname(this.#logFile), { recursive: true })
      writeFileSync(this.#logFile, '')
      this.#logStarted = true
    }
    appendFileSync(this.#logFile, text)
  }

  /**
   * Runs one step and shows it: a spinner on a terminal, else a line at the start, one every 15 s, and one at the end.
   * @template T @param {string} name @param {() => Promise<T>} work @returns {Promise<T>}
   */
  async step(name, work) {
    this.steps += 1
    const start = Date.now()
    let frame = 0
    const tick = () => {
      const elapsed = seconds(Date.now() - start)
      if (this.#isTerminal) this.#stream.write(`\r\x1b[K${SPINNER[frame++ % SPINNER.length]} ${name}  ${elapsed}`)
      else this.say(`  ... ${name}: ${elapsed} so far`)
    }
    if (this.#isTerminal) tick()
    else this.say(`  ... ${name}`)
    this.log(`\n=== ${name}\n`)
    const timer = setInterval(tick, this.#isTerminal ? SPINNER_MS : HEARTBEAT_MS)
    const finish = (/** @type {string} */ mark) => {
      clearInterval(timer)
      this.say(`${this.#isTerminal ? '\r\x1b[K' : ''}${mark} ${name}  ${seconds(Date.now() - start)}`)
    }
    try {
      const result = await work()
      finish('✓')
      return result
    } catch (error) {
      finish('✗')
      throw error
    }
  }

  /**
   * Runs a program with its output in the log file. Its own process group: one kill ends a compiler with all its children.
   * @param {string} command @param {string[]} args
   * @param {{ cwd?: string, env?: NodeJS.ProcessEnv, timeoutMs?: number }} [options]
   */
  async run(command, args, { cwd, env = process.env, timeoutMs } = {}) {
    const shown = [command, ...args].join(' ')
    this.log(`$ ${shown}\n`)
    /** @type {string[]} */
    let tail = []
    const child = spawn(command, args, { cwd, env, stdio: ['ignore', 'pipe', 'pipe'], detached: true })
    this.#child = child
    let timedOut = false
    const timer =
      timeoutMs === undefined
        ? undefined
        : setTimeout(() => {
            timedOut = true
            killGroup(child, 'SIGKILL')
          }, timeoutMs)
    const take = (/** @type {Buffer} */ chunk) => {
      const text = chunk.toString('utf8')
      this.log(text)
      tail = [...tail, ...text.split('\n').filter((line) => line.trim() !== '')].slice(-TAIL_LINES)
    }
    child.stdout.on('data', take)
    child.stderr.on('data', take)
    const outcome = await new Promise((resolve) => {
      child.once('error', (error) => resolve(error.message))
      child.once('close', (code, signal) => resolve(code === 0 ? null : signal !== null ? `ended by ${signal}` : `exit code ${code}`))
    })
    clearTimeout(timer)
    this.#child = null
    if (outcome === null) return
    throw new SetUpError(`${shown}: ${timedOut ? `no end after ${seconds(timeoutMs ?? 0)}` : outcome}`, { tail, logFile: this.#logFile })
  }

  /** Ends the program at hand, if any. */
  abort() {
    if (this.#child !== null) killGroup(this.#child, 'SIGTERM')
  }
}

/** @param {import('node:child_process').ChildProcess} child @param {NodeJS.Signals} signal */
function killGroup(child, signal) {
  if (child.pid === undefined) return
  try {
    process.kill(-child.pid, signal)
  } catch {
    child.kill(signal)
  }
}
