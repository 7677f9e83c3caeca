/** Names and settings of the topics millrace owns. One place, for describe(), the start-up check and the creation. */

/** One partition per task: owning it means owning the task. */
export function tasksTopic(applicationId: string): string {
  return `${applicationId}-tasks`
}
export function changelogTopic(applicationId: string, store: string): string {
  return `${applicationId}-${store}-changelog`
}

/** The task table must never be forgotten (DESIGN 3). */
export const TASKS_TOPIC_CONFIG: Readonly<Record<string, string>> = Object.freeze({ 'cleanup.policy': 'compact' })
/** Tombstones stay for 7 days, so that a checkpoint of that age can still be caught up (DESIGN 4). */
export const CHANGELOG_TOPIC_CONFIG: Readonly<Record<string, string>> = Object.freeze({
  'cleanup.policy': 'compact',
  'delete.retention.ms': '604800000',
  // The active segment is never compacted: with the broker's 1 GiB a small store would restore up to a gigabyte of what it has long forgotten.
  'segment.bytes': '67108864',
})
