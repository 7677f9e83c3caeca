import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { Logger } from '../../src/common/ports.ts'
import type { ChildState } from '../../src/cli/child-states.ts'
import { CHILD_TRANSITIONS, exitMeaning, restartDelayMs } from '../../src/cli/child-states.ts'
import type { WorkerPlan } from '../../src/cli/messages.ts'
import type { SupervisorOptions } from '../../src/cli/supervisor.ts'
import { Supervisor } from '../../src/cli/supervisor.ts'
import { EXIT_CODES } from '../../src/errors/errors.ts'

const PROGRAM = fileURLToPath(new URL('../fixtures/supervisor/worker.mjs', import.meta.url))

interface LogEntry {
  readonly level: string
  readonly event: string
  readonly message: string
  readonly details: Readonly<Record<string, unknown>>
}

/** Keeps what is logged, and lets a test wait for an entry. */
class EventLog implements Logger {
  readonly entries: LogEntry[] = []
  #waiting: (() => void)[] = []

  debug = (details: object, message: string): void => this.#add('debug', details, message)
  info = (details: object, message: string): void => this.#add('info', details, message)
  warn = (details: object, message: string): void => this.#add('warn', details, message)
  error = (details: object, message: string): void => this.#add('error', details, message)

  of(event: string, slot?: number): readonly LogEntry[] {
    return this.entries.filter((entry) => entry.event === event && (slot === undefined || entry.details['slot'] === slot))
  }

  /** Resolves with the n-th entry of the event. */
  async nth(event: string, n: number, slot?: number): Promise<LogEntry> {
    for (;;) {
      const entry = this.of(event, slot)[n - 1]
      if (entry !== undefined) return entry
      await new Promise<void>((resolve) => this.#waiting.push(resolve))
    }
  }

  #add(level: string, details: object, message: string): void {
    const record = details as Readonly<Record<string, unknown>>
    this.entries.push({ level, event: String(record['event']), message, details: record })
    for (const wake of this.#waiting.splice(0)) wake()
  }
}

/** Lines the workers wrote. */
class Lines {
  readonly lines: string[] = []
  #waiting: (() => void)[] = []

  add = (_slot: number, line: string): void => {
    this.lines.push(line)
    for (const wake of this.#waiting.splice(0)) wake()
  }

  async count(line: string, n: number): Promise<void> {
    while (this.lines.filter((each) => each === line).length < n) await new Promise<void>((resolve) => this.#waiting.push(resolve))
  }
}

type Script = Readonly<Record<number, readonly string[]>>

let folder: string
let log: EventLog
let lines: Lines
const started: { readonly supervisor: Supervisor; readonly finished: Promise<number> }[] = []

function supervise(
  script: Script,
  options: Partial<SupervisorOptions> & { readonly plan?: Partial<WorkerPlan> } = {},
): { readonly supervisor: Supervisor; readonly finished: Promise<number> } {
  const { plan, ...rest } = options
  const supervisor = new Supervisor({
    program: PROGRAM,
    argumentsFor: (slot) => [JSON.stringify({ slot, folder, plan, script })],
    env: process.env,
    firstSlot: 0,
    workers: undefined,
    shutdownTimeoutMs: 20_000,
    backOff: { firstMs: 1, maxMs: 8, healthyAfterMs: 3_600_000 },
    logger: log,
    output: lines.add,
    ...rest,
  })
  const run = { supervisor, finished: supervisor.run() }
  started.push(run)
  return run
}

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'millrace-supervisor-'))
  log = new EventLog()
  lines = new Lines()
})

afterEach(async () => {
  for (const { supervisor, finished } of started.splice(0)) {
    supervisor.stop('end of the test')
    supervisor.stop('end of the test')
    await finished
  }
  await rm(folder, { recursive: true, force: true })
})

