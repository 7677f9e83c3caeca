/**
 * Compares the positions of running inputs with their logs, and applies the policy for one that lies outside (option `offsetOutOfRange`).
 *
 * -140 names no partition, can be hidden behind the messages of one poll (then that input stands still without a word), and comes for the dummy offset of
 * an assignment as well (CLIENT-FACTS 32): so the logs are asked, when it comes and now and then.
 *
 * Invariant:
 *  PC1. No offset is passed over silently (X6): `fail` stops with the range, the other policies log and count what they pass over.
 */
import type { BrokerAdmin } from '../broker/port.ts'
import type { Clock, Logger } from '../common/ports.ts'
import { partitionName } from '../common/topic-partition.ts'
import { BrokerError } from '../errors/broker-error.ts'
import { ConfigError } from '../errors/errors.ts'
import type { InputPartition } from './assigned-task.ts'
import type { LogStarts } from './log-starts.ts'
import type { OwnedTasks } from './owned-tasks.ts'
import type { WorkerMetrics } from './worker-metrics.ts'
import type { OffsetOutOfRangePolicy } from './worker-options.ts'

export interface PositionCheckOptions {
  readonly admin: Pick<BrokerAdmin, 'offsets'>
  readonly tasks: OwnedTasks
  readonly logStarts: Pick<LogStarts, 'saw'>
  readonly policy: OffsetOutOfRangePolicy
  readonly metrics: WorkerMetrics
  readonly intervalMs: number
  readonly clock: Clock
  readonly logger: Logger
}

interface Outside {
  readonly input: InputPartition
  readonly logStart: number
  readonly highWatermark: number
}

export class PositionCheck {
  readonly #options: PositionCheckOptions
  #checkedAt: number

  constructor(options: PositionCheckOptions) {
    this.#options = options
    this.#checkedAt = options.clock.monotonic()
  }

  get isDue(): boolean {
    return this.#options.clock.monotonic() - this.#checkedAt >= this.#options.intervalMs
  }

  /** At the start of an input, before anything is read from it. Throws under `fail`. */
  place(input: InputPartition, { logStart, highWatermark }: Pick<Outside, 'logStart' | 'highWatermark'>): void {
    if (input.next >= logStart && input.next <= highWatermark) return
    const outside = { input, logStart, highWatermark }
    if (this.#options.policy === 'fail') throw outOfRange([outside])
    this.#move(outside, this.#options.policy)
  }

  /** True when positions were moved by the policy: the client has stopped those inputs for good. A broker that does not answer is no finding. */
  async check(): Promise<boolean> {
    const { policy, logger, clock } = this.#options
    this.#checkedAt = clock.monotonic()
    let outside: readonly Outside[]
    try {
      outside = await this.#outside()
    } catch (error) {
      if (!(error instanceof BrokerError)) throw error
      logger.debug({ error: error.message }, 'positions could not be compared with the logs')
      return false
    }
    if (outside.length === 0) return false
    if (policy === 'fail') throw outOfRange(outside)
    for (const found of outside) this.#move(found, policy)
    return true
  }

  async #outside(): Promise<readonly Outside[]> {
    const { tasks, admin, logStarts } = this.#options
    const positions = [...tasks.inputs()].filter(({ task }) => task.phase === 'running').map((input) => ({ input, next: input.next }))
    const bounds = await admin.offsets(positions.map(({ input: { topic, partition } }) => ({ topic, partition })))
    logStarts.saw(bounds)
    return positions.flatMap(({ input, next }, index) => {
      const { logStart = 0, highWatermark = 0 } = bounds[index] ?? {}
      return next >= logStart && next <= highWatermark ? [] : [{ input, logStart, highWatermark }]
    })
  }

  #move({ input, logStart, highWatermark }: Outside, policy: Exclude<OffsetOutOfRangePolicy, 'fail'>): void {
    const { logger, metrics } = this.#options
    const to = policy === 'earliest' ? logStart : highWatermark
    logger.error(
      { topic: input.topic, partition: input.partition, offset: input.next, logStart, highWatermark, movedTo: to },
      `offset out of range: records between ${input.next} and ${to} are not processed (option offsetOutOfRange is '${policy}')`,
    )
    metrics.offsetsPassedOver += Math.max(0, to - input.next)
    input.next = to
    input.task.touched = true
  }
}

function outOfRange(outside: readonly Outside[]): ConfigError {
  const where = outside.map(
    ({ input, logStart, highWatermark }) =>
      `${partitionName(input.topic, input.partition)} at offset ${input.next}, which has offsets ${logStart} to ${highWatermark}`,
  )
  return new ConfigError(`reading is not possible: ${where.join('; ')}`, {
    code: 'offset-out-of-range',
    remedy:
      "Records were deleted before they were processed (retention), or the topic was re-created. Reset the group\u2019s offset of that partition on purpose, or set offsetOutOfRange to 'earliest' or 'latest' to go on without them, then start again.",
  })
}
