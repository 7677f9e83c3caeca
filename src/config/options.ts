/**
 * The one table of options: name, unit, default, check, doc, environment name, flag. `docs/config.md`, `millrace config`, `run --help` and the checks are
 * made from it.
 *
 * The key of an entry is the resolved name, which ends in the unit (`commitIntervalMs`); `name` is what users write (`commitInterval: '100ms'`).
 * Rules across options live in `rules.ts`.
 */
import { z } from 'zod'
import type { ByteSize, Duration } from '../common/duration.ts'
import { durationMs, sizeBytes } from '../common/duration.ts'
import { OWNED_CLIENT_SETTINGS } from './client-settings.ts'
import { environmentName, kebabCase } from './names.ts'

export type ClientSettings = Readonly<Record<string, string | number | boolean>>
export type SaslMechanism = 'plain' | 'scram-sha-256' | 'scram-sha-512'

/** One value for each option. `ResolvedConfig` is this with `security` put together. */
export interface OptionValues {
  readonly brokers: readonly string[]
  readonly applicationId: string
  readonly instance: string
  readonly slot: number
  readonly workers: number
  readonly stateDir: string
  readonly onClose: 'keep' | 'leave'
  readonly shutdownTimeoutMs: number

  readonly commitIntervalMs: number
  readonly transactionTimeoutMs: number
  readonly producerRingSize: number
  readonly transactionMaxRecords: number
  readonly transactionMaxBytes: number
  readonly recordMaxOutputBytes: number

  readonly maxPollRecords: number
  readonly sessionTimeoutMs: number
  readonly heartbeatIntervalMs: number
  readonly maxPollIntervalMs: number
  readonly offsetKeepAliveMs: number
  readonly metadataPollMs: number
  readonly taskTimeoutMs: number
  readonly offsetOutOfRange: 'fail' | 'earliest' | 'latest'
  readonly corruptedRecord: 'fail' | 'deliver'

  readonly memtableBytes: number
  readonly memoryBudgetBytes: number
  readonly cacheEntries: number
  readonly stateFlushIntervalMs: number
  readonly lockTimeoutMs: number
  readonly restoreTimeoutMs: number
  readonly storeFormat: 'fail' | 'rebuild'
  readonly changelogMissing: 'fail' | 'recreate'
  readonly changelogSettings: 'fail' | 'repair'
  readonly replicationFactor: number

  readonly logLevel: 'debug' | 'info' | 'warn' | 'error'
  readonly logFormat: 'auto' | 'json' | 'pretty'
  readonly statusIntervalMs: number

  readonly ssl: boolean
  readonly saslMechanism: SaslMechanism | undefined
  readonly saslUsername: string | undefined
  readonly saslPassword: string | undefined
  readonly kafka: ClientSettings
}
export type OptionKey = keyof OptionValues

/** How a text from the command line or the environment is read. */
type OptionKind = 'text' | 'number' | 'duration' | 'size' | 'switch' | 'list' | 'settings'
export type OptionGroup = 'worker' | 'transactions' | 'consumer' | 'state' | 'logging' | 'connection'

export interface Option<T> {
  /** What users write in a file or in code. A dot is a nested object. */
  readonly name: string
  readonly group: OptionGroup
  readonly kind: OptionKind
  /** Of the resolved value. */
  readonly unit: string
  /** Undefined: required, optional, or taken from the surroundings, as `defaultText` says. */
  readonly default: T | undefined
  readonly defaultText: string
  readonly check: z.ZodType<T>
  /** Completes "... is not ". */
  readonly wanted: string
  readonly doc: string
  readonly env: string
  /** Undefined: secrets and nested objects have none. */
  readonly flag: string | undefined
  /** False: only the command line, the environment and code may set it. */
  readonly inFile: boolean
  readonly secret: boolean
  readonly choices: readonly string[] | undefined
}

interface Common {
  readonly name: string
  readonly group: OptionGroup
  readonly doc: string
  readonly inFile?: boolean
  readonly flag?: false
  readonly secret?: true
}

