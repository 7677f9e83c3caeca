/** What users write: the configuration of `createApp` and of `millrace.config.ts`. */
import type { ByteSize, Duration } from '../common/duration.ts'
import type { Logger } from '../common/ports.ts'
import type { ClientSettings, SaslMechanism } from './options.ts'

export interface SaslConfig {
  readonly mechanism: SaslMechanism
  readonly username: string
  readonly password: string
}

/** Options of one worker. `docs/config.md` lists each with its default, limits and environment name. */
export interface Config {
  readonly brokers: string | readonly string[]
  /** Prefix of group, transactional ids and internal topics. Default: the topology's name. Changing it starts anew. */
  readonly applicationId?: string
  /** Name of this machine among all that run the application. Default: the host name. */
  readonly instance?: string
  /** Number of this worker within its instance. Two live workers never share one. Default 0. */
  readonly slot?: number
  /** Folder of the local state. Default `.millrace/state`. */
  readonly stateDir?: string
  /** `keep` (default): the place in the group is kept for a quick restart. `leave`: other workers take over at once. */
  readonly onClose?: 'keep' | 'leave'
  /** Longest graceful stop. Default 30 s. */
  readonly shutdownTimeout?: Duration

  /** Default 100 ms. */
  readonly commitInterval?: Duration
  /** Default 10 s. Plus 10 s at most `sessionTimeout`. */
  readonly transactionTimeout?: Duration
  /** Transactional producers used in turn. Default 2. */
  readonly producerRingSize?: number
  /** Default 20,000. */
  readonly transactionMaxRecords?: number
  /** Default 16 MiB. */
  readonly transactionMaxBytes?: ByteSize
  /** Default 8 MiB. */
  readonly recordMaxOutputBytes?: ByteSize

  /** Default 1,000. */
  readonly maxPollRecords?: number
  /** Default 30 s. */
  readonly sessionTimeout?: Duration
  /** Default 1 s. */
  readonly heartbeatInterval?: Duration
  /** Default 60 s. */
  readonly maxPollInterval?: Duration
  /** Default 6 h. */
  readonly offsetKeepAlive?: Duration
  /** Default 30 s. */
  readonly metadataPoll?: Duration
  /** How long errors that may pass are retried. Default 5 min. */
  readonly taskTimeout?: Duration
  /** An input's position lies outside of its log: stop (default), or go on at the log's start or end, counted. */
  readonly offsetOutOfRange?: 'fail' | 'earliest' | 'latest'
  /** A state file has another format version: refuse it (default), or rebuild it from the changelog. */
  readonly storeFormat?: 'fail' | 'rebuild'
  /** A changelog is gone although its tasks have committed: refuse to start (default), or begin with an empty store. */
  readonly changelogMissing?: 'fail' | 'recreate'
  /** The cleanup policy of an internal topic was changed: refuse to start (default), or set it back. */
  readonly changelogSettings?: 'fail' | 'repair'
  /** A batch of an input does not fit its checksum: stop (default), or do not check: damaged bytes reach the codecs and `onError`. */
  readonly corruptedRecord?: 'fail' | 'deliver'

  /** For each task. Default 8 MiB. */
  readonly memtableBytes?: ByteSize
  /** Committed changes of all tasks of the worker that wait in memory. Default 64 MiB. */
  readonly memoryBudget?: ByteSize
  /** For each task. Default 10,000. */
  readonly cacheEntries?: number
  /** Default 10 s. */
  readonly stateFlushInterval?: Duration
  /** Default 15 s. */
  readonly lockTimeout?: Duration
  /** A restore without progress for this long stops the worker. Default 5 min. */
  readonly restoreTimeout?: Duration
  /** Of internal topics; -1 (default) is the broker's own. */
  readonly replicationFactor?: number

  readonly logLevel?: 'debug' | 'info' | 'warn' | 'error'
  /** Time between status lines. Default 5 s. */
  readonly statusInterval?: Duration
  readonly security?: { readonly ssl?: boolean; readonly sasl?: SaslConfig }
  /** Takes what the worker says; without one it is silent. Only for `createApp`. */
  readonly logger?: Logger
  /** Passed to the Kafka client as they are; an option millrace owns is refused by name. */
  readonly kafka?: ClientSettings
}

type FileConfig = Omit<Partial<Config>, 'slot' | 'logger'> & { readonly workers?: number }

/** What `millrace.config.ts` exports. */
export interface ConfigFile extends FileConfig {
  /** Options for one topology, by its name. They win over those beside this one. */
  readonly topologies?: Readonly<Record<string, FileConfig>>
}

export type Environment = Readonly<Record<string, string | undefined>>

/**
 * `millrace.config.ts`: `export default defineConfig({ ... })`. A flag wins over the environment, the environment over this file, this file over the default.
 * The function form is called once, where the file is imported, with the environment of the process.
 * @example
 * export default defineConfig((env) => ({ brokers: env['KAFKA_BROKERS'] ?? 'localhost:9092', topologies: { points: { workers: 4 } } }))
 */
export function defineConfig(config: ConfigFile | ((env: Environment) => ConfigFile)): ConfigFile {
  // The one read of the environment outside the command line: the function's result is the file, so it is needed here.
  return typeof config === 'function' ? config(process.env) : config
}
