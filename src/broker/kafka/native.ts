/**
 * The parts of the native client that its type declarations leave out. The classic API is used below its JavaScript wrapper on two hot paths:
 * `consume`, because the wrapper emits an event per record, and `produce`, because the wrapper throws where a full queue is ordinary.
 */
import { createRequire } from 'node:module'

export interface NativeMessage {
  topic: string
  partition: number
  offset: number
  timestamp: number
  key: Buffer | null
  value: Buffer | null
  headers?: unknown
}
export interface NativeEof {
  readonly topic: string
  readonly partition: number
  readonly offset: number
}
export interface NativePosition {
  topic: string
  partition: number
  offset?: number
  metadata?: string | null
  error?: unknown
}
type Done<T = void> = (error: unknown, result?: T) => void
export type NativeConfig = Record<string, unknown>

interface NativeClient {
  on(event: string, listener: (details: { message?: string; code?: number; severity?: number; fac?: string }) => void): void
  connect(options: { topic?: string; allTopics?: boolean; timeout?: number }, done: Done<unknown>): void
  disconnect(done: Done<unknown>): void
  isConnected(): boolean
}

export interface NativeConsumer extends NativeClient {
  subscribe(topics: string[]): void
  unsubscribe(): void
  assign(positions: NativePosition[]): void
  unassign(): void
  incrementalAssign(positions: NativePosition[]): void
  incrementalUnassign(positions: NativePosition[]): void
  assignments(): NativePosition[]
  assignmentLost(): boolean
  pause(positions: NativePosition[]): void
  resume(positions: NativePosition[]): void
  position(positions: NativePosition[]): NativePosition[]
  getWatermarkOffsets(topic: string, partition: number): { lowOffset: number; highOffset: number }
  seek(position: NativePosition, timeoutMs: number, done: Done): void
  committed(positions: NativePosition[], timeoutMs: number, done: Done<NativePosition[]>): void
  getClient(): {
    consume(
      timeoutMs: number,
      records: number,
      timeoutOnlyForFirst: boolean,
      done: (error: unknown, messages: NativeMessage[], ends: NativeEof[]) => void,
    ): void
  }
}

export interface NativeProducer extends NativeClient {
  setPollInBackground(on: boolean): void
  flush(timeoutMs: number, done: Done): void
  initTransactions(timeoutMs: number, done: Done): void
  beginTransaction(done: Done): void
  commitTransaction(timeoutMs: number, done: Done): void
  abortTransaction(timeoutMs: number, done: Done): void
  sendOffsetsToTransaction(offsets: NativePosition[], consumer: NativeConsumer, timeoutMs: number, done: Done): void
  getClient(): {
    /** Returns a librdkafka error code, 0 when queued. */
    produce(
      topic: string,
      partition: number | null,
      value: Buffer | null,
      key: Buffer | null,
      timestamp: number,
      opaque: undefined,
      headers: readonly Record<string, Buffer>[] | undefined,
    ): number
  }
}

export interface NativeAdmin {
  createTopic(
    topic: { topic: string; num_partitions: number; replication_factor: number; config: Record<string, string> },
    timeoutMs: number,
    done: Done,
  ): void
  createPartitions(topic: string, totalPartitions: number, timeoutMs: number, done: Done): void
  describeTopics(
    topics: string[],
    options: { timeout: number },
    done: Done<{ name: string; error?: { code: number; message: string }; partitions: { partition: number; replicas: unknown[] }[] }[]>,
  ): void
  listOffsets(
    partitions: { topic: string; partition: number; offset: unknown }[],
    options: { timeout: number; isolationLevel: number },
    done: Done<{ topic: string; partition: number; offset: number; error?: { code: number; message: string } }[]>,
  ): void
  disconnect(): void
}

interface NativeModule {
  KafkaConsumer: new (config: NativeConfig, topicConfig: NativeConfig) => NativeConsumer
  Producer: new (config: NativeConfig, topicConfig: NativeConfig) => NativeProducer
  AdminClient: { create(config: NativeConfig): NativeAdmin }
}

const load = createRequire(import.meta.url)
/** Loaded once, with the first import of the adapter: a missing binary fails here, with the client's own words. */
export const native = load('@confluentinc/kafka-javascript') as NativeModule
interface NativeConstants {
  readonly IsolationLevel: { readonly READ_UNCOMMITTED: number; readonly READ_COMMITTED: number }
  readonly OffsetSpec: { readonly EARLIEST: unknown; readonly LATEST: unknown }
}
export const { IsolationLevel, OffsetSpec } = native as unknown as NativeConstants
