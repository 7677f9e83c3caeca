/**
 * All workers of an application agree on its tasks: at start, and again when an input has grown.
 *
 * Owns: the order in which inputs, task topic and table are looked at and written, and what of it is refused.
 * Does not own: what the records mean (task-layout), their bytes (task-table), when to look while running (input-growth).
 *
 * Invariants:
 *  TA1. The table is extended before the task topic grows. The other way round a worker could be assigned a task that nobody can explain.
 *  TA2. The partition count of the task topic is looked at before the table is read, so a task topic larger than the table read afterwards was altered by hand.
 *  TA3. What was written counts only when it was read back: somebody else may have been first (TL1).
 */
import type { Broker } from '../broker/port.ts'
import { delay } from '../common/delay.ts'
import { BrokerError } from '../errors/broker-error.ts'
import { ConfigError } from '../errors/errors.ts'
import { tasksTopic } from '../topology/internal-topics.ts'
import type { TopologyPlan } from '../topology/nodes.ts'
import {
  ensureInternalTopics,
  growTaskTopic,
  inputPartitions,
  internalTopics,
  internalTopicsDiffer,
  partitionsDiffer,
  refuseUnequalInputs,
  type InternalTopics,
} from './internal-topics.ts'
import { compareInputs, layoutOf, tableOf, tasksForGrowth, type InputDifference, type TaskLayout, type TaskTable } from './task-layout.ts'
import { readTaskRecords, unreadable, writeExtension, writeTable, type ReadTo, type TaskTableOptions } from './task-table.ts'

/** A broker can lag behind with metadata: an input that looks smaller than the table says is looked at again for this long. */
const STALE_METADATA_MS = 5_000
const STALE_METADATA_PAUSE_MS = 200
const GROUP_ID_NOT_FOUND = 69

export interface AgreementOptions extends TaskTableOptions {
  readonly broker: Broker
  readonly plan: TopologyPlan
  /** Also the group. */
  readonly applicationId: string
}

export interface Settled {
  readonly layout: TaskLayout
  /** Partitions of the task topic; fewer than tasks while it has not grown yet. */
  readonly taskPartitions: number
  readonly progress: ReadonlySet<string>
}

export interface StartOptions extends AgreementOptions {
  /** `group.instance.id` of this worker. */
  readonly instanceId: string
  readonly replicationFactor: number
}

export interface AgreedTasks extends Settled {
  readonly changelogs: InternalTopics['changelogs']
}

/**
 * Before joining: creates the task topic and writes the table where they are missing, extends it for stateless inputs that grew while nobody ran, refuses
 * everything else that does not fit. The task topic grows at once if nobody else is in the group; else the running workers must hear of it first
 * (input-growth).
 */
export async function agreeOnTasks(options: StartOptions): Promise<AgreedTasks> {
  const { broker, plan, applicationId, replicationFactor, instanceId } = options
  const counts = await inputPartitions(broker.admin, plan)
  const first = internalTopics(plan, applicationId, layoutOf(tableOf(plan, counts), []), replicationFactor)
  const isNew = (await broker.admin.describeTopics([first.tasks.name])).length === 0
  if (isNew) refuseUnequalInputs(plan, counts)
  await ensureInternalTopics(broker.admin, [first.tasks], options)
  const settled = await settleTasks(options, 'decided')
  let { taskPartitions } = settled
  const tasks = settled.layout.tasks.length
  if (taskPartitions > tasks) throw internalTopicsDiffer([partitionsDiffer(first.tasks.name, taskPartitions, tasks)])
  if (taskPartitions < tasks && (await isAlone(broker, applicationId, instanceId))) {
    await growTaskTopic(broker.admin, first.tasks.name, tasks, options)
    taskPartitions = tasks
  }
  const { changelogs } = internalTopics(plan, applicationId, settled.layout, replicationFactor)
  return { ...settled, taskPartitions, changelogs }
}

/**
 * Reads inputs and table until they fit each other. Writes the table where there is none, and an extension where a stateless input has grown. Each round
 * that ends with a write finds more on record than the one before, its own or somebody else's, so the rounds come to an end.
 */
