/**
 * The test driver, as its user sees it.
 *
 * Owns: the order of its calls, the script of what went in, and what is refused. Does not own: the run itself (driver-world), what a fault is (faults), how
 * runs are compared (comparison).
 *
 * Invariant:
 *  TD1. Calls that run the workers do so one after the other, so the same calls give the same run.
 */
import { durationMs, type Duration } from '../../common/duration.ts'
import { silentLogger } from '../../common/ports.ts'
import type { Config } from '../../config/define.ts'
import { resolveConfig } from '../../config/resolve.ts'
import { errorMessage } from '../../errors/errors.ts'
import { compileTopology } from '../../topology/plan.ts'
import type { TopologyPlan } from '../../topology/nodes.ts'
import type { Topic, Topology, TopologyDescription } from '../../topology/public-types.ts'
import { isTopology } from '../../topology/topology-parts.ts'
import { isDeadLetterTopic } from '../../topology/topics.ts'
import { differences, endsOf, orderOf, resultOf, type RunResult, type Segment } from './comparison.ts'
import { DriverWorld, type InputRecord, type WorldOptions } from './driver-world.ts'
import { TestDriverError } from './errors.ts'
import { checkFault, type Fault } from './faults.ts'
import { InputEncoder } from './inputs.ts'
import { committedRecords, deadLetter, decodedRecords, lastOfKeys, type CommittedRecord } from './outputs.ts'
import type { TestDeadLetter, TestDriver, TestDriverOptions, TestInput, TestOutput } from './public-types.ts'

/** Short, because simulated time is free; the rules between them are those of any configuration. */
const DRIVER_CONFIG = {
  instance: 'driver',
  commitInterval: '30ms',
  transactionTimeout: '2s',
  sessionTimeout: '12s',
  heartbeatInterval: '500ms',
  maxPollInterval: '15s',
  stateFlushInterval: '80ms',
  metadataPoll: '2s',
  taskTimeout: '60s',
  lockTimeout: '3s',
} as const satisfies Partial<Config>
const MAX_PARTITIONS = 64
const MAX_WORKERS = 16

/** What went in, as it can be put in again. */
type ScriptStep =
  | { readonly kind: 'pipe'; readonly topic: string; readonly records: readonly InputRecord[] }
  | { readonly kind: 'advance'; readonly ms: number }

/**
 * Starts the workers of a topology on simulated brokers; resolves when all of its tasks run. No broker, no disk, no timers: it works the same under the fake
 * timers of a test runner, in vitest and node:test.
 *
 * Rejects with `ConfigError` or `TopologyError` for what would not start on real brokers either.
 * @example
 * await using driver = await createTestDriver(orderDedupe, { partitions: 2 })
 * await driver.pipe(orders, { key: 'o1', value: created('o1') }, { key: 'o1', value: created('o1') })
 * expect(driver.values(uniqueOrders)).toEqual([created('o1')])
 */
export async function createTestDriver(topology: Topology, options: TestDriverOptions = {}): Promise<TestDriver> {
  return openDriver(topology, options)
}

/** As `createTestDriver`, with what `crashEverywhere` sees of it. */
export async function openDriver(topology: Topology, options: TestDriverOptions): Promise<SimulatedDriver> {
  const world = new DriverWorld(worldOptions(topology, options))
  await world.start()
  return new SimulatedDriver(
    topology,
    world,
    (options.topics ?? []).filter(isDeadLetterTopic).map(({ name }) => name),
  )
}

export class SimulatedDriver implements TestDriver {
  readonly world: DriverWorld
  readonly #topology: Topology
  readonly #plan: TopologyPlan
  readonly #deadLetterTopics: readonly string[]
  readonly #encoder: InputEncoder
  readonly #script: ScriptStep[] = []
  readonly #segments: Segment[] = []
  #turn: Promise<unknown> = Promise.resolve()
  #isDisposed = false
  /** A call was rejected, so the test fails already: an error at the end of the driver would only hide that one. */
  #hasRejected = false

