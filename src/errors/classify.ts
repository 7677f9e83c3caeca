/**
 * One function decides what a failure of the broker asks for. The table below is the single place where a code gets its meaning; tests walk it and
 * docs/errors.md is its printed form.
 *
 * `replaceProducer`: the producer object must not be used again, whatever the reaction.
 */
import { type BrokerError, GIVEN_UP, TOO_SLOW, WATCHDOG, type BrokerOperation } from './broker-error.ts'
import type { Reaction } from './errors.ts'

export interface Classification {
  readonly reaction: Reaction
  readonly replaceProducer: boolean
  readonly reason: string
}

interface Rule {
  readonly reaction: Reaction
  readonly replaceProducer?: boolean
  readonly reason: string
}

/** By code, whatever the operation. Positive: Kafka protocol; negative: librdkafka. */
export const CODE_RULES: Readonly<Record<number, Rule>> = {
  [-199]: { reaction: 'corrupted', reason: 'a batch does not fit its checksum' },
  [-197]: { reaction: 'abortable', reason: 'the client was closed' },
  [-195]: { reaction: 'retriable', reason: 'the connection to the broker broke' },
  [-193]: { reaction: 'retriable', reason: 'the name of the broker did not resolve' },
  [-192]: { reaction: 'abortable', reason: 'a record timed out in the local queue' },
  [-190]: { reaction: 'poisoned', reason: 'the partition does not exist' },
  [-188]: { reaction: 'poisoned', reason: 'the topic does not exist' },
  [-187]: { reaction: 'retriable', reason: 'no broker is reachable' },
  [-185]: { reaction: 'retriable', reason: 'the broker did not answer in time' },
  [-180]: { reaction: 'retriable', reason: 'waiting for the coordinator' },
  [-173]: { reaction: 'abortable', replaceProducer: true, reason: 'the client refused the call in its present state' },
  [-172]: { reaction: 'abortable', replaceProducer: true, reason: 'the client is in the wrong state for the call' },
  [-156]: { reaction: 'retriable', reason: 'the client does not know the topic yet: it was just created, or its leader moved' },
  [-152]: { reaction: 'abortable', reason: 'the transaction was purged' },
  [-150]: { reaction: 'fenced', replaceProducer: true, reason: 'fatal in the client: another process took the slot' },
  [-147]: { reaction: 'abortable', reason: 'the poll interval was exceeded' },
  [-144]: { reaction: 'fenced', replaceProducer: true, reason: 'a newer producer has this transactional id, or the transaction timed out' },
  [-140]: { reaction: 'config', reason: 'the offset to read from is out of range' },
  1: { reaction: 'config', reason: 'the offset to read from is out of range' },
  2: { reaction: 'retriable', reason: 'a message arrived damaged' },
  3: { reaction: 'poisoned', reason: 'the topic or partition does not exist' },
  5: { reaction: 'retriable', reason: 'the partition has no leader' },
  6: { reaction: 'retriable', reason: 'the leader moved' },
  7: { reaction: 'retriable', reason: 'the broker timed out' },
  8: { reaction: 'retriable', reason: 'the broker is not available' },
  9: { reaction: 'retriable', reason: 'a replica is not available' },
  10: { reaction: 'poisoned', replaceProducer: true, reason: 'a record or batch is larger than the topic accepts' },
  12: { reaction: 'fatal', reason: 'the offset metadata is larger than the broker accepts' },
  13: { reaction: 'retriable', reason: 'the broker dropped the connection' },
  14: { reaction: 'retriable', reason: 'the coordinator is loading' },
  15: { reaction: 'retriable', reason: 'the coordinator is not available' },
  16: { reaction: 'retriable', reason: 'the coordinator moved' },
  17: { reaction: 'config', reason: 'the topic name is not legal' },
  18: { reaction: 'poisoned', replaceProducer: true, reason: 'a batch is larger than a log segment' },
  19: { reaction: 'retriable', reason: 'not enough in-sync replicas' },
  20: { reaction: 'retriable', reason: 'not enough in-sync replicas after the append' },
  22: { reaction: 'abortable', reason: 'the group has a new generation: ordinary while a member joins' },
  25: { reaction: 'abortable', reason: 'the group does not know this member any more' },
  27: { reaction: 'abortable', reason: 'the group is rebalancing' },
  29: { reaction: 'config', reason: 'not authorised for the topic' },
  30: { reaction: 'config', reason: 'not authorised for the group' },
  31: { reaction: 'config', reason: 'not authorised for the cluster' },
  32: { reaction: 'poisoned', replaceProducer: true, reason: 'a timestamp is outside what the topic accepts' },
  41: { reaction: 'retriable', reason: 'the controller moved' },
  45: {
    reaction: 'abortable',
    replaceProducer: true,
    reason: 'a sequence number is missing: records of this producer were refused before',
  },
  47: { reaction: 'fenced', replaceProducer: true, reason: 'the producer epoch is old' },
  48: { reaction: 'abortable', replaceProducer: true, reason: 'the transaction is in another state at the coordinator' },
  49: { reaction: 'abortable', replaceProducer: true, reason: 'the transactional id expired' },
  50: { reaction: 'config', reason: 'the transaction time-out is above the broker\u2019s maximum' },
  51: { reaction: 'retriable', reason: 'the previous transaction is still being completed' },
  52: { reaction: 'retriable', reason: 'the transaction coordinator moved' },
  53: { reaction: 'config', reason: 'not authorised for the transactional id' },
  56: { reaction: 'retriable', reason: 'a log directory failed: the leader will move' },
  58: { reaction: 'config', reason: 'authentication failed' },
  59: { reaction: 'abortable', replaceProducer: true, reason: 'the broker does not know this producer id' },
  72: { reaction: 'retriable', reason: 'the broker has no listener of that name yet' },
  74: { reaction: 'retriable', reason: 'the client has an old leader epoch' },
  75: { reaction: 'retriable', reason: 'the broker does not know this leader epoch yet' },
  78: { reaction: 'retriable', reason: 'the offset is not available yet after a change of leader' },
  79: { reaction: 'abortable', reason: 'the group asks for a member id first' },
  82: { reaction: 'fenced', replaceProducer: true, reason: 'another process has this group instance id' },
  87: { reaction: 'poisoned', replaceProducer: true, reason: 'the broker refused a record (for example a null key in a compacted topic)' },
  88: { reaction: 'retriable', reason: 'a transaction that is still open holds the offset' },
  89: { reaction: 'retriable', reason: 'the broker throttles' },
  90: { reaction: 'fenced', replaceProducer: true, reason: 'a newer producer has this transactional id' },
  [GIVEN_UP]: { reaction: 'abortable', reason: 'given up by the worker itself' },
  [TOO_SLOW]: {
    reaction: 'abortable',
    replaceProducer: true,
    reason: 'a record took longer than a transaction may be open, so the broker has aborted it',
  },
  100: { reaction: 'retriable', reason: 'the topic id is not known yet' },
  120: { reaction: 'abortable', reason: 'the coordinator asks for an abort' },
  [WATCHDOG]: { reaction: 'retriable', reason: 'the client did not answer within its own time-out' },
}

