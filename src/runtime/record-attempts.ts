/**
 * Records that make the worker fail without being named: the broker refuses a whole transaction, the process dies, a handler outlives the transaction.
 * Such a record is found by processing one record per transaction where it may be, and its tries are counted over restarts, so that it ends on the error
 * path (`onError`) instead of failing for ever (CASES F50, X6).
 *
 * Owns: which inputs are isolated and up to where, the tries of at most one suspect per input partition, the note that a successor of this slot finds.
 * Does not own: the error path (task), transactions (commit-cycle), when the process dies.
 *
 * Invariants:
 *  RA1. A try of an isolated record is noted on disk before the record runs: a process that dies of it leaves its name.
 *  RA2. A process that dies twice without a commit in between isolates what it reads first; one death alone is no reason (kill -9 is not a record's fault).
 *  RA3. A record is given up only after MAX_ATTEMPTS tries that named it: a pause of the machine can make an innocent record slow once.
 */
import type { BrokerRecord } from '../broker/port.ts'
import { partitionName } from '../common/topic-partition.ts'
import type { SlotLock } from '../state/store.ts'
import type { AssignedTask, InputPartition } from './assigned-task.ts'

export const MAX_ATTEMPTS = 3
/** Records of each input that are isolated after two deaths in a row. */
const ISOLATED_AFTER_DEATHS = 1_000

interface Suspect {
  offset: number
  attempts: number
  reason: string
}

interface Note {
  readonly v: 1
  /** Processes in a row that ended without a commit and without a word. */
  readonly deaths: number
  readonly suspects: readonly (Suspect & { readonly partition: string })[]
}

export class RecordAttempts {
  readonly #slot: Pick<SlotLock, 'readNote' | 'writeNote'>
  readonly #suspects = new Map<string, Suspect>()
  /** First offset that is not isolated any more, by input. */
  readonly #isolated = new Map<InputPartition, number>()
  readonly #deathsBefore: number
  #deaths: number

  constructor(slot: Pick<SlotLock, 'readNote' | 'writeNote'>) {
    this.#slot = slot
    const note = parsed(slot.readNote())
    this.#deathsBefore = note?.deaths ?? 0
    for (const { partition, offset, attempts, reason } of note?.suspects ?? []) this.#suspects.set(partition, { offset, attempts, reason })
    // Counted as a death until a commit or an orderly end says otherwise.
    this.#deaths = this.#deathsBefore + 1
    this.#write()
  }

  /** A task begins to run at its committed positions. */
  started(task: AssignedTask): void {
    for (const input of task.inputs) {
      const suspect = this.#suspects.get(nameOf(input))
      let until = this.#deathsBefore >= 2 ? input.next + ISOLATED_AFTER_DEATHS : 0
      if (suspect !== undefined && suspect.offset >= input.next) until = Math.max(until, suspect.offset + 1)
      if (until > input.next) this.#isolated.set(input, until)
    }
  }

  /** On the path of every record: false at once while nothing is isolated. */
  isolates(input: InputPartition, offset: number): boolean {
    if (this.#isolated.size === 0) return false
    const until = this.#isolated.get(input)
    if (until === undefined) return false
    if (offset < until) return true
    this.#isolated.delete(input)
    return false
  }

  /** A try of an isolated record begins (RA1). Returns why it must not run any more, if it must not. */
  begin(input: InputPartition, offset: number): Error | undefined {
    const suspect = this.#at(nameOf(input), offset)
    if (suspect.attempts >= MAX_ATTEMPTS) {
      return new Error(`${suspect.reason}; given up after ${suspect.attempts} attempts`)
    }
    suspect.attempts++
    this.#write()
    return undefined
  }

  /** A record ran longer than a transaction may be open. */
  slow(input: InputPartition, offset: number, tookMs: number): void {
    const counted = this.isolates(input, offset)
    const suspect = this.#at(nameOf(input), offset)
    if (!counted) suspect.attempts++
    suspect.reason = `processing took ${Math.round(tookMs)} ms, longer than a transaction may be open (option transactionTimeout)`
    this.#isolate(input, offset + 1)
    this.#write()
  }

  /** The broker refused a transaction for a record in it, without saying which. `inputs` stand where the transaction had brought them. */
  refused(inputs: Iterable<InputPartition>, error: Error): void {
    for (const input of inputs) {
      if (input.next <= (input.committed ?? input.start)) continue
      const suspect = this.#suspects.get(nameOf(input))
      if (suspect !== undefined && this.#isolated.has(input) && suspect.offset === input.next - 1) {
        suspect.reason = `the broker refused what it wrote: ${error.message}`
        this.#write()
      }
      this.#isolate(input, input.next)
    }
  }

  /** A record failed by name. Returns how often it has been tried, this time included. */
  failed(task: AssignedTask, { topic, partition, offset }: Pick<BrokerRecord, 'topic' | 'partition' | 'offset'>): number {
    const input = task.inputs.find((other) => other.topic === topic && other.partition === partition)
    const counted = input !== undefined && this.isolates(input, offset)
    const suspect = this.#at(partitionName(topic, partition), offset)
    if (!counted) suspect.attempts++
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
    this.#write()
  }

  #isolate(input: InputPartition, until: number): void {
    this.#isolated.set(input, Math.max(until, this.#isolated.get(input) ?? 0))
  }

  #at(partition: string, offset: number): Suspect {
    const known = this.#suspects.get(partition)
    if (known?.offset === offset) return known
    const suspect = { offset, attempts: 0, reason: 'the process ended while it processed this record' }
    this.#suspects.set(partition, suspect)
    return suspect
  }

  #write(): void {
    const note: Note = {
      v: 1,
      deaths: this.#deaths,
      suspects: [...this.#suspects].map(([partition, suspect]) => ({ partition, ...suspect })),
    }
    this.#slot.writeNote(JSON.stringify(note))
  }
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
