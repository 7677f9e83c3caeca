/**
 * How long tasks go without output when a worker goes away, for every way to go: `npm run handover`. Prints the table of docs/membership.md.
 *
 *   --ids N      ids in state before the measurements (default 1,000,000)
 *   --rounds N   measurements of each way (default 3)
 *
 * Two slots, each `millrace run` with every setting at its default, on one broker; a feed of new ids on every partition, and a read_committed reader that
 * notes when each partition's output arrives. A gap is the longest silence of a partition of the worker that went, in ms, as the reader saw it.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import Table from 'cli-table3'
import kafkaClient from '@confluentinc/kafka-javascript'
import { Kafka, logLevel, type Producer } from 'kafkajs'
import { provideBroker } from './broker-provider/provider.ts'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const PARTITIONS = 4
const INPUT = 'handover.in'
const OUTPUT = 'handover.out'
const FEED_INTERVAL_MS = 20
const PRELOAD_BATCH = 5_000
const PATIENCE_MS = 180_000

const TOPOLOGY = `
import { json, string, topic, topology } from 'millrace'
const events = (name: string) => topic(name, { key: string(), value: json<{ id: string; partition: number }>() })
export default topology('handover', ({ stream }) => {
  stream(events('${INPUT}')).dedupe({ by: (event) => event.id, window: '24h', partitioned: 'by-key' }).to(events('${OUTPUT}'))
})`

const { values } = parseArgs({ options: { ids: { type: 'string', default: '1000000' }, rounds: { type: 'string', default: '3' } } })
const ids = Number(values.ids)
const rounds = Number(values.rounds)
const say = (line: string): void => void process.stderr.write(`${line}\n`)

/** One slot: a supervisor and its worker. */
class Slot {
  readonly #supervisor: ChildProcess
  readonly exit: Promise<void>
  /** Tasks of the running worker, by partition. */
  tasks = new Set<number>()
  restored: number[] = []

  constructor(brokers: string, folder: string, slot: number, onClose: 'keep' | 'leave') {
    this.#supervisor = spawn(
      process.execPath,
      [
        join(ROOT, 'dist/cli/main.js'),
        'run',
        join(folder, 'topology.ts'),
        '--brokers',
        brokers,
        '--instance',
        'measured',
        '--slot',
        String(slot),
        '--state-dir',
        join(folder, 'state'),
        '--on-close',
        onClose,
        '--log-format',
        'json',
      ],
      { cwd: folder, stdio: ['ignore', 'pipe', 'inherit'] },
    )
    createInterface({ input: this.#supervisor.stdout as NodeJS.ReadableStream }).on('line', (line) => this.#take(line))
    this.exit = new Promise((resolve) => this.#supervisor.once('exit', () => resolve()))
  }

  #take(line: string): void {
    let entry: { event?: string; tasks?: string[]; records?: number; from?: string; to?: string }
    try {
      entry = JSON.parse(line) as typeof entry
    } catch {
      return
    }
    if (entry.event === 'state' && entry.from === 'created') this.tasks.clear()
    const partitions = (entry.tasks ?? []).map((task) => Number(task.split('_')[1]))
    if (entry.event === 'assigned') for (const partition of partitions) this.tasks.add(partition)
    if (entry.event === 'revoked') for (const partition of partitions) this.tasks.delete(partition)
    if (entry.event === 'restored') this.restored.push(entry.records ?? 0)
  }

  /** Of the worker process; the supervisor forks just one. */
  #workerPid(): number {
    const pid = this.#supervisor.pid ?? 0
    const [child] = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ')
    return Number(child)
  }

