/** What `clean-orders` promises, on the test driver: no broker is needed. */
import { expect, test } from 'vitest'
import { crashAfter, createTestDriver, type TestInput } from 'millrace/testing'
import cleanOrders, { payments } from './clean-orders.ts'
import { orders, type OrderEvent } from './order-dedupe.ts'

const order = (orderId: string, type: OrderEvent['type'], amount: number): TestInput<string, OrderEvent> => ({
  key: orderId,
  value: { orderId, type, userId: 'ann', amount },
})

test('paid orders become payments of their users, in cents', async () => {
  await using driver = await createTestDriver(cleanOrders)

  await driver.pipe(orders, order('o1', 'created', 12.5), order('o1', 'paid', 12.5), order('o2', 'paid', 0))

  expect(driver.pairs(payments)).toEqual([['ann', { orderId: 'o1', cents: 1250 }]])
})

test('an order whose cents are no whole number that JSON can carry is skipped and counted', async () => {
  await using driver = await createTestDriver(cleanOrders)

  await driver.pipe(orders, order('o1', 'paid', 1e300), order('o2', 'paid', 3))

  expect(driver.values(payments)).toEqual([{ orderId: 'o2', cents: 300 }])
  expect(driver.metrics).toMatchObject({ skipped: 1 })
})

test('a crash in the middle of a transaction changes nothing', async () => {
  await using driver = await createTestDriver(cleanOrders, { partitions: 3, workers: 2 })
  await driver.fault(crashAfter('produce', { occurrence: 3 }))

  await driver.pipe(orders, ...Array.from({ length: 10 }, (_, index) => order(`o${index}`, 'paid', index + 1)))

  expect(driver.values(payments)).toHaveLength(10)
  expect(await driver.differencesFromUndisturbedRun()).toEqual([])
})
