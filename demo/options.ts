/** Command line of the demo. */
import { randomInt } from 'node:crypto'
import { Command, InvalidArgumentError } from 'commander'

export interface DemoOptions {
  readonly records: number
  /** kill -9 of each side. */
  readonly kills: number
  readonly seed: number
  /** `host:port[,host:port]`; undefined: one is started. */
  readonly brokers: string | undefined
  /** Records a second. */
  readonly rate: number
  readonly keep: boolean
}

const DEFAULT_RECORDS = 200_000
const DEFAULT_KILLS = 3
/** Leaves both sides, the broker and the loader some air on two cores. */
const MOST_BY_DEFAULT = 3_000
/** A kill needs this much of the load: the plain consumer stands still for a session time-out after each. */
const MS_PER_KILL = 6_000
const MS_BESIDE_KILLS = 12_000

/** Records a second: fast enough to be over soon, slow enough that every kill finds both sides at work. */
export function defaultRate(records: number, kills: number): number {
  const shortestMs = MS_BESIDE_KILLS + kills * MS_PER_KILL
  return Math.max(1, Math.min(MOST_BY_DEFAULT, Math.floor((records * 1_000) / shortestMs)))
}

interface Parsed {
  readonly records: number
  readonly kills: number
  readonly seed?: number
  readonly brokers?: string
  readonly rate?: number
  readonly keep?: boolean
}

/** Ends the process after `--help` or a wrong option, as commander does. */
export function parseOptions(argv: readonly string[]): DemoOptions {
  const command = new Command('npm run demo --')
    .description(
      'Order events with resends go through a plain kafkajs consumer and through millrace; both are killed with -9 at random moments; an independent reader counts.',
    )
    .option('--records <number>', 'order events to write', wholeNumber(1_000, 10_000_000), DEFAULT_RECORDS)
    .option('--kills <number>', 'kill -9 of each side', wholeNumber(0, 50), DEFAULT_KILLS)
    .option('--seed <number>', 'decides the events and the moments of the kills (default: random, printed)', wholeNumber(0, 2 ** 32 - 1))
    .option('--brokers <host:port,...>', 'cluster to use (default: KAFKA_BROKERS, else one is started)')
    .option('--rate <number>', 'records a second (default: chosen by the number of records and kills)', wholeNumber(1, 1_000_000))
    .option('--keep', 'keep the folder with logs, state and database, and the topics of a cluster that was not started here')
    .showHelpAfterError('(npm run demo -- --help shows the options)')
  const parsed = command.parse([...argv], { from: 'user' }).opts<Parsed>()
  return {
    records: parsed.records,
    kills: parsed.kills,
    seed: parsed.seed ?? randomInt(2 ** 32),
    brokers: parsed.brokers,
    rate: parsed.rate ?? defaultRate(parsed.records, parsed.kills),
    keep: parsed.keep ?? false,
  }
}

function wholeNumber(least: number, most: number): (text: string) => number {
  return (text) => {
    const value = Number(text)
    if (!/^\d+$/.test(text) || value < least || value > most)
      throw new InvalidArgumentError(`Give a whole number from ${least} to ${most}.`)
    return value
  }
}
