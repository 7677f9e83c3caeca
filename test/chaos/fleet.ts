/**
 * The worker processes of a run, supervised as `millrace run` would: one process per slot, restarted after a small back-off whatever ended it.
 *
 * Owns: processes, what they said, whether an end is explained. Does not own: when something is done to them (`faults.ts`).
 * Invariant: an exit that no fault explains is a violation, with the last lines of its process.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { createWriteStream, mkdirSync, type WriteStream } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Config } from '../../src/config/define.ts'
import { EXIT_CODES } from '../../src/errors/errors.ts'
import type { WorkerState, WorkerStatus } from '../../src/metrics/status.ts'
import type { Violation } from './comparison.ts'
import type { Scenario } from './scenario.ts'
import type { WorkerArguments, WorkerLine, WorkerOrder } from './worker.ts'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const KEPT_LINES = 60
const BACK_OFF_MS = { first: 100, most: 3_000 } as const
/** A process that lived this long is no crash loop. */
const HEALTHY_MS = 5_000
/** A clean stop that takes longer is ended, and a violation. */
export const STOP_TIMEOUT_MS = 60_000

export interface FleetOptions {
  readonly scenario: Scenario
  readonly config: Config
  /** Path of the compiled worker. */
  readonly program: string
  /** Of the slots; a twin has another. */
  readonly stateDir: string
  readonly logDir: string
  /** Whether brokers were out of reach just now: a start that found none may end with exit code 3, and a supervisor starts it again. */
  readonly brokersWereAway: () => boolean
  readonly onLine?: (worker: WorkerProcess, line: WorkerLine) => void
  readonly onExit?: (worker: WorkerProcess) => void
}

export interface MemorySample {
  /** ms since 1970. */
  readonly at: number
  readonly rssBytes: number
  /** Of V8: objects in use, and buffers outside its heap. The rest of RSS is the Kafka client, SQLite, code, and free room of the allocators. */
  readonly heapBytes: number
  readonly bufferBytes: number
}

export const CLIENT_HUNG = 'client-hangs'
/** Ended, with a claim on its slot that nobody contests: its supervisor starts it again, and then the other one goes. */
export const PUT_OUT = 'membership-lost'

/** One process of a slot. */
export class WorkerProcess {
  readonly slot: number
  readonly stateDir: string
  readonly startedAt = Date.now()
  readonly exit: Promise<void>
  readonly memory: MemorySample[] = []
  /** The last lines, as they came. */
  readonly lines: string[] = []
  readonly tasks = new Set<string>()
  state: WorkerState = 'created'
  status: WorkerStatus | undefined
  firstCommitAt: number | undefined
  /** Changelog records that its restores replayed. */
  restored = 0
  restores = 0
  struck: string | undefined
  /** Who sends it SIGKILL, or lets it die, says so first. */
  fate: string | undefined
  /** Told to stop; it may still be killed while it does. */
  asked = false
  /** It may find its slot taken. */
  hasTwin = false
  failure: string | undefined
  failureCode: string | undefined
  endedAt: number | undefined
  exitCode: number | null = null
  signal: NodeJS.Signals | null = null
  readonly #child: ChildProcess

  constructor(
    program: string,
    args: WorkerArguments,
    failpoints: string | undefined,
    log: WriteStream,
    onLine: (worker: WorkerProcess, line: WorkerLine) => void,
  ) {
    this.slot = args.slot
    this.stateDir = String(args.config.stateDir)
    const env = { ...process.env, ...(failpoints === undefined ? {} : { MILLRACE_FAILPOINTS: failpoints }) }
    const child = spawn(process.execPath, [program, JSON.stringify(args)], {
      cwd: ROOT,
      env,
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    })
    this.#child = child
    child.on('error', () => undefined)
    for (const stream of [child.stdout, child.stderr]) {
      if (stream === null) continue
      createInterface({ input: stream }).on('line', (text) => {
        const line = lineOf(text)
        log.write(`${text}\n`)
        // A status each second would push out the rest.
        if (line?.event !== 'status') {
          this.lines.push(text)
          if (this.lines.length > KEPT_LINES) this.lines.shift()
        }
        if (line === undefined) return
        this.#take(line)
        onLine(this, line)
      })
    }
    this.exit = new Promise((resolve) => {
      child.once('close', (code, signal) => {
        this.endedAt = Date.now()
        this.exitCode = code
        this.signal = signal
        resolve()
      })
    })
  }

  get pid(): number | undefined {
    return this.#child.pid
  }

  get alive(): boolean {
    return this.endedAt === undefined
  }

  kill(signal: NodeJS.Signals): void {
    if (this.alive) this.#child.kill(signal)
  }

