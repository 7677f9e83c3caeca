/**
 * The group consumer over the classic client.
 *
 * Owns: the native consumer, the rebalance callback, the single outstanding poll.
 * Does not own: offsets, tasks, or any decision; the listener decides, this file only answers the client.
 *
 * Invariants:
 *  GC1. `incrementalAssign` and `incrementalUnassign` are called in the rebalance callback only, one call site each. Called elsewhere while a revoke is
 *      queued, librdkafka takes the call for its answer and two owners commit (CLIENT-FACTS 25).
 *  GC2. Every callback is answered, whatever the listener does: an unanswered one stops all partitions and hangs `close` (CLIENT-FACTS 8).
 *  GC3. At most one poll is outstanding, and no `seek` while one is: its batch may already hold the first records after the seek (CLIENT-FACTS 9).
 *  GC4. What was assigned is paused in the same tick, so nothing is read before an explicit seek and resume. A poll that is out just then may still bring a
 *      few records (seen once, under load): the runtime drops them as stale (input-reader I2).
 */
import { partitionName, type TopicPartition, type TopicPartitionOffset } from '../../common/topic-partition.ts'
import { invariant } from '../../common/invariant.ts'
import { BrokerError } from '../../errors/broker-error.ts'
import type { CommittedOffset, GroupConsumer, GroupConsumerOptions, PollResult, RebalanceListener } from '../port.ts'
import { baseConfig, connect, disconnect, type ConnectionSettings } from './connection.ts'
import { brokerError } from './errors.ts'
import { CLOSE_WAIT_MS, NativeCalls } from './native-calls.ts'
import { native, type NativeConsumer, type NativePosition } from './native.ts'
import { toPollResult } from './records.ts'

const ASSIGN_PARTITIONS = -175
export async function connectConsumer(settings: ConnectionSettings, options: GroupConsumerOptions): Promise<GroupConsumer> {
  const consumer = new KafkaGroupConsumer(settings, options)
  await consumer.connect()
  return consumer
}

class KafkaGroupConsumer implements GroupConsumer {
  readonly #settings: ConnectionSettings
  readonly #client: NativeConsumer
  #listener: RebalanceListener | undefined
  readonly #calls = new NativeCalls()
  #polling = false
  #closed = false
  /** An assignment the client refused. */
  #failure: BrokerError | undefined

