/**
 * One task: runs one record at a time through the nodes of its sub-topology.
 *
 * Owns: the compiled steps, stream time, the counters of the open transaction.
 * Does not own: the broker (outputs go to an Outbox), transactions, the lifetime of its stores.
 * Calls across: Outbox.send, StateStore.beginRecord / rollbackRecord and the store's own operations, user functions.
 *
 * Invariants:
 *  TK1. A record leaves all of its effects or none: a failure drops its outputs and rolls its state writes back before the error policy acts (X6).
 *  TK2. The first record of an id that fails is not remembered: a mended resend must pass.
 *  TK3. Stream time moves only with a record that was processed, and returns to the committed value on abort.
 */
import type { BrokerRecord } from '../broker/port.ts'
import { InvariantError } from '../common/invariant.ts'
import type { Clock } from '../common/ports.ts'
import { partitionName } from '../common/topic-partition.ts'
import { asError, MillraceError, PoisonedRecordError } from '../errors/errors.ts'
import type { DedupeStore, StateStore } from '../state/store.ts'
import type { NodeFunctions, SubTopology, TopologyPlan } from '../topology/nodes.ts'
import type { Failure, OnError } from '../topology/public-types.ts'
import { recordHeaders } from '../topology/record-headers.ts'
import { isDeadLetterTopic } from '../topology/topics.ts'
import { deadLetterHeaders } from './dead-letter.ts'
import { UnknownSinkError, type Outbox } from './outbox.ts'
import { ProcessingContext } from './processing-context.ts'
import { checkedTimestamp, compileSteps, type Step } from './steps.ts'

/** An outbox the task can take back: what a failed record had written is dropped. */
export interface RecordOutbox extends Outbox {
  discard(): void
}

export interface TaskCounters {
  records: number
  duplicates: number
  late: number
  skipped: number
  deadLetters: number
}

export interface TaskOptions {
  readonly plan: TopologyPlan
  readonly subTopology: SubTopology
  readonly stores: ReadonlyMap<string, StateStore>
  readonly outbox: RecordOutbox
  readonly clock: Clock
  /** Counts one more attempt of a record that failed; returns how many there were, this one included. */
  readonly countAttempt: (record: BrokerRecord) => number
  readonly onFailure: (failure: Failure, reaction: 'fail' | 'skip' | 'dead-letter') => void
}

/** Where in the topology the record is right now; read only when it fails. */
export interface Place {
  node: string
  phase: Failure['phase']
}

interface Source {
  readonly name: string
  readonly decodeKey: (bytes: Buffer | null) => unknown
  readonly keyCodec: string
  readonly decodeValue: (bytes: Buffer | null) => unknown
  readonly timestamp: ((value: unknown, record: ProcessingContext) => number) | undefined
  readonly onError: OnError
  readonly first: Step
}

const zeroCounters = (): TaskCounters => ({ records: 0, duplicates: 0, late: 0, skipped: 0, deadLetters: 0 })

export class Task {
  readonly #options: TaskOptions
  readonly #context = new ProcessingContext()
  readonly #place: Place = { node: '', phase: 'decode' }
  readonly #sources = new Map<string, Source>()
  readonly #stores: readonly StateStore[]
  /** Of the open transaction; handed over by `commit`, dropped by `abort`. */
  readonly #pending = zeroCounters()
  readonly #streamTimes = new Map<string, { committed: number; now: number }>()
  #streamTime = -1
  #lastInput = ''
  #lastSource: Source | undefined

