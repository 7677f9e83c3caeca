/**
 * From flags, environment, file and defaults to one frozen ResolvedConfig that knows where each value came from.
 *
 * Owns: precedence (code or flag > environment > file > default), refusal of unknown names, redaction of secrets.
 * Does not own: the options (`options.ts`), the rules across them (`rules.ts`), reading files (`cli/load-config.ts`).
 * Invariants:
 *  CF1. A ResolvedConfig that exists fits every check and every rule; otherwise one ConfigError lists everything that is wrong.
 *  CF2. Nothing that prints a ResolvedConfig (JSON, console.log, `configRows`) shows a secret.
 */
import { hostname } from 'node:os'
import { resolve as resolvePath } from 'node:path'
import { ConfigError } from '../errors/errors.ts'
import { isSecretClientSetting } from './client-settings.ts'
import type { Config, ConfigFile, Environment, SaslConfig } from './define.ts'
import { editDistance, nearestName } from './names.ts'
import type { ClientSettings, Option, OptionKey, OptionValues } from './options.ts'
import { NOT_YET_AVAILABLE, OPTION_BY_NAME, OPTION_KEYS, OPTIONS } from './options.ts'
import { brokenRules } from './rules.ts'

type SourceKind = 'code' | 'flag' | 'environment' | 'file' | 'default'
export interface ValueSource {
  readonly kind: SourceKind
  /** The flag, the variable or the place in the file; for a default, where it comes from. */
  readonly where: string
}

export interface ResolvedConfig extends Omit<OptionValues, 'ssl' | 'saslMechanism' | 'saslUsername' | 'saslPassword'> {
  readonly security: { readonly ssl: boolean; readonly sasl: SaslConfig | undefined }
  readonly sources: Readonly<Record<OptionKey, ValueSource>>
}

export interface ConfigInputs {
  /** By the names of the table (`commitInterval`); texts as they were typed. */
  readonly flags?: Readonly<Record<string, unknown>>
  /** The whole environment; variables that do not start with MILLRACE_ are ignored. */
  readonly env?: Environment
  readonly file?: ConfigFile | undefined
  /** Shown in messages. Default `millrace.config.ts`. */
  readonly fileName?: string | undefined
  /** Options given to `createApp`. They win over everything but flags. */
  readonly code?: Config | Partial<Config> | undefined
  /** Default of `applicationId`, and the key of the overrides in the file. */
  readonly topologyName?: string | undefined
  /** Default of `instance`. Default: the host name. */
  readonly host?: string
  /** What `stateDir` is relative to. Default: the working directory. */
  readonly directory?: string
}

interface Candidate {
  readonly value: unknown
  readonly source: ValueSource
}

/** Everything found out about a set of inputs, also when it is not good enough to run. */
export interface ConfigReport {
  readonly values: Partial<OptionValues>
  readonly sources: Readonly<Partial<Record<OptionKey, ValueSource>>>
  readonly problems: readonly string[]
}

/** Throws ConfigError with every problem: unknown names (with the nearest one), refused values, broken rules, what is missing. */
export function resolveConfig(inputs: ConfigInputs): ResolvedConfig {
  const { values, sources, problems } = reportConfig(inputs)
  if (problems.length > 0) throw configError(problems)
  const { ssl, saslMechanism, saslUsername, saslPassword, ...rest } = values as OptionValues
  const sasl =
    saslMechanism === undefined || saslUsername === undefined || saslPassword === undefined
      ? undefined
      : Object.freeze({ mechanism: saslMechanism, username: saslUsername, password: saslPassword })
  return protect({
    ...rest,
    security: Object.freeze({ ssl, sasl }),
    sources: Object.freeze(sources) as Readonly<Record<OptionKey, ValueSource>>,
  })
}

/** The same configuration for another worker of the instance. */
export function withSlot(config: ResolvedConfig, slot: number): ResolvedConfig {
  return protect({ ...config, slot })
}

