/**
 * The Java tools of the Kafka distribution, run against a provided broker: checks by a client that shares nothing with ours.
 */
import { spawn, type ChildProcessByStdio } from 'node:child_process'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import type { JavaTools } from './types.ts'

export const CONSOLE_CONSUMER = 'org.apache.kafka.tools.consumer.ConsoleConsumer'
export const TRANSACTIONS_COMMAND = 'org.apache.kafka.tools.TransactionsCommand'
export const CONSUMER_GROUP_COMMAND = 'org.apache.kafka.tools.consumer.group.ConsumerGroupCommand'
export const TOPIC_COMMAND = 'org.apache.kafka.tools.TopicCommand'
export const GET_OFFSETS = 'org.apache.kafka.tools.GetOffsetShell'

/** Unlikely in data, harmless in an argument list. */
const FIELD_SEPARATOR = '\u0001'
const NULL_LITERAL = '\u0002null'
const DEFAULT_IDLE_MS = 10_000
const ERROR_TAIL_CHARACTERS = 4_000

export interface ToolResult {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

/**
 * Runs a tool to its end. `--bootstrap-server` is put in front of `args`.
 * Resolves for every exit code; rejects when it cannot be started.
 */
export async function javaTool(tools: JavaTools, mainClass: string, args: readonly string[]): Promise<ToolResult> {
  const child = launch(tools, mainClass, ['--bootstrap-server', tools.bootstrap, ...args])
  const output: Buffer[] = []
  const errors: Buffer[] = []
  child.stdout.on('data', (chunk: Buffer) => output.push(chunk))
  child.stderr.on('data', (chunk: Buffer) => errors.push(chunk))
  const code = await exitOf(child)
  return { code, stdout: Buffer.concat(output).toString('utf8'), stderr: Buffer.concat(errors).toString('utf8') }
}

export interface ConsumedRecord {
  readonly partition: number
  readonly offset: number
  /** Milliseconds since 1970. */
  readonly timestamp: number
  readonly key: string | null
  readonly value: string | null
}

export interface ConsoleConsumerOptions {
  readonly topic: string
  /** Default: `'read_committed'`. */
  readonly isolation?: 'read_committed' | 'read_uncommitted'
  /** One partition only. */
  readonly partition?: number
  /** The reader ends when nothing came for this long; it must exceed the start of a JVM on a busy machine. Default: 10,000. */
  readonly idleMs?: number
}

/**
 * Streams the records of a topic from its beginning until nothing more comes, by the console consumer.
 * Keys and values are read as UTF-8 text; a value that holds a line feed is refused, as it would be taken for two records.
 */
export async function* consoleConsumer(tools: JavaTools, options: ConsoleConsumerOptions): AsyncGenerator<ConsumedRecord, void, undefined> {
  const property = isAtLeast(tools.version, 4, 2) ? '--formatter-property' : '--property'
  const format: Readonly<Record<string, string>> = {
    'print.timestamp': 'true',
    'print.partition': 'true',
    'print.offset': 'true',
    'print.key': 'true',
    'key.separator': FIELD_SEPARATOR,
    'null.literal': NULL_LITERAL,
  }
  const child = launch(tools, CONSOLE_CONSUMER, [
    '--bootstrap-server',
    tools.bootstrap,
    '--topic',
    options.topic,
    '--isolation-level',
    options.isolation ?? 'read_committed',
    '--timeout-ms',
    String(options.idleMs ?? DEFAULT_IDLE_MS),
    ...(options.partition === undefined ? ['--from-beginning'] : ['--partition', String(options.partition), '--offset', 'earliest']),
    ...Object.entries(format).flatMap(([name, value]) => [property, `${name}=${value}`]),
  ])
  let errors = ''
  child.stderr.on('data', (chunk: Buffer) => {
    errors = (errors + chunk.toString('utf8')).slice(-ERROR_TAIL_CHARACTERS)
  })
  const exit = exitOf(child)
  // Looked at below; without this a tool that cannot be started is an unhandled rejection while the lines are awaited.
  exit.catch(() => undefined)
  try {
    for await (const line of createInterface({ input: child.stdout, crlfDelay: Number.POSITIVE_INFINITY }))
      yield parseRecord(line, options.topic)
    const code = await exit
    // The end by --timeout-ms is an exception in its log, and still exit code 0 or 1 by version.
    if (code !== 0 && !/TimeoutException|Processed a total of/.test(errors)) {
      throw new Error(`the console consumer of topic ${options.topic} failed with exit code ${code}: ${errors.trim()}`)
    }
    if (/UnknownTopicOrPartition|UNKNOWN_TOPIC_OR_PARTITION/.test(errors))
      throw new Error(`topic ${options.topic} does not exist: ${errors.trim()}`)
  } finally {
    child.kill('SIGKILL')
  }
}

/** One printed line: `CreateTime:1700000000000 <sep> Partition:0 <sep> Offset:12 <sep> key <sep> value`. */
export function parseRecord(line: string, topic: string): ConsumedRecord {
  const fields = line.split(FIELD_SEPARATOR)
  const timestamp = /^(?:CreateTime|LogAppendTime):(-?\d+)$/.exec(fields[0] ?? '')?.[1] ?? (fields[0] === 'NO_TIMESTAMP' ? '-1' : undefined)
  const partition = /^Partition:(\d+)$/.exec(fields[1] ?? '')?.[1]
  const offset = /^Offset:(\d+)$/.exec(fields[2] ?? '')?.[1]
  if (fields.length !== 5 || timestamp === undefined || partition === undefined || offset === undefined) {
    throw new Error(
      `topic ${topic}: the console consumer printed a line that is no record (a value with a line feed?): ${JSON.stringify(line.slice(0, 200))}`,
    )
  }
  return {
    partition: Number(partition),
    offset: Number(offset),
    timestamp: Number(timestamp),
    key: textOf(fields[3]),
    value: textOf(fields[4]),
  }
}

function textOf(field: string | undefined): string | null {
  return field === undefined || field === NULL_LITERAL ? null : field
}

function launch(tools: JavaTools, mainClass: string, args: readonly string[]): ChildProcessByStdio<null, Readable, Readable> {
  if (tools.via === 'container') {
    return spawn('docker', ['exec', tools.containerId, '/opt/kafka/bin/kafka-run-class.sh', mainClass, ...args], {
      stdio: ['ignore', 'pipe', 'pipe'],
    })
  }
  const flags = [
    '-Xmx256m',
    '-XX:TieredStopAtLevel=1',
    '-XX:+UseSerialGC',
    '-Dorg.slf4j.simpleLogger.defaultLogLevel=warn',
    '-Dfile.encoding=UTF-8',
    '-Dstdout.encoding=UTF-8',
  ]
  return spawn(tools.java, [...flags, '-cp', tools.classpath, mainClass, ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
}

function exitOf(child: ChildProcessByStdio<null, Readable, Readable>): Promise<number> {
  return new Promise((resolve, reject) => {
    child.once('error', reject)
    child.once('close', (code, signal) => {
      if (signal === null) resolve(code ?? 1)
      else reject(new Error(`the Java tool was ended by ${signal}`))
    })
  })
}

function isAtLeast(version: string, major: number, minor: number): boolean {
  const [ownMajor = 0, ownMinor = 0] = version.split('.').map(Number)
  return ownMajor > major || (ownMajor === major && ownMinor >= minor)
}
