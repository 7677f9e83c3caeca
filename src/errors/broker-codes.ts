/** Codes that somebody decides by outside of the table of reactions: positive ones are Kafka's, negative ones librdkafka's. */

export const OFFSET_OUT_OF_RANGE = 1
export const UNKNOWN_TOPIC_OR_PARTITION = 3
export const TOPIC_ALREADY_EXISTS = 36
/** The topic has that many partitions, or more. */
export const INVALID_PARTITIONS = 37
export const FENCED_LEADER_EPOCH = 74

export const AUTO_OFFSET_RESET = -140
/** librdkafka's "no such entry": made or found a moment ago, and not known everywhere yet. Retriable. */
export const NOT_KNOWN_YET = -156
export const TIMED_OUT = -185
export const UNKNOWN_TOPIC_LOCALLY = -188
export const ALL_BROKERS_DOWN = -187
export const TRANSPORT = -195
/** The client was closed, by ourselves. */
export const CLOSED = -197