  constructor(topology: Topology, world: DriverWorld, deadLetterTopics: readonly string[]) {
    this.world = world
    this.#topology = topology
    this.#plan = world.options.plan
    this.#deadLetterTopics = [...new Set([...this.#plan.deadLetterTopics, ...deadLetterTopics])]
    this.#encoder = new InputEncoder(world.options.partitions, world.options.startAt)
  }

  pipe<K, V>(topic: Topic<K, V>, ...records: readonly TestInput<K, V>[]): Promise<void> {
    return this.#inTurn('pipe()', async () => {
      const name = this.#nameOf(topic, 'pipe()')
      const inputs = this.#plan.subTopologies.flatMap((sub) => sub.inputs)
      if (!inputs.includes(name))
        throw new TestDriverError(`pipe(): topology '${this.#plan.name}' does not read '${name}', only ${listOf(inputs)}`)
      const encoded = this.#encoder.encode(topic, records, this.world.now)
      await this.#run({ kind: 'pipe', topic: name, records: encoded })
    })
  }

  advanceTime(by: Duration): Promise<void> {
    return this.#inTurn('advanceTime()', () => this.#run({ kind: 'advance', ms: durationMs(by, 'advanceTime()') }))
  }

  values<K, V>(topic: Topic<K, V>): V[] {
    return this.records(topic).map(({ value }) => value)
  }

  pairs<K, V>(topic: Topic<K, V>): [K, V][] {
    return this.records(topic).map(({ key, value }) => [key, value])
  }

  records<K, V>(topic: Topic<K, V>): TestOutput<K, V>[] {
    return decodedRecords(topic, this.#committed(topic))
  }

  latest<K, V>(topic: Topic<K, V>): Map<K, NonNullable<V>> {
    const rows = decodedRecords(topic, lastOfKeys(this.#committed(topic)))
    return new Map(rows.flatMap(({ key, value }) => (value === null || value === undefined ? [] : [[key, value] as const])))
  }

  deadLetters(): TestDeadLetter[] {
    this.#refuseAfterDispose('deadLetters()')
    return this.#deadLetterTopics.flatMap((topic) => committedRecords(this.world.simulation.cluster, topic)).map(deadLetter)
  }

  async fault(fault: Fault): Promise<void> {
    this.#refuseAfterDispose('fault()')
    checkFault(fault, this.#plan)
    await this.#inTurn('fault()', async () => this.world.faults.arm(fault))
  }

  get faults(): readonly { readonly fault: string; readonly fired: boolean }[] {
    return this.world.faults.all
  }

  differencesFromUndisturbedRun(): Promise<readonly string[]> {
    return this.#inTurn('differencesFromUndisturbedRun()', async () => {
      this.#refuseUnfired()
      return differences(await this.#undisturbed(), this.result())
    })
  }

  describe(): TopologyDescription {
    this.#refuseAfterDispose('describe()')
    return this.#topology.describe({ applicationId: this.world.options.config.applicationId })
  }

  get metrics(): Readonly<Record<string, number>> {
    return { ...this.world.counters }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isDisposed) return
    this.#isDisposed = true
    const isTold = this.#hasRejected
    this.world.end()
    await this.#turn
    if (!isTold) this.#refuseUnfired()
  }

  // --- for crashEverywhere -------------------------------------------------------------------------------------------

  /** What the run has come to so far. */
  result(): RunResult {
    return resultOf(this.world, this.#segments)
  }

  /** What the same input comes to without faults. */
  undisturbed(): Promise<RunResult> {
    return this.#inTurn('a run without faults', () => this.#undisturbed())
  }

  // -------------------------------------------------------------------------------------------------------------------

  async #undisturbed(): Promise<RunResult> {
    const world = new DriverWorld({ ...this.world.options, logger: silentLogger })
    try {
      await world.start()
      const segments: Segment[] = []
      for (const step of this.#script) await runStep(world, step, segments)
      return resultOf(world, segments)
    } catch (error) {
      throw new TestDriverError(`the same input fails without faults: ${errorMessage(error)}`, { cause: error })
    } finally {
      world.end()
    }
  }

  async #run(step: ScriptStep): Promise<void> {
    this.#script.push(step)
    await runStep(this.world, step, this.#segments)
  }

  /** One after the other (TD1). */
  #inTurn<T>(what: string, act: () => Promise<T>): Promise<T> {
    const turn = this.#turn.then(() => {
      this.#refuseAfterDispose(what)
      const { failure } = this.world
      if (failure !== undefined)
        throw new TestDriverError(`${what}: the run of this driver has failed: ${failure.message}`, { cause: failure })
      return act()
    })
    this.#turn = turn.catch(() => {
      this.#hasRejected = true
    })
    return turn
  }

  #committed(topic: { readonly name: string }): CommittedRecord[] {
    this.#refuseAfterDispose('reading')
    return committedRecords(this.world.simulation.cluster, this.#nameOf(topic, 'reading'))
  }

  #nameOf(topic: { readonly name: string }, what: string): string {
    const { topics } = this.world.options
    const name: unknown = (topic as { readonly name?: unknown } | undefined)?.name
    if (typeof name !== 'string') throw new TestDriverError(`${what}: this is not a topic; pass what topic() returned`)
    if (!topics.includes(name))
      throw new TestDriverError(`${what}: topology '${this.#plan.name}' has no topic '${name}', only ${listOf(topics)}`)
    return name
  }

  #refuseAfterDispose(what: string): void {
    if (this.#isDisposed) throw new TestDriverError(`${what}: this test driver was disposed`)
  }

  #refuseUnfired(): void {
    const unfired = this.faults.flatMap(({ fault, fired }) => (fired ? [] : [fault]))
    if (unfired.length === 0) return
    throw new TestDriverError(
      `${unfired.length === 1 ? 'a fault' : `${unfired.length} faults`} never struck, so this test does not show what it seems to: ${unfired.join(', ')}. ` +
        'No worker came to that step so often after the fault was given; give it before the pipe() that it is meant for.',
    )
  }
}

