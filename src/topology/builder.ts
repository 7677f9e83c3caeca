/**
 * The builder behind `topology()`: every call of the user adds one frozen node and its functions.
 *
 * Owns: the order and the ids of the nodes, the checks on one step at a time, and what each stream is partitioned by. Does not own: checks over the whole
 * topology (validation.ts), sub-topologies and stores (plan.ts).
 * Invariants:
 *  B1. Ids are 0, 1, 2, ... in build order; a parent's id is lower than its child's.
 *  B2. A node is plain data and deeply frozen; code is in the side table only.
 *  B3. A wrong step throws at the line that wrote it, with its name and place; after the topology function returned nothing can be added.
 *  B4. A dedupe is only built where equal ids meet in one partition (CASES E47): `partitionedBy` follows each stream for that.
 */
import { durationMs } from '../common/duration.ts'
import { errorMessage, TopologyError } from '../errors/errors.ts'
import { callSite } from './call-site.ts'
import { describeTopology } from './describe.ts'
import { changelogTopic, tasksTopic } from './internal-topics.ts'
import type { NodeFunctions, TopologyNode } from './nodes.ts'
import { checkCallback, checkChoice, checkOptionNames, illegalNameReason, shown } from './option-check.ts'
import type {
  DedupeOptions,
  Ended,
  KStream,
  NewRecord,
  NodeOptions,
  OnError,
  Sink,
  Sources,
  StreamOptions,
  StreamRecord,
  Topic,
  ToOptions,
  Topology,
  TopologyOptions,
} from './public-types.ts'
import { attachParts } from './topology-parts.ts'
import { isDeadLetterTopic, isTopic } from './topics.ts'
import { validateTopology } from './validation.ts'

/** A node that has no id yet. */
type NodeDraft = TopologyNode extends infer Node ? (Node extends TopologyNode ? Omit<Node, 'id' | 'parents'> : never) : never
type Callback<R> = (value: unknown, record: StreamRecord<unknown, unknown>) => R

/**
 * What decides the partition of a stream's records. `'other'`: a step may have changed the key, so that equal keys may lie in different partitions.
 * `changedBy` names that step, `source` where the records come from.
 */
interface Partitioning {
  readonly partitionedBy: 'key' | 'other'
  readonly changedBy: string | undefined
  readonly source: string
}

/**
 * Declares a topology. A topology file exports one as its default and does nothing else when imported: no connection, no file, no timer.
 * Throws a TopologyError that names the step when something does not fit together.
 * @example
 * export default topology('order-dedupe', ({ stream }) => {
 *   stream(orders)
 *     .dedupe({ by: (order) => [order.orderId, order.type], window: '24h', partitioned: 'by-key' })
 *     .to(uniqueOrders)
 * })
 */
export function topology<R>(name: string, build: (source: Sources) => Ended<R>): Topology
export function topology<R>(name: string, options: TopologyOptions, build: (source: Sources) => Ended<R>): Topology
export function topology(name: string, ...rest: readonly unknown[]): Topology {
  const [options, build] = rest.length === 1 ? [{}, rest[0]] : rest
  checkTopologyName(name)
  const where = `topology '${name}'`
  checkOptionNames(options, ['onError'], where)
  const onError = (options as TopologyOptions).onError ?? 'fail'
  checkOnError(onError, where)
  checkCallback(build, 'the topology function', where)

  const builder = new TopologyBuilder(name)
  builder.run(build as (sources: Sources) => unknown)
  const { nodes, functions, places } = builder
  validateTopology({ name, nodes, functions, places, onError })

  const result: Topology = {
    kind: 'topology',
    name,
    nodes: Object.freeze([...nodes]),
    describe: (describeOptions) => describeTopology(result, describeOptions),
  }
  // Not enumerable, so that what is enumerable is plain data.
  Object.defineProperty(result, 'describe', { enumerable: false })
  attachParts(result, { onError, functions })
  return Object.freeze(result)
}

