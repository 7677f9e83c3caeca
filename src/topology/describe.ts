/** `topology.describe()`: the plan as data, and as a page for people. */
import { TopologyError } from '../errors/errors.ts'
import { CHANGELOG_TOPIC_CONFIG, changelogTopic, TASKS_TOPIC_CONFIG, tasksTopic } from './internal-topics.ts'
import type { NodeFunctions, TopologyNode, TopologyPlan } from './nodes.ts'
import { checkOptionNames, illegalNameReason } from './option-check.ts'
import { compileTopology } from './plan.ts'
import type { OnError, Topology, TopologyDescription } from './public-types.ts'

export function describeTopology(topology: Topology, options: { readonly applicationId?: string } = {}): TopologyDescription {
  checkOptionNames(options, ['applicationId'], 'describe()')
  const applicationId = options.applicationId ?? topology.name
  const reason = illegalNameReason(applicationId)
  if (reason !== undefined)
    throw new TopologyError(
      `describe(): '${applicationId}' cannot be an application id, because internal topics are named after it: ${reason}`,
      { code: 'TOPOLOGY_NAME_INVALID' },
    )

  const plan = compileTopology(topology)
  const stores = plan.subTopologies.flatMap((sub) =>
    sub.stores.map((store) => ({
      name: store.name,
      kind: store.kind,
      changelog: changelogTopic(applicationId, store.name),
      key: 'dedupe-id',
      value: store.keepOrigin ? 'time, partition and offset of the first' : 'time of the first',
      version: store.version,
    })),
  )
  const description: TopologyDescription = {
    name: plan.name,
    fingerprint: plan.fingerprint,
    subTopologies: plan.subTopologies.map(({ id, nodes, inputs }) => ({ id, nodes, inputs })),
    stores,
    internalTopics: [
      { name: tasksTopic(applicationId), purpose: 'tasks', config: TASKS_TOPIC_CONFIG },
      ...stores.map((store) => ({ name: store.changelog, purpose: 'changelog' as const, config: CHANGELOG_TOPIC_CONFIG })),
    ],
  }
  const page = pageOf(plan, description, applicationId)
  Object.defineProperty(description, 'toString', { value: () => page, enumerable: false })
  return Object.freeze(description)
}

function pageOf(plan: TopologyPlan, description: TopologyDescription, applicationId: string): string {
  const lines = [
    `Topology ${plan.name}`,
    `  application id  ${applicationId}`,
    `  fingerprint     ${plan.fingerprint}`,
    `  on error        ${onErrorText(plan.onError)}`,
  ]
  for (const { id, nodes, inputs } of description.subTopologies) {
    lines.push('', `Sub-topology ${id}: one task per partition of ${inputs.join(', ')}`)
    for (const node of nodes) lines.push(...nodeLines(node, nodes, plan.functions.get(node.id)))
  }
  lines.push('', 'Stores')
  if (description.stores.length === 0) lines.push('  none')
  for (const store of description.stores) {
    lines.push(
      `  ${store.name}  (${store.kind}, version ${store.version})`,
      `      key ${store.key}, value ${store.value}`,
      `      changelog ${store.changelog ?? 'none'}`,
    )
  }
  lines.push('', 'Internal topics')
  for (const topic of description.internalTopics) {
    const config = Object.entries(topic.config).map(([name, value]) => `${name}=${value}`)
    lines.push(`  ${topic.name}  (${topic.purpose})`, `      ${config.join(', ')}`)
  }
  return `${lines.join('\n')}\n`
}

/** The step, its settings, where its records come from (<--) and where they go (-->). */
function nodeLines(node: TopologyNode, nodes: readonly TopologyNode[], functions: NodeFunctions | undefined): readonly string[] {
  const label = (other: TopologyNode): string => `${other.id} ${other.name}`
  const parents = nodes.filter((other) => node.parents.includes(other.id)).map(label)
  const children = nodes.filter((other) => other.parents.includes(node.id)).map(label)
  const lines = [`  ${node.id} ${node.kind}${node.name === node.kind ? '' : `: ${node.name}`}`]
  for (const setting of settingsOf(node)) lines.push(`      ${setting}`)
  if (functions?.kind === 'source' && functions.onError !== undefined) lines.push(`      on error: ${onErrorText(functions.onError)}`)
  if (parents.length > 0) lines.push(`      <-- ${parents.join(', ')}`)
  if (children.length > 0) lines.push(`      --> ${children.join(', ')}`)
  return lines
}

function settingsOf(node: TopologyNode): readonly string[] {
  switch (node.kind) {
    case 'source':
      return [
        ...node.topics.map((topic, index) => `topic ${topic} (key ${node.key[index]}, value ${node.value[index]})`),
        `from ${node.startFrom} when no offset is committed`,
      ]
    case 'dedupe':
      return [
        `store ${node.store}`,
        `window ${windowText(node.windowMs)} of ${node.clock === 'event-time' ? 'event time' : 'wall clock'}${node.refresh ? ', restarted by each duplicate' : ''}`,
        `duplicates: ${routeText(node.onDuplicate)}; late records: ${routeText(node.late)}`,
      ]
    case 'sink':
      return node.topics.map((topic) => `topic ${topic} (key ${node.key}, value ${node.value})`)
    case 'map':
      return ['may change the key: the partition does not follow it']
    case 'map-values':
    case 'filter':
    case 'filter-not':
    case 'peek':
      return []
  }
}

function routeText(route: string): string {
  return route === 'drop' || route === 'pass' ? route : `to topic ${route}`
}

function onErrorText(onError: OnError): string {
  if (typeof onError === 'function') return 'decided by a function'
  return typeof onError === 'string' ? onError : `dead letters to ${onError.to.name}`
}

/** Exact: `7d`, `24h`, `90s`, `1500ms`. */
function windowText(ms: number): string {
  const dayMs = 86_400_000
  if (ms > dayMs && ms % dayMs === 0) return `${ms / dayMs}d`
  for (const [unit, size] of [
    ['h', 3_600_000],
    ['m', 60_000],
    ['s', 1_000],
  ] as const) {
    if (ms % size === 0) return `${ms / size}${unit}`
  }
  return `${ms}ms`
}
