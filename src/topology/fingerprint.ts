/**
 * The fingerprint of a topology: names a version of it in `describe` and in the task table. What workers compare is the layout of their tasks (task-table).
 *
 * It covers each node's kind, settings and parents. It leaves out functions (no hash can compare code), ids and the names of stateless steps, and the order in which
 * the branches of one sub-topology were written: none of them changes what a task owns. The order of the sub-topologies stays in, because tasks are
 * numbered by it.
 */
import { createHash } from 'node:crypto'
import type { TopologyNode } from './nodes.ts'

const LENGTH = 16

export function fingerprintOf(subTopologies: readonly { readonly nodes: readonly TopologyNode[] }[]): string {
  const parts = subTopologies.map(({ nodes }) => {
    const hashes = new Map<number, string>()
    // Parents come first (B1), so a node's hash holds its whole ancestry.
    for (const node of nodes) hashes.set(node.id, sha256(nodeText(node, hashes)))
    return [...hashes.values()].sort().join(',')
  })
  return sha256(parts.join(';')).slice(0, LENGTH)
}

function nodeText(node: TopologyNode, hashes: ReadonlyMap<number, string>): string {
  const { id: _id, name: _name, parents, ...data } = node
  // A dedupe's name is its store, which is in the data.
  const fields = Object.entries(data).sort(([left], [right]) => (left < right ? -1 : 1))
  return JSON.stringify([fields, parents.map((parent) => hashes.get(parent))])
}

function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex')
}
