/**
 * The worker: one loop that owns a group consumer, a ring of producers and the tasks assigned to it.
 *
 * Owns: the order of everything. Callbacks (rebalance, prepared tasks, stop) only enqueue an event; the loop acts at its own pace.
 * Does not own: how a record is processed (task), how a transaction ends (transaction), what is on disk (state), what a partition's owner is (the group).
 * Calls across: broker port, StateBackend, Task.process, TransactionMachine, Restorer.
 * Awaits of the loop, all of them: events' work, restore step, poll, writable, begin, commit, flush of state, yield between slices.
 *
 * Invariants:
 *  W1. One poll outstanding at most, and no seek while one is: the loop awaits its poll before it does anything else (CLIENT-FACTS 9).
 *  W2. A record is processed only if its partition has been valid since before the poll was issued (`validFromPoll`), and in offset order.
 *  W3. Offsets are sent for every task that wrote or advanced, and only for tasks still owned (X3).
 *  W4. Write-sets are merged only after the commit succeeded; positions become committed positions in the same step (X1, X2).
 *  W5. A revoke is answered exactly once, after work on its partitions is settled, whatever happened to that work.
 *  W6. A task reads nothing before its state reached the changelog's end as of its assignment (X7).
 *  W7. State is flushed only between transactions, with a checkpoint read there: it only ever lags (X2, DESIGN 4).
 */
import type { BrokerRecord, GroupConsumer, OffsetToCommit, PollResult } from '../broker/port.ts'
import { invariant } from '../common/invariant.ts'
import { partitionName, type TopicPartition } from '../common/topic-partition.ts'
import { BrokerError } from '../errors/broker-error.ts'
import { classify } from '../errors/classify.ts'
import { asError, ConfigError, FatalError, SlotTakenError } from '../errors/errors.ts'
import type { WorkerState, WorkerStatus } from '../metrics/status.ts'
import { Task } from '../task/task.ts'
import { changelogTopic, tasksTopic } from '../topology/internal-topics.ts'
import { AssignedTask, type InputPartition } from './assigned-task.ts'
import { ensureInternalTopics, internalTopics, layOutTasks, type TaskLayout } from './internal-topics.ts'
import { writeMetadata } from './offset-metadata.ts'
import { ProducerRing } from './producer-ring.ts'
import { RecordOutbox } from './record-outbox.ts'
import { Restorer } from './restore.ts'
import { readSinkLimits, SinkCheck } from './sink-limits.ts'
import { flushCheckpoint } from './state-flush.ts'
import { prepareTasks, type PreparedTask } from './task-preparation.ts'
import { agreeOnTaskTable, taskTable } from './task-table.ts'
import { TransactionMachine, type Outcome } from './transaction.ts'
import { WorkerMetrics } from './worker-metrics.ts'
import type { CommitReason, WorkerOptions } from './worker-options.ts'

type Event =
  | { readonly kind: 'assigned'; readonly tasks: readonly AssignedTask[] }
  | { readonly kind: 'revoked'; readonly tasks: readonly AssignedTask[]; readonly lost: boolean; readonly answer: () => void }
  | { readonly kind: 'prepared'; readonly prepared: readonly PreparedTask[] }
  | { readonly kind: 'failed'; readonly error: Error }

/** A poll with nothing to wait for returns after this; events and timers are looked at between polls. */
const IDLE_POLL_MS = 100
/** With a transaction open the poll only asks whether there is more right now. */
const OPEN_POLL_MS = 1
/** How long the loop works before it lets callbacks in. */
const SLICE_MS = 50
const CALL_TIMEOUT_MS = 5_000
const FENCED_TWICE_WITHIN_MS = 60_000
/** The same refusal this many times in a row is no accident. */
const REFUSALS_IN_A_ROW = 3

export class Worker {
  readonly #options: WorkerOptions
  readonly #tasksTopic: string
  readonly #idPrefix: string
  readonly #events: Event[] = []
  /** All owned tasks by number, from the assign callback on. */
  readonly #tasks = new Map<number, AssignedTask>()
  readonly #inputs = new Map<string, InputPartition>()
  readonly #metrics: WorkerMetrics
  readonly #restorer: Restorer
  readonly #ring: ProducerRing
  readonly #machine: TransactionMachine
  #state: WorkerState = 'created'
  #consumer: GroupConsumer | undefined
  #outbox: RecordOutbox | undefined
  #layout: TaskLayout = { tasks: [], partitions: [] }
  #slotLock: { release(): void } | undefined
  #pollNumber = 0
  #stopping: { leave: boolean } | undefined
  #loopEnded = false
  #wasReady = false
  #becameReady: (() => void) | undefined
  readonly ready: Promise<void>
  #transactionRecords = 0
  #transactionBytes = 0
  #transactionOutputs = 0
  #transactionStartedAt = 0
  #abortsInARow = 0
  #refusalsInARow = 0
  #fencedAt = Number.NEGATIVE_INFINITY