export async function settleTasks(options: AgreementOptions, readTo: ReadTo): Promise<Settled> {
  const { broker, plan, applicationId, clock, timers, logger, timeoutMs } = options
  const topic = tasksTopic(applicationId)
  const staleUntil = clock.monotonic() + STALE_METADATA_MS
  let to = readTo
  for (;;) {
    const counts = await inputPartitions(broker.admin, plan)
    const taskPartitions = (await broker.admin.describeTopics([topic]))[0]?.partitions ?? 0 // before the table (TA2)
    let recorded = await readTaskRecords(broker, topic, options, to)
    if (recorded.table === undefined) {
      refuseUnequalInputs(plan, counts)
      await writeTable(broker, topic, tableOf(plan, counts), options)
      recorded = await readTaskRecords(broker, topic, options, 'end')
      if (recorded.table === undefined) throw unreadable(topic, timeoutMs)
    }
    const layout = layoutOf(recorded.table, recorded.extensions)
    const { grown, shrunk } = compareInputs(layout, counts)
    if (shrunk.length > 0 && clock.monotonic() < staleUntil) {
      await delay(timers, STALE_METADATA_PAUSE_MS)
      continue
    }
    refuseOtherTopology(topic, recorded.table, tableOf(plan, counts), shrunk)
    refuseStatefulGrowth(plan, grown)
    if (grown.length > 0) {
      const tasks = tasksForGrowth(grown)
      logger.info({ inputs: grown, tasks: tasks.length }, `${growthText(grown)}: adding tasks for the new partitions`)
      await writeExtension(broker, topic, { version: 1, base: recorded.extensions.length, tasks }, options)
      to = 'end' // past the write, which an open transaction may hide (TA3)
      continue
    }
    if (taskPartitions > layout.tasks.length && to === 'decided') {
      to = 'end'
      continue
    }
    return { layout, taskPartitions, progress: recorded.progress }
  }
}

/** Nobody to be surprised by a larger task topic. In doubt there is somebody. */
async function isAlone(broker: Broker, groupId: string, instanceId: string): Promise<boolean> {
  try {
    const { members } = await broker.admin.describeGroup(groupId)
    return members.every((member) => member.instanceId === instanceId)
  } catch (error) {
    return error instanceof BrokerError && error.code === GROUP_ID_NOT_FOUND
  }
}

export function growthText(grown: readonly InputDifference[]): string {
  return grown.map(({ topic, was, is }) => `input ${topic} has ${is} partitions, had ${was}`).join('; ')
}

function refuseOtherTopology(topic: string, recorded: TaskTable, mine: TaskTable, shrunk: readonly InputDifference[]): void {
  const lines = [
    ...differences(recorded, mine),
    ...shrunk.map((input) => `sub-topology ${input.subTopology}: partitions of ${input.topic} were ${input.was}, are ${input.is}`),
  ]
  if (lines.length === 0) return
  throw new ConfigError(`this topology does not fit the tasks that ${topic} has on record:\n  ${lines.join('\n  ')}`, {
    code: 'topology-does-not-fit',
    remedy: 'Deploy the topology that wrote it, or start this one under another applicationId, which begins anew with its own state.',
  })
}

/** Sub-topologies, inputs and stores. Partition counts are compared with the whole layout instead (compareInputs). */
export function differences(recorded: TaskTable, mine: TaskTable): readonly string[] {
  const lines: string[] = []
  const count = Math.max(recorded.subTopologies.length, mine.subTopologies.length)
  for (let id = 0; id < count; id++) {
    const was = recorded.subTopologies[id]
    const is = mine.subTopologies[id]
    if (was === undefined || is === undefined) {
      lines.push(`sub-topology ${id}: ${was === undefined ? 'new' : 'gone'} (inputs ${(was ?? is)?.inputs.join(', ') ?? ''})`)
      continue
    }
    if (was.inputs.join() !== is.inputs.join())
      lines.push(`sub-topology ${id}: inputs were ${was.inputs.join(', ')}, are ${is.inputs.join(', ')}`)
    if (was.stores.join() !== is.stores.join())
      lines.push(`sub-topology ${id}: stores were ${was.stores.join(', ') || 'none'}, are ${is.stores.join(', ') || 'none'}`)
  }
  return lines
}

/**
 * State cannot follow: (1) the store of partition p remembers the ids whose keys hash to p of `was`; (2) with `is` partitions a producer sends some of
 * these keys elsewhere; (3) the task there has never seen the id, and lets it pass a second time (X8).
 */
export function refuseStatefulGrowth(plan: TopologyPlan, grown: readonly InputDifference[]): void {
  for (const { topic, subTopology, was, is } of grown) {
    const stores = plan.subTopologies[subTopology]?.stores ?? []
    if (stores.length === 0) continue
    throw new ConfigError(
      `input ${topic} grew from ${was} to ${is} partitions, but what reads it keeps state (store ${stores.map(({ name }) => name).join(', ')}): producers now send known keys to other partitions, whose tasks do not know their ids, so those would pass once more`,
      {
        code: 'input-grew',
        remedy: `A topic cannot shrink again. Nothing was read from the added partitions, but ids that came after the growth may have passed twice. (1) Create a new topic with ${is} partitions and let the producers write there; (2) copy the records of ${topic} that still count into it, keyed as before: those not processed yet, and of the processed ones at least one window, so that their ids are known; (3) start under a new applicationId that reads the new topic: it begins with empty state, and its first outputs repeat those of the copied window, so give it an output of its own or skip them there.`,
      },
    )
  }
}
