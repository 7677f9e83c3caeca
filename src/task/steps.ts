/**
 * Compiles the nodes below a source into one function per node: `step(value)` with key, timestamp and headers on the shared context.
 * Built once per task; running a record allocates no closure.
 */
import type { HeaderList } from '../broker/port.ts'
import { asBuffer } from '../serde/codec.ts'
import { encodeDedupeId } from '../serde/digest.ts'
import type { DedupeStore } from '../state/store.ts'
import type { DedupeNode, NodeFunctions, SinkTopic, SubTopology, TopologyNode, TopologyPlan } from '../topology/nodes.ts'
import type { Outbox } from './outbox.ts'
import type { ProcessingContext } from './processing-context.ts'
import type { Place, TaskCounters } from './task.ts'

export type Step = (value: unknown) => void

export interface StepSurroundings {
  readonly plan: TopologyPlan
  readonly subTopology: SubTopology
  readonly from: number
  readonly context: ProcessingContext
  readonly place: Place
  readonly outbox: Outbox
  readonly stores: ReadonlyMap<string, DedupeStore>
  readonly counters: TaskCounters
  readonly now: (clock: 'event-time' | 'wall-clock') => number
}

/** The step that runs all children of node `from`. */
export function compileSteps(around: StepSurroundings): Step {
  const children = around.subTopology.nodes.filter((node) => node.parents.includes(around.from))
  const steps = children.map((node) => compileNode(node, { ...around, from: node.id }))
  const [only] = steps
  if (steps.length === 1 && only !== undefined) return only
  return (value) => {
    for (const step of steps) step(value)
  }
}

function functionsOf<Kind extends NodeFunctions['kind']>(plan: TopologyPlan, node: TopologyNode): Extract<NodeFunctions, { kind: Kind }> {
  return plan.functions.get(node.id) as Extract<NodeFunctions, { kind: Kind }>
}

function compileNode(node: TopologyNode, around: StepSurroundings): Step {
  const { plan, context, place } = around
  switch (node.kind) {
    case 'source':
      throw new Error(`a source cannot be below another node: ${node.name}`)
    case 'map': {
      const { map } = functionsOf<'map'>(plan, node)
      const next = compileSteps(around)
      return (value) => {
        place.node = node.name
        context.value = value
        const result = map(value, context)
        if (result === null || typeof result !== 'object' || !('value' in result) || !('key' in result)) {
          throw new TypeError(`map must return { key, value }, not ${describe(result)}`)
        }
        const { key, timestamp } = context
        const headers: HeaderList = context.outputHeaders
        context.key = result.key
        if (result.timestamp !== undefined) context.timestamp = checkedTimestamp(result.timestamp, 'map')
        if (result.headers !== undefined) context.headers = result.headers
        next(result.value)
        context.key = key
        context.timestamp = timestamp
        context.restoreHeaders(headers)
      }
    }
    case 'map-values': {
      const { map } = functionsOf<'map-values'>(plan, node)
      const next = compileSteps(around)
      return (value) => {
        place.node = node.name
        context.value = value
        next(map(value, context))
      }
    }
    case 'filter':
    case 'filter-not': {
      const { predicate } = functionsOf<'filter' | 'filter-not'>(plan, node)
      const wanted = node.kind === 'filter'
      const next = compileSteps(around)
      return (value) => {
        place.node = node.name
        context.value = value
        const verdict = predicate(value, context)
        if (typeof verdict !== 'boolean')
          throw new TypeError(`a ${node.kind} predicate must return true or false, not ${describe(verdict)}`)
        if (verdict === wanted) next(value)
      }
    }
    case 'peek': {
      const { peek } = functionsOf<'peek'>(plan, node)
      const next = compileSteps(around)
      return (value) => {
        place.node = node.name
        context.value = value
        peek(value, context)
        next(value)
      }
    }
    case 'dedupe':
      return compileDedupe(node, around)
    case 'sink': {
      const { topic, partition } = functionsOf<'sink'>(plan, node)
      return compileSend(topic, node.name, around, ...(partition === undefined ? [] : [partition]))
    }
  }
}

