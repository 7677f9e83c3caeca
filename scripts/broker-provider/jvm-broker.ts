/**
 * A KRaft cluster of JVMs on this machine, started from the Maven jars.
 *
 * Listeners of a node: CLIENT, CONTROLLER, and with `advertise` DIRECT as well. CLIENT is then advertised at what the caller put in front of it; DIRECT is
 * advertised as it is bound, and the brokers among themselves, our checks and the Java tools use it.
 *
 * Owns: a data folder under the system's temporary folder, one combined broker and controller per node, on ports that were free.
 * Nothing outlives this process: see keeper.mjs.
 */
import { randomBytes } from 'node:crypto'
import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { awaitCluster, awaitReplicas, type ExpectedMember } from './cluster-check.ts'
import { provideDistribution, type Distribution } from './distribution.ts'
import { Keeper, type ProcessOrder } from './keeper-client.ts'
import { clusterProperties, propertiesText } from './server-properties.ts'
import { defaultKafkaVersion, type BrokerNode, type BrokerOptions, type ProvidedBroker } from './types.ts'

const READY_DEADLINE_MS = 120_000
const PORT_ATTEMPTS = 3

interface NodePlan {
  readonly id: number
  /** `host:port` at which the listener for clients is bound. */
  readonly client: string
  /** What clients are told. */
  readonly advertised: string
  /** The same as `client` where nothing is between. */
  readonly direct: string
  readonly controller: string
}

export async function startJvmBroker(options: BrokerOptions): Promise<ProvidedBroker> {
  const distribution = await provideDistribution(options.version ?? defaultKafkaVersion(), options.onProgress)
  for (let attempt = 1; ; attempt++) {
    const cluster = new JvmCluster(distribution, options, await planNodes(options))
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
  readonly directBrokers: string
  readonly nodes: readonly BrokerNode[]
  readonly java: NonNullable<ProvidedBroker['java']>
  startUpMs = 0
  readonly #distribution: Distribution
  readonly #options: BrokerOptions
  readonly #plans: readonly NodePlan[]
  readonly #folder: string
  readonly #keeper = new Keeper()
  /** Nodes that were stopped by SIGSTOP: they run and do not answer. */
  readonly #paused = new Set<NodePlan>()
  #stopped: Promise<void> | undefined

  constructor(distribution: Distribution, options: BrokerOptions, plans: readonly NodePlan[]) {
    this.#distribution = distribution
    this.#options = options
    this.#plans = plans
    this.#folder = mkdtempSync(join(tmpdir(), 'millrace-broker-'))
    this.#keeper.own(this.#folder)
    this.version = distribution.version
    this.brokers = plans.map(({ advertised }) => advertised).join(',')
    this.directBrokers = plans.map(({ direct }) => direct).join(',')
    this.java = {
      via: 'classpath',
      java: distribution.java,
      classpath: distribution.classpath,
      version: distribution.version,
      bootstrap: this.directBrokers,
    }
    this.nodes = plans.map((plan) => this.#node(plan))
  }

  async start(): Promise<void> {
    const start = performance.now()
    this.#options.onProgress?.(
      `starting ${this.#plans.length === 1 ? 'a Kafka broker' : `${this.#plans.length} Kafka brokers`} (${this.version}, JVM)`,
    )
    const clusterId = randomClusterId()
    for (const plan of this.#plans) this.#writeConfiguration(plan)
    await Promise.all(this.#plans.map((plan) => this.#format(plan, clusterId)))
    for (const plan of this.#plans) this.#keeper.start(nodeName(plan), this.#brokerOrder(plan))
    await awaitCluster(
      () => this.#plans.map(memberOf),
      READY_DEADLINE_MS,
      () => this.#plans.map((plan) => this.#endOf(plan)).find((reason) => reason !== undefined),
    )
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
        if (signal === 'SIGSTOP') this.#paused.add(plan)
        if (signal === 'SIGCONT') this.#paused.delete(plan)
        keeper.kill(name, signal)
        if (signal === 'SIGKILL' || signal === 'SIGTERM' || signal === 'SIGINT') await keeper.exit(name)
      },
      start: async () => {
        this.#paused.delete(plan)
        keeper.start(name, this.#brokerOrder(plan))
        await this.#awaitReturn(plan)
      },
    }
  }

  /** Of the other nodes, those that run: one that was killed or stopped on purpose is not waited for. */
  async #awaitReturn(plan: NodePlan): Promise<void> {
    const hasFailed = (): string | undefined => this.#endOf(plan)
    const asked = (): readonly ExpectedMember[] =>
      this.#plans.filter((each) => each === plan || (this.#keeper.isRunning(nodeName(each)) && !this.#paused.has(each))).map(memberOf)
    await awaitCluster(asked, READY_DEADLINE_MS, hasFailed)
    await awaitReplicas(memberOf(plan), READY_DEADLINE_MS, hasFailed)
  }

  /** Why it ended; undefined while it runs. */
  #endOf(plan: NodePlan): string | undefined {
    const reason = this.#keeper.ended(nodeName(plan))
    return reason === undefined ? undefined : `broker ${plan.id} ended (${reason})`
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
        // One argument: an id may begin with a dash.
        `--cluster-id=${clusterId}`,
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
        'controller.quorum.voters': this.#plans.map(({ id, controller }) => `${id}@${controller}`).join(','),
        ...listenersOf(plan),
        'controller.listener.names': 'CONTROLLER',
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

/** 16 bytes as Kafka writes them; none that starts with a dash, which the storage tool takes for an option. */
function randomClusterId(): string {
  for (;;) {
    const id = randomBytes(16).toString('base64url')
    if (!id.startsWith('-')) return id
  }
}

function nodeName(plan: NodePlan): string {
  return `broker-${plan.id}`
}

function memberOf({ id, direct }: NodePlan): ExpectedMember {
  return { id, address: direct }
}

function listenersOf({ client, advertised, direct, controller }: NodePlan): Record<string, string> {
  const isBetween = direct !== client
  return {
    listeners: `CLIENT://${client},${isBetween ? `DIRECT://${direct},` : ''}CONTROLLER://${controller}`,
    'advertised.listeners': `CLIENT://${advertised}${isBetween ? `,DIRECT://${direct}` : ''}`,
    'listener.security.protocol.map': 'CLIENT:PLAINTEXT,DIRECT:PLAINTEXT,CONTROLLER:PLAINTEXT',
    'inter.broker.listener.name': isBetween ? 'DIRECT' : 'CLIENT',
  }
}

async function planNodes({ nodes, advertise }: BrokerOptions): Promise<NodePlan[]> {
  const ports = await freePorts(nodes * 3)
  const next = (): string => `127.0.0.1:${ports.pop() ?? 0}`
  const plans: NodePlan[] = []
  for (let id = 1; id <= nodes; id++) {
    const client = next()
    const advertised = await advertise?.({ id, address: client })
    plans.push({ id, client, advertised: advertised ?? client, direct: advertise === undefined ? client : next(), controller: next() })
  }
  return plans
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
