/** Lets each order event through once, however often the producer sends it again. The demo runs this one. */
import { deadLetters, json, string, topic, topology } from 'millrace'
import { z } from 'zod'

const OrderEventSchema = z.object({
  orderId: z.string(),
  type: z.enum(['created', 'paid', 'shipped']),
  userId: z.string(),
  amount: z.number(),
  note: z.string().optional(),
})
export interface OrderEvent extends z.infer<typeof OrderEventSchema> {}

/** Keyed by order id, so the events of one order, and their resends, share a partition. */
export const orders = topic('order-events', { key: string(), value: json<OrderEvent>(OrderEventSchema) })
export const uniqueOrders = topic('order-events.unique', { key: string(), value: json<OrderEvent>(OrderEventSchema) })
export const failed = deadLetters('order-events.failed')

export default topology('order-dedupe', { onError: { to: failed } }, ({ stream }) => {
  stream(orders)
    .dedupe({ by: (order) => [order.orderId, order.type], window: '24h', partitioned: 'by-key' })
    .to(uniqueOrders)
})
