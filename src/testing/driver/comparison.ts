/**
 * What a run came to, and how two runs of one input differ.
 *
 * Owns: which order the topology determines. A `pipe` is committed before the next one begins, and writes to one topic, so each task of it reads one
 * partition; records of one task keep their order, those of several tasks have none among each other.
 */
import type { TopologyPlan } from '../../topology/nodes.ts'
import type { LogRecord } from '../sim/cluster/partition-log.ts'
import { stateOf, type StateResult } from './dedupe-state.ts'
import type { DriverWorld, InputRecord } from './driver-world.ts'
import { committedRecords } from './outputs.ts'

/** What determines the order of the outputs of one step of the input. */
export type OutputOrder = 'all' | 'by key' | 'none'

/** One step of the input, done. */
export interface Segment {
  /** For people: `pipe 2 (orders, 3 records)`. */
  readonly name: string
  readonly order: OutputOrder
  /** Ends of the output partitions after it, by name. */
  readonly ends: ReadonlyMap<string, number>
}

export interface RunResult {
  readonly segments: readonly {
    readonly name: string
    readonly order: OutputOrder
    readonly outputs: ReadonlyMap<string, readonly ShownRecord[]>
  }[]
  readonly state: StateResult
}

interface ShownRecord {
  readonly key: string
  /** Everything that must be equal. */
  readonly identity: string
  /** For people: long contents are cut. */
  readonly text: string
}

/** Of a dead letter: they tell how often the record was tried, and from where. */
const HEADERS_THAT_MAY_DIFFER: readonly string[] = ['millrace.attempts', 'millrace.stack']
const SHOWN_CHARACTERS = 200

export function orderOf(plan: TopologyPlan, records: readonly InputRecord[]): OutputOrder {
  if (new Set(records.map(({ partition }) => partition)).size <= 1) return 'all'
  const changesKeys = plan.subTopologies.some(({ nodes }) => nodes.some(({ kind }) => kind === 'map'))
  if (changesKeys) return 'none'
  const partitionOf = new Map<string, number>()
  for (const { partition, record } of records) {
    const key = record.key?.toString('latin1')
    if (key === undefined || (partitionOf.get(key) ?? partition) !== partition) return 'none'
    partitionOf.set(key, partition)
  }
  return 'by key'
}

export function endsOf({ simulation, options }: DriverWorld): ReadonlyMap<string, number> {
  const ends = new Map<string, number>()
  for (const topic of options.topics)
    simulation.cluster.topics
      .topic(topic)
      .partitions.forEach(({ highWatermark }, partition) => ends.set(`${topic}[${partition}]`, highWatermark))
  return ends
}

export function resultOf(world: DriverWorld, segments: readonly Segment[]): RunResult {
  const inputs = new Set(world.options.plan.subTopologies.flatMap((sub) => sub.inputs))
  const outputs = world.options.topics.filter((topic) => !inputs.has(topic))
  const records = outputs.flatMap((topic) =>
    committedRecords(world.simulation.cluster, topic).map((record) => ({ name: `${topic}[${record.partition}]`, record })),
  )
  return {
    segments: segments.map(({ name, order, ends }, index) => {
      const from = segments[index - 1]?.ends
      const found = new Map<string, ShownRecord[]>()
      for (const { name: partition, record } of records) {
        if (record.offset < (from?.get(partition) ?? 0) || record.offset >= (ends.get(partition) ?? 0)) continue
        found.set(partition, [...(found.get(partition) ?? []), shown(record)])
      }
      return { name, order, outputs: found }
    }),
    state: stateOf(world),
  }
}