/** Checks and reads a few options alone, before the file and the topology are known. Throws ConfigError. */
export function resolveOptions<K extends OptionKey>(
  keys: readonly K[],
  inputs: Pick<ConfigInputs, 'flags' | 'env'>,
): Pick<OptionValues, K> {
  const { values, problems } = collect(inputs, keys)
  if (problems.length > 0) throw configError(problems)
  return values as Pick<OptionValues, K>
}

/** Like `resolveConfig`, but says what is wrong instead of throwing: for `millrace config`. */
export function reportConfig(inputs: ConfigInputs): ConfigReport {
  const { values, sources, problems, refused } = collect(inputs, OPTION_KEYS)
  return { values, sources, problems: [...unknownNames(inputs), ...problems, ...brokenRules(values as OptionValues, refused)] }
}

function configError(problems: readonly string[]): ConfigError {
  const message =
    problems.length === 1
      ? (problems[0] ?? '')
      : `${problems.length} options are wrong:\n${problems.map((problem) => `  - ${problem}`).join('\n')}`
  return new ConfigError(message, {
    code: 'CONFIG_INVALID',
    remedy: 'docs/config.md lists the options; `millrace config` prints the values in effect and where each comes from',
  })
}

function collect(
  inputs: ConfigInputs,
  keys: readonly OptionKey[],
): { values: Partial<OptionValues>; sources: Partial<Record<OptionKey, ValueSource>>; problems: string[]; refused: Set<OptionKey> } {
  const values: Partial<Record<OptionKey, unknown>> = {}
  const sources: Partial<Record<OptionKey, ValueSource>> = {}
  const problems: string[] = []
  const refused = new Set<OptionKey>()
  for (const key of keys) {
    const option: Option<unknown> = OPTIONS[key]
    const found = candidates(option, inputs)
    const chosen = option.kind === 'settings' ? mergeSettings(found) : found[0]
    if (chosen === undefined) {
      const preset = presetOf(key, inputs)
      values[key] = preset.value
      sources[key] = preset.source
      if (preset.problem !== undefined) {
        problems.push(preset.problem)
        refused.add(key)
      }
      continue
    }
    sources[key] = chosen.source
    const parsed = option.check.safeParse(typeof chosen.value === 'string' ? fromText(option, chosen.value) : chosen.value)
    if (parsed.success) {
      values[key] = key === 'stateDir' ? resolvePath(inputs.directory ?? process.cwd(), parsed.data as string) : freeze(parsed.data)
      continue
    }
    refused.add(key)
    for (const issue of parsed.error.issues) {
      // Client settings may hold a password, so only the name of the wrong one is shown.
      const secret = option.secret || option.kind === 'settings'
      const shown = secret ? ['the value', ...issue.path].join(' of ') : JSON.stringify(chosen.value)
      const what = issue.code === 'custom' ? issue.message : `${shown} is not ${option.wanted}`
      problems.push(`${option.name} (${chosen.source.where}): ${what}`)
      if (issue.code !== 'custom') break
    }
  }
  return { values: values as Partial<OptionValues>, sources, problems, refused }
}

/** All places that give the option a value, the strongest first. */
function candidates(option: Option<unknown>, inputs: ConfigInputs): Candidate[] {
  const fileName = inputs.fileName ?? 'millrace.config.ts'
  const overrides = inputs.topologyName === undefined ? undefined : inputs.file?.topologies?.[inputs.topologyName]
  const found: Candidate[] = []
  const add = (value: unknown, kind: SourceKind, where: string): void => {
    if (value !== undefined) found.push({ value, source: Object.freeze({ kind, where }) })
  }
  add(inputs.flags?.[option.name], 'flag', option.flag ?? option.name)
  add(valueAt(inputs.code, option.name), 'code', `${option.name} of createApp`)
  const fromEnvironment = inputs.env?.[option.env]
  // An empty variable is how compose files and shells say "not set".
  add(fromEnvironment === '' ? undefined : fromEnvironment, 'environment', option.env)
  if (option.inFile) {
    add(valueAt(overrides, option.name), 'file', `${fileName}, topologies.${inputs.topologyName ?? ''}`)
    add(valueAt(inputs.file, option.name), 'file', fileName)
  }
  return found
}

