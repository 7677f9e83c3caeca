/**
 * Claims about the public types. Compiled by the type check, never run: each `@ts-expect-error` is a wrong use that must not compile, each `expectType` what an
 * expression must be inferred as.
 */
import {
  bigint64,
  boolean,
  bytes,
  codec,
  date,
  deadLetters,
  float64,
  int32,
  int64,
  isTopology,
  json,
  nullable,
  string,
  structured,
  topic,
  topology,
  tuple,
  uuid,
  type Bytes,
  type Codec,
  type DeadLetterTopic,
  type Failure,
  type KStream,
  type OnError,
  type Sink,
  type Sources,
  type StreamRecord,
  type Sync,
  type Topic,
  type Topology,
} from 'millrace'
import { z } from 'zod'

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
function expectType<Expected>() {
  return <Actual>(_actual: Actual, ..._same: Equal<Actual, Expected> extends true ? [] : [expected: Expected]): void => {}
}

interface Created {
  readonly type: 'created'
  readonly id: string
  readonly user: string
  readonly amount: number
}
interface Paid {
  readonly type: 'paid'
  readonly id: string
  readonly method: 'card' | 'cash'
}
interface Shipped {
  readonly type: 'shipped'
  readonly id: string
}
type OrderEvent = Created | Paid | Shipped
interface User {
  readonly name: string
  readonly country: string
}

declare const sources: Sources
const { stream } = sources
const EventSchema = z.discriminatedUnion('type', [
  z.object({ type: z.literal('created'), id: z.string(), user: z.string(), amount: z.number() }),
  z.object({ type: z.literal('paid'), id: z.string(), method: z.enum(['card', 'cash']) }),
  z.object({ type: z.literal('shipped'), id: z.string() }),
])
const events = topic('events', { key: string(), value: json<OrderEvent>(EventSchema) })
const numbered = topic('numbered', { key: int64(), value: structured<Created>() })
const users = topic('users', { key: string(), value: structured<User>() })
const paidOut = topic('paid', { key: string(), value: structured<Paid>() })
const counts = topic('counts', { key: string(), value: int64() })
const failed = deadLetters('failed')
const order = stream(events)

// --- codecs and topics --------------------------------------------------------------------------------------------------
expectType<Codec<string>>()(string())
expectType<Codec<Bytes>>()(bytes())
expectType<Codec<number>>()(int32())
expectType<Codec<number>>()(int64())
expectType<Codec<bigint>>()(bigint64())
expectType<Codec<number>>()(float64())
expectType<Codec<boolean>>()(boolean())
expectType<Codec<string>>()(uuid())
expectType<Codec<Date>>()(date())
expectType<Codec<unknown>>()(json())
expectType<Codec<string | null>>()(nullable(string()))
expectType<Codec<{ id: string }>>()(json(z.object({ id: z.string() })))
expectType<Codec<User>>()(codec<User>({ id: 'user', encode: (user) => Buffer.from(user.name), decode: () => ({ name: '', country: '' }) }))
expectType<[string, number]>()(tuple(string(), int64()).decode(null))
expectType<Topic<string, OrderEvent>>()(events)
expectType<Topic<Bytes | null, User>>()(topic('u', { value: structured<User>() }))
expectType<DeadLetterTopic>()(failed)

// --- inference ----------------------------------------------------------------------------------------------------------
expectType<KStream<string, OrderEvent>>()(order)
expectType<KStream<string, Paid>>()(order.filter((event) => event.type === 'paid'))
expectType<KStream<string, Created | Shipped>>()(order.filterNot((event) => event.type === 'paid'))
expectType<KStream<string, OrderEvent>>()(order.filter((event) => event.id.length > 3))
expectType<KStream<string, number>>()(order.mapValues((event, { timestamp }) => event.id.length + timestamp))
expectType<KStream<number, string>>()(order.map((event) => ({ key: event.id.length, value: event.id })))
expectType<KStream<string, OrderEvent>>()(order.peek((event) => event.id.length))
expectType<KStream<string, OrderEvent>>()(order.dedupe({ by: (event) => event.id, window: '24h' }))
expectType<KStream<string, OrderEvent>>()(
  order.dedupe({ by: (event, { key }) => [key, event.type, 7n], window: '24h', partitioned: 'by-key' }),
)
expectType<KStream<string, OrderEvent>>()(order.dedupe({ by: 'key', window: 86_400_000, clock: 'wall-clock', onDuplicate: { to: events } }))
expectType<KStream<string, User | Paid>>()(stream([users, paidOut]))
expectType<KStream<string | number, User | Created>>()(
  stream([users, numbered], { timestamp: (value) => ('amount' in value ? value.amount : 0) }),
)
expectType<KStream<string, OrderEvent>>()(
  stream(events, { timestamp: (event) => event.id.length, startFrom: 'latest', onError: { to: failed } }),
)
expectType<Topology>()(topology('inline', ({ stream: from }) => from(events).dedupe({ by: 'key', window: '1h' }).to(events)))
expectType<Topology>()(topology('statements', { onError: 'skip' }, ({ stream: from }) => void from(events).to(events)))
order.map((event, record) => {
  expectType<StreamRecord<string, OrderEvent>>()(record)
  expectType<string | undefined>()(record.headers.get('trace'))
  return { key: record.key, value: event, timestamp: record.timestamp + 1, headers: record.headers.with('seen', 'yes').without('trace') }
})
order.to(events, {
  partition: (event, { key }, partitions) => (event.id.length + key.length) % partitions,
})
const decide: OnError = (failure: Failure) => (failure.attempts > 3 ? { to: failed } : 'fail')
expectType<boolean>()(isTopology(decide))
const maybe: unknown = decide
if (isTopology(maybe)) expectType<Topology>()(maybe)

