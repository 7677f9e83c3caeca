/**
 * One worker process of `millrace run`; forked by the supervisor.
 *
 * Owns: reading topology and configuration, the app's life in this process, its exit code.
 * Does not own: restarts (`supervisor.ts`), processing (`app.ts`).
 * Invariants:
 *  CW1. Asked to stop (SIGTERM, or the supervisor is gone) it closes in good order: last commit, nothing open. It never outlives its supervisor.
 *  CW2. It exits with the code of the error that stopped it, after the error was told to the supervisor, or logged where there is none.
 */
import type { App } from '../app.ts'
import { resolveConfig } from '../config/resolve.ts'
import { asError, EXIT_CODES } from '../errors/errors.ts'
import { armFailpointsFromEnvironment } from './failpoint-arming.ts'
import { loadConfigFile } from './load-config.ts'
import { loadTopology } from './load-topology.ts'
import { createLogger } from './logger.ts'
import type { WorkerArguments, WorkerFailure, WorkerMessage } from './messages.ts'

const STATUS_INTERVAL_MS = 1_000
/** How long the process may take to end by itself when everything is closed. */
const LINGER_MS = 2_000

const input = JSON.parse(process.argv[2] ?? '{}') as WorkerArguments
const stopping = new AbortController()
let log = createLogger({ level: 'info', slot: input.slot })

/** Until the app exists there is nothing to close: a stop ends the process at once, also while a topology hangs in its import. */
let app: App | undefined
stopping.signal.addEventListener('abort', () => {
  if (app === undefined) process.exit(EXIT_CODES.ok)
})
process.on('SIGTERM', () => stopping.abort('SIGTERM'))
// Ctrl-C reaches the whole process group; the supervisor decides then. Without one it is ours.
process.on('SIGINT', () => {
  if (!process.connected) stopping.abort('SIGINT')
})
process.on('SIGHUP', () => {})
process.on('disconnect', () => {
  if (stopping.signal.aborted) return
  log.warn({ event: 'supervisor gone' }, 'the supervisor is gone: stopping')
  stopping.abort('supervisor gone')
})
process.on('uncaughtException', (error) => void crash(error, 'uncaught exception'))
process.on('unhandledRejection', (reason) => void crash(asError(reason), 'unhandled rejection'))
// A topology may print; the reader of our output may be gone.
process.stdout.on('error', () => {})
process.stderr.on('error', () => {})

// Only here, below a supervisor: a library in somebody's process is never armed.
if (process.connected) armFailpointsFromEnvironment((text) => log.warn({ event: 'failpoint' }, text))

try {
  await work()
  await end(EXIT_CODES.ok)
} catch (error) {
  await fail(asError(error))
}

async function work(): Promise<void> {
  const { file, fileName } = await loadConfigFile(input.configFile)
  const topology = await loadTopology(input.topology)
  const config = resolveConfig({
    flags: { ...input.flags, slot: input.slot },
    env: process.env,
    file,
    fileName,
    topologyName: topology.name,
  })
  log = createLogger({ level: config.logLevel, slot: input.slot })
  await send({
    type: 'plan',
    plan: {
      topology: topology.name,
      applicationId: config.applicationId,
      instance: config.instance,
      workers: config.workers,
      shutdownTimeoutMs: config.shutdownTimeoutMs,
      statusIntervalMs: config.statusIntervalMs,
    },
  })
  // Loaded late: the native client takes a while, and a wrong topology is reported without it.
  const { createResolvedApp } = await import('../app.ts')
  const worker = createResolvedApp(topology, config, log)
  app = worker
  const statusTimer = setInterval(() => void send({ type: 'status', status: worker.status() }), STATUS_INTERVAL_MS)
  const listeners = listen(worker)
  const stopped = once(stopping.signal)
  // It is awaited below only when the start succeeded.
  worker.finished.catch(() => {})
  let failure: Error | undefined
  try {
    await Promise.race([worker.start({ signal: stopping.signal }), stopped])
    await Promise.race([worker.finished, stopped])
  } catch (error) {
    // A start that was interrupted by a stop is no failure.
    if (!stopping.signal.aborted) failure = asError(error)
  }
  try {
    // Bounded by shutdownTimeout: what is not closed by then is left to the end of the process, and restored by the next start.
    await worker.close({ leave: config.onClose === 'leave' })
  } catch (error) {
    // The first error is the cause; closing after it often fails as well.
    if (failure === undefined) failure = asError(error)
    else log.warn({ event: 'close failed' }, `closing failed as well: ${asError(error).message}`)
  }
  clearInterval(statusTimer)
  await send({ type: 'status', status: worker.status() })
  for (const remove of listeners) remove()
  if (failure !== undefined) throw failure
}