function valueAt(object: object | undefined, path: string): unknown {
  let value: unknown = object
  for (const part of path.split('.')) {
    if (typeof value !== 'object' || value === null) return undefined
    value = (value as Record<string, unknown>)[part]
  }
  return value
}

function presetOf(key: OptionKey, inputs: ConfigInputs): { value: unknown; source: ValueSource; problem?: string } {
  const option: Option<unknown> = OPTIONS[key]
  const source = (where: string): ValueSource => Object.freeze({ kind: 'default', where })
  switch (key) {
    case 'brokers':
      return {
        value: undefined,
        source: source('missing'),
        problem: `brokers: no value; give --brokers host:port, ${option.env}, or brokers in millrace.config.ts`,
      }
    case 'applicationId': {
      const name = inputs.topologyName
      const fits = name === undefined || option.check.safeParse(name).success
      return {
        value: name,
        source: source('name of the topology'),
        ...(fits
          ? {}
          : {
              problem: `applicationId: the name of the topology, ${JSON.stringify(name)}, is its default, but is not ${option.wanted}; give applicationId`,
            }),
      }
    }
    case 'instance':
      return { value: instanceFromHost(inputs.host ?? hostname()), source: source('host name') }
    case 'stateDir':
      return { value: resolvePath(inputs.directory ?? process.cwd(), option.default as string), source: source('default') }
    default:
      return { value: option.default, source: source('default') }
  }
}

/** The host name with everything replaced that an id may not hold. */
function instanceFromHost(host: string): string {
  const clean = host.replace(/[^a-zA-Z0-9._-]+/g, '-').slice(0, 150)
  return clean === '' ? 'local' : clean
}

function mergeSettings(found: readonly Candidate[]): Candidate | undefined {
  const strongest = found[0]
  if (strongest === undefined) return undefined
  const merged: Record<string, unknown> = {}
  for (const candidate of found.toReversed()) {
    const value = settingsFrom(candidate.value)
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return candidate
    Object.assign(merged, value)
  }
  return {
    value: merged,
    source: Object.freeze({ kind: strongest.source.kind, where: found.map((candidate) => candidate.source.where).join(' + ') }),
  }
}

/** `['a=1', 'b=true']` or `'a=1,b=true'` -> `{ a: 1, b: true }`; anything else unchanged, for the check to refuse. */
function settingsFrom(value: unknown): unknown {
  const parts = typeof value === 'string' ? value.split(',') : value
  if (!Array.isArray(parts)) return value
  const settings: Record<string, string | number | boolean> = {}
  for (const part of parts) {
    const at = typeof part === 'string' ? part.indexOf('=') : -1
    if (typeof part !== 'string' || at < 1) return value
    const text = part.slice(at + 1)
    settings[part.slice(0, at).trim()] =
      text === 'true' ? true : text === 'false' ? false : /^-?\d+(\.\d+)?$/.test(text) ? Number(text) : text
  }
  return settings
}

/** A text from the command line or the environment, as the kind of the option reads it. What does not fit stays a text, for the check to refuse. */
function fromText(option: Option<unknown>, text: string): unknown {
  switch (option.kind) {
    case 'number':
    case 'duration':
    case 'size':
      return /^-?\d+$/.test(text) ? Number(text) : text
    case 'switch':
      return /^(true|yes|on|1)$/i.test(text) ? true : /^(false|no|off|0)$/i.test(text) ? false : text
    case 'text':
    case 'list':
    case 'settings':
      return text
  }
}

