/** Whether a cluster answers, asked by a client that is not the one under test. */
import { setTimeout as delay } from 'node:timers/promises'
import { Kafka, logLevel, type Admin } from 'kafkajs'

const ATTEMPT_MS = 3_000
const PAUSE_MS = 100

export interface ClusterMember {
  readonly nodeId: number
  readonly host: string
  readonly port: number
}

/** One question for the members of the cluster; throws when nothing answers. */
export async function describeCluster(brokers: string, timeoutMs: number = ATTEMPT_MS): Promise<readonly ClusterMember[]> {
  return withAdmin(brokers, timeoutMs, async (admin) => (await admin.describeCluster()).brokers)
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
    const behind = await withAdmin(node.address, ATTEMPT_MS, async (admin) =>
      (await admin.fetchTopicMetadata()).topics.flatMap(({ name, partitions }) =>
        partitions
          .filter(({ leader, replicas, isr }) => leader >= 0 && replicas.includes(node.id) && !isr.includes(node.id))
          .map(({ partitionId }) => `${name}-${partitionId}`),
      ),
    )
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

async function withAdmin<T>(brokers: string, timeoutMs: number, use: (admin: Admin) => Promise<T>): Promise<T> {
  const admin = new Kafka({
    clientId: 'millrace-broker-check',
    brokers: brokers.split(',').map((address) => address.trim()),
    logLevel: logLevel.NOTHING,
    connectionTimeout: timeoutMs,
    requestTimeout: timeoutMs,
    retry: { retries: 0 },
  }).admin()
  try {
    await admin.connect()
    return await use(admin)
  } finally {
    await admin.disconnect().catch(() => undefined)
  }
}