describe('restarts', () => {
  test('a worker killed with -9 is started again, later and later, and its peers go on', async () => {
    const { supervisor, finished } = supervise({}, { workers: 2 })
    await lines.count('worker 1 works', 1)
    for (let kill = 1; kill <= 4; kill++) {
      await lines.count('worker 0 works', kill)
      process.kill(supervisor.workers[0]?.pid ?? 0, 'SIGKILL')
      const exit = await log.nth('worker exited', kill, 0)
      expect(exit.details).toMatchObject({ code: null, signal: 'SIGKILL', reason: 'killed by SIGKILL' })
    }
    await lines.count('worker 0 works', 5)
    expect(log.of('worker restarting').map(({ details }) => details['delayMs'])).toEqual([1, 4, 8, 8])
    expect(log.of('worker started', 1)).toHaveLength(1)
    expect(supervisor.restarts).toBe(4)
    supervisor.stop('SIGTERM')
    expect(await finished).toBe(EXIT_CODES.ok)
  })

  test('the first restart comes within 100 ms and none later than 10 s', () => {
    const backOff = { firstMs: 50, maxMs: 10_000, healthyAfterMs: 60_000 }
    expect([0, 1, 2, 3, 8, 1_000].map((restarts) => restartDelayMs(restarts, backOff))).toEqual([50, 200, 400, 800, 10_000, 10_000])
  })

  test('a worker that ran long enough starts again without delay', async () => {
    const { supervisor } = supervise({}, { backOff: { firstMs: 1, maxMs: 1_000_000, healthyAfterMs: 0 } })
    for (let kill = 1; kill <= 3; kill++) {
      await lines.count('worker 0 works', kill)
      process.kill(supervisor.workers[0]?.pid ?? 0, 'SIGKILL')
      await log.nth('worker restarting', kill)
    }
    expect(log.of('worker restarting').map(({ details }) => details['delayMs'])).toEqual([1, 1, 1])
  })

  test.each([EXIT_CODES.fatal, EXIT_CODES.unavailable, EXIT_CODES.ok])(
    'exit code %i of a worker that has worked asks for a restart',
    async (code) => {
      supervise({ 0: [`run-exit:${code}`, 'run'] })
      await log.nth('worker restarting', 1)
      await lines.count('worker 0 works', 2)
      expect(log.of('worker exited')[0]?.details).toMatchObject({ code, signal: null })
    },
  )

  test('counters of a dead worker are kept', async () => {
    const { supervisor } = supervise({ 0: ['run-exit:1', 'silent'] })
    await log.nth('worker restarting', 1)
    expect(supervisor.past).toMatchObject({ records: 100, outputs: 90, duplicates: 10, transactions: 4, aborts: 1 })
  })
})

describe('exit codes', () => {
  test.each([EXIT_CODES.config, EXIT_CODES.poisoned, EXIT_CODES.slotTaken, EXIT_CODES.state])(
    'exit code %i stops all workers with one clear line and becomes the exit code',
    async (code) => {
      const { finished } = supervise({ 1: [`exit:${code}`] }, { workers: 3 })
      expect(await finished).toBe(code)
      const failed = log.of('failed')
      expect(failed).toHaveLength(1)
      expect(failed[0]).toMatchObject({
        level: 'error',
        message: 'worker 1 cannot go on\nchange the script',
        details: { slot: 1, code, remedy: 'change the script' },
      })
      expect(log.of('worker restarting')).toEqual([])
      expect(log.of('worker exited').map(({ details }) => details['slot'])).toEqual(expect.arrayContaining([0, 1, 2]))
    },
  )

  test.each([EXIT_CODES.fatal, EXIT_CODES.unavailable])(
    'exit code %i before any worker has worked is final: it is a mistake, not a crash',
    async (code) => {
      const { finished } = supervise({ 0: [`exit:${code}`] }, { workers: 3 })
      expect(await finished).toBe(code)
      expect(log.of('worker started')).toHaveLength(1)
    },
  )

  test('a signal is never final', () => {
    expect(exitMeaning(null, 'SIGSEGV', false).reaction).toBe('restart')
    expect(exitMeaning(null, 'SIGKILL', true).reaction).toBe('restart')
    expect(exitMeaning(99, null, true)).toEqual({ reason: 'exit code 99', reaction: 'restart' })
  })

  test('a worker that fails while it stops decides the exit code', async () => {
    const { supervisor, finished } = supervise({ 0: [`fail-to-stop:${EXIT_CODES.unavailable}`] })
    await lines.count('worker 0 works', 1)
    supervisor.stop('SIGTERM')
    expect(await finished).toBe(EXIT_CODES.unavailable)
  })
})

