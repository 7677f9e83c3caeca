/** The left side: two processes of the plain consumer, killed and restarted as a service manager would. */
import { fork, type ChildProcess } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { Crash } from './baseline-ledger.ts'
import type { BaselineArguments, BaselineMessage } from './baseline-worker.ts'
import { track, type Exit } from './children.ts'

const PROGRAM = fileURLToPath(new URL('baseline-worker.ts', import.meta.url))
/** A worker that credited something this recently is at work. */
const AT_WORK_MS = 600

interface Slot {
  process: ChildProcess
  exit: Promise<Exit>
  partitions: readonly number[]
  credits: number
  creditedAt: number
}

export class BaselineSide {
  readonly crashes: Crash[] = []
  readonly #input: BaselineArguments
  readonly #onProblem: (problem: string) => void
  readonly #slots: Slot[] = []
  #stopping = false

  constructor(input: BaselineArguments, onProblem: (problem: string) => void) {
    this.#input = input
    this.#onProblem = onProblem
  }

  start(workers: number): void {
    for (let index = 0; index < workers; index++) this.#slots.push(this.#startProcess(index))
  }

  get workers(): number {
    return this.#slots.length
  }

  partitions(index: number): readonly number[] {
    return this.#slot(index).partitions
  }

  isAtWork(index: number): boolean {
    return Date.now() - this.#slot(index).creditedAt < AT_WORK_MS
  }

  /** kill -9, and a new process in its place. */
  async kill(index: number): Promise<Crash> {
    const { process: victim, exit } = this.#slot(index)
    const crash = { pid: victim.pid ?? 0, at: Date.now() }
    victim.kill('SIGKILL')
    const { signal } = await exit
    if (signal !== 'SIGKILL') throw new Error(`the plain consumer ${index} ended by itself before it could be killed`)
    this.crashes.push(crash)
    this.#slots[index] = this.#startProcess(index)
    return crash
  }

  /** Resolves with the exit codes. */
  async stop(): Promise<readonly (number | null)[]> {
    this.#stopping = true
    for (const { process: worker } of this.#slots) worker.kill('SIGTERM')
    return Promise.all(this.#slots.map(async ({ exit }) => (await exit).code))
  }

  #startProcess(index: number): Slot {
    const worker = fork(PROGRAM, [JSON.stringify(this.#input)], { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] })
    const exit = track(worker)
    const slot: Slot = { process: worker, exit, partitions: [], credits: 0, creditedAt: 0 }
    worker.on('message', (message) => {
      const said = message as BaselineMessage
      if (said.type === 'assigned') slot.partitions = said.partitions
      else if (said.credits > slot.credits) {
        slot.credits = said.credits
        slot.creditedAt = Date.now()
      }
    })
    void exit.then(({ code, signal }) => {
      if (!this.#stopping && signal !== 'SIGKILL')
        this.#onProblem(`the plain consumer ${index} ended by itself (${signal ?? `exit code ${code}`})`)
    })
    return slot
  }

  #slot(index: number): Slot {
    const slot = this.#slots[index]
    if (slot === undefined) throw new Error(`there is no plain consumer ${index}`)
    return slot
  }
}
