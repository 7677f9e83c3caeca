/** What a task writes to. It knows no broker: the runtime's outbox checks each record against the sink's limits and produces it. */
import type { HeaderList } from '../broker/port.ts'

export interface Outbox {
  /**
   * Queues one output record of the input record at hand. `partition` null: by the key's murmur2. Throws (a poisoned record) when the record does not
   * fit its topic; nothing of the input record's outputs is then sent.
   */
  send(topic: string, partition: number | null, key: Buffer | null, value: Buffer | null, timestamp: number, headers: HeaderList): void
  /** Number of partitions of a sink topic. */
  partitions(topic: string): number
}
