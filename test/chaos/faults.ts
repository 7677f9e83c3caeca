/**
 * How each fault strikes. A fault takes what it needs (a slot, a broker), does its harm, and resolves when what it took is whole again, or at least left to
 * the supervisor. It says when it really struck; one that found nothing to strike did not.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { SeededRandom } from '../../demo/seeded-random.ts'
import { FAILPOINTS, type Failpoint } from '../../src/common/failpoints.ts'
import { EXIT_CODES } from '../../src/errors/errors.ts'
import { API, type KafkaProxy } from '../helpers/kafka-proxy/kafka-proxy.ts'
import type { ChaosCluster } from './cluster.ts'
import type { Violation } from './comparison.ts'
import { PUT_OUT, type Fleet, type WorkerProcess } from './fleet.ts'
import type { Scenario } from './scenario.ts'
import { damageState, deleteState } from './state-damage.ts'
import type { FaultKind, PlannedFault } from './timeline.ts'

export interface FaultContext {
  readonly fleet: Fleet
  readonly cluster: ChaosCluster
  readonly scenario: Scenario
  readonly stateDir: string
  readonly newStateDir: () => string
  readonly sessionTimeoutMs: number
  /** Slots of the run; the one after them is for a while only. */
  readonly slots: number
  /** It struck, now. */
  readonly struck: (detail: string) => void
  readonly violation: (violation: Violation) => void
}

type Strike = (context: FaultContext, random: SeededRandom, fault: PlannedFault) => Promise<void>

const SLOT_WAIT_MS = 25_000
const STRIKE_WAIT_MS = 20_000
const TWIN_WAIT_MS = 60_000
/** Past the session time-out and the group's own rounding. */
const PAST_SESSION_MS = 2_500
/** A process is whole again when it has committed, or has nothing to do. */
const RECOVERY_WAIT_MS = 45_000

export function strike(fault: PlannedFault, context: FaultContext): Promise<void> {
  return STRIKES[fault.kind](context, new SeededRandom(fault.seed), fault)
}

