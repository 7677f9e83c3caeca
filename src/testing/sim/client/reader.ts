/** Reads logs read_committed, by assignment and outside any group. */
import { invariant } from '../../../common/invariant.ts'
import { partitionName, type TopicPartition, type TopicPartitionOffset } from '../../../common/topic-partition.ts'
import { LOG_START, type BrokerRecord, type ChangelogReader, type PartitionEnd, type PollResult } from '../../../broker/port.ts'
import { AUTO_OFFSET_RESET } from '../../../errors/broker-codes.ts'
import { BrokerError } from '../../../errors/broker-error.ts'
import type { SimCluster } from '../cluster/cluster.ts'
import { never, type SimProcess } from '../process.ts'

interface Reading extends TopicPartition {
  position: number | undefined
  endTold: number
}

export class SimReader implements ChangelogReader {
  readonly #process: SimProcess
  readonly #cluster: SimCluster
  readonly #reading = new Map<string, Reading>()
  #isPolling = false

  constructor(process: SimProcess, cluster: SimCluster) {
    this.#process = process
    this.#cluster = cluster
  }

  assign(positions: readonly TopicPartitionOffset[]): void {
    invariant(!this.#isPolling, 'GC3', { assign: 'with a poll outstanding' })
    this.#process.passes('assign reader')
    this.#reading.clear()
    for (const { topic, partition, offset } of positions) {
      const position = offset === LOG_START ? (this.#cluster.topics.find(topic)?.partitions[partition]?.logStart ?? 0) : offset
      this.#reading.set(partitionName(topic, partition), { topic, partition, position, endTold: -1 })
    }
  }

  poll(maxRecords: number, timeoutMs: number): Promise<PollResult> {
    invariant(!this.#isPolling, 'GC3', { poll: 'second' })
    if (!this.#process.survives('restore:before')) return never()
    this.#isPolling = true
    return new Promise<PollResult>((resolve, reject) => {
      let isOver = false
      const over = (deliver: () => void): void => {
        if (isOver) return
        isOver = true
        stopWatching()
        cancelTimeout()
        this.#process.deliver(1, () => {
          if (!this.#process.survives('restore:after')) return
          this.#isPolling = false
          deliver()
        })
      }
      const look = (): void => {
        const result = this.#fetch(maxRecords)
        if (result instanceof BrokerError) over(() => reject(result))
        else if (result.records.length > 0 || result.ends.length > 0) over(() => resolve(result))
      }
      const stopWatching = this.#cluster.watch(() => {
        if (!this.#process.isDead && !this.#process.isPaused) look()
      })
      // What the client fetched ahead is there at once, whatever the time-out.
      this.#process.deliver(0, () => {
        if (!isOver) look()
      })
      const cancelTimeout = this.#process.after(timeoutMs, () => over(() => resolve({ records: [], ends: [] })))
    })
  }

  #fetch(maxRecords: number): PollResult | BrokerError {
    const records: BrokerRecord[] = []
    const ends: PartitionEnd[] = []
    for (const reading of this.#reading.values()) {
      const { topic, partition, position } = reading
      const log = this.#cluster.topics.find(topic)?.partitions[partition]
      if (log === undefined || position === undefined) continue
      if (position < log.logStart || position > log.highWatermark) {
        reading.position = undefined
        return new BrokerError('read', AUTO_OFFSET_RESET, 'fetch position is out of range')
      }
      const read = log.read(position, maxRecords - records.length)
      for (const record of read.records) records.push({ topic, partition, ...record })
      reading.position = read.next
      if (read.next >= log.lastStable && (reading.endTold !== read.next || read.records.length > 0)) {
        reading.endTold = read.next
        ends.push({ topic, partition, offset: read.next })
      }
    }
    return { records, ends }
  }

  async close(): Promise<void> {
    if (this.#process.isDead) return never()
    this.#reading.clear()
  }
}
