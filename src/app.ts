/**
 * Composition root: the one place that picks the adapters (the Kafka client, SQLite, the real clock) and puts a worker together.
 *
 * Owns: the life of one worker in this process, as its user sees it (`start`, `close`, `finished`, events).
 */
import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { KafkaBroker } from './broker/kafka/broker.ts'
import { durationMs, type Duration } from './common/duration.ts'
import { silentLogger, type Clock, type Logger, type Random, type Timers } from './common/ports.ts'
import type { Config } from './config/define.ts'
import { resolveConfig, type ResolvedConfig } from './config/resolve.ts'
import { BrokerError } from './errors/broker-error.ts'
import { classify } from './errors/classify.ts'
import { asError, BrokerUnavailableError, ConfigError, FatalError } from './errors/errors.ts'
import type { WorkerState, WorkerStatus } from './metrics/status.ts'
import type { RestoreProgress } from './runtime/restore.ts'
import type { CommitEvent } from './runtime/worker-options.ts'
import { Worker } from './runtime/worker.ts'
import { createSqliteBackend } from './state/sqlite/sqlite-backend.ts'
import type { Failure, Topology } from './topology/public-types.ts'
import { isTopology } from './topology/index.ts'
import { compileTopology } from './topology/plan.ts'

/** Events of a worker. They are reports: nothing waits for a listener, and after an abort the same record may be reported again. */
export interface AppEvents {
  readonly state: { readonly from: WorkerState; readonly to: WorkerState }
  readonly assigned: { readonly tasks: readonly string[] }
  readonly revoked: { readonly tasks: readonly string[]; readonly lost: boolean }
  /** A store is at the end of its changelog. Running restores are in `status().restoring`. */
  readonly restore: RestoreProgress
  /** `bytes`: of outputs and changelog records, before compression. */
  readonly commit: CommitEvent
  readonly failure: Failure & { readonly reaction: 'fail' | 'skip' | 'dead-letter' }
  readonly error: Error
}

/**
 * One worker in this process. Nothing happens before `start()`.
 *
 * On a crash nothing is lost: what was committed is visible, what was not is processed again by the next owner of its partitions.
 */
export interface App extends AsyncDisposable {
  readonly state: WorkerState
  /**
   * Resolves when the first assignment is restored and running; rejects when the worker fails before, and when it was called before. Aborting `signal`
   * closes the app at any time; with a signal that is aborted already it resolves without having run.
   */
  start(options?: { readonly signal?: AbortSignal }): Promise<void>
  /**
   * Commits, leaves nothing open, keeps the slot unless `leave` (or the option `onClose`) says otherwise. Idempotent. Rejects with code `close-timed-out`
   * after `timeout` (default: the option `shutdownTimeout`): then end the process, the next start settles what is open.
   */
  close(options?: { readonly leave?: boolean; readonly timeout?: Duration }): Promise<void>
  /** Resolves after `close()`, rejects when the worker stopped by an error. */
  readonly finished: Promise<void>
  /** Returns the function that stops listening. A listener that throws stops nothing: its error is logged. */
  on<E extends keyof AppEvents>(event: E, listener: (event: AppEvents[E]) => void): () => void
  /** What the worker does right now, and its counters since the start. Asks nobody. */
  status(): WorkerStatus
}

const systemClock: Clock = { now: () => Date.now(), monotonic: () => performance.now() }
const systemTimers: Timers = {
  after(delayMs, callback) {
    if (delayMs === 0) {
      const immediate = setImmediate(callback)
      return () => {
        clearImmediate(immediate)
      }
    }
    const timer = setTimeout(callback, delayMs)
    return () => {
      clearTimeout(timer)
    }
  },
}
const systemRandom: Random = { bytes: (size) => randomBytes(size) }

/**
 * Puts a worker together. Throws `ConfigError` for a wrong option, `TopologyError` for a wrong topology; opens nothing.
 * @example
 * await using app = createApp(orderDedupe, { brokers: 'localhost:9092' })
 * await app.start()
 */
