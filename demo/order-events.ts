/**
 * The input of the demo: order events of a producer that sends about every tenth of them again, as a new record with a new offset.
 *
 * Owns: the sequence of events, decided by the seed alone, and the number of different `(orderId, type)` in it.
 * Invariants:
 *  1. Events of one order come in the order created, paid, shipped; a resend comes after its original and has the same bytes.
 *  2. The count of different ids follows from how the sequence is made, not from comparing records: it is a second opinion for the reader of the topic.
 */
import type { OrderEvent } from '../topologies/order-dedupe.ts'
import { hash, SeededRandom, zipfRank } from './seeded-random.ts'

export const EVENT_BYTES = 512
export const RESEND_SHARE = 0.1
/** A resend is "far" when at least this many other events lie between it and its original. */
export const FAR_DISTANCE = 2_000

const TYPES = ['created', 'paid', 'shipped'] as const
/** Orders that are open at the same time: created one after the other, then paid, then shipped. */
const OPEN_ORDERS = 100
const USERS = 10_000
/** Orders whose events come again and again, a few of them very often. */
const HOT_ORDERS = 40

export interface KeyedEvent {
  /** The order id: all events of one order, and their resends, share a partition. */
  readonly key: string
  /** JSON of `EVENT_BYTES` bytes. */
  readonly value: string
  readonly isResend: boolean
}

export class OrderEventSource {
  readonly #seed: number
  readonly #random: SeededRandom
  readonly #padding: string
  #originals = 0
  #resends = 0

  constructor(seed: number) {
    this.#seed = seed
    this.#random = new SeededRandom(seed)
    this.#padding = paddingText(seed)
  }

  /** Different `(orderId, type)` so far. */
  get uniqueIds(): number {
    return this.#originals
  }

  get resends(): number {
    return this.#resends
  }

  next(): KeyedEvent {
    if (this.#originals > 0 && this.#random.next() < RESEND_SHARE) {
      this.#resends++
      return this.#event(this.#resent(), true)
    }
    return this.#event(this.#originals++, false)
  }

  /** Which of the events so far comes again: two in five at once, one in five soon, one in four far apart, the rest of hot orders. */
  #resent(): number {
    const choice = this.#random.next()
    const sent = this.#originals
    if (choice >= 0.85) {
      const hot = Math.min(sent, HOT_ORDERS * TYPES.length)
      return this.#random.rank(hot)
    }
    if (choice >= 0.6 && sent > FAR_DISTANCE) return this.#random.below(sent - FAR_DISTANCE)
    const distance = choice >= 0.4 ? 500 : 3
    return Math.max(0, sent - 1 - this.#random.below(distance))
  }

  #event(number: number, isResend: boolean): KeyedEvent {
    const perRound = OPEN_ORDERS * TYPES.length
    const inRound = number % perRound
    const order = Math.floor(number / perRound) * OPEN_ORDERS + (inRound % OPEN_ORDERS)
    const type = TYPES[Math.floor(inRound / OPEN_ORDERS)] ?? 'created'
    const orderBits = hash(this.#seed, order)
    const user = zipfRank(orderBits / 4_294_967_296, USERS)
    const orderId = `order-${String(order).padStart(8, '0')}`
    const event: OrderEvent = {
      orderId,
      type,
      userId: `user-${String(user).padStart(5, '0')}`,
      amount: 1 + (orderBits % 50_000) / 100,
      note: '',
    }
    const bare = JSON.stringify(event)
    const length = EVENT_BYTES - bare.length
    const from = hash(this.#seed, number) % (this.#padding.length - length)
    // The note is last and empty: `..."note":""}`.
    const value = `${bare.slice(0, -2)}${this.#padding.slice(from, from + length)}"}`
    return { key: orderId, value, isResend }
  }
}

const LETTERS = 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .'

/** Plain letters, so that one character is one byte and JSON escapes none; random, so that compression gains little. */
function paddingText(seed: number): string {
  const random = new SeededRandom(seed ^ 0x5bd1e995)
  let text = ''
  for (let index = 0; index < 32_768; index++) text += LETTERS.charAt(random.below(LETTERS.length))
  return text
}
