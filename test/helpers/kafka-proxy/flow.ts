/**
 * One direction of a connection: bytes go from one socket to the other, at once or after the delay, in order.
 *
 * Invariants:
 *  F1. What waits here is bounded: above the limit, and while the receiver does not take more, the sender is not read.
 *  F2. The sender's end reaches the receiver after all that was sent before it.
 */
import type { Socket } from 'node:net'
import type { Faults } from './faults.ts'

const WAITING_LIMIT_BYTES = 256 * 1024

interface Waiting {
  readonly bytes: Buffer
  dueAt: number
}

export class Flow {
  readonly #from: Socket
  readonly #to: Socket
  readonly #faults: Faults
  readonly #waiting: Waiting[] = []
  #waitingBytes = 0
  /** Of frames that a rule holds; they are kept by the connection. */
  #heldBytes = 0
  #timer: NodeJS.Timeout | undefined
  #hasEnded = false
  #isStopped = false

  constructor(from: Socket, to: Socket, faults: Faults) {
    this.#from = from
    this.#to = to
    this.#faults = faults
    to.on('drain', () => {
      this.#pump()
    })
  }

  send(bytes: Buffer): void {
    if (this.#isStopped) return
    if (this.#faults.delayMs === 0 && this.#waiting.length === 0) {
      if (this.#to.writable) this.#to.write(bytes)
    } else {
      this.#faults.strikes.delayed++
      this.#waiting.push({ bytes, dueAt: performance.now() + this.#faults.delayMs })
      this.#waitingBytes += bytes.length
      this.#pump()
    }
    this.#regulate()
  }

  hold(bytes: number): void {
    this.#heldBytes += bytes
    this.#regulate()
  }

  /** The sender sends no more. */
  end(): void {
    this.#hasEnded = true
    this.#pump()
  }

  /** The delay was changed: what waits longer than the new one goes earlier. */
  redate(): void {
    const latest = performance.now() + this.#faults.delayMs
    for (const waiting of this.#waiting) waiting.dueAt = Math.min(waiting.dueAt, latest)
    this.#pump()
  }

  stop(): void {
    this.#isStopped = true
    clearTimeout(this.#timer)
    this.#waiting.length = 0
  }

  #pump(): void {
    if (this.#isStopped) return
    clearTimeout(this.#timer)
    for (;;) {
      const first = this.#waiting[0]
      if (first === undefined) break
      const waitMs = first.dueAt - performance.now()
      if (waitMs > 0) {
        this.#timer = setTimeout(() => {
          this.#pump()
        }, waitMs)
        break
      }
      if (this.#to.writableNeedDrain) break
      this.#waiting.shift()
      this.#waitingBytes -= first.bytes.length
      if (this.#to.writable) this.#to.write(first.bytes)
    }
    if (this.#hasEnded && this.#waiting.length === 0 && this.#to.writable) this.#to.end()
    this.#regulate()
  }

  #regulate(): void {
    const isFull = this.#waitingBytes > WAITING_LIMIT_BYTES || this.#heldBytes > WAITING_LIMIT_BYTES || this.#to.writableNeedDrain
    if (isFull !== this.#from.isPaused()) this.#from[isFull ? 'pause' : 'resume']()
  }
}