/** What happens to the app, in the log and to the supervisor. */
function listen(app: App): (() => void)[] {
  return [
    app.on('state', ({ from, to }) => {
      log.info({ event: 'state', from, to }, `${from} -> ${to}`)
      void send({ type: 'state', state: to })
    }),
    app.on('assigned', ({ tasks }) => log.info({ event: 'assigned', tasks }, `${tasks.length} tasks assigned`)),
    app.on('revoked', ({ tasks, lost }) =>
      log.info({ event: 'revoked', tasks, lost }, `${tasks.length} tasks ${lost ? 'lost' : 'revoked'}`),
    ),
    app.on('restore', (progress) => log.info({ event: 'restored', ...progress }, `${progress.store} of task ${progress.task} restored`)),
    app.on('failure', ({ reaction, error, node }) =>
      log.warn({ event: 'record failed', node, reaction, error: error.name }, `record failed in ${node} (${reaction}): ${error.message}`),
    ),
  ]
}

function once(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}

/** Resolves when the message has left. A supervisor that is gone is no error of ours. */
function send(message: WorkerMessage): Promise<void> {
  return new Promise((resolve) => {
    if (process.send === undefined || !process.connected) resolve()
    else process.send(message, undefined, undefined, () => resolve())
  })
}

interface Told extends Error {
  readonly code?: unknown
  readonly remedy?: unknown
  readonly exitCode?: unknown
}

/** An error that says by itself what to do; another copy of the package may have thrown it, so not `instanceof`. */
function exitCodeOf(error: Told): number | undefined {
  return typeof error.exitCode === 'number' ? error.exitCode : undefined
}

async function fail(error: Told): Promise<void> {
  const exitCode = exitCodeOf(error)
  const text = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined)
  const failure: WorkerFailure = { name: error.name, message: error.message, code: text(error.code), remedy: text(error.remedy) }
  // The supervisor prints an error that explains itself; one that does not needs its stack, and it is printed here.
  if (exitCode === undefined || !process.connected) {
    log.fatal(
      { event: 'failed', error: error.name, errorCode: failure.code, remedy: failure.remedy, stack: error.stack },
      `worker failed: ${error.message}`,
    )
  }
  await send({ type: 'failure', failure })
  await end(exitCode ?? EXIT_CODES.fatal)
}

/** Nothing is known about the state of the process: it ends without closing, and the next one restores. */
async function crash(error: Error, what: string): Promise<void> {
  log.fatal({ event: 'crashed', error: error.name, stack: error.stack }, `${what}: ${error.message}`)
  await send({ type: 'failure', failure: { name: error.name, message: `${what}: ${error.message}`, code: undefined, remedy: undefined } })
  process.exit(EXIT_CODES.fatal)
}

/** After a clean stop the process ends because nothing is left; what holds it open is named. After a failure it ends at once. */
function end(exitCode: number): Promise<void> {
  process.exitCode = exitCode
  if (exitCode !== EXIT_CODES.ok) process.exit(exitCode)
  stopping.abort('ended')
  if (process.connected) process.disconnect()
  setTimeout(() => {
    log.warn({ event: 'handles left', resources: process.getActiveResourcesInfo() }, 'closed, but something keeps the process alive')
    process.exit(exitCode)
  }, LINGER_MS).unref()
  return Promise.resolve()
}
