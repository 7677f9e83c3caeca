/**
 * The states of one supervised worker process, as data, and what an exit asks for. Pure.
 *
 *            fork             first sign of work
 *   waiting ──────> starting ───────────────────> running
 *      ^               │  │                        │  │
 *      │ exit, restart │  │ stop                   │  │ stop
 *      ├───────────────┴──│────────────────────────┘  │
 *      │                  └─────────> stopping <──────┘
 *      │ stop                            │ exit
 *      └───────────────> stopped <───────┘
 * An exit that is final goes from starting or running to stopped at once.
 */
import { EXIT_CODES } from '../errors/errors.ts'

export type ChildState = 'waiting' | 'starting' | 'running' | 'stopping' | 'stopped'

export const CHILD_TRANSITIONS: Readonly<Record<ChildState, readonly ChildState[]>> = {
  waiting: ['starting', 'stopped'],
  starting: ['running', 'stopping', 'waiting', 'stopped'],
  running: ['stopping', 'waiting', 'stopped'],
  stopping: ['stopped'],
  stopped: [],
}

export interface BackOff {
  /** Delay of the first restart. */
  readonly firstMs: number
  readonly maxMs: number
  /** A worker that ran this long starts again from `firstMs`. */
  readonly healthyAfterMs: number
}
export const DEFAULT_BACK_OFF: BackOff = { firstMs: 50, maxMs: 10_000, healthyAfterMs: 60_000 }

/** `restarts` in a row so far: 50 ms, then 200, 400, 800 ... up to the most. */
export function restartDelayMs(restarts: number, backOff: BackOff): number {
  return Math.min(backOff.maxMs, restarts === 0 ? backOff.firstMs : backOff.firstMs * 2 ** Math.min(restarts + 1, 30))
}

type ExitReaction = 'restart' | 'stop-all'
interface ExitMeaning {
  readonly reason: string
  readonly reaction: ExitReaction
}

/**
 * Restarting helps against a crash and a broker that was away, never against a wrong option, a taken slot, a state folder in use or a record that stays poisoned.
 */
const EXIT_MEANINGS: Readonly<Record<number, ExitMeaning>> = {
  [EXIT_CODES.ok]: { reason: 'ended without being asked to', reaction: 'restart' },
  [EXIT_CODES.fatal]: { reason: 'fatal error', reaction: 'restart' },
  [EXIT_CODES.config]: { reason: 'wrong configuration or topology', reaction: 'stop-all' },
  [EXIT_CODES.unavailable]: { reason: 'no broker available', reaction: 'restart' },
  [EXIT_CODES.poisoned]: { reason: 'poisoned record', reaction: 'stop-all' },
  [EXIT_CODES.slotTaken]: { reason: 'slot taken by another process', reaction: 'stop-all' },
  [EXIT_CODES.state]: { reason: 'state directory not usable', reaction: 'stop-all' },
}

/**
 * `anyRan`: a worker of this run has worked before. Until then every exit code is final: what never worked is a mistake to be shown (no broker at the
 * address, a missing library), not a crash to be repaired. A signal always asks for a restart.
 */
export function exitMeaning(code: number | null, signal: string | null, anyRan: boolean): ExitMeaning {
  if (signal !== null) return { reason: `killed by ${signal}`, reaction: 'restart' }
  const meaning = EXIT_MEANINGS[code ?? EXIT_CODES.fatal] ?? { reason: `exit code ${code}`, reaction: 'restart' }
  return anyRan || code === EXIT_CODES.ok ? meaning : { reason: meaning.reason, reaction: 'stop-all' }
}
