/** `millrace run`: supervisor, signals of this process, and what a person or a log collector sees. */
import { extname } from 'node:path'
import { fileURLToPath } from 'node:url'
import { OPTIONS } from '../config/options.ts'
import { resolveOptions } from '../config/resolve.ts'
import { createLogger, prettyLine } from './logger.ts'
import type { WorkerArguments } from './messages.ts'
import { totalsOf } from './status-line.ts'
import { Supervisor } from './supervisor.ts'
import { plainScreen, terminalScreen } from './terminal.ts'

export interface RunOptions {
  readonly topology: string
  readonly configFile: string | undefined
  /** By option name, as typed. */
  readonly flags: Readonly<Record<string, unknown>>
}

/** Clients of one worker: the ring of producers, consumer, reader, admin. Blocking calls of each sit on the thread pool. */
const MOST_CLIENTS = 8 + 3
const THREAD_POOL_SIZE = 4 + 2 * MOST_CLIENTS
const SCREEN_INTERVAL_MS = 1_000
/** Resolves with the exit code. Throws ConfigError when the options that are needed before the first worker are wrong. */
export async function run(options: RunOptions): Promise<number> {
  const { slot, logFormat, logLevel, workers, shutdownTimeoutMs } = resolveOptions(
    ['slot', 'logFormat', 'logLevel', 'workers', 'shutdownTimeoutMs'],
    {
      flags: options.flags,
      env: process.env,
    },
  )
  const isTerminal = process.stdout.isTTY === true
  const pretty = logFormat === 'pretty' || (logFormat === 'auto' && isTerminal)
  const screen = pretty && isTerminal ? terminalScreen(process.stdout) : plainScreen(process.stdout)
  const logger = createLogger({
    level: logLevel,
    slot: undefined,
    ...(pretty ? { write: (line: string) => screen.log(prettyLine(line)) } : {}),
  })
  const workersGiven = options.flags['workers'] !== undefined || (process.env[OPTIONS.workers.env] ?? '') !== ''
  let statusTimer: NodeJS.Timeout | undefined

  const supervisor = new Supervisor({
    program: fileURLToPath(new URL(`./worker${extname(import.meta.url)}`, import.meta.url)),
    argumentsFor: (workerSlot) => {
      const argument: WorkerArguments = {
        topology: options.topology,
        configFile: options.configFile,
        flags: options.flags,
        slot: workerSlot,
      }
      return [JSON.stringify(argument)]
    },
    env: { ...process.env, UV_THREADPOOL_SIZE: String(Math.max(THREAD_POOL_SIZE, Number(process.env['UV_THREADPOOL_SIZE']) || 0)) },
    firstSlot: slot,
    workers: workersGiven ? workers : undefined,
    shutdownTimeoutMs,
    logger,
    output: pretty ? (_slot, line) => screen.log(prettyLine(line)) : 'inherit',
    onPlan: (plan) => {
      logger.info(
        { event: 'plan', ...plan, ...(workersGiven ? { workers } : {}) },
        `topology ${plan.topology}, application ${plan.applicationId}, instance ${plan.instance}`,
      )
      if (pretty) return
      statusTimer = setInterval(
        () => logger.info({ event: 'status', ...totalsOf(supervisor.workers, supervisor.past), restarts: supervisor.restarts }, 'status'),
        plan.statusIntervalMs,
      )
    },
  })

  const screenTimer = pretty
    ? setInterval(() => screen.update(totalsOf(supervisor.workers, supervisor.past)), SCREEN_INTERVAL_MS)
    : undefined
  const onSignal = (signal: NodeJS.Signals): void => supervisor.stop(signal)
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, onSignal)
  process.stdout.on('error', () => {})
  try {
    const exitCode = await supervisor.run()
    const totals = totalsOf(supervisor.workers, supervisor.past)
    logger.info(
      { event: 'ended', exitCode, ...totals, restarts: supervisor.restarts },
      `ended with exit code ${exitCode}: ${totals.records} records, ${totals.outputs} outputs, ${totals.duplicates} duplicates`,
    )
    return exitCode
  } finally {
    clearInterval(statusTimer)
    clearInterval(screenTimer)
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.off(signal, onSignal)
    screen.close()
  }
}
