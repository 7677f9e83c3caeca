/**
 * Whether this process still is what it was when it joined: the one member of its slot, the owner of its tasks.
 *
 * Invariants:
 *  SO1. An owned slot has assignments: the client drops them without any event when another process took the slot (CLIENT-FACTS 21).
 *  SO2. Offsets are sent for partitions only that the client has assigned right then: it takes the generation at call time, not at fetch time (X3).
 *  SO3. A slot counts as taken only by a process that claimed it later than this one.
 */
import type { GroupConsumer } from '../broker/port.ts'
import type { Logger } from '../common/ports.ts'
import { partitionName } from '../common/topic-partition.ts'
import { BrokerError } from '../errors/broker-error.ts'
import { BrokerUnavailableError, SlotTakenError } from '../errors/errors.ts'
import type { AssignedTask } from './assigned-task.ts'
import type { OwnedTasks } from './owned-tasks.ts'

/** Whether `claim` is the last one of the slot. */
export function isLastClaim(claims: ReadonlyMap<string, string>, slotName: string, claim: string): boolean {
  return claims.get(slotName) === claim
}

/**
 * After the client or a broker said that the slot is somebody else's: is it (SO3)? Nobody but the slot's own log can tell. A join whose answer was lost, with
 * the coordinator for example, is followed by a second one, and each fences the other though both are ours (seen: a worker that ended with "slot taken" and
 * had no rival); and to the group a static member looks like the first process that had its place, whoever has it now.
 *
 * Returns the error the worker is to end with. In doubt the slot counts as taken; so it does for a fence of its producers that no time-out explains: that had
 * somebody behind it, with a claim or without.
 */
export async function confirmTaken(
  error: SlotTakenError,
  slotName: string,
  claim: string,
  readClaims: () => Promise<ReadonlyMap<string, string>>,
  logger: Logger,
): Promise<Error> {
  if (error.cause instanceof BrokerError && error.cause.operation !== 'poll') return error
  try {
    if (!isLastClaim(await readClaims(), slotName, claim)) return error
  } catch (failure) {
    logger.warn({ error: String(failure) }, 'the claims of the slots could not be read: this one counts as taken')
    return error
  }
  return new BrokerUnavailableError(`the group lost this worker, and no other process has started in its slot ${slotName}`, {
    code: 'membership-lost',
    remedy: 'Start again (`millrace run` does that by itself): the slot is free, and nothing is lost.',
    cause: error,
  })
}

export class SlotOwnership {
  readonly #consumer: GroupConsumer
  readonly #tasks: OwnedTasks
  readonly #slotName: string

  constructor(consumer: GroupConsumer, tasks: OwnedTasks, slotName: string) {
    this.#consumer = consumer
    this.#tasks = tasks
    this.#slotName = slotName
  }

  /** Asked right before offsets are sent (SO2). */
  owns(tasks: readonly AssignedTask[]): boolean {
    if (this.#consumer.assignmentLost()) return false
    const assigned = new Set(this.#consumer.assignments().map(({ topic, partition }) => partitionName(topic, partition)))
    return tasks.every(
      (task) => task.phase === 'running' && task.assigned.every(({ topic, partition }) => assigned.has(partitionName(topic, partition))),
    )
  }

  /** SO1; asked every turn, after the events of the group were handled. */
  check(): void {
    if (this.#tasks.size > 0 && this.#consumer.assignments().length === 0) throw this.taken(undefined)
  }

  taken(cause: BrokerError | undefined): SlotTakenError {
    return new SlotTakenError(`another process has taken the slot ${this.#slotName}${cause === undefined ? '' : ` (${cause.message})`}`, {
      code: 'slot-taken',
      remedy: 'Run one process per slot: give each machine its own --instance. This process stops and commits nothing more.',
      cause,
    })
  }
}
