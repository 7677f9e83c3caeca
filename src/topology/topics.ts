/** Declaring topics. A declaration is a frozen value; nothing is created or connected. */
import { TopologyError } from '../errors/errors.ts'
import { nullable, type Bytes, type Codec } from '../serde/codec.ts'
import { bytes } from '../serde/scalar-codecs.ts'
import { checkOptionNames, illegalNameReason } from './option-check.ts'
import type { DeadLetterTopic, Topic } from './public-types.ts'

/**
 * Declares a topic. Throws `TopologyError` for a name that Kafka does not allow, or a missing codec.
 * @example
 * export const orders = topic('order-events', { key: string(), value: json<OrderEvent>(OrderEventSchema) })
 */
export function topic<K, V>(name: string, codecs: { readonly key: Codec<K>; readonly value: Codec<V> }): Topic<K, V>
/** Without `key` the key bytes pass through untouched. */
export function topic<V>(name: string, codecs: { readonly value: Codec<V> }): Topic<Bytes | null, V>
export function topic(name: string, codecs: { readonly key?: unknown; readonly value: unknown }): unknown {
  checkTopicName(name, 'topic()')
  const where = `topic '${name}'`
  checkOptionNames(codecs, ['key', 'value'], where)
  const key = 'key' in codecs ? codecs.key : nullable(bytes())
  checkCodec(key, 'key', where)
  checkCodec(codecs.value, 'value', where)
  return Object.freeze({ kind: 'topic', name, key, value: codecs.value })
}

/**
 * A topic for failed records. A dead letter has the key, value, timestamp and headers of the record as it was read, and behind them the headers
 * `millrace.topic`, `.partition`, `.offset`, `.timestamp`, `.node`, `.phase` (decode, process, encode), `.error` (class), `.message`, `.stack` (at most
 * 4 KB) and `.attempts` (1 in this version). Throws `TopologyError` for a name that Kafka does not allow.
 */
export function deadLetters(name: string): DeadLetterTopic {
  checkTopicName(name, 'deadLetters()')
  const codec = nullable(bytes())
  return Object.freeze({ kind: 'topic', name, key: codec, value: codec, deadLetters: true })
}

function checkTopicName(name: unknown, where: string): void {
  const reason = illegalNameReason(name)
  if (reason !== undefined) {
    throw new TopologyError(
      `${where}: ${typeof name === 'string' ? `'${name.slice(0, 60)}'` : 'the name'} cannot be a topic name: ${reason}`,
      { code: 'TOPOLOGY_TOPIC_NAME_INVALID' },
    )
  }
}

function checkCodec(codec: unknown, what: 'key' | 'value', where: string): asserts codec is Codec<unknown> {
  const { id, encode, decode } = (codec ?? {}) as Partial<Codec<unknown>>
  if (typeof id === 'string' && id !== '' && typeof encode === 'function' && typeof decode === 'function') return
  throw new TopologyError(
    `${where}: its ${what} has no codec${typeof codec === 'function' ? '; the codec is a function: call it, as in string()' : ''}`,
    {
      code: 'TOPOLOGY_CODEC_INVALID',
      remedy: `Give \`${what}\` a codec such as string(), int64() or json(schema)`,
    },
  )
}

/** By its shape, not its class: two copies of the package may meet. */
export function isTopic(value: unknown): value is Topic<unknown, unknown> {
  const topic = value as Partial<Topic<unknown, unknown>> | null | undefined
  return (
    typeof topic === 'object' &&
    topic !== null &&
    topic.kind === 'topic' &&
    typeof topic.name === 'string' &&
    topic.key !== undefined &&
    topic.value !== undefined
  )
}

export function isDeadLetterTopic(value: unknown): value is DeadLetterTopic {
  return isTopic(value) && (value as Partial<DeadLetterTopic>).deadLetters === true
}
