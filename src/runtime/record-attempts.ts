/**
 * Records that make the worker fail without being named: the process dies, the broker refuses a whole transaction, a handler outlives the transaction.
 * After deaths each record is named on disk before it runs; after a refusal each runs in a transaction of its own. So the bad one is found, its failures are
 * counted over restarts, and it ends on the error path (`onError`) instead of failing for ever (CASES F50, X6).
 *
 * Owns: which inputs are named or isolated and up to where, the failures of at most one suspect per input partition, the note that a successor of this slot
 * finds. Does not own: the error path (task), transactions (commit-cycle), when the process dies.
 *
 * Invariants:
 *  RA1. A named record is on disk before it runs: a process that dies of it leaves its name. A death counts against the record that ran, and no other.
 *  RA2. After two deaths in a row without a commit in between the first records of each input are named; one death alone is no reason (kill -9 is not a
 *       record's fault).
 *  RA3. A record is given up only after MAX_ATTEMPTS failures of its own: a pause of the machine can make an innocent record slow once. Aborts for other
 *       reasons do not count.
 */
import type { BrokerRecord } from '../broker/port.ts'
import { partitionName } from '../common/topic-partition.ts'
import type { SlotLock } from '../state/store.ts'
import type { AssignedTask, InputPartition } from './assigned-task.ts'

export const MAX_ATTEMPTS = 3
const DEATHS_IN_A_ROW = 2
/** Records of each input that are named after deaths in a row. */
const NAMED_AFTER_DEATHS = 1_000

interface Suspect {
  offset: number
  /** Failures that are certain. */
  attempts: number
  reason: string
}

interface Note {
  readonly v: 1
  /** Processes in a row that ended without a commit and without a word. */
  readonly deaths: number
  /** The named record that runs, if one does. */
  readonly running: { readonly partition: string; readonly offset: number } | undefined
  readonly suspects: readonly (Suspect & { readonly partition: string })[]
}

type Slot = Pick<SlotLock, 'readNote' | 'writeNote'>

export class RecordAttempts {
  readonly #slot: Slot
  readonly #suspects = new Map<string, Suspect>()
  /** First offset that is not named, or not isolated, any more, by input. */
  readonly #named = new Map<InputPartition, number>()
  readonly #isolated = new Map<InputPartition, number>()
  readonly #deathsBefore: number
  #deaths: number
  #running: Note['running']

  constructor(slot: Slot) {
    this.#slot = slot
    const note = parsed(slot.readNote())
    this.#deathsBefore = note?.deaths ?? 0
    for (const { partition, offset, attempts, reason } of note?.suspects ?? []) this.#suspects.set(partition, { offset, attempts, reason })
    if (note?.running !== undefined) {
      const suspect = this.#at(note.running.partition, note.running.offset)
      suspect.attempts++
      suspect.reason = 'the process ended while it processed this record'
    }
    // Counted as a death until a commit or an orderly end says otherwise.
    this.#deaths = this.#deathsBefore + 1
    this.#write()
  }

  /** A task begins to run at its committed positions. */
  started(task: AssignedTask): void {
    for (const input of task.inputs) {
      const suspect = this.#suspects.get(nameOf(input))
      let until = this.#deathsBefore >= DEATHS_IN_A_ROW ? input.next + NAMED_AFTER_DEATHS : 0
      if (suspect !== undefined) until = Math.max(until, suspect.offset + 1)
      if (until > input.next) this.#named.set(input, until)
    }
  }

  /** On the path of every record: whether it runs in a transaction of its own. False at once while nothing is isolated. */
  isolates(input: InputPartition, offset: number): boolean {
    return this.#isolated.size > 0 && isBefore(this.#isolated, input, offset)
  }

