/**
 * What happens when, decided by the seed alone. Pure.
 *
 * A deck of all faults is shuffled and dealt, then shuffled again, so that in a run of some minutes each kind comes about equally often. Failpoints are dealt
 * in turn over the seeds: run `seed` goes on where run `seed - 1` ended, so that a few seeds in a row reach every point.
 */
import { SeededRandom } from '../../demo/seeded-random.ts'
import { FAILPOINTS, type Failpoint } from '../../src/common/failpoints.ts'

/** Each is a way in which something dies, hangs, lies or leaves. */
export const FAULT_KINDS = [
  'kill',
  'stop',
  'restart',
  'leave',
  'scale',
  'failpoint',
  'lose-reply',
  'stop-at',
  'delete-state',
  'flip-bytes',
  'twin',
  'broker',
  'coordinator',
  'delay',
  'drop',
  'half-close',
  'hold-commit',
  'hold-offsets',
  'swallow',
] as const
export type FaultKind = (typeof FAULT_KINDS)[number]

/** What one deck holds more than once. */
const COPIES: Partial<Record<FaultKind, number>> = { kill: 2, failpoint: 5 }
/** Faults that harm for long come as one of two in a pair of decks, */
const RARE: ReadonlySet<FaultKind> = new Set(['stop', 'stop-at', 'twin', 'broker', 'coordinator'])
/** and not one right after the other: brokers that are never all up prove nothing about recovery. */
const APART: ReadonlyMap<FaultKind, { readonly group: string; readonly ms: number }> = new Map([
  ['broker', { group: 'brokers', ms: 30_000 }],
  ['coordinator', { group: 'brokers', ms: 30_000 }],
  ['stop', { group: 'stops', ms: 15_000 }],
  ['stop-at', { group: 'stops', ms: 15_000 }],
])

const WARM_UP_MS = 8_000
/** Nothing new begins in the last part: what has begun strikes under load. */
const LAST_MS = 8_000
const GAP_MS = { least: 1_500, most: 4_500 } as const

export interface PlannedFault {
  readonly index: number
  /** After the start of the load. */
  readonly atMs: number
  readonly kind: FaultKind
  /** Decides everything else about it. */
  readonly seed: number
  /** Of `failpoint`, `lose-reply` and `stop-at`. */
  readonly point: Failpoint | undefined
}

export interface TimelineOptions {
  readonly seed: number
  readonly minutes: number
  readonly faults: readonly FaultKind[]
  readonly kills?: number | undefined
  /** Failpoints that a process can be killed at. Default: all. */
  readonly failpoints?: readonly Failpoint[]
}

export const REPLY_POINTS = FAILPOINTS.filter((point) => point.endsWith(':reply'))
/** Where a process that stops for longer than its session does the most harm. */
const STOP_POINTS: readonly Failpoint[] = [
  'sendOffsets:after',
  'commit:before',
  'commit:after',
  'memtable:merge',
  'sqlite:begin',
  'flush:after',
]

export function planTimeline({ seed, minutes, faults, kills, failpoints = FAILPOINTS }: TimelineOptions): readonly PlannedFault[] {
  const random = new SeededRandom(seed)
  const endMs = Math.max(WARM_UP_MS + 1_000, minutes * 60_000 - LAST_MS)
  const moments: { atMs: number; kind: FaultKind }[] = []
  const dealt = kills === undefined ? faults : faults.filter((kind) => kind !== 'kill')
  if (dealt.length > 0) {
    let deck: FaultKind[] = []
    let decks = 0
    const lastOf = new Map<string, number>()
    for (let atMs = WARM_UP_MS; atMs < endMs; atMs += between(random, GAP_MS.least, GAP_MS.most)) {
      while (deck.length === 0) deck = shuffledDeck(random, dealt, decks++)
      const index = deck.findLastIndex((kind) => {
        const apart = APART.get(kind)
        return apart === undefined || atMs - (lastOf.get(apart.group) ?? -Infinity) >= apart.ms
      })
      const [kind] = index < 0 ? [] : deck.splice(index, 1)
      if (kind === undefined) continue
      const apart = APART.get(kind)
      if (apart !== undefined) lastOf.set(apart.group, atMs)
      moments.push({ atMs, kind })
    }
  }
  for (let kill = 0; kill < (kills ?? 0); kill++) moments.push({ atMs: between(random, WARM_UP_MS, endMs), kind: 'kill' })
  moments.sort((a, b) => a.atMs - b.atMs)

  const points = moments.filter(({ kind }) => kind === 'failpoint').length
  let nextPoint = seed * points
  let nextReply = seed
  let nextStop = seed
  return moments.map(({ atMs, kind }, index) => ({
    index,
    atMs: Math.round(atMs),
    kind,
    seed: random.below(2 ** 31),
    point:
      kind === 'failpoint'
        ? failpoints[nextPoint++ % failpoints.length]
        : kind === 'lose-reply'
          ? REPLY_POINTS[nextReply++ % REPLY_POINTS.length]
          : kind === 'stop-at'
            ? STOP_POINTS[nextStop++ % STOP_POINTS.length]
            : undefined,
  }))
}

function shuffledDeck(random: SeededRandom, kinds: readonly FaultKind[], number: number): FaultKind[] {
  const rare = kinds.filter((kind) => RARE.has(kind))
  const deck = kinds.flatMap((kind) => {
    if (RARE.has(kind) && kinds.length > rare.length && rare.indexOf(kind) % 2 !== number % 2) return []
    return Array.from({ length: COPIES[kind] ?? 1 }, () => kind)
  })
  for (let at = deck.length - 1; at > 0; at--) {
    const other = random.below(at + 1)
    ;[deck[at], deck[other]] = [deck[other] as FaultKind, deck[at] as FaultKind]
  }
  return deck
}

function between(random: SeededRandom, least: number, most: number): number {
  return least + random.next() * (most - least)
}
