/**
 * A KRaft cluster of JVMs on this machine, started from the Maven jars.
 *
 * Owns: a data folder under the system's temporary folder, one combined broker and controller per node, on ports that were free.
 * Nothing outlives this process: see keeper.mjs.
 */
import { randomBytes } from 'node:crypto'
import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { awaitCluster } from './cluster-check.ts'
import { provideDistribution, type Distribution } from './distribution.ts'
import { Keeper, type ProcessOrder } from './keeper-client.ts'
import { clusterProperties, propertiesText } from './server-properties.ts'
import { DEFAULT_KAFKA_VERSION, type BrokerNode, type BrokerOptions, type ProvidedBroker } from './types.ts'

const READY_DEADLINE_MS = 120_000
const PORT_ATTEMPTS = 3

interface NodePlan {
  readonly id: number
  readonly brokerPort: number
  readonly controllerPort: number
}

export async function startJvmBroker(options: BrokerOptions): Promise<ProvidedBroker> {
  const distribution = await provideDistribution(options.version ?? DEFAULT_KAFKA_VERSION, options.onProgress)
  for (let attempt = 1; ; attempt++) {
    const cluster = new JvmCluster(distribution, options, await planNodes(options.nodes))
    try {
      await cluster.start()
      return cluster
    } catch (error) {
      const log = cluster.logTail()
      await cluster.stop()
      // Another program took a port between our look and the broker's bind.
      if (attempt < PORT_ATTEMPTS && /Address already in use|BindException/.test(log)) continue
      throw new Error(
        `the Kafka broker could not be started: ${error instanceof Error ? error.message : String(error)}${log === '' ? '' : `\nEnd of its log:\n${log}`}`,
        {
          cause: error,
        },
      )
    }
  }
}

class JvmCluster implements ProvidedBroker {
  readonly kind = 'jvm'
  readonly version: string
  readonly brokers: string
  readonly nodes: readonly BrokerNode[]
  readonly java: NonNullable<ProvidedBroker['java']>
  startUpMs = 0
  readonly #distribution: Distribution
  readonly #options: BrokerOptions
  readonly #plans: readonly NodePlan[]
  readonly #folder: string
  readonly #keeper = new Keeper()
  #stopped: Promise<void> | undefined

