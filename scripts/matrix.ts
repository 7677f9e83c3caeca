/**
 * `npm run matrix`: the broker suites and a short chaos run against each supported version of Kafka, one after the other; then one table.
 *
 *   npm run matrix                                   all versions, both suites
 *   npm run matrix -- --versions 4.0.2,4.4.0         these versions
 *   npm run matrix -- --files test/broker/provider.test.ts test/broker/crash.test.ts
 *   npm run matrix -- --only chaos --minutes 3 --seed 7
 *
 * Owns: the order of the runs, the table, the exit code: 0 when everything passed, 1 when something did not, 130 after Ctrl-C.
 * Does not own: brokers (each run starts its own), what a run checks.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import Table from 'cli-table3'
import { Command, Option } from 'commander'
import { provideDistribution } from './broker-provider/distribution.ts'
import { DEFAULT_KAFKA_VERSION } from './broker-provider/types.ts'
import { totalsOf } from './test-run/totals.mjs'

/** The oldest and the newest that are supported, and the one that everything else runs on. The newest patch of 4.0 that Maven has whole. */
const VERSIONS = ['4.0.2', DEFAULT_KAFKA_VERSION, '4.4.0']
const INTERRUPTED_EXIT_CODE = 130

interface MatrixOptions {
  readonly versions: string
  readonly files?: readonly string[]
  readonly only?: 'broker' | 'chaos'
  readonly seed: string
  readonly minutes: string
}

interface Row {
  readonly version: string
  readonly suite: string
  readonly result: string
  readonly isGood: boolean
  readonly seconds: number
}

const root = fileURLToPath(new URL('..', import.meta.url))
const options = new Command('npm run matrix --')
  .description('Runs the broker suites and a short chaos run against each supported version of Kafka.')
  .option('--versions <list>', 'Apache Kafka versions, with commas', VERSIONS.join(','))
  .option('--files <files...>', 'these broker suites only')
  .addOption(new Option('--only <suite>', 'one of the two').choices(['broker', 'chaos']))
  .option('--seed <number>', 'of the chaos run', '1')
  .option('--minutes <number>', 'of the chaos run', '1')
  .parse()
  .opts<MatrixOptions>()

let current: ChildProcess | undefined
let isInterrupted = false
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => {
    isInterrupted = true
    current?.kill(signal)
  })
}

/** Runs Node to its end, its output shown as it comes; -1 when it was ended by a signal. */
function run(args: readonly string[], version: string): Promise<number> {
  const { KAFKA_BROKERS: _theirs, ...env } = process.env
  return new Promise((resolve, reject) => {
    // Its own session: Ctrl-C in the terminal reaches it once, through us.
    const child = spawn(process.execPath, args, {
      cwd: root,
      env: { UV_THREADPOOL_SIZE: '24', ...env, MILLRACE_KAFKA_VERSION: version },
      stdio: ['ignore', 'inherit', 'inherit'],
      detached: true,
    })
    current = child
    child.once('error', reject)
    child.once('close', (code) => {
      current = undefined
      resolve(code ?? -1)
    })
  })
}

async function brokerSuites(version: string): Promise<Omit<Row, 'version' | 'seconds'>> {
  const folder = mkdtempSync(join(tmpdir(), 'millrace-matrix-'))
  try {
    const report = join(folder, 'report.json')
    const vitest = join(root, 'node_modules', 'vitest', 'vitest.mjs')
    const flags = ['run', '--project', 'broker', '--reporter=default', '--reporter=json', `--outputFile.json=${report}`]
    const code = await run([vitest, ...flags, ...(options.files ?? [])], version)
    const { passed, failed, skipped } = totalsOf(jsonIn(report), code)
    return {
      suite: 'broker',
      result: `${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}`,
      isGood: code === 0 && failed === 0,
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

async function chaosRun(version: string): Promise<Omit<Row, 'version' | 'seconds'>> {
  const { seed, minutes } = options
  const flags = ['--seed', seed, '--minutes', minutes, '--kafka', version]
  const code = await run(['--import', 'tsx', 'test/chaos/main.ts', ...flags], version)
  return {
    suite: `chaos, seed ${seed}, ${minutes} min`,
    result: code === 0 ? 'no violation' : `failed (exit code ${code})`,
    isGood: code === 0,
  }
}

function jsonIn(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, 'utf8'))
  } catch {
    return null
  }
}

async function measured(version: string, suite: (version: string) => Promise<Omit<Row, 'version' | 'seconds'>>): Promise<Row> {
  const start = performance.now()
  const row = await suite(version)
  return { version, ...row, seconds: Math.round((performance.now() - start) / 1_000) }
}

function print(rows: readonly Row[]): void {
  const table = new Table({ head: ['Kafka', 'suite', 'result', 's'], style: { head: [], border: [] } })
  for (const { version, suite, result, seconds } of rows) table.push([version, suite, result, String(seconds)])
  console.log(table.toString())
}

const rows: Row[] = []
for (const version of options.versions.split(',').map((text) => text.trim())) {
  try {
    await provideDistribution(version, (line) => {
      console.log(`  ... ${line}`)
    })
  } catch (error) {
    rows.push({
      version,
      suite: 'set-up',
      result: error instanceof Error ? (error.message.split('\n')[0] ?? '') : String(error),
      isGood: false,
      seconds: 0,
    })
    continue
  }
  for (const suite of [options.only === 'chaos' ? [] : [brokerSuites], options.only === 'broker' ? [] : [chaosRun]].flat()) {
    if (isInterrupted) break
    console.log(`\nKafka ${version}: ${suite === chaosRun ? 'chaos' : 'broker suites'}`)
    rows.push(await measured(version, suite))
  }
}
print(rows)
process.exitCode = isInterrupted ? INTERRUPTED_EXIT_CODE : rows.every(({ isGood }) => isGood) ? 0 : 1
