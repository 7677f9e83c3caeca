/**
 * The topics millrace owns: `<app>-tasks` (one partition per task) and `<app>-<store>-changelog`. Created explicitly with their settings where they are
 * missing, checked where they are there.
 */
import type { BrokerAdmin, TopicToCreate } from '../broker/port.ts'
import { ConfigError } from '../errors/errors.ts'
import { BrokerError } from '../errors/broker-error.ts'
import { CHANGELOG_TOPIC_CONFIG, changelogTopic, TASKS_TOPIC_CONFIG, tasksTopic } from '../topology/internal-topics.ts'
import type { TopologyPlan } from '../topology/nodes.ts'
import { untilAnswered, type RetryOptions } from './retry.ts'
import { missingTopics } from './sink-limits.ts'

const TOPIC_ALREADY_EXISTS = 36
/** librdkafka's "no such entry": retriable. */
const NOT_KNOWN_YET = -156

export interface TaskAssignment {
  readonly subTopology: number
  readonly partition: number
  /** Input topics that have this partition: all of them, unless a stateless sub-topology reads topics of different sizes. */
  readonly inputs: readonly string[]
}

/** Tasks in their numbering: sub-topology by sub-topology, partition by partition. */
export interface TaskLayout {
  readonly tasks: readonly TaskAssignment[]
  /** Partitions per sub-topology. */
  readonly partitions: readonly number[]
}

/** Reads the input topics and lays out the tasks. */
export async function layOutTasks(admin: BrokerAdmin, plan: TopologyPlan): Promise<TaskLayout> {
  const inputs = [...new Set(plan.subTopologies.flatMap((sub) => sub.inputs))]
  const described = new Map((await admin.describeTopics(inputs)).map((topic) => [topic.name, topic]))
  const missing = inputs.filter((name) => !described.has(name))
  if (missing.length > 0) throw missingTopics(missing, 'read')
  const tasks: TaskAssignment[] = []
  const partitions: number[] = []
  for (const sub of plan.subTopologies) {
    const counts = sub.inputs.map((name) => described.get(name)?.partitions ?? 0)
    const count = Math.max(...counts)
    if (sub.stores.length > 0 && counts.some((other) => other !== count)) {
      throw new ConfigError(
        `inputs of one stateful sub-topology have different partition counts: ${sub.inputs.map((name, index) => `${name} has ${counts[index]}`).join(', ')}`,
        { code: 'inputs-not-co-partitioned', remedy: 'Give them the same number of partitions: equal keys must meet in one task.' },
      )
    }
    partitions.push(count)
    for (let partition = 0; partition < count; partition++) {
      tasks.push({ subTopology: sub.id, partition, inputs: sub.inputs.filter((_, index) => partition < (counts[index] ?? 0)) })
    }
  }
  return { tasks, partitions }
}

export interface InternalTopics {
  readonly tasks: TopicToCreate
  readonly changelogs: readonly (TopicToCreate & { readonly subTopology: number })[]
}

export function internalTopics(plan: TopologyPlan, applicationId: string, layout: TaskLayout, replicationFactor: number): InternalTopics {
  const changelogs = plan.subTopologies.flatMap((sub, index) =>
    sub.stores.map((store) => ({
      subTopology: sub.id,
      name: changelogTopic(applicationId, store.name),
      partitions: layout.partitions[index] ?? 1,
      replicationFactor,
      config: CHANGELOG_TOPIC_CONFIG,
    })),
  )
  const tasks = { name: tasksTopic(applicationId), partitions: layout.tasks.length, replicationFactor, config: TASKS_TOPIC_CONFIG }
  const internal = new Set([tasks.name, ...changelogs.map(({ name }) => name)])
  const clash = [...plan.subTopologies.flatMap(({ inputs }) => inputs), ...plan.sinks].find((name) => internal.has(name))
  if (clash !== undefined) {
    throw new ConfigError(
      `topic ${clash} is read or written by the topology, but under applicationId ${applicationId} it is an internal topic`,
      {
        code: 'internal-topic-name',
        remedy: 'Choose another applicationId or another topic name.',
      },
    )
  }
  return { tasks, changelogs }
}

/**
 * A changelog that is missing although its tasks have committed offsets was deleted: with a new, empty one every remembered id would pass again
 * (CASES F52). `progress` has the names of tasks that ever committed.
 */
export async function refuseLostChangelogs(
  admin: BrokerAdmin,
  changelogs: InternalTopics['changelogs'],
  progress: ReadonlySet<string>,
): Promise<void> {
  const present = new Set((await admin.describeTopics(changelogs.map(({ name }) => name))).map(({ name }) => name))
  const lost = changelogs.filter(
    ({ name, subTopology }) => !present.has(name) && [...progress].some((task) => task.startsWith(`${subTopology}_`)),
  )
  if (lost.length === 0) return
  throw new ConfigError(`changelog ${lost.map(({ name }) => name).join(', ')} does not exist, but its tasks have committed offsets`, {
    code: 'changelog-missing',
    remedy:
      'It was deleted: what its store remembered is gone. Restore the topic, or start under another applicationId, which begins anew; creating it empty would let every id pass again.',
  })
}

/** Creates what is missing, checks what is there. Returns the names of those it created. */
export async function ensureInternalTopics(
  admin: BrokerAdmin,
  wanted: readonly TopicToCreate[],
  retry: Omit<RetryOptions, 'what'>,
): Promise<readonly string[]> {
  const names = wanted.map(({ name }) => name)
  let present = new Map((await admin.describeTopics(names)).map((topic) => [topic.name, topic]))
  const created: string[] = []
  for (const topic of wanted) {
    if (present.has(topic.name)) continue
    try {
      await admin.createTopic(topic)
      created.push(topic.name)
    } catch (error) {
      // Another worker was quicker: what it made is checked below like any other.
      if (!(error instanceof BrokerError && error.code === TOPIC_ALREADY_EXISTS)) throw error
    }
  }
  // A new topic is not in every broker's metadata at once.
  present = await untilAnswered(
    async () => {
      const described = new Map((await admin.describeTopics(names)).map((topic) => [topic.name, topic]))
      const unknown = names.filter((name) => !described.has(name))
      if (unknown.length > 0)
        throw new BrokerError('admin', NOT_KNOWN_YET, `${unknown.join(', ')} not in the metadata yet`, { isRetriable: true })
      return described
    },
    { ...retry, what: 'metadata of internal topics' },
  )
  const configs = await admin.topicConfigs(names.filter((name) => present.has(name)))
  const differences = wanted.flatMap((topic) => {
    const found = present.get(topic.name)
    if (found === undefined) return []
    const lines: string[] = []
    if (found.partitions !== topic.partitions) lines.push(`${topic.name}: ${found.partitions} partitions, expected ${topic.partitions}`)
    const policy = configs.get(topic.name)?.get('cleanup.policy')
    if (policy !== undefined && policy !== topic.config['cleanup.policy']) {
      lines.push(`${topic.name}: cleanup.policy=${policy}, expected ${topic.config['cleanup.policy']}`)
    }
    return lines
  })
  if (differences.length > 0) {
    throw new ConfigError(`internal topics differ from what this topology needs:\n  ${differences.join('\n  ')}`, {
      code: 'internal-topic-differs',
      remedy:
        'An input topic got other partitions, or a topic was made or altered by hand. Put it back, or start under another applicationId, which begins anew.',
    })
  }
  return created
}