describe('start', () => {
  test('the other workers follow the plan of the first', async () => {
    const plans: WorkerPlan[] = []
    supervise({}, { plan: { workers: 3 }, firstSlot: 5, onPlan: (plan) => plans.push(plan) })
    await Promise.all([5, 6, 7].map((slot) => lines.count(`worker ${slot} works`, 1)))
    expect(log.of('worker started').map(({ details }) => details['slot'])).toEqual([5, 6, 7])
    expect(plans).toHaveLength(1)
  })

  test('a first worker that dies before its plan is started again', async () => {
    const { supervisor } = supervise({ 0: ['silent', 'run'] }, { workers: 2 })
    await lines.count('worker 0 says nothing', 1)
    process.kill(supervisor.workers[0]?.pid ?? 0, 'SIGKILL')
    await lines.count('worker 1 works', 1)
    expect(log.of('worker started').map(({ details }) => details['slot'])).toEqual([0, 0, 1])
  })

  test('every start, exit and restart names slot and pid', async () => {
    const { supervisor } = supervise({})
    await lines.count('worker 0 works', 1)
    const pid = supervisor.workers[0]?.pid
    process.kill(pid ?? 0, 'SIGKILL')
    await log.nth('worker started', 2)
    expect(log.of('worker started')[0]?.details).toEqual({ event: 'worker started', slot: 0, pid })
    expect(log.of('worker exited')[0]?.details).toEqual({
      event: 'worker exited',
      slot: 0,
      pid,
      code: null,
      signal: 'SIGKILL',
      reason: 'killed by SIGKILL',
    })
    expect(log.of('worker restarting')[0]?.details).toEqual({ event: 'worker restarting', slot: 0, delayMs: 1, restarts: 1 })
  })
})

describe('stop', () => {
  test('all workers end in good order, and none is started again', async () => {
    const { supervisor, finished } = supervise({}, { workers: 3 })
    await Promise.all([0, 1, 2].map((slot) => lines.count(`worker ${slot} works`, 1)))
    supervisor.stop('SIGTERM')
    expect(await finished).toBe(EXIT_CODES.ok)
    expect(log.of('worker exited').map(({ details }) => details['reason'])).toEqual([
      'stopped as asked',
      'stopped as asked',
      'stopped as asked',
    ])
    expect(supervisor.workers.map(({ state, pid }) => [state, pid])).toEqual([0, 1, 2].map(() => ['stopped', undefined]))
  })

  test('a worker that waits for its restart is not started any more', async () => {
    const { supervisor, finished } = supervise({}, { backOff: { firstMs: 1_000_000, maxMs: 1_000_000, healthyAfterMs: 0 } })
    await lines.count('worker 0 works', 1)
    process.kill(supervisor.workers[0]?.pid ?? 0, 'SIGKILL')
    await log.nth('worker restarting', 1)
    supervisor.stop('SIGTERM')
    expect(await finished).toBe(EXIT_CODES.ok)
    expect(await readFile(join(folder, 'starts-0'), 'utf8')).toBe('.')
  })

  test('a worker that does not end within the time-out of the plan is killed', async () => {
    const { supervisor, finished } = supervise({ 0: ['deaf'] }, { plan: { shutdownTimeoutMs: 100 } })
    await lines.count('worker 0 works', 1)
    supervisor.stop('SIGTERM')
    expect(await finished).toBe(EXIT_CODES.fatal)
    expect(log.of('worker killed')[0]?.details).toMatchObject({ slot: 0, reason: 'shutdown time-out' })
  })

  test('a second stop kills at once', async () => {
    const { supervisor, finished } = supervise({ 0: ['deaf'] })
    await lines.count('worker 0 works', 1)
    supervisor.stop('SIGINT')
    supervisor.stop('SIGINT')
    expect(await finished).toBe(EXIT_CODES.fatal)
    expect(log.of('worker exited')[0]?.details).toMatchObject({ signal: 'SIGKILL' })
  })

  test('a program that is not there ends the run', async () => {
    const { finished } = supervise({}, { program: join(folder, 'missing.mjs'), output: () => {} })
    expect(await finished).toBe(EXIT_CODES.fatal)
  })
})

describe('states of a child', () => {
  const states = Object.keys(CHILD_TRANSITIONS) as ChildState[]

  test('only these pairs are allowed', () => {
    const allowed = states.flatMap((from) => states.filter((to) => CHILD_TRANSITIONS[from].includes(to)).map((to) => `${from} -> ${to}`))
    expect(allowed).toEqual([
      'waiting -> starting',
      'waiting -> stopped',
      'starting -> waiting',
      'starting -> running',
      'starting -> stopping',
      'starting -> stopped',
      'running -> waiting',
      'running -> stopping',
      'running -> stopped',
      'stopping -> stopped',
    ])
  })

  test('stopped is the end, and every state leads there', () => {
    expect(CHILD_TRANSITIONS.stopped).toEqual([])
    for (const state of states.filter((each) => each !== 'stopped')) expect(CHILD_TRANSITIONS[state]).toContain('stopped')
  })
})