  constructor(options: WorkerOptions) {
    this.#options = options
    const { settings, broker, clock, timers, logger } = options
    this.#tasksTopic = tasksTopic(settings.applicationId)
    this.#idPrefix = `${settings.applicationId}-${settings.instance}-${settings.slot}`
    this.#metrics = new WorkerMetrics(clock)
    this.ready = new Promise((resolve) => (this.#becameReady = resolve))
    this.#restorer = new Restorer({
      connectReader: () => broker.connectReader(),
      clock,
      logger,
      noProgressMs: settings.restoreTimeoutMs,
      memtableBytes: settings.memtableBytes,
      onDone: (_task, progress) => {
        this.#metrics.restores++
        options.listener.restored(progress)
      },
    })
    this.#ring = new ProducerRing({
      broker,
      idPrefix: this.#idPrefix,
      size: settings.producerRingSize,
      transactionTimeoutMs: settings.transactionTimeoutMs,
      initTimeoutMs: 10_000,
      clock,
      timers,
      logger,
    })
    this.#machine = new TransactionMachine(
      this.#ring,
      {
        callTimeoutMs: CALL_TIMEOUT_MS,
        commitBudgetMs: settings.transactionTimeoutMs + CALL_TIMEOUT_MS,
        replaceBudgetMs: settings.taskTimeoutMs,
      },
      clock,
      logger,
    )
  }

  get state(): WorkerState {
    return this.#state
  }

  #setState(to: WorkerState): void {
    const from = this.#state
    if (from === to) return
    this.#state = to
    this.#options.listener.state(from, to)
  }

  // --- start and end -------------------------------------------------------------------------------------------------

  /** Runs until `stop`, or until it fails: then it rejects with the reason. Everything it opened is closed either way (X10). */
  async run(): Promise<void> {
    invariant(this.#state === 'created', 'W0', { run: this.#state })
    this.#setState('starting')
    let failure: Error | undefined
    try {
      await this.#open()
      await this.#loop()
      await this.#finish()
    } catch (error) {
      failure = asError(error)
    }
    this.#loopEnded = true
    await this.#release(failure !== undefined)
    this.#setState(failure === undefined ? 'closed' : 'failed')
    if (failure !== undefined) throw failure
  }

  /** Asks the loop to commit and end. Idempotent. */
  stop(options: { readonly leave?: boolean | undefined } = {}): void {
    this.#stopping ??= { leave: options.leave ?? this.#options.settings.onClose === 'leave' }
  }

  async #open(): Promise<void> {
    const { broker, backend, plan, settings, clock, random } = this.#options
    this.#slotLock = await backend.lockSlot(`${settings.instance}-${settings.slot}`)
    this.#layout = await layOutTasks(broker.admin, plan)
    const sinks = await readSinkLimits(broker.admin, plan.sinks)
    this.#outbox = new RecordOutbox(new SinkCheck(sinks, clock), settings.recordMaxOutputBytes)
    await ensureInternalTopics(broker.admin, internalTopics(plan, settings.applicationId, this.#layout, settings.replicationFactor))
    await agreeOnTaskTable(broker, this.#tasksTopic, taskTable(plan, this.#layout), { random, clock, timeoutMs: 30_000 })
    // Before joining: it aborts at once what a dead predecessor of this slot left open, so nobody waits for it.
    await this.#ring.open(settings.taskTimeoutMs)
    this.#consumer = await broker.connectConsumer({
      groupId: settings.applicationId,
      groupInstanceId: this.#idPrefix,
      sessionTimeoutMs: settings.sessionTimeoutMs,
      heartbeatIntervalMs: settings.heartbeatIntervalMs,
      maxPollIntervalMs: settings.maxPollIntervalMs,
    })
    this.#consumer.subscribe(this.#tasksTopic, {
      assigned: (partitions) => this.#assigned(partitions),
      revoked: (partitions, lost) => this.#revoked(partitions, lost),
    })
  }

  async #finish(): Promise<void> {
    const consumer = this.#theConsumer
    this.#setState('closing')
    await this.#commit('close')
    if (this.#stopping?.leave === true) {
      // The revoke comes through the callback, so polling goes on until it was answered.
      consumer.unsubscribe()
      const deadline = this.#options.clock.monotonic() + this.#options.settings.shutdownTimeoutMs
      while (this.#tasks.size > 0 && this.#options.clock.monotonic() < deadline) {
        await this.#handleEvents()
        await consumer.poll(1, IDLE_POLL_MS)
      }
    }
    await this.#flushState([...this.#tasks.values()], 'all decided')
  }

  async #release(failed: boolean): Promise<void> {
    for (const event of this.#events.splice(0)) {
      if (event.kind === 'revoked') event.answer()
      if (event.kind === 'prepared') for (const { state } of event.prepared) state.close()
    }
    for (const task of this.#tasks.values()) task.close()
    await this.#restorer.close()
    await this.#consumer?.close()
    this.#tasks.clear()
    this.#inputs.clear()
    await this.#ring.close()
    this.#slotLock?.release()
    if (failed) this.#becameReady?.()
  }

  get #theConsumer(): GroupConsumer {
    invariant(this.#consumer !== undefined, 'W0', { consumer: 'not connected' })
    return this.#consumer
  }

  // --- callbacks: they only enqueue ----------------------------------------------------------------------------------

  #assigned(partitions: readonly TopicPartition[]): readonly TopicPartition[] {
    const { plan } = this.#options
    const tasks: AssignedTask[] = []
    for (const { partition: number } of partitions) {
      const entry = this.#layout.tasks[number]
      const subTopology = plan.subTopologies.find(({ id }) => id === entry?.subTopology)
      if (entry === undefined || subTopology === undefined) {
        this.#events.push({
          kind: 'failed',
          error: new ConfigError(
            `task ${number} of ${this.#tasksTopic} is not in this worker's task table (${this.#layout.tasks.length} tasks)`,
            {
              code: 'unknown-task',
              remedy: 'The task topic has grown: restart this worker, so that it reads the new table.',
            },
          ),
        })
        continue
      }
      const task = new AssignedTask(number, this.#tasksTopic, subTopology, entry.partition, subTopology.inputs)
      this.#tasks.set(number, task)
      tasks.push(task)
    }
    this.#events.push({ kind: 'assigned', tasks })
    return tasks.flatMap(({ assigned }) => assigned)
  }

  #revoked(partitions: readonly TopicPartition[], lost: boolean): Promise<readonly TopicPartition[]> {
    const tasks = partitions.flatMap(({ partition }) => this.#tasks.get(partition) ?? [])
    const all = tasks.flatMap(({ assigned }) => assigned)
    if (this.#loopEnded || tasks.length === 0) return Promise.resolve(all)
    return new Promise((resolve) => {
      this.#events.push({
        kind: 'revoked',
        tasks,
        lost,
        answer: () => {
          resolve(all)
        },
      })
    })
  }

  // --- the loop ------------------------------------------------------------------------------------------------------

  async #loop(): Promise<void> {
    const { settings, clock } = this.#options
    while (this.#stopping === undefined) {
      await this.#handleEvents()
      this.#checkSlot()
      if (this.#restorer.active)
        for (const task of await this.#restorer.step(this.#anyRunning ? OPEN_POLL_MS : IDLE_POLL_MS)) await this.#startTask(task)
      this.#updateState()

      const { records, ends } = await this.#poll(settings.maxPollRecords, this.#pollTimeoutMs())
      if (!(await this.#process(records))) continue
      this.#stepOverControlRecords(ends)

      if (this.#machine.state === 'idle') this.#keepOffsetsAlive()
      const drained = records.length < settings.maxPollRecords
      if (this.#anyDirty && (drained || clock.monotonic() - this.#transactionStartedAt >= settings.commitIntervalMs)) {
        await this.#commit(drained ? 'drained' : 'interval')
      }
      await this.#flushState([...this.#tasks.values()].filter(({ state, phase }) => phase === 'running' && state?.flushDue === true))
    }
  }

  get #anyRunning(): boolean {
    for (const task of this.#tasks.values()) if (task.phase === 'running') return true
    return false
  }

  get #anyDirty(): boolean {
    for (const task of this.#tasks.values()) if (task.dirty) return true
    return false
  }

  #pollTimeoutMs(): number {
    if (this.#machine.state !== 'idle' || this.#restorer.active || this.#events.length > 0) return OPEN_POLL_MS
    return IDLE_POLL_MS
  }

  async #poll(maxRecords: number, timeoutMs: number): Promise<PollResult> {
    this.#pollNumber++
    try {
      return await this.#theConsumer.poll(maxRecords, timeoutMs)
    } catch (error) {
      if (!(error instanceof BrokerError)) throw error
      const { reaction, reason } = classify(error)
      if (reaction === 'fenced') throw slotTaken(this.#idPrefix, error)
      if (reaction === 'config') throw this.#positionRefused(error)
      if (reaction === 'fatal') throw new FatalError(`the consumer failed: ${error.message}`, { code: 'consumer-failed', cause: error })
      this.#options.logger.warn({ code: error.code, error: error.message }, `poll failed: ${reason}`)
      return { records: [], ends: [] }
    }
  }

  /** -140 names no partition: the one without a position is it (CLIENT-FACTS 32). */
  #positionRefused(error: BrokerError): ConfigError {
    const running = [...this.#inputs.values()].filter(({ task }) => task.phase === 'running')
    const named = running.filter(({ topic, partition }) => this.#theConsumer.position(topic, partition) === undefined)
    const where = (named.length > 0 ? named : running)
      .map(({ topic, partition, next }) => `${partitionName(topic, partition)} at offset ${next}`)
      .join(', ')
    return new ConfigError(`reading is not possible: ${error.message}: ${where}`, {
      code: 'offset-out-of-range',
      remedy:
        'Records were deleted before they were processed (retention), or the topic was re-created. Reset the group\u2019s offset of that partition on purpose, then start again.',
      cause: error,
    })
  }

  /** The client drops its assignment without any event when the slot was taken (CLIENT-FACTS 21). */
  #checkSlot(): void {
    if (this.#tasks.size === 0 || this.#events.length > 0) return
    if (this.#theConsumer.assignments().length === 0) throw slotTaken(this.#idPrefix, undefined)
  }

  #updateState(): void {
    let state: WorkerState = 'running'
    for (const { phase } of this.#tasks.values()) if (phase !== 'running') state = this.#wasReady ? 'rebalancing' : 'restoring'
    if (this.#tasks.size === 0 && !this.#wasReady) return
    if (state === 'running' && !this.#wasReady) {
      this.#wasReady = true
      this.#becameReady?.()
    }
    this.#setState(state)
  }

  // --- records -------------------------------------------------------------------------------------------------------

  /** Runs a polled batch through the tasks. False: a transaction failed on the way and the rest of the batch was dropped; positions are rewound. */
  async #process(records: readonly BrokerRecord[]): Promise<boolean> {
    const { clock, settings } = this.#options
    const outbox = this.#outbox as RecordOutbox
    let sliceStart = clock.monotonic()
    let topic = ''
    let partition = -1
    let input: InputPartition | undefined
    for (let index = 0; index < records.length; index++) {
      const record = records[index] as BrokerRecord
      if (record.partition !== partition || record.topic !== topic) {
        topic = record.topic
        partition = record.partition
        input = this.#inputs.get(partitionName(topic, partition))
      }
      if (input === undefined || this.#pollNumber < input.validFromPoll) continue // stale (W2)
      const current = input
      invariant(record.offset >= current.next, 'W2', () => ({
        partition: partitionName(topic, partition),
        offset: record.offset,
        next: current.next,
      }))
      if (this.#machine.state === 'idle' && !(await this.#begin())) return false

      ;(current.task.task as Task).process(record)
      this.#transactionOutputs += outbox.count
      this.#transactionBytes += outbox.bytes
      try {
        while (!outbox.deliver(this.#produce)) await this.#machine.writable()
      } catch (error) {
        outbox.discard()
        if (!(error instanceof BrokerError)) throw error
        await this.#settle(await this.#machine.abort(error), [], '')
        return false
      }
      current.next = record.offset + 1
      current.task.touched = true
      this.#transactionRecords++
      if (this.#transactionRecords >= settings.transactionMaxRecords || this.#transactionBytes >= settings.transactionMaxBytes) {
        if (!(await this.#commit(this.#transactionBytes >= settings.transactionMaxBytes ? 'bytes' : 'records'))) return false
      }
      if ((index & 63) === 63 && clock.monotonic() - sliceStart > SLICE_MS) {
        await this.#yield()
        sliceStart = clock.monotonic()
        if (
          clock.monotonic() - this.#transactionStartedAt >= settings.commitIntervalMs &&
          this.#anyDirty &&
          !(await this.#commit('interval'))
        )
          return false
      }
    }
    return true
  }

  readonly #produce: TransactionMachine['produce'] = (topic, partition, key, value, timestamp, headers) =>
    this.#machine.produce(topic, partition, key, value, timestamp, headers)

  #yield(): Promise<void> {
    return new Promise((resolve) => {
      this.#options.timers.after(0, resolve)
    })
  }

  /** An end of partition lies past control records: committing it makes lag reach 0 on transactional input (CLIENT-FACTS 31). */
  #stepOverControlRecords(ends: PollResult['ends']): void {
    for (const { topic, partition, offset } of ends) {
      const input = this.#inputs.get(partitionName(topic, partition))
      if (input === undefined || input.task.phase !== 'running' || this.#pollNumber < input.validFromPoll) continue
      if (offset > input.next) input.next = offset
    }
  }

  /** Offsets of topics the group does not subscribe to expire while it is alive (CLIENT-FACTS 26). */
  #keepOffsetsAlive(): void {
    const oldest = this.#options.clock.monotonic() - this.#options.settings.offsetKeepAliveMs
    for (const input of this.#inputs.values()) {
      if (input.committed !== undefined && input.committedAt < oldest && input.task.phase === 'running') input.task.touched = true
    }
  }

  // --- transactions --------------------------------------------------------------------------------------------------

  async #begin(): Promise<boolean> {
    const refused = await this.#machine.begin()
    if (refused !== undefined) {
      await this.#settle(refused, [], '')
      return false
    }
    this.#transactionStartedAt = this.#options.clock.monotonic()
    return true
  }

  /** Commits what the dirty tasks did. True when it is committed (or there was nothing to commit); false when it was dropped and rewound. */
  async #commit(reason: CommitReason): Promise<boolean> {
    const dirty = [...this.#tasks.values()].filter((task) => task.dirty)
    if (dirty.length === 0) {
      invariant(this.#machine.state === 'idle', 'T2', { state: this.#machine.state })
      return true
    }
    if (this.#machine.state === 'idle' && !(await this.#begin())) return false
    const { clock, random, settings, listener } = this.#options
    const startedAt = clock.monotonic()
    const nonce = random.bytes(16)
    const nonceText = nonce.toString('base64url')
    try {
      for (const task of dirty) await this.#writeChangelogs(task, nonce)
    } catch (error) {
      if (!(error instanceof BrokerError)) throw error
      await this.#settle(await this.#machine.abort(error), [], nonceText)
      return false
    }
    const offsets: OffsetToCommit[] = dirty.flatMap((task) =>
      task.inputs.map(({ topic, partition, next }) => ({
        topic,
        partition,
        offset: next,
        metadata: writeMetadata({
          nonce: nonceText,
          streamTime: task.task?.streamTimeOf(topic) ?? -1,
          transactionalIdPrefix: this.#idPrefix,
          ringSize: settings.producerRingSize,
        }),
      })),
    )
    const outcome = await this.#machine.commit(this.#theConsumer, offsets, nonceText, () => this.#stillOwned(dirty))
    const durationMs = clock.monotonic() - startedAt
    const records = this.#transactionRecords
    const bytes = this.#transactionBytes
    if (!(await this.#settle(outcome, offsets, nonceText))) return false
    this.#metrics.committed(durationMs)
    listener.commit({ records, bytes, durationMs, reason })
    return true
  }

  async #writeChangelogs(task: AssignedTask, nonce: Buffer): Promise<void> {
    const { settings, clock } = this.#options
    for (const store of task.stores()) {
      if (!store.hasChanges) continue
      const topic = changelogTopic(settings.applicationId, store.name)
      const changes: [Buffer, Buffer | null][] = []
      store.prepare(nonce, (key, value) => changes.push([key, value]))
      for (const [key, value] of changes) {
        // The wall clock: old event times would be deleted at once by time retention, future ones refused (DESIGN 4).
        while (!this.#machine.produce(topic, task.partition, key, value, clock.now(), [])) await this.#machine.writable()
      }
    }
  }

  /** Asked right before the offsets are sent (X3, CLIENT-FACTS 6). */
  #stillOwned(tasks: readonly AssignedTask[]): boolean {
    const consumer = this.#theConsumer
    if (consumer.assignmentLost()) return false
    const assigned = new Set(consumer.assignments().map(({ topic, partition }) => partitionName(topic, partition)))
    return tasks.every(
      (task) => task.phase === 'running' && task.assigned.every(({ topic, partition }) => assigned.has(partitionName(topic, partition))),
    )
  }

  /** Acts on how a transaction ended. True when it is committed. */
  async #settle(outcome: Outcome, offsets: readonly OffsetToCommit[], nonce: string): Promise<boolean> {
    switch (outcome.kind) {
      case 'committed':
        this.#merge()
        return true
      case 'aborted':
        this.#countAbort(outcome)
        await this.#rewind()
        await this.#backOff()
        return false
      case 'fenced':
        return this.#recoverFromFence(outcome.error, outcome.commitSent ? offsets : [], nonce)
      case 'in-doubt':
        this.#metrics.aborted('in-doubt')
        await this.#restartTasks('the outcome of a commit could not be found out')
        return false
    }
  }

  #merge(): void {
    const now = this.#options.clock.monotonic()
    for (const task of this.#tasks.values()) {
      if (!task.dirty) continue
      const before = { ...task.task?.totals }
      task.commit(now)
      const after = task.task?.totals
      if (after !== undefined) {
        this.#metrics.records += after.records - (before.records ?? 0)
        this.#metrics.duplicates += after.duplicates - (before.duplicates ?? 0)
      }
    }
    this.#metrics.outputs += this.#transactionOutputs
    this.#abortsInARow = 0
    this.#refusalsInARow = 0
    this.#resetTransaction()
  }

  #resetTransaction(): void {
    this.#transactionRecords = 0
    this.#transactionBytes = 0
    this.#transactionOutputs = 0
  }

  #countAbort({ cause, error }: Extract<Outcome, { kind: 'aborted' }>): void {
    this.#abortsInARow++
    this.#metrics.aborted(`${error.operation}:${error.code}`)
    this.#options.logger.warn(
      { operation: error.operation, code: error.code, reaction: cause.reaction, records: this.#transactionRecords },
      `transaction aborted: ${cause.reason}; its records are processed again`,
    )
    if (cause.reaction === 'poisoned' || cause.reaction === 'config' || cause.reaction === 'fatal') {
      if (++this.#refusalsInARow >= REFUSALS_IN_A_ROW) {
        throw new FatalError(`the broker refused the same work ${REFUSALS_IN_A_ROW} times: ${error.message}: ${cause.reason}`, {
          code: 'transaction-refused',
          remedy:
            'Compare the settings of the output topics with the records of this topology (size, timestamps, keys) and the rights of this user.',
          cause: error,
        })
      }
    }
  }

  /** Ordinary while a member joins; longer when it repeats, so that an unreachable broker is not hammered. */
  async #backOff(): Promise<void> {
    await this.#ring.pause(Math.min(2_000, 20 * 2 ** Math.min(this.#abortsInARow, 7)))
  }

  /** Drops write-sets and goes back to the committed positions by seek. No poll is outstanding here (W1). */
  async #rewind(): Promise<void> {
    this.#resetTransaction()
    this.#outbox?.discard()
    for (const task of this.#tasks.values()) {
      if (task.phase !== 'running') continue
      task.abort()
      await this.#seekToCommitted(task)
    }
  }

  async #seekToCommitted(task: AssignedTask): Promise<void> {
    for (const input of task.inputs) {
      input.next = input.committed ?? input.start
      input.validFromPoll = this.#pollNumber + 1
    }
    await this.#seek(task)
  }

  /** The client may still be busy with the assignment: tried again for a moment. A partition taken away meanwhile is left to its revoke. */
  async #seek(task: AssignedTask): Promise<void> {
    const consumer = this.#theConsumer
    const deadline = this.#options.clock.monotonic() + CALL_TIMEOUT_MS * 2
    for (;;) {
      try {
        await consumer.seek(
          task.inputs.map(({ topic, partition, next }) => ({ topic, partition, offset: next })),
          CALL_TIMEOUT_MS,
        )
        return
      } catch (error) {
        if (!(error instanceof BrokerError)) throw error
        const owned = consumer.assignments().some(({ topic, partition }) => topic === this.#tasksTopic && partition === task.number)
        if (!owned) return
        if (this.#options.clock.monotonic() >= deadline) {
          throw new FatalError(`reading of task ${task.describe()} could not be moved to its committed offsets: ${error.message}`, {
            code: 'seek-failed',
            cause: error,
          })
        }
        await this.#ring.pause(20)
      }
    }
  }

  /**
   * -144 means a time-out or a take-over; the flags do not tell. Re-initing against a process that took the slot would fence each other for ever
   * (CLIENT-FACTS 21), so membership is proven first: two heartbeats without -150 and with an assignment. A second fence within a minute ends the worker.
   */
  async #recoverFromFence(error: BrokerError, offsets: readonly OffsetToCommit[], nonce: string): Promise<boolean> {
    const { clock, settings, logger } = this.#options
    const now = clock.monotonic()
    if (now - this.#fencedAt < FENCED_TWICE_WITHIN_MS) throw slotTaken(this.#idPrefix, error)
    this.#fencedAt = now
    this.#metrics.aborted(`fenced:${error.code}`)
    logger.warn({ code: error.code }, 'a producer was fenced: proving that this slot is still ours before going on')
    const proven = now + 2 * settings.heartbeatIntervalMs
    while (clock.monotonic() < proven) {
      await this.#poll(1, IDLE_POLL_MS) // dropped: everything is rewound below
      this.#checkSlot()
    }
    await this.#machine.recover()
    const committed = offsets.length > 0 ? await this.#machine.wasCommitted(this.#theConsumer, offsets, nonce) : false
    if (committed === undefined) {
      await this.#restartTasks('the group did not say how a fenced transaction ended')
      return false
    }
    if (committed) this.#merge()
    await this.#rewind()
    logger.info({ committed }, 'producers are initialised again')
    return committed
  }

  /** In doubt: state is closed and restored from the changelog, positions come from the group. */
  async #restartTasks(reason: string): Promise<void> {
    const running = [...this.#tasks.values()].filter(({ phase }) => phase === 'running')
    this.#options.logger.warn({ tasks: running.map(({ name }) => name) }, `restoring tasks: ${reason}`)
    this.#theConsumer.pause(running.flatMap(({ inputs }) => inputs.map(({ topic, partition }) => ({ topic, partition }))))
    this.#resetTransaction()
    this.#outbox?.discard()
    for (const task of running) {
      task.releaseState()
      task.moveTo('preparing')
      for (const input of task.inputs) input.validFromPoll = Number.MAX_SAFE_INTEGER
    }
    this.#prepare(running)
    return Promise.resolve()
  }

  // --- state ---------------------------------------------------------------------------------------------------------

  /** Only between transactions (W7). `all decided`: at the end, wait a moment until the log's own markers are decided too, so that a clean start restores nothing. */
  async #flushState(tasks: readonly AssignedTask[], until: 'any' | 'all decided' = 'any'): Promise<void> {
    if (tasks.length === 0 || this.#machine.state !== 'idle') return
    await flushCheckpoint(tasks, until, this.#options)
  }

  // --- tasks come and go ---------------------------------------------------------------------------------------------

  async #handleEvents(): Promise<void> {
    for (let event = this.#events.shift(); event !== undefined; event = this.#events.shift()) {
      switch (event.kind) {
        case 'assigned':
          if (event.tasks.length > 0) {
            this.#options.listener.assigned(event.tasks.map(({ name }) => name))
            this.#prepare(event.tasks)
          }
          break
        case 'revoked':
          await this.#giveUp(event.tasks, event.lost, event.answer)
          break
        case 'prepared':
          for (const prepared of event.prepared) await this.#restoreTask(prepared)
          break
        case 'failed':
          throw event.error
      }
    }
  }

  /** Off the loop: opens state and asks for committed offsets, which can wait for a dead peer's transaction. Ends in an event. */
  #prepare(tasks: readonly AssignedTask[]): void {
    prepareTasks(tasks, this.#theConsumer, this.#options, () => this.#loopEnded).then(
      (prepared) => {
        if (this.#loopEnded) for (const { state } of prepared) state.close()
        else this.#events.push({ kind: 'prepared', prepared })
      },
      (error: unknown) => {
        this.#events.push({ kind: 'failed', error: asError(error) })
      },
    )
  }

  async #restoreTask({ task, state, offsets, restores }: PreparedTask): Promise<void> {
    if (task.phase !== 'preparing' || this.#tasks.get(task.number) !== task) {
      state.close() // given up meanwhile
      return
    }
    task.state = state
    const { plan, clock, listener } = this.#options
    task.task = new Task({
      plan,
      subTopology: task.subTopology,
      stores: state.stores,
      outbox: this.#outbox as RecordOutbox,
      clock,
      onFailure: (failure, reaction) => {
        listener.failure(failure, reaction)
      },
    })
    for (const input of task.inputs) {
      const found = offsets.get(input.topic)
      invariant(found !== undefined, 'A2', { task: task.name, topic: input.topic })
      input.committed = found.committed
      input.start = found.start
      input.next = found.committed ?? found.start
      input.committedAt = clock.monotonic()
      task.task.setStreamTime(input.topic, found.streamTime)
    }
    task.moveTo('restoring')
    for (const request of restores) this.#restorer.add({ ...request, task })
    if (restores.length === 0) await this.#startTask(task)
  }

  /** State is at the changelog's end (W6): read on from the committed offsets. */
  async #startTask(task: AssignedTask): Promise<void> {
    this.#checkProgressRecord(task)
    for (const input of task.inputs) {
      this.#inputs.set(partitionName(input.topic, input.partition), input)
      input.validFromPoll = this.#pollNumber + 1
    }
    await this.#seek(task)
    this.#theConsumer.resume(task.inputs.map(({ topic, partition }) => ({ topic, partition })))
    task.moveTo('running')
    this.#options.logger.debug({ task: task.name }, 'task is running')
  }

  /** State without committed offsets means they expired or were deleted: reading from the start would repeat every output. */
  #checkProgressRecord(task: AssignedTask): void {
    const lost = task.inputs.filter(({ committed }) => committed === undefined)
    if (lost.length < task.inputs.length || lost.length === 0) return
    for (const store of task.stores()) {
      if (!('size' in store) || (store as { size: number }).size === 0) continue
      throw new ConfigError(
        `task ${task.describe()} has state in store ${store.name}, but group ${this.#options.settings.applicationId} has no committed offset for it`,
        {
          code: 'offsets-missing',
          remedy:
            'The offsets expired or were deleted. Set them on purpose (kafka-consumer-groups.sh --reset-offsets), or start under another applicationId, which begins anew.',
        },
      )
    }
  }

  /** Gives tasks up: settles their part of the open transaction, closes their state, answers the callback (W5). */
  async #giveUp(tasks: readonly AssignedTask[], lost: boolean, answer: () => void): Promise<void> {
    try {
      if (this.#machine.state !== 'idle' || this.#anyDirty) {
        if (!lost) await this.#commit('revoke')
        else if (tasks.some(({ dirty }) => dirty) && this.#machine.state !== 'idle') {
          const error = new BrokerError('commit', 25, 'partitions were lost to another member', { isAbortRequired: true })
          await this.#settle(await this.#machine.abort(error), [], '')
        }
      }
      if (!lost) await this.#flushState(tasks.filter(({ phase }) => phase === 'running'))
    } finally {
      for (const task of tasks) {
        this.#restorer.remove(task)
        for (const input of task.inputs) {
          const name = partitionName(input.topic, input.partition)
          if (this.#inputs.get(name) === input) this.#inputs.delete(name)
        }
        if (this.#tasks.get(task.number) === task) this.#tasks.delete(task.number)
        if (task.phase !== 'closed') task.close()
      }
      answer()
    }
    this.#options.listener.revoked(
      tasks.map(({ name }) => name),
      lost,
    )
  }

  // --- what it says about itself -------------------------------------------------------------------------------------

  status(rssBytes: number): WorkerStatus {
    let lag = 0
    for (const { topic, partition, next, task } of this.#inputs.values()) {
      if (task.phase !== 'running') continue
      lag += Math.max(0, (this.#theConsumer.knownEnd(topic, partition) ?? next) - next)
    }
    const metrics = this.#metrics
    return {
      state: this.#state,
      recordsPerSecond: metrics.recordsPerSecond(),
      records: metrics.records,
      outputs: metrics.outputs,
      duplicates: metrics.duplicates,
      lag,
      commitP50Ms: metrics.commitMs(0.5),
      commitP99Ms: metrics.commitMs(0.99),
      restoring: this.#restorer
        .progress()
        .map(({ task, store, done, total, ratePerSecond, etaMs }) => ({ task, store, done, total, ratePerSecond, etaMs })),
      transactions: metrics.transactions,
      aborts: metrics.aborts,
      tasks: this.#tasks.size,
      rssBytes,
    }
  }
}

function slotTaken(slot: string, cause: BrokerError | undefined): SlotTakenError {
  return new SlotTakenError(`another process has taken the slot ${slot}${cause === undefined ? '' : ` (${cause.message})`}`, {
    code: 'slot-taken',
    remedy: 'Run one process per slot: give each machine its own --instance. This process stops and commits nothing more.',
    cause,
  })
}