  order(order: WorkerOrder): void {
    if (this.alive && this.#child.connected) this.#child.send(order, () => undefined)
  }

  /** Undefined: the end is explained. */
  unexplained(brokersWereAway: boolean): string | undefined {
    const { exitCode, signal } = this
    if (signal === 'SIGKILL' && (this.fate !== undefined || this.struck?.includes(' kill ') === true)) return undefined
    if (exitCode === EXIT_CODES.ok && this.asked) return undefined
    if (exitCode === EXIT_CODES.slotTaken && this.hasTwin) return undefined
    if (exitCode === EXIT_CODES.unavailable && (brokersWereAway || (this.hasTwin && this.failureCode === PUT_OUT))) return undefined
    // Calls of the client that outlast their time-outs (CLIENT-FACTS 6, 23) end the process with its ordinary code for failures: a supervisor restarts it.
    if (this.failureCode === CLIENT_HUNG && brokersWereAway) return undefined
    return `worker ${this.slot} (process ${this.pid ?? '?'}) ended with ${signal ?? `exit code ${exitCode}`}${this.failure === undefined ? '' : `: ${this.failure}`}`
  }

  #take(line: WorkerLine): void {
    switch (line.event) {
      case 'state':
        this.state = line.to
        break
      case 'assigned':
        for (const task of line.tasks) this.tasks.add(task)
        break
      case 'revoked':
        for (const task of line.tasks) this.tasks.delete(task)
        break
      case 'restore':
        this.restored += line.records
        this.restores++
        break
      case 'first commit':
        this.firstCommitAt = line.at
        break
      case 'status':
        this.status = line.status
        this.memory.push({ at: line.at, rssBytes: line.status.rssBytes, heapBytes: line.heapBytes, bufferBytes: line.bufferBytes })
        break
      case 'strike':
        this.struck = line.text
        break
      case 'failed':
        this.failure = `${line.name} ${line.code ?? ''}: ${line.message}`
        this.failureCode = line.code
        break
      case 'log':
      case 'stalled':
      case 'closed':
      case 'handles left':
        break
    }
  }
}

interface Slot {
  readonly number: number
  /** Restarted after an end. */
  wanted: boolean
  current: WorkerProcess | undefined
  /** Of the next start only. */
  failpoints: string | undefined
  /** A fault has it in its hands: nothing is restarted until it lets go. */
  held: boolean
  backOffMs: number
  starting: Promise<void> | undefined
}

export class Fleet {
  readonly #options: FleetOptions
  readonly #slots = new Map<number, Slot>()
  readonly #logs = new Map<number, WriteStream>()
  readonly #alive = new Set<WorkerProcess>()
  readonly all: WorkerProcess[] = []
  readonly violations: Violation[] = []
  #ending = false

  constructor(options: FleetOptions) {
    this.#options = options
    mkdirSync(options.logDir, { recursive: true })
  }

