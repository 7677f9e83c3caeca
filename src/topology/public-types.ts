/**
 * The types of the public door that belong to a topology.
 *
 * Four rules hold for every signature here:
 *  1. What has bytes on the broker or on disk is a typed value you declare once: `topic()`. Everything else is wiring.
 *  2. A callback gets `(value, record)`; key, timestamp, headers and position are on `record`.
 *  3. One function is positional, everything else is one options object at the end.
 *  4. Callbacks are synchronous: they run inside the transaction.
 */
import type { Duration } from '../common/duration.ts'
import type { Bytes, Codec, Decoder, Encoder } from '../serde/codec.ts'
import type { TopologyNode } from './nodes.ts'

// ---------------------------------------------------------------------------------------------------------------------
// Errors a compiler can show. A wrong use fails against one of these interfaces, so its name is the message.
// ---------------------------------------------------------------------------------------------------------------------

/** This callback runs inside the transaction and must not be async: what it awaits would not be part of the transaction. */
export interface AsyncIsNotAllowedHere {
  readonly 'this callback runs inside the transaction and must be synchronous': never
}
/** A stream that ends nowhere does nothing. End it with `to()`. */
export interface StreamEndsNowhere {
  readonly 'end the stream with to()': never
}

/** The result of a synchronous callback. In a generic helper that returns a bare type parameter, write `value as Sync<V>`. */
export type Sync<R> = R extends PromiseLike<unknown> ? AsyncIsNotAllowedHere : R

/** What a topology function may return: nothing, or anything but a promise or a stream that still has to go somewhere. */
export type Ended<R> = R extends PromiseLike<unknown> ? AsyncIsNotAllowedHere : R extends KStream<unknown, unknown> ? StreamEndsNowhere : R

// ---------------------------------------------------------------------------------------------------------------------
// Records
// ---------------------------------------------------------------------------------------------------------------------

/** Kafka record headers: ordered, a name may repeat, values are bytes. Never changed in place. */
export interface RecordHeaders extends Iterable<readonly [name: string, value: Bytes | null]> {
  /** Last value of `name` as UTF-8 text; undefined when there is none or it is null. */
  get(name: string): string | undefined
  /** Last value of `name`; undefined when there is none. */
  bytes(name: string): Bytes | null | undefined
  /** These headers and one more at the end. Earlier ones of the same name stay; `without(name).with(name, value)` replaces them. */
  with(name: string, value: string | Bytes): RecordHeaders
  /** These headers without any of that name. */
  without(name: string): RecordHeaders
}

/** What every callback gets as its second argument. Valid during the call only. */
export interface StreamRecord<out K, out V> {
  readonly key: K
  readonly value: V
  /** Event time in ms since the epoch: the record's timestamp, or what the source's `timestamp` option said. */
  readonly timestamp: number
  readonly headers: RecordHeaders
  /** Where the record that led here was read. Not a business id: a producer's resend has a new offset. */
  readonly topic: string
  readonly partition: number
  readonly offset: number
}

/** What `map` returns. Timestamp (ms since the epoch) and headers are inherited unless given. */
export interface NewRecord<out K, out V> {
  readonly key: K
  readonly value: V
  readonly timestamp?: number
  readonly headers?: RecordHeaders
}

// ---------------------------------------------------------------------------------------------------------------------
// Topics: declared once, used as values everywhere
// ---------------------------------------------------------------------------------------------------------------------

/** A Kafka topic and the codecs of its records. Made by `topic()`. */
export interface Topic<K, V> {
  readonly kind: 'topic'
  readonly name: string
  readonly key: Codec<K>
  readonly value: Codec<V>
}
/** A topic you can write a `K`, `V` to. Every `Topic` whose types are wide enough is one. */
export interface Sink<in K, in V> {
  readonly kind: 'topic'
  readonly name: string
  readonly key: Encoder<K>
  readonly value: Encoder<V>
}
/** A topic for failed records: their original bytes and headers. Made by `deadLetters()`. */
export interface DeadLetterTopic extends Topic<Bytes | null, Bytes | null> {
  readonly deadLetters: true
}

export type KeyOf<T> = T extends { readonly key: Decoder<infer K> } ? K : never
export type ValueOf<T> = T extends { readonly value: Decoder<infer V> } ? V : never

// ---------------------------------------------------------------------------------------------------------------------
// Topology
// ---------------------------------------------------------------------------------------------------------------------

