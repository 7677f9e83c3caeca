/**
 * A world with brokers and workers in it: the real runtime on simulated brokers, with a disk per worker slot that survives its process.
 *
 * Owns: time, choices, the processes and their restarts. Does not own: what strikes (faults), what is expected (checks).
 */
import type { Logger } from '../../common/ports.ts'
import { silentLogger } from '../../common/ports.ts'
import type { ResolvedConfig } from '../../config/resolve.ts'
import { BrokerError } from '../../errors/broker-error.ts'
import { classify } from '../../errors/classify.ts'
import { asError, EXIT_CODES, MillraceError } from '../../errors/errors.ts'
import type { WorkerListener } from '../../runtime/worker-options.ts'
import { Worker } from '../../runtime/worker.ts'
import { createMemoryBackend, MemoryDisk } from '../../state/memory/memory-backend.ts'
import type { StateBackend } from '../../state/store.ts'
import type { TopologyPlan } from '../../topology/nodes.ts'
import type { Choices } from './choices.ts'
import { SimBroker } from './client/broker.ts'
import { SimCluster } from './cluster/cluster.ts'
import { SimProcess, type World } from './process.ts'
import { promisesRun, VirtualTime } from './virtual-time.ts'

export interface SimulationOptions {
  readonly plan: TopologyPlan
  readonly config: ResolvedConfig
  readonly workers: number
  readonly choices: Choices
  /** Wall clock at the start, ms since the epoch. */
  readonly startAt: number
  /** The wall clock of all processes and brokers, ms since the epoch. Default: `startAt` at first, and then as virtual time goes. */
  readonly wallClock?: () => number
  readonly logger?: Logger
  readonly brokerConfig?: Readonly<Record<string, string>>
  /** Called at every place at which a process can be struck. */
  readonly passes?: (process: SimProcess, place: string) => void
  /** A worker ended by itself, with an error or without. */
  readonly onEnd?: (slot: SimSlot, failure: Error | undefined) => void
  readonly listener?: (slot: number) => Partial<WorkerListener>
  /** Puts something between a worker and its state. Default: nothing. */
  readonly wrapBackend?: (backend: StateBackend, process: SimProcess, disk: MemoryDisk) => StateBackend
}

/** One worker slot: its disk, and the process that runs on it at present. */
export interface SimSlot {
  readonly slot: number
  disk: MemoryDisk
  process: SimProcess
  worker: Worker
  /** Ends with the worker; undefined while it runs. */
  ended: { readonly failure: Error | undefined } | undefined
  starts: number
}

export class Simulation {
  readonly time = new VirtualTime()
  readonly cluster: SimCluster
  readonly slots: SimSlot[] = []
  readonly #options: SimulationOptions
  readonly #world: World

  constructor(options: SimulationOptions) {
    this.#options = options
    const { time } = this
    const { choices, startAt, wallClock = () => startAt + time.now, brokerConfig } = options
    this.cluster = new SimCluster({ time, choices, wallClock, ...(brokerConfig === undefined ? {} : { brokerConfig }) })
    this.#world = { time, choices, wallClock, passes: (process, place) => options.passes?.(process, place) }
  }

  /** `everyMs`: from the start of one worker to that of the next. */
  start(everyMs = 0): void {
    for (let slot = 0; slot < this.#options.workers; slot++) {
      if (slot === 0 || everyMs === 0) this.startSlot(slot)
      else this.time.schedule(slot * everyMs, () => this.startSlot(slot))
    }
  }

  /** A process on the slot's disk; what was there before must be dead or ended. */
  startSlot(slot: number): SimSlot {
    const before = this.slots[slot]
    const disk = before?.disk ?? new MemoryDisk()
    const starts = (before?.starts ?? 0) + 1
    const process = new SimProcess(`worker ${slot}.${starts}`, this.#world)
    const entry = { slot, disk, process, starts, ended: undefined } as Omit<SimSlot, 'worker'> as SimSlot
    entry.worker = this.#worker(entry)
    this.slots[slot] = entry
    entry.worker.run().then(
      () => this.#ended(entry, undefined),
      (error: unknown) => this.#ended(entry, asError(error)),
    )
    return entry
  }

  #worker({ slot, disk, process }: SimSlot): Worker {
    const { plan, config, logger = silentLogger, listener, wrapBackend } = this.#options
    const backend = createMemoryBackend({
      owner: { pid: slot + 1, slot: `${config.instance}-${slot}`, host: 'simulated' },
      clock: process,
      timers: process,
      disk,
      lockTimeoutMs: config.lockTimeoutMs,
      memtableBytes: config.memtableBytes,
      flushIntervalMs: config.stateFlushIntervalMs,
      cacheEntries: config.cacheEntries,
    })
    process.atDeath(() => {
      backend.close()
    })
    let nonces = 0
    return new Worker({
      plan,
      settings: { ...config, slot },
      broker: new SimBroker(process, this.cluster, config.metadataPollMs),
      backend: wrapBackend?.(backend, process, disk) ?? backend,
      clock: process,
      timers: process,
      random: { bytes: (size) => nonceOf(process.name, ++nonces, size) },
      logger,
      listener: { ...IGNORE, ...listener?.(slot) },
    })
  }

  #ended(entry: SimSlot, failure: Error | undefined): void {
    if (entry.process.isDead) return
    entry.ended = { failure }
    entry.process.kill()
    this.#options.onEnd?.(entry, failure)
  }

  /** Runs until the condition holds. False: it did not within `limitMs` of virtual time. */
  async run(until: () => boolean, limitMs: number): Promise<boolean> {
    const endsAt = this.time.now + limitMs
    await promisesRun()
    while (!until()) {
      const next = this.time.nextAt
      if (next === undefined || next > endsAt) return until()
      await this.time.step()
    }
    return true
  }

  /** The machine of a slot comes back with an empty disk. */
  loseDisk(slot: number): void {
    const entry = this.slots[slot]
    if (entry !== undefined) entry.disk = new MemoryDisk()
  }
}

/** Whether a supervisor starts a worker again that ended with this. */
export function isRestarted(failure: Error): boolean {
  if (failure instanceof BrokerError) return classify(failure).reaction === 'retriable'
  return failure instanceof MillraceError && (failure.exitCode === EXIT_CODES.fatal || failure.exitCode === EXIT_CODES.unavailable)
}

const IGNORE: WorkerListener = {
  state: () => undefined,
  assigned: () => undefined,
  revoked: () => undefined,
  restored: () => undefined,
  commit: () => undefined,
  failure: () => undefined,
}

/** Unique in the world, and the same in every run of it. */
function nonceOf(process: string, count: number, size: number): Buffer {
  const bytes = Buffer.alloc(size)
  bytes.write(`${process}/${count}`.slice(-size))
  return bytes
}
