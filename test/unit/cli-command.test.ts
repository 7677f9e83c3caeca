import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'

const MAIN = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))
const LOADER = fileURLToPath(new URL('../fixtures/cli/load-topologies.ts', import.meta.url))
const TSX = import.meta.resolve('tsx')
const BUILDER = new URL('../../src/topology/index.ts', import.meta.url).href
const SERDE = new URL('../../src/serde/index.ts', import.meta.url).href

let folder: string
const running = new Set<ChildProcess>()

interface Result {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  readonly stdout: string
  readonly stderr: string
}

interface Refusal {
  readonly name: string
  readonly message: string
  readonly remedy: string
  readonly exitCode: number
}

/** The command as a process of its own, in the folder of the test, without the options of this environment. */
class Command {
  readonly process: ChildProcess
  stdout = ''
  stderr = ''
  /** When the process has ended and nobody holds its output any more: so its workers have ended as well. */
  readonly ended: Promise<Result>
  #waiting: (() => void)[] = []

  constructor(program: readonly string[], cwd: string, env: Readonly<Record<string, string>>) {
    const inherited = Object.fromEntries(
      Object.entries(process.env).filter(([name]) => !name.startsWith('MILLRACE_') && name !== 'FORCE_COLOR'),
    )
    const child = spawn(process.execPath, ['--import', TSX, ...program], {
      cwd,
      env: { ...inherited, NO_COLOR: '1', ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    this.process = child
    running.add(child)
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      this.stdout += text
      for (const wake of this.#waiting.splice(0)) wake()
    })
    child.stderr.setEncoding('utf8').on('data', (text: string) => (this.stderr += text))
    this.ended = new Promise((resolve, reject) => {
      child.on('error', reject)
      child.on('close', (code, signal) => {
        running.delete(child)
        for (const wake of this.#waiting.splice(0)) wake()
        resolve({ code, signal, stdout: this.stdout, stderr: this.stderr })
      })
    })
  }

  /** Resolves when the output contains the text. */
  async says(text: string): Promise<void> {
    while (!this.stdout.includes(text)) {
      if (!running.has(this.process)) throw new Error(`ended without saying ${text}:\n${this.stdout}\n${this.stderr}`)
      await new Promise<void>((resolve) => this.#waiting.push(resolve))
    }
  }

  /** The JSON lines so far. */
  lines(): readonly Readonly<Record<string, unknown>>[] {
    return this.stdout
      .split('\n')
      .filter((line) => line.startsWith('{'))
      .map((line) => JSON.parse(line) as Readonly<Record<string, unknown>>)
  }
}

function started(program: readonly string[], cwd: string, env: Readonly<Record<string, string>> = {}): Command {
  return new Command(program, cwd, env)
}

function command(args: readonly string[], env?: Readonly<Record<string, string>>): Command {
  return started([MAIN, ...args], folder, env)
}

async function millrace(args: readonly string[], env?: Readonly<Record<string, string>>): Promise<Result> {
  return command(args, env).ended
}

async function file(name: string, text: string): Promise<string> {
  await writeFile(join(folder, name), text)
  return name
}

const ORDERS = `
import { topic, topology } from '${BUILDER}'
import { string } from '${SERDE}'
enum Side { In = 'orders', Out = 'orders.unique' }
const options = { key: string(), value: string() }
export default topology('orders', ({ stream }) => {
  stream(topic(Side.In, options)).dedupe({ by: 'key', window: '1h' }).to(topic(Side.Out, options))
})
`
/** Says so when it is imported, and never finishes. */
const HANGS = `
console.log('importing in', process.pid)
setInterval(() => {}, 1_000_000)
await new Promise(() => {})
export default 1
`

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'millrace-cli-'))
  await file('package.json', '{ "type": "module" }')
})

afterEach(async () => {
  for (const child of running) child.kill('SIGKILL')
  await rm(folder, { recursive: true, force: true })
})