function compileDedupe(node: DedupeNode, around: StepSurroundings): Step {
  const { plan, context, place, counters, now } = around
  const { by, onDuplicate, late } = functionsOf<'dedupe'>(plan, node)
  const store = around.stores.get(node.store)
  if (store === undefined) throw new Error(`store ${node.store} of node ${node.name} was not opened`)
  const next = compileSteps(around)
  const sendDuplicate = onDuplicate === 'drop' ? undefined : compileSend(onDuplicate, node.name, around)
  const sendLate = late === 'drop' || late === 'pass' ? undefined : compileSend(late, node.name, around)
  const { windowMs, clock } = node

  return (value) => {
    place.node = node.name
    place.phase = 'process'
    context.value = value
    const id = by === 'key' ? keyId(context) : encodeDedupeId(by(value, context))
    const present = now(clock)
    const time = clock === 'wall-clock' ? present : context.timestamp
    if (store.observe(id, time, present, context.partition, context.offset) === 'first') {
      if (time > present - windowMs) {
        next(value)
        return
      }
      // Older than the window: its id may have been forgotten already, and is not remembered now, since it would be forgotten at once.
      counters.late++
      if (late === 'pass') next(value)
      else sendLate?.(value)
      return
    }
    counters.duplicates++
    if (sendDuplicate === undefined) return
    const headers = context.outputHeaders
    const origin = store.lastOrigin()
    if (origin !== undefined) {
      context.headers = context.headers
        .with('millrace.original.partition', String(origin.partition))
        .with('millrace.original.offset', String(origin.offset))
        .with('millrace.original.time', String(origin.time))
    }
    sendDuplicate(value)
    context.restoreHeaders(headers)
  }
}

/** The record key as id: its bytes as they were read while no `map` changed it. */
function keyId(context: ProcessingContext): string | Uint8Array {
  if (context.key === context.sourceKey) {
    const { key } = context.source
    if (key === null) throw new TypeError('the record has no key, so it has no dedupe id')
    return encodeDedupeId(key)
  }
  return encodeDedupeId(context.key)
}

function compileSend(
  topic: SinkTopic,
  name: string,
  { context, place, outbox }: StepSurroundings,
  partition?: (value: unknown, record: ProcessingContext, partitions: number) => number,
): Step {
  const encodeKey = topic.key.encode as (value: unknown) => Uint8Array | null
  const encodeValue = topic.value.encode as (value: unknown) => Uint8Array | null
  const keyCodec = topic.key.id
  return (value) => {
    place.node = name
    let target: number | null = null
    if (partition !== undefined) {
      place.phase = 'process'
      context.value = value
      target = partition(value, context, outbox.partitions(topic.name))
    }
    place.phase = 'encode'
    const { key } = context
    // Bytes of an unchanged key pass through; an object might have been changed in place.
    const unchanged = key === context.sourceKey && keyCodec === context.sourceKeyCodec && (key === null || typeof key !== 'object')
    const keyBytes = unchanged ? context.source.key : bufferOrNull(encodeKey(key))
    outbox.send(topic.name, target, keyBytes, bufferOrNull(encodeValue(value)), context.timestamp, context.outputHeaders)
    place.phase = 'process'
  }
}

/** A hand-written codec may return a plain Uint8Array. */
function bufferOrNull(bytes: Uint8Array | null): Buffer | null {
  return bytes === null ? null : asBuffer(bytes)
}

/** Event time of a record: a user's function said it. */
export function checkedTimestamp(timestamp: unknown, who: string): number {
  if (typeof timestamp === 'number' && Number.isSafeInteger(timestamp) && timestamp >= 0) return timestamp
  throw new TypeError(
    `${who} gave the timestamp ${JSON.stringify(timestamp) ?? 'undefined'}; it must be a whole number of milliseconds since the epoch`,
  )
}

function describe(value: unknown): string {
  if (value instanceof Promise) return 'a promise (callbacks here are synchronous)'
  if (value === null || value === undefined) return String(value)
  return typeof value === 'object' ? 'an object without them' : `${typeof value} ${JSON.stringify(value)}`
}