class TopologyBuilder {
  readonly name: string
  readonly nodes: TopologyNode[] = []
  readonly functions = new Map<number, NodeFunctions>()
  /** By node id: `kind 'name' (file:line)`. */
  readonly places = new Map<number, string>()
  readonly #stores = new Map<string, string>()
  #finished = false

  constructor(name: string) {
    this.name = name
  }

  run(build: (sources: Sources) => unknown): void {
    const stream = (
      topics: Topic<unknown, unknown> | readonly Topic<unknown, unknown>[],
      options?: StreamOptions<unknown, unknown>,
    ): KStream<never, never> => this.source(topics, options)
    let result: unknown
    try {
      result = build(Object.freeze({ stream }))
    } finally {
      this.#finished = true
    }
    if (typeof (result as { then?: unknown } | null | undefined)?.then !== 'function') return
    // Nobody awaits it: a rejection must not end the process beside the error below.
    ;(result as PromiseLike<unknown>).then(undefined, () => undefined)
    throw new TopologyError(`topology '${this.name}': the topology function returned a promise`, {
      code: 'TOPOLOGY_FUNCTION_ASYNC',
      remedy: 'Make it synchronous: it only declares',
    })
  }

  source(given: unknown, options: StreamOptions<unknown, unknown> = {}): KStream<never, never> {
    const topics = (Array.isArray(given) ? given : [given]) as readonly unknown[]
    const name = nameOf(options, topics.length > 0 && topics.every(isTopic) ? topics.map((each) => each.name).join('+') : 'stream')
    const where = this.begin('source', name)
    checkOptionNames(options, ['name', 'timestamp', 'startFrom', 'onError'], where)
    checkNodeName(options, where)
    if (topics.length === 0)
      throw new TopologyError(`${where}: stream([]) names no topic`, { code: 'TOPOLOGY_SOURCE_EMPTY', remedy: 'Name at least one topic' })
    if (!topics.every(isTopic)) {
      throw new TopologyError(`${where}: ${shown(topics.find((each) => !isTopic(each)))} is not a topic`, {
        code: 'TOPOLOGY_TOPIC_INVALID',
        remedy: 'Declare it with topic(name, { key, value }) and pass the result: its codecs say how to read it',
      })
    }
    const { startFrom = 'earliest', onError } = options
    checkOptionalCallback(options, 'timestamp', where)
    // Bound, because options may be an object with methods of its own.
    const timestamp = options.timestamp?.bind(options)
    checkChoice(startFrom, ['earliest', 'latest'], '`startFrom`', where)
    if (onError !== undefined) checkOnError(onError, where)
    const id = this.add(
      {
        kind: 'source',
        name,
        topics: Object.freeze(topics.map((each) => each.name)),
        key: Object.freeze(topics.map((each) => each.key.id)),
        value: Object.freeze(topics.map((each) => each.value.id)),
        startFrom,
      },
      [],
      { kind: 'source', topics, timestamp, onError },
      where,
    )
    const source = topics.map((each) => `'${each.name}'`).join(', ')
    return streamOf(this, id, { partitionedBy: 'key', changedBy: undefined, source })
  }

  /** Before a step is built: refuses late ones, and says how to call this one in messages. */
  begin(kind: string, name: string): string {
    const place = callSite()
    const where = `${kind}${name === kind ? '' : ` '${name}'`}${place === undefined ? '' : ` (${place})`}`
    if (this.#finished) {
      throw new TopologyError(`${where}: topology '${this.name}' is finished, nothing can be added to it`, {
        code: 'TOPOLOGY_FINISHED',
        remedy: 'Build every step inside the topology function, synchronously, and keep no stream for later',
      })
    }
    return where
  }

  add(draft: NodeDraft, parents: readonly number[], functions: NodeFunctions, where: string): number {
    const id = this.nodes.length
    const { kind, name, ...rest } = draft
    this.nodes.push(Object.freeze({ kind, id, name, parents: Object.freeze([...parents]), ...rest } as TopologyNode))
    this.functions.set(id, Object.freeze(functions))
    this.places.set(id, where)
    return id
  }

