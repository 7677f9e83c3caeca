/**
 * Where the logs of all inputs begin, as last seen: the offset an input is assigned at, until it is moved to its committed offset.
 *
 * The rebalance callback cannot ask, and every other number fails somewhere: "stored" makes the later seek fail (CLIENT-FACTS 25); the log's end is looked
 * up by the client, and a late answer overtakes our seek, so that the records between are lost (seen); 0 is refused where retention has deleted the head,
 * and then the client stops the partition for good (seen: every seek fails with -172).
 *
 * A head that is deleted between two looks can still be met: then the seek fails, and the worker looks anew and joins anew (input-reader).
 */
import type { BrokerAdmin, PartitionOffsets } from '../broker/port.ts'
import type { Clock, Logger } from '../common/ports.ts'
import { partitionName, type TopicPartition } from '../common/topic-partition.ts'

export interface LogStartsOptions {
  readonly admin: Pick<BrokerAdmin, 'offsets'>
  /** Asked at every look: partitions may be added. */
  readonly partitions: () => readonly TopicPartition[]
  readonly intervalMs: number
  readonly clock: Clock
  readonly logger: Logger
}

export class LogStarts {
  readonly #options: LogStartsOptions
  readonly #starts = new Map<string, number>()
  #lookedAt = 0
  #looking = false

  constructor(options: LogStartsOptions) {
    this.#options = options
  }

  of(topic: string, partition: number): number {
    return this.#starts.get(partitionName(topic, partition)) ?? 0
  }

  async look(partitions = this.#options.partitions()): Promise<void> {
    const { admin, clock } = this.#options
    this.#lookedAt = clock.monotonic()
    this.saw(await admin.offsets(partitions))
  }

  /** What somebody else was told. */
  saw(bounds: readonly PartitionOffsets[]): void {
    for (const { topic, partition, logStart } of bounds) this.#starts.set(partitionName(topic, partition), logStart)
  }

  /** Called every turn; looks in the background, every `intervalMs`. */
  lookWhenDue(): void {
    const { clock, intervalMs, logger } = this.#options
    if (this.#looking || clock.monotonic() - this.#lookedAt < intervalMs) return
    this.#looking = true
    this.look()
      .catch((error: unknown) => {
        logger.debug({ error: String(error) }, 'the starts of the logs could not be read')
      })
      .finally(() => {
        this.#looking = false
      })
  }
}
