/**
 * Tasks come and go: from the group's callbacks to running tasks, and back.
 *
 * Owns: the event queue between callbacks and the loop; the moves of a task from preparing to closed.
 * Does not own: the open transaction (commit-cycle settles it before a task is given up), reading (input-reader), the changelog (restore).
 *
 * Invariants:
 *  L1. Callbacks only enqueue; `handleEvents` runs in the loop.
 *  L2. A revoke is answered exactly once, after work on its partitions is settled, whatever happened to that work.
 *  L3. A task reads nothing before its state reached the changelog's end as of its assignment (X7).
 *  L4. Offsets of a lost partition are never sent: work on it dooms the open transaction; work of other tasks alone does not (X3).
 */
import type { GroupConsumer, RebalanceListener } from '../broker/port.ts'
import type { TopicPartition, TopicPartitionOffset } from '../common/topic-partition.ts'
import { failpoint } from '../common/failpoints.ts'
import { invariant } from '../common/invariant.ts'
import { BrokerError, GIVEN_UP } from '../errors/broker-error.ts'
import { asError, FatalError, type CorruptedStoreError } from '../errors/errors.ts'
import { Task } from '../task/task.ts'
import { AssignedTask } from './assigned-task.ts'
import type { CommitCycle } from './commit-cycle.ts'
import type { InputReader } from './input-reader.ts'
import type { LogStarts } from './log-starts.ts'
import type { OwnedTasks } from './owned-tasks.ts'
import type { PositionCheck } from './position-check.ts'
import type { RecordAttempts } from './record-attempts.ts'
import type { RecordOutbox } from './record-outbox.ts'
import type { Restorer } from './restore.ts'
import { prepareTasks, type PreparedTask } from './task-preparation.ts'
import { flushState } from './state-flush.ts'
import type { TaskLayouts } from './task-layout.ts'
import type { WorkerOptions } from './worker-options.ts'

type Event =
  | { readonly kind: 'assigned'; readonly tasks: readonly AssignedTask[] }
  | { readonly kind: 'revoked'; readonly tasks: readonly AssignedTask[]; readonly lost: boolean; readonly answer: () => void }
  | { readonly kind: 'prepared'; readonly prepared: PreparedTask }
  | { readonly kind: 'failed'; readonly error: Error }

export interface TaskLifecycleOptions {
  readonly worker: WorkerOptions
  readonly tasks: OwnedTasks
  readonly layouts: TaskLayouts
  readonly tasksTopic: string
  readonly logStarts: LogStarts
  readonly consumer: GroupConsumer
  readonly outbox: RecordOutbox
  readonly reader: InputReader
  readonly positions: PositionCheck
  readonly cycle: () => CommitCycle
  readonly attempts: RecordAttempts
  readonly restorer: Restorer
}

export class TaskLifecycle implements RebalanceListener {
  readonly #options: TaskLifecycleOptions
  readonly #events: Event[] = []
  #ended = false
  readonly #rebuilt = new Set<string>()
  #everAssigned = false
  #rebalances = 0
  /** Ours, but not in the layout: another worker extended it (input-growth). They are assigned and stay paused. */
  readonly #unknown = new Set<number>()
  /** What tasks wait for before their restore, by task name: an open transaction that holds their offsets, named. */
  readonly waiting = new Map<string, string>()

  constructor(options: TaskLifecycleOptions) {
    this.#options = options
  }

  get hasEvents(): boolean {
    return this.#events.length > 0
  }

  /** Callbacks of the group so far. */
  get rebalances(): number {
    return this.#rebalances
  }

  /** Task numbers that were assigned before this worker knew what they stand for. Known by now or not, they need another callback. */
  get unknownTasks(): readonly number[] {
    return this.#unknown.size === 0 ? [] : [...this.#unknown]
  }

  /** True from the first assignment on, an empty one included. */
  get everAssigned(): boolean {
    return this.#everAssigned
  }

  // --- callbacks: they only enqueue (L1) -----------------------------------------------------------------------------

