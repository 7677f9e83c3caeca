/**
 * What the broker contract needs of a place to run in: a cluster, processes with clients of their own, and a way to wait. The suite asks for nothing else,
 * so that it runs unchanged on the simulated brokers (virtual time) and on a real one.
 */
import type { Broker } from '../../src/broker/port.ts'
import type { ReadRecord as ContractRecord } from '../helpers/kafka.ts'

/** A process as the cluster sees it: its clients connect and end by themselves. Its name is its group instance id. */
export interface ContractProcess {
  readonly name: string
  readonly broker: Broker
  /** Its wall clock, ms since the epoch. */
  now(): number
}

/** Answers to JoinGroup that are kept back: the group goes on, and the member does not know. */
export interface HeldJoins {
  readonly struck: number
  release(): void
}

/** A process that something happens to. */
export interface StrikableProcess extends ContractProcess {
  /** Its connections end without a word, for good. */
  kill(): void
  /** Nothing reaches it or leaves it, and its connections stay open. */
  freeze(): void
  thaw(): void
  holdJoins(groupId: string): HeldJoins
}

export type { ContractRecord }

/** One test's world. */
export interface BrokerWorld {
  /** From here on time passes, where it is not the real one. */
  start(): void
  process(name: string): ContractProcess
  /** One in a test. */
  strikable(name: string): StrikableProcess
  createTopic(name: string, partitions: number, config: Readonly<Record<string, string>>): Promise<void>
  /** One plain record per value, outside of any transaction. */
  append(topic: string, partition: number, values: readonly string[]): Promise<void>
  /** DeleteRecords: the log starts at the offset. */
  deleteBefore(topic: string, partition: number, offset: number): Promise<void>
  /** All that is committed, in order of partition and offset. Waits while a transaction is open there. */
  committedRecords(topic: string): Promise<readonly ContractRecord[]>
  /** Asks until the answer is true. */
  until(what: string, ask: () => boolean | Promise<boolean>): Promise<void>
  /** Between two tries; never to wait for something. */
  pause(ms: number): Promise<void>
  /** Ends every strike, calls these, and stops time. */
  end(closers: readonly (() => Promise<void>)[]): Promise<void>
}

export interface ContractCluster {
  /** A name that nothing else in the cluster has. */
  unique(name: string): string
  world(): BrokerWorld
  close(): Promise<void>
}
