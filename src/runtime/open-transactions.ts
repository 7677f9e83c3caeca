/**
 * Whose transaction is it that we wait for?
 *
 * A dead owner of a task can leave a transaction open that holds the task's committed offsets or its changelog. The broker does not say whose it is, but the
 * offsets that the task's last committer left do: they carry its transactional id prefix and the size of its ring. One of those ids it is, unless the owner
 * died before its first commit of this task; then the ids of the owner before it are named, which is why they are called suspects.
 */
import type { BrokerAdmin } from '../broker/port.ts'
import { BrokerError } from '../errors/broker-error.ts'
import type { AssignedTask } from './assigned-task.ts'
import { readMetadata } from './offset-metadata.ts'

/** Transactional ids that may hold something of the task, sorted; empty when nobody is on record; undefined when the coordinator does not answer. */
export async function suspectedTransactions(
  task: AssignedTask,
  admin: Pick<BrokerAdmin, 'groupOffsets'>,
  groupId: string,
): Promise<readonly string[] | undefined> {
  try {
    const ids = new Set<string>()
    for (const { metadata } of await admin.groupOffsets(groupId, task.inputs)) {
      const found = readMetadata(metadata)
      if (found === undefined) continue
      for (let index = 0; index < found.ringSize; index++) ids.add(`${found.transactionalIdPrefix}-${index}`)
    }
    return [...ids].sort()
  } catch (error) {
    if (error instanceof BrokerError) return undefined
    throw error
  }
}

/** For log lines, errors and the status. */
export function openTransactionOf(suspects: readonly string[]): string {
  return suspects.length === 0 ? 'an open transaction of an unknown producer' : `an open transaction of ${suspects.join(' or ')}`
}

export const SETTLE_REMEDY =
  'Start the slot that used the id again: its start aborts the transaction at once. Else the broker does, at the transaction\u2019s time-out, or kafka-transactions.sh abort.'
