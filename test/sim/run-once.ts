/**
 * One simulated run: records go in, processes are struck as the choices say, then nothing is struck any more and everything must drain. Returns what does
 * not hold.
 */
import { silentLogger, type Logger } from '../../src/common/ports.ts'
import { resolveConfig } from '../../src/config/resolve.ts'
import { asError } from '../../src/errors/errors.ts'
import type { DedupeStore } from '../../src/state/store.ts'
import { createMemoryBackend } from '../../src/state/memory/memory-backend.ts'
import type { Choices, Decision } from '../../src/testing/sim/choices.ts'
import { murmur2Partition } from '../../src/testing/sim/murmur2.ts'
import type { SimProcess } from '../../src/testing/sim/process.ts'
import { isRestarted, Simulation, type SimSlot } from '../../src/testing/sim/simulation.ts'
import { string } from '../../src/serde/index.ts'
import { topic, topology } from '../../src/topology/index.ts'
import { compileTopology } from '../../src/topology/plan.ts'
import { jsonOf } from '../helpers/codecs.ts'

/** `pass-through`: without state, so nothing but the transaction itself keeps a record from going out twice. */
export type TopologyKind = 'dedupe' | 'pass-through'

export interface RunOptions {
  readonly choices: HealingChoices
  readonly topologyKind?: TopologyKind
  /** Between two input records, ms. */
  readonly feedEveryMs?: number
  /** Records after which a transaction is committed in the middle of a polled batch. */
  readonly transactionMaxRecords?: number
  readonly producerRingSize?: number
  /** From the start of one worker to that of the next, ms: above 0, tasks move while they work. */
  readonly startEveryMs?: number
  readonly workers?: number
  readonly partitions?: number
  readonly records?: number
  /** Told of every event worth a line. */
  readonly onLine?: (line: string) => void
}

export interface RunResult {
  readonly violations: readonly string[]
  readonly trace: readonly Decision[]
  /** Everything that happened, in short: two runs of the same choices are equal in it. */
  readonly digest: string
  readonly events: number
  readonly virtualMs: number
  /** How often each deviation fired, by name. */
  readonly fired: ReadonlyMap<string, number>
}

/** Choices that stop deviating when the faults are over. */
export class HealingChoices implements Choices {
  readonly #choices: Choices
  readonly fired = new Map<string, number>()
  #healed = false

  constructor(choices: Choices) {
    this.#choices = choices
  }

  get trace(): readonly Decision[] {
    return this.#choices.trace
  }

  heal(): void {
    this.#healed = true
  }

