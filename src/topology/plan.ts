/** From a topology to what the runtime runs: connected parts, their inputs and stores, and the topics written to. Pure. */
import type { StoreSpec } from '../common/store-spec.ts'
import { TopologyError } from '../errors/errors.ts'
import { fingerprintOf } from './fingerprint.ts'
import type { NodeFunctions, SubTopology, TopologyNode, TopologyPlan } from './nodes.ts'
import type { Topology } from './public-types.ts'
import { isTopology, partsOf } from './topology-parts.ts'
import { deadLetterTopicOf } from './validation.ts'

/** Raise it when a dedupe's rows or changelog records change their meaning. */
const DEDUPE_STORE_VERSION = 1

export function compileTopology(topology: Topology): TopologyPlan {
  if (!isTopology(topology))
    throw new TopologyError('this is not a topology', { code: 'TOPOLOGY_INVALID', remedy: 'Pass what topology() returned' })
  const { functions, onError } = partsOf(topology)
  const subTopologies = connectedParts(topology.nodes).map((nodes, id): SubTopology => {
    return Object.freeze({
      id,
      nodes: Object.freeze(nodes),
      inputs: Object.freeze(nodes.flatMap((node) => (node.kind === 'source' ? node.topics : []))),
      stores: Object.freeze(nodes.flatMap((node) => storesOf(node, functions))),
    })
  })

  const deadLetterTopics = new Set<string>()
  const sinks = new Set<string>()
  for (const each of [onError, ...[...functions.values()].map((entry) => (entry.kind === 'source' ? entry.onError : undefined))]) {
    const deadLetters = deadLetterTopicOf(each)
    if (deadLetters !== undefined) deadLetterTopics.add(deadLetters.name)
  }
  for (const entry of functions.values()) for (const name of topicsWritten(entry)) sinks.add(name)
  for (const name of deadLetterTopics) sinks.add(name)

  return Object.freeze({
    name: topology.name,
    fingerprint: fingerprintOf(subTopologies),
    onError,
    subTopologies: Object.freeze(subTopologies),
    functions,
    sinks: Object.freeze([...sinks]),
    deadLetterTopics: Object.freeze([...deadLetterTopics]),
  })
}

/** Nodes that are connected, in build order; the parts in the order of their first nodes. */
function connectedParts(nodes: readonly TopologyNode[]): readonly TopologyNode[][] {
  const partOf = new Map<number, TopologyNode[]>()
  for (const node of nodes) {
    const part: TopologyNode[] = [node]
    for (const joined of new Set(node.parents.map((parent) => partOf.get(parent)))) part.unshift(...(joined ?? []))
    part.sort((left, right) => left.id - right.id)
    for (const member of part) partOf.set(member.id, part)
  }
  return [...new Set(nodes.map((node) => partOf.get(node.id) ?? []))]
}

function storesOf(node: TopologyNode, functions: ReadonlyMap<number, NodeFunctions>): readonly StoreSpec[] {
  const entry = functions.get(node.id)
  if (node.kind !== 'dedupe' || entry?.kind !== 'dedupe') return []
  return [
    Object.freeze({
      kind: 'dedupe',
      name: node.store,
      windowMs: node.windowMs,
      refresh: node.refresh,
      // A routed duplicate names its original, so the original's place must be remembered.
      keepOrigin: entry.onDuplicate !== 'drop',
      version: DEDUPE_STORE_VERSION,
    }),
  ]
}

function topicsWritten(entry: NodeFunctions): readonly string[] {
  switch (entry.kind) {
    case 'sink':
      return [entry.topic.name]
    case 'dedupe':
      return [entry.onDuplicate, entry.late].flatMap((route) => (typeof route === 'string' ? [] : [route.name]))
    default:
      return []
  }
}
