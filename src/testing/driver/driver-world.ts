/**
 * One simulated run of a topology: brokers, workers that come back when they die, and an input that is written step by step until everything is committed.
 *
 * Owns: the driver's wall clock, the strikes of faults, the restarts, and when a run is settled. Does not own: which fault strikes when (faults), what the
 * input means (inputs), what is right (comparison).
 *
 * Invariants:
 *  DW1. Nothing happens between calls: virtual time stands still, and so do the workers.
 *  DW2. The wall clock moves by `advance` alone, so what a run writes does not depend on how long it took.
 */
import type { Logger } from '../../common/ports.ts'
import type { ResolvedConfig } from '../../config/resolve.ts'
import { addCounts, NO_COUNTS, type Counters } from '../../metrics/status.ts'
import type { TopologyPlan } from '../../topology/nodes.ts'
import type { LogRecord } from '../sim/cluster/partition-log.ts'
import { ProcessDied, type SimProcess } from '../sim/process.ts'
import { isRestarted, Simulation, type SimSlot } from '../sim/simulation.ts'
import { TestDriverError } from './errors.ts'
import { FaultBoard, STEPS, type Step, type When } from './faults.ts'
import { withStateSteps } from './state-steps.ts'
import { TimingChoices } from './timing-choices.ts'

export interface WorldOptions {
  readonly plan: TopologyPlan
  readonly config: ResolvedConfig
  readonly logger: Logger
  readonly partitions: number
  readonly workers: number
  readonly startAt: number
  readonly seed: number
  /** Every topic of the user's: inputs, outputs, dead letters. */
  readonly topics: readonly string[]
}

/** A record on its way into an input partition. */
export interface InputRecord {
  readonly partition: number
  readonly record: LogRecord
}

/** A worker passed a step. `version` grows with everything that outlives a worker. */
export interface Passed {
  readonly step: Step
  readonly when: When
  readonly worker: string
  readonly version: number
}

const RESTART_MS = 20
/** A worker that ends by itself this often is not started again. */
const MAX_OWN_ENDS = 10
const LIMIT_MS = 300_000
/** Nothing happens for this long before a run counts as settled: a checkpoint that is due comes within it. */
const QUIET_MS = 700
/** The driver's clock is not that of whoever wrote the records: any timestamp will do. */
const TOPIC_CONFIG = { 'message.timestamp.after.max.ms': '9223372036854775807' }
/** What the client sends for a step, as the simulated connection names it. */
const REQUESTS = { sendOffsets: 'TxnOffsetCommit', commit: 'EndTxn' } as const

export class DriverWorld {
  readonly simulation: Simulation
  readonly faults = new FaultBoard()
  readonly options: WorldOptions
  /** Every step that was passed. */
  readonly passed: Passed[] = []
  /** How many of them when the first fault struck. */
  struckAt: number | undefined
  readonly #choices: TimingChoices
  #advancedMs = 0
  #pausedMs = 0
  #version = 0
  #ownEnds = 0
  #failure: Error | undefined
  #isOver = false
  /** Of processes that are gone. */
  #counted: Counters = NO_COUNTS

