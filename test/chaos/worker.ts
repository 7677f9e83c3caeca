/**
 * One worker under chaos: the topology of `topology.ts` on the real runtime. Says what happens as JSON lines on stdout; the runner tells it over IPC to stop,
 * or which failpoints to arm. Nothing calls process.exit after a clean stop: what holds the process open is a violation, and is named.
 */
import { readdirSync, readFileSync } from 'node:fs'
import kafka from '@confluentinc/kafka-javascript'
import { createApp } from '../../src/app.ts'
import { armFailpointsFromEnvironment } from '../../src/cli/failpoint-arming.ts'
import { armFailpoints, disarmFailpoints, parseFailpoints } from '../../src/common/failpoints.ts'
import type { Logger } from '../../src/common/ports.ts'
import type { Config } from '../../src/config/define.ts'
import type { WorkerState, WorkerStatus } from '../../src/metrics/status.ts'
import type { Scenario } from './scenario.ts'
import { chaosTopology } from './topology.ts'

export interface WorkerArguments {
  readonly scenario: Scenario
  readonly slot: number
  readonly config: Config
}

export type WorkerOrder =
  | { readonly order: 'stop'; readonly leave: boolean }
  /** `<point>=<action>@<hit>`, counted from now; empty: none. */
  | { readonly order: 'arm'; readonly failpoints: string }

/** What a worker says. `at`: ms since 1970. */
export type WorkerLine = { readonly at: number } & (
  | { readonly event: 'state'; readonly from: WorkerState; readonly to: WorkerState }
  | { readonly event: 'assigned'; readonly tasks: readonly string[] }
  | { readonly event: 'revoked'; readonly tasks: readonly string[]; readonly lost: boolean }
  | { readonly event: 'restore'; readonly task: string; readonly records: number; readonly total: number }
  | { readonly event: 'first commit' }
  | { readonly event: 'status'; readonly status: WorkerStatus; readonly heapBytes: number; readonly bufferBytes: number }
  | { readonly event: 'strike'; readonly text: string }
  | { readonly event: 'log'; readonly level: string; readonly message: string; readonly details: unknown }
  | { readonly event: 'failed'; readonly name: string; readonly message: string; readonly code: string | undefined }
  | { readonly event: 'stalled'; readonly lateMs: number }
  | { readonly event: 'closed' }
  | { readonly event: 'handles left'; readonly resources: readonly string[]; readonly clients: readonly string[] }
)
type Said = WorkerLine extends infer Line ? (Line extends WorkerLine ? Omit<Line, 'at'> : never) : never

export const HANDLES_LEFT_EXIT_CODE = 70
const LINGER_MS = 5_000
const STATUS_INTERVAL_MS = 1_000
const STALL_MS = 2_000

const { scenario, slot, config } = JSON.parse(process.argv[2] ?? '{}') as WorkerArguments
/** Written at once: the next line of code may be the last of this process. */
const say = (line: Said): void => void process.stdout.write(`${JSON.stringify({ at: Date.now(), slot, ...line })}\n`)
const sayStatus = (): void => {
  const { heapUsed, external } = process.memoryUsage()
  say({ event: 'status', status: app.status(), heapBytes: heapUsed, bufferBytes: external })
}
const struck = (text: string): void => say({ event: 'strike', text })

armFailpointsFromEnvironment(struck)
const openClients = trackClients()
const log =
  (level: string): Logger['info'] =>
  (details: object, message: string) =>
    say({ event: 'log', level, message, details })
const logger: Logger = { debug: () => undefined, info: log('info'), warn: log('warn'), error: log('error') }

