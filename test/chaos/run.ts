/**
 * The course of a run: brokers, workers, load, faults; then silence, a clean stop, the verifier, and one more start that must restore nothing.
 *
 * Owns: the order of it, and everything it started. Does not own: how a fault strikes (`faults.ts`), the verdict (`verifier.ts`), what is printed at the end
 * (`report.ts`).
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { appendFileSync, mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Config } from '../../src/config/define.ts'
import { ChaosCluster } from './cluster.ts'
import type { Violation } from './comparison.ts'
import { strike, until } from './faults.ts'
import { CLIENT_HUNG, Fleet, lastLines, type WorkerProcess } from './fleet.ts'
import type { LoaderArguments, LoaderMessage } from './loader.ts'
import type { ChaosOptions } from './options.ts'
import { compileWorker } from './program.ts'
import { scenarioOf, type Scenario } from './scenario.ts'
import { planTimeline, type FaultKind, type PlannedFault } from './timeline.ts'
import type { Verdict, VerifierArguments } from './verifier.ts'
import type { WorkerLine } from './worker.ts'

const SESSION_TIMEOUT_MS = 15_000
/** Short times, so that some minutes hold many faults; the rule transactionTimeout + 10 s <= sessionTimeout still holds. */
const CONFIG = {
  transactionTimeout: '5s',
  sessionTimeout: SESSION_TIMEOUT_MS,
  heartbeatInterval: '500ms',
  maxPollInterval: '30s',
  commitInterval: '50ms',
  memtableBytes: '64KiB',
  stateFlushInterval: '500ms',
  metadataPoll: '2s',
  taskTimeout: '60s',
  lockTimeout: '3s',
} as const satisfies Partial<Config>

const PROGRESS_INTERVAL_MS = 5_000
const FIRST_START_TIMEOUT_MS = 60_000
/** Without any progress. A busy machine may have a lot to catch up with. */
const SETTLE_TIMEOUT_MS = 120_000
const FAULTS_END_TIMEOUT_MS = 180_000
const ALL_RUNNING_TIMEOUT_MS = 60_000
/** Faults that take a broker out of reach, and how long after their end a worker may say that it found none. */
const BROKER_FAULTS: ReadonlySet<FaultKind> = new Set(['broker', 'coordinator', 'drop', 'half-close', 'delay'])
const BROKER_FAULT_ECHO_MS = 20_000
const PROGRAMS = { loader: 'loader.ts', verifier: 'verifier.ts' } as const

export interface FiredFault {
  readonly planned: PlannedFault
  readonly beganAt: number
  firedAt: number | undefined
  endedAt: number | undefined
  detail: string
}

export interface RunResult {
  readonly violations: readonly Violation[]
  readonly faults: readonly FiredFault[]
  readonly counts: Readonly<Record<string, number>>
  readonly workers: readonly WorkerProcess[]
  readonly startedAt: number
  readonly committedByLoader: string
}

interface LoaderState {
  sent: number
  acknowledged: number
  done: boolean
  summary: string
}

export class ChaosRun {
  readonly #options: ChaosOptions
  readonly #folder: string
  readonly #say: (line: string) => void
  readonly #violations: Violation[] = []
  readonly #fired: FiredFault[] = []
  readonly #counts: Record<string, number> = {}
  readonly #stateDirs: string[] = []
  readonly #loader: LoaderState = { sent: 0, acknowledged: 0, done: false, summary: '' }
  readonly #scenario: Scenario
  #cluster: ChaosCluster | undefined
  #fleet: Fleet | undefined
  #children = new Set<ChildProcess>()
  #lastFault = 'none yet'
  #startedAt = 0

  constructor(options: ChaosOptions, folder: string, say: (line: string) => void) {
    this.#options = options
    this.#folder = folder
    this.#say = say
    this.#scenario = scenarioOf(`chaos-${options.seed}`, options.partitions)
  }

  get fired(): readonly FiredFault[] {
    return this.#fired
  }