  pick(what: string, options: number): number {
    if (this.#healed) return 0
    const picked = this.#choices.pick(what, options)
    if (picked > 0) {
      const name = `${what} = ${picked}`
      this.fired.set(name, (this.fired.get(name) ?? 0) + 1)
    }
    return picked
  }
}

const START = 1_700_000_000_000
const WINDOW_MS = 3_600_000
const APPLICATION = 'app'
const INPUT = 'in'
const OUTPUT = 'out'
const CHANGELOG = `${APPLICATION}-dedupe-changelog`
const FEED_FROM_MS = 120
const RESTART_MS = 20
/** Past the session time-out. */
const PAUSE_MS = 14_000
/** The time with faults ends when everything is drained, or after this. */
const FAULTS_MS = 60_000
const DRAIN_LIMIT_MS = 300_000
const QUIET_MS = 400
/** Keys that are written twice by mistake are lost soon. */
const COMPACT_EVERY_MS = 300

const events = (name: string) => topic(name, { key: string(), value: jsonOf<{ id: string }>() })
const PLANS = {
  dedupe: compileTopology(
    topology(APPLICATION, ({ stream }) =>
      stream(events(INPUT))
        .dedupe({ by: (event) => event.id, window: WINDOW_MS, partitioned: 'by-key' })
        .to(events(OUTPUT)),
    ),
  ),
  'pass-through': compileTopology(topology(APPLICATION, ({ stream }) => stream(events(INPUT)).to(events(OUTPUT)))),
}
const CONFIG = resolveConfig({
  code: {
    brokers: 'simulated:1',
    instance: 'sim',
    transactionTimeout: '2s',
    sessionTimeout: '12s',
    heartbeatInterval: '500ms',
    maxPollInterval: '15s',
    commitInterval: '30ms',
    stateFlushInterval: '80ms',
    metadataPoll: '2s',
    taskTimeout: '60s',
    lockTimeout: '3s',
  },
  topologyName: APPLICATION,
  env: {},
})

/** `a`, `b`, `a`, `c`, ...: every second record is one that was there before. */
export function idsOf(records: number): readonly string[] {
  return Array.from({ length: records }, (_, index) => `id-${index % 2 === 0 ? index / 2 : Math.floor(index / 3)}`)
}

export const STRIKES = ['none', 'kill', 'rebalance', 'pause', 'lose disk'] as const

export async function runOnce({
  choices,
  workers = 2,
  partitions = 2,
  records = 6,
  topologyKind = 'dedupe',
  feedEveryMs = 37,
  transactionMaxRecords = 1_000,
  producerRingSize = 2,
  startEveryMs = 0,
  onLine,
}: RunOptions): Promise<RunResult> {
  const violations: string[] = []
  const digest: string[] = []
  const line = (text: string): void => {
    digest.push(`${simulation.time.now} ${text}`)
    onLine?.(`${String(simulation.time.now).padStart(7)} ${text}`)
  }
  const log =
    (level: string): Logger['info'] =>
    (details, message) =>
      line(`${level}: ${message} ${JSON.stringify(details)}`)
  const logger: Logger =
    onLine === undefined ? silentLogger : { debug: log('debug'), info: log('info'), warn: log('warn'), error: log('error') }
  let isOver = false
  let isStopping = false

  const passes = (process: SimProcess, place: string): void => {
    if (isOver) return
    const strike = STRIKES[choices.pick(`strike ${place}`, STRIKES.length)]
    if (strike === 'none' || strike === undefined) return
    const slot = simulation.slots.find((each) => each.process === process)
    line(`${process.name}: ${strike} at ${place}`)
    if (strike === 'rebalance') simulation.cluster.group(APPLICATION).rebalance()
    else if (strike === 'pause') {
      process.pause()
      simulation.time.schedule(PAUSE_MS, () => {
        process.resume()
      })
    } else if (slot !== undefined) {
      if (strike === 'lose disk') simulation.loseDisk(slot.slot)
      process.kill()
      simulation.time.schedule(RESTART_MS, () => simulation.startSlot(slot.slot))
    }
  }
  const onEnd = (slot: SimSlot, failure: Error | undefined): void => {
    line(`${slot.process.name} ended: ${failure === undefined ? 'as asked' : failure.message}`)
    if (failure === undefined) {
      if (!isStopping) violations.push(`worker ${slot.slot} ended without being asked to`)
      return
    }
    // What a supervisor restarts may happen; what it does not, and what breaks an invariant, may not.
    if (!isRestarted(failure)) violations.push(`worker ${slot.slot} ended with ${failure.name}: ${failure.message}`)
    if (isStopping) violations.push(`worker ${slot.slot} did not end in order: ${failure.message}`)
    else simulation.time.schedule(RESTART_MS, () => simulation.startSlot(slot.slot))
  }
  const simulation: Simulation = new Simulation({
    plan: PLANS[topologyKind],
    config: { ...CONFIG, transactionMaxRecords, producerRingSize },
    workers,
    choices,
    startAt: START,
    logger,
    passes,
    onEnd,
    listener: (slot) => ({
      state: (from, to) => line(`worker ${slot}: ${from} -> ${to}`),
      assigned: (tasks) => line(`worker ${slot}: assigned ${tasks.join()}`),
      revoked: (tasks, lost) => line(`worker ${slot}: ${lost ? 'lost' : 'revoked'} ${tasks.join()}`),
      commit: ({ records: count, reason }) => line(`worker ${slot}: committed ${count}, ${reason}`),
      restored: ({ task, records: count }) => line(`worker ${slot}: restored ${task}, ${count} records`),
    }),
  })
  const { cluster } = simulation
  cluster.topics.create({ name: INPUT, partitions, config: {} })
  cluster.topics.create({ name: OUTPUT, partitions, config: {} })
  const committed = new Map<string, number>()
  cluster.onOffsets = (group, name, offset) => {
    line(`offset ${name} = ${offset}`)
    const before = committed.get(name) ?? 0
    if (offset < before) violations.push(`X3: the committed offset of ${name} went back from ${before} to ${offset} (group ${group})`)
    committed.set(name, offset)
  }
  cluster.onDecided = ({ transactionalId, producerId, partitions: written, groups }, kind) => {
    line(`${transactionalId} ${kind}: ${[...written.keys()].join()}`)
    // Registered is not written: a late AddPartitionsToTxn opens a transaction that has nothing in it.
    const hasRecords = [...written.values()].some(([name, partition]) => cluster.topics.log(name, partition).isOpen(producerId))
    if (kind === 'commit' && hasRecords && ![...groups].some((group) => cluster.offsets(group).pendingOf(producerId).length > 0))
      violations.push(`X1: ${transactionalId} committed records to ${[...written.keys()].join()} and no offset with them`)
  }

  const ids = idsOf(records)
  let fed = 0
  ids.forEach((id, index) => {
    simulation.time.schedule(FEED_FROM_MS + index * feedEveryMs, () => {
      const key = Buffer.from(id)
      const value = Buffer.from(JSON.stringify({ id, index }))
      cluster.append(INPUT, murmur2Partition(key, partitions), [{ timestamp: cluster.now(), key, value, headers: [] }])
      fed++
    })
  })
  const compact = (): void => {
    cluster.topics.compact(cluster.now())
    simulation.time.schedule(COMPACT_EVERY_MS, compact)
  }
  compact()
  simulation.start(startEveryMs)

  const isDrained = (): boolean =>
    fed === records && cluster.lags(APPLICATION, [INPUT]).length === 0 && cluster.openTransactions().length === 0
  try {
    // The first violation ends a run: what follows is about a broken world.
    const isBroken = (): boolean => violations.length > 0
    await simulation.run(() => isDrained() || isBroken(), FAULTS_MS)
    choices.heal()
    isOver = true
    if (!(await simulation.run(() => isDrained() || isBroken(), DRAIN_LIMIT_MS)))
      violations.push(`not drained: ${stateOf(simulation, committed)}`)
    if (!isBroken()) await settleDown(simulation, workers, violations, isDrained, () => (isStopping = true))
    if (!isBroken()) checkOutputs(simulation, ids, partitions, topologyKind, violations)
    if (!isBroken()) await checkState(simulation, ids, partitions, topologyKind, violations)
  } catch (error) {
    violations.push(`the run itself failed: ${asError(error).stack ?? String(error)}`)
  }
  return {
    violations,
    trace: choices.trace,
    digest: digest.join('\n'),
    events: simulation.time.happened,
    virtualMs: simulation.time.now,
    fired: choices.fired,
  }
}

/** Everybody who was struck comes back, all are members again, and then all stop in order. */
async function settleDown(
  simulation: Simulation,
  workers: number,
  violations: string[],
  isDrained: () => boolean,
  stopping: () => void,
): Promise<void> {
  const allRun = (): boolean =>
    simulation.slots.length === workers &&
    simulation.slots.every(({ worker, process }) => !process.isPaused && !process.isDead && worker.state === 'running')
  if (!(await simulation.run(() => allRun() && isDrained(), DRAIN_LIMIT_MS)))
    violations.push(`not all workers run again: ${simulation.slots.map(({ worker }) => worker.state).join()}`)
  const quietFrom = simulation.time.now
  await simulation.run(() => simulation.time.now >= quietFrom + QUIET_MS, QUIET_MS * 2)
  stopping()
  for (const { worker } of simulation.slots) worker.stop()
  const allEnded = (): boolean => simulation.slots.every(({ ended }) => ended !== undefined)
  if (!(await simulation.run(allEnded, DRAIN_LIMIT_MS))) violations.push('X10: not all workers ended')
  const { cluster } = simulation
  for (const entry of cluster.openTransactions())
    if (cluster.holdsAnything(entry)) violations.push(`X10: the transaction of ${entry.transactionalId} is ${entry.state}`)
}

/** X1, X5, X6, X8: of each partition, the first record of each id (all records where nothing is deduplicated), in order, and nothing else. */
function checkOutputs({ cluster }: Simulation, ids: readonly string[], partitions: number, kind: TopologyKind, violations: string[]): void {
  for (let partition = 0; partition < partitions; partition++) {
    const expected: number[] = []
    const known = new Set<string>()
    ids.forEach((id, index) => {
      if (murmur2Partition(Buffer.from(id), partitions) !== partition || (kind === 'dedupe' && known.has(id))) return
      known.add(id)
      expected.push(index)
    })
    const read = cluster.topics.log(OUTPUT, partition).read(0, Number.MAX_SAFE_INTEGER)
    const found = read.records.map(({ value }) => (JSON.parse(String(value)) as { index: number }).index)
    if (found.join() !== expected.join())
      violations.push(`X1, X8: ${OUTPUT}[${partition}] has records ${found.join() || 'none'}; expected ${expected.join() || 'none'}`)
  }
}

/** X2: what a disk has, and its changelog from the checkpoint on, is what was committed. */
async function checkState(
  { cluster, slots }: Simulation,
  ids: readonly string[],
  partitions: number,
  kind: TopologyKind,
  violations: string[],
): Promise<void> {
  const spec = PLANS[kind].subTopologies[0]?.stores ?? []
  if (spec.length === 0) return
  for (let partition = 0; partition < partitions; partition++) {
    const expected = [...new Set(ids.filter((id) => murmur2Partition(Buffer.from(id), partitions) === partition))]
    const log = cluster.topics.find(CHANGELOG)?.partitions[partition]
    for (const { slot, disk } of slots) {
      if (!disk.tasks.has(`0_${partition}`)) continue
      const clock = { now: () => START, monotonic: () => 0 }
      const backend = createMemoryBackend({
        owner: { pid: 0, slot: 'check', host: 'check' },
        clock,
        timers: { after: () => () => undefined },
        disk,
      })
      const state = await backend.open(`0_${partition}`, spec)
      const store = state.stores.get('dedupe') as DedupeStore
      const from = state.checkpoint('dedupe') ?? 0
      const records = log?.read(from, Number.MAX_SAFE_INTEGER).records ?? []
      store.restore(records.map(({ offset, key, value }) => ({ offset, key: key as Buffer, value })))
      const missing = expected.filter((id) => store.observe(id, START, START, 0, 0) === 'first')
      if (missing.length > 0)
        violations.push(`X2: the disk of slot ${slot} and the changelog of 0_${partition} from ${from} lack ${missing.join()}`)
      backend.close()
    }
  }
}

function stateOf({ cluster, slots }: Simulation, committed: ReadonlyMap<string, number>): string {
  const workers = slots.map(
    ({ slot, worker, process }) => `${slot} ${worker.state}${process.isPaused ? ' paused' : ''}${process.isDead ? ' dead' : ''}`,
  )
  const open = [...cluster.transactions.entries.values()].map(({ transactionalId, state }) => `${transactionalId} ${state}`)
  return `workers ${workers.join(', ')}; offsets ${[...committed].join(' ')}; transactions ${open.join(', ')}; group ${cluster.group(APPLICATION).state}`
}
