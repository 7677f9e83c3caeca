/**
 * One `millrace run` of the right side, as a person would start it: the built command, its JSON log, signals.
 *
 * What the demo knows of the workers (process ids, states, tasks, durations) is what the log says.
 */
import { spawn, type ChildProcess } from 'node:child_process'
import { createWriteStream, type WriteStream } from 'node:fs'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { track, type Exit } from './children.ts'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const PRELOAD = new URL('end-with-parent.mjs', import.meta.url).href

export interface MillraceOptions {
  readonly brokers: string
  readonly applicationId: string
  readonly instance: string
  readonly workers: number
  readonly stateDir: string
  /** The log goes to this file. */
  readonly logFile: string
  readonly onWarning: (line: string) => void
}

export interface Totals {
  readonly recordsPerSecond: number
  readonly duplicates: number
  readonly transactions: number
  readonly aborts: number
  readonly lag: number
  readonly commitP50Ms: number
  readonly commitP99Ms: number
}

interface Worker {
  pid: number
  state: string
  /** Partitions of its tasks; those of the process before until the first assignment. */
  partitions: ReadonlySet<number>
  assigned: boolean
  restoringAt: number | undefined
  /** Time from `restoring` to the end of the restore of the last store, ms. */
  restoreMs: number | undefined
  restoredRecords: number
  killed: ((signal: string | null) => void) | undefined
}

interface LogEntry {
  readonly time?: string
  readonly level?: string
  readonly msg?: string
  readonly event?: string
  readonly slot?: number
  readonly pid?: number
  readonly signal?: string | null
  readonly to?: string
  readonly tasks?: readonly string[]
  readonly records?: number
}

export class MillraceRun {
  readonly instance: string
  readonly exit: Promise<Exit>
  readonly #process: ChildProcess
  readonly #options: MillraceOptions
  readonly #log: WriteStream
  readonly #workers = new Map<number, Worker>()
  readonly #waiting = new Set<() => void>()
  #totals: Totals | undefined
  #peakRecordsPerSecond = 0
  #ended = false

