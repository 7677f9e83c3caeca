/**
 * Restore: reads changelogs read_committed, from each store's checkpoint to the end, many partitions at once, a step per turn of the worker loop.
 *
 * Owns: the reader's assignment, positions and targets.
 * Does not own: the stores; it hands them records and flushes them with the position reached, so that an interrupted restore goes on from there.
 *
 * Invariants:
 *  R1. The target is the changelog's high watermark after the committed offsets were read (X7). The last stable offset is a wrong target: after a commit
 *      returned it can still lie before one's own markers (CLIENT-FACTS 16, DESIGN 3).
 *  R2. A partition is done when its end-of-partition offset reaches the target; the end lies past control records, which are never delivered.
 *  R3. An end below the target means an open transaction: wait, bounded by the no-progress deadline, and say so.
 */
import type { ChangelogReader, PollResult } from '../broker/port.ts'
import type { Clock, Logger } from '../common/ports.ts'
import { partitionName } from '../common/topic-partition.ts'
import { BrokerUnavailableError, CorruptedStoreError } from '../errors/errors.ts'
import type { ChangelogRecord, StateStore } from '../state/store.ts'
import type { AssignedTask } from './assigned-task.ts'

export interface RestoreRequest {
  readonly task: AssignedTask
  readonly store: StateStore
  readonly topic: string
  readonly partition: number
  /** First offset to read. */
  readonly from: number
  readonly target: number
}

interface Restoring extends RestoreRequest {
  position: number
  end: number
  records: number
  bytes: number
  readonly startedAt: number
  progressAt: number
  warnedAt: number
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
}

export interface RestoreStep {
  readonly finished: readonly AssignedTask[]
  readonly damaged: readonly { readonly task: AssignedTask; readonly error: CorruptedStoreError }[]
}

export interface RestorerOptions {
  readonly connectReader: () => Promise<ChangelogReader>
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
const WARN_AFTER_MS = 5_000

export class Restorer {
  readonly #options: RestorerOptions
  readonly #partitions = new Map<string, Restoring>()
  #reader: ChangelogReader | undefined
  #assignmentChanged = false
  #pollRecords = 16
  #damaged: { task: AssignedTask; error: CorruptedStoreError }[] = []

  constructor(options: RestorerOptions) {
    this.#options = options
  }

  get active(): boolean {
    return this.#partitions.size > 0
  }

  add(request: RestoreRequest): void {
    const now = this.#options.clock.monotonic()
    const restoring = { ...request, position: request.from, end: -1, records: 0, bytes: 0, startedAt: now, progressAt: now, warnedAt: now }
    this.#partitions.set(partitionName(request.topic, request.partition), restoring)
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
    const checkpoints = new Map<string, number>()
    for (const restoring of this.#partitions.values()) {
      if (restoring.task === task && restoring.position > restoring.from) checkpoints.set(restoring.store.name, restoring.position)
    }
    if (checkpoints.size === 0) return
    try {
      task.state?.flush(checkpoints)
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

  /** One poll and its work. Returns the tasks whose last store is done, and those whose file turned out to be damaged. */
  async step(timeoutMs: number): Promise<RestoreStep> {
    this.#damaged = []
    this.#reader ??= await this.#options.connectReader()
    if (this.#assignmentChanged) {
      this.#assignmentChanged = false
      this.#reader.assign([...this.#partitions.values()].map(({ topic, partition, position }) => ({ topic, partition, offset: position })))
    }
    const result = await this.#reader.poll(this.#pollRecords, timeoutMs)
    this.#adaptPoll(result)
    this.#apply(result)
    const finished = new Set<AssignedTask>()
    for (const [name, restoring] of this.#partitions) {
      if (restoring.end >= restoring.target) {
        this.#guarded(restoring, () => {
          this.#finish(name, restoring)
          if (!this.isRestoring(restoring.task)) finished.add(restoring.task)
        })
      } else this.#checkProgress(restoring)
    }
    if (this.#assignmentChanged && this.#partitions.size === 0) {
      this.#assignmentChanged = false
      this.#reader.assign([])
    }
    return { finished: [...finished], damaged: this.#damaged }
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
        restoring.progressAt = now
        this.#flushWhenFull(restoring)
      })
    }
    for (const { topic, partition, offset } of ends) {
      const restoring = this.#partitions.get(partitionName(topic, partition))
      if (restoring === undefined) continue
      if (offset > restoring.position) {
        restoring.position = offset
        restoring.progressAt = now
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

  #flushWhenFull({ task, store, position }: Restoring): void {
    const { state } = task
    if (state === undefined || state.memoryBytes < this.#options.memtableBytes) return
    // All stores of the task that are being restored have positions of their own; the others keep their checkpoints.
    const checkpoints = new Map([[store.name, position]])
    for (const other of this.#partitions.values()) if (other.task === task) checkpoints.set(other.store.name, other.position)
    state.flush(checkpoints)
  }

  #finish(name: string, restoring: Restoring): void {
    this.#partitions.delete(name)
    this.#assignmentChanged = true
    const { task, store, position } = restoring
    task.state?.flush(new Map([[store.name, position]]))
    this.#options.onDone(this.#progressOf(restoring))
  }

  #checkProgress(restoring: Restoring): void {
    const { clock, logger, noProgressMs } = this.#options
    const now = clock.monotonic()
    const { topic, partition, position, target } = restoring
    const waitedMs = now - restoring.progressAt
    if (waitedMs > noProgressMs) {
      throw new BrokerUnavailableError(
        `restore of ${topic}[${partition}] made no progress for ${waitedMs} ms: at offset ${position}, target ${target}, read_committed end ${restoring.end}`,
        {
          code: 'restore-stalled',
          remedy:
            'If the end is below the target, a producer left a transaction open: list it with kafka-transactions.sh --list and abort it, or wait for its time-out.',
        },
      )
    }
    if (waitedMs > WARN_AFTER_MS && now - restoring.warnedAt > WARN_AFTER_MS) {
      restoring.warnedAt = now
      const why =
        restoring.end >= 0 && restoring.end < target
          ? 'an open transaction holds the changelog at its first record'
          : 'no record has arrived'
      logger.warn({ topic, partition, position, target, waitedMs }, `restore waits: ${why}`)
    }
  }

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
    }
  }

  progress(): readonly RestoreProgress[] {
    return [...this.#partitions.values()].map((restoring) => this.#progressOf(restoring))
  }

  async close(): Promise<void> {
    this.#partitions.clear()
    await this.#reader?.close()
    this.#reader = undefined
  }
}
