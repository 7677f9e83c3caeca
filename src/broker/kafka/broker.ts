/**
 * The real cluster behind the port. Owns the admin connection; everything else it opens belongs to the caller. `close` waits for readers and writes, which
 * may be in the hands of look-ups that nobody waits for (P5); consumers and producers are closed by the worker before.
 */
import { UnderWay } from '../../common/under-way.ts'
import { BrokerError, closedError } from '../../errors/broker-error.ts'
import type {
  Broker,
  BrokerAdmin,
  ChangelogReader,
  GroupConsumer,
  GroupConsumerOptions,
  ProducerOptions,
  TransactionalProducer,
} from '../port.ts'
import { KafkaAdmin } from './admin.ts'
import { baseConfig, connect, disconnect, type ConnectionSettings } from './connection.ts'
import { connectConsumer } from './consumer.ts'
import { brokerError, call } from './errors.ts'
import { CLOSE_WAIT_MS, endedWithin } from './native-calls.ts'
import { native } from './native.ts'
import { connectProducer } from './producer.ts'
import { connectReader } from './reader.ts'

export class KafkaBroker implements Broker {
  readonly admin: BrokerAdmin
  readonly #settings: ConnectionSettings
  readonly #underWay = new UnderWay()
  #closed = false

  constructor(settings: ConnectionSettings) {
    this.#settings = settings
    this.admin = new KafkaAdmin(settings)
  }

  connectConsumer(options: GroupConsumerOptions): Promise<GroupConsumer> {
    return connectConsumer(this.#settings, options)
  }

  connectProducer(options: ProducerOptions): Promise<TransactionalProducer> {
    return connectProducer(this.#settings, options)
  }

  async writeRecord(topic: string, partition: number, key: Buffer, value: Buffer, timeoutMs: number): Promise<void> {
    if (this.#closed) throw closedError('produce')
    await this.#underWay.add(this.#write(topic, partition, key, value, timeoutMs))
  }

  async #write(topic: string, partition: number, key: Buffer, value: Buffer, timeoutMs: number): Promise<void> {
    let refusal: BrokerError | undefined
    const producer = new native.Producer({ ...baseConfig(this.#settings), 'enable.idempotence': true, dr_cb: true }, {})
    await connect(producer, this.#settings, 'task table writer')
    try {
      const delivered = new Promise<void>((resolve) => {
        producer.on('delivery-report', (error: unknown) => {
          if (error) refusal = brokerError('produce', error)
          resolve()
        })
      })
      producer.setPollInBackground(true)
      const code = producer.getClient().produce(topic, partition, value, key, 0, undefined, undefined)
      if (code !== 0) throw new BrokerError('produce', code, `the record for ${topic}[${partition}] was refused by the client`)
      await call('flush', (done) => {
        producer.flush(timeoutMs, done)
      })
      await delivered
      if (refusal !== undefined) throw refusal
    } finally {
      await disconnect(producer, 100)
    }
  }

  async connectReader(): Promise<ChangelogReader> {
    if (this.#closed) throw closedError('connect')
    const connecting = connectReader(this.#settings, () => this.#closed)
    this.#underWay.add(connecting.then((reader) => reader.closed)).catch(() => undefined) // for whoever connects
    return connecting
  }

  async close(): Promise<void> {
    this.#closed = true
    await this.admin.close()
    await endedWithin(this.#underWay, CLOSE_WAIT_MS)
  }
}
