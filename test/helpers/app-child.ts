/**
 * One worker in a process of its own, to be killed: `node --import tsx app-child.ts '<JSON>'`. Says what happens as JSON lines.
 * A fault strikes in the Kafka client below the adapter, at the n-th call of one operation, so the process dies exactly there.
 */
import { createRequire } from 'node:module'
import { createApp } from '../../src/app.ts'
import type { Config } from '../../src/config/define.ts'
import { string } from '../../src/serde/index.ts'
import { deadLetters, topic, topology } from '../../src/topology/index.ts'
import { jsonOf } from './codecs.ts'

export interface ChildFault {
  readonly operation: 'beginTransaction' | 'flush' | 'sendOffsetsToTransaction' | 'commitTransaction'
  /** Before the call goes out, or when its answer is in. */
  readonly when: 'before' | 'after'
  /** The first call is 1. */
  readonly call: number
  readonly signal: 'SIGKILL' | 'SIGSTOP'
}

/** A record with this id makes the handler end the process, or hold the event loop for so long. Failed records go to `<output>.dead`. */
export interface ChildPoison {
  readonly id: string
  readonly action: 'kill' | 'block'
  readonly blockMs?: number
}

export interface ChildOptions {
  readonly application: string
  readonly input: string
  readonly output: string
  readonly config: Config
  readonly fault?: ChildFault
  readonly poison?: ChildPoison
}

const { application, input, output, config, fault, poison } = JSON.parse(process.argv[2] ?? '{}') as ChildOptions
const say = (event: string, details: object = {}): void => void process.stdout.write(`${JSON.stringify({ event, ...details })}\n`)

if (fault !== undefined) {
  const { Producer } = createRequire(import.meta.url)('@confluentinc/kafka-javascript') as {
    Producer: { prototype: Record<string, (...args: unknown[]) => unknown> }
  }
  const original = Producer.prototype[fault.operation]
  if (original === undefined) throw new Error(`the client has no ${fault.operation}`)
  let calls = 0
  Producer.prototype[fault.operation] = function (this: { globalConfig?: Readonly<Record<string, unknown>> }, ...args: unknown[]) {
    // Of transactions only: a start writes records outside of them as well.
    if (this.globalConfig?.['transactional.id'] === undefined || ++calls !== fault.call) return original.apply(this, args)
    if (fault.when === 'before') {
      process.kill(process.pid, fault.signal)
      return original.apply(this, args)
    }
    const done = args.at(-1) as (...answer: unknown[]) => void
    return original.apply(this, [
      ...args.slice(0, -1),
      (...answer: unknown[]) => {
        process.kill(process.pid, fault.signal)
        done(...answer)
      },
    ])
  }
}

const events = (name: string) => topic(name, { key: string(), value: jsonOf<{ id: string }>() })
function handle({ id }: { id: string }): void {
  if (poison === undefined || id !== poison.id) return
  say('poison', { id })
  if (poison.action === 'kill') process.kill(process.pid, 'SIGKILL')
  const end = performance.now() + (poison.blockMs ?? 0)
  while (performance.now() < end);
}
const app = createApp(
  topology(application, poison === undefined ? {} : { onError: { to: deadLetters(`${output}.dead`) } }, ({ stream }) => {
    stream(events(input))
      .peek(handle)
      .dedupe({ by: (event) => event.id, window: '1h', partitioned: 'by-key' })
      .to(events(output))
  }),
  config,
)
app.on('state', (change) => say('state', change))
app.on('assigned', ({ tasks }) => say('assigned', { tasks }))
app.on('revoked', ({ tasks, lost }) => say('revoked', { tasks, lost }))
app.on('restore', ({ task, records, done, total }) => say('restore', { task, records, done, total }))
app.on('commit', ({ records, reason }) => say('commit', { records, reason }))
process.on('SIGTERM', () => {
  app.close().then(
    () => say('closed'),
    (error: unknown) => say('close failed', { message: String(error) }),
  )
})
app.start().then(
  () => say('running'),
  () => undefined,
)
// Nothing calls process.exit: the process ends when nothing is left in it.
app.finished.catch((error: Error & { exitCode?: number; code?: string }) => {
  say('failed', { name: error.name, message: error.message, code: error.code })
  process.exitCode = error.exitCode ?? 1
})
