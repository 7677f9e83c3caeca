/**
 * The course of the demo on a given cluster: topics, both sides, the loader, the kills, the end of the input, the count.
 *
 * Four things go on beside each other while the loader writes: the kills of each side, the worker that is added and loses its state folder, and a look
 * at the committed offsets, from which alone is said who is how far.
 */
import { fork } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { existsSync, readdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import pc from 'picocolors'
import type { ProvidedBroker } from '../scripts/broker-provider/provider.ts'
import { Ledger } from './baseline-ledger.ts'
import { BaselineSide } from './baseline-side.ts'
import { track } from './children.ts'
import { Cluster, sum } from './cluster.ts'
import type { Display } from './display.ts'
import type { LoaderArguments, LoaderMessage } from './loader.ts'
import { MillraceRun } from './millrace-side.ts'
import type { DemoOptions } from './options.ts'
import type { Outcome } from './report.ts'
import { hash, SeededRandom } from './seeded-random.ts'
import { countTopic, javaReader, judge, nativeReader, type IdCounter, type TopicReader, type Verdict } from './verifier.ts'

/** As topologies/order-dedupe.ts names them. */
const INPUT = 'order-events'
const OUTPUT = 'order-events.unique'
const FAILED = 'order-events.failed'
const TOPICS = [INPUT, OUTPUT, FAILED]
const PARTITIONS = 6

const BASELINE_WORKERS = 2
const MILLRACE_WORKERS = 2
/** What the article behind this project measured between business write and offset commit. */
const BASELINE_COMMIT_INTERVAL_MS = 200
/** Short, in favour of the plain consumer: after a crash its whole group waits this long. The default of kafkajs is 30 s. */
const BASELINE_SESSION_TIMEOUT_MS = 6_000

/** Kills fall into this part of the load. */
const FIRST_KILL = 0.08
const LAST_KILL = 0.92
const WORKER_ADDED_AT = 0.35
const STATE_DELETED_AT = 0.6

/** A kill waits up to this long after what it waited for, so that it is not tied to a moment of the victim's own (its report comes with its commit). */
const JITTER_MS = 400
const LOOK_INTERVAL_MS = 300
const WAIT_INTERVAL_MS = 20
const START_TIMEOUT_MS = 60_000
const RECOVERY_TIMEOUT_MS = 90_000
const NO_PROGRESS_MS = 120_000
/** The console consumer takes this much silence for the end of a topic; the second number when something seemed to be missing. */
const READER_IDLE_MS = [6_000, 20_000] as const

/** Something that the person who started the demo can mend; its message is all that has to be said. */
export class DemoError extends Error {
  override readonly name = 'DemoError'
}

export class Show {
  readonly #options: DemoOptions
  readonly #broker: ProvidedBroker
  readonly #folder: string
  readonly #display: Display
  readonly #stopped: AbortSignal
  readonly #applicationId = `millrace-demo-${randomBytes(4).toString('hex')}`
  readonly #baselineGroup = `points-demo-${randomBytes(4).toString('hex')}`
  readonly #problems: string[] = []
  #clusterOrNone: Cluster | undefined
  #sent = 0
  #loaded = false
  #extra: MillraceRun | undefined

  /** `stopped`: loops end when it is aborted; processes are the caller's to end. */
  constructor(options: DemoOptions, broker: ProvidedBroker, folder: string, display: Display, stopped: AbortSignal) {
    this.#options = options
    this.#broker = broker
    this.#folder = folder
    this.#display = display
    this.#stopped = stopped
  }

  async run(): Promise<Outcome> {
    const { records, kills, seed, rate } = this.#options
    const display = this.#display
    const cluster = await Cluster.connect(this.#broker.brokers)
    this.#clusterOrNone = cluster
    await this.#prepareTopics()

    const baseline = new BaselineSide(
      {
        brokers: this.#broker.brokers,
        topic: INPUT,
        groupId: this.#baselineGroup,
        database: join(this.#folder, 'points.sqlite'),
        commitIntervalMs: BASELINE_COMMIT_INTERVAL_MS,
        sessionTimeoutMs: BASELINE_SESSION_TIMEOUT_MS,
      },
      (problem) => this.#problem(problem),
    )
    baseline.start(BASELINE_WORKERS)
    const main = this.#startMillrace('main', MILLRACE_WORKERS)
    await Promise.all([
      this.#until(
        () => allOf(BASELINE_WORKERS, (index) => baseline.partitions(index).length > 0),
        START_TIMEOUT_MS,
        'the plain consumers have no partitions',
      ),
      this.#within(
        main.until(() => main.slots.length === MILLRACE_WORKERS && main.slots.every((slot) => main.isAtWork(slot))),
        START_TIMEOUT_MS,
        'the millrace workers are not running',
      ),
    ])
    display.say(`both sides run; ${number(records)} order events follow at ${number(rate)} a second`)
    display.start(records)

    const startedAt = performance.now()
    const [loaded, naiveRecoveries, millraceFigures, restoreMs, doneAt] = await Promise.all([
      this.#load(),
      this.#killBaseline(baseline, this.#random(1)),
      this.#killMillrace(main, this.#random(2)),
      this.#addWorkerAndDeleteItsState(this.#random(3)),
      this.#followUntilDone(),
    ])
    display.stop()
    const elapsedMs = doneAt - startedAt
    const runs = [main, ...(this.#extra === undefined ? [] : [this.#extra])]
    const figures = runs.flatMap((run) => run.totals ?? [])
    await this.#stopSides(baseline, runs)

    const verdict = await this.#count()
    const ledger = new Ledger(join(this.#folder, 'points.sqlite'))
    const report = ledger.report(baseline.crashes)
    ledger.close()
    return {
      seed,
      plannedKills: kills,
      sent: loaded.sent,
      generatedIds: loaded.uniqueIds,
      verdict,
      ledger: report,
      naive: { kills: baseline.crashes.length, recoveriesMs: naiveRecoveries },
      millrace: {
        ...millraceFigures,
        recordsPerSecond: Math.round((loaded.sent * 1_000) / elapsedMs),
        peakRecordsPerSecond: Math.max(0, ...runs.map((run) => run.peakRecordsPerSecond)),
        commitP50Ms: Math.max(0, ...figures.map((totals) => totals.commitP50Ms)),
        commitP99Ms: Math.max(0, ...figures.map((totals) => totals.commitP99Ms)),
        restoreMs,
      },
      problems: this.#problems,
    }
  }

  /** Removes what it made on a cluster that is not ours; closes the clients. */
  async close(): Promise<void> {
    const cluster = this.#clusterOrNone
    if (cluster === undefined) return
    this.#clusterOrNone = undefined
    if (this.#broker.kind === 'external' && !this.#options.keep) {
      await cluster.remove(this.#madeTopics ? TOPICS : [], `${this.#applicationId}-`, [this.#applicationId, this.#baselineGroup])
    }
    await cluster.close()
  }

  #madeTopics = false

  get #cluster(): Cluster {
    if (this.#clusterOrNone === undefined) throw new Error('the demo is not connected')
    return this.#clusterOrNone
  }

  async #prepareTopics(): Promise<void> {
    const existing = await this.#cluster.existing(TOPICS)
    if (existing.length > 0) {
      throw new DemoError(
        `the cluster at ${this.#broker.brokers} has the topics ${existing.join(', ')} already, and the demo must count its own records only: remove them if they are left over from a demo, or use another cluster`,
      )
    }
    this.#madeTopics = true
    await this.#cluster.createTopics(TOPICS, PARTITIONS)
  }

  #startMillrace(instance: string, workers: number): MillraceRun {
    return new MillraceRun({
      brokers: this.#broker.brokers,
      applicationId: this.#applicationId,
      instance,
      workers,
      stateDir: this.#stateDir(instance),
      logFile: join(this.#folder, `millrace-${instance}.log`),
      onWarning: (line) => this.#display.say(pc.yellow(`millrace (${instance}): ${line}`)),
    })
  }

  #stateDir(instance: string): string {
    return join(this.#folder, `state-${instance}`)
  }

  #load(): Promise<Extract<LoaderMessage, { type: 'done' }>> {
    const { records, rate, seed } = this.#options
    const input: LoaderArguments = { brokers: this.#broker.brokers, topic: INPUT, records, rate, seed }
    const loader = fork(fileURLToPath(new URL('loader.ts', import.meta.url)), [JSON.stringify(input)], {
      stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
    })
    const exit = track(loader)
    return new Promise((resolve, reject) => {
      let done: Extract<LoaderMessage, { type: 'done' }> | undefined
      loader.on('message', (message) => {
        const said = message as LoaderMessage
        this.#sent = said.sent
        if (said.type === 'done') done = said
      })
      void exit.then(({ code, signal }) => {
        if (done === undefined || code !== 0) {
          reject(new Error(`the loader ended too early (${signal ?? `exit code ${code}`}), after ${this.#sent} records`))
          return
        }
        this.#loaded = true
        this.#display.say(`all ${number(done.sent)} events are written, ${number(done.resends)} of them resends`)
        resolve(done)
      })
    })
  }

  /** Each track has its own sequence, so that one does not depend on how fast another is. */
  #random(track: number): SeededRandom {
    return new SeededRandom(hash(this.#options.seed, track))
  }

  /** Parts of the load at which kills are due, ascending: one at random in each of as many equal stretches. */
  #moments(random: SeededRandom): readonly number[] {
    const { kills } = this.#options
    const stretch = (LAST_KILL - FIRST_KILL) / Math.max(1, kills)
    return Array.from({ length: kills }, (_unused, index) => FIRST_KILL + stretch * (index + 0.8 * random.next()))
  }

  /** Resolves with the times to new progress. */
  async #killBaseline(baseline: BaselineSide, random: SeededRandom): Promise<readonly number[]> {
    const moments = this.#moments(random)
    const recoveries: number[] = []
    for (const [index, moment] of moments.entries()) {
      const victim = random.below(baseline.workers)
      await this.#untilSent(moment)
      await this.#until(() => baseline.isAtWork(victim), RECOVERY_TIMEOUT_MS, `the plain consumer ${victim} credits nothing`)
      await delay(random.next() * JITTER_MS)
      const partitions = baseline.partitions(victim)
      const { at } = await baseline.kill(victim)
      this.#display.say(pc.red(`kill -9 ${index + 1}/${moments.length}: plain consumer ${victim}`))
      const next = await this.#cluster.nextCommit(this.#baselineGroup, INPUT, partitions, RECOVERY_TIMEOUT_MS, this.#stopped)
      if (next !== undefined) recoveries.push(next - at)
    }
    return recoveries
  }

  async #killMillrace(
    main: MillraceRun,
    random: SeededRandom,
  ): Promise<{ readonly kills: number; readonly killsInTransaction: number; readonly recoveriesMs: readonly number[] }> {
    const moments = this.#moments(random)
    const recoveriesMs: number[] = []
    let killsInTransaction = 0
    let kills = 0
    for (const moment of moments) {
      const slot = main.slots[random.below(main.slots.length)] ?? 0
      await this.#untilSent(moment)
      await this.#within(
        main.until(() => main.isAtWork(slot)),
        RECOVERY_TIMEOUT_MS,
        `millrace worker ${slot} is not running`,
      )
      await delay(random.next() * JITTER_MS)
      const partitions = main.partitions(slot)
      const at = await main.killWorker(slot)
      kills++
      const isOpen = await this.#cluster.hasOpenTransaction(OUTPUT, partitions)
      if (isOpen === true) killsInTransaction++
      this.#display.say(
        pc.red(`kill -9 ${kills}/${moments.length}: millrace worker ${slot}${isOpen === true ? ', in the middle of a transaction' : ''}`),
      )
      const next = await this.#cluster.nextCommit(this.#applicationId, INPUT, partitions, RECOVERY_TIMEOUT_MS, this.#stopped)
      if (next !== undefined) recoveriesMs.push(next - at)
    }
    return { kills, killsInTransaction, recoveriesMs }
  }

  /** Resolves with the duration of the restore, ms. */
  async #addWorkerAndDeleteItsState(random: SeededRandom): Promise<number> {
    await this.#untilSent(WORKER_ADDED_AT)
    this.#display.say(pc.cyan('a third millrace worker is added'))
    const first = await this.#runExtra()
    await this.#untilSent(STATE_DELETED_AT)
    await delay(random.next() * JITTER_MS)
    await first.killAll()
    const stateDir = this.#stateDir('extra')
    if (!existsSync(stateDir) || readdirSync(stateDir).length === 0) throw new Error(`the added worker has no state in ${stateDir}`)
    rmSync(stateDir, { recursive: true })
    this.#display.say(pc.red('kill -9 of the added worker, and its state folder is deleted'))
    const second = await this.#runExtra()
    const restore = second.restore(0)
    if (restore === undefined) throw new Error('the added worker runs again without having restored')
    this.#display.say(pc.cyan(`it has its state back after ${number(restore.ms)} ms, ${number(restore.records)} changelog records`))
    return restore.ms
  }

  async #runExtra(): Promise<MillraceRun> {
    const run = this.#startMillrace('extra', 1)
    this.#extra = run
    await this.#within(
      run.until(() => run.isAtWork(0)),
      RECOVERY_TIMEOUT_MS,
      'the added millrace worker is not running',
    )
    return run
  }

  /** Looks at the committed offsets until both groups are at the end of the whole input. Resolves with the time when millrace was. */
  async #followUntilDone(): Promise<number> {
    let doneAt: number | undefined
    let last = -1
    let progressAt = performance.now()
    while (!this.#stopped.aborted) {
      // In this order: what is true at the end of the input when it was complete before.
      const loaded = this.#loaded
      const [plain, millrace, ends] = await Promise.all([
        this.#cluster.committed(this.#baselineGroup, INPUT).then(sum),
        this.#cluster.committed(this.#applicationId, INPUT).then(sum),
        this.#cluster.ends(INPUT).then(sum),
      ])
      const now = performance.now()
      this.#display.update({ sent: Math.max(this.#sent, ends), plain, millrace })
      if (loaded && millrace === ends) doneAt ??= now
      if (doneAt !== undefined && plain === ends) return doneAt
      if (plain + millrace !== last) {
        last = plain + millrace
        progressAt = now
      } else if (now - progressAt > NO_PROGRESS_MS) {
        throw new Error(
          `no progress for ${NO_PROGRESS_MS / 1_000} s: of ${ends} records the plain consumer has done ${plain}, millrace ${millrace}`,
        )
      }
      await delay(LOOK_INTERVAL_MS)
    }
    throw new Error('stopped')
  }

  async #stopSides(baseline: BaselineSide, runs: readonly MillraceRun[]): Promise<void> {
    this.#display.say('both sides have done everything: stopping them')
    const codes = await Promise.all([
      baseline.stop().then((all) => all.map((code) => ({ who: 'a plain consumer', code }))),
      ...runs.map(async (run) => [{ who: `millrace run (instance ${run.instance})`, code: await run.stop() }]),
    ])
    for (const { who, code } of codes.flat()) if (code !== 0) this.#problem(`${who} ended with exit code ${code} after SIGTERM`)
  }

  async #count(): Promise<Verdict> {
    const { java, brokers } = this.#broker
    this.#display.say(
      `counting: the output with ${java === undefined ? 'a bare client' : 'the Kafka console consumer'} (read_committed), the input with a bare client`,
    )
    const ends = (topic: string) => this.#cluster.ends(topic)
    const reader = (idleMs: number): TopicReader => (java === undefined ? nativeReader(brokers, ends) : javaReader(java, idleMs))
    const [quick, patient] = READER_IDLE_MS
    // The input has no transactions, so any client may read it, and the bare one knows by itself when it is at the end; what is judged is the output.
    const inputReader = nativeReader(brokers, ends)
    let [input, output]: IdCounter[] = await Promise.all([countTopic(inputReader, INPUT), countTopic(reader(quick), OUTPUT)])
    // A reader that gave up too soon must not be taken for a loss: what is really lost is missing the second time as well.
    if (input === undefined || input.records < sum(await ends(INPUT))) input = await countTopic(inputReader, INPUT)
    if (output === undefined || output.uniqueIds < input.uniqueIds) output = await countTopic(reader(patient), OUTPUT)
    return judge(input, output)
  }

  #problem(text: string): void {
    if (this.#stopped.aborted) return
    this.#problems.push(text)
    this.#display.say(pc.red(text))
  }

  async #untilSent(part: number): Promise<void> {
    while (this.#sent < part * this.#options.records && !this.#loaded) {
      await delay(WAIT_INTERVAL_MS)
      this.#stopped.throwIfAborted()
    }
  }

  async #until(condition: () => boolean, timeoutMs: number, problem: string): Promise<void> {
    const giveUpAt = performance.now() + timeoutMs
    while (!condition()) {
      if (performance.now() > giveUpAt) throw new Error(`${problem} after ${timeoutMs / 1_000} s`)
      await delay(WAIT_INTERVAL_MS)
      this.#stopped.throwIfAborted()
    }
  }

  async #within(work: Promise<void>, timeoutMs: number, problem: string): Promise<void> {
    const timer = new AbortController()
    const late = delay(timeoutMs, undefined, { signal: timer.signal }).then(() => {
      throw new Error(`${problem} after ${timeoutMs / 1_000} s`)
    })
    late.catch(() => undefined)
    try {
      await Promise.race([work, late])
    } finally {
      timer.abort()
    }
  }
}

function allOf(count: number, condition: (index: number) => boolean): boolean {
  for (let index = 0; index < count; index++) if (!condition(index)) return false
  return true
}

function number(value: number): string {
  return value.toLocaleString('en-US')
}
