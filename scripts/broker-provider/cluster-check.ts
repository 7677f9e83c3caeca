/** Whether a cluster answers, asked by a client that is not the one under test. */
import { setTimeout as delay } from 'node:timers/promises'
import { Kafka, logLevel } from 'kafkajs'

const ATTEMPT_MS = 3_000
const PAUSE_MS = 100

export interface ClusterMember {
  readonly nodeId: number
  readonly host: string
  readonly port: number
}

/** One question for the members of the cluster; throws when nothing answers. */
export async function describeCluster(brokers: string, timeoutMs: number = ATTEMPT_MS): Promise<readonly ClusterMember[]> {
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
    return (await admin.describeCluster()).brokers
  } finally {
    await admin.disconnect().catch(() => undefined)
  }
}

/**
 * Asks until all `nodes` members are in, or `deadlineMs` passed, or `hasFailed` names a reason to give up.
 * Each address is asked: a cluster whose second broker does not yet listen is not ready.
 */
export async function awaitCluster(addresses: readonly string[], deadlineMs: number, hasFailed: () => string | undefined): Promise<void> {
  const start = performance.now()
  let last = 'no answer'
  for (const address of addresses) {
    for (;;) {
      const failure = hasFailed()
      if (failure !== undefined) throw new Error(failure)
      try {
        const members = await describeCluster(address)
        if (members.length >= addresses.length) break
        last = `${members.length} of ${addresses.length} brokers are in the cluster`
      } catch (error) {
        last = error instanceof Error ? error.message : String(error)
      }
      if (performance.now() - start > deadlineMs)
        throw new Error(`the broker at ${address} is not ready after ${Math.round(deadlineMs / 1000)} s: ${last}`)
      await delay(PAUSE_MS)
    }
  }
}