/** How `found` differs from `expected`, in words; empty when it does not. */
export function differences(expected: RunResult, found: RunResult): string[] {
  if (expected.segments.map(({ name }) => name).join() !== found.segments.map(({ name }) => name).join()) {
    const list = ({ segments }: RunResult): string => segments.map(({ name }) => name).join(', ') || 'nothing'
    return [`the input is not the same: ${list(found)} instead of ${list(expected)}`]
  }
  const all: string[] = []
  expected.segments.forEach(({ name, order, outputs }, index) => {
    const others = found.segments[index]?.outputs
    for (const partition of new Set([...outputs.keys(), ...(others?.keys() ?? [])])) {
      for (const difference of differentRecords(outputs.get(partition) ?? [], others?.get(partition) ?? [], order))
        all.push(`${name}: ${partition} ${difference}`)
    }
  })
  for (const [where, ids] of expected.state.stores) {
    const others = found.state.stores.get(where)
    const lacking = [...ids].filter(([key, { text }]) => others?.get(key)?.text !== text).length
    const more = [...(others?.keys() ?? [])].filter((key) => !ids.has(key)).length
    if (lacking > 0) all.push(`${where} does not know ${lacking} of ${ids.size} ids, or not as of that time`)
    if (more > 0) all.push(`${where} knows ${more} ids that it should not know`)
  }
  return [...all, ...found.state.problems]
}

function differentRecords(expected: readonly ShownRecord[], found: readonly ShownRecord[], order: OutputOrder): string[] {
  const missing = without(expected, found)
  const extra = without(found, expected)
  const all = [...missing.map(({ text }) => `lacks ${text}`), ...extra.map(({ text }) => `has, and should not have, ${text}`)]
  if (all.length > 0) return all
  if (order === 'none' || isSameOrder(expected, found, order)) return []
  return [`has its records in another order: ${found.map(({ text }) => text).join(', ')}`]
}

function isSameOrder(expected: readonly ShownRecord[], found: readonly ShownRecord[], order: 'all' | 'by key'): boolean {
  const inOrder = (records: readonly ShownRecord[]): string => {
    const groups = new Map<string, string[]>()
    for (const { key, identity } of records) {
      const group = order === 'all' ? '' : key
      groups.set(group, [...(groups.get(group) ?? []), identity])
    }
    return JSON.stringify([...groups].sort(([left], [right]) => (left < right ? -1 : 1)))
  }
  return inOrder(expected) === inOrder(found)
}

/** Those of the first that the second has not, as often as it has not. */
function without(records: readonly ShownRecord[], others: readonly ShownRecord[]): ShownRecord[] {
  const counts = new Map<string, number>()
  for (const { identity } of others) counts.set(identity, (counts.get(identity) ?? 0) + 1)
  return records.filter(({ identity }) => {
    const count = counts.get(identity) ?? 0
    counts.set(identity, count - 1)
    return count <= 0
  })
}

function shown({ key, value, timestamp, headers }: LogRecord): ShownRecord {
  const compared = headers.filter(([name]) => !HEADERS_THAT_MAY_DIFFER.includes(name))
  const withHeaders = compared.map(([name, bytes]) => `${name}=${bytesText(bytes)}`)
  return {
    key: hexOf(key),
    identity: JSON.stringify([hexOf(key), hexOf(value), timestamp, compared.map(([name, bytes]) => [name, hexOf(bytes)])]),
    text: `${bytesText(key)}: ${bytesText(value)} at ${timestamp}${compared.length === 0 ? '' : ` with ${withHeaders.join(', ')}`}`,
  }
}

function hexOf(bytes: Buffer | null): string {
  return bytes?.toString('hex') ?? 'null'
}

/** Text where it is text, else hexadecimal digits. */
function bytesText(bytes: Buffer | null): string {
  if (bytes === null) return 'null'
  const text = bytes.toString('utf8')
  const isText = Buffer.from(text).equals(bytes) && !/\p{Cc}/u.test(text)
  const all = isText ? text : `0x${bytes.toString('hex')}`
  return all.length <= SHOWN_CHARACTERS ? all : `${all.slice(0, SHOWN_CHARACTERS)}... (${bytes.length} bytes)`
}
