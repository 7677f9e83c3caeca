export interface TopicPartition {
  readonly topic: string
  readonly partition: number
}

/** `offset` is the next offset to read: one past the last record that was processed, control records included. */
export interface TopicPartitionOffset extends TopicPartition {
  readonly offset: number
}

/** One string per topic partition, for maps and messages. */
export function partitionName(topic: string, partition: number): string {
  return `${topic}[${partition}]`
}