const STRIKES: Record<FaultKind, Strike> = {
  kill: (context, random) =>
    withSlot(
      context,
      random,
      async (worker) => {
        await context.fleet.kill(worker, 'kill')
        context.struck(`kill -9 of ${nameOf(worker)}`)
      },
      isAny,
    ),

  stop: (context, random) =>
    withSlot(
      context,
      random,
      async (worker) => {
        worker.kill('SIGSTOP')
        context.struck(`SIGSTOP of ${nameOf(worker)}`)
        await delay(context.sessionTimeoutMs + PAST_SESSION_MS + random.below(3_000))
        worker.kill('SIGCONT')
      },
      isAny,
    ),

  restart: (context, random) =>
    withSlot(context, random, async (worker) => {
      context.struck(`graceful restart of ${nameOf(worker)}`)
      await context.fleet.stopProcess(worker, false)
    }),

  leave: (context, random) =>
    withSlot(context, random, async (worker) => {
      context.struck(`${nameOf(worker)} leaves the group`)
      await context.fleet.stopProcess(worker, true)
      await delay(3_000 + random.below(5_000))
    }),

  scale: async (context, random) => {
    const { fleet, slots } = context
    if (fleet.current(slots) !== undefined || fleet.isHeld(slots)) return
    fleet.hold(slots)
    try {
      context.struck(`slot ${slots} joins`)
      fleet.start(slots)
      await delay(8_000 + random.below(6_000))
      await fleet.stop(slots, true)
    } finally {
      fleet.release(slots)
    }
  },

  failpoint: (context, random, { point }) => (point === undefined ? Promise.resolve() : dieAt(context, random, point)),

  'lose-reply': (context, random, { point }) =>
    withSlot(context, random, async (worker) => {
      if (point === undefined) return
      const hit = 1 + random.below(20)
      worker.struck = undefined
      worker.order({ order: 'arm', failpoints: `${point}=lose@${hit}` })
      if (await until(() => worker.struck !== undefined || !worker.alive, STRIKE_WAIT_MS))
        context.struck(`${nameOf(worker)}: ${worker.struck ?? ''}`)
      worker.order({ order: 'arm', failpoints: '' })
    }),

  'stop-at': (context, random, { point }) =>
    withSlot(context, random, async (worker) => {
      if (point === undefined) return
      worker.struck = undefined
      worker.order({ order: 'arm', failpoints: `${point}=stop@${1 + random.below(20)}` })
      if (!(await until(() => worker.struck !== undefined || !worker.alive, STRIKE_WAIT_MS))) {
        worker.order({ order: 'arm', failpoints: '' })
        return
      }
      context.struck(`${nameOf(worker)}: ${worker.struck ?? ''}`)
      await delay(context.sessionTimeoutMs + PAST_SESSION_MS)
      worker.kill('SIGCONT')
    }),

  'delete-state': (context, random) =>
    withSlot(
      context,
      random,
      async (worker) => {
        const task = taskOf(worker, random)
        await context.fleet.kill(worker, 'delete-state')
        if (task !== undefined && deleteState(context.stateDir, context.scenario.application, task))
          context.struck(`state of task ${task} deleted while ${nameOf(worker)} is down`)
      },
      hasState(context),
    ),

  'flip-bytes': (context, random) =>
    withSlot(
      context,
      random,
      async (worker) => {
        const task = taskOf(worker, random)
        await context.fleet.kill(worker, 'flip-bytes')
        const pages = task === undefined ? 0 : damageState(context.stateDir, context.scenario.application, task)
        if (pages > 0) context.struck(`${pages} pages of task ${task ?? ''} damaged while ${nameOf(worker)} is down`)
      },
      hasState(context),
    ),

  twin: (context, random) =>
    withSlot(context, random, async (worker) => {
      const twin = context.fleet.startTwin(worker.slot, context.newStateDir())
      context.struck(`${nameOf(twin)} starts as the twin of ${nameOf(worker)}`)
      await until(() => !worker.alive || !twin.alive, TWIN_WAIT_MS)
      if (worker.alive && twin.alive) {
        context.violation({ kind: 'twin', text: `${nameOf(worker)} and its twin ${nameOf(twin)} both run after ${TWIN_WAIT_MS / 1_000} s` })
        await context.fleet.kill(twin, 'twin')
        return
      }
      const ended = worker.alive ? twin : worker
      const other = worker.alive ? worker : twin
      // The old one can join once more and put the new one out, which would come back with a new claim.
      const wasPutOut = ended === twin && ended.failureCode === PUT_OUT
      if (ended.exitCode !== EXIT_CODES.slotTaken && !wasPutOut)
        context.violation({
          kind: 'twin',
          text: `${nameOf(ended)} ended with ${ended.exitCode ?? ended.signal ?? '?'} instead of ${EXIT_CODES.slotTaken} beside ${nameOf(other)}`,
        })
      if (other === twin && twin.alive) context.fleet.adopt(twin)
      await until(() => !other.alive || (other.state === 'running' && other.firstCommitAt !== undefined), RECOVERY_WAIT_MS)
      if (!other.alive) context.violation({ kind: 'twin', text: `${nameOf(ended)} and ${nameOf(other)} of one slot have both ended` })
      worker.hasTwin = false
      twin.hasTwin = false
    }),

  broker: (context, random) => killBroker(context, random, false),
  coordinator: (context, random) => killBroker(context, random, true),

  delay: (context, random) =>
    withProxy(context, random, async (proxy, name) => {
      const ms = 50 + random.below(450)
      const before = proxy.strikes.delayed
      proxy.delay(ms)
      await delay(2_000 + random.below(4_000))
      if (proxy.strikes.delayed > before) context.struck(`${name} answers ${ms} ms later`)
    }),

  drop: (context, random) =>
    withProxy(context, random, async (proxy, name) => {
      const before = proxy.strikes.dropped
      proxy.drop()
      await delay(500 + random.below(3_000))
      if (proxy.strikes.dropped > before) context.struck(`${proxy.strikes.dropped - before} connections to ${name} dropped or refused`)
    }),

  'half-close': (context, random) =>
    withProxy(context, random, async (proxy, name) => {
      const direction = random.below(2) === 0 ? 'to-client' : 'to-server'
      const before = proxy.strikes.halfClosed
      proxy.halfClose(direction)
      await delay(1_000 + random.below(4_000))
      if (proxy.strikes.halfClosed > before)
        context.struck(`bytes ${direction} of ${proxy.strikes.halfClosed - before} connections to ${name} lost`)
    }),

  'hold-commit': (context, random) => holdReplies(context, random, 'endTransaction'),
  'hold-offsets': (context, random) => holdReplies(context, random, 'transactionOffsetCommit'),

  swallow: async (context, random) => {
    const names = ['endTransaction', 'transactionOffsetCommit', 'addPartitionsToTransaction', 'produce', 'heartbeat', 'joinGroup'] as const
    const name = names[random.below(names.length)] ?? 'endTransaction'
    const rule = { apiKey: API[name], count: 1 + random.below(2), close: random.below(2) === 0 }
    const losses = context.cluster.proxies.map((proxy) =>
      random.below(2) === 0 ? proxy.swallowRequests(rule) : proxy.swallowReplies(rule),
    )
    const lost = (): number => losses.reduce((sum, { struck }) => sum + struck, 0)
    await until(() => lost() > 0, STRIKE_WAIT_MS / 2)
    await delay(500)
    for (const loss of losses) loss.end()
    if (lost() > 0) context.struck(`${lost()} ${name} requests or replies lost${rule.close ? ' with their connections' : ''}`)
  },
}

