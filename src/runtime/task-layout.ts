/**
 * Which tasks there are: the numbering that all workers of an application agree on, as a pure function of what the task topic has on record.
 *
 * Owns: the forms of the table and of its extensions, the rule that folds them, the layout that follows, and the comparison with the inputs as they are.
 * Does not own: reading and writing the records (task-table), when to extend (task-agreement, input-growth).
 *
 * Invariants:
 *  TL1. The first table on record wins, and an extension counts only if it was made on exactly the extensions accepted before it (`base`). So of two
 *       workers that extend at once one wins, the other reads and tries anew, and all readers of the same log agree.
 *  TL2. A task keeps its number, name and inputs for ever: extensions append. Numbers are partitions of the task topic, names are state folders and notes.
 *  TL3. A partition of an input belongs to one task of a sub-topology, once.
 */
import { invariant } from '../common/invariant.ts'
import { partitionName, type TopicPartition } from '../common/topic-partition.ts'
import type { TopologyPlan } from '../topology/nodes.ts'

/** The first record of the task topic: sub-topologies and the partition counts they began with. */
export interface TaskTable {
  readonly version: 1
  /** For information: another one is fine as long as the tasks fit. */
  readonly fingerprint: string
  readonly subTopologies: readonly {
    /** Sorted. */
    readonly inputs: readonly string[]
    /** Partitions of each input, in that order. Absent in the first tables ever written: there every input has `partitions`. */
    readonly counts?: readonly number[]
    readonly partitions: number
    readonly stores: readonly string[]
  }[]
}

export interface AddedTask {
  readonly subTopology: number
  readonly partition: number
  readonly inputs: readonly string[]
}

/** A further record: tasks for partitions that were added to inputs of stateless sub-topologies. */
export interface TableExtension {
  readonly version: 1
  /** How many accepted extensions it builds on (TL1). */
  readonly base: number
  readonly tasks: readonly AddedTask[]
}

export interface TaskAssignment {
  /** Unique. `<sub-topology>_<partition>`, as Kafka Streams has it; `-<extension>` behind it where that task exists already. Also the folder of its state. */
  readonly name: string
  readonly subTopology: number
  readonly partition: number
  /** Input topics of which it has this partition: all of them, unless a stateless sub-topology reads topics of different sizes. */
  readonly inputs: readonly string[]
  /** 0: of the first table. Else the extension that added it: then its partitions are younger than the application. */
  readonly extension: number
}

/** Tasks in their numbering: sub-topology by sub-topology, partition by partition, then extension by extension. */
export interface TaskLayout {
  readonly tasks: readonly TaskAssignment[]
  /** Partitions per sub-topology. */
  readonly partitions: readonly number[]
}

/** Partition counts of topics, by name. */
export type PartitionCounts = ReadonlyMap<string, number>

/** The table a first start writes. */
export function tableOf(plan: TopologyPlan, counts: PartitionCounts): TaskTable {
  return {
    version: 1,
    fingerprint: plan.fingerprint,
    subTopologies: plan.subTopologies.map((sub) => {
      const inputs = [...sub.inputs].sort()
      const ofInputs = inputs.map((name) => counts.get(name) ?? 0)
      return { inputs, counts: ofInputs, partitions: Math.max(...ofInputs), stores: sub.stores.map(({ name }) => name).sort() }
    }),
  }
}

/** Takes the records of the task topic in log order (TL1). */
export class TaskTableFold {
  #table: TaskTable | undefined
  readonly #extensions: TableExtension[] = []

  get table(): TaskTable | undefined {
    return this.#table
  }

  /** The accepted ones, in order. */
  get extensions(): readonly TableExtension[] {
    return this.#extensions
  }

  addTable(table: TaskTable): void {
    this.#table ??= table
  }

