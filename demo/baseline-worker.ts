/**
 * The plain consumer that most services run: kafkajs, at least once. It credits points for each record in the database and commits the offsets
 * afterwards, on an interval. Nothing in it is made worse than usual:
 * - 200 ms between commits is what the article behind this project measured; the Java client and librdkafka wait 5,000 ms by default;
 * - what is done is committed before a rebalance and on a stop, so a deploy repeats nothing; only a crash does.
 */
import { setImmediate as turn } from 'node:timers/promises'
import { Kafka, logLevel } from 'kafkajs'
import type { OrderEvent } from '../topologies/order-dedupe.ts'
import { Ledger } from './baseline-ledger.ts'

export interface BaselineArguments {
  readonly brokers: string
  readonly topic: string
  readonly groupId: string
  /** Path of the points database. */
  readonly database: string
  readonly commitIntervalMs: number
  readonly sessionTimeoutMs: number
}

export type BaselineMessage =
  { readonly type: 'assigned'; readonly partitions: readonly number[] } | { readonly type: 'credited'; readonly credits: number }

const REPORT_INTERVAL_MS = 250

const input = JSON.parse(process.argv[2] ?? '{}') as BaselineArguments
process.on('disconnect', () => process.exit(1))
// Ctrl-C reaches the whole process group; the parent decides what happens then.
process.on('SIGINT', () => undefined)

const ledger = new Ledger(input.database)
const consumer = new Kafka({ clientId: 'points', brokers: input.brokers.split(','), logLevel: logLevel.NOTHING }).consumer({
  groupId: input.groupId,
  sessionTimeout: input.sessionTimeoutMs,
  heartbeatInterval: Math.floor(input.sessionTimeoutMs / 3),
  // As the Java client; the 5 s of kafkajs only make a stop slow.
  maxWaitTimeInMs: 500,
})

/** Next offset by partition, of what is credited and not yet committed. */
const done = new Map<number, number>()
let credits = 0
/** Group joins so far: what failed to be committed before a join is not tried again after it. */
let joins = 0

consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
  // What is still in here belongs to partitions of the time before.
  done.clear()
  joins++
  say({ type: 'assigned', partitions: payload.memberAssignment[input.topic] ?? [] })
})
consumer.on(consumer.events.REBALANCING, () => void commit())
consumer.on(consumer.events.CRASH, ({ payload }) => {
  if (payload.restart) return
  process.stderr.write(`${payload.error.message}\n`)
  process.exit(1)
})

await consumer.connect()
await consumer.subscribe({ topic: input.topic, fromBeginning: true })
await consumer.run({
  autoCommit: false,
  eachMessage: async ({ partition, message }) => {
    const { orderId, type, userId, amount } = JSON.parse(String(message.value)) as OrderEvent
    const offset = Number(message.offset)
    ledger.credit({ partition, offset, orderId, type, userId, points: Math.round(amount) })
    // The database call of a service is asynchronous, this one is not: without a turn of the event loop the commits (and heartbeats) of a whole batch
    // would wait for its end, and far more would be repeated.
    await turn()
    done.set(partition, offset + 1)
    credits++
  },
})
const commitTimer = setInterval(() => void commit(), input.commitIntervalMs)
setInterval(() => say({ type: 'credited', credits }), REPORT_INTERVAL_MS)

process.on('SIGTERM', () => {
  clearInterval(commitTimer)
  consumer.pause([{ topic: input.topic }])
  void commit()
    .then(() => consumer.disconnect())
    .finally(() => {
      ledger.close()
      process.exit(0)
    })
})

async function commit(): Promise<void> {
  if (done.size === 0) return
  const join = joins
  const offsets = [...done]
  done.clear()
  try {
    await consumer.commitOffsets(offsets.map(([partition, offset]) => ({ topic: input.topic, partition, offset: String(offset) })))
  } catch {
    // Refused by a rebalance: the next owner starts from the commit before. Anything else is tried again with the next commit.
    if (join !== joins) return
    for (const [partition, offset] of offsets) if (!done.has(partition)) done.set(partition, offset)
  }
}

function say(message: BaselineMessage): void {
  if (process.connected) process.send?.(message)
}
