/** `npm run sim`: the runtime on simulated brokers, in every way we know to strike it. */
import { Command } from 'commander'
import Table from 'cli-table3'
import { parseDeviations, replay, runSeed, type Shape } from './explore.ts'
import { pairJobs, runJobs, type Failure, type Job, type JobResult } from './jobs.ts'
import { MUTANTS } from './mutants.ts'
import type { TopologyKind } from './run-once.ts'

const SEEDS_PER_JOB = 25
const SINGLE_JOBS = 32
const TWICE_EVERY = 20
const MUTANT_SEEDS = 600
const PROGRESS_MS = 5_000
const SHOWN_FAILURES = 10

interface Options {
  readonly exhaustive?: boolean
  readonly seeds?: number
  readonly seed?: number
  readonly mutants?: boolean
  readonly deviations?: string
  readonly workers: number
  readonly partitions: number
  readonly records: number
  readonly topology: TopologyKind
  readonly feed: number
  readonly transaction: number
  readonly ring: number
  readonly start: number
  readonly firsts?: number
  readonly trace?: boolean
}

const number = (text: string): number => {
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < 0) throw new Error(`'${text}' is no whole number`)
  return value
}
const program = new Command('npm run sim --')
  .description('The runtime on simulated brokers, struck in every way. Exit code 1 when a promise does not hold.')
  .option('--exhaustive', 'every single deviation, and every pair of a death or a lost answer with a rebalance or a death')
  .option('--firsts <n>', 'of the exhaustive run, pairs with the first n of these only', number)
  .option('--seeds <n>', 'so many seeds, each with a shape and rates of its own', number)
  .option('--seed <n>', 'one seed', number)
  .option('--mutants', 'broken runtimes: each must be caught')
  .option('--deviations <list>', 'one run with these deviations, as a failure prints them')
  .option('--workers <n>', 'of an exhaustive run, or one with deviations', number, 2)
  .option('--partitions <n>', 'likewise', number, 2)
  .option('--records <n>', 'likewise', number, 6)
  .option('--topology <kind>', 'likewise: dedupe or pass-through', 'dedupe')
  .option('--feed <ms>', 'likewise: between two records', number, 37)
  .option('--transaction <n>', 'likewise: records of a transaction at most', number, 1_000)
  .option('--ring <n>', 'likewise: transactional producers of a worker', number, 2)
  .option('--start <ms>', 'likewise: between the starts of two workers', number, 0)
  .option('--trace', 'print everything that happens')
  .parse()
const options = program.opts<Options>()
const shape: Shape = {
  workers: options.workers,
  partitions: options.partitions,
  records: options.records,
  topologyKind: options.topology,
  feedEveryMs: options.feed,
  transactionMaxRecords: options.transaction,
  producerRingSize: options.ring,
  startEveryMs: options.start,
}
const startedAt = performance.now()
const seconds = (): string => ((performance.now() - startedAt) / 1_000).toFixed(1)

if (options.deviations !== undefined || options.seed !== undefined) await one()
else if (options.mutants === true) await mutants()
else if (options.exhaustive === true) await exhaustive()
else if (options.seeds !== undefined) await seeds(options.seeds)
else program.help()

async function one(): Promise<void> {
  const onLine = options.trace === true ? (line: string) => console.log(line) : undefined
  const result =
    options.deviations === undefined
      ? await runSeed(options.seed as number, onLine).result
      : await replay(parseDeviations(options.deviations), shape, onLine)
  for (const violation of result.violations) console.log(`VIOLATION ${violation}`)
  console.log(
    `${result.violations.length} violations, ${result.events} events, ${result.virtualMs} ms of virtual time, ${result.trace.length} decisions`,
  )
  process.exitCode = result.violations.length === 0 ? 0 : 1
}