/** The reply comes when its client has given up, or has begun something else: by then it must mean nothing any more. */
async function holdReplies(context: FaultContext, random: SeededRandom, name: 'endTransaction' | 'transactionOffsetCommit'): Promise<void> {
  const holds = context.cluster.proxies.map((proxy) => proxy.holdReplies({ apiKey: API[name], count: 1 + random.below(3) }))
  const held = (): number => holds.reduce((sum, { struck }) => sum + struck, 0)
  const strikes = await until(() => held() > 0, STRIKE_WAIT_MS / 2)
  if (strikes) await delay(1_000 + random.below(8_000))
  const released = holds.reduce((sum, hold) => sum + hold.release(), 0)
  if (held() > 0) context.struck(`${held()} replies to ${name} held, ${released} of them found their client`)
}

/** One fault per proxy at a time: ending one ends them all. */
const busyProxies = new WeakSet<KafkaProxy>()

async function withProxy(
  context: FaultContext,
  random: SeededRandom,
  work: (proxy: KafkaProxy, name: string) => Promise<void>,
): Promise<void> {
  const { proxies } = context.cluster
  const index = random.below(proxies.length)
  const proxy = proxies[index]
  if (proxy === undefined || !(await until(() => !busyProxies.has(proxy), SLOT_WAIT_MS))) return
  busyProxies.add(proxy)
  try {
    await work(proxy, `broker ${index + 1}`)
  } finally {
    proxy.restore()
    busyProxies.delete(proxy)
  }
}

/** Points that a process passes at its start only. */
const START_POINTS: ReadonlySet<Failpoint> = new Set(['init:after', 'assign:before', 'assign:after', 'restore:step', 'restore:finish'])