  constructor(options: MillraceOptions) {
    this.#options = options
    this.instance = options.instance
    this.#log = createWriteStream(options.logFile, { flags: 'a' })
    const { brokers, applicationId, instance, workers, stateDir } = options
    const flags = {
      brokers,
      'application-id': applicationId,
      instance,
      workers: String(workers),
      'state-dir': stateDir,
      'log-format': 'json',
      'status-interval': '1s',
    }
    this.#process = spawn(
      process.execPath,
      [
        '--import',
        PRELOAD,
        'dist/cli/main.js',
        'run',
        'topologies/order-dedupe.ts',
        ...Object.entries(flags).flatMap(([name, value]) => [`--${name}`, value]),
      ],
      { cwd: ROOT, env: withoutOurOptions(process.env), stdio: ['ignore', 'pipe', 'pipe', 'ipc'] },
    )
    this.exit = track(this.#process).then((exit) => {
      this.#ended = true
      this.#changed()
      return exit
    })
    for (const output of [this.#process.stdout, this.#process.stderr]) {
      if (output !== null) createInterface({ input: output, crlfDelay: Number.POSITIVE_INFINITY }).on('line', (line) => this.#take(line))
    }
    void this.exit.then(() => this.#log.end())
  }

  get hasEnded(): boolean {
    return this.#ended
  }

  /** The last status line with commits in it. */
  get totals(): Totals | undefined {
    return this.#totals
  }

  get peakRecordsPerSecond(): number {
    return this.#peakRecordsPerSecond
  }

  get slots(): readonly number[] {
    return [...this.#workers.keys()]
  }

  partitions(slot: number): readonly number[] {
    return [...(this.#workers.get(slot)?.partitions ?? [])]
  }

  /** Running, with tasks. */
  isAtWork(slot: number): boolean {
    const worker = this.#workers.get(slot)
    return worker !== undefined && worker.state === 'running' && worker.assigned && worker.partitions.size > 0
  }

  restore(slot: number): { readonly ms: number; readonly records: number } | undefined {
    const worker = this.#workers.get(slot)
    return worker?.restoreMs === undefined ? undefined : { ms: worker.restoreMs, records: worker.restoredRecords }
  }

  /** Resolves as soon as `condition` holds; rejects when the run ends before. */
  until(condition: () => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      const look = (): void => {
        const holds = condition()
        if (!holds && !this.#ended) return
        this.#waiting.delete(look)
        if (holds) resolve()
        else reject(new Error(`millrace run (instance ${this.instance}) ended too early; its log is ${this.#options.logFile}`))
      }
      this.#waiting.add(look)
      look()
    })
  }

  /** kill -9 of one worker process; the supervisor starts it again. Resolves when the supervisor has seen its end. */
  async killWorker(slot: number): Promise<number> {
    const worker = this.#workers.get(slot)
    if (worker === undefined) throw new Error(`millrace (instance ${this.instance}) has no worker ${slot}`)
    const ended = new Promise<string | null>((resolve) => (worker.killed = resolve))
    const at = Date.now()
    process.kill(worker.pid, 'SIGKILL')
    const signal = await ended
    if (signal !== 'SIGKILL')
      throw new Error(`millrace worker ${slot} (instance ${this.instance}) ended by itself before it could be killed`)
    return at
  }

  /** kill -9 of everything: the supervisor first, so that it starts nothing again, and in the same moment its workers, so that they close nothing. */
  async killAll(): Promise<number> {
    const at = Date.now()
    this.#process.kill('SIGKILL')
    for (const { pid } of this.#workers.values()) {
      try {
        process.kill(pid, 'SIGKILL')
      } catch {
        // Gone already.
      }
    }
    await this.exit
    return at
  }

  /** SIGTERM; resolves with the exit code. */
  async stop(): Promise<number | null> {
    this.#process.kill('SIGTERM')
    return (await this.exit).code
  }

  #take(line: string): void {
    this.#log.write(`${line}\n`)
    let entry: LogEntry
    try {
      entry = JSON.parse(line) as LogEntry
    } catch {
      this.#options.onWarning(line)
      return
    }
    this.#apply(entry)
    if (entry.level === 'error' || entry.level === 'fatal') this.#options.onWarning(entry.msg ?? line)
    this.#changed()
  }

  #apply(entry: LogEntry): void {
    if (entry.event === 'status') {
      const totals = entry as unknown as Totals
      this.#peakRecordsPerSecond = Math.max(this.#peakRecordsPerSecond, totals.recordsPerSecond)
      if (totals.commitP99Ms > 0) this.#totals = totals
      return
    }
    const { slot, pid } = entry
    if (slot === undefined || pid === undefined) return
    if (entry.event === 'worker started') {
      const partitions = this.#workers.get(slot)?.partitions ?? new Set<number>()
      this.#workers.set(slot, {
        pid,
        state: 'starting',
        partitions,
        assigned: false,
        restoringAt: undefined,
        restoreMs: undefined,
        restoredRecords: 0,
        killed: undefined,
      })
      return
    }
    const worker = this.#workers.get(slot)
    if (worker === undefined || worker.pid !== pid) return
    const at = entry.time === undefined ? Date.now() : Date.parse(entry.time)
    switch (entry.event) {
      case 'worker exited':
        worker.state = 'ended'
        worker.killed?.(entry.signal ?? null)
        return
      case 'state':
        worker.state = entry.to ?? worker.state
        if (entry.to === 'restoring') worker.restoringAt ??= at
        else if (entry.to === 'running' && worker.restoreMs === undefined)
          worker.restoreMs = worker.restoringAt === undefined ? 0 : at - worker.restoringAt
        return
      case 'restored':
        worker.restoredRecords += entry.records ?? 0
        return
      case 'assigned':
        worker.partitions = new Set([...(worker.assigned ? worker.partitions : []), ...partitionsOf(entry)])
        worker.assigned = true
        return
      case 'revoked': {
        const gone = new Set(partitionsOf(entry))
        worker.partitions = new Set([...worker.partitions].filter((partition) => !gone.has(partition)))
        return
      }
      default:
        return
    }
  }

  #changed(): void {
    for (const look of [...this.#waiting]) look()
  }
}

/** Task `0_3` is partition 3. */
function partitionsOf({ tasks }: LogEntry): number[] {
  return (tasks ?? []).map((task) => Number(task.slice(task.lastIndexOf('_') + 1)))
}

/** Options that a person has set for work of their own must not reach the demo. */
function withoutOurOptions(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(env).filter(([name]) => !name.startsWith('MILLRACE_')))
}