describe('a topology file', () => {
  const cases: readonly (readonly [name: string, text: string | undefined, message: string, remedy: string])[] = [
    ['that is missing', undefined, 'topology topology.ts: there is no such file', 'looked for'],
    ['with a syntax error', 'const a = 1\nexport default {\n', 'topology topology.ts:3:1: syntax error: ', 'mend the line'],
    ['without default export', 'export const a = 1', 'topology topology.ts: it has no default export', 'export default topology('],
    [
      'that exports its topology by name only',
      ORDERS.replace('export default', 'export const orders ='),
      'topology topology.ts: it has no default export; it exports the topology as orders',
      'add: export default orders',
    ],
    ['that exports a number', 'export default 42', 'its default export is a number (42), not a topology', 'export default topology('],
    [
      'that exports a function',
      'export default function build() {}',
      'its default export is the function build, not a topology',
      'export what topology(...) returns',
    ],
    ['that exports a promise', 'export default Promise.resolve(1)', 'its default export is a promise, not a topology', 'await the promise'],
    [
      'that exports an object',
      "export default { kind: 'table', name: 'x' }",
      "its default export is an object of kind 'table', not a topology",
      'export default topology(',
    ],
    [
      'that throws on import',
      "interface A {}\n\nconst a: A = 1\nthrow new RangeError('no such thing')\n",
      'topology topology.ts:4:7: the module threw while it was imported: RangeError: no such thing',
      'must do nothing on import',
    ],
    [
      'that imports a package that is not installed',
      "import 'left-pad-of-another-world'\nexport default 1",
      'topology.ts imports left-pad-of-another-world, which is not there',
      'npm install left-pad-of-another-world',
    ],
    [
      'that imports a file that is not there',
      "import './other.ts'\nexport default 1",
      'topology.ts imports other.ts, which is not there',
      'check the path',
    ],
  ]

  /** One process for all of them: each start costs a second. */
  let refusals: ReadonlyMap<string, Refusal>

  beforeAll(async () => {
    const home = await mkdtemp(join(tmpdir(), 'millrace-cli-'))
    await writeFile(join(home, 'package.json'), '{ "type": "module" }')
    for (const [index, [, text]] of cases.entries()) {
      await mkdir(join(home, String(index)))
      if (text !== undefined) await writeFile(join(home, String(index), 'topology.ts'), text)
    }
    const { stdout, stderr } = await started([LOADER, ...cases.keys()].map(String), home).ended
    expect(stderr).toBe('')
    refusals = new Map((JSON.parse(stdout) as Refusal[]).map((refusal, index) => [cases[index]?.[0] ?? '', refusal]))
    await rm(home, { recursive: true, force: true })
  })

  test.each(cases)('%s is refused in a clear line with a way out', (name, _text, message, remedy) => {
    const refusal = refusals.get(name)
    expect(refusal?.message).toContain(message)
    expect(refusal?.remedy).toContain(remedy)
    expect(refusal?.exitCode).toBe(2)
    expect(['ConfigError', 'TopologyError']).toContain(refusal?.name)
  })

  test('that is refused is told by the command without a stack', async () => {
    await file('topology.ts', 'throw new RangeError("no such thing")')
    const { code, stdout, stderr } = await millrace(['describe', 'topology.ts'])
    expect(stderr).toBe(
      'error: topology topology.ts:1:7: the module threw while it was imported: RangeError: no such thing\n-> a module like this must do nothing on import but declare; move connections and files into functions\n',
    )
    expect([code, stdout]).toEqual([2, ''])
  })

  test('that is a folder is refused', async () => {
    await mkdir(join(folder, 'topology.ts'))
    expect(await millrace(['describe', 'topology.ts'])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('this is a folder, not a file') as string,
    })
  })

  test("whose builder refuses it keeps the builder's words", async () => {
    await file('topology.ts', ORDERS.replace("window: '1h'", "window: '-1h'"))
    const { code, stderr } = await millrace(['describe', 'topology.ts'])
    expect(stderr).toMatch(/error: topology topology\.ts:\d+:\d+: .*window/)
    expect(stderr).not.toMatch(/^ +at /m)
    expect(code).toBe(2)
  })
})