  async run(): Promise<RunResult> {
    const { nodes, kafka, slots, seed, minutes } = this.#options
    const cluster = await ChaosCluster.start({ nodes, version: kafka, onProgress: this.#say })
    this.#cluster = cluster
    await cluster.createTopics(this.#scenario)
    const stateDir = this.#newStateDir()
    const fleet = new Fleet({
      scenario: this.#scenario,
      config: { ...CONFIG, brokers: cluster.brokers, instance: this.#scenario.instance },
      program: compileWorker(join(this.#folder, 'program')),
      stateDir,
      logDir: join(this.#folder, 'logs'),
      brokersWereAway: () => this.#brokersWereAway(),
      onLine: (worker, line) => this.#heard(worker, line),
      onExit: (worker) => {
        this.#count(`worker processes ended with ${worker.signal ?? `exit code ${worker.exitCode ?? '?'}`}`)
        if (worker.failureCode === CLIENT_HUNG) this.#count('of these, a call of the client hung')
      },
    })
    this.#fleet = fleet
    for (let slot = 0; slot < slots; slot++) fleet.start(slot)
    if (!(await until(() => this.#allRunning(), FIRST_START_TIMEOUT_MS)))
      throw new Error(`the workers did not start: ${this.#workersText()}`)
    this.#say(`${slots} workers run; ${minutes} min of load and faults begin`)
    this.#startedAt = Date.now()
    const loader = this.#startLoader({
      brokers: cluster.directBrokers,
      topic: this.#scenario.input,
      partitions: this.#scenario.partitions,
      seed,
      rate: this.#options.rate,
    })
    const progress = setInterval(() => this.#progress(), PROGRESS_INTERVAL_MS)
    try {
      const faults = await this.#timeline(stateDir)
      await this.#stopLoader(loader)
      await this.#faultsEnd(faults)
      await this.#settle()
    } finally {
      clearInterval(progress)
    }
    await this.#endCleanly(stateDir)
    this.#violations.push(...fleet.violations)
    return {
      violations: this.#violations,
      faults: this.#fired,
      counts: this.#counts,
      workers: fleet.all,
      startedAt: this.#startedAt,
      committedByLoader: this.#loader.summary,
    }
  }

  /** Ends what still runs. Safe to call twice, and after an error. */
  async cleanUp(): Promise<void> {
    for (const child of this.#children) child.kill('SIGKILL')
    await this.#fleet?.endAll()
    await this.#cluster?.stop()
  }

  /** In an exit handler: synchronous. */
  killAllNow(): void {
    for (const child of this.#children) child.kill('SIGKILL')
    this.#fleet?.killAllNow()
  }

  /** Returns the faults that are under way when the time is over. */
  async #timeline(stateDir: string): Promise<readonly Promise<void>[]> {
    const { seed, minutes, faults, kills, slots, nodes } = this.#options
    const possible = faults.filter((kind) => nodes === 3 || (kind !== 'broker' && kind !== 'coordinator'))
    const plan = planTimeline({ seed, minutes, faults: possible, kills })
    const fleet = this.#fleet as Fleet
    const running: Promise<void>[] = []
    for (const planned of plan) {
      const waitMs = this.#startedAt + planned.atMs - Date.now()
      if (waitMs > 0) await delay(waitMs)
      const fired: FiredFault = { planned, beganAt: Date.now(), firedAt: undefined, endedAt: undefined, detail: '' }
      this.#fired.push(fired)
      running.push(
        strike(planned, {
          fleet,
          cluster: this.#cluster as ChaosCluster,
          scenario: this.#scenario,
          stateDir,
          newStateDir: () => this.#newStateDir(),
          sessionTimeoutMs: SESSION_TIMEOUT_MS,
          slots,
          struck: (detail) => {
            fired.firedAt ??= Date.now()
            fired.detail = detail
            this.#lastFault = detail
            this.#note({ event: 'fault', kind: planned.kind, point: planned.point, detail })
          },
          violation: (violation) => void this.#violations.push(violation),
        }).then(
          () => {
            fired.endedAt = Date.now()
            this.#note({
              event: 'fault over',
              kind: planned.kind,
              point: planned.point,
              detail: fired.detail,
              fired: fired.firedAt !== undefined,
            })
          },
          (error: unknown) => {
            fired.endedAt = Date.now()
            this.#violations.push({ kind: 'process', text: `the fault ${planned.kind} itself failed: ${String(error)}` })
          },
        ),
      )
    }
    const restMs = this.#startedAt + minutes * 60_000 - Date.now()
    if (restMs > 0) await delay(restMs)
    return running
  }

  async #faultsEnd(running: readonly Promise<void>[]): Promise<void> {
    const ended = await Promise.race([Promise.all(running).then(() => true), delay(FAULTS_END_TIMEOUT_MS, false)])
    if (!ended) this.#violations.push({ kind: 'settle', text: `faults that do not end: ${this.#openFaults().join(', ')}` })
  }

  /** Silence: all faults are over, every slot is up; waits for lag 0. */
  async #settle(): Promise<void> {
    const fleet = this.#fleet as Fleet
    const cluster = this.#cluster as ChaosCluster
    this.#say('silence: no faults, no load; the workers settle')
    for (let slot = 0; slot < this.#options.slots; slot++) {
      const current = fleet.current(slot)
      current?.order({ order: 'arm', failpoints: '' })
      fleet.release(slot)
      if (current === undefined) fleet.start(slot)
    }
    const begun = Date.now()
    let progressAt = begun
    let least = Infinity
    for (;;) {
      const lag = await cluster.lag(this.#scenario)
      const total = [...lag.values()].reduce<number>((sum, records) => sum + (records ?? Infinity), 0)
      if (total === 0 && this.#allRunning()) break
      if (total < least) {
        least = total
        progressAt = Date.now()
      }
      if (Date.now() - progressAt > SETTLE_TIMEOUT_MS) {
        this.#violations.push({
          kind: 'settle',
          text: `not settled, without progress for ${SETTLE_TIMEOUT_MS / 1_000} s: ${await this.#diagnosis()}`,
        })
        return
      }
      await delay(500)
    }
    this.#counts['settled after ms'] = Date.now() - begun
  }

  /**
   * Two clean stops: after the first start every task is in its own folder of the state directory (one that moved while its folder was locked lives in a
   * sibling until then), and so the second start must restore nothing at all.
   */
  async #endCleanly(stateDir: string): Promise<void> {
    const cluster = this.#cluster as ChaosCluster
    await this.#stopAll()
    await this.#startAll()
    await this.#stopAll()
    this.#say('all workers are stopped; the verifier reads')
    const verdict = await this.#verify({
      brokers: cluster.directBrokers,
      scenario: this.#scenario,
      stateDirs: this.#stateDirs,
      java: cluster.java,
      acknowledged: this.#loader.acknowledged,
    })
    this.#violations.push(...verdict.violations)
    Object.assign(this.#counts, verdict.counts)
    const current = verdict.files.filter(({ path, isCurrent }) => isCurrent && path.startsWith(stateDir)).length
    this.#counts['current state files'] = current
    this.#say('one more start after the clean stop: nothing may be restored')
    for (const worker of await this.#startAll()) {
      if (worker.restored > 0)
        this.#violations.push({
          kind: 'restore',
          text: `worker ${worker.slot} restored ${worker.restored} records after a clean stop; its last lines:\n${lastLines(worker)}`,
        })
    }
    await this.#stopAll()
    const left = (this.#fleet as Fleet).alive
    for (const worker of left)
      this.#violations.push({ kind: 'process', text: `process ${worker.pid ?? '?'} of worker ${worker.slot} is left` })
  }

  async #stopAll(): Promise<void> {
    const fleet = this.#fleet as Fleet
    await Promise.all(fleet.slots().map((slot) => fleet.stop(slot, false)))
    for (const worker of fleet.alive) await fleet.stopProcess(worker, false)
  }

  async #startAll(): Promise<readonly WorkerProcess[]> {
    const fleet = this.#fleet as Fleet
    const workers = Array.from({ length: this.#options.slots }, (_unused, slot) => fleet.start(slot))
    if (!(await until(() => this.#allRunning(), ALL_RUNNING_TIMEOUT_MS)))
      this.#violations.push({ kind: 'settle', text: `the workers do not run again after a clean stop: ${await this.#diagnosis()}` })
    return workers
  }

  #brokersWereAway(): boolean {
    const since = Date.now() - BROKER_FAULT_ECHO_MS
    return this.#fired.some(({ planned, endedAt }) => BROKER_FAULTS.has(planned.kind) && (endedAt ?? Infinity) > since)
  }

  /** Every slot of the run works, and together they have all tasks. */
  #allRunning(): boolean {
    const fleet = this.#fleet as Fleet
    let tasks = 0
    for (let slot = 0; slot < this.#options.slots; slot++) {
      const worker = fleet.current(slot)
      if (worker?.state !== 'running') return false
      tasks += worker.tasks.size
    }
    return tasks === this.#options.partitions
  }

  #heard(worker: WorkerProcess, line: WorkerLine): void {
    if (line.event === 'log' && line.message.startsWith('a damaged store file was moved aside')) this.#count('damaged files moved aside')
    if (line.event === 'log' && line.message.startsWith('another process keeps the state')) this.#count('sibling state folders')
    if (line.event === 'stalled') this.#count('stalls of more than 2 s')
    if (line.event === 'restore') {
      this.#count('restores')
      this.#count('changelog records replayed', line.records)
      this.#counts['most records of one restore'] = Math.max(this.#counts['most records of one restore'] ?? 0, line.records)
    }
    if (line.event === 'revoked' && line.lost) this.#count('tasks lost', line.tasks.length)
    if (line.event === 'revoked' && !line.lost) this.#count('tasks revoked', line.tasks.length)
    if (line.event !== 'status') this.#note({ slot: worker.slot, pid: worker.pid, ...line }, line.at)
  }

  #count(name: string, by = 1): void {
    this.#counts[name] = (this.#counts[name] ?? 0) + by
  }

  /** The story of a run in one file, faults and workers in one order. */
  #note(entry: object, at = Date.now()): void {
    appendFileSync(
      join(this.#folder, 'timeline.jsonl'),
      `${JSON.stringify({ time: new Date(at).toISOString().slice(11, 23), ...entry })}\n`,
    )
  }

  #newStateDir(): string {
    const folder = join(this.#folder, `state-${this.#stateDirs.length}`)
    mkdirSync(folder, { recursive: true })
    this.#stateDirs.push(folder)
    return folder
  }

  #startLoader(args: LoaderArguments): ChildProcess {
    const child = this.#program('loader', args, 'inherit')
    child.on('message', (message: LoaderMessage) => {
      if (message.type === 'note') {
        this.#note({ event: 'loader', text: message.text })
        return
      }
      this.#loader.sent = message.sent
      this.#loader.acknowledged = message.acknowledged
      if (message.type === 'done') {
        this.#loader.done = true
        this.#loader.summary = `${message.sent} records sent, ${message.acknowledged} acknowledged outside of transactions; ${message.committed} transactions committed, ${message.aborted} aborted`
      }
    })
    return child
  }

  async #stopLoader(child: ChildProcess): Promise<void> {
    if (child.connected) child.send('stop')
    const exit = new Promise<void>((resolve) => (child.exitCode === null ? child.once('exit', () => resolve()) : resolve()))
    await Promise.race([exit, delay(240_000, undefined, { ref: false })])
    if (!this.#loader.done) throw new Error(`the loader did not end in order (exit code ${child.exitCode ?? 'none'})`)
  }

  async #verify(args: VerifierArguments): Promise<Verdict> {
    const child = this.#program('verifier', args, 'pipe')
    let verdict: Verdict | undefined
    if (child.stdout !== null)
      createInterface({ input: child.stdout }).on('line', (line) => {
        if (line.startsWith('{"violations"')) verdict = JSON.parse(line) as Verdict
      })
    const code = await new Promise<number | null>((resolve) => child.once('close', resolve))
    if (verdict === undefined) throw new Error(`the verifier ended with exit code ${code ?? 'none'} and no verdict`)
    return verdict
  }

