/**
 * A KRaft cluster in containers, through testcontainers (which removes what a killed parent leaves, by its reaper container).
 *
 * Host ports are fixed before the start: a broker has to advertise the address under which clients reach it.
 */
import { getContainerRuntimeClient, GenericContainer, Network, Wait, type StartedNetwork, type StartedTestContainer } from 'testcontainers'
import { awaitCluster, awaitReplicas, type ExpectedMember } from './cluster-check.ts'
import { freePorts } from './jvm-broker.ts'
import { clusterProperties } from './server-properties.ts'
import { defaultKafkaVersion, type BrokerNode, type BrokerOptions, type JavaTools, type ProvidedBroker } from './types.ts'

const IMAGE = 'apache/kafka'
const READY_DEADLINE_MS = 180_000
/** Listener ports inside the containers. */
const CLIENT_PORT = 9092
const CONTROLLER_PORT = 9093
const DIRECT_PORT = 9094
const INTERNAL_PORT = 19092
/** Any base64 of 16 bytes: all nodes of one network share it, and networks are apart. */
const CLUSTER_ID = '5L6g3nShT-eMCtK--X86sw'

export async function startDockerBroker(options: BrokerOptions): Promise<ProvidedBroker> {
  const start = performance.now()
  const version = options.version ?? defaultKafkaVersion()
  options.onProgress?.(
    `starting ${options.nodes === 1 ? 'a Kafka broker' : `${options.nodes} Kafka brokers`} (${IMAGE}:${version}, Docker; the image is pulled at the first use)`,
  )
  const runtime = await getContainerRuntimeClient()
  const host = runtime.info.containerRuntime.host
  const plans = await planNodes(host, options)
  const network = await new Network().start()
  const containers: StartedTestContainer[] = []
  let stopped: Promise<void> | undefined
  const stop = (): Promise<void> => (stopped ??= removeAll(containers, network))
  const running = new Set<NodePlan>()
  const paused = new Set<NodePlan>()
  const asked = (): readonly ExpectedMember[] => [...running].filter((plan) => !paused.has(plan)).map(memberOf)
  try {
    const started = await Promise.allSettled(
      plans.map((plan) =>
        new GenericContainer(`${IMAGE}:${version}`)
          .withNetwork(network)
          .withNetworkAliases(aliasOf(plan.id))
          .withExposedPorts(...plan.ports)
          .withEnvironment(environmentOf(plan, options))
          .withWaitStrategy(Wait.forLogMessage(/Kafka Server started/))
          .withStartupTimeout(READY_DEADLINE_MS)
          .start(),
      ),
    )
    for (const result of started) if (result.status === 'fulfilled') containers.push(result.value)
    const failed = started.find((result) => result.status === 'rejected')
    if (failed !== undefined)
      throw new Error(`the Kafka container could not be started: ${String(failed.reason)}`, { cause: failed.reason })
    for (const plan of plans) running.add(plan)
    await awaitCluster(asked, READY_DEADLINE_MS, () => undefined)
  } catch (error) {
    await stop()
    throw error
  }
  const nodes = plans.map((plan, index): BrokerNode => {
    const handle = runtime.container.getById(containers[index]?.getId() ?? '')
    return {
      id: plan.id,
      pid: undefined,
      kill: async (signal) => {
        if (signal === 'SIGSTOP') paused.add(plan)
        if (signal === 'SIGCONT') paused.delete(plan)
        await handle.kill({ signal })
        if (signal !== 'SIGKILL' && signal !== 'SIGTERM' && signal !== 'SIGINT') return
        await handle.wait()
        running.delete(plan)
      },
      start: async () => {
        paused.delete(plan)
        await handle.start()
        running.add(plan)
        await awaitCluster(asked, READY_DEADLINE_MS, () => undefined)
        await awaitReplicas(memberOf(plan), READY_DEADLINE_MS, () => undefined)
      },
    }
  })
  const brokers = plans.map(({ advertised }) => advertised).join(',')
  const startUpMs = Math.round(performance.now() - start)
  options.onProgress?.(`Kafka ${version} answers at ${brokers} after ${(startUpMs / 1000).toFixed(1)} s`)
  const first = containers[0]
  const java: JavaTools | undefined =
    first === undefined ? undefined : { via: 'container', containerId: first.getId(), version, bootstrap: `${aliasOf(1)}:${INTERNAL_PORT}` }
  const directBrokers = plans.map(({ direct }) => direct).join(',')
  return { kind: 'docker', brokers, directBrokers, version, startUpMs, nodes, java, stop, [Symbol.asyncDispose]: stop }
}

