/**
 * The worker: one loop that owns a group consumer, a ring of producers and the tasks assigned to it.
 *
 * Owns: start, end, and the order of everything in between: when to poll, when to commit, when to flush.
 * Does not own: what a commit is (commit-cycle), how a transaction ends (transaction), reading (input-reader), tasks that come and go (task-lifecycle),
 * how a record is processed (task).
 * Awaits of the loop, all of them: events, restore step, poll, begin, writable, commit or abort, flush of state, a turn for callbacks between slices.
 *
 * Invariants:
 *  W1. Beside the loop run only look-ups (the preparation of tasks, the description of the group); what they find is taken up by the loop.
 *  W2. Records of a partition are processed in offset order, each one once per epoch of its partition.
 *  W3. State is flushed only right after a commit that carried its task, with a checkpoint read before that commit (X2, state-flush).
 *  W4. Idle means no transaction: one is begun when a record is processed or an offset moved.
 *  W5. Whatever ends the worker, everything it opened is closed (X10).
 */
import type { BrokerRecord, GroupConsumer } from '../broker/port.ts'
import { invariant } from '../common/invariant.ts'
import { delay } from '../common/delay.ts'
import { partitionName } from '../common/topic-partition.ts'
import { BrokerError, GIVEN_UP, TOO_SLOW } from '../errors/broker-error.ts'
import { asError, CorruptedStoreError, SlotTakenError } from '../errors/errors.ts'
import type { WorkerState, WorkerStatus } from '../metrics/status.ts'
import type { SlotLock } from '../state/store.ts'
import { UnknownSinkError } from '../task/outbox.ts'
import { tasksTopic } from '../topology/internal-topics.ts'
import type { AssignedTask, InputPartition } from './assigned-task.ts'
import { OwnedTasks } from './owned-tasks.ts'
import { ProducerRing } from './producer-ring.ts'
import { RecordAttempts } from './record-attempts.ts'
import { Restorer } from './restore.ts'
import { readSinkLimits } from './sink-limits.ts'
import { confirmTaken, isLastClaim } from './slot-ownership.ts'
import { flushState } from './state-flush.ts'
import type { TaskLifecycle } from './task-lifecycle.ts'
import { readTaskRecords } from './task-table.ts'
import { WorkerMetrics } from './worker-metrics.ts'
import type { WorkerOptions } from './worker-options.ts'
import { startWorker, type WorkerParts } from './worker-start.ts'

/** A poll with nothing to wait for returns after this; events are looked at between polls. */
const IDLE_POLL_MS = 100
/** With a transaction open the poll only asks whether there is more right now. */
const OPEN_POLL_MS = 1
/** A polled batch is to be worked off within this, ms: a revoke or a stop waits for its end, and the next poll asks for as many records as that allows. */
const BATCH_MS = 1_000
/** Of the poll interval: a batch that lasts longer is left, and the rest of it fetched again. */
const LONGEST_BATCH_SHARE = 0.25
/** How long the loop works before it lets callbacks in. */
const SLICE_MS = 50
/** Flushes that are due are tried this often: a failing one must not be tried at every turn. */
const FLUSH_PAUSE_MS = 500
const INIT_TIMEOUT_MS = 10_000
/** A coordinator or a leader may be on its way to another broker, which is when a slot seems to be taken. */
const CLAIMS_TIMEOUT_MS = 30_000

export class Worker {
  readonly #options: WorkerOptions
  readonly #tasksTopic: string
  readonly #slotName: string
  /** What tells this process from others in its slot. */
  readonly #claim: string
  readonly #tasks = new OwnedTasks()
  readonly #metrics: WorkerMetrics
  readonly #restorer: Restorer
  readonly #ring: ProducerRing
  #parts: WorkerParts | undefined
  #consumer: GroupConsumer | undefined
  #slotLock: SlotLock | undefined
  #attempts: RecordAttempts | undefined
  #state: WorkerState = 'created'
  #stopping: { readonly leave: boolean } | undefined
  /** True from leaving the group until joining it again. */
  #rejoining = false
  #flushAgainAt = 0
  #maxRecords: number
  #isReady = false
  #becameReady: (() => void) | undefined
  /** Resolves when the first assignment is restored and running, or when the worker ended before. */
  readonly ready: Promise<void>

