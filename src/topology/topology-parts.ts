/**
 * What a `Topology` carries besides its plain data: the functions and codecs of its nodes.
 *
 * They hang under a global symbol, not enumerable, so that the topology itself stays plain data, and a topology built by one copy of the package runs in
 * another (the command's own copy and the project's, say).
 */
import { TopologyError } from '../errors/errors.ts'
import type { NodeFunctions } from './nodes.ts'
import type { OnError, Topology } from './public-types.ts'

const PARTS = Symbol.for('millrace.topology.parts')
/** Raise it when the nodes or the parts change so that an older copy would misread them. */
const FORMAT = 1

export interface TopologyParts {
  readonly onError: OnError
  readonly functions: ReadonlyMap<number, NodeFunctions>
}

export function attachParts(topology: object, parts: TopologyParts): void {
  Object.defineProperty(topology, PARTS, { value: Object.freeze({ format: FORMAT, ...parts }), enumerable: false })
}

/** Whether a value (a module's default export, say) is a topology. By its shape, not its class. */
export function isTopology(value: unknown): value is Topology {
  const topology = value as Partial<Topology> | null | undefined
  return (
    typeof topology === 'object' &&
    topology !== null &&
    topology.kind === 'topology' &&
    typeof topology.name === 'string' &&
    Array.isArray(topology.nodes)
  )
}

export function partsOf(topology: Topology): TopologyParts {
  const parts = (topology as { [PARTS]?: TopologyParts & { readonly format: number } })[PARTS]
  if (parts === undefined) {
    throw new TopologyError(
      `topology '${topology.name}' has no functions: it is a copy of a topology's data, not what topology() returned`,
      {
        code: 'TOPOLOGY_PARTS_MISSING',
        remedy: 'Pass the object that topology() returned',
      },
    )
  }
  if (parts.format !== FORMAT) {
    throw new TopologyError(
      `topology '${topology.name}' was built by another version of millrace (format ${parts.format}, this one reads ${FORMAT})`,
      {
        code: 'TOPOLOGY_FORMAT_UNKNOWN',
        remedy: 'Install one version of millrace for the topology and for the command that runs it',
      },
    )
  }
  return parts
}