  constructor(distribution: Distribution, options: BrokerOptions, plans: readonly NodePlan[]) {
    this.#distribution = distribution
    this.#options = options
    this.#plans = plans
    this.#folder = mkdtempSync(join(tmpdir(), 'millrace-broker-'))
    this.#keeper.own(this.#folder)
    this.version = distribution.version
    this.brokers = plans.map(addressOf).join(',')
    this.java = {
      via: 'classpath',
      java: distribution.java,
      classpath: distribution.classpath,
      version: distribution.version,
      bootstrap: this.brokers,
    }
    this.nodes = plans.map((plan) => this.#node(plan))
  }

  async start(): Promise<void> {
    const start = performance.now()
    this.#options.onProgress?.(
      `starting ${this.#plans.length === 1 ? 'a Kafka broker' : `${this.#plans.length} Kafka brokers`} (${this.version}, JVM)`,
    )
    const clusterId = randomBytes(16).toString('base64url')
    for (const plan of this.#plans) this.#writeConfiguration(plan)
    await Promise.all(this.#plans.map((plan) => this.#format(plan, clusterId)))
    for (const plan of this.#plans) this.#keeper.start(nodeName(plan), this.#brokerOrder(plan))
    await this.#awaitReady()
    this.startUpMs = Math.round(performance.now() - start)
    this.#options.onProgress?.(`Kafka ${this.version} answers at ${this.brokers} after ${(this.startUpMs / 1000).toFixed(1)} s`)
  }

  stop(): Promise<void> {
    return (this.#stopped ??= this.#keeper.close())
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop()
  }

  /** The last lines that the nodes wrote, for a failure report. */
  logTail(): string {
    return this.#plans
      .map((plan) => {
        try {
          return readFileSync(this.#logOf(plan), 'utf8').split('\n').slice(-25).join('\n').trim()
        } catch {
          return ''
        }
      })
      .filter((text) => text !== '')
      .join('\n')
  }

  #node(plan: NodePlan): BrokerNode {
    const keeper = this.#keeper
    const name = nodeName(plan)
    return {
      id: plan.id,
      get pid() {
        return keeper.pid(name)
      },
      kill: async (signal) => {
        if (!keeper.isRunning(name)) throw new Error(`broker ${plan.id} is not running`)
        keeper.kill(name, signal)
        if (signal === 'SIGKILL' || signal === 'SIGTERM' || signal === 'SIGINT') await keeper.exit(name)
      },
      start: async () => {
        keeper.start(name, this.#brokerOrder(plan))
        await this.#awaitReady()
      },
    }
  }

  /** Waits for the nodes that run: one that was killed on purpose is not waited for. */
  async #awaitReady(): Promise<void> {
    const running = this.#plans.filter((plan) => this.#keeper.isRunning(nodeName(plan)))
    await awaitCluster(running.map(addressOf), READY_DEADLINE_MS, () => {
      for (const plan of running) {
        const reason = this.#keeper.ended(nodeName(plan))
        if (reason !== undefined) return `broker ${plan.id} ended (${reason})`
      }
      return undefined
    })
  }

  async #format(plan: NodePlan, clusterId: string): Promise<void> {
    const name = `format-${plan.id}`
    this.#keeper.start(name, {
      command: this.#distribution.java,
      args: [
        '-Xmx128m',
        '-XX:TieredStopAtLevel=1',
        '-XX:+UseSerialGC',
        ...LOGGING,
        '-cp',
        this.#distribution.classpath,
        'kafka.tools.StorageTool',
        'format',
        '--config',
        this.#configurationOf(plan),
        '--cluster-id',
        clusterId,
      ],
      log: this.#logOf(plan),
    })
    const reason = await this.#keeper.exit(name)
    if (reason !== 'exit code 0') throw new Error(`the storage of broker ${plan.id} could not be formatted (${reason})`)
  }

  #brokerOrder(plan: NodePlan): ProcessOrder {
    const heap = this.#options.heapMiB ?? (this.#plans.length === 1 ? 512 : 384)
    return {
      command: this.#distribution.java,
      args: [
        `-Xmx${heap}m`,
        `-Xms${Math.min(heap, 256)}m`,
        '-XX:+UseG1GC',
        '-XX:MaxGCPauseMillis=20',
        '-XX:+ExitOnOutOfMemoryError',
        '-Djava.awt.headless=true',
        ...LOGGING,
        '-cp',
        this.#distribution.classpath,
        'kafka.Kafka',
        this.#configurationOf(plan),
      ],
      log: this.#logOf(plan),
    }
  }

  #writeConfiguration(plan: NodePlan): void {
    const data = join(this.#folder, `data-${plan.id}`)
    mkdirSync(data, { recursive: true })
    writeFileSync(
      this.#configurationOf(plan),
      propertiesText({
        'process.roles': 'broker,controller',
        'node.id': String(plan.id),
        'controller.quorum.voters': this.#plans.map((each) => `${each.id}@127.0.0.1:${each.controllerPort}`).join(','),
        listeners: `PLAINTEXT://${addressOf(plan)},CONTROLLER://127.0.0.1:${plan.controllerPort}`,
        'advertised.listeners': `PLAINTEXT://${addressOf(plan)}`,
        'listener.security.protocol.map': 'PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT',
        'controller.listener.names': 'CONTROLLER',
        'inter.broker.listener.name': 'PLAINTEXT',
        'log.dirs': data,
        ...clusterProperties(this.#options),
      }),
    )
  }

  #configurationOf(plan: NodePlan): string {
    return join(this.#folder, `server-${plan.id}.properties`)
  }

  #logOf(plan: NodePlan): string {
    return join(this.#folder, `broker-${plan.id}.log`)
  }
}

const LOGGING = [
  '-Dorg.slf4j.simpleLogger.defaultLogLevel=warn',
  '-Dorg.slf4j.simpleLogger.showDateTime=true',
  '-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS',
]

function nodeName(plan: NodePlan): string {
  return `broker-${plan.id}`
}

function addressOf(plan: NodePlan): string {
  return `127.0.0.1:${plan.brokerPort}`
}

async function planNodes(nodes: number): Promise<NodePlan[]> {
  const ports = await freePorts(nodes * 2)
  return Array.from({ length: nodes }, (_unused, index) => ({
    id: index + 1,
    brokerPort: ports[index * 2] ?? 0,
    controllerPort: ports[index * 2 + 1] ?? 0,
  }))
}

/** Ports that were free a moment ago, all different: they are held together before any is given back. */
export async function freePorts(count: number): Promise<number[]> {
  const servers = await Promise.all(
    Array.from({ length: count }, async () => {
      const server = createServer()
      await new Promise<void>((resolve, reject) => {
        server.once('error', reject)
        server.listen(0, '127.0.0.1', resolve)
      })
      return server
    }),
  )
  const ports = servers.map((server) => (server.address() as AddressInfo).port)
  await Promise.all(servers.map((server) => new Promise<void>((resolve) => server.close(() => resolve()))))
  return ports
}
