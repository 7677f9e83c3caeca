import { describe, expect, it } from 'vitest'
import { EVENT_BYTES, FAR_DISTANCE, OrderEventSource, RESEND_SHARE, type KeyedEvent } from '../../demo/order-events.ts'

const RECORDS = 12_000

function take(seed: number, records: number): { readonly events: readonly KeyedEvent[]; readonly source: OrderEventSource } {
  const source = new OrderEventSource(seed)
  const events = Array.from({ length: records }, () => source.next())
  return { events, source }
}

function idOf({ value }: KeyedEvent): string {
  const { orderId, type } = JSON.parse(value) as { orderId: string; type: string }
  return `${orderId}/${type}`
}

describe('the order events of the demo', () => {
  const { events, source } = take(42, RECORDS)

  it('are the same for the same seed and others for another', () => {
    expect(take(42, 2_000).events).toEqual(events.slice(0, 2_000))
    expect(take(43, 2_000).events).not.toEqual(events.slice(0, 2_000))
  })

  it('are JSON of 512 bytes that the topology accepts', async () => {
    const { orders } = await import('../../topologies/order-dedupe.ts')
    for (const { key, value } of events.slice(0, 1_000)) {
      const bytes = Buffer.from(value)
      expect(bytes.length).toBe(EVENT_BYTES)
      const decoded = orders.value.decode(bytes) as { orderId: string; note?: string }
      expect(decoded.orderId).toBe(key)
      expect(decoded.note?.length).toBeGreaterThan(300)
    }
  })

  it('have as many different ids as the generator says, counted by comparing them', () => {
    expect(new Set(events.map(idOf)).size).toBe(source.uniqueIds)
    expect(source.uniqueIds + source.resends).toBe(RECORDS)
  })

  it('contain about a tenth of resends, each with the bytes of its original', () => {
    expect(source.resends / RECORDS).toBeGreaterThan(RESEND_SHARE * 0.9)
    expect(source.resends / RECORDS).toBeLessThan(RESEND_SHARE * 1.1)
    const originals = new Map<string, string>()
    for (const event of events) {
      const original = originals.get(idOf(event))
      if (event.isResend) expect(event.value).toBe(original)
      else {
        expect(original).toBeUndefined()
        originals.set(idOf(event), event.value)
      }
    }
  })

  it('resend some at once and some thousands of records later', () => {
    const lastAt = new Map<string, number>()
    let atOnce = 0
    let far = 0
    events.forEach((event, index) => {
      const id = idOf(event)
      const before = lastAt.get(id)
      if (before !== undefined && index - before <= 5) atOnce++
      if (before !== undefined && index - before >= FAR_DISTANCE) far++
      lastAt.set(id, index)
    })
    expect(atOnce).toBeGreaterThan(source.resends * 0.25)
    expect(far).toBeGreaterThan(source.resends * 0.1)
  })

  it('keep the order created, paid, shipped within an order', () => {
    const types = new Map<string, string[]>()
    for (const event of events) {
      if (event.isResend) continue
      const { orderId, type } = JSON.parse(event.value) as { orderId: string; type: string }
      types.set(orderId, [...(types.get(orderId) ?? []), type])
    }
    for (const seen of types.values()) expect(['created', 'paid', 'shipped'].slice(0, seen.length)).toEqual(seen)
  })

  it('have hot and cold users, and hot and cold orders', () => {
    const perUser = new Map<string, number>()
    const perOrder = new Map<string, number>()
    for (const { key, value } of events) {
      const { userId } = JSON.parse(value) as { userId: string }
      perUser.set(userId, (perUser.get(userId) ?? 0) + 1)
      perOrder.set(key, (perOrder.get(key) ?? 0) + 1)
    }
    for (const counts of [perUser, perOrder]) {
      const sorted = [...counts.values()].sort((one, other) => other - one)
      const median = sorted[Math.floor(sorted.length / 2)] ?? 0
      expect(sorted[0]).toBeGreaterThan(median * 10)
    }
  })
})
