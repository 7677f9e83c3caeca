/** The cluster that KAFKA_BROKERS names. Nothing of it is ours: it is neither configured, killed nor removed. */
import { describeCluster } from './cluster-check.ts'
import { provideDistribution } from './distribution.ts'
import {
  BrokerUnavailableError,
  defaultKafkaVersion,
  type BrokerNode,
  type BrokerOptions,
  type JavaTools,
  type ProvidedBroker,
} from './types.ts'

const CHECK_TIMEOUT_MS = 10_000

export async function connectExternalBroker(brokers: string, options: BrokerOptions): Promise<ProvidedBroker> {
  if (options.advertise !== undefined) {
    throw new BrokerUnavailableError(
      `KAFKA_BROKERS is set to ${brokers}, and its brokers tell clients their own addresses, so nothing can be put between: unset KAFKA_BROKERS for this`,
    )
  }
  const start = performance.now()
  const addresses = brokers
    .split(',')
    .map((address) => address.trim())
    .filter((address) => address !== '')
  for (const address of addresses) {
    if (!/^(\[[0-9a-fA-F:.]+\]|[^\s:]+):\d{1,5}$/.test(address)) {
      throw new BrokerUnavailableError(`KAFKA_BROKERS: '${address}' is not host:port; write host:port, several with commas`)
    }
  }
  const bootstrap = addresses.join(',')
  let members
  try {
    members = await describeCluster(bootstrap, CHECK_TIMEOUT_MS)
  } catch (error) {
    throw new BrokerUnavailableError(
      `KAFKA_BROKERS is set to ${bootstrap}, but no broker answers there (${error instanceof Error ? error.message : String(error)}): start it, correct the address, or unset KAFKA_BROKERS to have a broker started`,
      { cause: error },
    )
  }
  if (members.length < options.nodes) {
    options.onProgress?.(
      `the cluster at ${bootstrap} has ${members.length} of the ${options.nodes} brokers asked for; what needs more will fail`,
    )
  }
  return {
    kind: 'external',
    brokers: bootstrap,
    directBrokers: bootstrap,
    version: undefined,
    startUpMs: Math.round(performance.now() - start),
    nodes: members.map((member) => refusingNode(member.nodeId)),
    java: await toolsIfAny(bootstrap, options),
    stop: () => Promise.resolve(),
    [Symbol.asyncDispose]: () => Promise.resolve(),
  }
}

function refusingNode(id: number): BrokerNode {
  const refuse = (): Promise<never> =>
    Promise.reject(
      new Error(`broker ${id} belongs to the cluster of KAFKA_BROKERS and is not ours to kill or start: unset KAFKA_BROKERS for this`),
    )
  return { id, pid: undefined, kill: refuse, start: refuse }
}

async function toolsIfAny(bootstrap: string, options: BrokerOptions): Promise<JavaTools | undefined> {
  try {
    const { java, classpath, version } = await provideDistribution(options.version ?? defaultKafkaVersion(), options.onProgress)
    return { via: 'classpath', java, classpath, version, bootstrap }
  } catch (error) {
    if (!(error instanceof BrokerUnavailableError)) throw error
    options.onProgress?.(`the independent Java tools cannot be had: ${error.message}`)
    return undefined
  }
}
