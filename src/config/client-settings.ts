/**
 * Settings of the Kafka client that millrace owns. Each would break a promise of DESIGN 1, or has an option of its own; the `kafka` option refuses it by name
 * and says why. Everything else is passed on as it is.
 */

const HAS_AN_OPTION = (option: string): string => `set the option ${option} instead: rules across options are checked with it`
const CALLBACK = 'the client calls it from inside its own queue, and the loop owns every callback'

export const OWNED_CLIENT_SETTINGS: Readonly<Record<string, string>> = {
  'bootstrap.servers': HAS_AN_OPTION('brokers'),
  'metadata.broker.list': HAS_AN_OPTION('brokers'),

  'group.id': 'the group carries the committed offsets and is named by applicationId',
  'group.instance.id':
    'it is the stable slot of a worker, made of applicationId, instance and slot; another value would let two workers fence each other',
  'group.protocol': 'the task topic needs the classic protocol with its cooperative-sticky assignor',
  'group.remote.assignor': 'the task topic needs the classic protocol with its cooperative-sticky assignor',
  'partition.assignment.strategy': 'cooperative-sticky is required: with an eager assignor every rebalance would take all tasks away',
  'session.timeout.ms': HAS_AN_OPTION('sessionTimeout'),
  'heartbeat.interval.ms': HAS_AN_OPTION('heartbeatInterval'),
  'max.poll.interval.ms': HAS_AN_OPTION('maxPollInterval'),

  'isolation.level': 'read_committed is required: records of aborted transactions would be processed',
  'enable.auto.commit': 'offsets are committed in the transaction; committed by the client they could run ahead of the outputs',
  'auto.commit.interval.ms': 'offsets are committed in the transaction; committed by the client they could run ahead of the outputs',
  'auto.commit.enable': 'offsets are committed in the transaction; committed by the client they could run ahead of the outputs',
  'enable.auto.offset.store': 'offsets are committed in the transaction, never from the store of the client',
  'offset.store.method': 'offsets are committed in the transaction, never from the store of the client',
  'auto.offset.reset': 'a missing offset must stop the task, never jump silently; where a source starts is startFrom of stream()',
  'enable.partition.eof': 'the end of a restore is recognised by it',
  'allow.auto.create.topics':
    'topics are created with their settings or not at all; a topic created by a typing error would swallow records',
  'topic.metadata.refresh.interval.ms': HAS_AN_OPTION('metadataPoll'),
  'metadata.max.age.ms': 'it follows metadataPoll',

  'enable.idempotence': 'a transactional producer is idempotent; without it a retry would write a record twice',
  'transactional.id': 'it is made of applicationId, instance, slot and ring index, so that a restarted worker fences its dead predecessor',
  'transaction.timeout.ms': HAS_AN_OPTION('transactionTimeout'),
  acks: 'all replicas must acknowledge, or a failed broker would lose committed records',
  'request.required.acks': 'all replicas must acknowledge, or a failed broker would lose committed records',
  'max.in.flight': 'more than five requests in flight, or a reordering retry, would break the order of a key',
  'max.in.flight.requests.per.connection': 'more than five requests in flight, or a reordering retry, would break the order of a key',
  retries: 'giving up a record inside a transaction would lose it; taskTimeout bounds the retries',
  'message.send.max.retries': 'giving up a record inside a transaction would lose it; taskTimeout bounds the retries',
  'queuing.strategy': 'last-in-first-out would break the order of a key',
  'enable.gapless.guarantee': 'a producer of this kind fails for ever after one lost record; transactions already cover it',
  partitioner: 'records go where a Java producer would put them (murmur2); another partitioner would tear co-partitioned topics apart',
  partitioner_cb: 'records go where a Java producer would put them (murmur2); another partitioner would tear co-partitioned topics apart',

  rebalance_cb: CALLBACK,
  offset_commit_cb: CALLBACK,
  dr_cb: 'delivery reports slow every flush; refusals are seen at the commit',
  dr_msg_cb: 'delivery reports slow every flush; refusals are seen at the commit',
  'delivery.report.only.error': 'it makes every flush tick at 10 ms; refusals are seen at the commit',
  event_cb: CALLBACK,
  consume_cb: CALLBACK,
  log_cb: CALLBACK,
  stats_cb: CALLBACK,
  error_cb: CALLBACK,
}

/** Client settings whose value is never printed. */
export function isSecretClientSetting(name: string): boolean {
  return /password|secret|token|ssl\.key\.pem|sasl\.oauthbearer\.config|jaas/i.test(name)
}
