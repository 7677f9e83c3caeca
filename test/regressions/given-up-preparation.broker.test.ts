/**
 * A preparation that waits and is given up. (1) A dead peer's transaction holds committed offsets of the group, so A's task waits for them, its state file
 * locked, (2) B joins and gets the task, A's part of it is over, (3) B cannot open the state, for A still waits with the lock in its hand.
 */
import { afterAll, expect, onTestFinished, test } from 'vitest'
import { appOf, dedupeTopology, events, idOf, processed, scene } from '../helpers/apps.ts'
import { until } from '../helpers/condition.ts'
import { disconnectKafka, kafka, notOnce, readAll, send, unique } from '../helpers/kafka.ts'

afterAll(disconnectKafka)

test('a task that moves while it waits for its committed offsets leaves no lock behind: its new owner opens the same state', async () => {
  const place = await scene('waiting', 2)
  await send(place.input, events('a', 100))
  const peer = kafka.producer({ transactionalId: unique('peer'), idempotent: true, maxInFlightRequests: 1, transactionTimeout: 60_000 })
  await peer.connect()
  onTestFinished(() => peer.disconnect())
  const transaction = await peer.transaction()
  await transaction.sendOffsets({
    consumerGroupId: place.application,
    topics: [{ topic: place.input, partitions: [0, 1].map((partition) => ({ partition, offset: '0' })) }],
  })

  const worker = (slot: number) => appOf(dedupeTopology(place), { stateDir: place.stateDir, slot, lockTimeout: '1s' })
  const [a, b] = [worker(0), worker(1)]
  const startingA = a.app.start()
  await until('A waits with both tasks', () => a.app.status().tasks === 2)
  const startingB = b.app.start()
  await until('one moved to B', () => a.app.status().tasks === 1 && b.app.status().tasks === 1)
  expect(a.app.state).toBe('restoring')
  await transaction.abort()
  await Promise.all([startingA, startingB])

  await processed(place)
  const ids = (await readAll(place.output)).map(({ value }) => idOf(value))
  expect(
    notOnce(
      ids,
      events('a', 100).map(({ key }) => key),
    ),
  ).toEqual({})
  expect([...a.log, ...b.log].filter(({ message }) => /in use|lock/.test(message))).toEqual([])
})
