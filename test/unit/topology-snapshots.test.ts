/** What `millrace describe` prints for the topologies of this repository, pinned. A changed page is a changed contract with state on disk and on brokers. */
import { isTopology, type Topology } from 'millrace'
import { expect, test } from 'vitest'
import auditDedupe, * as audit from '../../topologies/audit-dedupe.ts'
import cleanOrders from '../../topologies/clean-orders.ts'
import orderDedupe, { orders } from '../../topologies/order-dedupe.ts'

test.each<[Topology]>([[orderDedupe], [cleanOrders], [auditDedupe]])('the description of $name is as committed', async (topology) => {
  expect(isTopology(topology)).toBe(true)
  await expect(topology.describe().toString()).toMatchFileSnapshot(`../snapshots/${topology.name}.describe.txt`)
})

test('order events may carry a note of any length', () => {
  const event = { orderId: 'o-1', type: 'created', userId: 'u-1', amount: 12.5 } as const
  for (const value of [event, { ...event, note: 'x'.repeat(512) }]) expect(orders.value.decode(orders.value.encode(value))).toEqual(value)
})

test('the codecs of the topologies take what they describe', () => {
  const entry = { actor: 'ann', action: 'login', at: '2026-01-02T03:04:05Z' }
  expect(audit.entries.value.decode(audit.entries.value.encode(entry))).toEqual(entry)
  const key: [string, Date] = ['ann', new Date(0)]
  expect(audit.entriesPerActor.key.decode(audit.entriesPerActor.key.encode(key))).toEqual(key)
})
