/**
 * The worker's side of a transaction: what goes into it, and what its end means for tasks, stores and positions.
 *
 * Owns: the counters of the open transaction, the order of the commit steps, the reaction to each outcome.
 * Does not own: the states of the transaction itself (transaction), reading (input-reader), when to commit (worker).
 *
 * Invariants:
 *  CC1. Offsets are sent for every task that wrote or advanced, and only while it is owned (X3).
 *  CC2. Write-sets are merged only after the commit succeeded, and positions become committed positions in the same step (X1, X2).
 *  CC3. After a failed transaction every running task is back at its committed positions with an empty write-set, before the next poll.
 *  CC4. A fenced producer is re-initialised only after the consumer proved that the slot is still ours, and the slot's log that nobody claimed it later: the
 *      group alone does not tell, since a member that was put out joins again by itself and puts the new one out (seen). A second fence within a minute that
 *      no time-out explains ends the worker: two processes that both re-init fence each other for ever (CLIENT-FACTS 21). Until then tasks are closed and
 *      polling goes on.
 *  CC5. While no transaction can begin nothing is read (input-reader I3); events of the group are handled all the same.
 */
import type { GroupConsumer, OffsetToCommit } from '../broker/port.ts'
import { failpoint } from '../common/failpoints.ts'
import { invariant } from '../common/invariant.ts'
import { delay } from '../common/delay.ts'
import { BrokerError } from '../errors/broker-error.ts'
import { classify } from '../errors/classify.ts'
import { ConfigError, FatalError } from '../errors/errors.ts'
import { changelogTopic } from '../topology/internal-topics.ts'
import type { AssignedTask } from './assigned-task.ts'
import type { InputReader } from './input-reader.ts'
import { writeMetadata } from './offset-metadata.ts'
import type { OwnedTasks } from './owned-tasks.ts'
import { MAX_ATTEMPTS, type RecordAttempts } from './record-attempts.ts'
import type { RecordOutbox } from './record-outbox.ts'
import type { SlotOwnership } from './slot-ownership.ts'
import { PROGRESS, progressKey } from './task-table.ts'
import type { Outcome, TransactionMachine } from './transaction.ts'
import type { WorkerMetrics } from './worker-metrics.ts'
import type { CommitReason, WorkerOptions } from './worker-options.ts'

const FENCED_TWICE_WITHIN_MS = 60_000
/** The same refusal this many times in a row is no accident. */
const REFUSALS_IN_A_ROW = MAX_ATTEMPTS + 3

export interface CommitCycleOptions extends Pick<WorkerOptions, 'settings' | 'clock' | 'timers' | 'random' | 'logger' | 'listener'> {
  readonly machine: TransactionMachine
  readonly consumer: GroupConsumer
  readonly reader: InputReader
  readonly slot: SlotOwnership
  readonly tasks: OwnedTasks
  readonly attempts: RecordAttempts
  readonly outbox: RecordOutbox
  readonly metrics: WorkerMetrics
  readonly transactionalIdPrefix: string
  /** The task topic. */
  readonly progressTopic: string
  /** The outcome could not be found out: state and positions of these tasks must come from the broker again. */
  readonly restart: (tasks: readonly AssignedTask[], reason: string) => void
  /** Whether this process is the last that claimed the slot (slot-ownership SO3). */
  readonly hasLastClaim: () => Promise<boolean>
}

/** Undefined: not read yet. */
interface Proof {
  answer: 'ours' | 'taken' | 'unknown' | undefined
}

export class CommitCycle {
  readonly #options: CommitCycleOptions
  #records = 0
  #bytes = 0
  #outputs = 0
  #startedAt = 0
  #restUntil = 0
  #abortsInARow = 0
  #abortingSince = 0
  #refusalsInARow = 0
  #fencedAt = Number.NEGATIVE_INFINITY
  /** The last fence that no time-out explains. */
  #takenAt = Number.NEGATIVE_INFINITY
  #fence: BrokerError | undefined
  /** A look at the claims, beside the loop. */
  #proof: Proof | undefined

  constructor(options: CommitCycleOptions) {
    this.#options = options
  }

  get isOpen(): boolean {
    return this.#options.machine.isOpen
  }

  /** False after a fence, or while a producer is being replaced: nothing can be begun or committed. */
  get isUsable(): boolean {
    return this.#options.machine.isUsable
  }