  constructor(options: TaskOptions) {
    this.#options = options
    this.#stores = [...options.stores.values()]
    const { plan, subTopology } = options
    for (const node of subTopology.nodes) {
      if (node.kind !== 'source') continue
      const functions = plan.functions.get(node.id) as Extract<NodeFunctions, { kind: 'source' }>
      const first = compileSteps({
        plan,
        subTopology,
        from: node.id,
        context: this.#context,
        place: this.#place,
        outbox: options.outbox,
        stores: options.stores as ReadonlyMap<string, DedupeStore>,
        counters: this.#pending,
        now: (clock) => (clock === 'wall-clock' ? this.#wallClock() : this.#candidate),
      })
      for (const topic of functions.topics) {
        this.#sources.set(topic.name, {
          name: node.name,
          decodeKey: topic.key.decode,
          keyCodec: topic.key.id,
          decodeValue: topic.value.decode,
          timestamp: functions.timestamp,
          onError: functions.onError ?? plan.onError,
          first,
        })
      }
    }
  }

  /** Stream time with the record at hand included. */
  #candidate = -1

  #lastWallClock = 0

  /** The wall clock, but never back: what was forgotten stays forgotten. */
  #wallClock(): number {
    const now = this.#options.clock.now()
    if (now > this.#lastWallClock) this.#lastWallClock = now
    return this.#lastWallClock
  }

  /** Highest event time of this task, ms; -1 before the first record. */
  get streamTime(): number {
    return this.#streamTime
  }

  /** What the committed offset's metadata said, at assignment. */
  setStreamTime(topic: string, streamTime: number): void {
    this.#streamTimes.set(topic, { committed: streamTime, now: streamTime })
    if (streamTime > this.#streamTime) this.#streamTime = streamTime
  }

  streamTimeOf(topic: string): number {
    return this.#streamTimes.get(topic)?.now ?? -1
  }

  /** Runs one record. Throws when the policy says `fail`, and for what no policy covers; otherwise the record is settled: processed, skipped or dead-lettered. */
  process(record: BrokerRecord): void {
    const context = this.#context
    const place = this.#place
    const source = record.topic === this.#lastInput && this.#lastSource !== undefined ? this.#lastSource : this.#sourceOf(record.topic)
    for (const store of this.#stores) store.beginRecord()
    context.start(record)
    try {
      place.node = source.name
      place.phase = 'decode'
      context.sourceKey = context.key = source.decodeKey(record.key)
      context.sourceKeyCodec = source.keyCodec
      const value = (context.value = source.decodeValue(record.value))
      place.phase = 'process'
      if (source.timestamp !== undefined)
        context.timestamp = checkedTimestamp(source.timestamp(value, context), 'the source\u2019s timestamp function')
      this.#candidate = context.timestamp > this.#streamTime ? context.timestamp : this.#streamTime
      source.first(value)
    } catch (error) {
      this.#settleFailure(record, source, error)
      return
    }
    this.#pending.records++
    this.#advanceStreamTime(record.topic, context.timestamp)
  }

  /** As if the record had failed with `error` in its source: for one that made the worker fail without being named. */
  refuse(record: BrokerRecord, error: Error): void {
    const source = this.#sourceOf(record.topic)
    for (const store of this.#stores) store.beginRecord()
    this.#context.start(record)
    this.#place.node = source.name
    this.#place.phase = 'process'
    this.#settleFailure(record, source, error)
  }

  #sourceOf(topic: string): Source {
    const source = this.#sources.get(topic)
    if (source === undefined) throw new Error(`topic ${topic} is no input of this task`)
    this.#lastInput = topic
    this.#lastSource = source
    return source
  }

  #advanceStreamTime(topic: string, timestamp: number): void {
    let times = this.#streamTimes.get(topic)
    if (times === undefined) this.#streamTimes.set(topic, (times = { committed: -1, now: -1 }))
    // The source's timestamp, not one that a `map` set for its output: that is restored by now.
    if (timestamp > times.now) times.now = timestamp
    if (timestamp > this.#streamTime) this.#streamTime = timestamp
  }

  #settleFailure(record: BrokerRecord, source: Source, thrown: unknown): void {
    const { outbox, onFailure } = this.#options
    outbox.discard()
    for (const store of this.#stores) store.rollbackRecord()
    // A damaged store or a broken invariant is no fault of the record: no policy may send it to the dead letters for that.
    if (thrown instanceof InvariantError || (thrown instanceof MillraceError && thrown.reaction !== 'poisoned')) throw thrown
    const failure: Failure = {
      node: this.#place.node,
      phase: this.#place.phase,
      error: asError(thrown),
      attempts: this.#options.countAttempt(record),
      record: {
        topic: record.topic,
        partition: record.partition,
        offset: record.offset,
        timestamp: record.timestamp,
        key: record.key,
        value: record.value,
        headers: recordHeaders(record.headers),
      },
    }
    const policy = decide(source.onError, failure)
    if (policy === 'fail') {
      onFailure(failure, 'fail')
      throw poisoned(failure)
    }
    if (policy === 'skip') {
      this.#pending.skipped++
      onFailure(failure, 'skip')
    } else {
      try {
        const timestamp = outbox.acceptedTimestamp(policy.to.name, record.timestamp)
        outbox.send(policy.to.name, null, record.key, record.value, timestamp, [...record.headers, ...deadLetterHeaders(failure)])
      } catch (error) {
        outbox.discard()
        if (error instanceof UnknownSinkError) throw error
        throw poisoned({
          ...failure,
          error: new Error(`${failure.error.message}; and its dead letter does not fit ${policy.to.name}: ${asError(error).message}`, {
            cause: error,
          }),
        })
      }
      this.#pending.deadLetters++
      onFailure(failure, 'dead-letter')
    }
    this.#pending.records++
  }

  /** The transaction committed. Returns what it counted. */
  commit(): TaskCounters {
    const committed = { ...this.#pending }
    Object.assign(this.#pending, zeroCounters())
    for (const times of this.#streamTimes.values()) times.committed = times.now
    return committed
  }

  /** It did not: counters and stream time go back (TK3). Stores are aborted by their owner. */
  abort(): void {
    Object.assign(this.#pending, zeroCounters())
    this.#streamTime = -1
    for (const times of this.#streamTimes.values()) {
      times.now = times.committed
      if (times.now > this.#streamTime) this.#streamTime = times.now
    }
  }
}

/** A policy function that fails, or answers something else, is no permission to go on. */
function decide(onError: OnError, failure: Failure): Exclude<OnError, (failure: Failure) => unknown> {
  if (typeof onError !== 'function') return onError
  let answer: unknown
  try {
    answer = onError(failure)
  } catch (error) {
    throw poisoned({
      ...failure,
      error: new Error(`${failure.error.message}; and onError itself failed: ${asError(error).message}`, { cause: error }),
    })
  }
  if (answer === 'fail' || answer === 'skip') return answer
  if (typeof answer === 'object' && answer !== null && 'to' in answer && isDeadLetterTopic(answer.to)) return { to: answer.to }
  const said = answer instanceof Promise ? 'a promise' : (JSON.stringify(answer) ?? String(answer))
  throw poisoned({
    ...failure,
    error: new Error(`${failure.error.message}; and onError answered ${said} instead of 'fail', 'skip' or { to: deadLetters('...') }`),
  })
}

function poisoned({ node, phase, error, record }: Failure): PoisonedRecordError {
  const remedy =
    error instanceof MillraceError && error.remedy !== undefined
      ? error.remedy
      : "Mend the record's producer or the topology, or set onError to 'skip' or { to: deadLetters('...') } to go on past such records."
  return new PoisonedRecordError(
    `record ${partitionName(record.topic, record.partition)} offset ${record.offset} failed in node "${node}" (${phase}): ${error.message}`,
    { code: 'poisoned-record', remedy, cause: error },
  )
}
