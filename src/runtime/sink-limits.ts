/**
 * What each output topic accepts, read at start, and the check of every record against it before `produce`: so a bad record is known by name and takes
 * the error path, where the broker would only refuse the whole transaction at commit without saying which record it was (CLIENT-FACTS 29).
 */
import type { BrokerAdmin, HeaderList } from '../broker/port.ts'
import type { ProducerSizes } from './producer-ring.ts'
import type { Clock } from '../common/ports.ts'
import { UnknownSinkError } from '../task/outbox.ts'
import { isoTime } from '../common/time-text.ts'
import { ConfigError } from '../errors/errors.ts'

export interface SinkLimits {
  readonly partitions: number
  readonly maxMessageBytes: number
  readonly compacted: boolean
  /** How far before and after the broker's clock a timestamp may lie, ms. */
  readonly timestampBeforeMaxMs: number
  readonly timestampAfterMaxMs: number
}

const MIN_MESSAGE_BYTES = 1_000_000
const MAX_BATCH_BYTES = 1_000_000
/** Bytes a record takes in a batch beyond key, value and headers: batch header, lengths, varints; rounded up. */
const RECORD_OVERHEAD_BYTES = 128
/** The broker's clock is not ours: stay this far away from the bound. */
const CLOCK_MARGIN_MS = 60_000

export class SinkCheck {
  readonly #limits: Map<string, SinkLimits>
  readonly #clock: Clock

  constructor(limits: ReadonlyMap<string, SinkLimits>, clock: Clock) {
    this.#limits = new Map(limits)
    this.#clock = clock
  }

  /** Limits of topics that were not known at start. */
  learn(limits: ReadonlyMap<string, SinkLimits>): void {
    for (const [topic, limit] of limits) this.#limits.set(topic, limit)
  }

  acceptedTimestamp(topic: string, timestamp: number): number {
    const { timestampAfterMaxMs, timestampBeforeMaxMs } = this.#of(topic)
    const now = this.#clock.now()
    return Math.min(Math.max(timestamp, 0, now - timestampBeforeMaxMs + CLOCK_MARGIN_MS), now + timestampAfterMaxMs - CLOCK_MARGIN_MS)
  }

  partitions(topic: string): number {
    return this.#of(topic).partitions
  }

  #of(topic: string): SinkLimits {
    const limits = this.#limits.get(topic)
    if (limits === undefined) throw new UnknownSinkError(topic)
    return limits
  }

  /** Throws an error that names what does not fit. Returns the record's size in bytes. */
  check(topic: string, partition: number | null, key: Buffer | null, value: Buffer | null, timestamp: number, headers: HeaderList): number {
    const limits = this.#of(topic)
    let bytes = RECORD_OVERHEAD_BYTES + (key?.length ?? 0) + (value?.length ?? 0)
    for (const [name, header] of headers) bytes += Buffer.byteLength(name) + (header?.length ?? 0) + 10
    if (bytes > limits.maxMessageBytes) {
      throw new Error(`the output for ${topic} has ${bytes} bytes, the topic's max.message.bytes is ${limits.maxMessageBytes}`)
    }
    if (key === null && limits.compacted) throw new Error(`the output for ${topic} has no key, but the topic is compacted`)
    if (partition !== null && !(Number.isInteger(partition) && partition >= 0 && partition < limits.partitions)) {
      throw new Error(`the partition function chose ${partition} for ${topic}, which has partitions 0 to ${limits.partitions - 1}`)
    }
    if (timestamp >= 0 && limits.timestampAfterMaxMs < Number.MAX_SAFE_INTEGER) {
      const now = this.#clock.now()
      if (timestamp > now + limits.timestampAfterMaxMs - CLOCK_MARGIN_MS) {
        throw new Error(
          `the output for ${topic} is dated ${isoTime(timestamp)}, more than the topic's message.timestamp.after.max.ms (${limits.timestampAfterMaxMs}) ahead`,
        )
      }
    }
    if (timestamp >= 0 && limits.timestampBeforeMaxMs < Number.MAX_SAFE_INTEGER) {
      if (timestamp < this.#clock.now() - limits.timestampBeforeMaxMs + CLOCK_MARGIN_MS) {
        throw new Error(
          `the output for ${topic} is dated ${isoTime(timestamp)}, more than the topic's message.timestamp.before.max.ms (${limits.timestampBeforeMaxMs}) back`,
        )
      }
    }
    return bytes
  }
}

/** Reads the limits of the sinks; a topic that does not exist is refused by name. */
export async function readSinkLimits(admin: BrokerAdmin, topics: readonly string[]): Promise<ReadonlyMap<string, SinkLimits>> {
  const described = new Map((await admin.describeTopics(topics)).map((topic) => [topic.name, topic]))
  const missing = topics.filter((name) => !described.has(name))
  if (missing.length > 0) throw missingTopics(missing, 'written to')
  const configs = await admin.topicConfigs(topics)
  return new Map(
    topics.map((name) => {
      const config = configs.get(name)
      return [
        name,
        {
          partitions: described.get(name)?.partitions ?? 1,
          maxMessageBytes: numeric(config?.get('max.message.bytes'), 1_048_588),
          compacted: (config?.get('cleanup.policy') ?? 'delete').includes('compact'),
          timestampBeforeMaxMs:
            config?.get('message.timestamp.type') === 'LogAppendTime'
              ? Number.MAX_SAFE_INTEGER
              : numeric(config?.get('message.timestamp.before.max.ms'), Number.MAX_SAFE_INTEGER),
          timestampAfterMaxMs:
            config?.get('message.timestamp.type') === 'LogAppendTime'
              ? Number.MAX_SAFE_INTEGER
              : numeric(config?.get('message.timestamp.after.max.ms'), Number.MAX_SAFE_INTEGER),
        },
      ]
    }),
  )
}

export function missingTopics(names: readonly string[], use: 'written to' | 'read'): ConfigError {
  return new ConfigError(
    `${names.length === 1 ? 'topic' : 'topics'} ${names.join(', ')}, ${use} by this topology, ${names.length === 1 ? 'does' : 'do'} not exist`,
    {
      code: 'topic-missing',
      remedy: `Create ${names.length === 1 ? 'it' : 'them'} first, for example: kafka-topics.sh --create --topic ${names[0]} --partitions 6; input and output topics are yours, millrace creates its own internal topics only.`,
    },
  )
}

function numeric(text: string | undefined, fallback: number): number {
  const value = Number(text)
  return text === undefined || !Number.isFinite(value) ? fallback : Math.min(value, Number.MAX_SAFE_INTEGER)
}

/** What the client must let through, and the largest batch that every one of these topics accepts. */
export function producerSizes(limits: Iterable<SinkLimits>): ProducerSizes {
  const sizes = [...limits].map(({ maxMessageBytes }) => maxMessageBytes)
  return {
    maxMessageBytes: Math.max(MIN_MESSAGE_BYTES, ...sizes),
    // One record above the batch size still goes out, in a batch of its own.
    batchBytes: Math.max(1, Math.min(MAX_BATCH_BYTES, ...sizes)),
  }
}
