import { describe, expect, test, vi } from 'vitest'
import { TopologyError } from '../../src/errors/errors.ts'
import { int64, json, string, structured } from '../../src/serde/index.ts'
import { deadLetters, isTopology, topic, topology, type KStream, type Sources } from '../../src/topology/index.ts'
import { compileTopology } from '../../src/topology/plan.ts'

const orders = topic('orders', { key: string(), value: json() })
const refunds = topic('refunds', { key: string(), value: json() })
const out = topic('out', { key: string(), value: json() })
const numbers = topic('numbers', { key: string(), value: int64() })
const failed = deadLetters('failed')

/** The error's message and remedy in one text, with line numbers replaced, since they move with this file. */
function refusal(run: () => unknown): string {
  try {
    run()
  } catch (error) {
    if (!(error instanceof TopologyError)) throw error
    return `${error.message} | ${error.remedy ?? ''}`.replaceAll(/topology-builder\.test\.ts:\d+/g, 'file.ts:N')
  }
  throw new Error('was not refused')
}
const build = (use: (sources: Sources) => unknown): string => refusal(() => topology('app', (sources) => void use(sources)))
/** A wrong use that the types would refuse. */
const wrong = (value: unknown): never => value as never

describe('nodes', () => {
  const built = topology('app', { onError: { to: failed } }, ({ stream }) => {
    const all = stream([orders, refunds], { name: 'in', timestamp: () => 5, startFrom: 'latest', onError: 'skip' })
    all
      .filter(() => true)
      .filterNot(() => false, { name: 'keep' })
      .mapValues((value) => value)
      .peek(() => undefined)
      .dedupe({
        by: (_value, { key }) => key,
        window: '1h',
        partitioned: 'by-key',
        onDuplicate: { to: out },
        late: 'drop',
        refresh: true,
        clock: 'wall-clock',
        name: 'seen',
      })
      .map((value, { key }) => ({ key, value }))
      .to(out, { name: 'end', partition: () => 0 })
    all.to(topic('copy', { key: string(), value: json() }))
  })

  test('are plain data in build order, parents before children', () => {
    expect(built.nodes).toEqual([
      {
        kind: 'source',
        id: 0,
        name: 'in',
        parents: [],
        topics: ['orders', 'refunds'],
        key: ['string', 'string'],
        value: ['json', 'json'],
        startFrom: 'latest',
      },
      { kind: 'filter', id: 1, name: 'filter', parents: [0] },
      { kind: 'filter-not', id: 2, name: 'keep', parents: [1] },
      { kind: 'map-values', id: 3, name: 'map-values', parents: [2] },
      { kind: 'peek', id: 4, name: 'peek', parents: [3] },
      {
        kind: 'dedupe',
        id: 5,
        name: 'seen',
        parents: [4],
        store: 'seen',
        windowMs: 3_600_000,
        clock: 'wall-clock',
        onDuplicate: 'out',
        late: 'drop',
        refresh: true,
      },
      { kind: 'map', id: 6, name: 'map', parents: [5] },
      { kind: 'sink', id: 7, name: 'end', parents: [6], topics: ['out'], key: 'string', value: 'json' },
      { kind: 'sink', id: 8, name: 'copy', parents: [0], topics: ['copy'], key: 'string', value: 'json' },
    ])
  })

  test('survive JSON unchanged', () => {
    expect(JSON.parse(JSON.stringify(built))).toEqual({ kind: 'topology', name: 'app', nodes: built.nodes })
  })

  test('are deeply frozen', () => {
    const isFrozen = (value: unknown): boolean =>
      typeof value !== 'object' || value === null || (Object.isFrozen(value) && Object.values(value).every(isFrozen))
    expect(isFrozen(built)).toBe(true)
    expect(isFrozen(built.nodes)).toBe(true)
  })

  test('have their functions in a side table, kind by kind', () => {
    const { functions } = compileTopology(built)
    expect([...functions].map(([id, entry]) => [id, entry.kind])).toEqual(built.nodes.map((node) => [node.id, node.kind]))
    const source = functions.get(0)
    expect(source?.kind === 'source' && [source.topics, source.onError, source.timestamp?.(1, wrong(undefined))]).toEqual([
      [orders, refunds],
      'skip',
      5,
    ])
    const dedupe = functions.get(5)
    expect(
      dedupe?.kind === 'dedupe' && [dedupe.by !== 'key' && dedupe.by(1, wrong({ key: 'k' })), dedupe.onDuplicate, dedupe.late],
    ).toEqual(['k', out, 'drop'])
    const sink = functions.get(7)
    expect(sink?.kind === 'sink' && [sink.topic, sink.partition?.(1, wrong(undefined), 3)]).toEqual([out, 0])
  })

  test('defaults are written out', () => {
    const plain = topology('app', ({ stream }) => stream(orders).dedupe({ by: 'key', window: 1000 }).to(out))
    expect(plain.nodes[0]).toMatchObject({ name: 'orders', startFrom: 'earliest' })
    expect(plain.nodes[1]).toMatchObject({
      name: 'dedupe',
      store: 'dedupe',
      windowMs: 1000,
      clock: 'event-time',
      onDuplicate: 'drop',
      late: 'pass',
      refresh: false,
    })
    expect(compileTopology(plain).onError).toBe('fail')
  })

  test('keep the receiver of options written as methods', () => {
    class ByZone {
      readonly #zone = 7
      timestamp(): number {
        return this.#zone
      }
    }
    const entry = compileTopology(topology('app', ({ stream }) => stream(orders, new ByZone()).to(out))).functions.get(0)
    expect(entry?.kind === 'source' && entry.timestamp?.(1, wrong(undefined))).toBe(7)
  })
})

