/** Topics and their settings: what exists, how large it is, what it accepts. */
import type { TopicToCreate } from '../../../broker/port.ts'
import { PartitionLog, type LogRecord } from './partition-log.ts'
import { CODES, Refusal } from './refusal.ts'

/** What a broker has for a topic that sets nothing. */
const DEFAULTS: Readonly<Record<string, string>> = {
  'cleanup.policy': 'delete',
  'max.message.bytes': '1048588',
  'message.timestamp.type': 'CreateTime',
  'message.timestamp.before.max.ms': '9223372036854775807',
  'message.timestamp.after.max.ms': '3600000',
  'delete.retention.ms': '86400000',
}

export interface SimTopic {
  readonly name: string
  readonly config: Map<string, string>
  readonly partitions: PartitionLog[]
}

export class Topics {
  readonly #topics = new Map<string, SimTopic>()

  create({ name, partitions, config }: Pick<TopicToCreate, 'name' | 'partitions' | 'config'>): void {
    if (this.#topics.has(name)) throw new Refusal(CODES.TOPIC_ALREADY_EXISTS, `topic ${name} exists`)
    this.#topics.set(name, {
      name,
      config: new Map(Object.entries({ ...DEFAULTS, ...config })),
      partitions: Array.from({ length: partitions }, () => new PartitionLog()),
    })
  }

  delete(name: string): void {
    this.#topics.delete(name)
  }

  grow(name: string, total: number): void {
    const { partitions } = this.topic(name)
    if (partitions.length >= total) throw new Refusal(CODES.INVALID_PARTITIONS, `topic ${name} has ${partitions.length} partitions`)
    while (partitions.length < total) partitions.push(new PartitionLog())
  }

  find(name: string): SimTopic | undefined {
    return this.#topics.get(name)
  }

  topic(name: string): SimTopic {
    const topic = this.#topics.get(name)
    if (topic === undefined) throw new Refusal(CODES.UNKNOWN_TOPIC_OR_PARTITION, `topic ${name} does not exist`)
    return topic
  }

  log(name: string, partition: number): PartitionLog {
    const log = this.topic(name).partitions[partition]
    if (log === undefined) throw new Refusal(CODES.UNKNOWN_TOPIC_OR_PARTITION, `topic ${name} has no partition ${partition}`)
    return log
  }

  /** What the log cleaner does, everywhere at once. */
  compact(now: number): void {
    for (const { config, partitions } of this.#topics.values()) {
      if (config.get('cleanup.policy')?.includes('compact') !== true) continue
      for (const log of partitions) log.compact(now - Number(config.get('delete.retention.ms')))
    }
  }

  /** What a leader checks before it appends. The whole batch is refused for one record. */
  check(name: string, records: readonly LogRecord[], now: number): void {
    const { config } = this.topic(name)
    const maxBytes = Number(config.get('max.message.bytes'))
    const bytes = records.reduce((sum, record) => sum + sizeOf(record), 0)
    if (bytes > maxBytes) throw new Refusal(CODES.MESSAGE_TOO_LARGE, `a batch of ${bytes} bytes for ${name}, which takes ${maxBytes}`)
    const isCompacted = config.get('cleanup.policy')?.includes('compact') === true
    const latest = now + Number(config.get('message.timestamp.after.max.ms'))
    const earliest = now - Number(config.get('message.timestamp.before.max.ms'))
    for (const { key, timestamp } of records) {
      if (isCompacted && key === null) throw new Refusal(CODES.INVALID_RECORD, `a record without a key for ${name}, which is compacted`)
      if (timestamp > latest || timestamp < earliest)
        throw new Refusal(CODES.INVALID_TIMESTAMP, `a record of ${timestamp} for ${name} at ${now}`)
    }
  }
}

/** Bytes of a record in a batch, near enough: Kafka's own overhead is below this. */
export function sizeOf({ key, value, headers }: LogRecord): number {
  const ofHeaders = headers.reduce((sum, [name, bytes]) => sum + name.length + (bytes?.length ?? 0) + 4, 0)
  return (key?.length ?? 0) + (value?.length ?? 0) + ofHeaders + 20
}
