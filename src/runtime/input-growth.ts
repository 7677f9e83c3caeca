/**
 * Notices partitions that were added to an input while the worker runs. Nobody else does: the group subscribes to the task topic only (DESIGN 3).
 *
 * Inputs of stateless sub-topologies get tasks for the new partitions, in this order:
 *  1. Whoever looks first writes an extension of the table and reads it back (task-agreement).
 *  2. Every worker finds it at its own next look, or by being assigned one of its tasks (`readAgain`).
 *  3. At its next look, an interval after step 1, a worker lets the task topic grow: by then the others have looked, so hardly anyone is assigned a task
 *     it does not know, and has to leave and join anew for it. Whoever gets there does it; a worker that dies in between leaves nothing to mend.
 *  4. The group notices the larger topic and spreads the new partitions; tasks that stay keep running.
 * Inputs of stateful ones end the worker, with the plan (X6, X8).
 *
 * Owns: when to look, and the moment at which the loop takes up a new layout. Runs beside the loop; its findings are handed out by `look`.
 * Does not own: what is agreed on and how.
 */
import { asError, ConfigError } from '../errors/errors.ts'
import { BrokerError } from '../errors/broker-error.ts'
import { classify } from '../errors/classify.ts'
import type { TopicPartition } from '../common/topic-partition.ts'
import { tasksTopic } from '../topology/internal-topics.ts'
import { growTaskTopic, inputPartitions } from './internal-topics.ts'
import { refuseStatefulGrowth, settleTasks, type AgreementOptions, type Settled } from './task-agreement.ts'
import { compareInputs, type TaskAssignment, type TaskLayouts } from './task-layout.ts'

/** A look that was asked for and failed is repeated after this. */
const AGAIN_MS = 1_000

export interface InputGrowthOptions extends AgreementOptions {
  readonly layouts: TaskLayouts
  /** How often inputs are looked at, ms; also how long the others are given to hear of an extension. */
  readonly intervalMs: number
  /** Awaited before a layout is handed out: where the logs of all its partitions begin must be known when they are assigned (log-starts). */
  readonly prepare: (partitions: readonly TopicPartition[]) => Promise<void>
}

export class InputGrowth {
  readonly #options: InputGrowthOptions
  readonly #tasksTopic: string
  #nextLookAt: number
  #looking = false
  #found: Settled | undefined
  #failure: Error | undefined
  /** Assigned, but not in the layout: the table must be read again. */
  #unknown: readonly number[] = []
  /** Partitions of the task topic as last seen, since when, and how many there were before. */
  #taskPartitions: number
  #taskPartitionsBefore: number
  #taskPartitionsSince = Number.NEGATIVE_INFINITY

  constructor(options: InputGrowthOptions) {
    this.#options = options
    this.#tasksTopic = tasksTopic(options.applicationId)
    this.#nextLookAt = options.clock.monotonic() + options.intervalMs
    this.#taskPartitions = options.layouts.taskPartitions
    this.#taskPartitionsBefore = this.#taskPartitions
  }

  /**
   * How many tasks should have an owner. A task topic that has grown is noticed by the group within one interval: until two are over, its new partitions
   * are without owner for no other reason.
   */
  get ownedTasks(): number {
    const isNoticed = this.#options.clock.monotonic() - this.#taskPartitionsSince >= 2 * this.#options.intervalMs
    return isNoticed ? this.#taskPartitions : this.#taskPartitionsBefore
  }

