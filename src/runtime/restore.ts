/**
 * Restore: reads changelogs read_committed, from each store's checkpoint to the end, many partitions at once, a step per turn of the worker loop.
 *
 * Owns: positions and targets; what it says about a restore that waits.
 * Does not own: the reader's connection and failures (restore-reader); the stores: it hands them records and flushes them with the position reached, so that an interrupted restore goes on from there.
 * Beside the loop run only look-ups (connecting, bounds of the logs, names of transactions); what they find is taken up by the next step.
 *
 * Invariants:
 *  R1. The target is the changelog's high watermark after the committed offsets were read (X7). The last stable offset is a wrong target: after a commit
 *      returned it can still lie before one's own markers (CLIENT-FACTS 16, DESIGN 3).
 *  R2. A partition is done when its end-of-partition offset reaches the target; the end lies past control records, which are never delivered.
 *  R3. An end below the target means an open transaction: wait, bounded by the no-progress deadline, and say whose it is.
 *  R4. Nothing of a changelog is skipped: where records were deleted in front of a position, or tombstones may have been, that store alone is emptied and
 *      read from the log start, once per restore. A second time is an error, as is a log that ends before what was read of it.
 */
import type { BrokerAdmin, PartitionOffsets, PollResult } from '../broker/port.ts'
import { failpoint } from '../common/failpoints.ts'
import type { Clock, Logger } from '../common/ports.ts'
import { partitionName } from '../common/topic-partition.ts'
import { BrokerError } from '../errors/broker-error.ts'
import { asError, BrokerUnavailableError, CorruptedStoreError, FatalError } from '../errors/errors.ts'
import type { ChangelogRecord, StateStore } from '../state/store.ts'
import type { AssignedTask } from './assigned-task.ts'
import { openTransactionOf, SETTLE_REMEDY, suspectedTransactions } from './open-transactions.ts'
import { changelogShrunk, RestoreCounters, trustedForMs, type RebuildReason } from './rebuilds.ts'
import { RestoreReader, type RestoreReaderOptions } from './restore-reader.ts'

export interface RestoreRequest {
  readonly task: AssignedTask
  readonly store: StateStore
  readonly topic: string
  readonly partition: number
  /** First offset to read. */
  readonly from: number
  readonly target: number
  /** Wall clock of the last look at the changelog: when the checkpoint was written, or now; ms. */
  readonly readAt: number
  /** `delete.retention.ms` of the changelog. */
  readonly deleteRetentionMs: number
  /** Why the store was emptied before this restore. */
  readonly rebuild?: RebuildReason
}

interface Restoring {
  readonly request: RestoreRequest
  readonly task: AssignedTask
  readonly store: StateStore
  readonly topic: string
  readonly partition: number
  readonly target: number
  /** First offset read; another one after a restart. */
  from: number
  position: number
  end: number
  records: number
  bytes: number
  startedAt: number
  /** Wall clock: what was read since then can be trusted for as long as tombstones stay. */
  readAt: number
  progressAt: number
  warnedAt: number
  rebuild: RebuildReason | undefined
  restarts: number
  waitingFor: string | undefined
}

export interface RestoreProgress {
  readonly task: string
  readonly store: string
  readonly records: number
  readonly bytes: number
  /** Offsets done and to do; an estimate of records, since control records and compacted ones count as well. */
  readonly done: number
  readonly total: number
  readonly ratePerSecond: number
  readonly etaMs: number | undefined
  readonly elapsedMs: number
  /** What keeps the restore from going on, in words; undefined while it does. */
  readonly waitingFor: string | undefined
  /** Why the store was emptied first; undefined for a restore that went on from the store's checkpoint, or had nothing to go on from. */
  readonly rebuild: RebuildReason | undefined
}

export interface RestoreStep {
  readonly finished: readonly AssignedTask[]
  readonly damaged: readonly { readonly task: AssignedTask; readonly error: CorruptedStoreError }[]
}