function option<T>(
  common: Common,
  own: Pick<Option<T>, 'kind' | 'unit' | 'default' | 'defaultText' | 'check' | 'wanted'> & { readonly choices?: readonly string[] },
): Option<T> {
  return Object.freeze({
    name: common.name,
    group: common.group,
    kind: own.kind,
    unit: own.unit,
    default: own.default,
    defaultText: own.defaultText,
    check: own.check,
    wanted: own.wanted,
    doc: common.doc,
    env: environmentName(common.name),
    flag: common.flag === false ? undefined : `--${kebabCase(common.name)}`,
    inFile: common.inFile ?? true,
    secret: common.secret ?? false,
    choices: own.choices,
  })
}

function quantity(
  kind: 'duration' | 'size',
  parse: (value: number | string) => number,
  preset: string,
  least: string,
  most: string,
  common: Common,
): Option<number> {
  const from = parse(least)
  const to = parse(most)
  const check = z.union([z.number(), z.string()]).transform((value, context): number => {
    try {
      const amount = parse(value)
      if (amount >= from && amount <= to) return amount
    } catch {
      // The table's own words name the option and the limits; the parser's do not.
    }
    context.addIssue({ code: 'invalid_value', values: [], input: value })
    return z.NEVER
  })
  const unit = kind === 'duration' ? 'ms' : 'bytes'
  const example =
    kind === 'duration' ? "a number of ms or a text such as '500ms', '30s', '5m'" : "a number of bytes or a text such as '64KiB', '16MiB'"
  return option<number>(common, {
    kind,
    unit,
    default: parse(preset),
    defaultText: preset,
    check,
    wanted: `${example}, from ${least} to ${most}`,
  })
}

const duration = (preset: string, least: string, most: string, common: Common): Option<number> =>
  quantity('duration', (value) => durationMs(value as Duration, ''), preset, least, most, common)

const size = (preset: string, least: string, most: string, common: Common): Option<number> =>
  quantity('size', (value) => sizeBytes(value as ByteSize, ''), preset, least, most, common)

function count(preset: number, least: number, most: number, unit: string, common: Common): Option<number> {
  return option<number>(common, {
    kind: 'number',
    unit,
    default: preset,
    defaultText: String(preset),
    check: z.number().int().min(least).max(most),
    wanted: `a whole number from ${least} to ${most}`,
  })
}

function choice<const T extends string>(preset: T, values: readonly [T, ...T[]], common: Common): Option<T> {
  return option<T>(common, {
    kind: 'text',
    unit: '',
    default: preset,
    defaultText: preset,
    check: z.enum(values),
    wanted: `one of ${values.join(', ')}`,
    choices: values,
  })
}

const ID = /^[a-zA-Z0-9._-]{1,150}$/
const ID_WANTED = '1 to 150 letters, digits, dots, underscores or dashes'
/** `host`, `host:port`, `[ipv6]:port`, each with an optional listener prefix (`SASL_SSL://`). */
const BROKER = /^(?:[A-Za-z_]+:\/\/)?(?:\[[0-9a-fA-F:.]+\]|[^\s,:/[\]]+)(?::\d{1,5})?$/

const brokers = z
  .union([z.string(), z.array(z.string())])
  .transform((value) =>
    (typeof value === 'string' ? value.split(',') : value)
      .flatMap((entry) => entry.split(','))
      .map((entry) => entry.trim())
      .filter((entry) => entry !== ''),
  )
  .pipe(z.array(z.string().regex(BROKER)).min(1))

const kafka = z.record(z.string(), z.union([z.string(), z.number(), z.boolean()])).superRefine((settings, context) => {
  for (const name of Object.keys(settings)) {
    const reason = OWNED_CLIENT_SETTINGS[name]
    if (reason !== undefined) context.addIssue({ code: 'custom', message: `the client setting ${name} belongs to millrace: ${reason}` })
  }
})

