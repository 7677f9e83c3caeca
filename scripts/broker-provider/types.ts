/** The port of the broker provider: what demo, tests and bench ask for, and what they get. Independent of the way the broker came to be. */

export interface BrokerOptions {
  /** Number of brokers of the cluster. With three, internal topics have replication 3 and `min.insync.replicas` 2. */
  readonly nodes: 1 | 3
  /** Apache Kafka version of a broker that is started (ignored with KAFKA_BROKERS). Default: `defaultKafkaVersion()`. */
  readonly version?: string
  /** Gets one line per step that takes time. */
  readonly onProgress?: (line: string) => void
  /** Defaults of new topics, by topic configuration name, e.g. `{ 'retention.ms': '60000' }` (ignored with KAFKA_BROKERS). */
  readonly topicDefaults?: Readonly<Record<string, string>>
  /** Broker properties; they win over ours (ignored with KAFKA_BROKERS). */
  readonly serverProperties?: Readonly<Record<string, string>>
  /** Heap of one JVM in MiB. Default: 512 for a single broker, 384 each of three. */
  readonly heapMiB?: number
  /**
   * Puts something between the clients and the brokers. Called for each node before it starts, with the address at which its listener for clients will
   * be bound; returns the address that clients are told instead (a proxy's). Nothing but clients goes through it: the brokers among themselves, our own
   * checks and the Java tools use another listener. Called again, with another address, when a port was taken in the meantime. Refused with KAFKA_BROKERS.
   */
  readonly advertise?: (node: { readonly id: number; readonly address: string }) => Promise<string> | string
}

export interface BrokerNode {
  readonly id: number
  /** Process id of a JVM broker that runs; undefined for the other kinds and while it is down. */
  readonly pid: number | undefined
  /** Sends the signal: `'SIGKILL'`, `'SIGTERM'`, `'SIGSTOP'`, `'SIGCONT'`. Resolves once a killed node is down. Refused with KAFKA_BROKERS. */
  kill(signal: NodeJS.Signals): Promise<void>
  /**
   * Starts a killed node again on its old address and data. Resolves when every node that runs counts it as a member again and it is in sync in each of
   * its partitions that has a leader; a stopped (paused) node is not asked.
   */
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
  /** The same brokers, past what `advertise` put between: for loaders and verifiers. Equal to `brokers` where nothing is between. */
  readonly directBrokers: string
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

/** What is started where no version is asked for: `MILLRACE_KAFKA_VERSION` of the environment, else `DEFAULT_KAFKA_VERSION`. */
export function defaultKafkaVersion(env: NodeJS.ProcessEnv = process.env): string {
  const named = env['MILLRACE_KAFKA_VERSION']?.trim()
  return named === undefined || named === '' ? DEFAULT_KAFKA_VERSION : named
}

/** No broker could be had; the message says what to do. */
export class BrokerUnavailableError extends Error {
  override readonly name = 'BrokerUnavailableError'
}