interface NodePlan {
  readonly id: number
  /** What clients are told. */
  readonly advertised: string
  /** Where clients of ours reach it past what is between; the same as `advertised` where nothing is. */
  readonly direct: string
  readonly ports: { readonly container: number; readonly host: number }[]
}

async function planNodes(host: string, { nodes, advertise }: BrokerOptions): Promise<NodePlan[]> {
  const free = await freePorts(nodes * 2)
  const plans: NodePlan[] = []
  for (let id = 1; id <= nodes; id++) {
    const client = { container: CLIENT_PORT, host: free.pop() ?? 0 }
    const address = `${host}:${client.host}`
    if (advertise === undefined) {
      plans.push({ id, advertised: address, direct: address, ports: [client] })
    } else {
      const direct = { container: DIRECT_PORT, host: free.pop() ?? 0 }
      plans.push({ id, advertised: await advertise({ id, address }), direct: `${host}:${direct.host}`, ports: [client, direct] })
    }
  }
  return plans
}

function memberOf({ id, direct }: NodePlan): ExpectedMember {
  return { id, address: direct }
}

function aliasOf(id: number): string {
  return `broker-${id}`
}

function environmentOf({ id, advertised, direct, ports }: NodePlan, options: BrokerOptions): Record<string, string> {
  const heap = options.heapMiB ?? (options.nodes === 1 ? 512 : 384)
  const isBetween = ports.length > 1
  const properties: Record<string, string> = {
    'node.id': String(id),
    'process.roles': 'broker,controller',
    'controller.quorum.voters': Array.from(
      { length: options.nodes },
      (_unused, node) => `${node + 1}@${aliasOf(node + 1)}:${CONTROLLER_PORT}`,
    ).join(','),
    listeners: `CLIENT://0.0.0.0:${CLIENT_PORT},${isBetween ? `DIRECT://0.0.0.0:${DIRECT_PORT},` : ''}INTERNAL://0.0.0.0:${INTERNAL_PORT},CONTROLLER://0.0.0.0:${CONTROLLER_PORT}`,
    'advertised.listeners': `CLIENT://${advertised},${isBetween ? `DIRECT://${direct},` : ''}INTERNAL://${aliasOf(id)}:${INTERNAL_PORT}`,
    'listener.security.protocol.map': 'CLIENT:PLAINTEXT,DIRECT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT',
    'controller.listener.names': 'CONTROLLER',
    'inter.broker.listener.name': 'INTERNAL',
    ...clusterProperties(options),
  }
  const environment: Record<string, string> = { CLUSTER_ID, KAFKA_HEAP_OPTS: `-Xmx${heap}m -Xms${Math.min(heap, 256)}m` }
  for (const [name, value] of Object.entries(properties)) environment[imageVariable(name)] = value
  return environment
}

/** The image turns KAFKA_A_B into `a.b`; a dash is written as three underscores, an underscore as two. */
export function imageVariable(property: string): string {
  return `KAFKA_${property.replaceAll('_', '__').replaceAll('-', '___').replaceAll('.', '_').toUpperCase()}`
}

async function removeAll(containers: readonly StartedTestContainer[], network: StartedNetwork): Promise<void> {
  // Their data is thrown away: no need to wait for an orderly end. A stopped (paused) broker would never take one.
  const results = await Promise.allSettled(containers.map((container) => container.stop({ timeout: 1, remove: true, removeVolumes: true })))
  await network.stop()
  const failed = results.find((result) => result.status === 'rejected')
  if (failed !== undefined) throw new Error(`a Kafka container could not be removed: ${String(failed.reason)}`, { cause: failed.reason })
}
