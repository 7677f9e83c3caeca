/**
 * The rules over a whole topology; each throws a TopologyError that names the steps and says what to do. Rules on a single step are in builder.ts.
 *
 *  V1. Something is read.
 *  V2. Every stream ends in a sink.
 *  V3. A topic is read once: two readers would share one committed offset.
 *  V4. No topic is both read and written, routes and dead letters included: its records would go round for ever.
 *  V5. A topic has the same codecs wherever it is used.
 *  V6. No topic has the name of an internal topic.
 */
import { TopologyError } from '../errors/errors.ts'
import { changelogTopic, tasksTopic } from './internal-topics.ts'
import type { NodeFunctions, SinkTopic, TopologyNode } from './nodes.ts'
import type { DeadLetterTopic, OnError } from './public-types.ts'

export interface BuiltTopology {
  readonly name: string
  readonly nodes: readonly TopologyNode[]
  readonly functions: ReadonlyMap<number, NodeFunctions>
  /** By node id: kind, name and place, for messages. */
  readonly places: ReadonlyMap<number, string>
  readonly onError: OnError
}

interface TopicUse {
  readonly topic: SinkTopic
  readonly direction: 'read' | 'written'
  /** `source 'orders' (file.ts:3)`, `onError of the topology`. */
  readonly by: string
}

export function validateTopology(built: BuiltTopology): void {
  const { name, nodes, places } = built
  const where = `topology '${name}'`
  if (nodes.length === 0) {
    throw new TopologyError(`${where} reads nothing`, {
      code: 'TOPOLOGY_NO_SOURCE',
      remedy: 'Begin with stream(topic) inside the topology function',
    })
  }
  refuseOpenEnds(where, nodes, places)

  const uses = topicUses(built)
  refuseSecondReader(where, uses)
  refuseLoops(where, uses)
  refuseDifferentCodecs(where, uses)
  refuseInternalNames(built, where, uses)
}

/** The dead letter topic an `onError` names; undefined when it names none, or decides by a function. */
export function deadLetterTopicOf(onError: OnError | undefined): DeadLetterTopic | undefined {
  return typeof onError === 'object' ? onError.to : undefined
}

/** Every use of a topic, in build order. */
function topicUses(built: BuiltTopology): readonly TopicUse[] {
  const uses: TopicUse[] = []
  for (const [id, functions] of built.functions) {
    const by = built.places.get(id) ?? `node ${id}`
    switch (functions.kind) {
      case 'source': {
        for (const topic of functions.topics) uses.push({ topic, direction: 'read', by })
        const deadLetters = deadLetterTopicOf(functions.onError)
        if (deadLetters !== undefined) uses.push({ topic: deadLetters, direction: 'written', by: `onError of ${by}` })
        break
      }
      case 'dedupe':
        if (functions.onDuplicate !== 'drop') uses.push({ topic: functions.onDuplicate, direction: 'written', by: `onDuplicate of ${by}` })
        if (functions.late !== 'pass' && functions.late !== 'drop')
          uses.push({ topic: functions.late, direction: 'written', by: `late of ${by}` })
        break
      case 'sink':
        uses.push({ topic: functions.topic, direction: 'written', by })
        break
      case 'map':
      case 'map-values':
      case 'filter':
      case 'filter-not':
      case 'peek':
        break
    }
  }
  const deadLetters = deadLetterTopicOf(built.onError)
  if (deadLetters !== undefined) uses.push({ topic: deadLetters, direction: 'written', by: 'onError of the topology' })
  return uses
}

function refuseOpenEnds(where: string, nodes: readonly TopologyNode[], places: ReadonlyMap<number, string>): void {
  const continued = new Set(nodes.flatMap((node) => node.parents))
  const open = nodes.filter((node) => node.kind !== 'sink' && !continued.has(node.id))
  if (open.length === 0) return
  const list = open.map((node) => places.get(node.id) ?? node.name)
  throw new TopologyError(
    `${where}: ${open.length === 1 ? 'a stream ends' : `${open.length} streams end`} nowhere, after ${list.join(' and after ')}`,
    {
      code: 'TOPOLOGY_STREAM_ENDS_NOWHERE',
      remedy: 'End it with to(topic), or remove it',
    },
  )
}

function refuseSecondReader(where: string, uses: readonly TopicUse[]): void {
  const readers = new Map<string, string>()
  for (const { topic, direction, by } of uses) {
    if (direction !== 'read') continue
    const first = readers.get(topic.name)
    if (first !== undefined) {
      throw new TopologyError(`${where}: topic '${topic.name}' is read twice${first === by ? ` by ${by}` : `, by ${first} and by ${by}`}`, {
        code: 'TOPOLOGY_TOPIC_READ_TWICE',
        remedy: 'Read it once, keep the stream in a variable and build both branches from it',
      })
    }
    readers.set(topic.name, by)
  }
}

function refuseLoops(where: string, uses: readonly TopicUse[]): void {
  for (const written of uses) {
    if (written.direction !== 'written') continue
    const read = uses.find((use) => use.direction === 'read' && use.topic.name === written.topic.name)
    if (read === undefined) continue
    throw new TopologyError(
      `${where}: topic '${written.topic.name}' is both read (${read.by}) and written (${written.by}): what is written would be read again, for ever`,
      {
        code: 'TOPOLOGY_TOPIC_LOOP',
        remedy: 'Write to another topic',
      },
    )
  }
}

function refuseDifferentCodecs(where: string, uses: readonly TopicUse[]): void {
  const first = new Map<string, TopicUse>()
  for (const use of uses) {
    const { name, key, value } = use.topic
    const earlier = first.get(name)
    if (earlier === undefined) {
      first.set(name, use)
      continue
    }
    for (const [what, one, other] of [
      ['key', earlier.topic.key.id, key.id],
      ['value', earlier.topic.value.id, value.id],
    ]) {
      if (one === other) continue
      throw new TopologyError(
        `${where}: topic '${name}' is declared with two ${what} codecs: ${one} (${earlier.by}) and ${other} (${use.by})`,
        {
          code: 'TOPOLOGY_TOPIC_CODECS_DIFFER',
          remedy: 'Declare the topic once and import that value everywhere',
        },
      )
    }
  }
}

function refuseInternalNames(built: BuiltTopology, where: string, uses: readonly TopicUse[]): void {
  const internal = new Set([tasksTopic(built.name)])
  for (const node of built.nodes) if (node.kind === 'dedupe') internal.add(changelogTopic(built.name, node.store))
  const taken = uses.find((use) => internal.has(use.topic.name))
  if (taken === undefined) return
  throw new TopologyError(`${where}: ${taken.by} uses '${taken.topic.name}', which is an internal topic of this topology`, {
    code: 'TOPOLOGY_TOPIC_INTERNAL',
    remedy: 'Give your topic, or the topology, another name',
  })
}