  #program(name: keyof typeof PROGRAMS, args: object, stdout: 'inherit' | 'pipe'): ChildProcess {
    const file = fileURLToPath(new URL(PROGRAMS[name], import.meta.url))
    const child = spawn(process.execPath, ['--max-old-space-size=12288', '--import', 'tsx', file, JSON.stringify(args)], {
      stdio: ['ignore', stdout, 'inherit', 'ipc'],
    })
    this.#children.add(child)
    child.once('close', () => this.#children.delete(child))
    return child
  }

  #progress(): void {
    const leftMs = Math.max(0, this.#startedAt + this.#options.minutes * 60_000 - Date.now())
    const fleet = this.#fleet as Fleet
    let records = 0
    let outputs = 0
    let duplicates = 0
    let up = 0
    for (const worker of fleet.all) {
      records += worker.status?.records ?? 0
      outputs += worker.status?.outputs ?? 0
      duplicates += worker.status?.duplicates ?? 0
      if (worker.alive && worker.state === 'running') up++
    }
    const fired = this.#fired.filter(({ firedAt }) => firedAt !== undefined).length
    this.#say(
      `${clock(leftMs)} left · in ${records} of ${this.#loader.sent} · out ${outputs} · duplicates ${duplicates} · ${up} of ${fleet.alive.length} workers run · ${fired} faults, the last: ${this.#lastFault}`,
    )
  }

  async #diagnosis(): Promise<string> {
    const cluster = this.#cluster as ChaosCluster
    const lag = await cluster.lag(this.#scenario)
    const group = await cluster.client.group(this.#scenario.application)
    const open = this.#openFaults()
    return [
      '',
      `lag by partition: ${[...lag].map(([partition, records]) => `${partition}: ${records ?? 'no offset'}`).join(', ')}`,
      `group: ${group.state}, coordinator ${group.coordinator ?? '?'}`,
      ...group.members.map((member) => `  member ${member.member}: ${member.partitions.join(', ')}`),
      `workers: ${this.#workersText()}`,
      ...(open.length === 0 ? [] : [`faults that have not ended: ${open.join(', ')}`]),
      ...(this.#fleet as Fleet).alive.map((worker) => `last lines of worker ${worker.slot}:\n${lastLines(worker)}`),
    ].join('\n  ')
  }

  #workersText(): string {
    return (this.#fleet as Fleet).alive
      .map(
        (worker) =>
          `worker ${worker.slot} (process ${worker.pid ?? '?'}) ${worker.state}, tasks ${[...worker.tasks].sort().join(' ')}, status ${JSON.stringify(worker.status)}`,
      )
      .join('; ')
  }

  #openFaults(): string[] {
    return this.#fired.filter(({ endedAt }) => endedAt === undefined).map(({ planned, detail }) => `${planned.kind} (${detail})`)
  }
}

function clock(ms: number): string {
  const seconds = Math.round(ms / 1_000)
  return `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, '0')}`
}