const app = createApp(chaosTopology(scenario), { ...config, slot, logger })
app.on('state', ({ from, to }) => say({ event: 'state', from, to }))
app.on('assigned', ({ tasks }) => say({ event: 'assigned', tasks }))
app.on('revoked', ({ tasks, lost }) => say({ event: 'revoked', tasks, lost }))
app.on('restore', ({ task, records, total }) => say({ event: 'restore', task, records, total }))
const stopListening = app.on('commit', ({ records }) => {
  if (records === 0) return
  stopListening()
  say({ event: 'first commit' })
})
let expectedAt = performance.now() + STATUS_INTERVAL_MS
const statusTimer = setInterval(() => {
  const lateMs = Math.round(performance.now() - expectedAt)
  expectedAt = performance.now() + STATUS_INTERVAL_MS
  // A machine without time for us, or SIGSTOP: what comes next must not be taken for the runtime's own doing.
  if (lateMs > STALL_MS) say({ event: 'stalled', lateMs })
  sayStatus()
}, STATUS_INTERVAL_MS)

process.on('SIGINT', () => undefined)
process.on('disconnect', () => process.kill(process.pid, 'SIGKILL'))
process.on('message', (message: WorkerOrder) => {
  if (message.order === 'arm') arm(message.failpoints)
  else {
    app.close({ leave: message.leave }).catch((error: unknown) => {
      say({ event: 'failed', name: 'close', message: String(error), code: (error as { code?: string }).code })
      process.exit(1)
    })
  }
})

app.start().catch(() => undefined)
try {
  await app.finished
  sayStatus()
  say({ event: 'closed' })
} catch (error) {
  const { name, message, code, exitCode } = error as Error & { code?: string; exitCode?: number }
  say({ event: 'failed', name, message, code })
  process.exitCode = exitCode ?? 1
}
clearInterval(statusTimer)
process.removeAllListeners('disconnect')
process.removeAllListeners('message')
process.disconnect?.()
setTimeout(() => {
  say({ event: 'handles left', resources: process.getActiveResourcesInfo(), clients: clientsLeft() })
  process.exit(process.exitCode === undefined ? HANDLES_LEFT_EXIT_CODE : Number(process.exitCode))
}, LINGER_MS).unref()

/** Native clients from their connect to the end of their disconnect. */
function trackClients(): Map<object, string> {
  const open = new Map<object, string>()
  for (const kind of ['Producer', 'KafkaConsumer'] as const) {
    const prototype = kafka[kind].prototype as unknown as Record<'connect' | 'disconnect', (this: object, ...args: never[]) => unknown>
    const { connect, disconnect } = prototype
    prototype.connect = function (options, done: (error: unknown) => void) {
      const globalConfig = (this as { globalConfig?: Record<string, unknown> }).globalConfig
      const name = `${kind} ${String(globalConfig?.['transactional.id'] ?? globalConfig?.['client.id'])}`
      open.set(this, `${name} connecting`)
      return connect.call(this, options, ((error: unknown) => {
        open.set(this, `${name} ${error ? 'refused' : 'connected'}`)
        done(error)
      }) as never)
    }
    prototype.disconnect = function (...args: unknown[]) {
      const done = args.pop() as (...results: unknown[]) => void
      open.set(this, `${open.get(this)}, disconnecting`)
      const ended = (...results: unknown[]): void => {
        open.delete(this)
        done(...results)
      }
      return disconnect.call(this, ...([...args, ended] as never[]))
    }
  }
  return open
}

/** Kafka clients that were not closed, and their threads with what they wait in: Node lists none of that. */
function clientsLeft(): string[] {
  try {
    return [...openClients.values(), ...threads()]
  } catch {
    return [...openClients.values()]
  }
}

function threads(): string[] {
  return readdirSync('/proc/self/task').flatMap((id) => {
    const of = (name: string): string => readFileSync(`/proc/self/task/${id}/${name}`, 'utf8').trim()
    return of('comm').startsWith('rdk:') ? [`${of('comm')} in ${of('wchan')}`] : []
  })
}

function arm(text: string): void {
  if (text === '') {
    disarmFailpoints()
    return
  }
  armFailpoints(parseFailpoints(text), ({ point, action, hit }) => {
    struck(`failpoint ${point} ${action} at hit ${hit}`)
    if (action === 'kill') process.kill(process.pid, 'SIGKILL')
    if (action === 'stop') process.kill(process.pid, 'SIGSTOP')
  })
}