  /** Milliseconds since the open transaction began; 0 when none is open. */
  get ageMs(): number {
    return this.isOpen ? this.#options.clock.monotonic() - this.#startedAt : 0
  }

  /**
   * Milliseconds until a drained input alone is reason enough to commit. Commits that follow each other leave as much time between them as the last one
   * took, up to the commit interval: an idle worker commits at once, a busy broker gets fewer and larger transactions instead of a queue of small ones.
   */
  get restMs(): number {
    return Math.max(0, this.#restUntil - this.#options.clock.monotonic())
  }

  /** Why the open transaction should be committed before it takes another record, if it should. */
  get full(): 'records' | 'bytes' | undefined {
    const { transactionMaxRecords, transactionMaxBytes } = this.#options.settings
    if (this.#records >= transactionMaxRecords) return 'records'
    return this.#bytes >= transactionMaxBytes ? 'bytes' : undefined
  }

  /** Lazily, before the first record. False: refused, or the producer is being replaced; reading goes on at the positions. */
  async begin(): Promise<boolean> {
    if (!this.isUsable) return false // reading is held, and moved to the positions when it is released (CC5)
    // Before the call: a fence that shows at begin is that of a transaction just born, not of the one before it.
    this.#startedAt = this.#options.clock.monotonic()
    const refused = await this.#options.machine.begin()
    if (refused === undefined) return true
    await this.#settle(refused)
    return false
  }

  /** A record went through its task: its outputs go into the transaction. Synchronous unless the local queue is full. */
  deliver(): boolean | Promise<boolean> {
    const { outbox } = this.#options
    this.#records++
    if (outbox.count === 0) return true
    this.#outputs += outbox.count
    this.#bytes += outbox.bytes
    try {
      return outbox.deliver(this.#produce) || this.#deliverRest()
    } catch (error) {
      return this.#refused(error)
    }
  }

  /** The local queue is full: backpressure (X9). False: the client refused a record, and positions are rewound. */
  async #deliverRest(): Promise<boolean> {
    const { outbox, machine } = this.#options
    try {
      do await machine.writable()
      while (!outbox.deliver(this.#produce))
      return true
    } catch (error) {
      return this.#refused(error)
    }
  }

  async #refused(error: unknown): Promise<boolean> {
    if (!(error instanceof BrokerError)) throw error
    await this.abandon(error)
    return false
  }

  readonly #produce: TransactionMachine['produce'] = (topic, partition, key, value, timestamp, headers) =>
    this.#options.machine.produce(topic, partition, key, value, timestamp, headers)

  /** Drops the open transaction: abort, write-sets dropped, positions rewound. */
  async abandon(error: BrokerError): Promise<void> {
    await this.#settle(await this.#options.machine.abort(error))
  }

  /** The worker ends with an error. */
  abortAtEnd(): Promise<void> {
    return this.#options.machine.abortAtEnd()
  }

  /** Commits what the dirty tasks did. True when it is committed (or there was nothing to commit); false when it was dropped and rewound. */
  async commit(reason: CommitReason): Promise<boolean> {
    const { machine, settings, tasks, clock, random, consumer, slot, listener, metrics } = this.#options
    if (!machine.isUsable) return false // running tasks have nothing then, and what they were is settled elsewhere
    const dirty = tasks.dirty()
    if (dirty.length === 0) {
      invariant(!this.isOpen, 'T2', { state: machine.state })
      return true
    }
    if (!this.isOpen && !(await this.begin())) return false
    const startedAt = clock.monotonic()
    const nonce = random.bytes(16)
    const nonceText = nonce.toString('base64url')
    try {
      for (const task of dirty) {
        await this.#writeChangelogs(task, nonce, reason)
        await this.#recordFirstProgress(task)
      }
    } catch (error) {
      return this.#refused(error)
    }
    const offsets = this.#offsetsOf(dirty, nonceText)
    const outcome = await machine.commit(consumer, offsets, nonceText, () => slot.owns(dirty))
    const event = { records: this.#records, bytes: this.#bytes, durationMs: clock.monotonic() - startedAt, reason }
    metrics.transactionEnded(clock.monotonic() - this.#startedAt)
    if (!(await this.#settle(outcome))) return false
    this.#restUntil = clock.monotonic() + Math.min(event.durationMs, settings.commitIntervalMs)
    metrics.committed(event.durationMs)
    listener.commit(event)
    return true
  }

  /**
   * The fencing commit of a flush writes no tombstones that merely wait: they would lie behind the offset that was read before it, and the next start would
   * read them again (seen: 64 records after each clean stop).
   */
  async #writeChangelogs(task: AssignedTask, nonce: Buffer, reason: CommitReason): Promise<void> {
    const { machine, settings, clock } = this.#options
    for (const store of task.stores()) {
      if (!store.hasChanges || (reason === 'flush' && !store.isWriteSetOpen)) continue
      const topic = changelogTopic(settings.applicationId, store.name)
      const changes: [Buffer, Buffer | null][] = []
      store.prepare(nonce, (key, value) => changes.push([key, value]))
      for (const [key, value] of changes) {
        this.#bytes += key.length + (value?.length ?? 0)
        // The wall clock: old event times would be deleted at once by time retention, future ones refused (DESIGN 4).
        while (!machine.produce(topic, task.partition, key, value, clock.now(), [])) await machine.writable()
      }
    }
  }

  /** The first offsets of a task go together with a note that there are some: should they expire, nobody starts from the beginning unawares (DESIGN 3). */
  async #recordFirstProgress(task: AssignedTask): Promise<void> {
    if (task.inputs.every(({ committed }) => committed !== undefined)) return
    const { machine, clock, progressTopic } = this.#options
    while (!machine.produce(progressTopic, 0, progressKey(task.name), PROGRESS, clock.now(), [])) await machine.writable()
  }

  #offsetsOf(dirty: readonly AssignedTask[], nonce: string): OffsetToCommit[] {
    const { settings, transactionalIdPrefix, clock } = this.#options
    return dirty.flatMap((task) =>
      task.inputs.map(({ topic, partition, next }) => ({
        topic,
        partition,
        offset: next,
        metadata: writeMetadata({
          nonce,
          streamTime: task.task?.streamTimeOf(topic) ?? -1,
          transactionalIdPrefix,
          ringSize: settings.producerRingSize,
          committedAt: clock.now(),
        }),
      })),
    )
  }

  /** Acts on how a transaction ended. True when it is committed. */
  async #settle(outcome: Outcome): Promise<boolean> {
    const { machine, reader } = this.#options
    if (!machine.isUsable) reader.hold()
    switch (outcome.kind) {
      case 'committed':
        failpoint('memtable:merge')
        this.#merge()
        return true
      case 'aborted':
        if (outcome.cause.reaction === 'poisoned')
          this.#options.attempts.refused(
            this.#options.tasks.dirty().flatMap(({ inputs }) => inputs),
            outcome.error,
          )
        this.#countAbort(outcome)
        await this.#rewind()
        await this.#backOff()
        return false
      case 'fenced':
        this.#fenced(outcome.error)
        return false
      case 'in-doubt':
        this.#options.metrics.aborted('in-doubt')
        this.#restart('the outcome of a commit could not be found out')
        return false
    }
  }

  #merge(): void {
    const { tasks, clock, metrics, attempts } = this.#options
    const now = clock.now()
    for (const task of tasks.dirty()) {
      const committed = task.commit(now)
      attempts.committed(task.inputs)
      metrics.records += committed.records
      metrics.duplicates += committed.duplicates
      metrics.deadLetters += committed.deadLetters
      metrics.skipped += committed.skipped
      metrics.late += committed.late
    }
    metrics.outputs += this.#outputs
    this.#abortsInARow = 0
    this.#refusalsInARow = 0
    this.#reset()
  }

  #reset(): void {
    this.#records = 0
    this.#bytes = 0
    this.#outputs = 0
  }

