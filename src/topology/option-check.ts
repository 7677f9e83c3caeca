/** Checks on what the types cannot see: names of options, kinds of values, names that become part of a topic name. */
import { TopologyError } from '../errors/errors.ts'

export const MAXIMUM_TOPIC_NAME_LENGTH = 249
const LEGAL_NAME = /^[a-zA-Z0-9._-]+$/

/** Why Kafka would refuse this as (part of) a topic name; undefined when it is legal. */
export function illegalNameReason(name: unknown): string | undefined {
  if (typeof name !== 'string') return `it is ${kindOf(name)}, not a text`
  if (name === '') return 'it is empty'
  if (name === '.' || name === '..') return `'.' and '..' are not allowed`
  if (!LEGAL_NAME.test(name)) {
    const illegal = [...new Set([...name].filter((character) => !LEGAL_NAME.test(character)))].slice(0, 5)
    return `it holds ${illegal.map((character) => JSON.stringify(character)).join(', ')}; legal are a-z, A-Z, 0-9, '.', '_' and '-'`
  }
  if (name.length > MAXIMUM_TOPIC_NAME_LENGTH) return `it has ${name.length} characters; Kafka allows ${MAXIMUM_TOPIC_NAME_LENGTH}`
  return undefined
}

/** Refuses an option that does not exist, with the nearest one that does. `where` names the step. */
export function checkOptionNames(options: unknown, known: readonly string[], where: string): void {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new TopologyError(`${where}: the options are ${kindOf(options)}, not an object`, {
      code: 'TOPOLOGY_OPTIONS_INVALID',
      remedy: `Options of this step: ${known.join(', ')}`,
    })
  }
  for (const name of Object.keys(options)) {
    if (known.includes(name)) continue
    const nearest = nearestOf(name, known)
    throw new TopologyError(`${where}: there is no option '${name}'${nearest === undefined ? '' : `; did you mean '${nearest}'?`}`, {
      code: 'TOPOLOGY_OPTION_UNKNOWN',
      remedy: `Options of this step: ${known.join(', ')}`,
    })
  }
}

/** Refuses what is not a synchronous function. */
export function checkCallback(callback: unknown, what: string, where: string): void {
  if (typeof callback !== 'function') {
    throw new TopologyError(`${where}: ${what} is ${callback === undefined ? 'missing' : kindOf(callback)}, not a function`, {
      code: 'TOPOLOGY_CALLBACK_INVALID',
    })
  }
  const kind = callback.constructor.name
  if (kind === 'AsyncFunction' || kind === 'AsyncGeneratorFunction') {
    throw new TopologyError(`${where}: ${what} is async, but it runs inside the transaction, which does not wait for it`, {
      code: 'TOPOLOGY_CALLBACK_ASYNC',
      remedy: 'Make it synchronous',
    })
  }
}

export function checkChoice(value: unknown, choices: readonly unknown[], what: string, where: string): void {
  if (choices.includes(value)) return
  throw new TopologyError(`${where}: ${what} is ${shown(value)}; it can be ${choices.map(shown).join(' or ')}`, {
    code: 'TOPOLOGY_OPTION_INVALID',
  })
}

function kindOf(value: unknown): string {
  if (value === null || value === undefined) return String(value)
  if (Array.isArray(value)) return 'an array'
  return typeof value === 'object' ? 'an object' : `a ${typeof value}`
}

export function shown(value: unknown): string {
  if (typeof value === 'string') return `'${value}'`
  if (typeof value === 'function') return 'a function'
  if (typeof value === 'object' && value !== null) return 'an object'
  return String(value)
}

/** The candidate with the fewest edits, if it is near enough to be meant. */
function nearestOf(name: string, candidates: readonly string[]): string | undefined {
  let nearest: string | undefined
  let fewest = Math.max(2, Math.floor(name.length / 3)) + 1
  for (const candidate of candidates) {
    const edits = editDistance(name.toLowerCase(), candidate.toLowerCase())
    if (edits < fewest) [nearest, fewest] = [candidate, edits]
  }
  return nearest
}

function editDistance(left: string, right: string): number {
  let previous = Array.from({ length: right.length + 1 }, (_, index) => index)
  for (let row = 1; row <= left.length; row++) {
    const current = [row]
    for (let column = 1; column <= right.length; column++) {
      const substitution = (previous[column - 1] ?? 0) + (left[row - 1] === right[column - 1] ? 0 : 1)
      current.push(Math.min(substitution, (previous[column] ?? 0) + 1, (current[column - 1] ?? 0) + 1))
    }
    previous = current
  }
  return previous[right.length] ?? 0
}