  constructor(options: WorldOptions) {
    const { plan, config, logger, workers, startAt, seed, topics, partitions } = options
    this.options = options
    this.#choices = new TimingChoices(seed)
    this.simulation = new Simulation({
      plan,
      config,
      workers,
      choices: this.#choices,
      startAt,
      wallClock: () => this.now,
      logger,
      passes: (process, place) => this.#passesPlace(process, place),
      onEnd: (slot, failure) => this.#ended(slot, failure),
      wrapBackend: (backend, process, disk) =>
        withStateSteps(backend, {
          passes: (step, when, stores) => {
            if (process.isDead) throw new ProcessDied(`${process.name} is dead`)
            const struck = this.#passes(process, step, when, stores)
            if (process.isDead) throw new ProcessDied(`${process.name} died at ${step}`)
            return struck
          },
          setAside: (taskId) => {
            disk.tasks.delete(taskId)
            this.simulation.slots.find((each) => each.process === process)?.worker.countQuarantine()
          },
        }),
    })
    const { cluster } = this.simulation
    cluster.watch(() => this.#version++)
    for (const name of topics) cluster.topics.create({ name, partitions, config: TOPIC_CONFIG })
  }

  /** The driver's wall clock, ms since the epoch. */
  get now(): number {
    return this.options.startAt + this.#advancedMs
  }

  /** What made a worker end for good. */
  get failure(): Error | undefined {
    return this.#failure
  }

  get counters(): Counters {
    return this.simulation.slots.reduce((sum, slot) => (slot.process.isDead ? sum : addCounts(sum, countersOf(slot))), this.#counted)
  }

  async start(): Promise<void> {
    this.simulation.start()
    await this.#settle('the start')
    this.passed.length = 0
  }

  async write(topic: string, records: readonly InputRecord[], what: string): Promise<void> {
    const { cluster } = this.simulation
    for (const { record } of records) cluster.topics.check(topic, [record], cluster.now())
    // Whoever reads hears of the last one, so all of them are there to be read at once.
    const last = records.at(-1)
    for (const { partition, record } of records.slice(0, -1)) cluster.topics.log(topic, partition).append([record])
    if (last !== undefined) cluster.append(topic, last.partition, [last.record])
    await this.#settle(what)
  }

  async advance(ms: number): Promise<void> {
    this.#advancedMs += ms
    await this.#settle('advanceTime()')
  }

  /** Nothing of this world happens any more. */
  end(): void {
    this.#isOver = true
    for (const { process } of this.simulation.slots) process.kill()
  }

  // --- strikes -------------------------------------------------------------------------------------------------------

  #passesPlace(process: SimProcess, place: string): void {
    const [name, when] = place.split(':')
    const step = STEPS.find((each) => each === name)
    if (step !== undefined && (when === 'before' || when === 'after')) this.#passes(process, step, when)
  }

  #passes(process: SimProcess, step: Step, when: When, stores: readonly string[] = []): 'damage' | undefined {
    if (this.#isOver) return undefined
    if (step === 'checkpoint' && when === 'after') this.#version++
    this.passed.push({ step, when, worker: process.name, version: this.#version })
    const fault = this.faults.passes(step, when, stores)
    if (fault === undefined) return undefined
    this.struckAt ??= this.passed.length
    const { simulation } = this
    switch (fault.kind) {
      case 'crash':
        this.#crash(process, fault.loseDisk)
        return undefined
      case 'lose-reply':
        this.#choices.loseReplyOf(REQUESTS[fault.step])
        return undefined
      case 'rebalance':
        if (fault.lost) this.#putOut(process)
        else simulation.cluster.group(this.options.config.applicationId).rebalance()
        return undefined
      case 'pause':
        this.#pausedMs += fault.durationMs
        process.pause()
        simulation.time.schedule(fault.durationMs, () => process.resume())
        return undefined
      case 'damage-store':
        return 'damage'
    }
  }

  #crash(process: SimProcess, loseDisk: boolean): void {
    const entry = this.simulation.slots.find((each) => each.process === process)
    if (entry === undefined || process.isDead) return
    this.#counted = addCounts(this.#counted, countersOf(entry))
    if (loseDisk) this.simulation.loseDisk(entry.slot)
    process.kill()
    this.#startAgain(entry.slot)
  }

  /** As when the session of a member is over: the group goes on without it, and it hears of that with its next call. */
  #putOut(process: SimProcess): void {
    const { applicationId, instance } = this.options.config
    const slot = this.simulation.slots.find((each) => each.process === process)?.slot
    const group = this.simulation.cluster.group(applicationId)
    const member = group.members.find(({ instanceId }) => instanceId === `${applicationId}-${instance}-${slot}`)
    if (member !== undefined) group.leave(member.memberId, member.instanceId)
  }

  /** A worker ended by itself. What a supervisor starts again is started again, if a fault can be the reason. */
  #ended(entry: SimSlot, failure: Error = new TestDriverError(`worker ${entry.slot} ended without being asked to`)): void {
    this.#counted = addCounts(this.#counted, countersOf(entry))
    if (this.#isOver) return
    if (this.faults.anyFired && isRestarted(failure) && ++this.#ownEnds <= MAX_OWN_ENDS) this.#startAgain(entry.slot)
    else this.#failure ??= failure
  }

  #startAgain(slot: number): void {
    this.simulation.time.schedule(RESTART_MS, () => {
      if (!this.#isOver) this.simulation.startSlot(slot)
    })
  }

  // --- until everything is committed ---------------------------------------------------------------------------------

  async #settle(what: string): Promise<void> {
    const { simulation } = this
    const startedAt = simulation.time.now
    const leftMs = (): number => startedAt + LIMIT_MS + this.#pausedMs - simulation.time.now
    for (;;) {
      const isThere = await simulation.run(() => this.#failure !== undefined || this.#isOver || this.#isSettled, leftMs())
      if (this.#isOver) throw new TestDriverError(`${what} was not done when the test driver was disposed: await it`)
      if (this.#failure !== undefined) throw this.#failure
      if (!isThere) {
        this.#failure = new TestDriverError(`${what} is not done after ${LIMIT_MS / 1_000} s of simulated time: ${this.#whatIsLeft()}`)
        throw this.#failure
      }
      const quietUntil = simulation.time.now + QUIET_MS
      await simulation.run(() => this.#failure !== undefined || this.#isOver || simulation.time.now >= quietUntil, QUIET_MS)
      if (this.#isSettled && this.#failure === undefined && !this.#isOver) return
    }
  }

  get #isSettled(): boolean {
    const { slots, cluster } = this.simulation
    const { workers, config } = this.options
    return (
      slots.length === workers &&
      slots.every(({ process, worker }) => !process.isDead && !process.isPaused && worker.state === 'running') &&
      cluster.group(config.applicationId).state === 'stable' &&
      this.#lags().length === 0 &&
      this.#openTransactions().length === 0
    )
  }

  /** Inputs that are not read to their end, by name. */
  #lags(): string[] {
    const { plan, config } = this.options
    return this.simulation.cluster
      .lags(
        config.applicationId,
        plan.subTopologies.flatMap(({ inputs }) => inputs),
      )
      .map(({ name, committed, end }) => `${name} is committed up to ${committed} of ${end}`)
  }

  #openTransactions(): string[] {
    return this.simulation.cluster.openTransactions().map(({ transactionalId, state }) => `transaction ${transactionalId} is ${state}`)
  }

  #whatIsLeft(): string {
    const workers = this.simulation.slots.map(({ slot, process, worker }) => {
      const state = process.isDead ? 'dead' : process.isPaused ? 'paused' : worker.state
      return `worker ${slot} is ${state}`
    })
    const group = `group ${this.options.config.applicationId} is ${this.simulation.cluster.group(this.options.config.applicationId).state}`
    return [...this.#lags(), ...workers, ...this.#openTransactions(), group].join('; ')
  }
}

function countersOf({ worker }: SimSlot): Counters {
  return worker.status(0)
}