async function dieAt(context: FaultContext, random: SeededRandom, point: Failpoint): Promise<void> {
  const { fleet, stateDir, scenario } = context
  await withSlot(
    context,
    random,
    async (worker) => {
      const order = `${point}=kill@${1 + random.below(MANY_HITS.has(point) ? 20 : 2)}`
      let victim = worker
      let endProvocation: () => void = () => undefined
      if (START_POINTS.has(point)) {
        const tasks = [...worker.tasks]
        await fleet.kill(worker, `failpoint ${point}`)
        // A process that has nothing to restore does not pass there.
        if (point.startsWith('restore')) for (const task of tasks) deleteState(stateDir, scenario.application, task)
        victim = fleet.start(worker.slot, `${point}=kill@1`)
      } else {
        worker.struck = undefined
        worker.order({ order: 'arm', failpoints: order })
        endProvocation = provoke(context, worker, point)
      }
      await until(() => !victim.alive, STRIKE_WAIT_MS)
      endProvocation()
      if (victim.alive) victim.order({ order: 'arm', failpoints: '' })
      else if (victim.struck !== undefined) context.struck(`${nameOf(victim)}: ${victim.struck}`)
    },
    START_POINTS.has(point) && !point.startsWith('restore') ? isAny : isRunning,
  )
}

/** Passed several times a second. */
const MANY_HITS: ReadonlySet<Failpoint> = new Set(
  FAILPOINTS.filter((point) => /^(begin|produce|flush|sendOffsets|commit|memtable)/.test(point)),
)

/** Leads a worker past a point that it does not pass by itself while nothing happens. Returns what ends it. */
function provoke({ cluster }: FaultContext, worker: WorkerProcess, point: Failpoint): () => void {
  if (point.startsWith('revoke')) {
    // Asked to leave, it gives its tasks back.
    worker.asked = true
    worker.order({ order: 'stop', leave: true })
  }
  if (!point.startsWith('abort')) return () => undefined
  // Offsets that never arrive: the transaction is aborted when its budget is spent.
  const losses = cluster.proxies.map((proxy) => proxy.swallowRequests({ apiKey: API.transactionOffsetCommit }))
  return () => {
    for (const loss of losses) loss.end()
  }
}

async function killBroker(context: FaultContext, random: SeededRandom, coordinator: boolean): Promise<void> {
  const { cluster, scenario } = context
  const id = coordinator ? (await cluster.client.group(scenario.application)).coordinator : 1 + random.below(cluster.broker.nodes.length)
  await cluster.withBrokerDown(id ?? 1, async () => {
    context.struck(`kill -9 of broker ${id ?? 1}${coordinator ? ', the coordinator of the group' : ''}`)
    await delay(3_000 + random.below(4_000))
  })
}

const isRunning = ({ state }: WorkerProcess): boolean => state === 'running'
/** Whatever it is doing: restoring, joining, still starting. */
const isAny = (): boolean => true

/** Runs `work` with a slot whose process fits and that no other fault has. Without one it does nothing. */
async function withSlot(
  context: FaultContext,
  random: SeededRandom,
  work: (worker: WorkerProcess) => Promise<void>,
  fits: (worker: WorkerProcess) => boolean = isRunning,
): Promise<void> {
  const { fleet, slots } = context
  const first = random.below(slots)
  let worker: WorkerProcess | undefined
  await until(() => {
    for (let step = 0; step < slots && worker === undefined; step++) {
      const slot = (first + step) % slots
      const current = fleet.current(slot)
      if (!fleet.isHeld(slot) && current !== undefined && !current.asked && fits(current)) worker = current
    }
    return worker !== undefined
  }, SLOT_WAIT_MS)
  if (worker === undefined) return
  const { slot } = worker
  fleet.hold(slot)
  try {
    await work(worker)
  } finally {
    fleet.release(slot)
  }
}

function hasState({ stateDir }: FaultContext): (worker: WorkerProcess) => boolean {
  return (worker) => isRunning(worker) && worker.tasks.size > 0 && worker.stateDir === stateDir
}

function taskOf(worker: WorkerProcess, random: SeededRandom): string | undefined {
  const tasks = [...worker.tasks]
  return tasks[random.below(Math.max(1, tasks.length))]
}

function nameOf(worker: WorkerProcess): string {
  return `worker ${worker.slot} (process ${worker.pid ?? '?'})`
}

/** Whether it became true in time. */
export async function until(condition: () => boolean, timeoutMs: number): Promise<boolean> {
  const giveUpAt = performance.now() + timeoutMs
  while (!condition()) {
    if (performance.now() > giveUpAt) return false
    await delay(20)
  }
  return true
}
