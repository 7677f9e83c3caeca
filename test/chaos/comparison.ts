/** Compares an output topic with the model. Pure: this is what must not sleep, so it has tests of its own. */
import { identityOf, type Expected, type ExpectedTopic, type OutputKind, type ReadRecord } from './model.ts'

export type ViolationKind =
  | 'lost'
  | 'invented'
  | 'doubled'
  | 'reordered'
  | 'changed'
  | 'state'
  | 'lag'
  | 'open-transaction'
  | 'process'
  | 'restore'
  | 'input'
  | 'settle'
  | 'twin'

export interface Violation {
  readonly kind: ViolationKind
  readonly text: string
}

/** A position as one number. */
const PARTITIONS = 1_024

/** Feed it the topic in offset order per partition, then `end`. */
export class TopicComparison {
  readonly #kind: OutputKind
  readonly #topic: string
  readonly #expected: ExpectedTopic
  readonly #seen = new Map<string, number>()
  /** The last output of each key. */
  readonly #last = new Map<string, { readonly expected: Expected; readonly record: ReadRecord }>()
  readonly #violations: Violation[] = []
  #records = 0

  constructor(kind: OutputKind, topic: string, expected: ExpectedTopic) {
    this.#kind = kind
    this.#topic = topic
    this.#expected = expected
  }

  add(record: ReadRecord): void {
    this.#records++
    const identity = identityOf(this.#kind, record)
    const expected = identity === undefined ? undefined : this.#expected.get(identity)
    if (identity === undefined || expected === undefined) {
      this.#violations.push({
        kind: 'invented',
        text: `${this.#at(record)}: no input leads to ${shown(record.key)} ${shown(record.value)}`,
      })
      return
    }
    const before = this.#seen.get(identity)
    if (before !== undefined) {
      const first = `${before % PARTITIONS} offset ${Math.floor(before / PARTITIONS)}`
      this.#violations.push({
        kind: 'doubled',
        text: `${this.#at(record)}: ${shown(record.value)} of input ${place(expected)} is also in partition ${first}`,
      })
      return
    }
    this.#seen.set(identity, record.offset * PARTITIONS + record.partition)
    const difference = differenceOf(expected, record)
    if (difference !== undefined)
      this.#violations.push({ kind: 'changed', text: `${this.#at(record)}: of input ${place(expected)}: ${difference}` })
    this.#checkOrder(expected, record)
  }

  end(): { readonly violations: readonly Violation[]; readonly records: number } {
    for (const [identity, expected] of this.#expected) {
      if (this.#seen.has(identity)) continue
      this.#violations.push({
        kind: 'lost',
        text: `${this.#topic}: nothing for input ${place(expected)}, time ${timeText(expected.timestamp)}: ${shown(expected.key)} ${shown(expected.value)}`,
      })
    }
    return { violations: this.#violations, records: this.#records }
  }

  #checkOrder(expected: Expected, record: ReadRecord): void {
    const key = record.key ?? ''
    const last = this.#last.get(key)
    if (last !== undefined && (expected.from[0] !== last.expected.from[0] || expected.from[1] < last.expected.from[1])) {
      this.#violations.push({
        kind: 'reordered',
        text: `${this.#at(record)}: key ${key}, of input ${place(expected)}, comes after that of input ${place(last.expected)} at ${this.#at(last.record)}`,
      })
      return
    }
    this.#last.set(key, { expected, record })
  }

  #at({ partition, offset, timestamp }: ReadRecord): string {
    return `${this.#topic}[${partition}] offset ${offset}, time ${timeText(timestamp)}`
  }
}

function differenceOf(expected: Expected, record: ReadRecord): string | undefined {
  if (record.key !== expected.key) return `key ${shown(record.key)} instead of ${shown(expected.key)}`
  if (record.value !== expected.value) return `value ${shown(record.value)} instead of ${shown(expected.value)}`
  if (record.timestamp !== expected.timestamp) return `timestamp ${record.timestamp} instead of ${expected.timestamp}`
  for (const [name, value] of Object.entries(expected.headers)) {
    if (record.headers[name] !== value) return `header ${name} is ${shown(record.headers[name] ?? null)} instead of ${shown(value)}`
  }
  return undefined
}

function place({ from }: Expected): string {
  return `${from[0]}/${from[1]}`
}

function shown(text: string | null): string {
  return text === null ? 'null' : JSON.stringify(text.slice(0, 160))
}

function timeText(time: number): string {
  return new Date(time).toISOString().slice(11, 23)
}