  /** kill -9 of the worker; its supervisor starts it again at once. */
  killWorker(): void {
    process.kill(this.#workerPid(), 'SIGKILL')
  }

  /** kill -9 of both: the machine is gone. */
  async killAll(): Promise<void> {
    const worker = this.#workerPid()
    this.#supervisor.kill('SIGSTOP') // it must not start another one in between
    process.kill(worker, 'SIGKILL')
    this.#supervisor.kill('SIGKILL')
    await this.exit
  }

  async stop(): Promise<void> {
    if (this.#supervisor.exitCode === null && this.#supervisor.signalCode === null) this.#supervisor.kill('SIGTERM')
    await this.exit
  }
}

/** Notes when output of each input partition arrives. */
class Arrivals {
  readonly #last = new Map<number, number>()
  readonly #longest = new Map<number, number>()
  #total = 0
  readonly #consumer: InstanceType<typeof kafkaClient.KafkaConsumer>

  constructor(brokers: string) {
    this.#consumer = new kafkaClient.KafkaConsumer(
      {
        'bootstrap.servers': brokers,
        'group.id': 'handover-reader',
        'enable.auto.commit': false,
        'isolation.level': 'read_committed',
        'fetch.wait.max.ms': 10,
      },
      { 'auto.offset.reset': 'latest' },
    )
  }

  get total(): number {
    return this.#total
  }

  async open(): Promise<void> {
    await new Promise<void>((resolve, reject) =>
      this.#consumer.connect({}, (error) => (error ? reject(new Error(error.message)) : resolve())),
    )
    this.#consumer.on('data', ({ value }: { value: Buffer | null }) => {
      const { partition } = JSON.parse(String(value)) as { partition: number }
      const now = performance.now()
      const silence = now - (this.#last.get(partition) ?? now)
      this.#longest.set(partition, Math.max(silence, this.#longest.get(partition) ?? 0))
      this.#last.set(partition, now)
      this.#total++
    })
    this.#consumer.assign(Array.from({ length: PARTITIONS }, (_, partition) => ({ topic: OUTPUT, partition, offset: -1 })))
    this.#consumer.consume()
  }

  /** From now on. */
  reset(): void {
    this.#longest.clear()
  }

  /** True when every partition has delivered something within the last second. */
  get steady(): boolean {
    const now = performance.now()
    return this.#last.size === PARTITIONS && [...this.#last.values()].every((at) => now - at < 1_000)
  }

