/** Broker properties of the clusters that we start, and the broker-side names of topic settings. Pure. */

export interface ClusterPlan {
  readonly nodes: number
  readonly topicDefaults?: Readonly<Record<string, string>> | undefined
  readonly serverProperties?: Readonly<Record<string, string>> | undefined
}

/** Settings that every broker of a cluster shares, whichever way it is started. Quick to start, and small. */
export function clusterProperties({ nodes, topicDefaults = {}, serverProperties = {} }: ClusterPlan): Record<string, string> {
  const replication = nodes >= 3 ? '3' : '1'
  const inSync = nodes >= 3 ? '2' : '1'
  const properties: Record<string, string> = {
    'auto.create.topics.enable': 'false',
    'default.replication.factor': replication,
    'min.insync.replicas': inSync,
    'offsets.topic.num.partitions': '5',
    'offsets.topic.replication.factor': replication,
    'transaction.state.log.num.partitions': '5',
    'transaction.state.log.replication.factor': replication,
    'transaction.state.log.min.isr': inSync,
    'share.coordinator.state.topic.num.partitions': '1',
    'share.coordinator.state.topic.replication.factor': replication,
    'share.coordinator.state.topic.min.isr': inSync,
    // A test group starts at once instead of waiting 3 s for more members.
    'group.initial.rebalance.delay.ms': '0',
    'group.min.session.timeout.ms': '1000',
    'num.io.threads': '4',
    'num.network.threads': '3',
    'log.cleaner.dedupe.buffer.size': '16777216',
  }
  for (const [name, value] of Object.entries(topicDefaults)) properties[brokerNameOfTopicSetting(name)] = value
  return { ...properties, ...serverProperties }
}

const SAME_NAME = new Set(['min.insync.replicas', 'compression.type', 'unclean.leader.election.enable'])
const OTHER_NAME: Readonly<Record<string, string>> = {
  'max.message.bytes': 'message.max.bytes',
  'delete.retention.ms': 'log.cleaner.delete.retention.ms',
  'min.cleanable.dirty.ratio': 'log.cleaner.min.cleanable.ratio',
  'min.compaction.lag.ms': 'log.cleaner.min.compaction.lag.ms',
  'max.compaction.lag.ms': 'log.cleaner.max.compaction.lag.ms',
  'file.delete.delay.ms': 'log.segment.delete.delay.ms',
  'flush.messages': 'log.flush.interval.messages',
  'flush.ms': 'log.flush.interval.ms',
  'segment.ms': 'log.roll.ms',
  'segment.jitter.ms': 'log.roll.jitter.ms',
  'segment.index.bytes': 'log.index.size.max.bytes',
}

/** The broker property that is the default of a topic setting, e.g. `retention.ms` -> `log.retention.ms`. */
export function brokerNameOfTopicSetting(name: string): string {
  if (SAME_NAME.has(name)) return name
  return OTHER_NAME[name] ?? `log.${name}`
}

/** The text of a `.properties` file. */
export function propertiesText(properties: Readonly<Record<string, string>>): string {
  return Object.entries(properties)
    .map(([name, value]) => `${name}=${value.replaceAll('\\', '\\\\').replaceAll('\n', '\\n')}\n`)
    .join('')
}
