/** The public part of the topology. `index.ts` of the package re-exports this barrel as it is. */
export { topology } from './builder.ts'
export { deadLetters, topic } from './topics.ts'
export { isTopology } from './topology-parts.ts'
export type {
  AsyncIsNotAllowedHere,
  DeadLetterTopic,
  DedupeId,
  DedupeOptions,
  Failure,
  KStream,
  NewRecord,
  NodeOptions,
  OnError,
  RecordHeaders,
  Sink,
  Sources,
  StreamEndsNowhere,
  StreamOptions,
  StreamRecord,
  Sync,
  Topic,
  ToOptions,
  Topology,
  TopologyDescription,
  TopologyOptions,
} from './public-types.ts'
export type { TopologyNode } from './nodes.ts'