export const OPTIONS: { readonly [K in OptionKey]: Option<OptionValues[K]> } = {
  brokers: option(
    {
      name: 'brokers',
      group: 'connection',
      doc: 'Addresses of the Kafka brokers to start from; the rest of the cluster is found through them.',
    },
    {
      kind: 'list',
      unit: 'host:port',
      default: undefined,
      defaultText: 'required',
      check: brokers,
      wanted: "addresses such as 'localhost:9092' or 'broker-1:9092,broker-2:9092'",
    },
  ),
  ssl: option(
    {
      name: 'security.ssl',
      group: 'connection',
      flag: false,
      doc: 'Encrypts the connection. Certificates are client settings: `ssl.ca.location` and others in `kafka`.',
    },
    { kind: 'switch', unit: '', default: false, defaultText: 'false', check: z.boolean(), wanted: 'true or false' },
  ),
  saslMechanism: option<SaslMechanism | undefined>(
    { name: 'security.sasl.mechanism', group: 'connection', flag: false, doc: 'How the client logs in. Needs user name and password.' },
    {
      kind: 'text',
      unit: '',
      default: undefined,
      defaultText: 'no login',
      check: z.enum(['plain', 'scram-sha-256', 'scram-sha-512']),
      wanted: 'one of plain, scram-sha-256, scram-sha-512',
      choices: ['plain', 'scram-sha-256', 'scram-sha-512'],
    },
  ),
  saslUsername: option<string | undefined>(
    { name: 'security.sasl.username', group: 'connection', flag: false, doc: 'User name of the login.' },
    { kind: 'text', unit: '', default: undefined, defaultText: 'no login', check: z.string().min(1), wanted: 'a text' },
  ),
  saslPassword: option<string | undefined>(
    {
      name: 'security.sasl.password',
      group: 'connection',
      flag: false,
      secret: true,
      doc: 'Password of the login. Never printed, and no flag: process lists show those.',
    },
    { kind: 'text', unit: '', default: undefined, defaultText: 'no login', check: z.string().min(1), wanted: 'a text' },
  ),
  kafka: option<ClientSettings>(
    {
      name: 'kafka',
      group: 'connection',
      doc: 'Settings of the Kafka client (librdkafka), passed on as they are. Those of several places are merged by name. Settings that millrace owns are refused, see below.',
    },
    {
      kind: 'settings',
      unit: 'name=value',
      default: {},
      defaultText: 'none',
      check: kafka,
      wanted: 'names with texts, numbers or booleans as values',
    },
  ),

  applicationId: option(
    {
      name: 'applicationId',
      group: 'worker',
      doc: 'Prefix of the consumer group, the transactional ids and the internal topics. Another value starts anew, from no offsets and empty state.',
    },
    { kind: 'text', unit: '', default: undefined, defaultText: 'name of the topology', check: z.string().regex(ID), wanted: ID_WANTED },
  ),
  instance: option(
    {
      name: 'instance',
      group: 'worker',
      doc: 'Name of this machine or pod among all that run the application. Must stay the same over restarts and differ between machines: give it where host names are random (containers).',
    },
    { kind: 'text', unit: '', default: undefined, defaultText: 'host name', check: z.string().regex(ID), wanted: ID_WANTED },
  ),
  slot: count(0, 0, 9_999, '', {
    name: 'slot',
    group: 'worker',
    inFile: false,
    doc: 'Number of the worker within its instance; `run --workers N` uses this one and the N - 1 after it.',
  }),
  workers: count(1, 1, 256, 'processes', {
    name: 'workers',
    group: 'worker',
    doc: 'Worker processes that `run` supervises. Ignored by `createApp`, which is one worker.',
  }),
  stateDir: option(
    {
      name: 'stateDir',
      group: 'worker',
      doc: 'Folder of the local state. Losing it costs a restore from the changelogs, never data. Relative to the working directory.',
    },
    { kind: 'text', unit: 'path', default: '.millrace/state', defaultText: '.millrace/state', check: z.string().min(1), wanted: 'a path' },
  ),
  onClose: choice('keep', ['keep', 'leave'], {
    name: 'onClose',
    group: 'worker',
    doc: '`keep` holds the place in the group for a quick restart (until the session time-out); `leave` hands the tasks over at once, for scaling down.',
  }),
  shutdownTimeoutMs: duration('30s', '100ms', '1h', {
    name: 'shutdownTimeout',
    group: 'worker',
    doc: 'Longest graceful stop: last commit, hand-over, closing of the state. After it the process is ended; nothing is lost then, the next start restores more.',
  }),

  commitIntervalMs: duration('100ms', '1ms', '1h', {
    name: 'commitInterval',
    group: 'transactions',
    doc: 'Longest time a record waits for its commit under load. With a drained input the commit comes at once. Less than half of the transaction time-out.',
  }),
  transactionTimeoutMs: duration('10s', '1s', '15m', {
    name: 'transactionTimeout',
    group: 'transactions',
    doc: 'The broker aborts a transaction that is open longer. Plus 10 s (the scan interval of the broker) at most the session time-out, else a take-over waits for it.',
  }),
  producerRingSize: count(2, 1, 8, 'producers', {
    name: 'producerRingSize',
    group: 'transactions',
    doc: 'Transactional producers used in turn, so that a transaction need not wait for the markers of the one before. Each costs threads and connections.',
  }),
  transactionMaxRecords: count(20_000, 1, 10_000_000, 'records', {
    name: 'transactionMaxRecords',
    group: 'transactions',
    doc: 'Input records after which a transaction is committed early. Checked between records.',
  }),
  transactionMaxBytes: size('16MiB', '1KiB', '1GiB', {
    name: 'transactionMaxBytes',
    group: 'transactions',
    doc: 'Output bytes after which a transaction is committed early. Checked between records.',
  }),
  recordMaxOutputBytes: size('8MiB', '1KiB', '1GiB', {
    name: 'recordMaxOutputBytes',
    group: 'transactions',
    doc: 'Most that one input record may produce. A record above it goes the way of a record that cannot be processed (`onError`).',
  }),

  maxPollRecords: count(1_000, 1, 100_000, 'records', {
    name: 'maxPollRecords',
    group: 'consumer',
    doc: 'Most records taken from the client at once.',
  }),
  sessionTimeoutMs: duration('30s', '1s', '30m', {
    name: 'sessionTimeout',
    group: 'consumer',
    doc: 'Without heartbeats for this long a worker is taken for dead and its tasks move. A restart within it keeps them.',
  }),
  heartbeatIntervalMs: duration('1s', '50ms', '10m', {
    name: 'heartbeatInterval',
    group: 'consumer',
    doc: 'Time between heartbeats; less than a third of the session time-out. A member learns of a rebalance with its next heartbeat, so this is also the length of a hand-over.',
  }),
  maxPollIntervalMs: duration('60s', '1s', '24h', {
    name: 'maxPollInterval',
    group: 'consumer',
    doc: 'A worker that does not poll for this long (one record that takes minutes) loses its tasks. At least the session time-out.',
  }),
  offsetKeepAliveMs: duration('6h', '1s', '7d', {
    name: 'offsetKeepAlive',
    group: 'consumer',
    doc: 'Offsets of idle tasks are committed again this often (a quarter of the retention of the broker if that is less): the broker forgets them otherwise.',
  }),
  metadataPollMs: duration('30s', '100ms', '1h', {
    name: 'metadataPoll',
    group: 'consumer',
    doc: 'How often the client refreshes topic metadata, and the group is looked at for tasks without an owner.',
  }),
  taskTimeoutMs: duration('5m', '0ms', '24h', {
    name: 'taskTimeout',
    group: 'consumer',
    doc: 'How long errors that may pass (no broker, no leader) are retried before the worker stops.',
  }),

  offsetOutOfRange: choice('fail', ['fail', 'earliest', 'latest'], {
    name: 'offsetOutOfRange',
    group: 'consumer',
    doc: 'When records were deleted before they were processed (retention), or a topic was re-created: `fail` stops and names the range; `earliest` and `latest` go on at the start or the end of the log, with an error in the log and a count of what was passed over.',
  }),
  corruptedRecord: choice('fail', ['fail', 'deliver'], {
    name: 'corruptedRecord',
    group: 'consumer',
    doc: 'When a batch of an input does not fit its checksum: `fail` stops and says at which offset; `deliver` checks no checksums, so damaged bytes reach the codecs, and what they cannot read goes the way of `onError`.',
  }),

  memtableBytes: size('8MiB', '4KiB', '4GiB', {
    name: 'memtableBytes',
    group: 'state',
    doc: 'Committed changes of one task that wait in memory; above it they are written to disk.',
  }),
  memoryBudgetBytes: size('64MiB', '64KiB', '1024GiB', {
    name: 'memoryBudget',
    group: 'state',
    doc: 'Committed changes of all tasks of a worker that wait in memory: each task gets an equal share, if that is less than memtableBytes.',
  }),
  cacheEntries: count(10_000, 1, 100_000_000, 'entries', {
    name: 'cacheEntries',
    group: 'state',
    doc: 'Entries of the cache in front of the disk, for each task.',
  }),
  stateFlushIntervalMs: duration('10s', '1ms', '1h', {
    name: 'stateFlushInterval',
    group: 'state',
    doc: 'Committed changes are written to disk at least this often; less means a shorter restore after a crash.',
  }),
  lockTimeoutMs: duration('15s', '0ms', '10m', {
    name: 'lockTimeout',
    group: 'state',
    doc: 'How long to wait for another process to let go of the state of a task or of the slot.',
  }),
  restoreTimeoutMs: duration('5m', '1s', '24h', {
    name: 'restoreTimeout',
    group: 'state',
    doc: 'A restore without any progress for this long stops the worker.',
  }),
  storeFormat: choice('fail', ['fail', 'rebuild'], {
    name: 'storeFormat',
    group: 'state',
    doc: 'When a state file was written in another format version: `fail` refuses it and names both versions; `rebuild` moves it aside and restores from the changelog.',
  }),
  changelogMissing: choice('fail', ['fail', 'recreate'], {
    name: 'changelogMissing',
    group: 'state',
    doc: 'When a changelog is gone although its tasks have committed: `fail` refuses to start; `recreate` begins with an empty store, which forgets everything it knew (ids seen before pass again), with an error in the log.',
  }),
  changelogSettings: choice('fail', ['fail', 'repair'], {
    name: 'changelogSettings',
    group: 'state',
    doc: 'When the cleanup policy of an internal topic was changed: `fail` refuses to start with the difference; `repair` sets it back. Another partition count is always refused.',
  }),
  replicationFactor: option(
    {
      name: 'replicationFactor',
      group: 'state',
      doc: 'Copies of the internal topics when they are created. -1 takes the default of the broker.',
    },
    {
      kind: 'number',
      unit: 'replicas',
      default: -1,
      defaultText: '-1',
      check: z
        .number()
        .int()
        .refine((value) => value === -1 || (value >= 1 && value <= 32_767), {
          error: 'the number of replicas is -1 (default of the broker) or 1 and more',
        }),
      wanted: '-1 or a whole number from 1',
    },
  ),

  logLevel: choice('info', ['debug', 'info', 'warn', 'error'], { name: 'logLevel', group: 'logging', doc: 'Least level that is logged.' }),
  logFormat: choice('auto', ['auto', 'json', 'pretty'], {
    name: 'logFormat',
    group: 'logging',
    inFile: false,
    doc: '`pretty` writes for people, with a status line and progress bars on a terminal; `json` writes one object a line; `auto` is `pretty` on a terminal.',
  }),
  statusIntervalMs: duration('5s', '100ms', '1h', {
    name: 'statusInterval',
    group: 'logging',
    doc: 'Time between `status` lines of `run` where the output is not a terminal.',
  }),
}

export const OPTION_KEYS = Object.freeze(Object.keys(OPTIONS) as OptionKey[])

export const OPTION_GROUPS: Readonly<Record<OptionGroup, string>> = {
  connection: 'Connection',
  worker: 'Application and workers',
  transactions: 'Transactions',
  consumer: 'Consumer',
  state: 'State',
  logging: 'Logging',
}

/** Options of the public interface that this version does not have yet; their names are taken. */
export const NOT_YET_AVAILABLE: Readonly<Record<string, string>> = {
  membership: 'workers are static members',
  maxTaskIdle: 'inputs are taken as they come',
  http: 'health and metrics are read through createApp',
}

export const OPTION_BY_NAME: ReadonlyMap<string, OptionKey> = new Map(OPTION_KEYS.map((key) => [OPTIONS[key].name, key]))
