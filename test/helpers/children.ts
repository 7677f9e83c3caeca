/** Worker processes of their own: `app-child.ts`, and the command line. Every one is gone at the end of its test. */
import { spawn, type ChildProcess } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { onTestFinished } from 'vitest'
import type { Config } from '../../src/config/define.ts'
import type { ChildFault, ChildOptions, ChildPoison } from './app-child.ts'
import { QUICK, temporaryFolder, type Scene } from './apps.ts'
import { until } from './condition.ts'
import { brokers } from './kafka.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))

export interface Line {
  readonly event?: string
  readonly [name: string]: unknown
}
export interface Exit {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
}

export class Child {
  readonly process: ChildProcess
  /** What it said, line by line, with the ms since its start as `at`; lines that are no JSON as `{ text }`. */
  readonly lines: Line[] = []
  readonly #startedAt = performance.now()
  readonly exit: Promise<Exit>
  #ended: Exit | undefined

  constructor(args: readonly string[]) {
    const child = spawn(process.execPath, ['--import', 'tsx', ...args], { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] })
    this.process = child
    for (const stream of [child.stdout, child.stderr])
      createInterface({ input: stream }).on('line', (line) =>
        this.lines.push({ ...parsed(line), at: Math.round(performance.now() - this.#startedAt) }),
      )
    this.exit = new Promise((resolve) => {
      child.once('close', (code, signal) => {
        this.#ended = { code, signal }
        resolve(this.#ended)
      })
    })
    onTestFinished(async () => {
      // A stopped process takes its SIGKILL too.
      if (this.#ended === undefined) child.kill('SIGKILL')
      await this.exit
    })
  }

  get text(): string {
    return this.lines.map((line) => JSON.stringify(line)).join('\n')
  }

  of(event: string): Line[] {
    return this.lines.filter((line) => line.event === event)
  }

  /** Waits for a line; a process that ends first is an error with all it said. */
  async says(event: string, times = 1): Promise<void> {
    await until(`the child to say ${event}`, () => {
      if (this.of(event).length >= times) return true
      if (this.#ended !== undefined)
        throw new Error(`the child ended (${JSON.stringify(this.#ended)}) before it said ${event}:\n${this.text}`)
      return false
    })
  }

  signal(signal: NodeJS.Signals): void {
    this.process.kill(signal)
  }

  async kill(): Promise<void> {
    this.signal('SIGKILL')
    await this.exit
  }
}

function parsed(line: string): Line {
  try {
    const value = JSON.parse(line) as unknown
    if (typeof value === 'object' && value !== null) return value as Line
  } catch {
    // Not ours: a stack, a warning of Node.
  }
  return { text: line }
}

/** A worker on the dedupe topology of `app-child.ts`. */
export function workerChild(scene: Scene, config: Partial<Config> = {}, fault?: ChildFault, poison?: ChildPoison): Child {
  const options: ChildOptions = {
    application: scene.application,
    input: scene.input,
    output: scene.output,
    config: { brokers, instance: 'child', stateDir: scene.stateDir, ...QUICK, ...config },
    ...(fault === undefined ? {} : { fault }),
    ...(poison === undefined ? {} : { poison }),
  }
  return new Child([join(root, 'test/helpers/app-child.ts'), JSON.stringify(options)])
}

/** `millrace run` on a topology given as source text; `millrace` is imported from this repository's source. */
export function commandChild(source: string, flags: readonly string[]): Child {
  const file = join(temporaryFolder(), 'topology.ts')
  writeFileSync(file, source.replaceAll("'millrace'", JSON.stringify(join(root, 'src/index.ts'))))
  return new Child([join(root, 'src/cli/main.ts'), 'run', file, '--log-format', 'json', ...flags])
}

export function dedupeSource({ application, input, output }: Scene, onError = "'fail'"): string {
  return `
    import { deadLetters, json, string, topic, topology } from 'millrace'
    const events = (name: string) => topic(name, { key: string(), value: json<{ id: string }>() })
    void deadLetters
    export default topology('${application}', { onError: ${onError} }, ({ stream }) => {
      stream(events('${input}')).dedupe({ by: (event) => event.id, window: '1h', partitioned: 'by-key' }).to(events('${output}'))
    })`
}
