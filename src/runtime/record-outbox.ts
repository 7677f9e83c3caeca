/**
 * Outputs of the record at hand. They are checked as they come, and produced only once the record went through: so a record that fails half-way leaves
 * nothing behind (task TK1).
 *
 * Owns: the pending outputs of one record. Bounded by `recordMaxOutputBytes`: above it the record is poisoned (X9).
 */
import type { HeaderList, TransactionalProducer } from '../broker/port.ts'
import type { RecordOutbox as TaskOutbox } from '../task/task.ts'
import type { SinkCheck } from './sink-limits.ts'

interface Output {
  topic: string
  partition: number | null
  key: Buffer | null
  value: Buffer | null
  timestamp: number
  headers: HeaderList
}
type Produce = TransactionalProducer['produce']

export class RecordOutbox implements TaskOutbox {
  readonly #check: SinkCheck
  readonly #maxBytes: number
  /** Slots are reused from record to record; `#count` of them are filled, those below `#sent` are out. */
  readonly #outputs: Output[] = []
  #count = 0
  #sent = 0
  #bytes = 0

  constructor(check: SinkCheck, maxBytes: number) {
    this.#check = check
    this.#maxBytes = maxBytes
  }

  partitions(topic: string): number {
    return this.#check.partitions(topic)
  }

  acceptedTimestamp(topic: string, timestamp: number): number {
    return this.#check.acceptedTimestamp(topic, timestamp)
  }

  send(topic: string, partition: number | null, key: Buffer | null, value: Buffer | null, timestamp: number, headers: HeaderList): void {
    this.#bytes += this.#check.check(topic, partition, key, value, timestamp, headers)
    if (this.#bytes > this.#maxBytes) {
      throw new Error(`the outputs of one record exceed ${this.#maxBytes} bytes (option recordMaxOutputBytes)`)
    }
    const slot = this.#outputs[this.#count]
    if (slot === undefined) this.#outputs.push({ topic, partition, key, value, timestamp, headers })
    else {
      slot.topic = topic
      slot.partition = partition
      slot.key = key
      slot.value = value
      slot.timestamp = timestamp
      slot.headers = headers
    }
    this.#count++
  }

  discard(): void {
    this.#count = 0
    this.#sent = 0
    this.#bytes = 0
  }

  /** Outputs and bytes of the record at hand. */
  get count(): number {
    return this.#count
  }
  get bytes(): number {
    return this.#bytes
  }

  /** Produces what is pending; false when the local queue is full: await room and call again. */
  deliver(produce: Produce): boolean {
    while (this.#sent < this.#count) {
      const { topic, partition, key, value, timestamp, headers } = this.#outputs[this.#sent] as Output
      if (!produce(topic, partition, key, value, timestamp, headers)) return false
      this.#sent++
    }
    this.discard()
    return true
  }
}