  /** Takes a name for a state. */
  claimStore(store: string, kind: string, isDefault: boolean, where: string): void {
    const reason = illegalNameReason(store)
    if (reason !== undefined)
      throw new TopologyError(`${where}: '${store}' cannot name a state, because it becomes part of its changelog's name: ${reason}`, {
        code: 'TOPOLOGY_STATE_NAME_INVALID',
      })
    const changelogReason = illegalNameReason(changelogTopic(this.name, store))
    if (changelogReason !== undefined)
      throw new TopologyError(`${where}: its changelog would have no legal name: ${changelogReason}`, {
        code: 'TOPOLOGY_STATE_NAME_INVALID',
        remedy: 'Shorten the name',
      })
    const other = this.#stores.get(store)
    if (other !== undefined) {
      throw new TopologyError(`topology '${this.name}': two states have the name '${store}': ${other} and ${where}`, {
        code: 'TOPOLOGY_STATE_NAME_TAKEN',
        remedy: isDefault
          ? `Name the second one: ${kind}({ name: '...', ... }). Its changelog is named after it, so keep the name`
          : 'Give one of them another name',
      })
    }
    this.#stores.set(store, where)
  }
}

/** What a stream carries is known to the types of the user's program only: inside the builder every stream fits every type. */
function streamOf(builder: TopologyBuilder, id: number, partitioning: Partitioning): KStream<never, never> {
  return new StreamOfNode(builder, id, partitioning) as unknown as KStream<never, never>
}

class StreamOfNode implements KStream<unknown, unknown> {
  readonly #builder: TopologyBuilder
  readonly #id: number
  readonly #partitioning: Partitioning

  constructor(builder: TopologyBuilder, id: number, partitioning: Partitioning) {
    this.#builder = builder
    this.#id = id
    this.#partitioning = partitioning
  }