  silenceOf(partitions: Iterable<number>): number {
    return Math.max(0, ...[...partitions].map((partition) => this.#longest.get(partition) ?? 0))
  }

  close(): Promise<void> {
    return new Promise((resolve) => this.#consumer.disconnect(() => resolve()))
  }
}

async function until(what: string, isTrue: () => boolean): Promise<void> {
  const end = performance.now() + PATIENCE_MS
  while (!isTrue()) {
    if (performance.now() > end) throw new Error(`waited ${PATIENCE_MS} ms for ${what}`)
    await delay(20)
  }
}

async function preload(producer: Producer): Promise<void> {
  for (let start = 0; start < ids; start += PRELOAD_BATCH) {
    const messages = Array.from({ length: Math.min(PRELOAD_BATCH, ids - start) }, (_, index) => {
      const partition = (start + index) % PARTITIONS
      return { partition, key: `p${partition}`, value: JSON.stringify({ id: `before-${start + index}`, partition }) }
    })
    await producer.send({ topic: INPUT, acks: 1, messages })
    if (start % 100_000 === 0) say(`  ${start} of ${ids} ids written`)
  }
}

const median = (figures: readonly number[]): number => [...figures].sort((a, b) => a - b)[Math.floor(figures.length / 2)] ?? 0

async function main(): Promise<void> {
  await using broker = await provideBroker({ nodes: 1, onProgress: say })
  const folder = mkdtempSync(join(tmpdir(), 'millrace-handover-'))
  const kafka = new Kafka({ brokers: broker.brokers.split(','), logLevel: logLevel.NOTHING })
  const [admin, producer] = [kafka.admin(), kafka.producer()]
  const slots: Slot[] = []
  const arrivals = new Arrivals(broker.brokers)
  let feeding = true
  const table = new Table({ head: ['how a worker goes', 'longest silence of its partitions, ms', 'changelog records replayed'] })
  try {
    await Promise.all([admin.connect(), producer.connect()])
    await admin.createTopics({ topics: [INPUT, OUTPUT].map((topic) => ({ topic, numPartitions: PARTITIONS, replicationFactor: 1 })) })
    writeFileSync(join(folder, 'topology.ts'), TOPOLOGY.replace("'millrace'", JSON.stringify(join(ROOT, 'dist/index.js'))))
    await preload(producer)
    const start = (slot: number, onClose: 'keep' | 'leave' = 'keep'): Slot =>
      (slots[slot] = new Slot(broker.brokers, folder, slot, onClose))
    start(0)
    start(1)
    await arrivals.open()
    let fed = 0
    const feed = (async () => {
      while (feeding) {
        await producer.send({
          topic: INPUT,
          acks: 1,
          messages: Array.from({ length: PARTITIONS }, (_, partition) => ({
            partition,
            key: `p${partition}`,
            value: JSON.stringify({ id: `new-${fed++}`, partition }),
          })),
        })
        await delay(FEED_INTERVAL_MS)
      }
    })()
    say('  the workers work the ids off')
    const both = (): boolean =>
      arrivals.steady &&
      (slots[0]?.tasks.size ?? 0) + (slots[1]?.tasks.size ?? 0) === PARTITIONS &&
      slots.every(({ tasks }) => tasks.size > 0)
    const settled = async (): Promise<void> => {
      await until('output of every partition from both workers', both)
      await delay(3_000) // not a condition: the state before a measurement is a worker that has been at work for a while
    }
    await until('the ids before to be worked off', () => arrivals.total > 0 && both())
    await settled()

    const takenOver = (): Promise<void> =>
      until('the other worker to have every task', () => slots[0]?.tasks.size === PARTITIONS && arrivals.steady)
    /** `go` ends when output of all partitions is back; the silence until then is measured. `back` makes two workers of it again, unmeasured. */
    const measure = async (what: string, go: (slot: Slot) => Promise<void>, back?: () => void): Promise<void> => {
      const silences: number[] = []
      const replayed: number[] = []
      for (let round = 0; round < rounds; round++) {
        await settled()
        const slot = slots[1] as Slot
        const owned = new Set(slot.tasks)
        for (const each of slots) each.restored = []
        arrivals.reset()
        await go(slot)
        silences.push(Math.round(arrivals.silenceOf(owned)))
        replayed.push(slots.flatMap(({ restored }) => restored).reduce((sum, records) => sum + records, 0))
        back?.()
      }
      table.push([what, `${median(silences)} (${silences.join(', ')})`, replayed.join(', ')])
      say(`  ${what}: ${silences.join(', ')} ms`)
    }
    await measure('kill -9 of the worker; its supervisor starts it again', async (slot) => {
      slot.killWorker()
      await until('its tasks to be gone', () => slot.tasks.size === 0)
      await settled()
    })
    await measure('clean stop with onClose keep; started again at once', async (slot) => {
      await slot.stop()
      start(1)
      await settled()
    })
    await measure(
      'kill -9 of worker and supervisor; the other worker takes over (sessionTimeout 30 s)',
      async (slot) => {
        await slot.killAll()
        await takenOver()
      },
      () => void start(1),
    )
    await settled()
    await slots[1]?.stop()
    start(1, 'leave')
    await measure(
      'clean stop with onClose leave; the other worker takes over',
      async (slot) => {
        await slot.stop()
        await takenOver()
      },
      () => void start(1, 'leave'),
    )
    feeding = false
    await feed
  } finally {
    feeding = false
    await Promise.all(slots.map((slot) => slot.stop()))
    await arrivals.close().catch(() => undefined)
    await Promise.all([admin.disconnect(), producer.disconnect()])
    rmSync(folder, { recursive: true, force: true })
  }
  process.stdout.write(
    `${ids} ids in state, ${PARTITIONS} partitions, two workers, ${rounds} rounds each: median (each)\n${table.toString()}\n`,
  )
}

await main()
