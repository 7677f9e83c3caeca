/**
 * The reference: what the topology of `topology.ts` must have written, computed from its committed input by a plain loop. Shares no code with src.
 *
 *   input -> filter (kind 'skip' goes) -> dedupe by id in a window of event time -> a step that throws for kind 'throw' -> output
 *
 * Per partition, in offset order. A record that cannot be read or that throws becomes a dead letter and leaves no trace in state or stream time.
 */
import type { ChaosEvent, ChaosOutput, Scenario } from './scenario.ts'

/** A record as the bare client read it. */
export interface ReadRecord {
  readonly partition: number
  readonly offset: number
  readonly timestamp: number
  readonly key: string | null
  readonly value: string | null
  readonly headers: Readonly<Record<string, string>>
}

export interface Expected {
  /** Which input record led here. */
  readonly from: readonly [partition: number, offset: number]
  readonly key: string | null
  readonly value: string | null
  readonly timestamp: number
  /** Those that must be there; others may be as well. */
  readonly headers: Readonly<Record<string, string>>
}

export type OutputKind = 'output' | 'duplicates' | 'dead-letters'

/** By identity (`identityOf`). */
export type ExpectedTopic = ReadonlyMap<string, Expected>

export interface Reference {
  readonly output: ExpectedTopic
  readonly duplicates: ExpectedTopic
  readonly deadLetters: ExpectedTopic
  /** Highest event time of each partition, ms; -1 where there was none. */
  readonly streamTimes: readonly number[]
  /** Ids that were new again because their window was over. */
  readonly expired: number
}

interface Remembered {
  readonly time: number
  readonly offset: number
}

export class ReferenceModel {
  readonly #scenario: Pick<Scenario, 'input' | 'partitions' | 'windowMs'>
  readonly #output = new Map<string, Expected>()
  readonly #duplicates = new Map<string, Expected>()
  readonly #deadLetters = new Map<string, Expected>()
  readonly #ids: Map<string, Remembered>[]
  readonly #streamTimes: number[]
  readonly #next: number[]
  #expired = 0

  constructor(scenario: Pick<Scenario, 'input' | 'partitions' | 'windowMs'>) {
    this.#scenario = scenario
    this.#ids = Array.from({ length: scenario.partitions }, () => new Map<string, Remembered>())
    this.#streamTimes = Array.from({ length: scenario.partitions }, () => -1)
    this.#next = Array.from({ length: scenario.partitions }, () => 0)
  }

  /** Records of one partition must come in offset order. */
  add(record: ReadRecord): void {
    const { partition, offset, timestamp, key, value } = record
    if (offset < (this.#next[partition] ?? 0)) throw new Error(`the input was not read in order: partition ${partition}, offset ${offset}`)
    this.#next[partition] = offset + 1
    const from = [partition, offset] as const
    const event = parsed(value)
    if (event === undefined) return this.#deadLetter(record)
    const now = Math.max(timestamp, this.#streamTimes[partition] ?? -1)
    if (event.kind !== 'skip') {
      const ids = this.#ids[partition] as Map<string, Remembered>
      const known = ids.get(event.id)
      if (known !== undefined && known.time + this.#scenario.windowMs > now) {
        this.#duplicates.set(String(event.send), {
          from,
          key,
          value,
          timestamp,
          headers: {
            'millrace.original.partition': String(partition),
            'millrace.original.offset': String(known.offset),
            'millrace.original.time': String(known.time),
          },
        })
      } else {
        // What fails is not remembered: a mended resend must pass.
        if (event.kind === 'throw') return this.#deadLetter(record)
        if (known !== undefined) this.#expired++
        ids.set(event.id, { time: timestamp, offset })
        this.#output.set(String(event.send), {
          from,
          key,
          value: JSON.stringify({ ...event, from } satisfies ChaosOutput),
          timestamp,
          headers: {},
        })
      }
    }
    this.#streamTimes[partition] = now
  }

  result(): Reference {
    return {
      output: this.#output,
      duplicates: this.#duplicates,
      deadLetters: this.#deadLetters,
      streamTimes: this.#streamTimes,
      expired: this.#expired,
    }
  }

  #deadLetter({ partition, offset, timestamp, key, value }: ReadRecord): void {
    const headers = {
      'millrace.topic': this.#scenario.input,
      'millrace.partition': String(partition),
      'millrace.offset': String(offset),
      'millrace.timestamp': String(timestamp),
    }
    this.#deadLetters.set(`${partition}/${offset}`, { from: [partition, offset], key, value, timestamp, headers })
  }
}

/** Undefined: no event, a dead letter. */
export function parsed(value: string | null): ChaosEvent | undefined {
  try {
    const event = JSON.parse(value ?? 'null') as ChaosEvent | null
    return event !== null && typeof event === 'object' ? event : undefined
  } catch {
    return undefined
  }
}

/** What makes a record of an output topic the answer to one input record. Undefined: nothing of ours. */
export function identityOf(kind: OutputKind, { value, headers }: ReadRecord): string | undefined {
  if (kind === 'dead-letters') {
    const partition = headers['millrace.partition']
    const offset = headers['millrace.offset']
    return partition === undefined || offset === undefined ? undefined : `${partition}/${offset}`
  }
  const send = parsed(value)?.send
  return typeof send === 'number' ? String(send) : undefined
}