function unknownNames(inputs: ConfigInputs): string[] {
  const problems: string[] = []
  for (const name of Object.keys(inputs.flags ?? {}))
    if (!OPTION_BY_NAME.has(name)) problems.push(unknownName(name, 'flags', OPTION_BY_NAME.keys()))
  if (inputs.code !== undefined) problems.push(...unknownKeys(inputs.code, 'createApp', ['logger'], () => true))
  const fileName = inputs.fileName ?? 'millrace.config.ts'
  if (inputs.file !== undefined) {
    const inFile = (key: OptionKey): boolean => OPTIONS[key].inFile
    problems.push(...unknownKeys(inputs.file, fileName, ['topologies'], inFile))
    for (const [topology, overrides] of Object.entries(inputs.file.topologies ?? {})) {
      problems.push(...unknownKeys(overrides, `${fileName}, topologies.${topology}`, [], inFile))
    }
  }
  const variables = new Set<string>(OPTION_KEYS.map((key) => OPTIONS[key].env))
  for (const name of Object.keys(inputs.env ?? {})) {
    if (!name.startsWith('MILLRACE_') || variables.has(name)) continue
    // Orchestrators set variables by the names of services (MILLRACE_SERVICE_HOST), so only what looks like a typing error is one.
    const nearest = nearestName(name, variables)
    if (nearest !== undefined && editDistance(name, nearest) <= 2)
      problems.push(`${name} (environment) is no option; did you mean ${nearest}?`)
  }
  return problems
}

/** Checks the names of an object of options, one level into `security` and `security.sasl` too. */
function unknownKeys(object: unknown, where: string, also: readonly string[], allowed: (key: OptionKey) => boolean, prefix = ''): string[] {
  if (typeof object !== 'object' || object === null || Array.isArray(object))
    return [`${where}${prefix === '' ? '' : `, ${prefix.slice(0, -1)}`}: expected an object with options`]
  const problems: string[] = []
  const names = [...OPTION_BY_NAME.keys()]
  for (const [own, value] of Object.entries(object)) {
    const name = prefix + own
    if (prefix === '' && also.includes(own)) continue
    const key = OPTION_BY_NAME.get(name)
    if (key !== undefined) {
      if (!allowed(key))
        problems.push(
          `${name} (${where}) belongs on the command line (${OPTIONS[key].flag ?? ''}) or in the environment (${OPTIONS[key].env}), not in a file`,
        )
      continue
    }
    if (names.some((known) => known.startsWith(`${name}.`))) {
      if (value !== undefined) problems.push(...unknownKeys(value, where, also, allowed, `${name}.`))
      continue
    }
    problems.push(unknownName(name, where, [...names.filter((known) => allowed(OPTION_BY_NAME.get(known) ?? 'brokers')), ...also]))
  }
  return problems
}

function unknownName(name: string, where: string, known: Iterable<string>): string {
  const planned = NOT_YET_AVAILABLE[name]
  if (planned !== undefined) return `${name} (${where}) is not available in this version: ${planned}`
  const nearest = nearestName(name, known)
  return `${name} (${where}) is no option${nearest === undefined ? '' : `; did you mean ${nearest}?`}`
}

const REDACTED = '[redacted]'

/** Client settings with secret values replaced. */
function redactSettings(settings: ClientSettings): ClientSettings {
  return Object.fromEntries(Object.entries(settings).map(([name, value]) => [name, isSecretClientSetting(name) ? REDACTED : value]))
}

/** The value of an option as it may be printed. */
export function printableValue(key: OptionKey, value: unknown): unknown {
  if (value === undefined) return undefined
  if (OPTIONS[key].secret) return REDACTED
  return key === 'kafka' ? redactSettings(value as ClientSettings) : value
}

function freeze<T>(value: T): T {
  return Object.freeze(value)
}

/** Freezes, and lets JSON and console.log see no secret. */
function protect(config: ResolvedConfig): ResolvedConfig {
  const printable = (): object => ({
    ...config,
    security: {
      ssl: config.security.ssl,
      sasl: config.security.sasl === undefined ? undefined : { ...config.security.sasl, password: REDACTED },
    },
    kafka: redactSettings(config.kafka),
  })
  return Object.freeze(
    Object.defineProperties(config, {
      toJSON: { value: printable, enumerable: false },
      [Symbol.for('nodejs.util.inspect.custom')]: { value: printable, enumerable: false },
    }),
  )
}
