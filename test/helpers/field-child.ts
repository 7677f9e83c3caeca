/**
 * One worker in a process of its own whose handler does something at one id, right after the id was remembered: `node --import tsx field-child.ts '<JSON>'`.
 * Says what happens as JSON lines.
 */
import { createApp } from '../../src/app.ts'
import type { Config } from '../../src/config/define.ts'
import { string } from '../../src/serde/index.ts'
import { deadLetters, topic, topology } from '../../src/topology/index.ts'
import { jsonOf } from './codecs.ts'

export interface FieldChildOptions {
  readonly application: string
  readonly input: string
  readonly output: string
  /** Dead letters. */
  readonly failed: string
  readonly mark: string
  /** `block`: the event loop stands still for `blockMs`, at the first record of that id. */
  readonly onMark: 'kill' | 'throw' | 'pass' | 'block'
  readonly blockMs?: number
  readonly config: Config
}

const { application, input, output, failed, mark, onMark, blockMs, config } = JSON.parse(process.argv[2] ?? '{}') as FieldChildOptions
const say = (event: string, details: object = {}): void => void process.stdout.write(`${JSON.stringify({ event, ...details })}\n`)
const events = (name: string) => topic(name, { key: string(), value: jsonOf<{ id: string }>() })
let marked = 0

const app = createApp(
  topology(application, { onError: { to: deadLetters(failed) } }, ({ stream }) => {
    stream(events(input))
      .dedupe({ by: (event) => event.id, window: '1h', partitioned: 'by-key' })
      .mapValues((event) => {
        if (event.id !== mark) return event
        marked++
        if (onMark === 'kill') process.kill(process.pid, 'SIGKILL')
        if (onMark === 'throw') throw new RangeError('unlucky')
        if (onMark === 'block' && marked === 1) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, blockMs)
        say('marked', { marked })
        return event
      })
      .to(events(output))
  }),
  {
    ...config,
    logger: {
      debug() {},
      info: (details, message) => say('log', { level: 'info', message, details }),
      warn: (details, message) => say('log', { level: 'warn', message, details }),
      error: (details, message) => say('log', { level: 'error', message, details }),
    },
  },
)
app.on('assigned', ({ tasks }) => say('assigned', { tasks }))
app.on('revoked', ({ tasks, lost }) => say('revoked', { tasks, lost }))
app.on('commit', ({ records, reason }) => say('commit', { records, reason }))
process.on('SIGTERM', () => {
  app.close().catch((error: unknown) => say('close failed', { message: String(error) }))
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
