/**
 * Reads changelogs and the task topic read_committed, by manual assignment and outside any group. It is never used as an offset source: the broker
 * skips the group check for such a consumer (CLIENT-FACTS 5).
 */
import { invariant } from '../../common/invariant.ts'
import type { TopicPartitionOffset } from '../../common/topic-partition.ts'
import { closedError } from '../../errors/broker-error.ts'
import type { ChangelogReader, PollResult } from '../port.ts'
import { baseConfig, connect, disconnect, type ConnectionSettings } from './connection.ts'
import { brokerError } from './errors.ts'
import { native, type NativeConsumer } from './native.ts'
import { toPollResult } from './records.ts'

/** `isOver`: the broker was closed, and whoever still reads is to close his reader. */
export async function connectReader(settings: ConnectionSettings, isOver: () => boolean): Promise<KafkaChangelogReader> {
  const reader = new KafkaChangelogReader(settings, isOver)
  await reader.connect()
  return reader
}

export class KafkaChangelogReader implements ChangelogReader {
  readonly #settings: ConnectionSettings
  readonly #client: NativeConsumer
  readonly #isOver: () => boolean
  #polling = false
  #closing: Promise<void> | undefined
  /** Resolves when it was closed. */
  readonly closed: Promise<void>
  #hasClosed: (() => void) | undefined

  constructor(settings: ConnectionSettings, isOver: () => boolean) {
    this.#settings = settings
    this.#isOver = isOver
    this.closed = new Promise((resolve) => (this.#hasClosed = resolve))
    this.#client = new native.KafkaConsumer(
      {
        'fetch.queue.backoff.ms': 10,
        'fetch.wait.max.ms': 50,
        'check.crcs': true,
        'queued.max.messages.kbytes': 65_536,
        'fetch.message.max.bytes': 4_194_304,
        ...baseConfig(settings),
        // The client wants a group id; nothing joins or commits under it.
        'group.id': `${settings.clientId}-reader`,
        'enable.auto.commit': false,
        'enable.auto.offset.store': false,
        'isolation.level': 'read_committed',
        'enable.partition.eof': true,
      },
      { 'auto.offset.reset': 'error' },
    )
  }

  async connect(): Promise<void> {
    await connect(this.#client, this.#settings, 'changelog reader')
  }

  assign(positions: readonly TopicPartitionOffset[]): void {
    invariant(!this.#polling, 'GC3', { assign: 'with a poll outstanding' })
    try {
      if (positions.length === 0) this.#client.unassign()
      else this.#client.assign(positions.map(({ topic, partition, offset }) => ({ topic, partition, offset })))
    } catch (error) {
      throw brokerError('read', error)
    }
  }

  poll(maxRecords: number, timeoutMs: number): Promise<PollResult> {
    invariant(!this.#polling, 'GC3', { poll: 'second' })
    if (this.#isOver()) return Promise.reject(closedError('read'))
    this.#polling = true
    return new Promise<PollResult>((resolve, reject) => {
      this.#client.getClient().consume(timeoutMs, maxRecords, true, (error, messages, ends) => {
        this.#polling = false
        if (error) reject(brokerError('read', error))
        else resolve(toPollResult(messages, ends))
      })
    })
  }

  close(): Promise<void> {
    return (this.#closing ??= disconnect(this.#client).then(() => this.#hasClosed?.()))
  }
}