// Covariance: a narrower stream fits a wider parameter; generic helpers work; a topic of a wider type is a sink.
const onlyIds = (given: KStream<string, { readonly id: string }>): KStream<string, string> => given.mapValues((event) => event.id)
expectType<KStream<string, string>>()(onlyIds(order))
const wrap = <K, V>(input: KStream<K, V>): KStream<K, { value: V }> => input.mapValues((value) => ({ value }))
const unwrap = <K, V>(input: KStream<K, { value: V }>): KStream<K, V> => input.mapValues(({ value }) => value as Sync<V>)
expectType<KStream<string, OrderEvent>>()(unwrap(wrap(order)))
order.filter((event) => event.type === 'paid').to(events)
const sink: Sink<string, Paid> = events
order.filter((event) => event.type === 'paid').to(sink)
order.to(topic('nullable', { key: nullable(string()), value: nullable(json<OrderEvent>(EventSchema)) }))

// --- wrong uses ---------------------------------------------------------------------------------------------------------
// @ts-expect-error async in a synchronous step
order.mapValues(async (event) => event.id)
// @ts-expect-error async predicate
order.filter(async (event) => event.id === '')
// @ts-expect-error async predicate
order.filterNot(async (event) => event.id === '')
// @ts-expect-error async peek
order.peek(async () => {})
// @ts-expect-error async map
order.map(async (event) => ({ key: event.id, value: event }))
// @ts-expect-error a mapped record has a key
order.map((event) => ({ value: event }))
// @ts-expect-error async topology function
topology('t', async ({ stream: from }) => {
  from(events).to(events)
})
// @ts-expect-error a stream that ends nowhere
topology('t', ({ stream: from }) => from(events).filter((event) => event.id !== ''))
// @ts-expect-error a topic by name has no codecs
stream('events')
// @ts-expect-error wrong value for the topic
order.to(counts)
// @ts-expect-error a nullable stream does not fit a topic without nullable()
stream(topic('u', { key: string(), value: nullable(structured<User>()) })).to(users)
// @ts-expect-error wrong key for the topic
stream(numbered).to(topic('x', { key: string(), value: structured<Created>() }))
// @ts-expect-error a narrower topic does not take the whole stream
order.to(paidOut)
// @ts-expect-error a partition is a number
order.to(events, { partition: (event) => event.id })
// @ts-expect-error dedupe without by
order.dedupe({ window: '24h' })
// @ts-expect-error dedupe without window
order.dedupe({ by: (event) => event.id })
// @ts-expect-error an id that can be missing
order.dedupe({ by: (event) => (event.type === 'created' ? event.user : undefined), window: '24h' })
// @ts-expect-error an id that can be null
order.dedupe({ by: (event) => (event.type === 'created' ? event.user : null), window: '24h' })
// @ts-expect-error a number is no id (use a tuple or a string)
order.dedupe({ by: (event) => event.id.length, window: '24h' })
// @ts-expect-error an async id
order.dedupe({ by: async (event) => event.id, window: '24h' })
// @ts-expect-error a misspelt option
order.dedupe({ by: 'key', window: '24h', onDuplicates: 'drop' })
// @ts-expect-error duplicates routed to a topic of another type
order.dedupe({ by: 'key', window: '24h', onDuplicate: { to: counts } })
// @ts-expect-error late records routed to a topic of another type
order.dedupe({ by: 'key', window: '24h', late: { to: counts } })
// @ts-expect-error not a duration
order.dedupe({ by: 'key', window: '24 hours' })
// @ts-expect-error no such field to take the time from
stream(events, { timestamp: (event) => event.at })
// @ts-expect-error a dead letter goes to a dead-letter topic
topology('t', { onError: { to: counts } }, () => {})
// @ts-expect-error a misspelt option
topology('t', { onErrors: 'skip' }, () => {})
// @ts-expect-error the schema is for another type
json<User>(EventSchema)
// @ts-expect-error a codec where its result is meant
topic('t', { key: string, value: int64() })
