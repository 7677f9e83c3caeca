/**
 * Broken runtimes. Each takes one rule out of the real one, from outside, by replacing one method of one class; the checks must catch every one, or they
 * sleep (DESIGN 8).
 *
 * Tried, and no mutants, because something else in this model keeps the promise: the checkpoint at the high watermark (a task starts when everything below
 * it is decided); offsets of tasks that are no longer owned (the client rejoins only after the callback was answered, so its generation is over); stale
 * records of an earlier poll (nothing is fetched ahead here); `fail` that dooms nothing (what is refused is abandoned at once).
 */
import { BrokerError } from '../../src/errors/broker-error.ts'
import { CommitCycle } from '../../src/runtime/commit-cycle.ts'
import { InputReader } from '../../src/runtime/input-reader.ts'
import { ProducerRing } from '../../src/runtime/producer-ring.ts'
import { Restorer } from '../../src/runtime/restore.ts'
import { TransactionMachine } from '../../src/runtime/transaction.ts'
import { LayeredDedupeStore } from '../../src/state/dedupe-store.ts'
import { StoreSet } from '../../src/state/store-set.ts'
import { SimAdmin } from '../../src/testing/sim/client/admin.ts'
import { SimConsumer } from '../../src/testing/sim/client/consumer.ts'
import { SimProducer } from '../../src/testing/sim/client/producer.ts'
import { GroupOffsets } from '../../src/testing/sim/cluster/group-offsets.ts'

export interface Mutant {
  readonly name: string
  /** The rule that is taken out. */
  readonly breaks: string
  /** Returns the function that mends it again. */
  readonly apply: () => () => void
  /** Seeds alone rarely meet it: after them, every decision of this name by itself, while a worker joins. */
  readonly directed?: string
}

const prepares = new WeakMap<object, number>()

type Method = (this: never, ...args: never[]) => unknown

/** Replaces a method; the replacement gets the original. */
function replaced<T extends object, K extends keyof T>(prototype: T, name: K, by: (original: T[K]) => T[K]): () => () => void {
  return () => {
    const original = prototype[name]
    prototype[name] = by(original)
    return () => {
      prototype[name] = original
    }
  }
}

const call = <R>(original: unknown, self: unknown, ...args: unknown[]): R => (original as Method).apply(self as never, args as never[]) as R

export const MUTANTS: readonly Mutant[] = [
  {
    name: 'a flush without the fenced commit before it',
    breaks: 'X2, decision 4',
    apply: replaced(
      CommitCycle.prototype,
      'commit',
      (original) =>
        function (this: CommitCycle, reason) {
          return reason === 'flush' ? Promise.resolve(true) : call(original, this, reason)
        },
    ),
  },
  {
    name: 'an aborted write-set is merged',
    breaks: 'S1, X2',
    apply: replaced(
      LayeredDedupeStore.prototype,
      'abort',
      () =>
        function (this: LayeredDedupeStore) {
          this.commit()
        },
    ),
  },
  {
    name: 'the write-set reaches the memtable before the transaction committed',
    breaks: 'S1, X2',
    apply: replaced(
      LayeredDedupeStore.prototype,
      'prepare',
      (original) =>
        function (this: LayeredDedupeStore, ...args) {
          call(original, this, ...args)
          this.commit()
        },
    ),
  },
  {
    name: 'sendOffsets failed, and the commit follows all the same',
    breaks: 'T1',
    apply: replaced(
      SimProducer.prototype,
      'sendOffsets',
      (original) =>
        async function (this: SimProducer, ...args) {
          await call<Promise<void>>(original, this, ...args).catch(() => undefined)
        },
    ),
  },
  {
    name: 'a transaction without offsets',
    breaks: 'T2',
    apply: replaced(SimProducer.prototype, 'sendOffsets', () => () => Promise.resolve()),
  },
  {
    name: 'the next transaction begins on the old epoch after an unknown outcome',
    breaks: 'T3, X4',
    apply: replaced(ProducerRing.prototype, 'replaceCurrent', () => () => Promise.resolve()),
  },
  {
    name: 'an unknown outcome counts as aborted',
    breaks: 'X4',
    apply: replaced(
      SimConsumer.prototype,
      'committed',
      (original) =>
        async function (this: SimConsumer, ...args) {
          const found = await call<ReturnType<SimConsumer['committed']>>(original, this, ...args)
          return found.map((offset) => ({ ...offset, metadata: offset.metadata.replace(/"n":"[^"]*"/, '"n":""') }))
        },
    ),
  },
  {
    name: 'reading is not moved back after an abort',
    breaks: 'X6',
    apply: replaced(InputReader.prototype, 'rewind', () => () => Promise.resolve()),
  },
  {
    name: 'a record that the client refused is left out, and the rest committed',
    breaks: 'T4, X6',
    apply: replaced(
      TransactionMachine.prototype,
      'produce',
      (original) =>
        function (this: TransactionMachine, ...args) {
          try {
            return call(original, this, ...args)
          } catch (error) {
            if (error instanceof BrokerError) return true
            throw error
          }
        },
    ),
  },
  {
    name: 'keys of packed changelog records are counted, from 0 in each process',
    breaks: 'S3, X2',
    apply: replaced(
      LayeredDedupeStore.prototype,
      'prepare',
      (original) =>
        function (this: LayeredDedupeStore, _nonce, sink) {
          const prepared = (prepares.get(this) ?? 0) + 1
          prepares.set(this, prepared)
          call(original, this, Buffer.alloc(16, prepared), sink)
        },
    ),
  },
  {
    name: 'the restore ends at the last stable offset',
    breaks: 'R1, X7',
    directed: 'late marker',
    apply: replaced(
      SimAdmin.prototype,
      'offsets',
      () =>
        async function (this: SimAdmin, partitions) {
          const stable = await this.lastStableOffsets(partitions)
          return partitions.map(({ topic, partition }, index) => ({
            topic,
            partition,
            logStart: 0,
            highWatermark: stable[index] as number,
          }))
        },
    ),
  },
  {
    name: 'the restore reads and does not apply',
    breaks: 'X7',
    apply: replaced(LayeredDedupeStore.prototype, 'restore', () => () => undefined),
  },
  {
    name: 'a task counts as restored at once',
    breaks: 'X7',
    apply: replaced(
      Restorer.prototype,
      'add',
      (original) =>
        function (this: Restorer, request) {
          call(original, this, { ...request, from: request.target })
        },
    ),
  },
  {
    name: 'the checkpoint lies a little ahead of the rows',
    breaks: 'X2',
    apply: replaced(
      StoreSet.prototype,
      'flush',
      (original) =>
        function (this: StoreSet, checkpoints, knownAt) {
          call(original, this, new Map([...checkpoints].map(([store, offset]) => [store, offset + 2])), knownAt)
        },
    ),
  },
  {
    name: 'committed offsets are read while a transaction holds them',
    breaks: 'A13',
    apply: replaced(
      GroupOffsets.prototype,
      'fetch',
      (original) =>
        function (this: GroupOffsets, partitions) {
          return call(original, this, partitions, false)
        },
    ),
  },
]
