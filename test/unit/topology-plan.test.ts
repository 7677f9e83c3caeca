import { describe, expect, test } from 'vitest'
import { int64, json, string } from '../../src/serde/index.ts'
import { deadLetters, topic, topology, type Sources, type Topology } from '../../src/topology/index.ts'
import { CHANGELOG_TOPIC_CONFIG, changelogTopic, TASKS_TOPIC_CONFIG, tasksTopic } from '../../src/topology/internal-topics.ts'
import { compileTopology } from '../../src/topology/plan.ts'

const topicOf = (name: string) => topic(name, { key: string(), value: json() })
const [a, b, c, out, repeated, late] = ['a', 'b', 'c', 'out', 'repeated', 'late'].map(topicOf) as [Topic, Topic, Topic, Topic, Topic, Topic]
type Topic = ReturnType<typeof topicOf>
const app = (use: (sources: Sources) => void): Topology => topology('app', use)

describe('compileTopology', () => {
  const plan = compileTopology(
    topology('app', { onError: { to: deadLetters('failed') } }, ({ stream }) => {
      const first = stream([a, b], { onError: { to: deadLetters('failed.ab') } })
      const second = stream(c)
      first.dedupe({ by: 'key', window: '1h', name: 'seen', refresh: true, onDuplicate: { to: repeated }, late: { to: late } }).to(out)
      second.dedupe({ by: 'key', window: '2h', late: 'drop' }).to(out)
      second.filter(() => true).to(repeated)
    }),
  )

  test('splits into connected parts, numbered by their first steps', () => {
    expect(plan.subTopologies.map((sub) => [sub.id, sub.inputs, sub.nodes.map((node) => node.id)])).toEqual([
      [0, ['a', 'b'], [0, 2, 3]],
      [1, ['c'], [1, 4, 5, 6, 7]],
    ])
  })

  test('derives one store per dedupe; origins are kept where a duplicate is routed', () => {
    expect(plan.subTopologies.map((sub) => sub.stores)).toEqual([
      [{ kind: 'dedupe', name: 'seen', windowMs: 3_600_000, refresh: true, keepOrigin: true, version: 1 }],
      [{ kind: 'dedupe', name: 'dedupe', windowMs: 7_200_000, refresh: false, keepOrigin: false, version: 1 }],
    ])
  })

  test('lists every topic that is written, once, and the dead letter topics', () => {
    expect(plan.sinks).toEqual(['repeated', 'late', 'out', 'failed', 'failed.ab'])
    expect(plan.deadLetterTopics).toEqual(['failed', 'failed.ab'])
  })

  test('carries the functions of every node', () => {
    expect([...plan.functions.keys()]).toEqual(
      plan.subTopologies.flatMap((sub) => sub.nodes.map((node) => node.id)).sort((left, right) => left - right),
    )
  })

  test('gives the same plan twice', () => {
    const built = app(({ stream }) => stream(a).to(out))
    expect(compileTopology(built)).toEqual(compileTopology(built))
  })
})

describe('the fingerprint', () => {
  const of = (use: (sources: Sources) => void): string => compileTopology(app(use)).fingerprint
  const dedupe = { by: 'key', window: '1h' } as const
  const base = of(({ stream }) =>
    stream(a)
      .filter(() => true)
      .dedupe(dedupe)
      .to(out),
  )

  test('is 16 hex digits and does not change from one version of millrace to the next', () => {
    expect(base).toMatch(/^[0-9a-f]{16}$/)
    expect(of(({ stream }) => stream(a).to(out))).toBe('bfb2eee860c889c6')
  })

  test('stays when functions, names of stateless steps or the order of branches change', () => {
    expect(
      of(({ stream }) =>
        stream(a, { name: 'in' })
          .filter((value) => value === 1, { name: 'ones' })
          .dedupe(dedupe)
          .to(out, { name: 'end' }),
      ),
    ).toBe(base)
    const branches = (swap: boolean): string =>
      of(({ stream }) => {
        const all = stream(a)
        const first = (): void => all.filter(() => true).to(out)
        const second = (): void => all.dedupe(dedupe).to(repeated)
        for (const build of swap ? [second, first] : [first, second]) build()
      })
    expect(branches(false)).toBe(branches(true))
  })

  test.each<[string, (sources: Sources) => void]>([
    [
      'a step',
      ({ stream }) =>
        stream(a)
          .filter(() => true)
          .peek(() => 1)
          .dedupe(dedupe)
          .to(out),
    ],
    [
      'the order of two steps',
      ({ stream }) =>
        stream(a)
          .dedupe(dedupe)
          .filter(() => true)
          .to(out),
    ],
    [
      'the kind of a step',
      ({ stream }) =>
        stream(a)
          .filterNot(() => true)
          .dedupe(dedupe)
          .to(out),
    ],
    [
      'an input',
      ({ stream }) =>
        stream(b)
          .filter(() => true)
          .dedupe(dedupe)
          .to(out),
    ],
    [
      'an output',
      ({ stream }) =>
        stream(a)
          .filter(() => true)
          .dedupe(dedupe)
          .to(repeated),
    ],
    [
      'a codec',
      ({ stream }) =>
        stream(topic('a', { key: int64(), value: json() }))
          .filter(() => true)
          .dedupe(dedupe)
          .to(topic('out', { key: int64(), value: json() })),
    ],
    [
      'the window',
      ({ stream }) =>
        stream(a)
          .filter(() => true)
          .dedupe({ ...dedupe, window: '61m' })
          .to(out),
    ],
    [
      'the name of a state',
      ({ stream }) =>
        stream(a)
          .filter(() => true)
          .dedupe({ ...dedupe, name: 'seen' })
          .to(out),
    ],
    [
      'a route',
      ({ stream }) =>
        stream(a)
          .filter(() => true)
          .dedupe({ ...dedupe, onDuplicate: { to: repeated } })
          .to(out),
    ],
    [
      'the clock',
      ({ stream }) =>
        stream(a)
          .filter(() => true)
          .dedupe({ ...dedupe, clock: 'wall-clock' })
          .to(out),
    ],
    [
      'a second branch',
      ({ stream }) => {
        const all = stream(a)
        all
          .filter(() => true)
          .dedupe(dedupe)
          .to(out)
        all.to(repeated)
      },
    ],
  ])('changes with %s', (_name, use) => {
    expect(of(use)).not.toBe(base)
  })

  test('changes with the order of sub-topologies, because tasks are numbered by it', () => {
    const order = (swap: boolean): string => of(({ stream }) => (swap ? [b, a] : [a, b]).forEach((input) => stream(input).to(out)))
    expect(order(true)).not.toBe(order(false))
  })
})

