/** Without state: keeps the paid orders, drops what only the shop needs and keys them by user. */
import { json, string, topic, topology } from 'millrace'
import { z } from 'zod'
import { orders } from './order-dedupe.ts'

const PaymentSchema = z.object({ orderId: z.string(), cents: z.int().nonnegative() })
export interface Payment extends z.infer<typeof PaymentSchema> {}

export const payments = topic('payments', { key: string(), value: json<Payment>(PaymentSchema) })

export default topology('clean-orders', { onError: 'skip' }, ({ stream }) => {
  stream(orders)
    .filter((order) => order.type === 'paid' && order.amount > 0, { name: 'paid' })
    .map((order) => ({ key: order.userId, value: { orderId: order.orderId, cents: Math.round(order.amount * 100) } }), { name: 'by-user' })
    .to(payments)
})