describe('isTopology', () => {
  test('goes by shape, so that two copies of the package understand each other', () => {
    const built = topology('app', ({ stream }) => stream(orders).to(out))
    expect(isTopology(built)).toBe(true)
    expect(isTopology({ kind: 'topology', name: 'copy', nodes: [] })).toBe(true)
    for (const other of [undefined, null, 'topology', {}, { kind: 'topology' }, orders, () => built]) expect(isTopology(other)).toBe(false)
  })

  test('what one copy of the package built, another copy runs', async () => {
    const built = topology('app', ({ stream }) => stream(orders).dedupe({ by: 'key', window: '1h' }).to(out))
    vi.resetModules()
    const other = await import('../../src/topology/plan.ts')
    expect(other.compileTopology).not.toBe(compileTopology)
    expect(other.compileTopology(built)).toEqual(compileTopology(built))
    const { topology: build } = await import('../../src/topology/index.ts')
    expect(compileTopology(build('app', ({ stream }) => stream(orders).to(out))).sinks).toEqual(['out'])
  })

  test('a topology of a later format is refused, not misread', () => {
    const later = Object.defineProperty({ kind: 'topology', name: 'app', nodes: [] }, Symbol.for('millrace.topology.parts'), {
      value: { format: 2 },
    })
    expect(refusal(() => compileTopology(wrong(later)))).toBe(
      "topology 'app' was built by another version of millrace (format 2, this one reads 1) | Install one version of millrace for the topology and for the command that runs it",
    )
  })

  test('a copy of the data cannot run, and says so', () => {
    const copy = JSON.parse(JSON.stringify(topology('app', ({ stream }) => stream(orders).to(out)))) as never
    expect(refusal(() => compileTopology(copy))).toBe(
      "topology 'app' has no functions: it is a copy of a topology's data, not what topology() returned | Pass the object that topology() returned",
    )
    expect(refusal(() => compileTopology(wrong({})))).toContain('this is not a topology')
  })
})

