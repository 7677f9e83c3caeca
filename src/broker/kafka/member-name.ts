/**
 * The client id of a group consumer: its instance id, and a tag of its process.
 *
 * A group's description names client ids; the instance id it keeps to itself (kafkajs does not read it). With the tag, a place that was taken by another
 * process is told from one that this process took itself: by a join whose answer never reached it, which is there for as long as its session lasts.
 */
const SEPARATOR = '+'

export function memberClientId(instanceId: string, processTag: string): string {
  return `${instanceId}${SEPARATOR}${processTag}`
}

export function readMemberClientId(clientId: string): { readonly instanceId: string; readonly processTag: string | undefined } {
  const at = clientId.lastIndexOf(SEPARATOR)
  return at < 0
    ? { instanceId: clientId, processTag: undefined }
    : { instanceId: clientId.slice(0, at), processTag: clientId.slice(at + 1) }
}
