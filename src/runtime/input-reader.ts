/**
 * Reading: polls, positions, and which polled record still counts.
 *
 * Owns: the consumer's reading side and the number of the present poll.
 * Does not own: the group membership's callbacks (task-lifecycle), what a record does (task).
 *
 * Invariants:
 *  I1. One poll outstanding at most, and no seek while one is: the loop awaits its poll before it does anything else (CLIENT-FACTS 9).
 *  I2. A record counts only if its partition has been valid since before its poll was issued: a batch fetched before an assignment or a rewind is stale.
 *      Without it: (1) poll issued, (2) revoke and assign anew at another offset, (3) the old batch arrives and would be processed.
 *  I3. An owned slot has assignments: the client drops them without any event when another process took the slot (CLIENT-FACTS 21).
 */
import type { BrokerAdmin, GroupConsumer, PartitionEnd, PollResult } from '../broker/port.ts'
import { delay } from '../common/delay.ts'
import type { Clock, Logger, Timers } from '../common/ports.ts'
import { partitionName } from '../common/topic-partition.ts'
import { BrokerError } from '../errors/broker-error.ts'
import { classify } from '../errors/classify.ts'
import { ConfigError, FatalError, SlotTakenError } from '../errors/errors.ts'
import type { AssignedTask, InputPartition } from './assigned-task.ts'
import type { OwnedTasks } from './owned-tasks.ts'

const OFFSET_OUT_OF_RANGE = 1
const AUTO_OFFSET_RESET = -140
const SEEK_TIMEOUT_MS = 5_000
const SEEK_BUDGET_MS = 10_000
const SEEK_PAUSE_MS = 20
const NOTHING: PollResult = { records: [], ends: [] }

export interface InputReaderOptions {
  readonly consumer: GroupConsumer
  readonly admin: Pick<BrokerAdmin, 'offsets'>
  readonly tasks: OwnedTasks
  /** How often positions are compared with the logs, ms. */
  readonly positionCheckMs: number
  readonly slotName: string
  readonly tasksTopic: string
  readonly clock: Clock
  readonly timers: Timers
  readonly logger: Logger
}

export class InputReader {
  readonly #options: InputReaderOptions
  #pollNumber = 0
  #checkedAt: number

  constructor(options: InputReaderOptions) {
    this.#options = options
    this.#checkedAt = options.clock.monotonic()
  }

  /** Resolves with what there is after `timeoutMs` at the latest. Failures that pass are logged and look like an empty poll. */
  async poll(maxRecords: number, timeoutMs: number): Promise<PollResult> {
    this.#pollNumber++
    try {
      return await this.#options.consumer.poll(maxRecords, timeoutMs)
    } catch (error) {
      if (!(error instanceof BrokerError)) throw error
      const { reaction, reason } = classify(error)
      if (reaction === 'fenced') throw this.slotTaken(error)
      if (error.code === OFFSET_OUT_OF_RANGE || error.code === AUTO_OFFSET_RESET) {
        await this.#checkPositionsIfAnswered()
        return NOTHING
      }
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
    this.#options.consumer.resume(task.inputs.map(({ topic, partition }) => ({ topic, partition })))
  }

  /** Stops reading; what is still on its way is stale. */
  pause(tasks: readonly AssignedTask[]): void {
    const inputs = tasks.flatMap((task) => task.inputs)
    this.#options.consumer.pause(inputs.map(({ topic, partition }) => ({ topic, partition })))
    for (const input of inputs) input.validFromPoll = Number.MAX_SAFE_INTEGER
  }

  /** Back to the committed positions. */
  async rewind(task: AssignedTask): Promise<void> {
    for (const input of task.inputs) input.next = input.committed ?? input.start
    await this.#seek(task)
  }

  /** The client may still be busy with the assignment: tried again for a moment. A partition that was taken away meanwhile is left to its revoke. */
  async #seek(task: AssignedTask): Promise<void> {
    const { consumer, clock, timers, tasksTopic } = this.#options
    for (const input of task.inputs) input.validFromPoll = this.#pollNumber + 1
    const deadline = clock.monotonic() + SEEK_BUDGET_MS
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
        if (clock.monotonic() >= deadline) {
          throw new FatalError(`reading of task ${task.describe()} could not be moved to its offsets: ${error.message}`, {
            code: 'seek-failed',
            cause: error,
          })
        }
        await delay(timers, SEEK_PAUSE_MS)
      }
    }
  }

  /** Asked right before offsets are sent (X3): the client takes the generation at call time, not at fetch time (CLIENT-FACTS 6). */
  stillOwns(tasks: readonly AssignedTask[]): boolean {
    const { consumer } = this.#options
    if (consumer.assignmentLost()) return false
    const assigned = new Set(consumer.assignments().map(({ topic, partition }) => partitionName(topic, partition)))
    return tasks.every(
      (task) => task.phase === 'running' && task.assigned.every(({ topic, partition }) => assigned.has(partitionName(topic, partition))),
    )
  }

  /** I3; not while a revoke waits to be handled. */
  checkSlot(): void {
    if (this.#options.tasks.size > 0 && this.#options.consumer.assignments().length === 0) throw this.slotTaken(undefined)
  }

  slotTaken(cause: BrokerError | undefined): SlotTakenError {
    return new SlotTakenError(
      `another process has taken the slot ${this.#options.slotName}${cause === undefined ? '' : ` (${cause.message})`}`,
      {
        code: 'slot-taken',
        remedy: 'Run one process per slot: give each machine its own --instance. This process stops and commits nothing more.',
        cause,
      },
    )
  }

  /**
   * Compares the positions of all running inputs with their logs. -140 names no partition, can be hidden behind the messages of one poll (then that input
   * stands still without a word), and comes for the dummy offset of an assignment as well (CLIENT-FACTS 32): so the logs are asked, now and then too.
   */
  async checkPositions(): Promise<void> {
    const { tasks, admin, clock } = this.#options
    this.#checkedAt = clock.monotonic()
    const inputs = [...tasks.inputs()].filter(({ task }) => task.phase === 'running')
    const positions = inputs.map(({ topic, partition, next }) => ({ topic, partition, next }))
    const bounds = await admin.offsets(positions)
    const outside = positions.flatMap(({ topic, partition, next }, index) => {
      const { logStart = 0, highWatermark = 0 } = bounds[index] ?? {}
      if (next >= logStart && next <= highWatermark) return []
      return [`${partitionName(topic, partition)} at offset ${next}, which has offsets ${logStart} to ${highWatermark}`]
    })
    if (outside.length === 0) return
    throw new ConfigError(`reading is not possible: ${outside.join('; ')}`, {
      code: 'offset-out-of-range',
      remedy:
        'Records were deleted before they were processed (retention), or the topic was re-created. Reset the group\u2019s offset of that partition on purpose, then start again.',
    })
  }

  /** Called every turn; looks every `positionCheckMs`. A broker that does not answer is no finding. */
  async checkPositionsWhenDue(): Promise<void> {
    const { clock, positionCheckMs } = this.#options
    if (clock.monotonic() - this.#checkedAt >= positionCheckMs) await this.#checkPositionsIfAnswered()
  }

  async #checkPositionsIfAnswered(): Promise<void> {
    try {
      await this.checkPositions()
    } catch (error) {
      if (!(error instanceof BrokerError)) throw error
      this.#options.logger.debug({ error: error.message }, 'positions could not be compared with the logs')
    }
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