  constructor(settings: ConnectionSettings, options: GroupConsumerOptions) {
    this.#settings = settings
    this.#client = new native.KafkaConsumer(
      {
        // The default of one second stalls after a full queue (CLIENT-FACTS 10).
        'fetch.queue.backoff.ms': 10,
        'fetch.wait.max.ms': 100,
        'check.crcs': options.checkChecksums,
        'queued.min.messages': 20_000,
        'queued.max.messages.kbytes': 32_768,
        ...baseConfig(settings), // the user's tuning wins over ours, what the promises need wins over both
        'group.id': options.groupId,
        'group.instance.id': options.groupInstanceId,
        'session.timeout.ms': options.sessionTimeoutMs,
        'heartbeat.interval.ms': options.heartbeatIntervalMs,
        'max.poll.interval.ms': options.maxPollIntervalMs,
        'partition.assignment.strategy': 'cooperative-sticky',
        'enable.auto.commit': false,
        'enable.auto.offset.store': false,
        'isolation.level': 'read_committed',
        'enable.partition.eof': true,
        rebalance_cb: (error: { code: number } | undefined, partitions: NativePosition[]) => {
          this.#rebalance(error?.code ?? 0, partitions)
        },
      },
      // In the second argument: an empty object here would silently win over the first (CLIENT-FACTS 1).
      { 'auto.offset.reset': 'error' },
    )
  }

  async connect(): Promise<void> {
    await connect(this.#client, this.#settings, 'consumer')
  }

  subscribe(topic: string, listener: RebalanceListener): void {
    this.#listener = listener
    this.#client.subscribe([topic])
  }

  #rebalance(code: number, offered: readonly TopicPartition[]): void {
    const partitions = offered.map(({ topic, partition }) => ({ topic, partition }))
    if (code === ASSIGN_PARTITIONS) this.#assign(partitions)
    else void this.#revoke(partitions)
  }

  #assign(partitions: readonly TopicPartition[]): void {
    try {
      const all = this.#listener?.assigned(partitions) ?? []
      this.#client.incrementalAssign(all.map(({ topic, partition, offset }) => ({ topic, partition, offset })))
      this.pause(all)
    } catch (error) {
      // The client waits for an answer that it did not get (GC2): reading on is not possible. The next poll says so.
      this.#failure = brokerError('poll', error)
    }
  }

  async #revoke(partitions: readonly TopicPartition[]): Promise<void> {
    let all = partitions
    try {
      const lost = this.#client.assignmentLost()
      if (this.#listener !== undefined) all = await this.#listener.revoked(partitions, lost)
    } finally {
      try {
        this.#client.incrementalUnassign(all.map(({ topic, partition }) => ({ topic, partition })))
      } catch (error) {
        this.#settings.logger.error({ error: brokerError('poll', error).message }, 'unassignment failed in the client')
      }
    }
  }

  poll(maxRecords: number, timeoutMs: number): Promise<PollResult> {
    invariant(!this.#polling, 'GC3', { poll: 'second' })
    if (this.#failure !== undefined) return Promise.reject(this.#failure)
    this.#polling = true
    return new Promise<PollResult>((resolve, reject) => {
      this.#client.getClient().consume(timeoutMs, maxRecords, true, (error, messages, ends) => {
        this.#polling = false
        if (error) reject(brokerError('poll', error))
        else resolve(toPollResult(messages, ends))
      })
    })
  }

  async seek(positions: readonly TopicPartitionOffset[], timeoutMs: number): Promise<void> {
    invariant(!this.#polling, 'GC3', () => ({ seek: positions.map(({ topic, partition }) => partitionName(topic, partition)) }))
    for (const { topic, partition, offset } of positions) {
      await this.#calls.run('seek', (done) => {
        this.#client.seek({ topic, partition, offset }, timeoutMs, done)
      })
    }
  }

  pause(partitions: readonly TopicPartition[]): void {
    if (partitions.length > 0) this.#now('poll', () => this.#client.pause(partitions.map(({ topic, partition }) => ({ topic, partition }))))
  }

  resume(partitions: readonly TopicPartition[]): void {
    if (partitions.length > 0)
      this.#now('poll', () => this.#client.resume(partitions.map(({ topic, partition }) => ({ topic, partition }))))
  }

  async committed(partitions: readonly TopicPartition[], timeoutMs: number): Promise<readonly CommittedOffset[]> {
    const answer = await this.#calls.runWithWatchdog<NativePosition[]>('committed', timeoutMs, (done) => {
      this.#client.committed(
        partitions.map(({ topic, partition }) => ({ topic, partition })),
        timeoutMs,
        done,
      )
    })
    return answer.map(({ topic, partition, offset, metadata, error }) => {
      if (error) throw brokerError('committed', error)
      return { topic, partition, offset: typeof offset === 'number' && offset >= 0 ? offset : undefined, metadata: metadata ?? '' }
    })
  }

  position(topic: string, partition: number): number | undefined {
    const [answer] = this.#now('poll', () => this.#client.position([{ topic, partition }]))
    return typeof answer?.offset === 'number' && answer.offset >= 0 ? answer.offset : undefined
  }

  knownEnd(topic: string, partition: number): number | undefined {
    try {
      const { highOffset } = this.#client.getWatermarkOffsets(topic, partition)
      return highOffset >= 0 ? highOffset : undefined
    } catch {
      return undefined // nothing was fetched yet
    }
  }

  assignments(): readonly TopicPartition[] {
    return this.#now('poll', () => this.#client.assignments())
  }

  assignmentLost(): boolean {
    return this.#now('poll', () => this.#client.assignmentLost())
  }

  unsubscribe(): void {
    this.#now('close', () => {
      this.#client.unsubscribe()
    })
  }

  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    if (!(await this.#calls.left(CLOSE_WAIT_MS))) {
      this.#settings.logger.warn({ client: 'consumer' }, 'a call hangs in the Kafka client: it is left open until the process ends')
      return
    }
    await disconnect(this.#client)
  }

  /** For the producer of the same adapter: `sendOffsets` needs the client itself. A closed one would be a null dereference there (CLIENT-FACTS 6). */
  clientForOffsets(): NativeConsumer {
    if (this.#closed || !this.#client.isConnected())
      throw new BrokerError('sendOffsets', -172, 'the consumer is disconnected', { isAbortRequired: true })
    return this.#client
  }

  #now<T>(operation: 'poll' | 'close', act: () => T): T {
    try {
      return act()
    } catch (error) {
      throw brokerError(operation, error)
    }
  }
}

export function nativeConsumer(consumer: GroupConsumer): NativeConsumer {
  invariant(consumer instanceof KafkaGroupConsumer, 'GC5', { consumer: 'of another adapter' })
  return consumer.clientForOffsets()
}