describe('describe', () => {
  test('prints the page of a TypeScript topology', async () => {
    await file('topology.ts', ORDERS)
    const { code, stdout, stderr } = await millrace(['describe', 'topology.ts'])
    expect([code, stderr]).toEqual([0, ''])
    expect(stdout).toContain('Topology orders')
    expect(stdout).toContain('orders-dedupe-changelog')
  })

  test('prints JSON, under another application id', async () => {
    await file('topology.ts', ORDERS)
    const { stdout } = await millrace(['describe', 'topology.ts', '--json', '--application-id', 'shop'])
    const description = JSON.parse(stdout) as { name: string; internalTopics: { name: string }[] }
    expect(description.name).toBe('orders')
    expect(description.internalTopics.map(({ name }) => name)).toContain('shop-tasks')
  })
})

describe('config', () => {
  test('prints each value with its source, the file and its part for the topology included', async () => {
    await file('topology.ts', ORDERS)
    await file(
      'millrace.config.ts',
      "export default { brokers: 'file:9092', commitInterval: '1s', topologies: { orders: { workers: 3 } } } satisfies object",
    )
    const { code, stdout, stderr } = await millrace(['config', 'topology.ts', '--commit-interval', '50ms', '--json'], {
      MILLRACE_INSTANCE: 'env-1',
    })
    expect([code, stderr]).toEqual([0, ''])
    const { options, problems } = JSON.parse(stdout) as { options: Record<string, unknown>; problems: string[] }
    expect(problems).toEqual([])
    expect(options).toMatchObject({
      brokers: { value: ['file:9092'], source: 'file', where: 'millrace.config.ts' },
      workers: { value: 3, source: 'file', where: 'millrace.config.ts, topologies.orders' },
      commitInterval: { value: 50, source: 'flag', where: '--commit-interval', resolvedName: 'commitIntervalMs' },
      instance: { value: 'env-1', source: 'environment', where: 'MILLRACE_INSTANCE' },
      applicationId: { value: 'orders', source: 'default', where: 'name of the topology' },
    })
  })

  test('prints a table for people, no secret in it', async () => {
    const { stdout, code } = await millrace([
      'config',
      '--brokers',
      'b1:9092',
      '--kafka',
      'ssl.key.password=hunter2',
      '--kafka',
      'linger.ms=1',
    ])
    expect(code).toBe(0)
    expect(stdout).toMatch(/brokers +│ b1:9092 +│ flag: --brokers/)
    expect(stdout).toContain('ssl.key.password=[redacted]')
    expect(stdout).toContain('linger.ms=1')
    expect(stdout).not.toContain('hunter2')
  })

  test('prints what is wrong below the table, with exit code 2', async () => {
    await file('other.config.ts', 'export default () => ({ brokrs: 1 })')
    const { code, stdout, stderr } = await millrace(['config', '--config', 'other.config.ts', '--workers', 'x'])
    expect(code).toBe(2)
    expect(stdout).toContain('commitInterval')
    expect(stderr).toContain('error: brokrs (other.config.ts) is no option; did you mean brokers?')
    expect(stderr).toContain('error: workers (--workers): "x" is not a whole number')
  })

  test('refuses a configuration file that exports none', async () => {
    await file('millrace.config.ts', 'export const config = {}')
    expect(await millrace(['config'])).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('configuration file millrace.config.ts: it has no default export') as string,
    })
  })
})

describe('arguments', () => {
  test('--help shows examples and exit codes', async () => {
    const { code, stdout } = await millrace(['run', '--help'])
    expect(code).toBe(0)
    expect(stdout).toContain('$ millrace run topologies/order-dedupe.ts --brokers localhost:9092')
    expect(stdout).toContain('5 slot taken by another process')
  })

  test.each([[['run', 'a.ts', '--comit-interval', '5']], [['config', '--kafka', 'x']]])(
    '%o ends with exit code 2 and a hint',
    async (args) => {
      const { code, stderr } = await millrace(args)
      expect(code).toBe(2)
      expect(stderr).toContain('error: ')
      expect(stderr).toContain('millrace --help shows')
    },
  )
})