  /** Aborts and fences without a commit in between end the worker, however often each may pass. */
  #checkProgress(error: BrokerError, reason: string): void {
    const { clock, settings } = this.#options
    const now = clock.monotonic()
    if (this.#abortsInARow++ === 0) this.#abortingSince = now
    if (now - this.#abortingSince <= settings.taskTimeoutMs) return
    throw new FatalError(`nothing could be committed for ${settings.taskTimeoutMs} ms (option taskTimeout): ${error.message}: ${reason}`, {
      code: 'no-progress',
      remedy: 'Check the brokers and the group; nothing was lost, the next start goes on from the last commit.',
      cause: error,
    })
  }

  #countAbort({ cause, error }: Extract<Outcome, { kind: 'aborted' }>): void {
    const { metrics, logger } = this.#options
    this.#checkProgress(error, cause.reason)
    metrics.aborted(`${error.operation}:${error.code}`)
    logger.warn(
      { operation: error.operation, code: error.code, reaction: cause.reaction, records: this.#records },
      `transaction aborted: ${cause.reason}; its records are processed again`,
    )
    if (cause.reaction !== 'poisoned' && cause.reaction !== 'config' && cause.reaction !== 'fatal') return
    if (++this.#refusalsInARow < REFUSALS_IN_A_ROW) return
    const StopError = cause.reaction === 'config' ? ConfigError : FatalError
    throw new StopError(`the broker refused the same work ${REFUSALS_IN_A_ROW} times: ${error.message}: ${cause.reason}`, {
      code: 'transaction-refused',
      remedy:
        'Compare the settings of the output topics with the records of this topology (size, timestamps, keys) and the rights of this user.',
      cause: error,
    })
  }

  /** Short, since an abort is ordinary while a member joins; longer when it repeats, so that an unreachable broker is not hammered. */
  #backOff(): Promise<void> {
    return delay(this.#options.timers, Math.min(2_000, 20 * 2 ** Math.min(this.#abortsInARow, 7)))
  }

  async #rewind(): Promise<void> {
    this.#reset()
    this.#options.outbox.discard()
    for (const task of this.#options.tasks.running()) {
      task.abort()
      await this.#options.reader.rewind(task)
    }
  }

  #restart(reason: string): void {
    this.#reset()
    this.#options.outbox.discard()
    this.#options.restart(this.#options.tasks.running(), reason)
  }

