/**
 * `npm test`: set-up, format check, lint, type check, build, then every suite; the same in CI.
 *
 *   npm test                         all of it
 *   npm test -- --tests-only ...     the suites alone; further arguments go to vitest
 *   npm test -- --project unit       vitest's own options, e.g. the suites that need no broker
 *
 * The last line is `N passed, N failed`: the tests of vitest's report and one for each step before them. Only Node built-ins: it runs before node_modules exists.
 */
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { constants } from 'node:os'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { seconds } from './bootstrap/console.mjs'
import { endLeftovers, findLeftovers, MARK } from './test-run/leftovers.mjs'
import { closingLine, totalsOf } from './test-run/totals.mjs'

const root = resolve(fileURLToPath(new URL('..', import.meta.url)))
const reportPath = join(root, '.millrace', 'test-report.json')
const totalsPath = join(root, '.millrace', 'test-totals.txt')
const LEFTOVER_GRACE_MS = 10_000
const LAST_WORDS_MS = 3_000

const args = process.argv.slice(2)
const testsOnly = args.includes('--tests-only')
const vitestArgs = args.filter((argument) => argument !== '--tests-only')
const needsBroker = !/(?:^| )--project[= ]unit(?: |$)/.test(vitestArgs.join(' '))

const mark = randomUUID()
const env = { ...process.env, [MARK]: mark }
const totals = { passed: 0, failed: 0, skipped: 0 }
/** @type {import('node:child_process').ChildProcess | null} */
let current = null
/** @type {NodeJS.Signals | null} */
let interrupted = null
for (const signal of /** @type {const} */ (['SIGINT', 'SIGTERM', 'SIGHUP'])) {
  process.on(signal, () => {
    interrupted = signal
    current?.kill(signal)
  })
}

/** @param {string} name */
function tool(name) {
  const [packageName, path] = /** @type {Record<string, [string, string]>} */ ({
    prettier: ['prettier', 'bin/prettier.cjs'],
    eslint: ['eslint', 'bin/eslint.js'],
    tsc: ['typescript', 'bin/tsc'],
    vitest: ['vitest', 'vitest.mjs'],
  })[name] ?? [name, '']
  return join(root, 'node_modules', packageName, path)
}

/**
 * @param {string[]} command arguments of Node @param {boolean} live whether the output is shown as it comes
 * @returns {Promise<{ code: number, output: string }>}
 */
function run(command, live) {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, command, {
      cwd: root,
      env,
      stdio: live ? ['ignore', 'inherit', 'inherit'] : ['ignore', 'pipe', 'pipe'],
    })
    current = child
    /** @type {Buffer[]} */
    const chunks = []
    child.stdout?.on('data', (chunk) => chunks.push(chunk))
    child.stderr?.on('data', (chunk) => chunks.push(chunk))
    const finish = (/** @type {number} */ code) => {
      current = null
      resolve({ code, output: Buffer.concat(chunks).toString('utf8') })
    }
    child.once('error', () => finish(127))
    child.once('close', (code, signal) => finish(exitCode(code, signal)))
    // A process that was left behind can hold the pipe open for ever: the end of the step is its exit, and a moment for its last words.
    child.once('exit', (code, signal) => setTimeout(() => finish(exitCode(code, signal)), LAST_WORDS_MS).unref())
  })
}

/** @param {number | null} code @param {NodeJS.Signals | null} signal */
function exitCode(code, signal) {
  return code ?? 128 + (signal === null ? 1 : constants.signals[signal])
}

/** One step, one line, one count. @param {string} name @param {string[]} command @param {boolean} [live] */
async function check(name, command, live = false) {
  if (interrupted !== null) return false
  const start = Date.now()
  if (process.stdout.isTTY !== true || live) process.stdout.write(`  ... ${name}\n`)
  const { code, output } = await run(command, live)
  const passed = code === 0
  if (!passed) process.stdout.write(output)
  process.stdout.write(`${passed ? '✓' : '✗'} ${name}  ${seconds(Date.now() - start)}${passed ? '' : `  (exit code ${code})`}\n`)
  totals[passed ? 'passed' : 'failed'] += 1
  return passed
}

async function runSuites() {
  if (interrupted !== null) return
  const start = Date.now()
  rmSync(reportPath, { force: true })
  const { code } = await run(
    [tool('vitest'), 'run', '--reporter=default', '--reporter=json', `--outputFile.json=${reportPath}`, ...vitestArgs],
    true,
  )
  const result = totalsOf(readReport(), code)
  totals.passed += result.passed
  totals.failed += result.failed
  totals.skipped += result.skipped
  for (const note of result.notes) process.stdout.write(`  ${note}\n`)
  process.stdout.write(`${result.failed === 0 ? '✓' : '✗'} suites  ${seconds(Date.now() - start)}  (${closingLine(result)})\n`)
}

function readReport() {
  try {
    return JSON.parse(readFileSync(reportPath, 'utf8'))
  } catch {
    return null
  }
}

async function checkLeftovers() {
  const leftovers = await findLeftovers(mark, LEFTOVER_GRACE_MS)
  for (const { pid, command } of leftovers) process.stdout.write(`  left running: process ${pid}: ${command.slice(0, 200)}\n`)
  endLeftovers(leftovers)
  process.stdout.write(`${leftovers.length === 0 ? '✓' : '✗'} no process left behind\n`)
  totals[leftovers.length === 0 ? 'passed' : 'failed'] += 1
}

mkdirSync(join(root, '.millrace'), { recursive: true })
rmSync(totalsPath, { force: true })
const isSetUp = await check(
  'set-up',
  [join(root, 'scripts', 'bootstrap.mjs'), '--no-build', ...(needsBroker ? ['--needs-broker'] : [])],
  true,
)
if (isSetUp) {
  if (!testsOnly) {
    await check('format', [tool('prettier'), '--check', '--log-level', 'warn', '.'])
    await check('lint', [tool('eslint'), '.', '--max-warnings', '0'])
    await check('types', [tool('tsc'), '-p', 'tsconfig.json', '--noEmit'])
    await check('build', [join(root, 'scripts', 'bootstrap.mjs'), '--quiet'])
  }
  await runSuites()
}
await checkLeftovers()
if (interrupted !== null) {
  totals.failed += 1
  process.stdout.write(`  ended by ${interrupted}\n`)
}
const line = closingLine(totals)
writeFileSync(totalsPath, `${line}\n`)
process.stdout.write(`${line}\n`)
process.exitCode = totals.failed === 0 ? 0 : 1
