/**
 * Reads partitions read_committed, as the client's consumers do: records that it fetched are on their way whatever happens meanwhile, an end is told each
 * time it is reached, and a position outside of its log stops that partition with an error that does not name it (CLIENT-FACTS 9, 18, 32).
 */
import { invariant } from '../../../common/invariant.ts'
import { partitionName, type TopicPartition } from '../../../common/topic-partition.ts'
import type { BrokerRecord, PartitionEnd, PollResult } from '../../../broker/port.ts'
import { AUTO_OFFSET_RESET } from '../../../errors/broker-codes.ts'
import { BrokerError } from '../../../errors/broker-error.ts'
import type { SimCluster } from '../cluster/cluster.ts'
import { never, type SimProcess } from '../process.ts'

/** A partition that is read. */
export interface Reading extends TopicPartition {
  /** Undefined: stopped, it lay outside of the log. */
  position: number | undefined
  isPaused: boolean
  /** The poll that was out when it was assigned brings some of it, paused or not. */
  leaks: boolean
  /** The end at this position was told. */
  endTold: number
  knownEnd: number | undefined
}

export interface FetcherOptions {
  readonly process: SimProcess
  readonly cluster: SimCluster
  readonly operation: 'poll' | 'read'
  /** As its calls are named where a process can be struck. */
  readonly place: string
  /** From a fetch to its delivery, ms. */
  readonly deliveryMs: () => number
}

export class Fetcher {
  readonly #options: FetcherOptions
  readonly #readings = new Map<string, Reading>()
  /** Told by the next polls, before anything that was read. */
  readonly #failures: BrokerError[] = []
  #isPolling = false
  #isHeld = false
  #look: (() => void) | undefined

  constructor(options: FetcherOptions) {
    this.#options = options
  }

  get readings(): readonly Reading[] {
    return [...this.#readings.values()]
  }

  find(topic: string, partition: number): Reading | undefined {
    return this.#readings.get(partitionName(topic, partition))
  }

  add(topic: string, partition: number, position: number, isPaused: boolean): void {
    // What is assigned and paused at once may be fetched in between, for a poll that is out (CLIENT-FACTS 9).
    const leaks = isPaused && this.#isPolling && this.#options.process.world.choices.pick('late pause', 2) === 1
    this.#readings.set(partitionName(topic, partition), { topic, partition, position, isPaused, leaks, endTold: -1, knownEnd: undefined })
    if (leaks) this.#options.process.deliver(0, () => this.#look?.())
  }

  remove({ topic, partition }: TopicPartition): void {
    this.#readings.delete(partitionName(topic, partition))
  }

  clear(): void {
    this.#readings.clear()
  }

  /** Nothing is fetched until `release`. */
  hold(): void {
    this.#isHeld = true
  }

  release(): void {
    this.#isHeld = false
    this.#look?.()
  }

  fail(error: BrokerError): void {
    this.#failures.push(error)
    this.#look?.()
  }

  /** What must not happen with a poll outstanding. */
  forbidWhilePolling(what: string): void {
    invariant(!this.#isPolling, 'GC3', { [what]: 'with a poll outstanding' })
  }

  poll(maxRecords: number, timeoutMs: number): Promise<PollResult> {
    const { process, cluster, place, deliveryMs } = this.#options
    this.forbidWhilePolling('poll')
    if (!process.survives(`${place}:before`)) return never()
    this.#isPolling = true
    return new Promise<PollResult>((resolve, reject) => {
      let isOver = false
      const over = (delayMs: number, settle: () => void): void => {
        isOver = true
        stopWatching()
        cancelTimeout()
        this.#look = undefined
        process.deliver(delayMs, () => {
          if (!process.survives(`${place}:after`)) return
          this.#isPolling = false
          for (const reading of this.#readings.values()) reading.leaks = false
          settle()
        })
      }
      const look = (): void => {
        if (isOver || process.isDead || process.isPaused) return
        const result = this.#failures.shift() ?? this.#fetch(maxRecords)
        if (result instanceof BrokerError) over(1, () => reject(result))
        else if (result.records.length > 0 || result.ends.length > 0) over(deliveryMs(), () => resolve(result))
      }
      const stopWatching = cluster.watch(look)
      this.#look = look
      // What the client fetched ahead is there at once, whatever the time-out.
      process.deliver(0, look)
      const cancelTimeout = process.after(timeoutMs, () => {
        if (!isOver) over(0, () => resolve({ records: [], ends: [] }))
      })
    })
  }

  #fetch(maxRecords: number): PollResult | BrokerError {
    const records: BrokerRecord[] = []
    const ends: PartitionEnd[] = []
    if (this.#isHeld) return { records, ends }
    for (const reading of this.#readings.values()) {
      const { topic, partition, position, isPaused, leaks } = reading
      const log = this.#options.cluster.topics.find(topic)?.partitions[partition]
      if ((isPaused && !leaks) || position === undefined || log === undefined) continue
      if (position < log.logStart || position > log.highWatermark) {
        reading.position = undefined
        return new BrokerError(this.#options.operation, AUTO_OFFSET_RESET, 'fetch position is out of range')
      }
      const read = log.read(position, maxRecords - records.length)
      for (const record of read.records) records.push({ topic, partition, ...record })
      reading.position = read.next
      reading.knownEnd = log.highWatermark
      if (read.next >= log.lastStable && (reading.endTold !== read.next || read.records.length > 0)) {
        reading.endTold = read.next
        ends.push({ topic, partition, offset: read.next })
      }
    }
    return { records, ends }
  }
}
