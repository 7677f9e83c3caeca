/**
 * The producer of the input: a process of its own, by a bare client, past the proxies. Writes the events of a seed at a steady rate; some of them in
 * transactions of its own, half of which it aborts, so that the input has control records and records that nobody may see.
 *
 * Ends when told `stop`, or when its parent is gone. `done` says how many records outside of transactions the brokers have acknowledged.
 */
import { setTimeout as delay } from 'node:timers/promises'
import kafka from '@confluentinc/kafka-javascript'
import { SeededRandom } from '../../demo/seeded-random.ts'
import { EventSource, type SourceRecord } from './events.ts'

export interface LoaderArguments {
  readonly brokers: string
  readonly topic: string
  readonly seed: number
  /** Records a second. */
  readonly rate: number
}

export type LoaderMessage =
  | { readonly type: 'progress'; readonly sent: number; readonly acknowledged: number }
  | { readonly type: 'done'; readonly sent: number; readonly acknowledged: number; readonly committed: number; readonly aborted: number }
  | { readonly type: 'note'; readonly text: string }

const QUEUE_FULL = -184
const TICK_MS = 10
const REPORT_INTERVAL_MS = 500
const CALL_TIMEOUT_MS = 30_000
/** Of the records, those that go into a transaction. */
const TRANSACTIONS_EVERY = 50
const TRANSACTION_RECORDS = 5

type Done = (error: { message: string; code?: number; isRetriable?: boolean } | null | undefined) => void

const input = JSON.parse(process.argv[2] ?? '{}') as LoaderArguments
let stopping = false
process.on('disconnect', () => process.exit(1))
process.on('SIGINT', () => undefined)
process.on('message', (message) => (stopping ||= message === 'stop'))

const base = { 'bootstrap.servers': input.brokers, 'enable.idempotence': true, 'linger.ms': 5, 'message.timeout.ms': 180_000 }
const partitioner = { partitioner: 'murmur2_random' as const }
const plain = new kafka.Producer({ ...base, 'client.id': 'chaos-loader', dr_cb: true }, partitioner)
let acknowledged = 0
plain.on('delivery-report', (error) => {
  if (error) say({ type: 'note', text: `a record of the loader was not delivered: ${error.message}` })
  else acknowledged++
})
await connected(plain)
plain.setPollInBackground(true)
let transactional = await newTransactional()

const source = new EventSource(input.seed, input.rate)
const random = new SeededRandom(input.seed + 1)
const startedAt = performance.now()
const baseTime = Date.now()
let sent = 0
let reportedAt = 0
let committed = 0
let aborted = 0
let inTransaction: SourceRecord[] = []
let transactionRuns: Promise<void> | undefined
while (!stopping) {
  const elapsedMs = performance.now() - startedAt
  const due = Math.floor((elapsedMs * input.rate) / 1_000)
  while (sent < due) {
    const record = source.next()
    sent++
    if (sent % TRANSACTIONS_EVERY < TRANSACTION_RECORDS) inTransaction.push(record)
    else await produce(plain, record)
  }
  if (inTransaction.length >= TRANSACTION_RECORDS && transactionRuns === undefined) {
    const records = inTransaction
    inTransaction = []
    transactionRuns = transaction(records, random.next() < 0.5).finally(() => (transactionRuns = undefined))
  }
  if (elapsedMs - reportedAt >= REPORT_INTERVAL_MS) {
    reportedAt = elapsedMs
    say({ type: 'progress', sent, acknowledged })
  }
  await delay(TICK_MS)
}
await transactionRuns
await call(plain, 'flush', CALL_TIMEOUT_MS * 4)
// The input ends in control records: lag must reach 0 all the same.
await transaction(inTransaction, false)
// Delivery reports come by the event loop.
await delay(200)
say({ type: 'done', sent, acknowledged, committed, aborted })
await new Promise<void>((resolve) => plain.disconnect(() => resolve()))
await new Promise<void>((resolve) => transactional.disconnect(() => resolve()))
process.exit(0)

/** One transaction; one that fails is given up with its producer, and its records are as good as aborted. */
async function transaction(records: readonly SourceRecord[], abort: boolean): Promise<void> {
  try {
    await call(transactional, 'beginTransaction')
    for (const record of records) await produce(transactional, record)
    await call(transactional, 'flush', CALL_TIMEOUT_MS)
    await call(transactional, abort ? 'abortTransaction' : 'commitTransaction', CALL_TIMEOUT_MS)
    if (abort) aborted++
    else committed++
  } catch (error) {
    say({ type: 'note', text: `a transaction of the loader failed, its outcome is what the log says: ${String(error)}` })
    const old = transactional
    await new Promise<void>((resolve) => old.disconnect(() => resolve()))
    transactional = await newTransactional()
  }
}

async function newTransactional(): Promise<kafka.Producer> {
  for (;;) {
    const producer = new kafka.Producer(
      {
        ...base,
        'client.id': 'chaos-loader-transactions',
        'transactional.id': `${input.topic}-loader`,
        'transaction.timeout.ms': 10_000,
        'message.timeout.ms': 9_000,
      },
      partitioner,
    )
    try {
      await connected(producer)
      producer.setPollInBackground(true)
      await call(producer, 'initTransactions', CALL_TIMEOUT_MS)
      return producer
    } catch (error) {
      say({ type: 'note', text: `the loader could not init its transactional id: ${String(error)}` })
      await new Promise<void>((resolve) => producer.disconnect(() => resolve()))
      await delay(500)
    }
  }
}

function connected(producer: kafka.Producer): Promise<void> {
  return new Promise((resolve, reject) =>
    producer.connect({ timeout: 30_000 }, (error) => (error ? reject(new Error(error.message)) : resolve())),
  )
}

/** Repeats while retriable: a broker may be on its way back. */
async function call(
  producer: kafka.Producer,
  operation: 'beginTransaction' | 'flush' | 'initTransactions' | 'commitTransaction' | 'abortTransaction',
  timeoutMs?: number,
): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    const error = await new Promise<Parameters<Done>[0]>((resolve) => {
      if (timeoutMs === undefined) producer.beginTransaction(resolve)
      else if (operation === 'flush') producer.flush(timeoutMs, resolve)
      else if (operation !== 'beginTransaction') producer[operation](timeoutMs, resolve)
    })
    if (!error) return
    if (error.isRetriable !== true || attempt === 5) throw new Error(`${operation}: ${error.message}`)
  }
}

/** Waits while the client's queue is full, as it is while a broker is away. */
async function produce(producer: kafka.Producer, { key, value, timeMs }: SourceRecord): Promise<void> {
  for (;;) {
    try {
      producer.produce(input.topic, null, Buffer.from(value), Buffer.from(key), baseTime + timeMs)
      return
    } catch (error) {
      if ((error as { code?: number }).code !== QUEUE_FULL) throw error
      await delay(TICK_MS)
    }
  }
}

function say(message: LoaderMessage): void {
  if (process.connected) process.send?.(message)
}