async function exhaustive(): Promise<void> {
  const singleJobs = Array.from({ length: SINGLE_JOBS }, (_, offset): Job => ({ kind: 'singles', offset, step: SINGLE_JOBS, shape }))
  const pairs = await pairJobs(shape)
  await explore([...singleJobs, ...pairs.slice(0, options.firsts ?? pairs.length)], 'schedules')
}

async function seeds(count: number): Promise<void> {
  const jobs: Job[] = []
  for (let from = 1; from <= count; from += SEEDS_PER_JOB)
    jobs.push({ kind: 'seeds', from, to: Math.min(count + 1, from + SEEDS_PER_JOB), twiceEvery: TWICE_EVERY })
  await explore(jobs, 'seeds')
}

async function explore(jobs: readonly Job[], what: string): Promise<void> {
  const total: JobResult = { runs: 0, events: 0, failures: [], fired: {} }
  let done = 0
  const progress = setInterval(() => {
    const leftS = done === 0 ? '?' : Math.round(((performance.now() - startedAt) / 1_000 / done) * (jobs.length - done))
    console.error(`  ${total.runs} ${what}, ${total.failures.length} failed, job ${done} of ${jobs.length}, about ${leftS} s left`)
  }, PROGRESS_MS)
  try {
    await runJobs(jobs, (_job, { runs, events, failures, fired }) => {
      done++
      total.runs += runs
      total.events += events
      total.failures.push(...failures)
      for (const [name, count] of Object.entries(fired)) total.fired[name] = (total.fired[name] ?? 0) + count
    })
  } finally {
    clearInterval(progress)
  }
  printFired(total.fired)
  for (const failure of total.failures.slice(0, SHOWN_FAILURES)) printFailure(failure)
  console.log(`${total.runs} ${what}, ${total.events} events, ${total.failures.length} violations, ${seconds()} s`)
  process.exitCode = total.failures.length === 0 ? 0 : 1
}

function printFired(fired: Readonly<Record<string, number>>): void {
  const table = new Table({ head: ['fault', 'fired'], style: { head: [], border: [] }, colAligns: ['left', 'right'] })
  for (const name of Object.keys(fired).sort()) table.push([name, fired[name]])
  console.log(table.toString())
}

function printFailure({ seed, deviations, shape: of, violations }: Failure): void {
  for (const violation of violations) console.log(`VIOLATION ${violation}`)
  const how = `--deviations ${deviations || "''"} --workers ${of.workers} --partitions ${of.partitions} --records ${of.records} --topology ${of.topologyKind} --feed ${of.feedEveryMs} --transaction ${of.transactionMaxRecords} --ring ${of.producerRingSize} --start ${of.startEveryMs}`
  console.log(`  to repeat it: npm run sim -- ${how} --trace${seed === undefined ? '' : ` (from --seed ${seed})`}`)
}

async function mutants(): Promise<void> {
  const table = new Table({
    head: ['mutant', 'breaks', 'caught by'],
    style: { head: [], border: [] },
    wordWrap: true,
    colWidths: [44, 16, 90],
  })
  const caught = new Map<number, string | undefined>()
  await runJobs(
    MUTANTS.map((_mutant, index): Job => ({ kind: 'mutant', index, seeds: MUTANT_SEEDS })),
    (job, { caughtBy }) => {
      if (job.kind !== 'mutant') return
      caught.set(job.index, caughtBy)
      console.error(`  ${caught.size} of ${MUTANTS.length}, ${seconds()} s: ${MUTANTS[job.index]?.name ?? ''}: ${caughtBy ?? 'SURVIVES'}`)
    },
  )
  MUTANTS.forEach(({ name, breaks }, index) => table.push([name, breaks, caught.get(index) ?? 'SURVIVES']))
  console.log(table.toString())
  const surviving = MUTANTS.filter((_mutant, index) => caught.get(index) === undefined)
  console.log(`${MUTANTS.length} mutants, ${surviving.length} survive, ${seconds()} s`)
  process.exitCode = surviving.length === 0 ? 0 : 1
}
