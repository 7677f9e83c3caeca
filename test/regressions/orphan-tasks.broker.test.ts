/**
 * Tasks that nobody owned: (1) B joins and the group's first round takes tasks away from A, (2) A dies before the second round, (3) A comes back in its place and
 * gets its old assignment without a rebalance. See src/runtime/group-watch.ts. A real group, built by hand for A; B is a real app.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, expect, onTestFinished, test } from 'vitest'
import { KafkaBroker } from '../../src/broker/kafka/broker.ts'
import type { GroupConsumer, RebalanceListener } from '../../src/broker/port.ts'
import { silentLogger } from '../../src/common/ports.ts'
import { orphanTasks } from '../../src/runtime/group-watch.ts'
import { tasksTopic } from '../../src/topology/internal-topics.ts'
import { dedupeTopology, scene, startApp } from '../helpers/apps.ts'
import { until } from '../helpers/condition.ts'
import { brokers, createTopic, disconnectKafka } from '../helpers/kafka.ts'

afterAll(disconnectKafka)

const atLogStart: RebalanceListener['assigned'] = (partitions) => partitions.map((partition) => ({ ...partition, offset: 0 }))

test('a member that dies between the two rounds of a rebalance and comes back leaves tasks without an owner; a worker finds them and gives them one', async () => {
  const place = await scene('orphans', 4)
  const topic = await createTopic(tasksTopic(place.application), 4, { 'cleanup.policy': 'compact' })
  const broker = new KafkaBroker({
    brokers: brokers.split(','),
    clientId: place.application,
    connectTimeoutMs: 10_000,
    metadataRefreshMs: 30_000,
    logger: silentLogger,
    client: {},
  })
  onTestFinished(() => broker.close())

  /** A member of the group that polls until it is told to stop or the group turns it out. */
  async function member(listener: RebalanceListener): Promise<{ consumer: GroupConsumer; stop(): Promise<void> }> {
    const consumer = await broker.connectConsumer({
      groupId: place.application,
      groupInstanceId: `${place.application}-other-0`,
      sessionTimeoutMs: 30_000,
      heartbeatIntervalMs: 500,
      maxPollIntervalMs: 60_000,
      checkChecksums: true,
    })
    consumer.subscribe(topic, listener)
    let isStopped = false
    const polling = (async () => {
      while (!isStopped) {
        try {
          await consumer.poll(1, 50)
        } catch {
          await delay(50)
        }
      }
    })()
    const stop = async (): Promise<void> => {
      isStopped = true
      await polling
    }
    return { consumer, stop }
  }

  let answer = (): void => {}
  let isAsked = false
  const a = await member({
    assigned: atLogStart,
    revoked: (partitions) => {
      isAsked = true
      return new Promise((resolve) => {
        answer = () => {
          resolve(partitions)
        }
      })
    },
  })
  onTestFinished(async () => {
    answer()
    await a.stop()
    await a.consumer.close()
  })
  await until('A owns all tasks', () => a.consumer.assignments().length === 4)

  // Late looks, so that the orphans are seen before they are healed.
  const b = await startApp(dedupeTopology(place), {
    stateDir: place.stateDir,
    instance: 'b',
    metadataPoll: '1s',
    sessionTimeout: '30s',
    maxPollInterval: '60s',
  })
  await until('A is asked to give tasks up', () => isAsked)
  await a.stop()

  const a2 = await member({ assigned: atLogStart, revoked: (partitions) => Promise.resolve(partitions) })
  onTestFinished(async () => {
    await a2.stop()
    await a2.consumer.close()
  })
  let orphans: readonly number[] = []
  await until('a stable group with tasks that nobody owns', async () => {
    const group = await broker.admin.describeGroup(place.application)
    if (group.stable && group.members.length === 2) orphans = orphanTasks(group, topic, 4)
    return orphans.length > 0
  })
  expect(orphans).toHaveLength(2)

  await until('every task has an owner', async () => {
    const group = await broker.admin.describeGroup(place.application)
    return group.stable && orphanTasks(group, topic, 4).length === 0
  })
  await until('the worker runs what it got', () => b.app.state === 'running' && b.app.status().tasks === 2)
  expect(b.log.map(({ message }) => message)).toContainEqual(expect.stringContaining('2 tasks have no owner'))
})