  assigned(partitions: readonly TopicPartition[]): readonly TopicPartitionOffset[] {
    const { worker, layouts, tasksTopic, tasks, logStarts } = this.#options
    failpoint('assign:before')
    this.#rebalances++
    const added: AssignedTask[] = []
    const unknown: TopicPartition[] = []
    for (const { partition: number } of partitions) {
      const entry = layouts.task(number)
      const subTopology = worker.plan.subTopologies.find(({ id }) => id === entry?.subTopology)
      if (entry === undefined || subTopology === undefined) {
        this.#unknown.add(number)
        unknown.push({ topic: tasksTopic, partition: number })
        continue
      }
      const task = new AssignedTask(number, tasksTopic, subTopology, entry.partition, entry.inputs, entry)
      for (const input of task.inputs) input.assignedAt = logStarts.of(input.topic, input.partition)
      tasks.add(task)
      added.push(task)
    }
    this.#events.push({ kind: 'assigned', tasks: added })
    return [...added.flatMap(({ assigned }) => assigned), ...unknown].map(({ topic, partition }) => ({
      topic,
      partition,
      offset: logStarts.of(topic, partition),
    }))
  }

  revoked(partitions: readonly TopicPartition[], lost: boolean): Promise<readonly TopicPartition[]> {
    this.#rebalances++
    const tasks = partitions.flatMap(({ partition }) => this.#options.tasks.get(partition) ?? [])
    const unknown = partitions.filter(({ partition }) => this.#unknown.delete(partition))
    const all = [...tasks.flatMap(({ assigned }) => assigned), ...unknown]
    if (this.#ended || tasks.length === 0) return Promise.resolve(all)
    return new Promise((resolve) => {
      const answer = () => {
        resolve(all)
      }
      this.#events.push({ kind: 'revoked', tasks, lost, answer })
    })
  }

  // --- in the loop ---------------------------------------------------------------------------------------------------

  async handleEvents(): Promise<void> {
    for (let event = this.#events.shift(); event !== undefined; event = this.#events.shift()) {
      switch (event.kind) {
        case 'assigned':
          this.#everAssigned = true
          if (event.tasks.length === 0) break
          this.#options.worker.listener.assigned(event.tasks.map(({ name }) => name))
          this.#prepare(event.tasks)
          break
        case 'revoked':
          await this.#giveUp(event.tasks, event.lost, event.answer)
          break
        case 'prepared':
          await this.#restore(event.prepared)
          break
        case 'failed':
          throw event.error
      }
    }
  }

  /** One step of the running restores, and the start of the tasks that are done. */
  async restoreStep(timeoutMs: number): Promise<void> {
    const { finished, damaged } = await this.#options.restorer.step(timeoutMs)
    for (const task of finished) await this.#start(task)
    for (const { task, error } of damaged) this.rebuild(task, error)
  }

  /**
   * A store file is proven damaged: it is closed, and opening it again moves it aside and starts from the changelog. Once per task: damage that returns
   * is a broken disk. Only between transactions, or for a task that has nothing in the open one.
   */
  rebuild(task: AssignedTask, error: CorruptedStoreError): void {
    if (this.#rebuilt.has(task.name)) {
      throw new FatalError(`the state of task ${task.describe()} is damaged again after it was rebuilt: ${error.message}`, {
        code: 'state-damaged-again',
        remedy: 'Check the disk below the state directory, or choose another one with --state-dir: the changelog has everything.',
        cause: error,
      })
    }
    this.#rebuilt.add(task.name)
    this.restart([task], `the store file is damaged: ${error.message}`)
  }

  /** Off the loop: asks for offsets, which can wait for a dead peer's transaction, then opens state. Each task that is ready becomes an event. */
  #prepare(tasks: readonly AssignedTask[]): void {
    const { consumer, worker, tasks: owned } = this.#options
    const isWanted = (task: AssignedTask): boolean => !this.#ended && owned.has(task) && task.phase === 'preparing'
    const done = (prepared: PreparedTask): void => {
      this.#events.push({ kind: 'prepared', prepared })
    }
    prepareTasks(tasks, consumer, worker, isWanted, done, this.waiting).catch((error: unknown) => {
      if (!this.#ended) this.#events.push({ kind: 'failed', error: asError(error) })
    })
  }

  async #restore({ task, state, offsets, restores }: PreparedTask): Promise<void> {
    const { worker, tasks, outbox, restorer, attempts, positions } = this.#options
    if (task.phase !== 'preparing' || !tasks.has(task)) {
      state.close() // given up meanwhile
      return
    }
    task.state = state
    task.task = new Task({
      plan: worker.plan,
      subTopology: task.subTopology,
      stores: state.stores,
      outbox,
      clock: worker.clock,
      countAttempt: (record) => attempts.failed(record),
      onFailure: (failure, reaction) => {
        worker.listener.failure(failure, reaction)
      },
    })
    for (const input of task.inputs) {
      const found = offsets.get(input.topic)
      invariant(found !== undefined, 'A2', { task: task.name, topic: input.topic })
      input.committed = found.committed
      input.start = found.start
      input.next = found.committed ?? found.start
      positions.place(input, found)
      input.committedAt = found.committedAt
      task.task.setStreamTime(input.topic, found.streamTime)
    }
    resumeStores(task, task.task.streamTime, worker.clock.now())
    task.moveTo('restoring')
    for (const request of restores) restorer.add(request)
    if (restores.length === 0) await this.#start(task)
  }

  /** State is at the changelog's end (L3): read on from the committed offsets. */
  async #start(task: AssignedTask): Promise<void> {
    this.#options.tasks.activate(task)
    await this.#options.reader.start(task)
    task.moveTo('running')
    this.#options.attempts.started(task)
    failpoint('assign:after')
    // A start position that nobody committed would be found anew by the next owner, and with `startFrom: 'latest'` the records between would be lost.
    if (task.inputs.some(({ committed }) => committed === undefined)) task.touched = true
    this.#options.worker.logger.debug({ task: task.name }, 'task is running')
  }

  /** The truth about these tasks must come from the broker: state is closed and restored, positions are read from the group. */
  restart(tasks: readonly AssignedTask[], reason: string): void {
    this.#options.worker.logger.warn({ tasks: tasks.map(({ name }) => name) }, `restoring tasks: ${reason}`)
    this.#options.reader.pause(tasks.filter(({ phase }) => phase === 'running'))
    for (const task of tasks) {
      this.#options.restorer.remove(task)
      task.releaseState()
      task.moveTo('preparing')
    }
    this.#prepare(tasks)
  }

  /** Settles the tasks' part of the open transaction, closes their state, answers the callback (L2, L4). */
  async #giveUp(given: readonly AssignedTask[], lost: boolean, answer: () => void): Promise<void> {
    const { tasks, restorer, worker } = this.#options
    const cycle = this.#options.cycle()
    failpoint('revoke:before')
    try {
      if (!lost) {
        // Two commits: the second, which only proves ownership, lets the checkpoint lie behind the first, so the next owner on this disk restores nothing.
        await cycle.commit('revoke')
        await flushState(given, 'any', () => cycle.commit('flush'), worker)
      } else if (cycle.isOpen && given.some(({ dirty }) => dirty)) {
        await cycle.abandon(new BrokerError('commit', GIVEN_UP, 'partitions were lost to another member'))
      }
    } finally {
      try {
        for (const task of given) {
          restorer.save(task)
          restorer.remove(task)
          tasks.remove(task)
          if (task.phase !== 'closed') task.close()
        }
        failpoint('revoke:after')
      } finally {
        answer()
      }
    }
    const names = given.map(({ name }) => name)
    worker.listener.revoked(names, lost)
  }

  /** The worker ends: open questions are answered, late results are dropped. */
  end(): void {
    this.#ended = true
    for (const event of this.#events.splice(0)) {
      if (event.kind === 'revoked') event.answer()
      if (event.kind === 'prepared') event.prepared.state.close()
    }
  }
}

/** Tells each store the time up to which its task has committed, so that a restore need not bring back what has expired since. */
function resumeStores(task: AssignedTask, streamTime: number, wallClock: number): void {
  for (const node of task.subTopology.nodes) {
    if (node.kind !== 'dedupe') continue
    const now = node.clock === 'wall-clock' ? wallClock : streamTime
    if (now >= 0) task.state?.stores.get(node.store)?.resumeAt(now)
  }
}
