/**
 * The producer of the input: a process of its own, past the proxies. Writes the events of a seed at a steady rate; some of them in transactions of its
 * own, half of which it aborts, so that the input has control records and records that nobody may see.
 *
 * By kafkajs: while a broker is away, the native client's threads turn without a pause for as long as records wait for it, and took both cores from the
 * workers under test. A batch whose answer was lost goes out again under new numbers: its idempotence does not outlast a broker, and a record that stood
 * in the log twice would look like an output that was doubled.
 *
 * Ends when told `stop`, or when its parent is gone. `done` says how many records outside of transactions the brokers have acknowledged.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { Kafka, logLevel, Partitioners, type Message, type Producer } from 'kafkajs'
import { SeededRandom } from '../../demo/seeded-random.ts'
import { EventSource, type SourceRecord } from './events.ts'

export interface LoaderArguments {
  readonly brokers: string
  readonly topic: string
  readonly partitions: number
  readonly seed: number
  /** Records a second. */
  readonly rate: number
}

export type LoaderMessage =
  | { readonly type: 'progress'; readonly sent: number; readonly acknowledged: number }
  | { readonly type: 'done'; readonly sent: number; readonly acknowledged: number; readonly committed: number; readonly aborted: number }
  | { readonly type: 'note'; readonly text: string }

const TICK_MS = 10
const REPORT_INTERVAL_MS = 500
const PAUSE_MS = 250
const BATCH_RECORDS = 500
/** Of records that are sent again; above those of the source. */
const FIRST_NUMBER = 1_000_000_000
/** Of the records, those that go into a transaction. */
const TRANSACTIONS_EVERY = 50
const TRANSACTION_RECORDS = 5
const TRANSACTION_TIMEOUT_MS = 10_000

const input = JSON.parse(process.argv[2] ?? '{}') as LoaderArguments
let stopping = false
process.on('disconnect', () => process.exit(1))
process.on('SIGINT', () => undefined)
process.on('message', (message) => (stopping ||= message === 'stop'))

const kafka = new Kafka({
  clientId: 'chaos-loader',
  brokers: input.brokers.split(','),
  logLevel: logLevel.NOTHING,
  requestTimeout: 10_000,
  retry: { retries: 3, initialRetryTime: 100, maxRetryTime: 1_000 },
})
const byKey = Partitioners.DefaultPartitioner()
const partitionMetadata = Array.from({ length: input.partitions }, (_unused, partitionId) => ({
  partitionId,
  leader: 1,
  isr: [],
  replicas: [],
  partitionErrorCode: 0,
}))
const plain = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, allowAutoTopicCreation: false, retry: { retries: 0 } })
await plain.connect()
const baseTime = Date.now()
let acknowledged = 0
const waiting = Array.from({ length: input.partitions }, (): Message[] => [])
/** Of each partition, the batch that is under way: one at a time keeps its order. */
const underWay: (Promise<void> | undefined)[] = waiting.map(() => undefined)
let transactional: Producer | undefined
let nextNumber = FIRST_NUMBER

const source = new EventSource(input.seed, input.rate)
const random = new SeededRandom(input.seed + 1)
const startedAt = performance.now()
let sent = 0
let reportedAt = 0
let committed = 0
let aborted = 0
let inTransaction: Message[] = []
let transactionRuns: Promise<void> | undefined
while (!stopping) {
  const elapsedMs = performance.now() - startedAt
  const due = Math.floor((elapsedMs * input.rate) / 1_000)
  while (sent < due) {
    const message = messageOf(source.next())
    sent++
    if (sent % TRANSACTIONS_EVERY < TRANSACTION_RECORDS) inTransaction.push(message)
    else waiting[message.partition]?.push(message)
  }
  sendWaiting()
  if (inTransaction.length >= TRANSACTION_RECORDS && transactionRuns === undefined) {
    const messages = inTransaction
    inTransaction = []
    transactionRuns = transaction(messages, random.next() < 0.5).finally(() => (transactionRuns = undefined))
  }
  if (elapsedMs - reportedAt >= REPORT_INTERVAL_MS) {
    reportedAt = elapsedMs
    say({ type: 'progress', sent, acknowledged })
  }
  await delay(TICK_MS)
}
await transactionRuns
while (waiting.some(({ length }) => length > 0) || underWay.some((send) => send !== undefined)) {
  sendWaiting()
  await delay(TICK_MS)
}
// The input ends in control records: lag must reach 0 all the same.
await transaction(inTransaction, false)
say({ type: 'done', sent, acknowledged, committed, aborted })
await plain.disconnect()
await transactional?.disconnect()
process.exit(0)

function messageOf({ key, value, timeMs }: SourceRecord): Message & { partition: number } {
  const message = { key, value, timestamp: String(baseTime + timeMs) }
  return { ...message, partition: byKey({ topic: input.topic, partitionMetadata, message }) }
}

function sendWaiting(): void {
  waiting.forEach((messages, partition) => {
    if (messages.length === 0 || underWay[partition] !== undefined) return
    underWay[partition] = send(messages.splice(0, BATCH_RECORDS)).finally(() => (underWay[partition] = undefined))
  })
}

/** Until the brokers have it: one may be on its way back. */
async function send(batch: Message[]): Promise<void> {
  for (let messages = batch; ; messages = messages.map(renumbered)) {
    try {
      await plain.send({ topic: input.topic, messages })
      acknowledged += messages.length
      return
    } catch (error) {
      say({ type: 'note', text: `records of the loader are sent again: ${String(error)}` })
      await delay(PAUSE_MS)
    }
  }
}

function renumbered(message: Message): Message {
  return { ...message, value: String(message.value).replace(/"send":\d+/, `"send":${nextNumber++}`) }
}

/** One transaction; one that fails is given up with its producer, and what became of it is what the log says. */
async function transaction(messages: Message[], abort: boolean): Promise<void> {
  try {
    transactional ??= await newTransactional()
    const open = await transactional.transaction()
    // One partition at a time: where a call to several brokers fails at one of them, kafkajs sends to the others twice.
    for (let partition = 0; partition < input.partitions; partition++) {
      const own = messages.filter((message) => message.partition === partition)
      if (own.length > 0) await open.send({ topic: input.topic, messages: own })
    }
    if (abort) {
      await open.abort()
      aborted++
    } else {
      await open.commit()
      committed++
    }
  } catch (error) {
    say({ type: 'note', text: `a transaction of the loader failed, its outcome is what the log says: ${String(error)}` })
    await transactional?.disconnect().catch(() => undefined)
    transactional = undefined
  }
}

async function newTransactional(): Promise<Producer> {
  const producer = kafka.producer({
    createPartitioner: Partitioners.DefaultPartitioner,
    allowAutoTopicCreation: false,
    idempotent: true,
    maxInFlightRequests: 1,
    transactionalId: `${input.topic}-loader`,
    transactionTimeout: TRANSACTION_TIMEOUT_MS,
  })
  await producer.connect()
  return producer
}

function say(message: LoaderMessage): void {
  if (process.connected) process.send?.(message)
}
