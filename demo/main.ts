/**
 * `npm run demo`: order events with resends go through a plain consumer and through millrace; both are killed with -9; an independent reader counts.
 *
 * Owns: the broker, the temporary folder, signals, the exit code: 0 when nothing was duplicated or lost and everything went as planned, else 1; 130
 * after Ctrl-C. Does not own: the course of events (`show.ts`).
 * Invariant: when it ends, no process and no folder of it is left, except the folder of logs after a failure or with `--keep`.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pc from 'picocolors'
import { BrokerUnavailableError, provideBroker, type ProvidedBroker } from '../scripts/broker-provider/provider.ts'
import { endAll } from './children.ts'
import { Display } from './display.ts'
import { parseOptions } from './options.ts'
import { failures, jsonOf, tableOf } from './report.ts'
import { DemoError, Show } from './show.ts'

const INTERRUPTED_EXIT_CODE = 130
/** A lone broker that a busy machine holds up for ten seconds must not be taken for dead by its own controller: nobody could take over. */
const BROKER_PROPERTIES = { 'broker.session.timeout.ms': '60000' }

const options = parseOptions(process.argv.slice(2))
const display = new Display(process.stdout)
const stopped = new AbortController()
const folder = mkdtempSync(join(tmpdir(), 'millrace-demo-'))

const interrupted = new Promise<'interrupted'>((resolve) => {
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.on(signal, () => {
      if (stopped.signal.aborted) return
      display.stop()
      display.say(`${signal}: stopping everything`)
      resolve('interrupted')
    })
  }
})

let outputAtTheEnd = ''
let broker: ProvidedBroker | undefined
let show: Show | undefined
const work = demo()
// After an interruption its end is of no interest.
work.catch(() => undefined)
let exitCode = 1
/** Nothing has happened that a log could tell. */
let nothingToKeep = false
try {
  const ending = await Promise.race([work, interrupted])
  exitCode = ending === 'interrupted' ? INTERRUPTED_EXIT_CODE : ending
} catch (error) {
  display.stop()
  const isPlain = error instanceof DemoError || error instanceof BrokerUnavailableError
  nothingToKeep = isPlain
  process.stderr.write(
    `${pc.red('demo:')} ${error instanceof Error ? ((isPlain ? undefined : error.stack) ?? error.message) : String(error)}\n`,
  )
} finally {
  await cleanUp()
}
process.exit(exitCode)

async function demo(): Promise<number> {
  const { records, kills, rate, seed, brokers } = options
  display.say(pc.bold(`millrace demo: ${records} records, ${kills} kills of each side, ${rate} records/s, seed ${seed}`))
  const env = brokers === undefined ? process.env : { ...process.env, KAFKA_BROKERS: brokers }
  broker = await provideBroker({ nodes: 1, onProgress: (line) => display.say(line), serverProperties: BROKER_PROPERTIES }, env)
  show = new Show(options, broker, folder, display, stopped.signal)
  const outcome = await show.run()
  const problems = failures(outcome)
  const lines = [
    '',
    tableOf(outcome),
    ...outcome.verdict.examples.map((example) => `  ${example}`),
    ...problems.map((problem) => pc.red(`FAILED: ${problem}`)),
    ...(problems.length > 0
      ? [`To see it again: npm run demo -- --records ${records} --kills ${kills} --rate ${rate} --seed ${seed} --keep`]
      : []),
    jsonOf(outcome),
  ]
  outputAtTheEnd = `${lines.join('\n')}\n`
  return problems.length === 0 ? 0 : 1
}

/** Processes first, then the broker, then the folder. The result is printed last, so that its JSON is the last line. */
async function cleanUp(): Promise<void> {
  const keepsFolder = !nothingToKeep && (options.keep || exitCode === 1)
  stopped.abort()
  for (const step of [endAll, () => show?.close(), () => broker?.stop()]) {
    try {
      await step()
    } catch (error) {
      process.stderr.write(`${pc.red('demo:')} cleaning up: ${error instanceof Error ? error.message : String(error)}\n`)
    }
  }
  if (keepsFolder) display.say(`logs, state and the points database are kept in ${folder}`)
  else rmSync(folder, { recursive: true, force: true, maxRetries: 5 })
  process.stdout.write(outputAtTheEnd)
}