  /** These tasks were assigned, but are not in the layout: another worker extended the table. Called every turn until they are. */
  readAgain(numbers: readonly number[]): void {
    if (this.#unknown.length > 0 || numbers.every((number) => this.#options.layouts.task(number) !== undefined)) return
    this.#unknown = numbers
    this.#nextLookAt = this.#options.clock.monotonic()
  }

  /**
   * Called every turn of the loop; looks in the background. Returns the tasks that were added when a new layout was adopted in this turn.
   * Throws `ConfigError` 'input-grew' when a stateful input has grown, and others when what is found cannot be followed.
   */
  look(): readonly TaskAssignment[] | undefined {
    if (this.#failure !== undefined) throw this.#failure
    const { clock, layouts, logger, intervalMs } = this.#options
    const now = clock.monotonic()
    const found = this.#found
    if (found !== undefined) {
      this.#found = undefined
      const added = found.layout.tasks.slice(layouts.layout.tasks.length)
      layouts.adopt(found.layout, found.taskPartitions)
      logger.info({ tasks: added.map(({ name }) => name) }, `${added.length} tasks were added for new partitions of the inputs`)
      return added
    }
    if (this.#looking || now < this.#nextLookAt) return undefined
    this.#looking = true
    const asked = this.#unknown
    this.#lookNow(asked)
      .then(
        () => {
          this.#unknown = []
          this.#nextLookAt = now + intervalMs
        },
        (error: unknown) => {
          this.#nextLookAt = now + (asked.length > 0 ? Math.min(AGAIN_MS, intervalMs) : intervalMs)
          this.#judge(error)
        },
      )
      .finally(() => {
        this.#looking = false
      })
    return undefined
  }

  async #lookNow(asked: readonly number[]): Promise<void> {
    const { broker, plan, layouts, prepare, logger } = this.#options
    const { layout } = layouts
    const counts = await inputPartitions(broker.admin, plan)
    const taskPartitions = (await broker.admin.describeTopics([this.#tasksTopic]))[0]?.partitions ?? 0
    this.#see(taskPartitions)
    const { grown } = compareInputs(layout, counts)
    refuseStatefulGrowth(plan, grown)
    if (grown.length > 0 || taskPartitions > layout.tasks.length || asked.length > 0) {
      const settled = await settleTasks(this.#options, 'end')
      const unknown = asked.filter((number) => settled.layout.tasks[number] === undefined)
      if (unknown.length > 0) throw unknownTasks(unknown, this.#tasksTopic, settled.layout.tasks.length)
      if (settled.layout.tasks.length === layout.tasks.length) return
      await prepare(layouts.partitions(this.#tasksTopic, settled.layout))
      this.#found = settled
    } else if (taskPartitions < layout.tasks.length) {
      await growTaskTopic(broker.admin, this.#tasksTopic, layout.tasks.length, this.#options)
      logger.info(
        { topic: this.#tasksTopic, from: taskPartitions, to: layout.tasks.length },
        'the task topic has grown: the group spreads its new tasks',
      )
      this.#see(layout.tasks.length)
    }
  }

  #see(taskPartitions: number): void {
    if (taskPartitions <= this.#taskPartitions) return // metadata of a broker that lags behind
    this.#taskPartitionsBefore = this.ownedTasks
    this.#taskPartitions = taskPartitions
    this.#taskPartitionsSince = this.#options.clock.monotonic()
  }

  /** What time may heal is tried again; what it does not must not look like an input without records (X6). */
  #judge(error: unknown): void {
    if (error instanceof BrokerError && classify(error).reaction === 'config') {
      this.#failure = new ConfigError(
        `the tasks in ${this.#tasksTopic} could not be compared with the inputs: ${error.message}: ${classify(error).reason}`,
        {
          code: 'input-growth-refused',
          remedy: `This user needs the rights to describe the inputs, and to write, read and alter ${this.#tasksTopic}: new partitions of an input would stay unread.`,
          cause: error,
        },
      )
    } else if (error instanceof ConfigError && error.code !== 'topic-missing') {
      this.#failure = error
    } else {
      this.#options.logger.warn({ error: asError(error).message }, 'the inputs could not be compared with the tasks: looking again')
    }
  }
}

function unknownTasks(numbers: readonly number[], topic: string, tasks: number): ConfigError {
  return new ConfigError(`partitions ${numbers.join(', ')} of ${topic} stand for no task: ${tasks} tasks are on record`, {
    code: 'unknown-task',
    remedy: 'The task topic was altered by hand. Start under another applicationId, which begins anew.',
  })
}