  addExtension(extension: TableExtension): void {
    if (this.#table !== undefined && extension.base === this.#extensions.length) this.#extensions.push(extension)
  }
}

export function layoutOf(table: TaskTable, extensions: readonly TableExtension[]): TaskLayout {
  const tasks: TaskAssignment[] = []
  const names = new Set<string>()
  const taken = new Set<string>()
  const partitions = table.subTopologies.map((sub) => sub.partitions)
  const add = ({ subTopology, partition, inputs }: AddedTask, extension: number): void => {
    for (const input of inputs) {
      const place = `${subTopology}/${partitionName(input, partition)}`
      invariant(!taken.has(place), 'TL3', { place, extension })
      taken.add(place)
    }
    const plain = `${subTopology}_${partition}`
    const name = names.has(plain) ? `${plain}-${extension}` : plain
    names.add(name)
    partitions[subTopology] = Math.max(partitions[subTopology] ?? 0, partition + 1)
    tasks.push({ name, subTopology, partition, inputs, extension })
  }
  table.subTopologies.forEach(({ inputs, counts, partitions: count }, subTopology) => {
    for (let partition = 0; partition < count; partition++)
      add({ subTopology, partition, inputs: inputs.filter((_, index) => partition < (counts?.[index] ?? count)) }, 0)
  })
  extensions.forEach((extension, index) => {
    for (const task of extension.tasks) add(task, index + 1)
  })
  return { tasks, partitions }
}

/** An input whose partition count is not the one that the layout covers. */
export interface InputDifference {
  readonly topic: string
  readonly subTopology: number
  readonly was: number
  readonly is: number
}

/** The inputs as they are against the layout. A topic that is not in `counts` is passed over. */
export function compareInputs(
  { tasks }: TaskLayout,
  counts: PartitionCounts,
): { readonly grown: readonly InputDifference[]; readonly shrunk: readonly InputDifference[] } {
  const covered = new Map<string, { topic: string; subTopology: number; was: number }>()
  for (const { subTopology, partition, inputs } of tasks) {
    for (const topic of inputs) {
      const name = `${subTopology}/${topic}`
      const found = covered.get(name) ?? { topic, subTopology, was: 0 }
      found.was = Math.max(found.was, partition + 1)
      covered.set(name, found)
    }
  }
  const different = [...covered.values()].flatMap((input) => {
    const is = counts.get(input.topic) ?? input.was
    return is === input.was ? [] : [{ ...input, is }]
  })
  return { grown: different.filter(({ was, is }) => is > was), shrunk: different.filter(({ was, is }) => is < was) }
}

/** Tasks for just the added partitions. Inputs that grew into the same partition share one; where a task of another input is there already, it stays as it is. */
export function tasksForGrowth(grown: readonly InputDifference[]): readonly AddedTask[] {
  const added: AddedTask[] = []
  for (const subTopology of [...new Set(grown.map((input) => input.subTopology))].sort((a, b) => a - b)) {
    const inputs = grown.filter((input) => input.subTopology === subTopology)
    for (let partition = Math.min(...inputs.map(({ was }) => was)); partition < Math.max(...inputs.map(({ is }) => is)); partition++) {
      const topics = inputs.filter(({ was, is }) => partition >= was && partition < is).map(({ topic }) => topic)
      if (topics.length > 0) added.push({ subTopology, partition, inputs: topics.sort() })
    }
  }
  return added
}

/**
 * The layout that this worker goes by at present. Replaced by the loop alone; the callbacks of the group, the look-ups of log starts and the search for
 * tasks without an owner read it.
 */
export class TaskLayouts {
  #layout: TaskLayout
  #taskPartitions: number

  /** `taskPartitions`: partitions that the task topic has; fewer than tasks while it has not grown yet. */
  constructor(layout: TaskLayout, taskPartitions: number) {
    this.#layout = layout
    this.#taskPartitions = taskPartitions
  }

  get layout(): TaskLayout {
    return this.#layout
  }

  get taskPartitions(): number {
    return this.#taskPartitions
  }

  task(number: number): TaskAssignment | undefined {
    return this.#layout.tasks[number]
  }

  /** Every partition that a worker may have to assign, the task topic's included. */
  partitions(tasksTopic: string, layout = this.#layout): readonly TopicPartition[] {
    return layout.tasks.flatMap(({ inputs, partition }, number) => [
      ...(number < this.#taskPartitions ? [{ topic: tasksTopic, partition: number }] : []),
      ...inputs.map((topic) => ({ topic, partition })),
    ])
  }

  /** Tasks are only ever added (TL2). */
  adopt(layout: TaskLayout, taskPartitions: number): void {
    invariant(
      this.#layout.tasks.every(({ name }, number) => layout.tasks[number]?.name === name),
      'TL2',
      () => ({ before: this.#layout.tasks.map(({ name }) => name), after: layout.tasks.map(({ name }) => name) }),
    )
    this.#layout = layout
    this.#taskPartitions = Math.max(this.#taskPartitions, taskPartitions)
  }
}
