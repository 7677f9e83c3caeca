/** A topology module: its default export is one topology, recognised by `kind` (not `instanceof`, so two copies of the package still work). */
import { TopologyError } from '../errors/errors.ts'
import type { Topology } from '../topology/index.ts'
import { isTopology } from '../topology/index.ts'
import { loadModule } from './load-module.ts'

/** Throws ConfigError (missing file, syntax, missing import, thrown on import) or TopologyError (no default export, not a topology). */
export async function loadTopology(path: string): Promise<Topology> {
  const exports = await loadModule(path, 'topology')
  const value = defaultOf(exports)
  if (isTopology(value)) return value
  if (value === undefined) {
    const named = Object.keys(exports).filter((name) => isTopology(exports[name]))
    const hint = named.length > 0 ? `; it exports the topology as ${named.join(', ')}` : ''
    throw new TopologyError(`topology ${path}: it has no default export${hint}`, {
      code: 'NO_DEFAULT_EXPORT',
      remedy:
        named.length > 0 ? `add: export default ${named[0] ?? ''}` : "write: export default topology('name', ({ stream }) => { ... })",
    })
  }
  throw new TopologyError(`topology ${path}: its default export is ${describeValue(value)}, not a topology`, {
    code: 'NOT_A_TOPOLOGY',
    remedy: adviceFor(value),
  })
}

/** CommonJS (`.cts`) puts the default export one level down. */
function defaultOf(exports: Readonly<Record<string, unknown>>): unknown {
  const value = exports['default']
  return typeof value === 'object' &&
    value !== null &&
    !isTopology(value) &&
    'default' in value &&
    Object.keys(exports).every((name) => name === 'default' || name === 'module.exports')
    ? value.default
    : value
}

function describeValue(value: unknown): string {
  if (value === null) return 'null'
  if (Array.isArray(value)) return `a list of ${value.length}`
  if (value instanceof Promise) return 'a promise'
  if (typeof value === 'function') return value.name === '' || value.name === 'default' ? 'a function' : `the function ${value.name}`
  if (typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean')
    return `a ${typeof value} (${JSON.stringify(value)})`
  if (typeof value !== 'object') return `a ${typeof value}`
  if ('kind' in value && typeof value.kind === 'string') return `an object of kind '${value.kind}'`
  const keys = Object.keys(value)
  return keys.length === 0 ? 'an empty object' : `an object with ${keys.slice(0, 5).join(', ')}${keys.length > 5 ? ', ...' : ''}`
}

function adviceFor(value: unknown): string {
  if (typeof value === 'function') return 'export what topology(...) returns, not the function that calls it'
  if (value instanceof Promise) return 'export the topology itself: await the promise before, at the top level of the module'
  if (Array.isArray(value)) return 'one file holds one topology; start one `millrace run` for each'
  return "write: export default topology('name', ({ stream }) => { ... })"
}
