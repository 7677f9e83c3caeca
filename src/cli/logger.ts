/** Logs of supervisor and workers: one JSON object a line (pino), and the same lines made readable for people. */
import pc from 'picocolors'
import type { Logger as Pino } from 'pino'
import { destination, pino, stdTimeFunctions } from 'pino'

type LogLevel = 'debug' | 'info' | 'warn' | 'error'

interface LoggerOptions {
  readonly level: LogLevel
  /** Undefined: the supervisor. */
  readonly slot: number | undefined
  /** Takes whole lines instead of the standard output. */
  readonly write?: (line: string) => void
}

/** Fields of a line: level, time, pid and slot (of a worker) or supervisor (its pid), the details, msg. Writes at once, so that a process that ends has said what it said. */
export function createLogger(options: LoggerOptions): Pino {
  const { write } = options
  const target = write === undefined ? destination({ dest: 1, sync: true }) : { write: (line: string) => write(line.trimEnd()) }
  // The reader of our output may be gone before us (`| head`, a dead supervisor): stopping in good order matters more than the lines.
  if ('on' in target) target.on('error', () => {})
  return pino(
    {
      level: options.level,
      // A supervisor's line carries slot and pid of the worker it is about.
      base: options.slot === undefined ? { supervisor: process.pid } : { pid: process.pid, slot: options.slot },
      timestamp: stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
    },
    target,
  )
}

const LEVELS: Readonly<Record<string, (text: string) => string>> = {
  debug: pc.dim,
  info: pc.green,
  warn: pc.yellow,
  error: pc.red,
  fatal: pc.red,
}
/** Said by the head of the line, or by the message below it. */
const NOT_SHOWN = new Set(['time', 'level', 'msg', 'pid', 'supervisor', 'slot', 'stack'])

/**
 * `12:00:01.250 warn  [1] worker 1 exited (SIGKILL): killed by SIGKILL`. Lines of events say all in their message; of others the details are added.
 * A line that is not one of ours comes back as it is.
 */
export function prettyLine(line: string): string {
  const entry = parse(line)
  if (entry === undefined) return line
  const { time, level, msg, slot, stack } = entry
  const paint = LEVELS[level] ?? ((text: string) => text)
  const details = Object.entries('event' in entry ? {} : entry)
    .filter(([name, value]) => !NOT_SHOWN.has(name) && value !== undefined && value !== null)
    .map(([name, value]) => pc.dim(`${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`))
  const head = [
    pc.dim(time.slice(11, 23)),
    paint(level.padEnd(5)),
    ...(slot === undefined ? [] : [pc.cyan(`[${slot}]`)]),
    msg.replaceAll('\n', '\n  '),
  ]
  return `${[...head, ...details].join(' ')}${stack === undefined ? '' : `\n${pc.dim(stack)}`}`
}

interface Entry extends Readonly<Record<string, unknown>> {
  readonly time: string
  readonly level: string
  readonly msg: string
  readonly slot: number | undefined
  readonly stack: string | undefined
}

function parse(line: string): Entry | undefined {
  if (!line.startsWith('{')) return undefined
  let value: unknown
  try {
    value = JSON.parse(line)
  } catch {
    return undefined
  }
  if (typeof value !== 'object' || value === null) return undefined
  const { time, level, msg, slot, stack } = value as Record<string, unknown>
  if (typeof time !== 'string' || typeof level !== 'string' || typeof msg !== 'string') return undefined
  return {
    ...value,
    time,
    level,
    msg,
    slot: typeof slot === 'number' ? slot : undefined,
    stack: typeof stack === 'string' ? stack : undefined,
  }
}
