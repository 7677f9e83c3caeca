/** What a task writes to. It knows no broker: the runtime's outbox checks each record against the sink's limits and produces it. */
import type { HeaderList } from '../broker/port.ts'

export interface Outbox {
  /**
   * Queues one output record of the input record at hand. `partition` null: by the key's murmur2. Throws when the record does not fit its topic:
   * the input record then takes the error path, and none of its outputs is sent.
   */
  send(topic: string, partition: number | null, key: Buffer | null, value: Buffer | null, timestamp: number, headers: HeaderList): void
  /** The timestamp nearest to `timestamp` that the topic accepts: a dead letter must not fail for its date; its headers keep the original. */
  acceptedTimestamp(topic: string, timestamp: number): number
  /** Number of partitions of a sink topic. */
  partitions(topic: string): number
}

/**
 * An `onError` function chose a dead-letter topic that nothing else names, so its limits were not read at start. The record is rolled back; the worker
 * reads them and runs the record again.
 */
export class UnknownSinkError extends Error {
  readonly topic: string

  constructor(topic: string) {
    super(`nothing is known about topic ${topic} yet`)
    this.topic = topic
  }
}
