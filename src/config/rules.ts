/** Rules across options. Each names both options with both values, and what would go wrong. */
import type { OptionKey, OptionValues } from './options.ts'
import { OPTIONS } from './options.ts'
import { durationText } from './units.ts'

/** The broker looks for transactions that timed out every 10 s (`transaction.abort.timed.out.transaction.cleanup.interval.ms`). */
const TRANSACTION_SCAN_INTERVAL_MS = 10_000

interface Rule {
  readonly keys: readonly [OptionKey, OptionKey]
  readonly holds: (values: OptionValues) => boolean
  /** The rule, in the names of the options. */
  readonly rule: string
  /** What would happen otherwise. */
  readonly why: string
}

const both = (values: OptionValues, first: OptionKey, second: OptionKey): string =>
  `${shown(values, first)} does not go with ${shown(values, second)}`

function shown(values: OptionValues, key: OptionKey): string {
  const value = values[key]
  return `${OPTIONS[key].name} ${OPTIONS[key].kind === 'duration' ? durationText(value as number) : JSON.stringify(value)}`
}

const RULES: readonly Rule[] = [
  {
    keys: ['transactionTimeoutMs', 'sessionTimeoutMs'],
    holds: (values) => values.transactionTimeoutMs + TRANSACTION_SCAN_INTERVAL_MS <= values.sessionTimeoutMs,
    rule: 'transactionTimeout plus 10 s (the broker looks for timed-out transactions that often) must be at most sessionTimeout',
    why: 'a worker that takes over would wait for the open transaction of the dead one',
  },
  {
    keys: ['commitIntervalMs', 'transactionTimeoutMs'],
    holds: (values) => values.commitIntervalMs < values.transactionTimeoutMs / 2,
    rule: 'commitInterval must be less than half of transactionTimeout',
    why: 'the broker would abort transactions that merely wait for their commit',
  },
  {
    keys: ['heartbeatIntervalMs', 'sessionTimeoutMs'],
    holds: (values) => values.heartbeatIntervalMs < values.sessionTimeoutMs / 3,
    rule: 'heartbeatInterval must be less than a third of sessionTimeout',
    why: 'two lost heartbeats would cost the worker its tasks',
  },
  {
    keys: ['sessionTimeoutMs', 'maxPollIntervalMs'],
    holds: (values) => values.sessionTimeoutMs <= values.maxPollIntervalMs,
    rule: 'maxPollInterval must be at least sessionTimeout',
    why: 'the Kafka client refuses to start',
  },
]

/** All rules as sentences, for the documentation. */
export const RULE_SENTENCES: readonly string[] = [
  ...RULES.map((rule) => `${rule.rule}: otherwise ${rule.why}.`),
  'security.sasl needs mechanism, username and password, or none of them.',
  'kafka settings named `sasl.*` do not go with security.sasl, and `security.protocol` does not go with security: both say how to connect.',
]

/** One sentence for each broken rule. Rules about a value that was refused already are left out. */
export function brokenRules(values: OptionValues, refused: ReadonlySet<OptionKey>): string[] {
  const broken: string[] = []
  for (const rule of RULES) {
    const [first, second] = rule.keys
    if (refused.has(first) || refused.has(second) || rule.holds(values)) continue
    broken.push(`${both(values, first, second)}: ${rule.rule}; otherwise ${rule.why}`)
  }
  const login = [values.saslMechanism, values.saslUsername, values.saslPassword]
  if (login.some((part) => part !== undefined) && login.some((part) => part === undefined)) {
    const missing = (['saslMechanism', 'saslUsername', 'saslPassword'] as const).filter(
      (key) => values[key] === undefined && !refused.has(key),
    )
    if (missing.length > 0)
      broken.push(
        `security.sasl is incomplete: ${missing.map((key) => OPTIONS[key].name).join(' and ')} missing; a login needs mechanism, username and password`,
      )
  }
  for (const name of refused.has('kafka') ? [] : Object.keys(values.kafka)) {
    const clash =
      (name.startsWith('sasl.') && login.some((part) => part !== undefined) && 'security.sasl') ||
      (name === 'security.protocol' && (values.ssl || login[0] !== undefined) && 'security')
    if (clash !== false) broken.push(`kafka ${name} does not go with ${clash}: both say how to connect; keep one of them`)
  }
  return broken
}