  /** Current processes that run, twins included. */
  get alive(): readonly WorkerProcess[] {
    return [...this.#alive]
  }

  current(slot: number): WorkerProcess | undefined {
    const process = this.#slots.get(slot)?.current
    return process?.alive === true ? process : undefined
  }

  slots(): readonly number[] {
    return [...this.#slots.keys()]
  }

  isHeld(slot: number): boolean {
    return this.#slots.get(slot)?.held ?? false
  }

  hold(slot: number): void {
    this.#slot(slot).held = true
  }

  /** Lets go: a slot that is wanted and down is started. */
  release(slot: number): void {
    const entry = this.#slot(slot)
    entry.held = false
    if (entry.wanted && entry.current?.alive !== true) this.#restartSoon(entry)
  }

  /** Starts the slot now, and again whenever it ends. */
  start(slot: number, failpoints?: string): WorkerProcess {
    const entry = this.#slot(slot)
    entry.wanted = true
    entry.failpoints = failpoints
    return this.#spawn(entry)
  }

  /** The next start of the slot, however it comes, has these armed from the first line on. */
  armNext(slot: number, failpoints: string): void {
    this.#slot(slot).failpoints = failpoints
  }

  /** A second process of the slot, in a state folder of its own. */
  startTwin(slot: number, stateDir: string): WorkerProcess {
    const twin = this.#launch(this.#slot(slot), stateDir, undefined)
    twin.hasTwin = true
    const current = this.current(slot)
    if (current !== undefined) current.hasTwin = true
    return twin
  }

  /** The slot goes on with this process, as if it had started it. */
  adopt(worker: WorkerProcess): void {
    const entry = this.#slot(worker.slot)
    entry.current = worker
    worker.hasTwin = false
  }

  /** A clean stop; resolves when the process has ended. It is not restarted unless `wanted` is set again by `start`. */
  async stop(slot: number, leave: boolean): Promise<void> {
    const entry = this.#slot(slot)
    entry.wanted = false
    await entry.starting
    await this.stopProcess(entry.current, leave)
  }

  async stopProcess(worker: WorkerProcess | undefined, leave: boolean): Promise<void> {
    if (worker?.alive !== true) return
    worker.asked = true
    worker.order({ order: 'stop', leave })
    const timer = new AbortController()
    const late = await Promise.race([
      worker.exit.then(() => false),
      delay(STOP_TIMEOUT_MS, true, { signal: timer.signal }).catch(() => false),
    ])
    timer.abort()
    if (!late) return
    this.violations.push({
      kind: 'process',
      text: `worker ${worker.slot} (process ${worker.pid ?? '?'}) was asked to stop and still runs after ${STOP_TIMEOUT_MS / 1_000} s; its last lines:\n${lastLines(worker)}`,
    })
    worker.fate = 'stop time-out'
    worker.kill('SIGKILL')
    await worker.exit
  }

  /** kill -9. */
  async kill(worker: WorkerProcess, why: string): Promise<void> {
    worker.fate = why
    worker.kill('SIGKILL')
    await worker.exit
  }

  /** Ends everything at once, also what is stopped; for the end of a run that failed. */
  async endAll(): Promise<void> {
    this.#ending = true
    for (const worker of this.#alive) {
      worker.fate ??= 'end of the run'
      worker.kill('SIGKILL')
    }
    await Promise.all([...this.#alive].map(({ exit }) => exit))
    for (const log of this.#logs.values()) log.end()
  }

  /** For an exit handler. */
  killAllNow(): void {
    for (const worker of this.#alive) worker.kill('SIGKILL')
  }

  #slot(number: number): Slot {
    let slot = this.#slots.get(number)
    if (slot === undefined) {
      slot = {
        number,
        wanted: false,
        current: undefined,
        failpoints: undefined,
        held: false,
        backOffMs: BACK_OFF_MS.first,
        starting: undefined,
      }
      this.#slots.set(number, slot)
    }
    return slot
  }

  #spawn(slot: Slot): WorkerProcess {
    const { failpoints } = slot
    slot.failpoints = undefined
    slot.current = this.#launch(slot, this.#options.stateDir, failpoints)
    return slot.current
  }

  #launch(slot: Slot, stateDir: string, failpoints: string | undefined): WorkerProcess {
    const { program, scenario, config, logDir, onLine } = this.#options
    let log = this.#logs.get(slot.number)
    if (log === undefined) {
      log = createWriteStream(join(logDir, `worker-${slot.number}.jsonl`), { flags: 'a' })
      this.#logs.set(slot.number, log)
    }
    const worker = new WorkerProcess(
      program,
      { scenario, slot: slot.number, config: { ...config, stateDir } },
      failpoints,
      log,
      (from, line) => onLine?.(from, line),
    )
    log.write(`${JSON.stringify({ at: Date.now(), event: 'started', pid: worker.pid, stateDir, failpoints })}\n`)
    this.#alive.add(worker)
    this.all.push(worker)
    void worker.exit.then(() => this.#ended(worker, slot))
    return worker
  }

  #ended(worker: WorkerProcess, slot: Slot): void {
    this.#alive.delete(worker)
    this.#logs
      .get(slot.number)
      ?.write(
        `${JSON.stringify({ at: Date.now(), event: 'ended', pid: worker.pid, code: worker.exitCode, signal: worker.signal, fate: worker.fate })}\n`,
      )
    const unexplained = worker.unexplained(this.#options.brokersWereAway())
    if (unexplained !== undefined && !this.#ending)
      this.violations.push({ kind: 'process', text: `${unexplained}; its last lines:\n${lastLines(worker)}` })
    this.#options.onExit?.(worker)
    if (slot.current !== worker) return
    const lived = Date.now() - worker.startedAt
    slot.backOffMs = lived > HEALTHY_MS || unexplained === undefined ? BACK_OFF_MS.first : Math.min(BACK_OFF_MS.most, slot.backOffMs * 2)
    if (slot.wanted && !slot.held) this.#restartSoon(slot)
  }

  #restartSoon(slot: Slot): void {
    if (this.#ending || slot.starting !== undefined) return
    slot.starting = delay(slot.backOffMs).then(() => {
      slot.starting = undefined
      if (slot.wanted && !slot.held && !this.#ending && slot.current?.alive !== true) this.#spawn(slot)
    })
  }
}

export function lastLines(worker: WorkerProcess): string {
  return worker.lines
    .slice(-25)
    .map((line) => `    ${line.slice(0, 600)}`)
    .join('\n')
}

function lineOf(text: string): WorkerLine | undefined {
  try {
    const line = JSON.parse(text) as WorkerLine
    return typeof line.event === 'string' ? line : undefined
  } catch {
    return undefined
  }
}
