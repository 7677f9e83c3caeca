/** The simulated brokers behind the port, for one process. */
import type {
  Broker,
  BrokerAdmin,
  ChangelogReader,
  GroupConsumer,
  GroupConsumerOptions,
  ProducerOptions,
  TransactionalProducer,
} from '../../../broker/port.ts'
import { closedError } from '../../../errors/broker-error.ts'
import type { SimCluster } from '../cluster/cluster.ts'
import { CODES } from '../cluster/refusal.ts'
import { never, type SimProcess } from '../process.ts'
import { SimAdmin } from './admin.ts'
import { Connection } from './connection.ts'
import { SimConsumer } from './consumer.ts'
import { SimProducer } from './producer.ts'
import { SimReader } from './reader.ts'

export class SimBroker implements Broker {
  readonly admin: BrokerAdmin
  readonly #process: SimProcess
  readonly #cluster: SimCluster
  readonly #metadataRefreshMs: number
  readonly #connection: Connection
  #closed = false

  constructor(process: SimProcess, cluster: SimCluster, metadataRefreshMs: number) {
    this.#process = process
    this.#cluster = cluster
    this.#metadataRefreshMs = metadataRefreshMs
    this.#connection = new Connection(process)
    this.admin = new SimAdmin(process, cluster)
  }

  async connectConsumer(options: GroupConsumerOptions): Promise<GroupConsumer> {
    if (!this.#process.survives('connect consumer')) return never()
    return new SimConsumer(options, this.#metadataRefreshMs, this.#process, this.#cluster)
  }

  async connectProducer(options: ProducerOptions): Promise<TransactionalProducer> {
    if (!this.#process.survives('connect producer')) return never()
    return new SimProducer(options, this.#process, this.#cluster)
  }

  async writeRecord(topic: string, partition: number, key: Buffer, value: Buffer, timeoutMs: number): Promise<void> {
    if (this.#closed) throw closedError('produce')
    if (!this.#process.survives('writeRecord:before')) return never()
    const record = { timestamp: this.#cluster.now(), key: Buffer.from(key), value: Buffer.from(value), headers: [] }
    // An unknown topic is waited for.
    const retryOn = [CODES.UNKNOWN_TOPIC_OR_PARTITION]
    await this.#connection.call({ operation: 'produce', name: 'Produce', timeoutMs, retryOn }, () =>
      this.#cluster.append(topic, partition, [record]),
    )
    if (!this.#process.survives('writeRecord:after')) return never()
  }

  async connectReader(): Promise<ChangelogReader> {
    if (this.#closed) throw closedError('connect')
    if (!this.#process.survives('connect reader')) return never()
    return new SimReader(this.#process, this.#cluster, () => this.#closed)
  }

  async close(): Promise<void> {
    if (this.#process.isDead) return never()
    this.#closed = true
    await this.admin.close()
  }
}