  /**
   * On the path of every record, before it runs: names it on disk where that is wanted (RA1). Returns why it must not run any more, if it must not. Nothing
   * to do while no record is under suspicion.
   */
  begin(input: InputPartition, offset: number): Error | undefined {
    if (this.#named.size === 0 && this.#suspects.size === 0) return undefined
    const partition = nameOf(input)
    const suspect = this.#suspects.get(partition)
    if (suspect?.offset === offset && suspect.attempts >= MAX_ATTEMPTS)
      return new Error(`${suspect.reason}; given up after ${suspect.attempts} attempts`)
    const isNamed = this.#named.size > 0 && isBefore(this.#named, input, offset)
    if (!isNamed && this.#running === undefined) return undefined
    this.#running = isNamed ? { partition, offset } : undefined
    this.#write()
    return undefined
  }

  /** A record ran longer than a transaction may be open. */
  slow(input: InputPartition, offset: number, tookMs: number): void {
    const suspect = this.#at(nameOf(input), offset)
    suspect.attempts++
    suspect.reason = `processing took ${Math.round(tookMs)} ms, longer than a transaction may be open (option transactionTimeout)`
    this.#write()
  }

  /** The broker refused a transaction for a record in it, without saying which. `inputs` stand where the transaction had brought them. */
  refused(inputs: Iterable<InputPartition>, error: Error): void {
    for (const input of inputs) {
      const begun = input.committed ?? input.start
      if (input.next <= begun) continue
      if (this.isolates(input, input.next - 1)) {
        const suspect = this.#at(nameOf(input), input.next - 1)
        suspect.attempts++
        suspect.reason = `the broker refused what it wrote: ${error.message}`
        this.#write()
      }
      this.#isolated.set(input, Math.max(input.next, this.#isolated.get(input) ?? 0))
    }
  }

  /** A record failed by name. Returns how often it has failed, this time included. */
  failed({ topic, partition, offset }: Pick<BrokerRecord, 'topic' | 'partition' | 'offset'>): number {
    const suspect = this.#at(partitionName(topic, partition), offset)
    // One that is given up has not run again.
    if (suspect.attempts < MAX_ATTEMPTS) suspect.attempts++
    return suspect.attempts
  }

  /** A transaction committed: what lies behind the committed positions is settled. */
  committed(inputs: Iterable<InputPartition>): void {
    if (this.#suspects.size > 0) {
      for (const input of inputs) {
        const suspect = this.#suspects.get(nameOf(input))
        if (suspect !== undefined && suspect.offset < input.next) this.#suspects.delete(nameOf(input))
      }
    }
    if (this.#deaths === 0) return
    this.#deaths = 0
    this.#write()
  }

  /** The process ends in order, with or without an error: what is known of suspects is kept for the next start. */
  ended(): void {
    this.#deaths = 0
    this.#running = undefined
    this.#write()
  }

  #at(partition: string, offset: number): Suspect {
    const known = this.#suspects.get(partition)
    if (known?.offset === offset) return known
    const suspect = { offset, attempts: 0, reason: '' }
    this.#suspects.set(partition, suspect)
    return suspect
  }

  #write(): void {
    const suspects = [...this.#suspects].map(([partition, suspect]) => ({ partition, ...suspect }))
    const note: Note = { v: 1, deaths: this.#deaths, running: this.#running, suspects }
    this.#slot.writeNote(JSON.stringify(note))
  }
}

/** False, and forgotten, from the first offset on that is not before the bound. */
function isBefore(bounds: Map<InputPartition, number>, input: InputPartition, offset: number): boolean {
  const until = bounds.get(input)
  if (until === undefined) return false
  if (offset < until) return true
  bounds.delete(input)
  return false
}

function nameOf({ topic, partition }: InputPartition): string {
  return partitionName(topic, partition)
}

/** Undefined for anything that cannot be read: a process may have died in the middle of writing it. */
function parsed(text: string | undefined): Note | undefined {
  if (text === undefined) return undefined
  try {
    const note = JSON.parse(text) as Note
    return (note.v as number) === 1 && typeof note.deaths === 'number' && Array.isArray(note.suspects) ? note : undefined
  } catch {
    return undefined
  }
}
