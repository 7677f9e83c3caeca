/** The types of the public door `millrace/testing`. Owns their words, and nothing that runs. */
import type { Duration } from '../../common/duration.ts'
import type { Config } from '../../config/define.ts'
import type { Bytes } from '../../serde/codec.ts'
import type { RecordHeaders, Topic, TopologyDescription } from '../../topology/public-types.ts'
import type { Fault } from './faults.ts'

export interface TestDriverOptions {
  /** Partitions of every topic that the topology reads or writes, 1 to 64. Default 1. */
  readonly partitions?: number
  /** Workers that share the tasks, 1 to 16. Default 1. */
  readonly workers?: number
  /** Where the driver's clock starts, ms since the epoch. Default 0, so that `at: '90s'` is also a time of day. */
  readonly startAt?: number | Date
  /** Which answers and batches are late: 0 (default) none, any other whole number draws them. The same seed gives the same run, event by event. */
  readonly seed?: number
  /**
   * Options of the workers. Default: short time-outs (`transactionTimeout` 2 s, `sessionTimeout` 12 s, `commitInterval` 30 ms, `stateFlushInterval` 80 ms),
   * which cost nothing, since they pass on the simulated clock. `brokers`, `slot` and `stateDir` have no effect.
   */
  readonly config?: Partial<Config>
  /** Further topics that exist: the dead-letter topics that an `onError` function names, which the topology itself does not show. */
  readonly topics?: readonly Pick<Topic<never, never>, 'kind' | 'name'>[]
}

/** A record that goes in. */
export interface TestInput<K, V> {
  readonly key: K
  readonly value: V
  /** Timestamp as an offset from the start of the driver's clock. Default: the clock's present time. */
  readonly at?: Duration
  /** Default: follows the bytes of the key as in Java's producer; records whose key is null go to one partition after the other. */
  readonly partition?: number
  readonly headers?: Readonly<Record<string, string | Bytes>>
}

/** A record that came out. */
export interface TestOutput<K, V> {
  readonly key: K
  readonly value: V
  /** ms since the epoch. */
  readonly timestamp: number
  readonly partition: number
  readonly headers: RecordHeaders
}

/** A record that failed and went to a dead-letter topic. */
export interface TestDeadLetter {
  /** Where the record was read. */
  readonly topic: string
  readonly partition: number
  readonly offset: number
  /** Class and message of the error, as in `CodecError: json: ...`. */
  readonly error: string
  /** The record's own bytes. */
  readonly value: Bytes | null
}

/**
 * A topology at work: its real workers on simulated brokers, in this process, without timers of their own. Made by `createTestDriver`.
 *
 * Calls run one after the other, in the order in which they were made. After `dispose` every call throws.
 */
export interface TestDriver extends AsyncDisposable {
  /**
   * Writes records to an input topic and runs the workers until everything is committed: all tasks run, nothing is left to read, no transaction is open.
   * Bytes that the topic's own codec would not write go in through another declaration of it: `topic(orders.name, { value: bytes() })`.
   *
   * Rejects with the worker's own error when a worker ends for good (a record that failed under `onError: 'fail'`: topic, partition and offset are in the
   * message), and with what is not done yet when five minutes of simulated time were not enough. After that the driver only shows what it has.
   * @example await driver.pipe(orders, { key: 'o1', value: created('o1'), at: '5s' }, { key: 'o1', value: created('o1'), at: '6s' })
   */
  pipe<K, V>(topic: Topic<K, V>, ...records: readonly TestInput<NoInfer<K>, NoInfer<V>>[]): Promise<void>
  /** Committed values of a topic since the start, in order per partition, partitions in turn. Reading does not consume. */
  values<K, V>(topic: Topic<K, V>): V[]
  /** As `values`, with key, timestamp, partition and headers. */
  records<K, V>(topic: Topic<K, V>): TestOutput<K, V>[]
  /** As `values`, with the key: `[key, value]`. */
  pairs<K, V>(topic: Topic<K, V>): [K, V][]
  /** The topic as a table: the last committed value of each key. Keys whose last value is null, and records without a key, are left out. */
  latest<K, V>(topic: Topic<K, V>): Map<K, NonNullable<V>>
  /** Committed records of all dead-letter topics, in order per partition. */
  deadLetters(): TestDeadLetter[]
  /**
   * Moves the driver's clock, which otherwise stands still: the wall clock of workers and brokers, and the timestamp of records piped without `at`. Event
   * time moves by records only, and time-outs of workers and brokers do not pass.
   */
  advanceTime(by: Duration): Promise<void>
  /**
   * Breaks something at its next occasion, which is during a later `pipe` or `advanceTime`. Several faults strike one after the other. A worker that dies
   * is started again, on its disk as it was.
   *
   * Rejects when no worker of this topology ever comes to that step. A fault that never struck proves nothing, so it does not go unnoticed:
   * `differencesFromUndisturbedRun` rejects, and so does the end of the driver, unless a call of the driver was rejected before.
   * @example await driver.fault(crashAfter('sendOffsets'))
   */
  fault(fault: Fault): Promise<void>
  /** The faults so far, as text, and whether they struck. */
  readonly faults: readonly { readonly fault: string; readonly fired: boolean }[]
  /**
   * Runs the same input again without faults and returns how the committed outputs and the state differ: per record, its partition, and its order where the
   * topology determines one. Empty: exactly once. What `onError` counted and the stack of an error (headers `millrace.attempts` and `millrace.stack`) may
   * differ. The functions of the topology must depend on their records only, or they are the difference.
   * @example expect(await driver.differencesFromUndisturbedRun()).toEqual([])
   */
  differencesFromUndisturbedRun(): Promise<readonly string[]>
  /** As `topology.describe()`, with the application id in use. */
  describe(): TopologyDescription
  /**
   * Counters of all workers together: `records`, `outputs`, `duplicates`, `late`, `deadLetters`, `skipped`, `transactions`, `aborts`, `fences`,
   * `restores`, ... Of a worker that died what it had counted is in them; a commit that it died in is not.
   */
  readonly metrics: Readonly<Record<string, number>>
}

/** What `crashEverywhere` found. */
export interface CrashReport {
  /** How many runs with a crash there were. */
  readonly schedules: number
  /** Empty: none of them made a difference. */
  readonly violations: readonly CrashViolation[]
}

export interface CrashViolation {
  /** What struck, as calls of this module: `crashAfter('commit', { occurrence: 2 })`. The same faults on a driver of one's own repeat it. */
  readonly schedule: string
  /** What was different then; or what the scenario itself threw. */
  readonly difference: string
}