describe('a topology is refused', () => {
  test('when it reads nothing', () => {
    expect(build(() => undefined)).toBe("topology 'app' reads nothing | Begin with stream(topic) inside the topology function")
  })

  test('when a stream ends nowhere, naming every such end', () => {
    expect(build(({ stream }) => stream(orders).filter(() => true, { name: 'big' }))).toBe(
      "topology 'app': a stream ends nowhere, after filter 'big' (file.ts:N) | End it with to(topic), or remove it",
    )
    expect(
      build(({ stream }) => {
        const all = stream(orders)
        all.to(out)
        all.peek(() => undefined)
        all.dedupe({ by: 'key', window: '1h' })
        stream(refunds)
      }),
    ).toBe(
      "topology 'app': 3 streams end nowhere, after peek (file.ts:N) and after dedupe (file.ts:N) and after source 'refunds' (file.ts:N) | End it with to(topic), or remove it",
    )
  })

  test('when two states have one name, showing both places', () => {
    const twice = build(({ stream }) => stream(orders).dedupe({ by: 'key', window: '1h' }).dedupe({ by: 'key', window: '2h' }).to(out))
    expect(twice).toBe(
      "topology 'app': two states have the name 'dedupe': dedupe (file.ts:N) and dedupe (file.ts:N) | Name the second one: dedupe({ name: '...', ... }). Its changelog is named after it, so keep the name",
    )
    expect(
      build(({ stream }) =>
        stream(orders).dedupe({ by: 'key', window: '1h', name: 'seen' }).dedupe({ by: 'key', window: '2h', name: 'seen' }).to(out),
      ),
    ).toContain("two states have the name 'seen': dedupe 'seen' (file.ts:N) and dedupe 'seen' (file.ts:N) | Give one of them another name")
  })

  test('when a topic is declared twice with different codecs', () => {
    const otherOut = topic('out', { key: int64(), value: json() })
    expect(
      build(({ stream }) => {
        stream(orders).to(out)
        stream(refunds)
          .map((value) => ({ key: 1, value }))
          .to(otherOut)
      }),
    ).toBe(
      "topology 'app': topic 'out' is declared with two key codecs: string (sink 'out' (file.ts:N)) and int64 (sink 'out' (file.ts:N)) | Declare the topic once and import that value everywhere",
    )
    expect(
      build(({ stream }) =>
        stream(orders)
          .dedupe({ by: 'key', window: '1h', late: { to: topic('out', { key: string(), value: structured() }) } })
          .to(out),
      ),
    ).toContain("topic 'out' is declared with two value codecs: structured (late of dedupe (file.ts:N)) and json (sink 'out' (file.ts:N))")
  })

  test('when a topic declared twice has the same codecs, it is not', () => {
    expect(() =>
      topology('app', ({ stream }) => {
        const all = stream(orders)
        all.to(out)
        all.to(topic('out', { key: string(), value: json() }))
      }),
    ).not.toThrow()
  })

  test('when a topic is read twice', () => {
    expect(
      build(({ stream }) => {
        stream(orders).to(out)
        stream([refunds, orders]).to(out)
      }),
    ).toBe(
      "topology 'app': topic 'orders' is read twice, by source 'orders' (file.ts:N) and by source 'refunds+orders' (file.ts:N) | Read it once, keep the stream in a variable and build both branches from it",
    )
    expect(build(({ stream }) => stream([orders, orders]).to(out))).toContain("topic 'orders' is read twice by source 'orders+orders'")
  })

  test.each<[string, (sources: Sources) => unknown, string]>([
    ['a sink', ({ stream }) => stream(orders).to(orders), "sink 'orders' (file.ts:N)"],
    [
      'a duplicates route',
      ({ stream }) =>
        stream(orders)
          .dedupe({ by: 'key', window: '1h', onDuplicate: { to: orders } })
          .to(out),
      'onDuplicate of dedupe (file.ts:N)',
    ],
    [
      'a route for late records',
      ({ stream }) =>
        stream(orders)
          .dedupe({ by: 'key', window: '1h', late: { to: orders } })
          .to(out),
      'late of dedupe (file.ts:N)',
    ],
    [
      'a dead letter topic of a source',
      ({ stream }) => stream(orders, { onError: { to: deadLetters('orders') } }).to(out),
      "onError of source 'orders' (file.ts:N)",
    ],
  ])('when a topic it reads is written by %s', (_name, use, by) => {
    expect(build(use)).toBe(
      `topology 'app': topic 'orders' is both read (source 'orders' (file.ts:N)) and written (${by}): what is written would be read again, for ever | Write to another topic`,
    )
  })

  test('when its own dead letters are read', () => {
    const message = refusal(() => topology('app', { onError: { to: deadLetters('orders') } }, ({ stream }) => stream(orders).to(out)))
    expect(message).toContain("topic 'orders' is both read (source 'orders' (file.ts:N)) and written (onError of the topology)")
  })

  test('when it uses one of its internal topics', () => {
    const changelog = topic('app-dedupe-changelog', { key: string(), value: json() })
    expect(build(({ stream }) => stream(orders).dedupe({ by: 'key', window: '1h' }).to(changelog))).toContain(
      "sink 'app-dedupe-changelog' (file.ts:N) uses 'app-dedupe-changelog', which is an internal topic of this topology",
    )
    expect(build(({ stream }) => stream(topic('app-tasks', { value: json() })).to(topic('x', { value: json() })))).toContain(
      "uses 'app-tasks', which is an internal topic",
    )
  })

  test.each([
    ['', 'it is empty'],
    ['..', "'.' and '..' are not allowed"],
    ['a b/c', `it holds " ", "/"; legal are a-z, A-Z, 0-9, '.', '_' and '-'`],
    ['x'.repeat(244), 'it has 250 characters; Kafka allows 249'],
    [undefined, 'it is undefined, not a text'],
  ])('when its name %j is not legal inside a topic name', (name, reason) => {
    const message = refusal(() => topology(wrong(name), ({ stream }) => stream(orders).to(out)))
    expect(message).toContain('cannot name a topology, because internal topics and the consumer group are named after it: ')
    expect(message).toContain(reason)
  })

  test('when its function is asynchronous', () => {
    expect(
      refusal(() =>
        topology(
          'app',
          wrong(async () => Promise.resolve()),
        ),
      ),
    ).toContain("topology 'app': the topology function is async")
    expect(
      refusal(() =>
        topology(
          'app',
          wrong(() => Promise.reject(new Error('later'))),
        ),
      ),
    ).toContain("topology 'app': the topology function returned a promise | Make it synchronous")
    expect(refusal(() => topology('app', wrong({})))).toContain("topology 'app': the topology function is an object, not a function")
  })

  test('when its options are misspelt or wrong', () => {
    expect(refusal(() => topology('app', wrong({ onEror: 'skip' }), ({ stream }) => stream(orders).to(out)))).toBe(
      "topology 'app': there is no option 'onEror'; did you mean 'onError'? | Options of this step: onError",
    )
    expect(refusal(() => topology('app', { onError: wrong('retry') }, () => undefined))).toContain(
      "`onError` is 'retry'; it can be 'fail', 'skip', { to: deadLetters(name) } or a function",
    )
    expect(refusal(() => topology('app', { onError: wrong({ to: out }) }, () => undefined))).toContain(
      "`onError` routes to the topic 'out', which is not a dead letter topic | Declare it with deadLetters(name)",
    )
    expect(refusal(() => topology('app', { onError: wrong(async () => Promise.resolve('skip')) }, () => undefined))).toContain(
      '`onError` is async',
    )
  })

  test('when something is built after its function returned', () => {
    const kept: { sources?: Sources; stream?: KStream<string, unknown> } = {}
    const built = topology('app', (sources) => {
      kept.sources = sources
      kept.stream = sources.stream(orders)
      kept.stream.to(out)
    })
    const rest =
      "topology 'app' is finished, nothing can be added to it | Build every step inside the topology function, synchronously, and keep no stream for later"
    expect(refusal(() => kept.sources?.stream(refunds))).toBe(`source 'refunds' (file.ts:N): ${rest}`)
    expect(refusal(() => kept.stream?.filter(() => true))).toBe(`filter (file.ts:N): ${rest}`)
    expect(refusal(() => kept.stream?.to(out))).toBe(`sink 'out' (file.ts:N): ${rest}`)
    expect(built.nodes).toHaveLength(2)
  })

  test('when its function throws, with that very error', () => {
    const mine = new Error('mine')
    expect(() =>
      topology('app', () => {
        throw mine
      }),
    ).toThrow(mine)
  })
})

