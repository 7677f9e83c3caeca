/**
 * A topology as data: frozen nodes in build order, parents by id, codecs by id, durations in ms. They survive JSON; snapshots and the fingerprint read them.
 * User functions and codec objects live in a side table keyed by node id, so nothing here holds code.
 */
import type { Codec, Encoder } from '../serde/codec.ts'
import type { DedupeId, NewRecord, OnError, StreamRecord } from './public-types.ts'
import type { StoreSpec } from '../common/store-spec.ts'

interface NodeBase<Kind extends string> {
  readonly kind: Kind
  readonly id: number
  readonly name: string
  readonly parents: readonly number[]
}
export type SourceNode = NodeBase<'source'> & {
  readonly topics: readonly string[]
  readonly key: readonly string[]
  readonly value: readonly string[]
  readonly startFrom: 'earliest' | 'latest'
}
export type MapNode = NodeBase<'map'>
export type MapValuesNode = NodeBase<'map-values'>
export type FilterNode = NodeBase<'filter' | 'filter-not'>
export type PeekNode = NodeBase<'peek'>
export type DedupeNode = NodeBase<'dedupe'> & {
  readonly store: string
  readonly windowMs: number
  readonly clock: 'event-time' | 'wall-clock'
  /** `'drop'`, or the name of the topic. */
  readonly onDuplicate: string
  /** `'pass'`, `'drop'`, or the name of the topic. */
  readonly late: string
  readonly refresh: boolean
}
export type SinkNode = NodeBase<'sink'> & { readonly topics: readonly string[]; readonly key: string; readonly value: string }
export type TopologyNode = SourceNode | MapNode | MapValuesNode | FilterNode | PeekNode | DedupeNode | SinkNode

/** A topic something is written to, with its encoders. */
export interface SinkTopic {
  readonly name: string
  readonly key: Encoder<never>
  readonly value: Encoder<never>
}
type Call<R> = (value: unknown, record: StreamRecord<unknown, unknown>) => R

/** Side table: what a node runs. Same ids, same kinds as the nodes. */
export type NodeFunctions =
  | {
      readonly kind: 'source'
      readonly topics: readonly { readonly name: string; readonly key: Codec<unknown>; readonly value: Codec<unknown> }[]
      readonly timestamp: Call<number> | undefined
      readonly onError: OnError | undefined
    }
  | { readonly kind: 'map'; readonly map: Call<NewRecord<unknown, unknown>> }
  | { readonly kind: 'map-values'; readonly map: Call<unknown> }
  | { readonly kind: 'filter' | 'filter-not'; readonly predicate: Call<boolean> }
  | { readonly kind: 'peek'; readonly peek: Call<unknown> }
  | {
      readonly kind: 'dedupe'
      readonly by: 'key' | Call<DedupeId>
      readonly onDuplicate: SinkTopic | 'drop'
      readonly late: SinkTopic | 'pass' | 'drop'
    }
  | {
      readonly kind: 'sink'
      readonly topic: SinkTopic
      readonly partition: ((value: unknown, record: StreamRecord<unknown, unknown>, partitions: number) => number) | undefined
    }

/** A connected part of the topology whose tasks are numbered by partition. */
export interface SubTopology {
  readonly id: number
  readonly nodes: readonly TopologyNode[]
  /** Input topics. With state they must have the same number of partitions. */
  readonly inputs: readonly string[]
  readonly stores: readonly StoreSpec[]
}

/** What the runtime reads of a topology. `compileTopology(topology)` in `topology/plan.ts` makes it. */
export interface TopologyPlan {
  readonly name: string
  /** Hash of the nodes without functions, ids and names of stateless steps: hex, 16 characters. */
  readonly fingerprint: string
  readonly onError: OnError
  readonly subTopologies: readonly SubTopology[]
  readonly functions: ReadonlyMap<number, NodeFunctions>
  /** Every topic that is written to, dead letters included. */
  readonly sinks: readonly string[]
  /** Dead letter topics named statically in `onError`. */
  readonly deadLetterTopics: readonly string[]
}
