/**
 * The producer of the order service: a process of its own, so that nothing else slows it down. Writes the events of a seed at a steady rate by a bare
 * Kafka client (idempotent, partitioned as Java does).
 *
 * It says over IPC how far it is, and ends by itself when its parent is gone. `done` means that every record was handed over and the queue is empty;
 * whether each is in the topic is for the verifier to say.
 */
import { setTimeout as delay } from 'node:timers/promises'
import kafka from '@confluentinc/kafka-javascript'
import { OrderEventSource } from './order-events.ts'

export interface LoaderArguments {
  readonly brokers: string
  readonly topic: string
  readonly records: number
  /** Records a second. */
  readonly rate: number
  readonly seed: number
}

export type LoaderMessage =
  | { readonly type: 'progress'; readonly sent: number }
  | { readonly type: 'done'; readonly sent: number; readonly uniqueIds: number; readonly resends: number; readonly elapsedMs: number }

const QUEUE_FULL = -184
const TICK_MS = 10
const REPORT_INTERVAL_MS = 200
const FLUSH_TIMEOUT_MS = 60_000

const input = JSON.parse(process.argv[2] ?? '{}') as LoaderArguments
process.on('disconnect', () => process.exit(1))
// Ctrl-C reaches the whole process group; the parent decides what happens then.
process.on('SIGINT', () => undefined)

const producer = new kafka.Producer(
  {
    'bootstrap.servers': input.brokers,
    'client.id': 'demo-loader',
    'enable.idempotence': true,
    'linger.ms': 5,
  },
  { partitioner: 'murmur2_random' },
)
let lastError = ''
producer.on('event.error', (error) => (lastError = error.message))
await new Promise<void>((resolve, reject) => {
  producer.connect({ timeout: 10_000 }, (error) => {
    if (error) reject(new Error(`the loader found no broker at ${input.brokers}: ${lastError || error.message}`))
    else resolve()
  })
})
producer.setPollInBackground(true)

const source = new OrderEventSource(input.seed)
const startedAt = performance.now()
let sent = 0
let reportedAt = 0
while (sent < input.records) {
  const elapsedMs = performance.now() - startedAt
  const due = Math.min(input.records, Math.floor((elapsedMs * input.rate) / 1_000))
  while (sent < due) {
    const { key, value } = source.next()
    await produce(Buffer.from(key), Buffer.from(value))
    sent++
  }
  if (elapsedMs - reportedAt >= REPORT_INTERVAL_MS) {
    reportedAt = elapsedMs
    say({ type: 'progress', sent })
  }
  await delay(TICK_MS)
}
await new Promise<void>((resolve, reject) => {
  producer.flush(FLUSH_TIMEOUT_MS, (error) => {
    if (error) reject(new Error(`the loader could not hand over all records within ${FLUSH_TIMEOUT_MS} ms: ${lastError || error.message}`))
    else resolve()
  })
})
say({ type: 'done', sent, uniqueIds: source.uniqueIds, resends: source.resends, elapsedMs: Math.round(performance.now() - startedAt) })
await new Promise<void>((resolve) => producer.disconnect(() => resolve()))
process.exit(0)

/** Waits while the client's queue is full, as it is while the broker is slow. */
async function produce(key: Buffer, value: Buffer): Promise<void> {
  for (;;) {
    try {
      producer.produce(input.topic, null, value, key, Date.now())
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
