/** The port of the broker provider: what demo, tests and bench ask for, and what they get. Independent of the way the broker came to be. */

export interface BrokerOptions {
  /** Number of brokers of the cluster. With three, internal topics have replication 3 and `min.insync.replicas` 2. */
  readonly nodes: 1 | 3
  /** Apache Kafka version of a broker that is started (ignored with KAFKA_BROKERS). Default: `DEFAULT_KAFKA_VERSION`. */
  readonly version?: string
  /** Gets one line per step that takes time. */
  readonly onProgress?: (line: string) => void
  /** Defaults of new topics, by topic configuration name, e.g. `{ 'retention.ms': '60000' }` (ignored with KAFKA_BROKERS). */
  readonly topicDefaults?: Readonly<Record<string, string>>
  /** Broker properties; they win over ours (ignored with KAFKA_BROKERS). */
  readonly serverProperties?: Readonly<Record<string, string>>
  /** Heap of one JVM in MiB. Default: 512 for a single broker, 384 each of three. */
  readonly heapMiB?: number
}

export interface BrokerNode {
  readonly id: number
  /** Process id of a JVM broker that runs; undefined for the other kinds and while it is down. */
  readonly pid: number | undefined
  /** Sends the signal: `'SIGKILL'`, `'SIGTERM'`, `'SIGSTOP'`, `'SIGCONT'`. Resolves once a killed node is down. Refused with KAFKA_BROKERS. */
  kill(signal: NodeJS.Signals): Promise<void>
  /** Starts a killed node again on its old address and data; resolves when the whole cluster answers. */
  start(): Promise<void>
}

/**
 * How to run the Java tools of the distribution against this broker. Plain data, so that it can be handed to another process.
 * `bootstrap` is the address as the tools see it, which is another one inside a container.
 */
export type JavaTools =
  | { readonly via: 'classpath'; readonly java: string; readonly classpath: string; readonly version: string; readonly bootstrap: string }
  | { readonly via: 'container'; readonly containerId: string; readonly version: string; readonly bootstrap: string }

export type BrokerKind = 'external' | 'docker' | 'jvm'

export interface ProvidedBroker extends AsyncDisposable {
  /** `host:port[,host:port]`, for `bootstrap.servers`. */
  readonly brokers: string
  readonly kind: BrokerKind
  /** Kafka version; undefined for an external broker. */
  readonly version: string | undefined
  /** From the call to the first answer of the whole cluster. */
  readonly startUpMs: number
  readonly nodes: readonly BrokerNode[]
  /** Undefined when the tools cannot be had (an external broker without Java or Maven). */
  readonly java: JavaTools | undefined
  /** Ends what was started and removes its data. Safe to call twice. */
  stop(): Promise<void>
}

export const DEFAULT_KAFKA_VERSION = '4.3.1'

/** No broker could be had; the message says what to do. */
export class BrokerUnavailableError extends Error {
  override readonly name = 'BrokerUnavailableError'
}
