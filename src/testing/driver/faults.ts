/**
 * Faults as data, and the board that says which of them strikes when a worker passes a step.
 *
 * Owns: which faults wait, what they have seen, which have struck. Does not own: what a strike does (driver-world).
 *
 * Invariants:
 *  FB1. One fault strikes at a time: where two wait for the same step, the second sees only what comes after the first.
 *  FB2. A fault strikes once.
 */
import { durationMs, type Duration } from '../../common/duration.ts'
import type { TopologyPlan } from '../../topology/nodes.ts'
import { TestDriverError } from './errors.ts'

/**
 * Where a worker can be struck:
 * - `poll`: it reads its inputs (also when there is nothing to read);
 * - `begin`, `produce` (each record, those of the changelogs too), `flush`, `sendOffsets`, `commit`: the calls of a transaction;
 * - `merge`: what was committed becomes part of the store in memory, store by store;
 * - `checkpoint`: the store is written to the worker's disk;
 * - `restore`: the changelog is read before a task starts. Only after a crash that left something to read.
 */
export type Step = 'poll' | 'begin' | 'produce' | 'flush' | 'sendOffsets' | 'commit' | 'merge' | 'checkpoint' | 'restore'
export type When = 'before' | 'after'

export const STEPS: readonly Step[] = ['poll', 'begin', 'produce', 'flush', 'sendOffsets', 'commit', 'merge', 'checkpoint', 'restore']
/** Steps that only tasks with a store take. */
const STEPS_OF_STORES: readonly Step[] = ['merge', 'checkpoint', 'restore']

/** Something that goes wrong, as plain data. Made by `crashAfter`, `crashBefore`, `loseReply`, `rebalance`, `pause` and `damageStore`. */
export type Fault =
  | { readonly kind: 'crash'; readonly when: When; readonly step: Step; readonly occurrence: number; readonly loseDisk: boolean }
  | { readonly kind: 'lose-reply'; readonly when: 'before'; readonly step: 'sendOffsets' | 'commit'; readonly occurrence: number }
  | { readonly kind: 'rebalance'; readonly when: 'after'; readonly step: Step; readonly occurrence: number; readonly lost: boolean }
  | { readonly kind: 'pause'; readonly when: 'after'; readonly step: Step; readonly occurrence: number; readonly durationMs: number }
  | {
      readonly kind: 'damage-store'
      readonly when: 'before'
      readonly step: 'checkpoint'
      readonly occurrence: number
      readonly store: string
    }

export interface CrashOptions {
  /** At which passing of the step from now on, over all workers; the first is 1. Default 1. */
  readonly occurrence?: number
  /** The worker comes back on an empty disk, so that its state is restored from the changelog. Default false. */
  readonly loseDisk?: boolean
}

export interface StrikeOptions {
  /** The step after which it strikes. Default `'flush'`: the outputs of a transaction are written, its offsets are not. */
  readonly after?: Step
  /** At which passing of that step from now on, over all workers; the first is 1. Default 1. */
  readonly occurrence?: number
}

/**
 * The worker dies right after a step, loses its memory and is started again.
 * @example await driver.fault(crashAfter('sendOffsets', { loseDisk: true }))
 */
export function crashAfter(step: Step, { occurrence = 1, loseDisk = false }: CrashOptions = {}): Fault {
  return { kind: 'crash', when: 'after', step, occurrence, loseDisk }
}

/**
 * The worker dies right before a step, loses its memory and is started again.
 * @example await driver.fault(crashBefore('commit', { occurrence: 2 }))
 */
export function crashBefore(step: Step, { occurrence = 1, loseDisk = false }: CrashOptions = {}): Fault {
  return { kind: 'crash', when: 'before', step, occurrence, loseDisk }
}

/**
 * The step takes effect on the broker, but the worker never hears of it.
 * @example await driver.fault(loseReply('commit'))
 */
export function loseReply(step: 'sendOffsets' | 'commit'): Fault {
  return { kind: 'lose-reply', when: 'before', step, occurrence: 1 }
}

export interface RebalanceOptions extends StrikeOptions {
  /** The worker at that step is put out of the group, as if its session were over: its tasks move, and what it commits is refused. Default false. */
  readonly lost?: boolean
}

/**
 * The group rebalances: every worker joins it again.
 * @example await driver.fault(rebalance({ lost: true }))
 */
export function rebalance({ after = 'flush', occurrence = 1, lost = false }: RebalanceOptions = {}): Fault {
  return { kind: 'rebalance', when: 'after', step: after, occurrence, lost }
}

/**
 * The worker stands still for `duration` of simulated time, as under SIGSTOP, and goes on. Longer than `transactionTimeout` (2 s here): its transaction is
 * aborted meanwhile. Longer than `sessionTimeout` (12 s here): its tasks go to other workers too.
 * @example await driver.fault(pause('20s'))
 */
