/**
 * Reading: polls, positions, and which polled record still counts.
 *
 * Owns: the consumer's reading side and the number of the present poll.
 * Does not own: the group membership's callbacks (task-lifecycle), whether the slot is still ours (slot-ownership), offsets outside of a log
 * (position-check), what a record does (task).
 *
 * Invariants:
 *  I1. One poll outstanding at most, and no seek while one is: the loop awaits its poll before it does anything else (CLIENT-FACTS 9).
 *  I2. A record counts only if its partition has been valid since before its poll was issued: a batch fetched before an assignment or a rewind is stale.
 *      Without it: (1) poll issued, (2) revoke and assign anew at another offset, (3) the old batch arrives and would be processed.
 *  I3. While reading is held nothing is delivered, but polling goes on: the member stays in the group, and its callbacks are heard.
 */
import type { GroupConsumer, PartitionEnd, PollResult } from '../broker/port.ts'
import { delay } from '../common/delay.ts'
import type { Clock, Logger, Timers } from '../common/ports.ts'
import { partitionName, type TopicPartition } from '../common/topic-partition.ts'
import { AUTO_OFFSET_RESET, OFFSET_OUT_OF_RANGE } from '../errors/broker-codes.ts'
import { BrokerError } from '../errors/broker-error.ts'
import { classify } from '../errors/classify.ts'
import { ConfigError, FatalError } from '../errors/errors.ts'
import type { AssignedTask, InputPartition } from './assigned-task.ts'
import type { LogStarts } from './log-starts.ts'
import type { OwnedTasks } from './owned-tasks.ts'
import type { PositionCheck } from './position-check.ts'
import type { SlotOwnership } from './slot-ownership.ts'

const SEEK_TIMEOUT_MS = 5_000
const SEEK_BUDGET_MS = 10_000
/** A client that is only busy is so for less. */
const SEEK_LOOK_MS = 1_000
const SEEK_PAUSE_MS = 20
const NOTHING: PollResult = { records: [], ends: [] }

export interface InputReaderOptions {
  readonly consumer: GroupConsumer
  readonly tasks: OwnedTasks
  readonly slot: SlotOwnership
  readonly positions: PositionCheck
  readonly logStarts: Pick<LogStarts, 'look' | 'of'>
  readonly tasksTopic: string
  readonly clock: Clock
  readonly timers: Timers
  readonly logger: Logger
}

export class InputReader {
  readonly #options: InputReaderOptions
  #pollNumber = 0
  #held = false
  #mustRejoin = false

  constructor(options: InputReaderOptions) {
    this.#options = options
  }