export interface TopologyOptions {
  /** What happens to a record that cannot be decoded, processed or encoded. Default `'fail'`: stop with a clear error. A source's own `onError` wins. */
  readonly onError?: OnError
}

/**
 * What happens to a record that fails:
 * - `'fail'`: the worker stops with an error that names the record; nothing of it is committed, it is read again after the restart.
 * - `'skip'`: counted and passed over. Its offset commits with the transaction.
 * - `{ to: deadLetters(...) }`: its original bytes go to that topic in the same transaction as its offset.
 * - a function that decides per failure. Synchronous.
 */
export type OnError =
  'fail' | 'skip' | { readonly to: DeadLetterTopic } | ((failure: Failure) => 'fail' | 'skip' | { readonly to: DeadLetterTopic })

/** What an `onError` function gets. */
export interface Failure {
  /** Name of the step that failed. */
  readonly node: string
  readonly phase: 'decode' | 'process' | 'encode'
  readonly error: Error
  /** How often this record has been tried, this time included: 1 at first. */
  readonly attempts: number
  /** The input record, undecoded. */
  readonly record: StreamRecord<Bytes | null, Bytes | null>
}

/** Where streams come from: the argument of the topology function. */
export interface Sources {
  /**
   * Reads a topic. A topic is read once per topology: keep the stream in a variable to use it twice.
   * @example const paid = stream(orders).filter((order) => order.type === 'paid')
   */
  stream<K, V>(this: void, topic: Topic<K, V>, options?: StreamOptions<K, V>): KStream<K, V>
  /** Several topics as one stream; the value is their union. With state below them they must have the same number of partitions: equal keys must meet in one task. */
  // eslint-disable-next-line @typescript-eslint/no-explicit-any -- Topic<K, V> is invariant: only `any` accepts topics of every type and keeps each one's own for inference
  stream<const T extends readonly Topic<any, any>[]>(
    this: void,
    topics: T,
    options?: StreamOptions<KeyOf<T[number]>, ValueOf<T[number]>>,
  ): KStream<KeyOf<T[number]>, ValueOf<T[number]>>
}

export interface NodeOptions {
  /** Shown by describe(), in metrics and errors. Default: the kind of step, or its topic. */
  readonly name?: string
}

export interface StreamOptions<K, V> extends NodeOptions {
  /** Event time in ms since the epoch, a whole number, not negative (anything else goes the `onError` way). Default: the record's timestamp. */
  timestamp?(value: V, record: StreamRecord<K, V>): number
  /** Where to begin when the group has no committed offset. Default `'earliest'`. */
  readonly startFrom?: 'earliest' | 'latest'
  /** Instead of the topology's. */
  readonly onError?: OnError
}

/** The frozen topology: plain data, and what the runtime and `millrace describe` read. Made by `topology()`. */
export interface Topology {
  readonly kind: 'topology'
  readonly name: string
  /** The steps in build order, as plain data: they survive JSON. */
  readonly nodes: readonly TopologyNode[]
  /** Sub-topologies, stores and internal topics. `applicationId` (default: the topology's name) is the prefix of the internal topics. */
  describe(options?: { readonly applicationId?: string }): TopologyDescription
}

/** What a topology consists of. `toString()` is the page that `millrace describe` prints. */
export interface TopologyDescription {
  readonly name: string
  /** Changes when a step, a topic, a codec id or a setting of a state changes; not with functions and not with names of stateless steps. */
  readonly fingerprint: string
  readonly subTopologies: readonly { readonly id: number; readonly nodes: readonly TopologyNode[]; readonly inputs: readonly string[] }[]
  readonly stores: readonly {
    readonly name: string
    readonly kind: string
    readonly changelog: string | undefined
    readonly key: string
    readonly value: string
    readonly version: number
  }[]
  readonly internalTopics: readonly {
    readonly name: string
    readonly purpose: 'changelog' | 'tasks'
    readonly config: Readonly<Record<string, string>>
  }[]
  toString(): string
}

// ---------------------------------------------------------------------------------------------------------------------
// Streams
// ---------------------------------------------------------------------------------------------------------------------

/**
 * An unbounded sequence of records. Every step gives a new stream; a stream used twice goes to both.
 *
 * Functions given to the steps are synchronous and run inside the transaction: after a crash or an abort they run again for the same record, whose first
 * outcome was never visible. One that throws, or returns something else than its step expects, sends the record the `onError` way.
 */