  map(fn: Callback<NewRecord<unknown, unknown>>, options: NodeOptions = {}): KStream<never, never> {
    const { name, where } = this.#beginStateless('map', fn, options)
    const id = this.#builder.add({ kind: 'map', name }, [this.#id], { kind: 'map', map: fn }, where)
    // The first step that may have changed the key is the one to name.
    return streamOf(this.#builder, id, {
      ...this.#partitioning,
      partitionedBy: 'other',
      changedBy: this.#partitioning.changedBy ?? where,
    })
  }

  mapValues(fn: Callback<unknown>, options: NodeOptions = {}): KStream<never, never> {
    const { name, where } = this.#beginStateless('map-values', fn, options)
    return this.#next(this.#builder.add({ kind: 'map-values', name }, [this.#id], { kind: 'map-values', map: fn }, where))
  }

  filter(predicate: Callback<boolean>, options: NodeOptions = {}): KStream<never, never> {
    const { name, where } = this.#beginStateless('filter', predicate, options)
    return this.#next(this.#builder.add({ kind: 'filter', name }, [this.#id], { kind: 'filter', predicate }, where))
  }

  filterNot(predicate: Callback<boolean>, options: NodeOptions = {}): KStream<never, never> {
    const { name, where } = this.#beginStateless('filter-not', predicate, options)
    return this.#next(this.#builder.add({ kind: 'filter-not', name }, [this.#id], { kind: 'filter-not', predicate }, where))
  }

  peek(fn: Callback<unknown>, options: NodeOptions = {}): KStream<never, never> {
    const { name, where } = this.#beginStateless('peek', fn, options)
    return this.#next(this.#builder.add({ kind: 'peek', name }, [this.#id], { kind: 'peek', peek: fn }, where))
  }

  dedupe(options: DedupeOptions<unknown, unknown>): KStream<never, never> {
    const store = nameOf(options, 'dedupe')
    const where = this.#builder.begin('dedupe', store)
    checkOptionNames(options, ['by', 'window', 'name', 'clock', 'onDuplicate', 'refresh', 'late', 'partitioned'], where)
    checkNodeName(options, where)
    const { by, clock = 'event-time', onDuplicate = 'drop', refresh = false, late = 'pass', partitioned } = options
    if (by !== 'key') checkCallback(by, "`by` (a function of value and record, or 'key')", where)
    const windowMs = windowOf(options, where)
    checkChoice(clock, ['event-time', 'wall-clock'], '`clock`', where)
    checkChoice(refresh, [true, false], '`refresh`', where)
    checkChoice(partitioned, [undefined, 'by-key'], '`partitioned`', where)
    const duplicates = routeOf(onDuplicate, ['drop'], '`onDuplicate`', where)
    const lateOnes = routeOf(late, ['pass', 'drop'], '`late`', where)
    refuseScatteredIds(by, partitioned, this.#partitioning, where)
    this.#builder.claimStore(store, 'dedupe', options.name === undefined, where)
    return this.#next(
      this.#builder.add(
        {
          kind: 'dedupe',
          name: store,
          store,
          windowMs,
          clock,
          onDuplicate: routeName(duplicates),
          late: routeName(lateOnes),
          refresh,
        },
        [this.#id],
        { kind: 'dedupe', by, onDuplicate: duplicates, late: lateOnes },
        where,
      ),
    )
  }

  to(topic: Sink<unknown, unknown>, options: ToOptions<unknown, unknown> = {}): void {
    const name = nameOf(options, isTopic(topic) ? topic.name : 'to')
    const where = this.#builder.begin('sink', name)
    checkOptionNames(options, ['name', 'partition'], where)
    checkNodeName(options, where)
    if (!isTopic(topic)) {
      throw new TopologyError(`${where}: to() got ${shown(topic)}, not a topic`, {
        code: 'TOPOLOGY_TOPIC_INVALID',
        remedy: 'Declare it with topic(name, { key, value }) and pass the result: its codecs say how to write it',
      })
    }
    checkOptionalCallback(options, 'partition', where)
    this.#builder.add(
      { kind: 'sink', name, topics: Object.freeze([topic.name]), key: topic.key.id, value: topic.value.id },
      [this.#id],
      { kind: 'sink', topic, partition: options.partition?.bind(options) },
      where,
    )
  }

  #beginStateless(
    kind: 'map' | 'map-values' | 'filter' | 'filter-not' | 'peek',
    callback: unknown,
    options: NodeOptions,
  ): { readonly name: string; readonly where: string } {
    const name = nameOf(options, kind)
    const where = this.#builder.begin(kind, name)
    checkCallback(callback, 'the callback', where)
    checkOptionNames(options, ['name'], where)
    checkNodeName(options, where)
    return { name, where }
  }

  /** The stream after a step that keeps the key. */
  #next(id: number): KStream<never, never> {
    return streamOf(this.#builder, id, this.#partitioning)
  }
}

/** CASES E47: an id whose records may be in two partitions would pass twice, once in each. */
function refuseScatteredIds(
  by: DedupeOptions<unknown, unknown>['by'],
  partitioned: 'by-key' | undefined,
  partitioning: Partitioning,
  where: string,
): void {
  const { partitionedBy, changedBy, source } = partitioning
  if (by === 'key') {
    if (partitionedBy === 'key') return
    const statement =
      partitioned === 'by-key' ? `; partitioned: 'by-key' does not help, since it speaks of the keys in ${source}, not of the new ones` : ''
    throw new TopologyError(
      `${where}: its id is the record key, but ${changedBy} may have changed the key. The records are still partitioned by their key in ${source}, so equal new keys may lie in different partitions and each would pass once${statement}`,
      {
        code: 'TOPOLOGY_DEDUPE_PARTITIONING',
        remedy:
          "Put the dedupe before that map; or use mapValues() if the key stays the same; or write the mapped stream to a topic with to() and dedupe that topic in a topology of its own. If records with equal new keys always had equal old keys, say so: by: (_value, { key }) => key, partitioned: 'by-key'",
      },
    )
  }
  if (partitioned === 'by-key') return
  throw new TopologyError(
    `${where}: \`by\` is a function, so records with equal ids may have different keys and lie in different partitions of ${source}, where each would pass once. Repartitioning by id is not available yet`,
    {
      code: 'TOPOLOGY_DEDUPE_PARTITIONING',
      remedy: `If records with equal ids always have equal keys in ${source}, say so with partitioned: 'by-key'; if the id is the record key, write by: 'key'; else write the stream to a topic keyed by the id and dedupe that topic in a topology of its own`,
    },
  )
}

