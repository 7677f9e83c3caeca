/** Command line of the chaos suite. */
import { randomInt } from 'node:crypto'
import { Command, InvalidArgumentError } from 'commander'
import { FAULT_KINDS, type FaultKind } from './timeline.ts'

export interface ChaosOptions {
  readonly seed: number
  readonly minutes: number
  /** Input records a second. */
  readonly rate: number
  readonly partitions: number
  /** Worker processes. */
  readonly slots: number
  readonly faults: readonly FaultKind[]
  /** Exactly this many kill -9; undefined: as the timeline has them. */
  readonly kills: number | undefined
  /** Apache Kafka version; undefined: the default of the broker provider. */
  readonly kafka: string | undefined
  readonly nodes: 1 | 3
  /** The last line is one JSON object. */
  readonly json: boolean
  /** Leave the folder of logs and state, also after a good run. */
  readonly keep: boolean
}

export const CHAOS_DEFAULTS = { minutes: 3, rate: 1_000, partitions: 6, slots: 3, nodes: 3 } as const

interface Parsed {
  readonly seed?: number
  readonly minutes: number
  readonly rate: number
  readonly partitions: number
  readonly slots: number
  readonly faults?: readonly FaultKind[]
  readonly kills?: number
  readonly kafka?: string
  readonly nodes: 1 | 3
  readonly json?: boolean
  readonly keep?: boolean
}

/** Ends the process after `--help` or a wrong option, as commander does. */
export function parseOptions(argv: readonly string[]): ChaosOptions {
  const command = new Command('npm run chaos --')
    .description(
      'Workers on real brokers under a seeded timeline of faults; a separate process checks what they committed against a model.',
    )
    .option('--seed <number>', 'decides the events and the faults (default: random, printed)', wholeNumber(0, 2 ** 31 - 1))
    .option('--minutes <number>', 'length of the time with faults', decimal(0.2, 24 * 60), CHAOS_DEFAULTS.minutes)
    .option('--rate <number>', 'input records a second', wholeNumber(1, 100_000), CHAOS_DEFAULTS.rate)
    .option('--partitions <number>', 'partitions of the input, so many tasks', wholeNumber(1, 64), CHAOS_DEFAULTS.partitions)
    .option('--slots <number>', 'worker processes', wholeNumber(1, 16), CHAOS_DEFAULTS.slots)
    .option('--faults <list>', `of ${FAULT_KINDS.join(', ')} (default: all)`, faultList)
    .option('--kills <number>', 'exactly so many kill -9, at random moments', wholeNumber(0, 10_000))
    .option('--kafka <version>', 'Apache Kafka version')
    .option('--nodes <1|3>', 'brokers', nodeCount, CHAOS_DEFAULTS.nodes)
    .option('--json', 'the last line is one JSON object')
    .option('--keep', 'keep the folder of logs and state')
    .showHelpAfterError('(npm run chaos -- --help shows the options)')
  const parsed = command.parse([...argv], { from: 'user' }).opts<Parsed>()
  return {
    seed: parsed.seed ?? randomInt(2 ** 31),
    minutes: parsed.minutes,
    rate: parsed.rate,
    partitions: parsed.partitions,
    slots: parsed.slots,
    faults: parsed.faults ?? FAULT_KINDS,
    kills: parsed.kills,
    kafka: parsed.kafka,
    nodes: parsed.nodes,
    json: parsed.json ?? false,
    keep: parsed.keep ?? false,
  }
}

/** The one line that repeats a run. */
export function commandOf(options: ChaosOptions): string {
  const flags = [`--seed ${options.seed}`, `--minutes ${options.minutes}`]
  for (const name of ['rate', 'partitions', 'slots', 'nodes'] as const) {
    if (options[name] !== CHAOS_DEFAULTS[name]) flags.push(`--${name} ${options[name]}`)
  }
  if (options.faults.length !== FAULT_KINDS.length) flags.push(`--faults ${options.faults.join(',')}`)
  if (options.kills !== undefined) flags.push(`--kills ${options.kills}`)
  if (options.kafka !== undefined) flags.push(`--kafka ${options.kafka}`)
  return `npm run chaos -- ${flags.join(' ')}`
}

function wholeNumber(least: number, most: number): (text: string) => number {
  return (text) => {
    const value = Number(text)
    if (!/^\d+$/.test(text) || value < least || value > most)
      throw new InvalidArgumentError(`Give a whole number from ${least} to ${most}.`)
    return value
  }
}

function decimal(least: number, most: number): (text: string) => number {
  return (text) => {
    const value = Number(text)
    if (!/^\d+(\.\d+)?$/.test(text) || value < least || value > most)
      throw new InvalidArgumentError(`Give a number from ${least} to ${most}.`)
    return value
  }
}

function nodeCount(text: string): 1 | 3 {
  if (text === '1') return 1
  if (text === '3') return 3
  throw new InvalidArgumentError('Give 1 or 3.')
}

function faultList(text: string): FaultKind[] {
  return text
    .split(',')
    .map((name) => name.trim())
    .filter((name) => name !== '')
    .map((name) => {
      const kind = FAULT_KINDS.find((known) => known === name)
      if (kind === undefined) throw new InvalidArgumentError(`${name} is no fault; the faults are ${FAULT_KINDS.join(', ')}.`)
      return kind
    })
}