export function pause(duration: Duration, { after = 'flush', occurrence = 1 }: StrikeOptions = {}): Fault {
  return { kind: 'pause', when: 'after', step: after, occurrence, durationMs: durationMs(duration, 'pause()') }
}

/**
 * The file of the next task that writes this store to disk is found damaged. It is set aside, and the task's state restored from the changelogs. Once per
 * task and worker: damage that comes back is a broken disk, and ends the worker.
 * @example await driver.fault(damageStore('dedupe'))
 */
export function damageStore(store: string): Fault {
  return { kind: 'damage-store', when: 'before', step: 'checkpoint', occurrence: 1, store }
}

/** As it is written in a test. */
export function faultText(fault: Fault): string {
  const text = (value: unknown): string => (typeof value === 'string' ? `'${value}'` : String(value))
  const call = (name: string, first: string | number | undefined, options: Readonly<Record<string, unknown>>): string => {
    const shown = Object.entries(options).filter(([, value]) => value !== undefined && value !== false)
    const inner = shown.length === 0 ? [] : [`{ ${shown.map(([key, value]) => `${key}: ${text(value)}`).join(', ')} }`]
    return `${name}(${[...(first === undefined ? [] : [text(first)]), ...inner].join(', ')})`
  }
  const occurrence = fault.occurrence === 1 ? undefined : fault.occurrence
  switch (fault.kind) {
    case 'crash':
      return call(fault.when === 'after' ? 'crashAfter' : 'crashBefore', fault.step, { occurrence, loseDisk: fault.loseDisk })
    case 'lose-reply':
      return call('loseReply', fault.step, {})
    case 'rebalance':
      return call('rebalance', undefined, { after: fault.step === 'flush' ? undefined : fault.step, occurrence, lost: fault.lost })
    case 'pause':
      return call('pause', fault.durationMs, { after: fault.step === 'flush' ? undefined : fault.step, occurrence })
    case 'damage-store':
      return call('damageStore', fault.store, {})
  }
}

/** Throws for a fault that can never strike this topology. */
export function checkFault(fault: Fault, plan: TopologyPlan): void {
  const stores = plan.subTopologies.flatMap((sub) => sub.stores.map(({ name }) => name))
  const known: Partial<Fault> = typeof fault === 'object' && fault !== null ? fault : {}
  if (known.kind === undefined || known.step === undefined || !STEPS.includes(known.step)) {
    const step = known.step === undefined ? '' : `: there is no step '${String(known.step)}', only ${STEPS.join(', ')}`
    throw new TestDriverError(`fault(): this is not what crashAfter() and its siblings return${step}`)
  }
  const text = faultText(fault)
  if (!Number.isSafeInteger(fault.occurrence) || fault.occurrence < 1)
    throw new TestDriverError(`${text}: occurrence is a whole number from 1 on`)
  if (fault.kind === 'lose-reply' && fault.step !== 'sendOffsets' && fault.step !== 'commit')
    throw new TestDriverError(`${text}: only the replies of sendOffsets and commit can be lost`)
  if (fault.kind === 'damage-store' && !stores.includes(fault.store))
    throw new TestDriverError(
      `${text}: topology '${plan.name}' has ${stores.length === 0 ? 'no store' : `the stores ${stores.join(', ')}`}`,
    )
  if (stores.length === 0 && STEPS_OF_STORES.includes(fault.step))
    throw new TestDriverError(`${text}: topology '${plan.name}' has no store, so none of its workers comes to the step '${fault.step}'`)
}

interface ArmedFault {
  readonly fault: Fault
  /** Waits for its own occasion once this one has struck. */
  readonly next: Fault | undefined
  seen: number
  hasFired: boolean
}

export class FaultBoard {
  readonly #armed: ArmedFault[] = []

  arm(fault: Fault, next?: Fault): void {
    this.#armed.push({ fault, next, seen: 0, hasFired: false })
  }

  get all(): { readonly fault: string; readonly fired: boolean }[] {
    return this.#armed.map(({ fault, hasFired }) => ({ fault: faultText(fault), fired: hasFired }))
  }

  get anyFired(): boolean {
    return this.#armed.some(({ hasFired }) => hasFired)
  }

  /** A worker passes a step: the fault that strikes it there, if one does (FB1). `stores`: those that a checkpoint writes. */
  passes(step: Step, when: When, stores: readonly string[] = []): Fault | undefined {
    for (const armed of this.#armed) {
      const { fault } = armed
      if (armed.hasFired || fault.step !== step || fault.when !== when) continue
      if (fault.kind === 'damage-store' && !stores.includes(fault.store)) continue
      if (++armed.seen < fault.occurrence) continue
      armed.hasFired = true
      if (armed.next !== undefined) this.arm(armed.next)
      return fault
    }
    return undefined
  }
}
