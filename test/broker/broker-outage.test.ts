/** A broker of its own that is killed and comes back, and whose limits are narrower than ours (CASES B21, A15). */
import { Kafka, logLevel, type Admin } from 'kafkajs'
import { afterAll, beforeAll, describe, expect, inject, onTestFinished, test } from 'vitest'
import { startJvmBroker } from '../../scripts/broker-provider/jvm-broker.ts'
import type { ProvidedBroker } from '../../scripts/broker-provider/provider.ts'
import { appOf, dedupeTopology, events, idOf, startApp, temporaryFolder, type Scene } from '../helpers/apps.ts'
import { until } from '../helpers/condition.ts'
import { notOnce, readAll, unique } from '../helpers/kafka.ts'

const names = (prefix: string, count: number): string[] => Array.from({ length: count }, (_, index) => `${prefix}${index}`)

describe.skipIf(inject('javaTools')?.via !== 'classpath')('a broker of its own', () => {
  let broker: ProvidedBroker
  let kafka: Kafka
  let admin: Admin
  beforeAll(async () => {
    broker = await startJvmBroker({ nodes: 1, heapMiB: 256, serverProperties: { 'transaction.max.timeout.ms': '60000' } })
    kafka = new Kafka({
      brokers: [broker.brokers],
      logLevel: logLevel.NOTHING,
      retry: { retries: 20, initialRetryTime: 100, maxRetryTime: 1_000 },
    })
    admin = kafka.admin()
    await admin.connect()
  })
  afterAll(async () => {
    await admin.disconnect()
    await broker.stop()
  })

  async function ownScene(name: string): Promise<Scene> {
    const application = unique(name)
    const place = { application, input: `${application}.in`, output: `${application}.out`, stateDir: temporaryFolder() }
    await admin.createTopics({ waitForLeaders: true, topics: [place.input, place.output].map((topic) => ({ topic, numPartitions: 1 })) })
    return place
  }

  test('B21: a transaction time-out above its maximum is refused at start as an option, both values named', async () => {
    const place = await ownScene('above')
    const { app } = appOf(dedupeTopology(place), {
      brokers: broker.brokers,
      stateDir: place.stateDir,
      transactionTimeout: '5m',
      sessionTimeout: '10m',
      maxPollInterval: '10m',
    })
    const refused = (await app.start().catch((error: unknown) => error)) as Error
    expect(refused.name).toBe('ConfigError')
    expect(refused.message).toMatch(/300000|5 ?m/)
    expect(refused.message).toMatch(/60000|60 ?s|1 ?m/)
  })

  test(
    'A15: killed and started again under a running worker: it goes on, nothing lost, nothing doubled',
    { timeout: 150_000 },
    async () => {
      const place = await ownScene('outage')
      const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
      await producer.connect()
      onTestFinished(() => producer.disconnect())
      const send = (prefix: string, count: number) => producer.send({ topic: place.input, acks: -1, messages: events(prefix, count) })
      const { app, log } = await startApp(dedupeTopology(place), {
        brokers: broker.brokers,
        stateDir: place.stateDir,
        transactionMaxRecords: 50,
        // Longer than the outage: a member that is given up meanwhile is another story.
        sessionTimeout: '60s',
        maxPollInterval: '60s',
      })
      await send('a', 2_000)
      await until('work under way', () => app.status().records > 0)
      await broker.nodes[0]!.kill('SIGKILL')
      await broker.nodes[0]!.start()
      await send('b', 500)
      // Ids of before the outage, again.
      await send('a', 2_000)
      const done = until('all input is processed', () => app.status().records >= 4_500, 60_000)
      const ended = await Promise.race([done, app.finished]).catch((error: unknown) => String(error))
      expect(ended, log.map(({ message, details }) => `${message} ${JSON.stringify(details)}`).join('\n')).toBeUndefined()
      expect(app.state).toBe('running')
      await app.close()
      const output = await readAll(place.output, { brokers: broker.brokers, ends: new Map([[0, 2_500]]) })
      expect(
        notOnce(
          output.map(({ value }) => idOf(value)),
          [...names('a', 2_000), ...names('b', 500)],
        ),
      ).toEqual({})
    },
  )
})