function windowOf(options: DedupeOptions<unknown, unknown>, where: string): number {
  const remedy =
    "How long an id is remembered, such as window: '24h'; longer than the longest time a producer may take to send a record again"
  if ((options.window as unknown) === undefined)
    throw new TopologyError(`${where}: \`window\` is missing`, { code: 'TOPOLOGY_WINDOW_INVALID', remedy })
  let windowMs: number
  try {
    windowMs = durationMs(options.window, '`window`')
  } catch (error) {
    throw new TopologyError(`${where}: ${errorMessage(error)}`, { code: 'TOPOLOGY_WINDOW_INVALID', remedy, cause: error })
  }
  if (windowMs === 0)
    throw new TopologyError(`${where}: \`window\` is 0, so no id would be remembered`, { code: 'TOPOLOGY_WINDOW_INVALID', remedy })
  return windowMs
}

type Route<Word extends string> = Word | Topic<unknown, unknown>

function routeOf<Word extends string>(route: unknown, words: readonly Word[], what: string, where: string): Route<Word> {
  if (words.includes(route as Word)) return route as Word
  if (typeof route === 'object' && route !== null) {
    checkOptionNames(route, ['to'], `${where}: ${what}`)
    const { to } = route as { to?: unknown }
    if (isTopic(to)) return to
  }
  throw new TopologyError(`${where}: ${what} is ${shown(route)}; it can be ${words.map(shown).join(', ')} or { to: topic }`, {
    code: 'TOPOLOGY_OPTION_INVALID',
  })
}

function routeName(route: Route<string>): string {
  return typeof route === 'string' ? route : route.name
}

function checkOnError(onError: unknown, where: string): asserts onError is OnError {
  if (onError === 'fail' || onError === 'skip') return
  if (typeof onError === 'function') return checkCallback(onError, '`onError`', where)
  if (typeof onError === 'object' && onError !== null) {
    checkOptionNames(onError, ['to'], `${where}: \`onError\``)
    const { to } = onError as { to?: unknown }
    if (isDeadLetterTopic(to)) return
    throw new TopologyError(
      `${where}: \`onError\` routes to ${isTopic(to) ? `the topic '${to.name}'` : shown(to)}, which is not a dead letter topic`,
      {
        code: 'TOPOLOGY_OPTION_INVALID',
        remedy: 'Declare it with deadLetters(name): failed records are written as the bytes they came as, not with codecs',
      },
    )
  }
  throw new TopologyError(`${where}: \`onError\` is ${shown(onError)}; it can be 'fail', 'skip', { to: deadLetters(name) } or a function`, {
    code: 'TOPOLOGY_OPTION_INVALID',
  })
}

function checkTopologyName(name: unknown): void {
  const reason = illegalNameReason(name) ?? illegalNameReason(tasksTopic(name as string))
  if (reason === undefined) return
  throw new TopologyError(
    `topology(): ${typeof name === 'string' ? `'${name.slice(0, 60)}'` : 'the first argument'} cannot name a topology, because internal topics and the consumer group are named after it: ${reason}`,
    {
      code: 'TOPOLOGY_NAME_INVALID',
    },
  )
}

function checkOptionalCallback<Name extends string>(options: { readonly [N in Name]?: unknown }, name: Name, where: string): void {
  if (options[name] !== undefined) checkCallback(options[name], `\`${name}\``, where)
}

/** The name for messages, before it is checked. */
function nameOf(options: unknown, byDefault: string): string {
  const name = (options as NodeOptions | null | undefined)?.name
  return typeof name === 'string' && name !== '' ? name : byDefault
}

function checkNodeName(options: NodeOptions, where: string): void {
  const name: unknown = options.name
  if (name === undefined || (typeof name === 'string' && name !== '')) return
  throw new TopologyError(`${where}: \`name\` is ${name === '' ? 'empty' : shown(name)}, not a text`, { code: 'TOPOLOGY_OPTION_INVALID' })
}