describe('a step is refused', () => {
  test.each<[string, (sources: Sources) => unknown, string]>([
    [
      'a topic by its name',
      ({ stream }) => stream(wrong('orders')),
      "source 'stream' (file.ts:N): 'orders' is not a topic | Declare it with topic(name, { key, value })",
    ],
    ['no topics', ({ stream }) => stream([]), "source 'stream' (file.ts:N): stream([]) names no topic"],
    [
      'a wrong startFrom',
      ({ stream }) => stream(orders, { startFrom: wrong('begin') }),
      "source 'orders' (file.ts:N): `startFrom` is 'begin'; it can be 'earliest' or 'latest'",
    ],
    [
      'a misspelt source option',
      ({ stream }) => stream(orders, wrong({ timestmap: () => 1 })),
      "source 'orders' (file.ts:N): there is no option 'timestmap'; did you mean 'timestamp'?",
    ],
    [
      'an option that is like no other',
      ({ stream }) => stream(orders, wrong({ parallelism: 3 })),
      "there is no option 'parallelism' | Options of this step: name, timestamp, startFrom, onError",
    ],
    [
      'an async callback',
      ({ stream }) => stream(orders).mapValues(wrong(async () => Promise.resolve(1))),
      'map-values (file.ts:N): the callback is async, but it runs inside the transaction',
    ],
    ['an async generator', ({ stream }) => stream(orders).map(wrong(async function* () {})), 'map (file.ts:N): the callback is async'],
    [
      'a missing callback',
      ({ stream }) => stream(orders).filter(wrong(undefined)),
      'filter (file.ts:N): the callback is missing, not a function',
    ],
    ['an empty name', ({ stream }) => stream(orders).peek(() => 1, { name: '' }), 'peek (file.ts:N): `name` is empty, not a text'],
    [
      'options that are none',
      ({ stream }) => stream(orders).peek(() => 1, wrong('log')),
      'peek (file.ts:N): the options are a string, not an object',
    ],
    ['a sink by its name', ({ stream }) => stream(orders).to(wrong('out')), "sink 'to' (file.ts:N): to() got 'out', not a topic"],
    ['a sink option', ({ stream }) => stream(orders).to(out, wrong({ partitions: () => 1 })), "did you mean 'partition'?"],
    [
      'a partition that is no function',
      ({ stream }) => stream(orders).to(out, { partition: wrong(3) }),
      "sink 'out' (file.ts:N): `partition` is a number, not a function",
    ],
  ])('with %s', (_name, use, message) => {
    expect(build(use)).toContain(message)
  })
})

