/**
 * Supervises the worker processes of one `millrace run`.
 *
 * Owns: the child processes, their states, restarts with back-off, the graceful stop, the exit code.
 * Does not own: what a worker does (`worker.ts`), signals of its own process and what a person sees (`run.ts`), the topology and the client, which it never loads.
 * Invariants:
 *  V1. A slot has at most one process at any time: the next is forked only after `exit` of the one before.
 *  V2. The first worker is forked alone. The others follow when it has sent its plan, so a wrong option or topology is reported once, by one process.
 *  V3. After `stop` nothing is forked, and `run` resolves: what does not end within the shutdown time-out is killed.
 *  V4. `run` resolves only when no child is left.
 */
import type { ChildProcess } from 'node:child_process'
import { fork } from 'node:child_process'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { invariant } from '../common/invariant.ts'
import type { Logger } from '../common/ports.ts'
import { EXIT_CODES } from '../errors/errors.ts'
import { addCounts, NO_COUNTS, type Counters, type WorkerState, type WorkerStatus } from '../metrics/status.ts'
import type { BackOff, ChildState } from './child-states.ts'
import { CHILD_TRANSITIONS, DEFAULT_BACK_OFF, exitMeaning, restartDelayMs } from './child-states.ts'
import type { WorkerFailure, WorkerMessage, WorkerPlan } from './messages.ts'

export interface SupervisorOptions {
  /** Path of the worker program. */
  readonly program: string
  readonly argumentsFor: (slot: number) => readonly string[]
  /** Environment of the workers. */
  readonly env: Readonly<Record<string, string | undefined>>
  readonly firstSlot: number
  /** Undefined: as many as the plan of the first worker says. */
  readonly workers: number | undefined
  /** Until the plan says otherwise. */
  readonly shutdownTimeoutMs: number
  readonly backOff?: BackOff
  readonly logger: Logger
  /** `inherit`: workers write to our output themselves. A function takes each line they write. */
  readonly output: 'inherit' | ((slot: number, line: string) => void)
  readonly onPlan?: (plan: WorkerPlan) => void
}

/** A worker as others may see it. */
export interface WorkerView {
  readonly slot: number
  readonly pid: number | undefined
  readonly state: ChildState
  /** The last thing it said, until its process ends. */
  readonly status: WorkerStatus | undefined
}

interface Child {
  readonly slot: number
  state: ChildState
  process: ChildProcess | undefined
  restarts: number
  runningSinceMs: number | undefined
  cancelRestart: () => void
  status: WorkerStatus | undefined
  failure: WorkerFailure | undefined
}

/** A worker in one of these has reached the broker. */
const WORKING: ReadonlySet<WorkerState> = new Set<WorkerState>(['restoring', 'running', 'rebalancing'])

export class Supervisor {
  readonly #options: SupervisorOptions
  readonly #backOff: BackOff
  readonly #children: Child[] = []
  readonly #outputs = new Set<Promise<void>>()
  /** Counters of processes that have ended: what they said last, so up to a second short. */
  #past: Counters = NO_COUNTS
  #restarts = 0
  #shutdownTimeoutMs: number
  #planned = false
  #anyRan = false
  #stopping = false
  #exitCode: number = EXIT_CODES.ok
  #cancelDeadline: () => void = () => {}
  #finish: (() => void) | undefined

  constructor(options: SupervisorOptions) {
    this.#options = options
    this.#backOff = options.backOff ?? DEFAULT_BACK_OFF
    this.#shutdownTimeoutMs = options.shutdownTimeoutMs
  }