export function createApp(topology: Topology, config: Config): App {
  if (!isTopology(topology)) {
    throw new ConfigError('createApp: the first argument is not a topology', {
      code: 'not-a-topology',
      remedy: 'Pass what topology(...) returned.',
    })
  }
  return createResolvedApp(topology, resolveConfig({ code: config, topologyName: topology.name }), config.logger ?? silentLogger)
}

/** For the command line, which has its configuration from several sources and logs by itself. */
export function createResolvedApp(topology: Topology, config: ResolvedConfig, logger: Logger): App {
  return new RunningApp(config, compileTopology(topology), logger)
}

type Plan = ReturnType<typeof compileTopology>

class RunningApp implements App {
  readonly finished: Promise<void>
  readonly #config: ResolvedConfig
  readonly #logger: Logger
  readonly #listeners = new Map<keyof AppEvents, Set<(event: never) => void>>()
  readonly #worker: Worker
  readonly #broker: KafkaBroker
  readonly #backend: ReturnType<typeof createSqliteBackend>
  #running: Promise<void> | undefined
  #settle: { resolve(): void; reject(error: Error): void } | undefined

  constructor(config: ResolvedConfig, plan: Plan, logger: Logger) {
    this.#config = config
    this.#logger = logger
    this.finished = new Promise((resolve, reject) => (this.#settle = { resolve, reject }))
    // Whoever does not ask is not punished with an unhandled rejection: the error is an event and in `start` as well.
    this.finished.catch(() => undefined)
    this.#broker = new KafkaBroker({
      brokers: config.brokers,
      clientId: `${config.applicationId}-${config.instance}-${config.slot}`,
      connectTimeoutMs: 10_000,
      metadataRefreshMs: config.metadataPollMs,
      logger,
      client: clientSettings(config),
    })
    this.#backend = createSqliteBackend({
      directory: join(config.stateDir, config.applicationId),
      owner: { pid: process.pid, slot: `${config.instance}-${config.slot}`, host: hostname() },
      clock: systemClock,
      timers: systemTimers,
      lockTimeoutMs: config.lockTimeoutMs,
      memtableBytes: config.memtableBytes,
      flushIntervalMs: config.stateFlushIntervalMs,
      cacheEntries: config.cacheEntries,
      rebuildOtherFormats: config.storeFormat === 'rebuild',
      onLocked: (report) => {
        logger.warn(report, 'another process keeps the state of a task; it starts in a sibling folder and is restored from the changelog')
      },
      onQuarantine: (report) => {
        this.#worker.countQuarantine()
        logger.error(report, 'a store file that cannot be used was moved aside; its state is rebuilt from the changelog')
      },
    })
    this.#worker = new Worker({
      plan,
      settings: config,
      broker: this.#broker,
      backend: this.#backend,
      clock: systemClock,
      timers: systemTimers,
      random: systemRandom,
      logger,
      listener: {
        state: (from, to) => this.#emit('state', { from, to }),
        assigned: (tasks) => this.#emit('assigned', { tasks }),
        revoked: (tasks, lost) => this.#emit('revoked', { tasks, lost }),
        restored: (progress) => this.#emit('restore', progress),
        commit: (event) => this.#emit('commit', event),
        failure: (failure, reaction) => this.#emit('failure', { ...failure, reaction }),
      },
    })
  }

  get state(): WorkerState {
    return this.#worker.state
  }

  async start({ signal }: { readonly signal?: AbortSignal } = {}): Promise<void> {
    if (this.#running !== undefined)
      throw new ConfigError('start() was called twice', { code: 'started-twice', remedy: 'An app runs once; create another.' })
    if (signal?.aborted === true) return this.close()
    signal?.addEventListener(
      'abort',
      () => {
        this.close().catch((error: unknown) => this.#emit('error', asError(error)))
      },
      { once: true },
    )
    this.#running = this.#run()
    await Promise.race([this.#worker.ready, this.finished])
    if (this.#worker.state === 'failed') await this.finished
  }

  async #run(): Promise<void> {
    let failure: Error | undefined
    try {
      await this.#worker.run()
    } catch (error) {
      failure = explained(asError(error), this.#config)
    }
    this.#backend.close()
    await this.#broker.close()
    if (failure === undefined) this.#settle?.resolve()
    else {
      this.#settle?.reject(failure)
      this.#emit('error', failure)
    }
  }

  async close({ leave, timeout }: { readonly leave?: boolean; readonly timeout?: Duration } = {}): Promise<void> {
    if (this.#running === undefined) {
      this.#running = Promise.resolve()
      this.#backend.close()
      await this.#broker.close()
      this.#settle?.resolve()
      return
    }
    this.#worker.stop({ leave })
    const limitMs = timeout === undefined ? this.#config.shutdownTimeoutMs : durationMs(timeout, 'timeout')
    let cancel: (() => void) | undefined
    const late = new Promise<never>((_, reject) => {
      cancel = systemTimers.after(limitMs, () => {
        reject(
          new FatalError(`closing took longer than ${limitMs} ms`, {
            code: 'close-timed-out',
            remedy: 'End the process: the next start aborts the open transaction and restores what was not flushed.',
          }),
        )
      })
    })
    try {
      await Promise.race([this.#running, late])
    } finally {
      cancel?.()
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  on<E extends keyof AppEvents>(event: E, listener: (event: AppEvents[E]) => void): () => void {
    const listeners = this.#listeners.get(event) ?? new Set()
    this.#listeners.set(event, listeners)
    listeners.add(listener)
    return () => {
      listeners.delete(listener)
    }
  }

  #emit<E extends keyof AppEvents>(event: E, details: AppEvents[E]): void {
    for (const listener of this.#listeners.get(event) ?? []) {
      try {
        ;(listener as (event: AppEvents[E]) => void)(details)
      } catch (error) {
        this.#logger.error({ event, error: String(error) }, 'a listener failed')
      }
    }
  }

  status(): WorkerStatus {
    return this.#worker.status(process.memoryUsage.rss())
  }
}

/** TLS and SASL in the client's words, then what the user passed through. */
function clientSettings({ security, kafka }: ResolvedConfig): Record<string, string | number | boolean> {
  const { ssl, sasl } = security
  const settings: Record<string, string | number | boolean> = {}
  if (ssl || sasl !== undefined) settings['security.protocol'] = `${sasl === undefined ? '' : 'sasl_'}${ssl ? 'ssl' : 'plaintext'}`
  if (sasl !== undefined) {
    settings['sasl.mechanisms'] = sasl.mechanism.toUpperCase()
    settings['sasl.username'] = sasl.username
    settings['sasl.password'] = sasl.password
  }
  return { ...settings, ...kafka }
}

/** What the broker said, in words for the person who starts the worker; the reaction decides the class, and with it the exit code. */
function explained(error: Error, { brokers }: ResolvedConfig): Error {
  if (!(error instanceof BrokerError)) return error
  const { reaction, reason } = classify(error)
  if (error.operation === 'connect' || reaction === 'retriable') {
    return new BrokerUnavailableError(`the Kafka brokers at ${brokers.join(', ')} are not available: ${error.message}`, {
      code: 'broker-unavailable',
      remedy: 'Start them, or name others with --brokers, MILLRACE_BROKERS or `brokers` in millrace.config.ts.',
      cause: error,
    })
  }
  const options = { code: `kafka-${error.code}`, cause: error }
  return reaction === 'config'
    ? new ConfigError(`Kafka refused: ${error.message}: ${reason}`, options)
    : new FatalError(`Kafka refused: ${error.message}: ${reason}`, options)
}