describe('run', () => {
  test('tells a wrong topology once, whatever the number of workers, and exits with code 2', async () => {
    await file('topology.ts', 'export default { pool: process.env.UV_THREADPOOL_SIZE }')
    const run = command(['run', 'topology.ts', '--brokers', 'localhost:1', '--workers', '3'])
    expect(await run.ended).toMatchObject({ code: 2, stderr: '' })
    const failed = run.lines().filter(({ event }) => event === 'failed')
    expect(failed).toHaveLength(1)
    expect(failed[0]).toMatchObject({
      level: 'error',
      slot: 0,
      code: 2,
      errorCode: 'NOT_A_TOPOLOGY',
      msg: expect.stringContaining('an object with pool, not a topology') as string,
    })
    expect(run.lines().filter(({ event }) => event === 'worker started')).toHaveLength(1)
  })

  test('tells missing brokers and every other wrong option before anything starts working', async () => {
    await file('topology.ts', ORDERS)
    const run = command(['run', 'topology.ts'], { MILLRACE_HEARTBEAT_INTERVAL: '20s' })
    expect((await run.ended).code).toBe(2)
    const message = run.lines().find(({ event }) => event === 'failed')?.['msg']
    expect(message).toContain('brokers: no value')
    expect(message).toContain('heartbeatInterval 20s does not go with sessionTimeout 30s')
  })

  test('writes for people when asked to', async () => {
    await file('topology.ts', 'export default 1')
    const { code, stdout } = await millrace(['run', 'topology.ts', '--brokers', 'localhost:1', '--log-format', 'pretty'])
    expect(code).toBe(2)
    expect(stdout).toMatch(
      /^\d\d:\d\d:\d\d\.\d{3} error \[0\] topology topology\.ts: its default export is a number \(1\), not a topology$/m,
    )
    expect(stdout).not.toContain('{"')
  })

  test('gives its workers a thread pool large enough for all their clients', async () => {
    await file('topology.ts', "console.log('pool', process.env.UV_THREADPOOL_SIZE)\nexport default 1")
    expect((await millrace(['run', 'topology.ts', '--brokers', 'a:1'])).stdout).toMatch(/^pool 26$/m)
    expect((await millrace(['run', 'topology.ts', '--brokers', 'a:1'], { UV_THREADPOOL_SIZE: '64' })).stdout).toMatch(/^pool 64$/m)
  })

  test('stops on SIGTERM with exit code 0, also while a topology hangs in its import', async () => {
    await file('topology.ts', HANGS)
    const run = command(['run', 'topology.ts', '--brokers', 'localhost:1'])
    await run.says('importing in')
    run.process.kill('SIGTERM')
    expect(await run.ended).toMatchObject({ code: 0, signal: null })
    expect(run.lines().at(-1)).toMatchObject({ event: 'ended', exitCode: 0 })
  })

  test('leaves no worker behind when it is killed with -9', async () => {
    await file('topology.ts', HANGS)
    const run = command(['run', 'topology.ts', '--brokers', 'localhost:1'])
    await run.says('importing in')
    run.process.kill('SIGKILL')
    // Resolves only when the last holder of the output, the worker, is gone.
    expect(await run.ended).toMatchObject({ code: null, signal: 'SIGKILL' })
    expect(run.lines().at(-1)).toMatchObject({ event: 'supervisor gone', slot: 0 })
  })

  test('an uncaught exception in a worker is logged with its stack', async () => {
    await file('topology.ts', `setTimeout(() => { throw new Error('out of nowhere') }, 0)\n${HANGS}`)
    const run = command(['run', 'topology.ts', '--brokers', 'localhost:1'])
    expect((await run.ended).code).toBe(1)
    expect(run.lines().find(({ event }) => event === 'crashed')).toMatchObject({
      level: 'fatal',
      slot: 0,
      msg: 'uncaught exception: out of nowhere',
      stack: expect.stringContaining('topology.ts:1') as string,
    })
    expect(run.lines().find(({ event }) => event === 'worker exited')).toMatchObject({
      code: 1,
      reason: 'uncaught exception: out of nowhere',
    })
  })
})