describe('describe()', () => {
  const built = app(({ stream }) =>
    stream(a)
      .dedupe({ by: 'key', window: '1h', onDuplicate: { to: repeated } })
      .to(out),
  )

  test('is plain data', () => {
    const description = built.describe()
    expect(JSON.parse(JSON.stringify(description))).toEqual({ ...description })
    expect(Object.keys(description)).toEqual(['name', 'fingerprint', 'subTopologies', 'stores', 'internalTopics'])
    expect(description.fingerprint).toBe(compileTopology(built).fingerprint)
    expect(description.subTopologies).toEqual([{ id: 0, nodes: built.nodes, inputs: ['a'] }])
    expect(description.stores).toEqual([
      {
        name: 'dedupe',
        kind: 'dedupe',
        changelog: 'app-dedupe-changelog',
        key: 'dedupe-id',
        value: 'time, partition and offset of the first',
        version: 1,
      },
    ])
  })

  test('names internal topics and their settings after the application id, by default the topology', () => {
    expect(built.describe().internalTopics).toEqual([
      { name: 'app-tasks', purpose: 'tasks', config: { 'cleanup.policy': 'compact' } },
      {
        name: 'app-dedupe-changelog',
        purpose: 'changelog',
        config: { 'cleanup.policy': 'compact', 'delete.retention.ms': '604800000', 'segment.bytes': '67108864' },
      },
    ])
    expect(built.describe({ applicationId: 'shop-1' }).internalTopics.map((each) => each.name)).toEqual([
      tasksTopic('shop-1'),
      changelogTopic('shop-1', 'dedupe'),
    ])
    expect([TASKS_TOPIC_CONFIG, CHANGELOG_TOPIC_CONFIG].every(Object.isFrozen)).toBe(true)
  })

  test('refuses an application id that cannot be part of a topic name, and misspelt options', () => {
    expect(() => built.describe({ applicationId: 'my app' })).toThrow(`describe(): 'my app' cannot be an application id`)
    expect(() => built.describe({ applicationID: 'x' } as never)).toThrow("did you mean 'applicationId'?")
  })

  test.each([
    [1_500, '1500ms'],
    ['90s', '90s'],
    ['60m', '1h'],
    ['24h', '24h'],
    ['7d', '7d'],
    ['36h', '36h'],
  ] as const)('its page shows the window %s as %s', (window, shown) => {
    expect(
      app(({ stream }) => stream(a).dedupe({ by: 'key', window }).to(out))
        .describe()
        .toString(),
    ).toContain(`window ${shown} of event time`)
  })

  test('its page shows what happens to failed records, for the topology and for a source of its own mind', () => {
    const page = topology('app', { onError: () => 'skip' }, ({ stream }) => {
      stream(a, { onError: { to: deadLetters('failed') } }).to(out)
      stream(b, { onError: 'skip' }).to(out)
    })
      .describe()
      .toString()
    expect(page).toContain('on error        decided by a function')
    expect(page).toContain('      on error: dead letters to failed\n')
    expect(page).toContain('      on error: skip\n')
  })

  test('its page says when there is no store', () => {
    const page = app(({ stream }) => stream(a).to(out))
      .describe()
      .toString()
    expect(page).toContain('Stores\n  none\n')
    expect(page).toContain('--> 1 out')
  })
})
