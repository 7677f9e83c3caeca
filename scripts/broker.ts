/**
 * `npm run broker -- start|stop|status [--nodes 1|3] [--version X.Y.Z]`: one broker that keeps running for a person.
 * The version may also be named by `MILLRACE_KAFKA_VERSION`.
 *
 * `start` leaves a process behind on purpose (this file with `serve`), which owns the broker; its process id and the address are in
 * `.millrace/broker.json`. `stop` ends that process by its id, and the broker and its data go with it.
 */
import { execFileSync, spawn } from 'node:child_process'
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Command, Option } from 'commander'
import { processIsAlive } from './bootstrap/file-lock.mjs'
import { defaultKafkaVersion, provideBroker } from './broker-provider/provider.ts'

interface BrokerState {
  readonly pid: number
  readonly kind: string
  readonly brokers: string
  readonly version: string
  readonly nodes: number
  readonly startedAt: string
}

const script = fileURLToPath(import.meta.url)
const root = fileURLToPath(new URL('..', import.meta.url))
const folder = join(root, '.millrace')
const statePath = join(folder, 'broker.json')
const logPath = join(folder, 'broker.log')

const START_DEADLINE_MS = 240_000
const STOP_DEADLINE_MS = 30_000
const POLL_MS = 100

interface StartOptions {
  readonly nodes: string
  readonly version: string
}

async function start(options: StartOptions): Promise<void> {
  if (process.env.KAFKA_BROKERS)
    throw new Error(`KAFKA_BROKERS is set to ${process.env.KAFKA_BROKERS}: that broker is used as it is; unset it to have one started here`)
  const running = readState()
  if (running !== undefined) {
    console.log('A broker is running already.')
    print(running)
    return
  }
  mkdirSync(folder, { recursive: true })
  const log = openSync(logPath, 'w')
  const server = spawn(process.execPath, [...process.execArgv, script, 'serve', '--nodes', options.nodes, '--version', options.version], {
    cwd: root,
    detached: true,
    stdio: ['ignore', log, log],
  })
  closeSync(log)
  let ended: string | undefined
  server.once('exit', (code, signal) => (ended = signal ?? `exit code ${code}`))
  server.once('error', (error) => (ended = error.message))
  let shown = 0
  const showProgress = (): void => {
    const text = readFileSync(logPath, 'utf8')
    process.stderr.write(text.slice(shown))
    shown = text.length
  }
  const deadline = performance.now() + START_DEADLINE_MS
  for (;;) {
    showProgress()
    if (ended !== undefined) throw new Error(`the broker could not be started (${ended}); the lines above say why`)
    const state = readState()
    if (state !== undefined && state.pid === server.pid) {
      server.unref()
      print(state)
      return
    }
    if (performance.now() > deadline) {
      server.kill('SIGTERM')
      throw new Error(`the broker is not ready after ${START_DEADLINE_MS / 1000} s; its log is ${logPath}`)
    }
    await delay(POLL_MS)
  }
}

/** The process that stays. */
async function serve(options: StartOptions): Promise<void> {
  const stopAsked = new Promise<void>((resolve) => {
    for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.once(signal, () => resolve())
  })
  const broker = await provideBroker({
    nodes: options.nodes === '3' ? 3 : 1,
    version: options.version,
    onProgress: (line) => console.log(line),
  })
  const state: BrokerState = {
    pid: process.pid,
    kind: broker.kind,
    brokers: broker.brokers,
    version: options.version,
    nodes: broker.nodes.length,
    startedAt: new Date().toISOString(),
  }
  const aside = `${statePath}.${process.pid}`
  writeFileSync(aside, `${JSON.stringify(state, null, 2)}\n`)
  renameSync(aside, statePath)
  // Signals alone do not hold a process alive.
  const hold = setInterval(() => undefined, 2 ** 30)
  await stopAsked
  clearInterval(hold)
  rmSync(statePath, { force: true })
  await broker.stop()
}

async function stop(): Promise<void> {
  const state = readState()
  if (state === undefined) {
    console.log('No broker of this folder is running.')
    return
  }
  process.kill(state.pid, 'SIGTERM')
  const deadline = performance.now() + STOP_DEADLINE_MS
  while (processIsAlive(state.pid)) {
    if (performance.now() > deadline)
      throw new Error(
        `process ${state.pid}, which keeps the broker, has not ended after ${STOP_DEADLINE_MS / 1000} s; its log is ${logPath}`,
      )
    await delay(POLL_MS)
  }
  console.log(`The broker at ${state.brokers} is stopped and its data removed.`)
}

function status(): void {
  const state = readState()
  if (state === undefined) {
    console.log('No broker of this folder is running. Start one with:  npm run broker -- start')
    process.exitCode = 3
    return
  }
  print(state)
}

function print(state: BrokerState): void {
  console.log(
    `Kafka ${state.version} (${state.kind}, ${state.nodes} node${state.nodes === 1 ? '' : 's'}) since ${state.startedAt}, kept by process ${state.pid}`,
  )
  console.log(`  address:       ${state.brokers}`)
  console.log(`  to use it:     export KAFKA_BROKERS=${state.brokers}`)
  console.log('  to end it:     npm run broker -- stop')
}

/** The broker that runs; a state file of a process that is gone (or whose id another program has now) is removed. */
function readState(): BrokerState | undefined {
  if (!existsSync(statePath)) return undefined
  let state: BrokerState | undefined
  try {
    state = JSON.parse(readFileSync(statePath, 'utf8')) as BrokerState
  } catch {
    state = undefined
  }
  if (state !== undefined && Number.isInteger(state.pid) && commandLineOf(state.pid).includes('broker.ts serve')) return state
  rmSync(statePath, { force: true })
  return undefined
}

function commandLineOf(pid: number): string {
  try {
    return execFileSync('ps', ['-o', 'args=', '-p', String(pid)], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] })
  } catch {
    // No such process; or no `ps`, as in small images, where the process table is a file system.
    try {
      return readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ')
    } catch {
      return ''
    }
  }
}

const nodesOption = new Option('--nodes <count>', 'number of brokers').choices(['1', '3']).default('1')
const program = new Command('npm run broker --').description('Keeps a Kafka broker running on this machine.')
program
  .command('start')
  .description('start a broker and print its address')
  .addOption(nodesOption)
  .option('--version <version>', 'Apache Kafka version', defaultKafkaVersion())
  .action(start)
program.command('stop').description('stop it and remove its data').action(stop)
program.command('status').description('say whether one runs, and where').action(status)
program.command('serve', { hidden: true }).addOption(nodesOption).option('--version <version>', '', defaultKafkaVersion()).action(serve)

try {
  await program.parseAsync()
} catch (error) {
  console.error(`broker: ${error instanceof Error ? error.message : String(error)}`)
  process.exitCode = 1
}