/**
 * A retriable failure of `commit` stays retriable: the call is repeated, and only when the budget is spent is the outcome ambiguous (X4). The runtime
 * makes that last step, because only it knows the budget.
 */
export function classify(error: BrokerError): Classification {
  const rule = CODE_RULES[error.code]
  const replaceProducer = rule?.replaceProducer === true || (error.isFatal && isProducerOperation(error.operation))
  if (rule !== undefined) {
    // The client knows more about this one failure than the table: what must be aborted is not repeated.
    if (rule.reaction === 'retriable' && error.isAbortRequired) return { reaction: 'abortable', replaceProducer, reason: rule.reason }
    return { reaction: rule.reaction, replaceProducer, reason: rule.reason }
  }
  if (error.isFatal) return { reaction: 'abortable', replaceProducer: true, reason: 'fatal for the producer' }
  if (error.isAbortRequired) return { reaction: 'abortable', replaceProducer, reason: 'the client asks for an abort' }
  if (error.isRetriable) return { reaction: 'retriable', replaceProducer, reason: 'the client says it may be repeated' }
  return { reaction: 'fatal', replaceProducer, reason: 'unknown code' }
}

function isProducerOperation(operation: BrokerOperation): boolean {
  switch (operation) {
    case 'init':
    case 'begin':
    case 'produce':
    case 'flush':
    case 'sendOffsets':
    case 'commit':
    case 'abort':
      return true
    case 'connect':
    case 'poll':
    case 'seek':
    case 'committed':
    case 'read':
    case 'admin':
    case 'close':
      return false
  }
}