  /** Resolves with the exit code when every worker has ended for good. Call once. */
  async run(): Promise<number> {
    invariant(this.#finish === undefined, 'supervisor-runs-once')
    const finished = new Promise<void>((resolve) => (this.#finish = resolve))
    this.#addChild(this.#options.firstSlot)
    await finished
    this.#cancelDeadline()
    // The last lines of the workers; bounded, for a grandchild may hold the pipe.
    await Promise.race([Promise.all(this.#outputs), delay(1_000, undefined, { ref: false })])
    return this.#exitCode
  }

  get workers(): readonly WorkerView[] {
    return this.#children.map((child) => ({ slot: child.slot, pid: child.process?.pid, state: child.state, status: child.status }))
  }

  get past(): Counters {
    return this.#past
  }

  /** Restarts so far. */
  get restarts(): number {
    return this.#restarts
  }

  /** Stops gracefully; called again, kills. `exitCode` is what `run` resolves with if nothing else fails. */
  stop(reason: string, exitCode: number = EXIT_CODES.ok): void {
    if (this.#stopping) {
      this.#kill(`${reason} again`)
      return
    }
    this.#stopping = true
    this.#exitCode = exitCode
    this.#options.logger.info({ event: 'stopping', reason, timeoutMs: this.#shutdownTimeoutMs }, `stopping: ${reason}`)
    const timer = setTimeout(() => this.#kill('shutdown time-out'), this.#shutdownTimeoutMs)
    this.#cancelDeadline = () => clearTimeout(timer)
    for (const child of this.#children) {
      if (child.state === 'waiting') {
        child.cancelRestart()
        this.#transition(child, 'stopped')
      } else if (child.state === 'starting' || child.state === 'running') {
        this.#transition(child, 'stopping')
        child.process?.kill('SIGTERM')
      }
    }
    this.#finishIfDone()
  }

  #kill(reason: string): void {
    for (const child of this.#children) {
      if (child.state !== 'stopping') continue
      this.#options.logger.warn(
        { event: 'worker killed', slot: child.slot, pid: child.process?.pid, reason },
        `worker ${child.slot} is killed: ${reason}`,
      )
      if (this.#exitCode === EXIT_CODES.ok) this.#exitCode = EXIT_CODES.fatal
      child.process?.kill('SIGKILL')
    }
  }

  #addChild(slot: number): void {
    const child: Child = {
      slot,
      state: 'waiting',
      process: undefined,
      restarts: 0,
      runningSinceMs: undefined,
      cancelRestart: () => {},
      status: undefined,
      failure: undefined,
    }
    this.#children.push(child)
    this.#fork(child)
  }

  #fork(child: Child): void {
    const { program, argumentsFor, env, output } = this.#options
    this.#transition(child, 'starting')
    child.status = undefined
    child.failure = undefined
    child.runningSinceMs = undefined
    const stream = output === 'inherit' ? 'inherit' : 'pipe'
    const worker = fork(program, argumentsFor(child.slot), { env, stdio: ['ignore', stream, stream, 'ipc'] })
    child.process = worker
    for (const lines of [worker.stdout, worker.stderr]) {
      if (lines === null || output === 'inherit') continue
      const done = new Promise<void>((resolve) => {
        const reader = createInterface({ input: lines, crlfDelay: Infinity })
        reader.on('line', (line) => output(child.slot, line))
        reader.on('close', resolve)
      })
      this.#outputs.add(done)
      void done.then(() => this.#outputs.delete(done))
    }
    let ended = false
    const onEnd = (code: number | null, signal: string | null): void => {
      if (ended) return
      ended = true
      this.#exited(child, worker, code, signal)
    }
    worker.on('message', (message) => {
      if (!ended) this.#received(child, message as WorkerMessage)
    })
    worker.once('exit', onEnd)
    worker.on('error', (error) => {
      // Without a pid the process was never made and there is no `exit`; otherwise it is a failed send or kill, and the exit tells.
      if (worker.pid !== undefined) return
      child.failure = {
        name: error.name,
        message: `the worker process could not be started: ${error.message}`,
        code: undefined,
        remedy: undefined,
      }
      onEnd(EXIT_CODES.fatal, null)
    })
    if (worker.pid !== undefined) {
      this.#options.logger.info({ event: 'worker started', slot: child.slot, pid: worker.pid }, `worker ${child.slot} started`)
    }
  }

  #received(child: Child, message: WorkerMessage): void {
    switch (message.type) {
      case 'plan':
        this.#plan(message.plan)
        return
      case 'state':
        if (WORKING.has(message.state)) this.#working(child)
        return
      case 'status':
        child.status = message.status
        if (WORKING.has(message.status.state)) this.#working(child)
        return
      case 'failure':
        child.failure = message.failure
        return
    }
  }

  #plan(plan: WorkerPlan): void {
    if (this.#planned) return
    this.#planned = true
    this.#shutdownTimeoutMs = plan.shutdownTimeoutMs
    this.#options.onPlan?.(plan)
    if (this.#stopping) return
    const count = this.#options.workers ?? plan.workers
    for (let index = 1; index < count; index++) this.#addChild(this.#options.firstSlot + index)
  }

  #working(child: Child): void {
    this.#anyRan = true
    if (child.state !== 'starting') return
    child.runningSinceMs = performance.now()
    this.#transition(child, 'running')
  }

  #exited(child: Child, worker: ChildProcess, code: number | null, signal: string | null): void {
    const { logger } = this.#options
    const meaning = exitMeaning(code, signal, this.#anyRan)
    const failure = child.failure
    const requested = child.state === 'stopping'
    const reason = requested && signal === null && code === EXIT_CODES.ok ? 'stopped as asked' : (failure?.message ?? meaning.reason)
    const details = { event: 'worker exited', slot: child.slot, pid: worker.pid, code, signal, reason }
    const text = `worker ${child.slot} exited (${signal ?? `code ${code}`}): ${reason}`
    if (requested) logger.info(details, text)
    else logger.warn(details, text)
    if (child.status !== undefined) this.#past = addCounts(this.#past, child.status)
    child.status = undefined
    child.process = undefined

    if (requested) {
      // A stop that failed on the way (a last commit that was refused) is told by the exit code; a signal is our own.
      if (code !== null && code !== EXIT_CODES.ok && this.#exitCode === EXIT_CODES.ok) this.#exitCode = code
      this.#transition(child, 'stopped')
      this.#finishIfDone()
      return
    }
    if (meaning.reaction === 'stop-all') {
      this.#transition(child, 'stopped')
      this.#stopBecause(child, code ?? EXIT_CODES.fatal, meaning.reason, failure)
      return
    }
    const ranMs = child.runningSinceMs === undefined ? 0 : performance.now() - child.runningSinceMs
    if (ranMs >= this.#backOff.healthyAfterMs) child.restarts = 0
    const delayMs = restartDelayMs(child.restarts, this.#backOff)
    child.restarts++
    this.#restarts++
    this.#transition(child, 'waiting')
    logger.info(
      { event: 'worker restarting', slot: child.slot, delayMs, restarts: child.restarts },
      `worker ${child.slot} restarts in ${delayMs} ms`,
    )
    const timer = setTimeout(() => this.#fork(child), delayMs)
    child.cancelRestart = () => clearTimeout(timer)
  }

  /** One clear line, then everything stops. */
  #stopBecause(child: Child, code: number, reason: string, failure: WorkerFailure | undefined): void {
    const message = failure?.message ?? `worker ${child.slot} exited with code ${code}`
    this.#options.logger.error(
      { event: 'failed', slot: child.slot, code, error: failure?.name, errorCode: failure?.code, reason, remedy: failure?.remedy },
      failure?.remedy === undefined ? message : `${message}\n${failure.remedy}`,
    )
    if (!this.#stopping) this.stop(`worker ${child.slot}: ${reason}`, code)
    else this.#finishIfDone()
  }

  /** The one place that changes a child's state. */
  #transition(child: Child, to: ChildState): void {
    invariant(CHILD_TRANSITIONS[child.state].includes(to), 'supervisor-child-transition', { slot: child.slot, from: child.state, to })
    child.state = to
  }

  #finishIfDone(): void {
    if (this.#stopping && this.#children.every((child) => child.state === 'stopped')) this.#finish?.()
  }
}
