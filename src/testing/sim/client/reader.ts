/** Reads logs read_committed, by assignment and outside any group. */
import type { TopicPartitionOffset } from '../../../common/topic-partition.ts'
import { LOG_START, type ChangelogReader, type PollResult } from '../../../broker/port.ts'
import { closedError } from '../../../errors/broker-error.ts'
import type { SimCluster } from '../cluster/cluster.ts'
import { never, type SimProcess } from '../process.ts'
import { Fetcher } from './fetcher.ts'

const DELIVERY_MS = 1

export class SimReader implements ChangelogReader {
  readonly #process: SimProcess
  readonly #isOver: () => boolean
  readonly #cluster: SimCluster
  readonly #fetcher: Fetcher

  /** `isOver`: the broker was closed. */
  constructor(process: SimProcess, cluster: SimCluster, isOver: () => boolean) {
    this.#isOver = isOver
    this.#process = process
    this.#cluster = cluster
    this.#fetcher = new Fetcher({ process, cluster, operation: 'read', place: 'restore', deliveryMs: () => DELIVERY_MS })
  }

  assign(positions: readonly TopicPartitionOffset[]): void {
    this.#fetcher.forbidWhilePolling('assign')
    this.#process.passes('assign reader')
    this.#fetcher.clear()
    for (const { topic, partition, offset } of positions) {
      const position = offset === LOG_START ? (this.#cluster.topics.find(topic)?.partitions[partition]?.logStart ?? 0) : offset
      this.#fetcher.add(topic, partition, position, false)
    }
  }

  poll(maxRecords: number, timeoutMs: number): Promise<PollResult> {
    return this.#isOver() ? Promise.reject(closedError('read')) : this.#fetcher.poll(maxRecords, timeoutMs)
  }

  async close(): Promise<void> {
    if (this.#process.isDead) return never()
    this.#fetcher.clear()
  }
}
