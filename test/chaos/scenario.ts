/** The names and the rules that the processes of one run share. Plain data. */

export interface Scenario {
  readonly application: string
  readonly instance: string
  readonly input: string
  readonly output: string
  readonly duplicates: string
  readonly deadLetters: string
  readonly changelog: string
  readonly partitions: number
  /** How long an id is remembered, event time. Short, so that ids also expire in a run. */
  readonly windowMs: number
}

export const WINDOW_MS = 45_000

export function scenarioOf(application: string, partitions: number): Scenario {
  return {
    application,
    instance: 'node',
    input: `${application}.input`,
    output: `${application}.output`,
    duplicates: `${application}.duplicates`,
    deadLetters: `${application}.dead-letters`,
    changelog: `${application}-dedupe-changelog`,
    partitions,
    windowMs: WINDOW_MS,
  }
}

export type EventKind = 'keep' | 'skip' | 'throw'

/** An input record's value. */
export interface ChaosEvent {
  /** What it is deduplicated by; a resend has the same. */
  readonly id: string
  readonly key: string
  /** Counts the events of the key. */
  readonly sequence: number
  /** `skip` is filtered out, `throw` fails in a step behind the dedupe. */
  readonly kind: EventKind
  /** Names this very record: no two have the same. */
  readonly send: number
}

/** An output record's value: the event, and where the record that led here was read. */
export interface ChaosOutput extends ChaosEvent {
  readonly from: readonly [partition: number, offset: number]
}
