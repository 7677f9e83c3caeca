/**
 * The broker contract on the simulated brokers, on virtual time: as everything goes the ordinary way, and with batches, markers and answers that are late
 * (what a real broker does too; what gets lost is no part of the contract).
 */
import { SeededChoices, ScriptedChoices, type Choices } from '../../src/testing/sim/choices.ts'
import { SimBroker } from '../../src/testing/sim/client/broker.ts'
import { SimCluster } from '../../src/testing/sim/cluster/cluster.ts'
import type { JoinReply } from '../../src/testing/sim/cluster/groups.ts'
import { SimProcess, type World } from '../../src/testing/sim/process.ts'
import { promisesRun, VirtualTime } from '../../src/testing/sim/virtual-time.ts'
import type { BrokerWorld, ContractCluster, ContractProcess, ContractRecord, HeldJoins, StrikableProcess } from './broker-world.ts'
import { brokerContract } from './broker-suite.ts'

const START = 1_750_000_000_000
const METADATA_REFRESH_MS = 1_000
const UNTIL_LIMIT_MS = 300_000
const ASK_EVERY_MS = 10

class SimWorld implements BrokerWorld {
  readonly #time = new VirtualTime()
  readonly #cluster: SimCluster
  readonly #world: World
  #isOver = false

  constructor(choices: Choices) {
    const wallClock = (): number => START + this.#time.now
    this.#cluster = new SimCluster({ time: this.#time, choices, wallClock })
    this.#world = { time: this.#time, choices, wallClock, passes: () => undefined }
  }

  start(): void {
    void (async () => {
      while (!this.#isOver) if (!(await this.#time.step())) await promisesRun()
    })()
  }

  process(name: string): ContractProcess {
    const process = new SimProcess(name, this.#world)
    return { name, broker: new SimBroker(process, this.#cluster, METADATA_REFRESH_MS), now: () => process.now() }
  }

  strikable(name: string): StrikableProcess {
    const process = new SimProcess(name, this.#world)
    return {
      name,
      broker: new SimBroker(process, this.#cluster, METADATA_REFRESH_MS),
      now: () => process.now(),
      kill: () => process.kill(),
      freeze: () => process.pause(),
      thaw: () => process.resume(),
      holdJoins: (groupId) => this.#holdJoins(groupId, name),
    }
  }

  #holdJoins(groupId: string, instanceId: string): HeldJoins {
    const group = this.#cluster.group(groupId)
    const join = group.join.bind(group)
    const kept: (() => void)[] = []
    let isHeld = true
    let struck = 0
    const held = (reply: JoinReply): JoinReply => {
      const later = (tell: () => void): void => void (isHeld ? kept.push(tell) : tell())
      return {
        joined: (answer) => {
          if (isHeld) struck++
          later(() => reply.joined(answer))
        },
        synced: (partitions) => later(() => reply.synced(partitions)),
        refused: (refusal) => later(() => reply.refused(refusal)),
      }
    }
    group.join = (request, reply) => join(request, request.instanceId === instanceId ? held(reply) : reply)
    return {
      get struck() {
        return struck
      },
      release: () => {
        isHeld = false
        for (const tell of kept) tell()
      },
    }
  }

  async createTopic(name: string, partitions: number, config: Readonly<Record<string, string>>): Promise<void> {
    this.#cluster.topics.create({ name, partitions, config })
  }

  async append(topic: string, partition: number, values: readonly string[]): Promise<void> {
    const records = values.map((value) => ({
      timestamp: this.#cluster.now(),
      key: Buffer.from(value),
      value: Buffer.from(value),
      headers: [],
    }))
    this.#cluster.append(topic, partition, records)
  }

  async deleteBefore(topic: string, partition: number, offset: number): Promise<void> {
    this.#cluster.topics.log(topic, partition).deleteBefore(offset)
  }

  async committedRecords(topic: string): Promise<readonly ContractRecord[]> {
    const { partitions } = this.#cluster.topics.topic(topic)
    await this.until(`no open transaction in ${topic}`, () => partitions.every((log) => log.lastStable === log.highWatermark))
    return partitions.flatMap((log, partition) =>
      log.read(0, Number.MAX_SAFE_INTEGER).records.map(({ offset, timestamp, key, value, headers }) => ({
        partition,
        offset,
        timestamp,
        key: key === null ? null : key.toString(),
        value: value === null ? null : value.toString(),
        headers: headers.map(([name, bytes]) => [name, bytes === null ? null : bytes.toString()] as const),
      })),
    )
  }

  async until(what: string, ask: () => boolean | Promise<boolean>): Promise<void> {
    const endsAt = this.#time.now + UNTIL_LIMIT_MS
    while (!(await ask())) {
      if (this.#time.now > endsAt) throw new Error(`waited ${UNTIL_LIMIT_MS} ms of virtual time for: ${what}`)
      await this.pause(ASK_EVERY_MS)
    }
  }

  pause(ms: number): Promise<void> {
    return new Promise((resolve) => this.#time.schedule(ms, resolve))
  }

  /** Nothing of it is outside of this object. */
  async end(): Promise<void> {
    this.#isOver = true
  }
}

function simCluster(choices: () => Choices): () => Promise<ContractCluster> {
  let names = 0
  return async () => ({
    unique: (name) => `${name}-${++names}`,
    world: () => new SimWorld(choices()),
    close: async () => undefined,
  })
}

const LATE = /^(delay of|late )/

brokerContract(
  'simulated brokers',
  simCluster(() => new ScriptedChoices()),
)
brokerContract(
  'simulated brokers where much is late',
  simCluster(() => new SeededChoices(1, (what) => (LATE.test(what) ? 0.3 : 0))),
)
