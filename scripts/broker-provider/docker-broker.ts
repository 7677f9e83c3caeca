/**
 * A KRaft cluster in containers, through testcontainers (which removes what a killed parent leaves, by its reaper container).
 *
 * Host ports are fixed before the start: a broker has to advertise the address under which clients reach it.
 */
import { getContainerRuntimeClient, GenericContainer, Network, Wait, type StartedNetwork, type StartedTestContainer } from 'testcontainers'
import { awaitCluster } from './cluster-check.ts'
import { freePorts } from './jvm-broker.ts'
import { clusterProperties } from './server-properties.ts'
import { DEFAULT_KAFKA_VERSION, type BrokerNode, type BrokerOptions, type JavaTools, type ProvidedBroker } from './types.ts'

const IMAGE = 'apache/kafka'
const READY_DEADLINE_MS = 180_000
/** Listener ports inside the containers. */
const HOST_PORT = 9092
const CONTROLLER_PORT = 9093
const INTERNAL_PORT = 19092
/** Any base64 of 16 bytes: all nodes of one network share it, and networks are apart. */
const CLUSTER_ID = '5L6g3nShT-eMCtK--X86sw'

export async function startDockerBroker(options: BrokerOptions): Promise<ProvidedBroker> {
  const start = performance.now()
  const version = options.version ?? DEFAULT_KAFKA_VERSION
  options.onProgress?.(
    `starting ${options.nodes === 1 ? 'a Kafka broker' : `${options.nodes} Kafka brokers`} (${IMAGE}:${version}, Docker; the image is pulled at the first use)`,
  )
  const runtime = await getContainerRuntimeClient()
  const host = runtime.info.containerRuntime.host
  const ports = await freePorts(options.nodes)
  const network = await new Network().start()
  const containers: StartedTestContainer[] = []
  let stopped: Promise<void> | undefined
  const stop = (): Promise<void> => (stopped ??= removeAll(containers, network))
  const addresses = ports.map((port) => `${host}:${port}`)
  const running = new Set<number>()
  const awaitReady = (): Promise<void> =>
    awaitCluster(
      addresses.filter((_address, index) => running.has(index)),
      READY_DEADLINE_MS,
      () => undefined,
    )
  try {
    const started = await Promise.allSettled(
      ports.map((port, index) =>
        new GenericContainer(`${IMAGE}:${version}`)
          .withNetwork(network)
          .withNetworkAliases(aliasOf(index))
          .withExposedPorts({ container: HOST_PORT, host: port })
          .withEnvironment(environmentOf(index, `${host}:${port}`, options))
          .withWaitStrategy(Wait.forLogMessage(/Kafka Server started/))
          .withStartupTimeout(READY_DEADLINE_MS)
          .start(),
      ),
    )
    for (const result of started) if (result.status === 'fulfilled') containers.push(result.value)
    const failed = started.find((result) => result.status === 'rejected')
    if (failed !== undefined)
      throw new Error(`the Kafka container could not be started: ${String(failed.reason)}`, { cause: failed.reason })
    for (const index of ports.keys()) running.add(index)
    await awaitReady()
  } catch (error) {
    await stop()
    throw error
  }
  const nodes = containers.map((container, index): BrokerNode => {
    const handle = runtime.container.getById(container.getId())
    return {
      id: index + 1,
      pid: undefined,
      kill: async (signal) => {
        await handle.kill({ signal })
        if (signal !== 'SIGKILL' && signal !== 'SIGTERM' && signal !== 'SIGINT') return
        await handle.wait()
        running.delete(index)
      },
      start: async () => {
        await handle.start()
        running.add(index)
        await awaitReady()
      },
    }
  })
  const startUpMs = Math.round(performance.now() - start)
  options.onProgress?.(`Kafka ${version} answers at ${addresses.join(',')} after ${(startUpMs / 1000).toFixed(1)} s`)
  const first = containers[0]
  const java: JavaTools | undefined =
    first === undefined ? undefined : { via: 'container', containerId: first.getId(), version, bootstrap: `${aliasOf(0)}:${INTERNAL_PORT}` }
  return { kind: 'docker', brokers: addresses.join(','), version, startUpMs, nodes, java, stop, [Symbol.asyncDispose]: stop }
}

function aliasOf(index: number): string {
  return `broker-${index + 1}`
}

function environmentOf(index: number, advertised: string, options: BrokerOptions): Record<string, string> {
  const heap = options.heapMiB ?? (options.nodes === 1 ? 512 : 384)
  const properties: Record<string, string> = {
    'node.id': String(index + 1),
    'process.roles': 'broker,controller',
    'controller.quorum.voters': Array.from(
      { length: options.nodes },
      (_unused, node) => `${node + 1}@${aliasOf(node)}:${CONTROLLER_PORT}`,
    ).join(','),
    listeners: `HOST://0.0.0.0:${HOST_PORT},INTERNAL://0.0.0.0:${INTERNAL_PORT},CONTROLLER://0.0.0.0:${CONTROLLER_PORT}`,
    'advertised.listeners': `HOST://${advertised},INTERNAL://${aliasOf(index)}:${INTERNAL_PORT}`,
    'listener.security.protocol.map': 'HOST:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT',
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