describe('a dedupe is refused', () => {
  const dedupe = (options: object): string => build(({ stream }) => stream(orders).dedupe(wrong({ by: 'key', window: '1h', ...options })))

  test.each([
    [undefined, 'dedupe (file.ts:N): `window` is missing'],
    [0, 'dedupe (file.ts:N): `window` is 0, so no id would be remembered'],
    ['0s', 'dedupe (file.ts:N): `window` is 0'],
    [-1, 'dedupe (file.ts:N): `window`: -1 is not a number of milliseconds'],
    ['-5m', 'dedupe (file.ts:N): `window`: "-5m" is not'],
    [NaN, 'dedupe (file.ts:N): `window`:'],
    [Infinity, 'dedupe (file.ts:N): `window`:'],
    [1.5, 'dedupe (file.ts:N): `window`: 1.5 is not'],
    ['1e3s', 'dedupe (file.ts:N): `window`: "1e3s" is not'],
    ['one day', 'dedupe (file.ts:N): `window`: "one day" is not'],
    [null, 'dedupe (file.ts:N): `window`: null is not'],
    [{}, 'dedupe (file.ts:N): `window`: {} is not'],
  ])('with the window %j, and says what to write', (window, message) => {
    expect(dedupe({ window })).toContain(message)
    expect(dedupe({ window })).toContain("How long an id is remembered, such as window: '24h'")
  })

  test.each([
    [
      { onDuplicates: 'drop' },
      "dedupe (file.ts:N): there is no option 'onDuplicates'; did you mean 'onDuplicate'? | Options of this step: by, window, name, clock, onDuplicate, refresh, late, partitioned",
    ],
    [{ windows: '1h' }, "did you mean 'window'?"],
    [{ by: undefined }, "`by` (a function of value and record, or 'key') is missing, not a function"],
    [{ by: 'orderId' }, "`by` (a function of value and record, or 'key') is a string, not a function"],
    [{ by: async () => Promise.resolve('a'), partitioned: 'by-key' }, 'is async, but it runs inside the transaction'],
    [{ clock: 'processing-time' }, "`clock` is 'processing-time'; it can be 'event-time' or 'wall-clock'"],
    [{ refresh: 'yes' }, "`refresh` is 'yes'; it can be true or false"],
    [{ partitioned: 'by-id' }, "`partitioned` is 'by-id'; it can be undefined or 'by-key'"],
    [{ onDuplicate: 'pass' }, "`onDuplicate` is 'pass'; it can be 'drop' or { to: topic }"],
    [{ onDuplicate: { to: 'out' } }, '`onDuplicate` is an object; it can be'],
    [{ onDuplicate: { topic: out } }, "`onDuplicate`: there is no option 'topic'"],
    [{ late: 'fail' }, "`late` is 'fail'; it can be 'pass', 'drop' or { to: topic }"],
    [{ name: 'a b' }, `'a b' cannot name a state, because it becomes part of its changelog's name: it holds " "`],
    [{ name: 'x'.repeat(240) }, 'its changelog would have no legal name: it has 254 characters'],
  ])('with %o', (options, message) => {
    expect(dedupe(options)).toContain(message)
  })

  describe('where records with equal ids could be in two partitions (E47)', () => {
    const byFunction = { by: () => 'id', window: '1h' } as const
    const byKey = { by: 'key', window: '1h' } as const
    const rekeyed = ({ stream }: Sources) => stream(orders).map((value) => ({ key: 'new', value }), { name: 'by-user' })

    test('by a function: the reason and the three ways out', () => {
      expect(build(({ stream }) => stream([orders, refunds]).dedupe(byFunction).to(out))).toBe(
        "dedupe (file.ts:N): `by` is a function, so records with equal ids may have different keys and lie in different partitions of 'orders', 'refunds', where each would pass once. Repartitioning by id is not available yet" +
          " | If records with equal ids always have equal keys in 'orders', 'refunds', say so with partitioned: 'by-key'; if the id is the record key, write by: 'key'; else write the stream to a topic keyed by the id and dedupe that topic in a topology of its own",
      )
    })

    test('by the key, after a map that may have changed it: names that map, also further down', () => {
      const message = build((sources) =>
        rekeyed(sources)
          .filter(() => true)
          .map((value) => ({ key: 'newer', value }))
          .mapValues((value) => value)
          .dedupe(byKey)
          .to(out),
      )
      expect(message).toContain(
        "dedupe (file.ts:N): its id is the record key, but map 'by-user' (file.ts:N) may have changed the key. The records are still partitioned by their key in 'orders'",
      )
      expect(message).toContain('Put the dedupe before that map; or use mapValues()')
    })

    test("by the key after a map is refused with partitioned: 'by-key' too, which speaks of the old keys", () => {
      expect(
        build((sources) =>
          rekeyed(sources)
            .dedupe({ ...byKey, partitioned: 'by-key' })
            .to(out),
        ),
      ).toContain("partitioned: 'by-key' does not help, since it speaks of the keys in 'orders', not of the new ones")
    })

    test.each<[string, (sources: Sources) => unknown]>([
      ['by the key of the source', ({ stream }) => stream(orders).dedupe(byKey).to(out)],
      [
        'by the key, after steps that keep it',
        ({ stream }) =>
          stream(orders)
            .mapValues(String)
            .filter(() => true)
            .peek(() => 1)
            .dedupe(byKey)
            .to(topic('o', { key: string(), value: string() })),
      ],
      [
        'by the key, twice',
        ({ stream }) =>
          stream(orders)
            .dedupe(byKey)
            .dedupe({ ...byKey, name: 'second' })
            .to(out),
      ],
      [
        'by the key, before a map',
        ({ stream }) =>
          stream(orders)
            .dedupe(byKey)
            .map((value) => ({ key: 'new', value }))
            .to(out),
      ],
      [
        "by a function, with partitioned: 'by-key'",
        ({ stream }) =>
          stream(orders)
            .dedupe({ ...byFunction, partitioned: 'by-key' })
            .to(out),
      ],
      [
        "by a function after a map, with partitioned: 'by-key': the user states it of the old keys",
        (sources) =>
          rekeyed(sources)
            .dedupe({ ...byFunction, partitioned: 'by-key' })
            .to(out),
      ],
      [
        'by the key, in a branch beside a map',
        ({ stream }) => {
          const all = stream(orders)
          all.map((value) => ({ key: 'new', value })).to(out)
          all.dedupe(byKey).to(out)
        },
      ],
    ])('and is built %s', (_name, use) => {
      expect(() => topology('app', (sources) => void use(sources))).not.toThrow()
    })
  })
})

