/** What `order-dedupe` promises, on the test driver: no broker is needed. */
import { expect, test } from 'vitest'
import { bytes, topic } from 'millrace'
import { crashAfter, crashEverywhere, createTestDriver, loseReply, type TestInput } from 'millrace/testing'
import orderDedupe, { orders, uniqueOrders, type OrderEvent } from './order-dedupe.ts'

const event = (orderId: string, type: OrderEvent['type'] = 'created'): OrderEvent => ({ orderId, type, userId: 'ann', amount: 12.5 })
const keyed = (value: OrderEvent): TestInput<string, OrderEvent> => ({ key: value.orderId, value })

test('an event that is sent again passes once; other events of its order pass', async () => {
  await using driver = await createTestDriver(orderDedupe, { partitions: 2 })

  await driver.pipe(orders, keyed(event('o1')), keyed(event('o1')), keyed(event('o1', 'paid')))

  expect(driver.pairs(uniqueOrders)).toEqual([
    ['o1', event('o1')],
    ['o1', event('o1', 'paid')],
  ])
  expect(driver.metrics).toMatchObject({ records: 3, outputs: 2, duplicates: 1 })
})

test('after 24 hours of event time it is a new one', async () => {
  await using driver = await createTestDriver(orderDedupe)

  await driver.pipe(orders, { ...keyed(event('o1')), at: 0 }, { ...keyed(event('o1')), at: '23h' }, { ...keyed(event('o1')), at: '24h' })

  expect(driver.records(uniqueOrders).map(({ timestamp }) => timestamp)).toEqual([0, 24 * 3_600_000])
})

test('what is no order event becomes a dead letter, and the next record goes on', async () => {
  await using driver = await createTestDriver(orderDedupe)

  await driver.pipe(topic(orders.name, { key: orders.key, value: bytes() }), { key: 'o1', value: Buffer.from('no JSON') })
  await driver.pipe(orders, keyed(event('o2')))

  expect(driver.values(uniqueOrders)).toEqual([event('o2')])
  expect(driver.deadLetters()).toEqual([
    { topic: 'order-events', partition: 0, offset: 0, error: expect.stringContaining('json'), value: Buffer.from('no JSON') },
  ])
})

test('a crash between offsets and commit, and a commit whose answer is lost, change nothing', async () => {
  await using driver = await createTestDriver(orderDedupe, { workers: 2, partitions: 4 })
  await driver.fault(crashAfter('sendOffsets'))
  await driver.fault(loseReply('commit'))

  await driver.pipe(orders, keyed(event('o1')), keyed(event('o2')), keyed(event('o1')))

  expect(driver.latest(uniqueOrders)).toEqual(
    new Map([
      ['o1', event('o1')],
      ['o2', event('o2')],
    ]),
  )
  expect(await driver.differencesFromUndisturbedRun()).toEqual([])
})

test('a crash at any step changes nothing', async () => {
  const report = await crashEverywhere(orderDedupe, (driver) => driver.pipe(orders, keyed(event('o1')), keyed(event('o1'))))

  expect(report.violations).toEqual([])
  expect(report.schedules).toBeGreaterThan(20)
})