export interface KStream<out K, out V> {
  /** Changes key and value. After it the partition may no longer follow the key, so prefer `mapValues` where the key stays. */
  map<K2, V2>(fn: (value: V, record: StreamRecord<K, V>) => NewRecord<K2, V2>, options?: NodeOptions): KStream<K2, V2>
  /** Changes the value and keeps the key. */
  mapValues<V2>(fn: (value: V, record: StreamRecord<K, V>) => Sync<V2>, options?: NodeOptions): KStream<K, V2>
  /** A type guard narrows the stream: `filter((event) => event.type === 'paid')` gives a stream of paid events. */
  filter<S extends V>(guard: (value: V, record: StreamRecord<K, V>) => value is S, options?: NodeOptions): KStream<K, S>
  filter(predicate: (value: V, record: StreamRecord<K, V>) => boolean, options?: NodeOptions): KStream<K, V>
  /** Keeps what the predicate is false for; a type guard's type is excluded. */
  filterNot<S extends V>(guard: (value: V, record: StreamRecord<K, V>) => value is S, options?: NodeOptions): KStream<K, Exclude<V, S>>
  filterNot(predicate: (value: V, record: StreamRecord<K, V>) => boolean, options?: NodeOptions): KStream<K, V>
  /** Looks at each record; must not change it. Runs again after an abort. */
  peek<R>(fn: (value: V, record: StreamRecord<K, V>) => Sync<R>, options?: NodeOptions): KStream<K, V>
  /**
   * Lets the first record of each id through and drops (or routes) the others, exactly once, whatever crashes: the id is remembered in the same transaction
   * that writes the output and commits the input offset. Ids must meet in one partition: `by: 'key'` on a stream that is partitioned by its key, or
   * `partitioned: 'by-key'`; anything else is refused when the topology is built.
   * @example stream(credits).dedupe({ by: (credit) => credit.requestId, window: '24h', partitioned: 'by-key' })
   */
  dedupe(options: DedupeOptions<K, V>): KStream<K, V>
  /**
   * Writes to a topic, in the transaction that commits the input offsets. The partition follows the key as in Java's producer, unless `partition` says it.
   * The topic must exist at start. A record that it would refuse (size, date, null key in a compacted topic, partition) goes the `onError` way.
   */
  to(topic: Sink<K, V>, options?: ToOptions<K, V>): void
}

export interface ToOptions<K, V> extends NodeOptions {
  /** The partition to write to, from 0 to `partitions - 1`. */
  partition?(value: V, record: StreamRecord<K, V>, partitions: number): number
}

/** A business id: a text, bytes, or a tuple that is encoded unambiguously. */
export type DedupeId = string | Bytes | readonly (string | number | bigint)[]

export interface DedupeOptions<K, V> {
  /**
   * The business id. A tuple is encoded unambiguously. `'key'` means the record key. Null and undefined do not compile; at run time they take the `onError`
   * path. Topic, partition and offset are no id: a producer's resend has a new offset.
   */
  readonly by: 'key' | ((value: V, record: StreamRecord<K, V>) => DedupeId)
  /** How long an id is remembered. A duplicate exactly at the end is new. */
  readonly window: Duration
  /** Names the store and its changelog. Default `'dedupe'`; a second one in the same topology must have a name. */
  readonly name?: string
  /** What the window is measured by. Default `'event-time'`: record timestamps, as far as this task has seen them. */
  readonly clock?: 'event-time' | 'wall-clock'
  /** Default `'drop'` (counted). Routed duplicates carry headers that name the original. */
  readonly onDuplicate?: 'drop' | { readonly to: Sink<K, V> }
  /** A duplicate restarts the window. Default false. */
  readonly refresh?: boolean
  /**
   * A record older than the window by the task's stream time, whose id is not known any more. Default `'pass'`: it goes on and is not remembered, so a
   * second one of its id passes as well.
   */
  readonly late?: 'pass' | 'drop' | { readonly to: Sink<K, V> }
  /**
   * `'by-key'`: you state that records with equal ids had equal keys in the topic they were read from, so that they meet in one partition and no
   * repartition topic is needed. Nothing checks this: where it is not true, duplicates pass.
   */
  readonly partitioned?: 'by-key'
}
