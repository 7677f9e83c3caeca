/** Many runs: all of a kind, or by seed; and from a run that fails to the fewest deviations that still make it fail. */
import { SeededNumbers } from '../../src/common/seeded-numbers.ts'
import { deviationsOf, ScriptedChoices, SeededChoices, type Decision, type Deviations } from '../../src/testing/sim/choices.ts'
import { FATES } from '../../src/testing/sim/client/connection.ts'
import { HealingChoices, runOnce, type RunOptions, type RunResult, STRIKES } from './run-once.ts'

export type Shape = Pick<
  RunOptions,
  'workers' | 'partitions' | 'records' | 'topologyKind' | 'feedEveryMs' | 'transactionMaxRecords' | 'producerRingSize' | 'startEveryMs'
>

export function replay(deviations: Deviations, shape: Shape = {}, onLine?: (line: string) => void): Promise<RunResult> {
  return runOnce({ ...shape, choices: new HealingChoices(new ScriptedChoices(deviations)), ...(onLine === undefined ? {} : { onLine }) })
}

/** Records that come at once, one after the other, and while sessions run out. */
const FEEDS_MS = [7, 37, 37, 300, 1_200] as const

/** Shape and rates of a swarm run are drawn from its seed too. */
export function runSeed(seed: number, onLine?: (line: string) => void): { readonly shape: Shape; readonly result: Promise<RunResult> } {
  const numbers = new SeededNumbers(seed ^ 0x5eed)
  const shape: Shape = {
    workers: 1 + numbers.below(3),
    partitions: 1 + numbers.below(4),
    records: 2 + numbers.below(24),
    topologyKind: numbers.next() < 0.3 ? 'pass-through' : 'dedupe',
    feedEveryMs: FEEDS_MS[numbers.below(FEEDS_MS.length)] as number,
    transactionMaxRecords: numbers.next() < 0.5 ? 2 : 1_000,
    producerRingSize: numbers.next() < 0.5 ? 1 : 2,
    startEveryMs: numbers.next() < 0.5 ? 0 : 300,
  }
  // Each kind of trouble has its own rate; some are absent, so that others are not drowned out by them (swarm testing, Groce 2012).
  const rateOf = (): number => (numbers.next() < 0.4 ? 0 : 0.002 * 2 ** numbers.below(6))
  const rates = { strike: rateOf() / 4, fate: rateOf(), delay: rateOf(), late: rateOf(), lateness: 0.5 }
  // And so has each single place: most as their kind, a few often. Drawn when the place is first met.
  const odds = new Map<string, number>()
  const oddsOf = (what: string): number => {
    let known = odds.get(what)
    if (known === undefined) {
      const rate = rates[what.slice(0, what.indexOf(' ')) as keyof typeof rates] ?? 0
      const draw = numbers.next()
      known = draw < 0.2 ? 0 : draw < 0.9 ? rate : Math.min(0.4, Math.max(rate, what.startsWith('strike ') ? 0.001 : 0.005) * 12)
      odds.set(what, known)
    }
    return known
  }
  const choices = new HealingChoices(new SeededChoices(seed, oddsOf))
  return { shape, result: runOnce({ ...shape, choices, ...(onLine === undefined ? {} : { onLine }) }) }
}

/** What an exhaustive run tries as its one deviation: every option of every decision. */
export function singles(trace: readonly Decision[]): Deviations[] {
  return trace.flatMap(({ options }, index) => Array.from({ length: options - 1 }, (_, option) => new Map([[index, option + 1]])))
}

const [KILL, REBALANCE] = [STRIKES.indexOf('kill'), STRIKES.indexOf('rebalance')]
/** Calls whose answer decides a transaction. */
const TRANSACTIONAL = ['InitProducerId', 'AddOffsetsToTxn', 'TxnOffsetCommit', 'EndTxn']
const REPLY_LOST = FATES.indexOf('reply lost')

/** The first halves of pairs: a death at every step, and a lost answer of every transactional call. */
export function firstOfPairs(trace: readonly Decision[]): Deviations[] {
  return trace.flatMap(({ what }, index) => {
    if (what.startsWith('strike ')) return [new Map([[index, KILL]])]
    return TRANSACTIONAL.some((name) => what === `fate of ${name}`) ? [new Map([[index, REPLY_LOST]])] : []
  })
}

/** The second halves, later in the run that the first one led to: a rebalance or a death at every step. */
export function pairsWith(first: Deviations, trace: readonly Decision[]): Deviations[] {
  const from = Math.max(...first.keys())
  return trace.flatMap(({ what }, index) => {
    if (index <= from || !what.startsWith('strike ')) return []
    return [KILL, REBALANCE].map((option) => new Map([...first, [index, option]]))
  })
}

/** Leaves out one deviation after the other for as long as the run still fails. */
export async function shrink(trace: readonly Decision[], shape: Shape): Promise<Deviations> {
  let deviations = deviationsOf(trace)
  for (let changed = true; changed;) {
    changed = false
    for (const index of deviations.keys()) {
      const fewer = new Map(deviations)
      fewer.delete(index)
      if ((await replay(fewer, shape)).violations.length === 0) continue
      deviations = fewer
      changed = true
      break
    }
  }
  return deviations
}

export function deviationsText(deviations: Deviations): string {
  return [...deviations].map(([index, option]) => `${index}=${option}`).join(',')
}

export function parseDeviations(text: string): Deviations {
  return new Map(
    text
      .split(',')
      .filter((part) => part !== '')
      .map((part) => part.split('=').map(Number) as [number, number]),
  )
}
