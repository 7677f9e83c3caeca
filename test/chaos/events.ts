/** The input of a run, decided by its seed: new events, resends, events that fail, and records that are no JSON. */
import { SeededRandom } from '../../demo/seeded-random.ts'
import type { ChaosEvent, EventKind } from './scenario.ts'

export interface SourceRecord {
  readonly key: string
  readonly value: string
  /** ms after the first. Times of neighbours are out of order by up to JITTER_MS. */
  readonly timeMs: number
}

const KEYS = 400
const RESEND = 0.2
/** Of the resends; some of them come after the window, and are new then. */
const OLD_RESEND = 0.1
const SKIP = 0.1
const THROW = 0.01
const BROKEN = 0.005
const JITTER_MS = 2_000
const RECENT = 2_000
const REMEMBERED = 200_000

export class EventSource {
  readonly #random: SeededRandom
  readonly #rate: number
  readonly #sequences = new Map<string, number>()
  readonly #past: Omit<ChaosEvent, 'send'>[] = []
  #send = 0

  constructor(seed: number, rate: number) {
    this.#random = new SeededRandom(seed)
    this.#rate = rate
  }

  next(): SourceRecord {
    const random = this.#random
    const send = this.#send++
    const timeMs = Math.max(0, Math.floor((send * 1_000) / this.#rate) - random.below(JITTER_MS))
    if (random.next() < BROKEN) return { key: `k${random.below(KEYS)}`, value: `{"send":${send},"broken`, timeMs }
    const event = random.next() < RESEND && this.#past.length > 0 ? this.#resent() : this.#new(send)
    return { key: event.key, value: JSON.stringify({ ...event, send } satisfies ChaosEvent), timeMs }
  }

  #new(send: number): Omit<ChaosEvent, 'send'> {
    const random = this.#random
    const key = `k${random.below(KEYS)}`
    const sequence = (this.#sequences.get(key) ?? 0) + 1
    this.#sequences.set(key, sequence)
    const draw = random.next()
    const kind: EventKind = draw < SKIP ? 'skip' : draw < SKIP + THROW ? 'throw' : 'keep'
    const event = { id: `${key}/${sequence}`, key, sequence, kind }
    this.#past[send % REMEMBERED] = event
    return event
  }

  #resent(): Omit<ChaosEvent, 'send'> {
    const random = this.#random
    const reach = random.next() < OLD_RESEND ? REMEMBERED : RECENT
    // Places of resends and broken records are holes.
    for (let tries = 0; tries < 20; tries++) {
      const at = this.#send - 1 - random.below(Math.min(reach, this.#send))
      const event = this.#past[((at % REMEMBERED) + REMEMBERED) % REMEMBERED]
      if (event !== undefined) return event
    }
    return this.#new(this.#send - 1)
  }
}