  /** Resolves with what there is after `timeoutMs` at the latest. Failures that pass are logged and look like an empty poll. */
  async poll(maxRecords: number, timeoutMs: number): Promise<PollResult> {
    this.#pollNumber++
    try {
      return await this.#options.consumer.poll(maxRecords, timeoutMs)
    } catch (error) {
      if (!(error instanceof BrokerError)) throw error
      const { reaction, reason } = classify(error)
      if (reaction === 'fenced') throw this.#options.slot.taken(error)
      if (error.code === OFFSET_OUT_OF_RANGE || error.code === AUTO_OFFSET_RESET) {
        await this.#checkPositions()
        return NOTHING
      }
      // The client does not step over it (seen): nothing of that partition would ever be read again.
      if (reaction === 'corrupted') throw corrupted(error, [...this.#options.tasks.inputs()])
      if (reaction === 'config' || reaction === 'poisoned')
        throw new ConfigError(`reading is not possible: ${error.message}: ${reason}`, { code: 'reading-refused', cause: error })
      if (reaction === 'fatal') throw new FatalError(`the consumer failed: ${error.message}`, { code: 'consumer-failed', cause: error })
      this.#options.logger.warn({ code: error.code, error: error.message }, `poll failed: ${reason}`)
      return NOTHING
    }
  }

  /** The input a record of the present poll belongs to; undefined when the record is stale (I2). */
  accept(topic: string, partition: number): InputPartition | undefined {
    const input = this.#options.tasks.input(topic, partition)
    return input !== undefined && this.#pollNumber >= input.validFromPoll ? input : undefined
  }

  /** An end of partition lies past control records: committing it makes lag reach 0 on transactional input (CLIENT-FACTS 31). */
  stepOverControlRecords(ends: readonly PartitionEnd[]): void {
    for (const { topic, partition, offset } of ends) {
      const input = this.accept(topic, partition)
      if (input !== undefined && offset > input.next) input.next = offset
    }
  }

  /** Reads on from the task's positions; until now its inputs were paused. */
  async start(task: AssignedTask): Promise<void> {
    await this.#seek(task)
    if (!this.#held) this.#resume(task)
  }

  #resume(task: AssignedTask): void {
    this.#options.consumer.resume(partitionsOf([task]))
  }

  /** Nothing is delivered until `release` (I3): no transaction can begin meanwhile. */
  hold(): void {
    if (this.#held) return
    this.#held = true
    this.#options.consumer.pause(partitionsOf(this.#options.tasks.running()))
  }

  /** Reads on where every running task stands. */
  async release(): Promise<void> {
    if (!this.#held) return
    this.#held = false
    await this.seekToPositions()
    for (const task of this.#options.tasks.running()) this.#resume(task)
  }

  /** Stops reading; what is still on its way is stale. */
  pause(tasks: readonly AssignedTask[]): void {
    this.#options.consumer.pause(partitionsOf(tasks))
    for (const { inputs } of tasks) for (const input of inputs) input.validFromPoll = Number.MAX_SAFE_INTEGER
  }

  /** The rest of a batch is left: what comes next is what follows the positions. */
  async seekToPositions(): Promise<void> {
    for (const task of this.#options.tasks.running()) await this.#seek(task)
  }

  /** Back to the committed positions. */
  async rewind(task: AssignedTask): Promise<void> {
    for (const input of task.inputs) input.next = input.committed ?? input.start
    await this.#seek(task)
  }

  /**
   * The client may still be busy with the assignment: tried again for a moment. A partition that was taken away meanwhile is left to its revoke. One whose
   * log lost its head just before it was assigned there is stopped for good, and the worker joins anew.
   */
  async #seek(task: AssignedTask): Promise<void> {
    const { consumer, clock, timers, tasksTopic } = this.#options
    for (const input of task.inputs) input.validFromPoll = this.#pollNumber + 1
    const startedAt = clock.monotonic()
    let hasLooked = false
    for (;;) {
      try {
        await consumer.seek(
          task.inputs.map(({ topic, partition, next }) => ({ topic, partition, offset: next })),
          SEEK_TIMEOUT_MS,
        )
        return
      } catch (error) {
        if (!(error instanceof BrokerError)) throw error
        const owned = consumer.assignments().some(({ topic, partition }) => topic === tasksTopic && partition === task.number)
        if (!owned) return
        const waitedMs = clock.monotonic() - startedAt
        if (!hasLooked && waitedMs >= SEEK_LOOK_MS) {
          hasLooked = true
          if (await this.#assignedTooLow(task)) {
            this.#mustRejoin = true
            return
          }
        }
        if (waitedMs >= SEEK_BUDGET_MS) {
          throw new FatalError(`reading of task ${task.describe()} could not be moved to its offsets: ${error.message}`, {
            code: 'seek-failed',
            cause: error,
          })
        }
        await delay(timers, SEEK_PAUSE_MS)
      }
    }
  }

  async #assignedTooLow({ inputs }: AssignedTask): Promise<boolean> {
    const { logStarts, logger } = this.#options
    try {
      await logStarts.look(inputs)
    } catch (error) {
      logger.debug({ error: String(error) }, 'the starts of the logs could not be read')
    }
    return inputs.some(({ topic, partition, assignedAt }) => assignedAt < logStarts.of(topic, partition))
  }

  /** An offset outside of its log is a matter of policy (position-check). Called every turn; looks every so often. */
  async checkPositionsWhenDue(): Promise<void> {
    if (this.#options.positions.isDue) await this.#checkPositions()
  }

  /**
   * An input that the client has stopped for its offset can only be read again by a new assignment (every seek fails with -172), and assignments are made
   * in the group's callback alone: the worker has to join anew, after the moved positions were committed.
   */
  get mustRejoin(): boolean {
    return this.#mustRejoin
  }

  rejoined(): void {
    this.#mustRejoin = false
  }

  async #checkPositions(): Promise<void> {
    if (await this.#options.positions.check()) this.#mustRejoin = true
  }

  /** Input records not yet processed, as the last fetches saw it. */
  lag(): number {
    let lag = 0
    for (const { topic, partition, next } of this.#options.tasks.inputs()) {
      lag += Math.max(0, (this.#options.consumer.knownEnd(topic, partition) ?? next) - next)
    }
    return lag
  }
}

function partitionsOf(tasks: readonly AssignedTask[]): readonly TopicPartition[] {
  return tasks.flatMap(({ inputs }) => inputs.map(({ topic, partition }) => ({ topic, partition })))
}

/** The client does not say which partition it was: named are all that are read, with where they stand. */
function corrupted(error: BrokerError, inputs: readonly InputPartition[]): ConfigError {
  const where = inputs.map(({ topic, partition, next }) => `${partitionName(topic, partition)} offset ${next}`).join(', ')
  return new ConfigError(`a batch of an input is corrupted, at one of ${where}: ${error.message}`, {
    code: 'corrupted-record',
    remedy:
      "Its bytes are damaged on the broker\u2019s disk or on the way: check the replicas (a change of leader may serve a sound copy). To go on, move the group\u2019s offset behind it on purpose (kafka-consumer-groups.sh --reset-offsets), or set corruptedRecord to 'deliver': then damaged bytes reach the codecs, and onError.",
    cause: error,
  })
}
