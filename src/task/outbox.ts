/** What a task writes to. It knows no broker: the runtime's outbox checks each record against the sink's limits and produces it. */
import type { HeaderList } from '../broker/port.ts'

export interface Outbox {
  /**
   * Queues one output record of the input record at hand. `partition` null: by the key's murmur2. Throws when the record does not fit its topic:
   * the input record then takes the error path, and none of its outputs is sent.
   */
  send(topic: string, partition: number | null, key: Buffer | null, value: Buffer | null, timestamp: number, headers: HeaderList): void
  /** Number of partitions of a sink topic. */
  partitions(topic: string): number
}