async function runStep(world: DriverWorld, step: ScriptStep, segments: Segment[]): Promise<void> {
  const number = segments.length + 1
  if (step.kind === 'pipe') {
    const { topic, records } = step
    const name = `pipe ${number} (${topic}, ${records.length} ${records.length === 1 ? 'record' : 'records'})`
    await world.write(topic, records, name)
    segments.push({ name, order: orderOf(world.options.plan, records), ends: endsOf(world) })
  } else {
    await world.advance(step.ms)
    segments.push({ name: `advanceTime ${number} (${step.ms} ms)`, order: 'all', ends: endsOf(world) })
  }
}

function worldOptions(topology: Topology, options: TestDriverOptions): WorldOptions {
  if (!isTopology(topology))
    throw new TestDriverError('createTestDriver(): the first argument is not a topology; pass what topology() returned')
  const plan = compileTopology(topology)
  const { config = {}, topics = [], startAt = 0 } = options
  const start = Number(startAt)
  if (!Number.isSafeInteger(start) || start < 0)
    throw new TestDriverError(`createTestDriver(): startAt ${String(startAt)} is neither a date nor a whole number of ms, 0 or more`)
  const all = [...plan.subTopologies.flatMap((sub) => sub.inputs), ...plan.sinks, ...topics.map(({ name }) => name)]
  return {
    plan,
    config: resolveConfig({
      code: { ...DRIVER_CONFIG, ...config, brokers: 'simulated:9092', slot: 0 },
      topologyName: topology.name,
      env: {},
    }),
    logger: config.logger ?? silentLogger,
    partitions: count(options.partitions, 'partitions', MAX_PARTITIONS),
    workers: count(options.workers, 'workers', MAX_WORKERS),
    startAt: start,
    seed: count(options.seed, 'seed', Number.MAX_SAFE_INTEGER, 0),
    topics: [...new Set(all)],
  }
}

function count(value: number | undefined, name: string, most: number, least = 1): number {
  const found = value ?? least
  if (Number.isSafeInteger(found) && found >= least && found <= most) return found
  throw new TestDriverError(`createTestDriver(): ${name} ${String(value)} is not a whole number from ${least} to ${most}`)
}

function listOf(names: readonly string[]): string {
  return names.map((name) => `'${name}'`).join(', ')
}
