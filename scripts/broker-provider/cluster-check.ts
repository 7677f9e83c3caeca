/** Whether a cluster answers, asked without the client under test. */
import { setTimeout as delay } from 'node:timers/promises'
import { readClusterView, type ClusterMember } from './metadata-request.ts'

const ATTEMPT_MS = 3_000
const PAUSE_MS = 100

/** The members of the cluster, by the first of the addresses that answers; throws what the last one said when none does. */
export async function describeCluster(brokers: string, timeoutMs: number = ATTEMPT_MS): Promise<readonly ClusterMember[]> {
  let failure: unknown
  for (const address of brokers.split(',')) {
    try {
      return (await readClusterView(address.trim(), timeoutMs)).members
    } catch (error) {
      failure = error
    }
  }
  throw failure
}

export interface ExpectedMember {
  readonly id: number
  /** Where it is asked. */
  readonly address: string
}

/**
 * Waits until each of the `expected` nodes answers and counts all of them as members: a cluster whose second broker does not yet listen is not ready.
 * `expected` is asked anew each time, so a node that goes meanwhile is no longer waited for. Throws after `deadlineMs`, or when `hasFailed` names a reason.
 */
export async function awaitCluster(
  expected: () => readonly ExpectedMember[],
  deadlineMs: number,
  hasFailed: () => string | undefined,
): Promise<void> {
  const deadline = performance.now() + deadlineMs
  const agreed = new Set<number>()
  for (;;) {
    const next = expected().find(({ id }) => !agreed.has(id))
    if (next === undefined) return
    await ask(next.address, deadline, deadlineMs, hasFailed, async () => {
      if (!expected().some(({ id }) => id === next.id)) return undefined
      const members = new Set((await describeCluster(next.address)).map(({ nodeId }) => nodeId))
      const missing = expected().filter(({ id }) => !members.has(id))
      return missing.length === 0 ? undefined : `broker ${missing.map(({ id }) => id).join(', ')} is not in the cluster`
    })
    agreed.add(next.id)
  }
}

/** Waits until the node is in sync in every partition that it has a replica of and that has a leader. It is asked itself. */
export async function awaitReplicas(node: ExpectedMember, deadlineMs: number, hasFailed: () => string | undefined): Promise<void> {
  await ask(node.address, performance.now() + deadlineMs, deadlineMs, hasFailed, async () => {
    const behind = (await readClusterView(node.address, ATTEMPT_MS)).partitions
      .filter(({ leader, replicas, inSync }) => leader >= 0 && replicas.includes(node.id) && !inSync.includes(node.id))
      .map(({ topic, partition }) => `${topic}-${partition}`)
    return behind.length === 0 ? undefined : `its replicas of ${behind.slice(0, 5).join(', ')} are behind (${behind.length} in all)`
  })
}

/** Asks until `question` has nothing more to complain of. */
async function ask(
  address: string,
  deadline: number,
  deadlineMs: number,
  hasFailed: () => string | undefined,
  question: () => Promise<string | undefined>,
): Promise<void> {
  for (;;) {
    const failure = hasFailed()
    if (failure !== undefined) throw new Error(failure)
    let complaint: string | undefined
    try {
      complaint = await question()
      if (complaint === undefined) return
    } catch (error) {
      complaint = error instanceof Error ? error.message : String(error)
    }
    if (performance.now() > deadline)
      throw new Error(`the broker at ${address} is not ready after ${Math.round(deadlineMs / 1000)} s: ${complaint}`)
    await delay(PAUSE_MS)
  }
}