describe('topic()', () => {
  test.each([
    ['', "topic(): '' cannot be a topic name: it is empty"],
    ['.', "topic(): '.' cannot be a topic name: '.' and '..' are not allowed"],
    ['..', "topic(): '..' cannot be a topic name"],
    ['order events', `it holds " "; legal are`],
    ['ordrés', `it holds "é"`],
    ['x'.repeat(250), 'it has 250 characters; Kafka allows 249'],
    [7, 'topic(): the name cannot be a topic name: it is a number, not a text'],
    [null, 'it is null, not a text'],
  ])('refuses the name %j', (name, message) => {
    expect(refusal(() => topic(wrong(name), { value: json() }))).toContain(message)
    expect(refusal(() => deadLetters(wrong(name)))).toContain(message.replace('topic():', 'deadLetters():'))
  })

  test('takes every name that Kafka takes', () => {
    for (const name of ['a', 'A.b_c-9', '...', '__x', 'x'.repeat(249)]) expect(topic(name, { value: json() }).name).toBe(name)
  })

  test('without a key codec passes key bytes through, null included', () => {
    const { key } = topic('t', { value: json() })
    expect(key.id).toBe('nullable(bytes)')
    expect(key.decode(null)).toBeNull()
  })

  test('refuses what is no codec', () => {
    expect(refusal(() => topic('t', wrong({ key: string(), value: undefined })))).toBe(
      "topic 't': its value has no codec | Give `value` a codec such as string(), int64() or json(schema)",
    )
    expect(refusal(() => topic('t', wrong({ key: string, value: json() })))).toContain(
      "topic 't': its key has no codec; the codec is a function: call it, as in string()",
    )
    expect(refusal(() => topic('t', wrong({ key: undefined, value: json() })))).toContain("topic 't': its key has no codec")
    expect(refusal(() => topic('t', wrong({ keys: string(), value: json() })))).toContain(
      "topic 't': there is no option 'keys'; did you mean 'key'?",
    )
    expect(refusal(() => topic('t', wrong(json())))).toContain("there is no option 'id'")
    expect(refusal(() => topic('t', wrong(undefined)))).toContain("topic 't': the options are undefined, not an object")
  })

  test('is frozen data', () => {
    expect(Object.isFrozen(numbers)).toBe(true)
    expect({ ...failed }).toMatchObject({ kind: 'topic', name: 'failed', deadLetters: true })
  })
})