export interface RestorerOptions extends RestoreReaderOptions {
  readonly admin: Pick<BrokerAdmin, 'offsets' | 'groupOffsets'>
  readonly groupId: string
  readonly clock: Clock
  readonly logger: Logger
  readonly noProgressMs: number
  readonly memtableBytes: number
  readonly onDone: (progress: RestoreProgress) => void
}

/** A step handles about this much, so that the loop is not held up: packed changelog records have up to 256 KB. */
const STEP_BYTES = 4_194_304
const MAX_POLL_RECORDS = 2_000
/** Merged into the memtable at once; between two such runs the memtable is looked at. */
const RUN_BYTES = 1_048_576
/** A restore that waits is reported this often, and its log is looked at. */
const WARN_AFTER_MS = 5_000
const NO_RECORD = 'the next record: none has arrived'

/** What a look-up beside the loop found, with the positions of the time it was issued. */
interface Look {
  readonly positions: readonly { readonly restoring: Restoring; readonly position: number }[]
  readonly bounds: readonly PartitionOffsets[]
  /** The reader had stopped a partition: if none lies outside its log after all, all are assigned anew. */
  readonly reviving: boolean
}

export class Restorer {
  readonly counters = new RestoreCounters()
  readonly #options: RestorerOptions
  readonly #reader: RestoreReader
  readonly #partitions = new Map<string, Restoring>()
  #assignmentChanged = false
  #pollRecords = 16
  #damaged: { task: AssignedTask; error: CorruptedStoreError }[] = []
  #looking = false
  #look: Look | undefined
  #lookFailure: Error | undefined
  /** -140 came: one of the partitions is stopped, the reader does not say which. */
  #stopped = false

  constructor(options: RestorerOptions) {
    this.#options = options
    this.#reader = new RestoreReader(options)
  }

  get active(): boolean {
    return this.#partitions.size > 0
  }