  constructor(options: WorkerOptions) {
    this.#options = options
    const { settings, broker, clock, timers, random, logger, listener } = options
    this.#tasksTopic = tasksTopic(settings.applicationId)
    this.#slotName = `${settings.applicationId}-${settings.instance}-${settings.slot}`
    this.#claim = random.bytes(16).toString('hex')
    this.#metrics = new WorkerMetrics(clock)
    this.#maxRecords = settings.maxPollRecords
    this.ready = new Promise((resolve) => (this.#becameReady = resolve))
    this.#restorer = new Restorer({
      connectReader: () => broker.connectReader(),
      admin: broker.admin,
      groupId: settings.applicationId,
      clock,
      timers,
      logger,
      noProgressMs: settings.restoreTimeoutMs,
      memtableBytes: settings.memtableBytes,
      onDone: (progress) => {
        listener.restored(progress)
      },
    })
    this.#ring = new ProducerRing({
      broker,
      idPrefix: this.#slotName,
      size: settings.producerRingSize,
      transactionTimeoutMs: settings.transactionTimeoutMs,
      initTimeoutMs: INIT_TIMEOUT_MS,
      patienceMs: settings.taskTimeoutMs,
      clock,
      timers,
      logger,
    })
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

  /** Runs until `stop`, or until it fails: then it rejects with the reason. Everything it opened is closed either way (W5). */
  async run(): Promise<void> {
    invariant(this.#state === 'created', 'W0', { run: this.#state })
    this.#setState('starting')
    let failure: Error | undefined
    try {
      const parts = await this.#open()
      await this.#loop(parts)
      await this.#finish(parts)
    } catch (error) {
      failure = asError(error)
      this.#options.logger.debug({ error: failure.message }, 'the loop ended with an error: aborting and closing')
    }
    try {
      if (failure !== undefined) await this.#parts?.cycle.abortAtEnd()
    } catch (error) {
      this.#options.logger.error({ error: String(error) }, 'aborting at the end failed; the next start of this slot aborts')
    }
    if (failure instanceof SlotTakenError) {
      failure = await confirmTaken(failure, this.#slotName, this.#claim, () => this.#claims(), this.#options.logger)
    }
    try {
      await this.#release()
    } catch (error) {
      failure ??= asError(error)
    }
    this.#setState(failure === undefined ? 'closed' : 'failed')
    this.#becameReady?.()
    if (failure !== undefined) throw failure
  }

  async #claims(): Promise<ReadonlyMap<string, string>> {
    const records = await readTaskRecords(this.#options.broker, this.#tasksTopic, { ...this.#options, timeoutMs: CLAIMS_TIMEOUT_MS }, 'end')
    return records.claims
  }

  /** Asks the loop to commit and end. Idempotent. */
  stop(options: { readonly leave?: boolean | undefined } = {}): void {
    this.#stopping ??= { leave: options.leave ?? this.#options.settings.onClose === 'leave' }
  }

  async #open(): Promise<WorkerParts> {
    const { backend, settings } = this.#options
    this.#slotLock = await backend.lockSlot(`${settings.instance}-${settings.slot}`)
    const attempts = new RecordAttempts(this.#slotLock)
    this.#attempts = attempts
    const parts = await startWorker({
      worker: this.#options,
      slotName: this.#slotName,
      claim: this.#claim,
      hasLastClaim: async () => isLastClaim(await this.#claims(), this.#slotName, this.#claim),
      tasksTopic: this.#tasksTopic,
      tasks: this.#tasks,
      metrics: this.#metrics,
      restorer: this.#restorer,
      ring: this.#ring,
      attempts,
      onConsumer: (consumer) => {
        this.#consumer = consumer
      },
    })
    this.#parts = parts
    parts.consumer.subscribe(this.#tasksTopic, parts.lifecycle)
    return parts
  }

  async #loop(parts: WorkerParts): Promise<void> {
    const { settings, clock } = this.#options
    const { lifecycle, reader, slot, cycle } = parts
    while (this.#stopping === undefined) {
      await lifecycle.handleEvents()
      slot.check()
      await cycle.recover()
      this.#followGrowth(parts)
      this.#rejoinWhenNeeded(parts)
      parts.logStarts.lookWhenDue()
      if (this.#restorer.active) await lifecycle.restoreStep(this.#tasks.anyRunning ? OPEN_POLL_MS : IDLE_POLL_MS)
      this.#updateState(lifecycle)

      const { records, ends } = await reader.poll(this.#maxRecords, this.#pollTimeoutMs(parts))
      const startedAt = clock.monotonic()
      const isThrough = await this.#process(records, parts)
      this.#adaptPoll(records.length, clock.monotonic() - startedAt)
      if (!isThrough) continue
      reader.stepOverControlRecords(ends)

      if (!cycle.isOpen) {
        this.#keepOffsetsAlive(parts)
        await reader.checkPositionsWhenDue()
      }
      if (this.#tasks.anyDirty) {
        const drained = records.length < this.#maxRecords && cycle.restMs === 0
        if (drained || cycle.ageMs >= settings.commitIntervalMs) await cycle.commit(drained ? 'drained' : 'interval')
      }
      const due = clock.monotonic() >= this.#flushAgainAt ? this.#tasksToFlush() : []
      if (due.length > 0) {
        this.#flushAgainAt = clock.monotonic() + FLUSH_PAUSE_MS
        for (const { task, error } of await flushState(due, 'any', () => cycle.commit('flush'), this.#options))
          lifecycle.rebuild(task, error)
      }
    }
  }

  /** As many records as can be worked off in BATCH_MS, by how long the last batch took. */
  #adaptPoll(records: number, tookMs: number): void {
    const { maxPollRecords } = this.#options.settings
    if (tookMs > BATCH_MS) this.#maxRecords = Math.max(1, Math.floor((records * BATCH_MS) / tookMs))
    else if (records === this.#maxRecords && this.#maxRecords < maxPollRecords)
      this.#maxRecords = Math.min(maxPollRecords, this.#maxRecords * 2)
  }

  /** Those whose memtable is large or old, or above its share of what the worker may hold (X9). */
  #tasksToFlush(): AssignedTask[] {
    const shareBytes = this.#options.settings.memoryBudgetBytes / Math.max(1, this.#tasks.size)
    return this.#tasks.running().filter(({ state }) => state !== undefined && (state.flushDue || state.memoryBytes > shareBytes))
  }

  #pollTimeoutMs({ cycle, lifecycle }: WorkerParts): number {
    if (this.#restorer.active || lifecycle.hasEvents) return OPEN_POLL_MS
    if (!cycle.isUsable) return IDLE_POLL_MS
    return cycle.isOpen || this.#tasks.anyDirty ? Math.max(OPEN_POLL_MS, Math.ceil(cycle.restMs)) : IDLE_POLL_MS
  }

  /**
   * Runs a polled batch through the tasks. False: the rest of the batch was dropped, and reading goes on where the tasks stand: a transaction failed on the
   * way, or the batch lasts too long, or the worker is to end.
   */
  async #process(records: readonly BrokerRecord[], { reader, cycle, lifecycle, sinkCheck, attempts }: WorkerParts): Promise<boolean> {
    const { clock, settings } = this.#options
    let sliceStart = clock.monotonic()
    const leaveAt = sliceStart + settings.maxPollIntervalMs * LONGEST_BATCH_SHARE
    let topic = ''
    let partition = -1
    let input: InputPartition | undefined
    for (let index = 0; index < records.length; index++) {
      const record = records[index] as BrokerRecord
      if (record.partition !== partition || record.topic !== topic) {
        topic = record.topic
        partition = record.partition
        input = reader.accept(topic, partition)
      }
      if (input === undefined) continue // stale
      if (record.offset < input.next) {
        invariant(false, 'W2', { partition: partitionName(topic, partition), offset: record.offset, next: input.next })
      }
      const isolated = attempts.isolates(input, record.offset)
      if (isolated && this.#tasks.anyDirty && !(await cycle.commit('isolated'))) return false
      if (!cycle.isOpen && !(await cycle.begin())) return false

      const startedAt = clock.monotonic()
      const refusal = attempts.begin(input, record.offset)
      try {
        if (refusal === undefined) input.task.process(record)
        else input.task.refuse(record, refusal)
      } catch (error) {
        if (error instanceof UnknownSinkError) {
          sinkCheck.learn(await readSinkLimits(this.#options.broker.admin, [error.topic]))
          index-- // rolled back, so it runs once more
          continue
        }
        if (!(error instanceof CorruptedStoreError)) throw error
        await cycle.abandon(new BrokerError('commit', GIVEN_UP, error.message))
        lifecycle.rebuild(input.task, error)
        return false
      }
      const now = clock.monotonic()
      if (now - startedAt >= settings.transactionTimeoutMs && refusal === undefined) {
        attempts.slow(input, record.offset, now - startedAt)
        await cycle.abandon(new BrokerError('commit', TOO_SLOW, `${partitionName(topic, partition)} offset ${record.offset}`))
        return false
      }
      const delivered = cycle.deliver()
      if (delivered !== true && !(await delivered)) return false
      input.next = record.offset + 1
      input.task.touched = true

      const full = isolated ? 'isolated' : cycle.full
      if (full !== undefined && !(await cycle.commit(full))) return false
      if ((now > leaveAt || this.#stopping !== undefined) && index < records.length - 1) {
        await reader.seekToPositions()
        return false
      }
      if (now - sliceStart > SLICE_MS) {
        if (cycle.ageMs >= settings.commitIntervalMs && this.#tasks.anyDirty && !(await cycle.commit('interval'))) return false
        await delay(this.#options.timers, 0)
        sliceStart = clock.monotonic()
      }
    }
    return true
  }

  /** Partitions that were added to the inputs: the group assigns their tasks, mostly when every worker knows them already. */
  #followGrowth({ growth, lifecycle }: WorkerParts): void {
    if (lifecycle.unknownTasks.length > 0) growth.readAgain(lifecycle.unknownTasks)
    growth.look()
  }

  /**
   * Leaves and joins again: as the member that owns the fewest tasks, so that tasks without an owner get one; or as one that was assigned a task before
   * it knew what that is, so that the callback comes once more.
   */
  #rejoinWhenNeeded({ consumer, watch, lifecycle, layouts, reader }: WorkerParts): void {
    const unknown = lifecycle.unknownTasks
    if (this.#rejoining) {
      if (this.#tasks.size > 0 || unknown.length > 0 || lifecycle.hasEvents) return
      this.#rejoining = false
      consumer.subscribe(this.#tasksTopic, lifecycle)
      return
    }
    const orphans = watch.look(lifecycle.rebalances)
    if (unknown.length > 0 && unknown.every((number) => layouts.task(number) !== undefined)) {
      this.#options.logger.info({ tasks: unknown }, 'tasks were assigned before this worker knew of them: joining the group anew')
    } else if (orphans !== undefined) {
      this.#options.logger.warn(
        { tasks: orphans },
        `${orphans.length} tasks have no owner since an interrupted rebalance: joining the group anew`,
      )
    } else if (reader.mustRejoin) {
      this.#options.logger.warn({}, 'inputs were moved to offsets inside their logs: joining the group anew to read them')
    } else return
    reader.rejoined()
    this.#rejoining = true
    consumer.unsubscribe()
  }

  /** Offsets of topics the group does not subscribe to expire while it is alive (CLIENT-FACTS 26). */
  #keepOffsetsAlive({ keepAliveMs }: WorkerParts): void {
    const oldest = this.#options.clock.now() - keepAliveMs
    for (const { committed, committedAt, task } of this.#tasks.inputs()) {
      if (committed !== undefined && committedAt < oldest && task.phase === 'running') task.touched = true
    }
  }

  #updateState(lifecycle: TaskLifecycle): void {
    if (!this.#isReady && !lifecycle.everAssigned) return
    if (!this.#tasks.allRunning) {
      this.#setState(this.#isReady ? 'rebalancing' : 'restoring')
      return
    }
    this.#setState('running')
    if (this.#isReady) return
    this.#isReady = true
    this.#becameReady?.()
  }

  /** A good end: what is done is committed, and the files are at the changelog's end, so that a clean start restores nothing. */
  async #finish({ consumer, cycle, lifecycle, reader }: WorkerParts): Promise<void> {
    this.#setState('closing')
    await cycle.commit('close')
    if (this.#stopping?.leave === true) {
      // The revoke comes through the callback, so polling goes on until it was answered.
      consumer.unsubscribe()
      const deadline = this.#options.clock.monotonic() + this.#options.settings.shutdownTimeoutMs
      while (this.#tasks.size > 0 && this.#options.clock.monotonic() < deadline) {
        await reader.poll(1, IDLE_POLL_MS)
        await lifecycle.handleEvents()
      }
    }
    await flushState(this.#tasks.running(), 'all decided', () => cycle.commit('flush'), this.#options)
  }

  async #release(): Promise<void> {
    this.#parts?.lifecycle.end()
    this.#restorer.saveAll()
    this.#tasks.close()
    await this.#restorer.close()
    await this.#consumer?.close()
    await this.#ring.close()
    this.#attempts?.ended()
    this.#slotLock?.release()
  }

  /** A damaged store file was moved aside; its state is rebuilt. */
  countQuarantine(): void {
    this.#restorer.counters.rebuilt('damaged')
  }

  status(rssBytes: number): WorkerStatus {
    const metrics = this.#metrics
    const restored = this.#restorer.counters
    return {
      state: this.#state,
      recordsPerSecond: metrics.recordsPerSecond(),
      records: metrics.records,
      outputs: metrics.outputs,
      duplicates: metrics.duplicates,
      late: metrics.late,
      deadLetters: metrics.deadLetters,
      skipped: metrics.skipped,
      lag: this.#parts?.reader.lag() ?? 0,
      commitP50Ms: metrics.commitMs(0.5),
      commitP99Ms: metrics.commitMs(0.99),
      restoring: this.#restorer.progress().map(({ task, store, done, total, ratePerSecond, etaMs, waitingFor }) => ({
        task,
        store,
        done,
        total,
        ratePerSecond,
        etaMs,
        waitingFor,
      })),
      transactions: metrics.transactions,
      aborts: metrics.aborts,
      fences: metrics.fences,
      offsetsPassedOver: metrics.offsetsPassedOver,
      restores: restored.finished,
      restoredRecords: restored.records,
      rebuilds: Object.values(restored.rebuilds).reduce((sum, count) => sum + count, 0),
      rebuildsByReason: { ...restored.rebuilds },
      transactionAgeMs: this.#parts?.cycle.ageMs ?? 0,
      oldestTransactionMs: metrics.oldestTransactionMs,
      abortsByCause: Object.fromEntries(metrics.abortsByCause),
      tasks: this.#tasks.size,
      rssBytes,
    }
  }
}
