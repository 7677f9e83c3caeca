/**
 * The topics millrace owns: `<app>-tasks` (one partition per task) and `<app>-<store>-changelog`. Created explicitly with their settings where they are
 * missing, checked where they are there.
 */
import type { BrokerAdmin, TopicToCreate } from '../broker/port.ts'
import type { Logger } from '../common/ports.ts'
import { INVALID_PARTITIONS, TOPIC_ALREADY_EXISTS } from '../errors/broker-codes.ts'
import { ConfigError } from '../errors/errors.ts'
import { BrokerError, notKnownYet } from '../errors/broker-error.ts'
import { CHANGELOG_TOPIC_CONFIG, changelogTopic, TASKS_TOPIC_CONFIG, tasksTopic } from '../topology/internal-topics.ts'
import type { TopologyPlan } from '../topology/nodes.ts'
import { untilAnswered, type RetryOptions } from './retry.ts'
import { missingTopics } from './sink-limits.ts'
import type { PartitionCounts, TaskLayout } from './task-layout.ts'

/** Partition counts of all inputs; one that does not exist is refused by name. */
export async function inputPartitions(admin: BrokerAdmin, plan: TopologyPlan): Promise<PartitionCounts> {
  const inputs = [...new Set(plan.subTopologies.flatMap((sub) => sub.inputs))]
  const described = await admin.describeTopics(inputs)
  const counts = new Map(described.map(({ name, partitions }) => [name, partitions]))
  const missing = inputs.filter((name) => !counts.has(name))
  if (missing.length > 0) throw missingTopics(missing, 'read')
  return counts
}

/** Before the first tasks are laid out: the inputs of a stateful part must be of one size. */
export function refuseUnequalInputs(plan: TopologyPlan, counts: PartitionCounts): void {
  for (const sub of plan.subTopologies) {
    const ofInputs = sub.inputs.map((name) => counts.get(name) ?? 0)
    if (sub.stores.length === 0 || ofInputs.every((count) => count === ofInputs[0])) continue
    throw new ConfigError(
      `inputs of one stateful sub-topology have different partition counts: ${sub.inputs.map((name, index) => `${name} has ${ofInputs[index]}`).join(', ')}`,
      { code: 'inputs-not-co-partitioned', remedy: 'Give them the same number of partitions: equal keys must meet in one task.' },
    )
  }
}

/** A topic of ours. `grows`: its partition count follows the task table, and is judged with it. */
export interface InternalTopic extends TopicToCreate {
  readonly grows?: true
}

export interface InternalTopics {
  readonly tasks: InternalTopic
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
  const tasks: InternalTopic = {
    name: tasksTopic(applicationId),
    partitions: layout.tasks.length,
    replicationFactor,
    config: TASKS_TOPIC_CONFIG,
    grows: true,
  }
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
  { policy, logger }: { readonly policy: 'fail' | 'recreate'; readonly logger: Logger },
): Promise<void> {
  const present = new Set((await admin.describeTopics(changelogs.map(({ name }) => name))).map(({ name }) => name))
  const lost = changelogs.filter(
    ({ name, subTopology }) => !present.has(name) && [...progress].some((task) => task.startsWith(`${subTopology}_`)),
  )
  if (lost.length === 0) return
  const names = lost.map(({ name }) => name)
  if (policy === 'recreate') {
    logger.error(
      { topics: names },
      "a changelog is gone although its tasks have committed: it is created empty, and what its store remembered is forgotten (option changelogMissing is 'recreate')",
    )
    return
  }
  throw new ConfigError(`changelog ${lost.map(({ name }) => name).join(', ')} does not exist, but its tasks have committed offsets`, {
    code: 'changelog-missing',
    remedy:
      "It was deleted: what its store remembered is gone. Restore the topic, or start under another applicationId, which begins anew. To go on with an empty store, which lets every id pass again, set changelogMissing to 'recreate'.",
  })
}

/** Creates what is missing, checks what is there. Returns the names of those it created. */
export async function ensureInternalTopics(
  admin: BrokerAdmin,
  wanted: readonly InternalTopic[],
  retry: Omit<RetryOptions, 'what'>,
  changed: 'fail' | 'repair' = 'fail',
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
      if (unknown.length > 0) throw notKnownYet(`${unknown.join(', ')} not in the metadata yet`)
      return described
    },
    { ...retry, what: 'metadata of internal topics' },
  )
  const configs = await admin.topicConfigs(names.filter((name) => present.has(name)))
  const differences: string[] = []
  for (const topic of wanted) {
    const found = present.get(topic.name)
    if (found === undefined) continue
    if (found.partitions !== topic.partitions && topic.grows !== true)
      differences.push(partitionsDiffer(topic.name, found.partitions, topic.partitions))
    const policy = configs.get(topic.name)?.get('cleanup.policy')
    const expected = topic.config['cleanup.policy']
    if (policy === undefined || expected === undefined || policy === expected) continue
    const difference = `${topic.name}: cleanup.policy=${policy}, expected ${expected}`
    if (changed === 'fail') differences.push(difference)
    else {
      await admin.changeTopicConfig(topic.name, { 'cleanup.policy': expected })
      retry.logger.warn({ topic: topic.name }, `${difference}: set back (option changelogSettings is 'repair')`)
    }
  }
  if (differences.length > 0) throw internalTopicsDiffer(differences)
  return created
}

export function partitionsDiffer(topic: string, found: number, expected: number): string {
  return `${topic}: ${found} partitions, expected ${expected}`
}

export function internalTopicsDiffer(differences: readonly string[]): ConfigError {
  return new ConfigError(`internal topics differ from what this topology needs:\n  ${differences.join('\n  ')}`, {
    code: 'internal-topic-differs',
    remedy:
      "A topic was made or altered by hand. Put it back (a cleanup policy is set back by changelogSettings: 'repair'), or start under another applicationId, which begins anew.",
  })
}

/**
 * Gives the task topic a partition for each task, and returns once a broker tells of them: a member that joined before would spread what was there before,
 * and leave the new tasks to the next metadata poll. Somebody else may do it at the same time, or have done it.
 */
export async function growTaskTopic(admin: BrokerAdmin, topic: string, total: number, retry: Omit<RetryOptions, 'what'>): Promise<void> {
  try {
    await admin.createPartitions(topic, total)
  } catch (error) {
    if (!(error instanceof BrokerError && error.code === INVALID_PARTITIONS)) throw error
  }
  await untilAnswered(
    async () => {
      const known = (await admin.describeTopics([topic]))[0]?.partitions ?? 0
      if (known < total) throw notKnownYet(`${topic} has ${known} of ${total} partitions in the metadata`)
    },
    { ...retry, what: `the added partitions of ${topic}` },
  )
}