  add(request: RestoreRequest): void {
    const now = this.#options.clock.monotonic()
    const { task, store, topic, partition, from, target, readAt, rebuild } = request
    this.#partitions.set(partitionName(topic, partition), {
      request,
      task,
      store,
      topic,
      partition,
      target,
      from,
      position: from,
      end: -1,
      records: 0,
      bytes: 0,
      startedAt: now,
      readAt,
      progressAt: now,
      warnedAt: now,
      rebuild,
      restarts: 0,
      waitingFor: undefined,
    })
    this.counters.started++
    if (rebuild !== undefined) this.counters.rebuilt(rebuild)
    this.#assignmentChanged = true
  }

  /** Stops all restores of a task; what was flushed so far stays, with its checkpoint. */
  remove(task: AssignedTask): void {
    for (const [name, restoring] of this.#partitions) {
      if (restoring.task !== task) continue
      this.#partitions.delete(name)
      this.#assignmentChanged = true
    }
  }

  /** Writes what a task has restored so far, with the positions reached: the next restore of the file goes on from there (CASES C34). */
  save(task: AssignedTask): void {
    const { checkpoints, knownAt } = this.#reachedBy(task)
    if (checkpoints.size === 0) return
    try {
      task.state?.flush(checkpoints, knownAt)
    } catch (error) {
      this.#options.logger.warn(
        { task: task.name, error: String(error) },
        'what was restored so far could not be kept; the next restore reads it again',
      )
    }
  }

  saveAll(): void {
    for (const task of new Set([...this.#partitions.values()].map((restoring) => restoring.task))) this.save(task)
  }

  isRestoring(task: AssignedTask): boolean {
    for (const restoring of this.#partitions.values()) if (restoring.task === task) return true
    return false
  }

  /**
   * One poll and its work. Returns the tasks whose last store is done, and those whose file turned out to be damaged. Throws what ends the worker: no
   * progress within the deadline, a changelog that cannot be read to its end.
   */
  async step(timeoutMs: number): Promise<RestoreStep> {
    this.#damaged = []
    this.#takeLook()
    const isConnected = await this.#reader.connect(timeoutMs)
    if (isConnected) {
      if (this.#assignmentChanged) this.#assign()
      const result = await this.#reader.poll(this.#pollRecords, timeoutMs)
      if (result === 'stopped') this.#stopped = true
      else {
        this.#adaptPoll(result)
        this.#apply(result)
      }
      failpoint('restore:step')
    }
    const finished = new Set<AssignedTask>()
    for (const [name, restoring] of this.#partitions) {
      this.#guarded(restoring, () => {
        const isTooOld = this.#isTooOld(restoring)
        if (isTooOld) this.#lookUp()
        if (restoring.end >= restoring.target && !isTooOld) {
          this.#finish(name, restoring)
          if (!this.isRestoring(restoring.task)) finished.add(restoring.task)
        } else this.#checkProgress(restoring)
      })
    }
    if (this.#stopped) this.#lookUp()
    if (isConnected && this.#assignmentChanged && this.#partitions.size === 0) this.#assign()
    return { finished: [...finished], damaged: this.#damaged }
  }

  #assign(): void {
    this.#assignmentChanged = false
    this.#reader.assign([...this.#partitions.values()].map(({ topic, partition, position }) => ({ topic, partition, offset: position })))
  }

  #adaptPoll({ records }: PollResult): void {
    if (records.length === 0) return
    const bytes = records.reduce((sum, { key, value }) => sum + (key?.length ?? 0) + (value?.length ?? 0), 0)
    this.#pollRecords = Math.max(1, Math.min(MAX_POLL_RECORDS, Math.floor(STEP_BYTES / Math.max(1, bytes / records.length))))
  }

  #apply({ records, ends }: PollResult): void {
    const now = this.#options.clock.monotonic()
    let index = 0
    while (index < records.length) {
      const first = records[index]
      if (first === undefined) break
      const run: ChangelogRecord[] = []
      let bytes = 0
      // Records of one partition come in runs: each run is handed over at once.
      for (
        let record = records[index];
        record !== undefined && record.topic === first.topic && record.partition === first.partition && bytes < RUN_BYTES;
        record = records[++index]
      ) {
        if (record.key === null) continue // not ours: a changelog record always has a key
        run.push({ offset: record.offset, key: record.key, value: record.value })
        bytes += record.key.length + (record.value?.length ?? 0)
      }
      const restoring = this.#partitions.get(partitionName(first.topic, first.partition))
      const last = run.at(-1)
      if (restoring === undefined || last === undefined) continue
      this.#guarded(restoring, () => {
        restoring.store.restore(run)
        restoring.position = last.offset + 1
        restoring.records += run.length
        restoring.bytes += bytes
        this.counters.records += run.length
        this.counters.bytes += bytes
        madeProgress(restoring, now)
        this.#flushWhenFull(restoring.task)
      })
    }
    for (const { topic, partition, offset } of ends) {
      const restoring = this.#partitions.get(partitionName(topic, partition))
      if (restoring === undefined) continue
      if (offset > restoring.position) {
        restoring.position = offset
        madeProgress(restoring, now)
      }
      restoring.end = offset
    }
  }

  /** Damage found on the way ends the task's restore; its owner rebuilds it. */
  #guarded(restoring: Restoring, act: () => void): void {
    try {
      act()
    } catch (error) {
      if (!(error instanceof CorruptedStoreError)) throw error
      this.#damaged.push({ task: restoring.task, error })
      this.remove(restoring.task)
    }
  }

  /**
   * All stores of the task that are being restored have positions of their own; the others keep their checkpoints. What was read is not newer for that: a
   * key that the store still has can have been deleted since the restore began, and its tombstone goes `delete.retention.ms` after that.
   */
  #reachedBy(task: AssignedTask): { readonly checkpoints: Map<string, number>; readonly knownAt: number } {
    const checkpoints = new Map<string, number>()
    let knownAt = this.#options.clock.now()
    for (const restoring of this.#partitions.values()) {
      if (restoring.task !== task || restoring.position <= restoring.from) continue
      checkpoints.set(restoring.store.name, restoring.position)
      knownAt = Math.min(knownAt, restoring.readAt)
    }
    return { checkpoints, knownAt }
  }

  #flushWhenFull(task: AssignedTask): void {
    const { state } = task
    if (state === undefined || state.memoryBytes < this.#options.memtableBytes) return
    const { checkpoints, knownAt } = this.#reachedBy(task)
    state.flush(checkpoints, knownAt)
  }

  #finish(name: string, restoring: Restoring): void {
    const { task, store, position } = restoring
    failpoint('restore:finish')
    this.#partitions.delete(name)
    const others = this.#reachedBy(task)
    task.state?.flush(others.checkpoints.set(store.name, position), others.knownAt)
    this.#assignmentChanged = true
    this.counters.finished++
    this.#options.onDone(this.#progressOf(restoring))
  }

  // --- waiting -------------------------------------------------------------------------------------------------------

  #checkProgress(restoring: Restoring): void {
    const { clock, logger, noProgressMs } = this.#options
    const now = clock.monotonic()
    const { topic, partition, position, target, end } = restoring
    const waitedMs = now - restoring.progressAt
    const held = end >= 0 && end < target
    if (waitedMs > noProgressMs) {
      throw new BrokerUnavailableError(
        `restore of ${partitionName(topic, partition)} made no progress for ${waitedMs} ms: at offset ${position}, target ${target}, read_committed end ${end < 0 ? 'not reached' : end}${restoring.waitingFor === undefined ? '' : `; it waits for ${restoring.waitingFor}`}`,
        {
          code: 'restore-stalled',
          remedy: held
            ? SETTLE_REMEDY
            : 'Check that the brokers that lead the changelog answer; the next start goes on where this one stopped.',
        },
      )
    }
    if (waitedMs <= WARN_AFTER_MS || now - restoring.warnedAt <= WARN_AFTER_MS) return
    restoring.warnedAt = now
    if (restoring.waitingFor === undefined || restoring.waitingFor === NO_RECORD)
      restoring.waitingFor = held ? openTransactionOf([]) : NO_RECORD
    logger.warn({ topic, partition, position, target, waitedMs, task: restoring.task.name }, `restore waits for ${restoring.waitingFor}`)
    // A stop of the reader can be hidden behind the records of one poll (CLIENT-FACTS 32), so the log is looked at too.
    this.#lookUp()
    if (held) this.#nameHolder(restoring)
  }

  /** R3. What it finds is said with the next report, and at once in the status. */
  #nameHolder(restoring: Restoring): void {
    const { admin, groupId, logger } = this.#options
    const { progressAt } = restoring
    suspectedTransactions(restoring.task, admin, groupId).then(
      (suspects) => {
        if (suspects === undefined || restoring.progressAt !== progressAt) return
        const isNew = restoring.waitingFor !== openTransactionOf(suspects)
        restoring.waitingFor = openTransactionOf(suspects)
        if (isNew && suspects.length > 0) {
          const { topic, partition, position, target, task } = restoring
          logger.warn(
            { topic, partition, position, target, task: task.name, transactionalIds: suspects },
            `restore waits for ${restoring.waitingFor}`,
          )
        }
      },
      (error: unknown) => {
        logger.debug({ error: String(error) }, 'the holder of an open transaction could not be looked up')
      },
    )
  }

  // --- records that were deleted in front of us (R4) -----------------------------------------------------------------

  /** Asks where all logs begin and end. One look at a time; one that fails is repeated. */
  #lookUp(): void {
    if (this.#looking || this.#look !== undefined) return
    this.#looking = true
    const reviving = this.#stopped
    this.#stopped = false
    const positions = [...this.#partitions.values()].map((restoring) => ({ restoring, position: restoring.position }))
    this.#options.admin
      .offsets(positions.map(({ restoring: { topic, partition } }) => ({ topic, partition })))
      .then(
        (bounds) => {
          this.#look = { positions, bounds, reviving }
        },
        (error: unknown) => {
          this.#stopped ||= reviving
          if (error instanceof BrokerError) this.#options.logger.debug({ error: error.message }, 'the changelogs could not be looked at')
          else this.#lookFailure = asError(error)
        },
      )
      .finally(() => {
        this.#looking = false
      })
  }

  #takeLook(): void {
    if (this.#lookFailure !== undefined) throw this.#lookFailure
    const look = this.#look
    if (look === undefined) return
    this.#look = undefined
    if (look.reviving) this.#assignmentChanged = true
    look.positions.forEach(({ restoring, position }, index) => {
      const { topic, partition, target, task } = restoring
      const bound = look.bounds[index]
      if (bound === undefined || this.#partitions.get(partitionName(topic, partition)) !== restoring) return
      const { logStart, highWatermark } = bound
      const known = Math.max(position, target)
      if (highWatermark < known)
        throw changelogShrunk(`the restore of task ${task.describe()} reads`, topic, partition, known, highWatermark)
      this.#guarded(restoring, () => {
        if (restoring.position < logStart) {
          const why = `records were deleted from the changelog's head, up to offset ${logStart}, while it was read at offset ${restoring.position}`
          this.#restart(restoring, 'head-deleted', logStart, why)
        } else if (this.#isTooOld(restoring)) {
          const tookMs = this.#options.clock.now() - restoring.readAt
          const why = `${tookMs} ms lie between its first and its last record, and the changelog keeps tombstones for ${restoring.request.deleteRetentionMs} ms (delete.retention.ms)`
          this.#restart(restoring, 'tombstones-too-old', logStart, why)
        }
      })
    })
  }

  #isTooOld({ request, readAt }: Restoring): boolean {
    return this.#options.clock.now() - readAt > trustedForMs(request.deleteRetentionMs)
  }

  /** Empties one store and reads its changelog from the start; the others go on. */
  #restart(restoring: Restoring, reason: RebuildReason, logStart: number, why: string): void {
    const { clock, logger } = this.#options
    const { task, store, topic, partition, position, target } = restoring
    const name = partitionName(topic, partition)
    if (restoring.restarts > 0) {
      throw new FatalError(`the changelog ${name} of task ${task.describe()} cannot be read to its end, also at the second try: ${why}`, {
        code: reason === 'head-deleted' ? 'changelog-head-deleted-again' : 'restore-too-slow',
        remedy:
          reason === 'head-deleted'
            ? 'Something deletes its records: the topic needs cleanup.policy=compact alone, and nobody may call DeleteRecords on it.'
            : 'Raise delete.retention.ms of that topic above the time a full restore takes.',
      })
    }
    logger.warn(
      { task: task.name, store: store.name, topic, partition, position, target, logStart, reason },
      `rebuilding the store from its changelog once: ${why}`,
    )
    task.state?.reset(store.name)
    const now = clock.monotonic()
    Object.assign(restoring, {
      from: logStart,
      position: logStart,
      end: -1,
      records: 0,
      bytes: 0,
      startedAt: now,
      readAt: clock.now(),
      progressAt: now,
      warnedAt: now,
      rebuild: reason,
      restarts: 1,
      waitingFor: undefined,
    } satisfies Partial<Restoring>)
    this.counters.rebuilt(reason)
    this.#assignmentChanged = true
  }

  // --- what is said --------------------------------------------------------------------------------------------------

  #progressOf(restoring: Restoring): RestoreProgress {
    const elapsedMs = this.#options.clock.monotonic() - restoring.startedAt
    const done = restoring.position - restoring.from
    const total = Math.max(done, restoring.target - restoring.from)
    const ratePerSecond = elapsedMs > 0 ? (done * 1_000) / elapsedMs : 0
    return {
      task: restoring.task.name,
      store: restoring.store.name,
      records: restoring.records,
      bytes: restoring.bytes,
      done,
      total,
      ratePerSecond,
      etaMs: ratePerSecond > 0 ? ((total - done) * 1_000) / ratePerSecond : undefined,
      elapsedMs,
      waitingFor: restoring.waitingFor,
      rebuild: restoring.rebuild,
    }
  }

  progress(): readonly RestoreProgress[] {
    return [...this.#partitions.values()].map((restoring) => this.#progressOf(restoring))
  }

  async close(): Promise<void> {
    this.#partitions.clear()
    await this.#reader.close()
  }
}

function madeProgress(restoring: Restoring, now: number): void {
  restoring.progressAt = now
  restoring.waitingFor = undefined
}