  /** -144 means a time-out or a take-over; the flags do not tell (CC4). The tasks restore what the broker has decided, whichever it was. */
  #fenced(error: BrokerError): void {
    const { clock, logger, slot, metrics, settings } = this.#options
    const now = clock.monotonic()
    // A transaction older than its time-out was aborted by the broker, which is no take-over, however often the process is stopped (seen: two in a minute).
    const timedOut = now - this.#startedAt >= settings.transactionTimeoutMs
    if (!timedOut && now - this.#takenAt < FENCED_TWICE_WITHIN_MS) throw slot.taken(error)
    if (!timedOut) this.#takenAt = now
    this.#checkProgress(error, 'a producer was fenced')
    this.#fencedAt = now
    this.#fence = error
    metrics.fences++
    metrics.aborted(`fenced:${error.code}`)
    logger.warn({ code: error.code }, 'a producer was fenced: proving that this slot is still ours before going on')
    this.#restart('a producer was fenced, so a transaction may have ended without this worker')
  }

  /** False while the claims are being read. Where they cannot be read, membership is proof enough. */
  #isProven(): boolean {
    this.#proof ??= this.#readClaims()
    const { answer } = this.#proof
    if (answer === undefined) return false
    this.#proof = undefined
    if (answer === 'taken') throw this.#options.slot.taken(this.#fence)
    return true
  }

  #readClaims(): Proof {
    const { hasLastClaim, logger } = this.#options
    const proof: Proof = { answer: undefined }
    hasLastClaim().then(
      (isOurs) => (proof.answer = isOurs ? 'ours' : 'taken'),
      (error: unknown) => {
        logger.warn({ error: String(error) }, 'the claims of the slots could not be read: the group alone tells whether this one is ours')
        proof.answer = 'unknown'
      },
    )
    return proof
  }

  /**
   * Called every turn: the way back after a fence, or after a producer that could not be replaced in time. Two heartbeats that nobody objected to prove
   * membership: a taken slot shows as -150 of a poll, or as an assignment that is gone (slot-ownership).
   */
  async recover(): Promise<void> {
    const { machine, clock, settings, reader, slot, logger } = this.#options
    if (machine.isUsable) return
    if (machine.state === 'fenced') {
      if (clock.monotonic() - this.#fencedAt < 2 * settings.heartbeatIntervalMs || !this.#isProven()) return
      machine.startRepair()
    }
    try {
      if (!machine.repairStep()) return
    } catch (error) {
      if (error instanceof BrokerError && classify(error).reaction === 'fenced') throw slot.taken(this.#fence ?? error)
      throw error
    }
    logger.info({}, 'producers are initialised again')
    await reader.release()
  }
}
