/** What is wrong with the way between clients and one broker right now, and how often it struck. Shared by all connections of a proxy. */
import type { Verdict } from './frames.ts'

export type Direction = 'to-server' | 'to-client'

/** How often each fault really struck. A fault that was switched on while nothing came by counts nothing. */
export interface Strikes {
  /** Pieces of the stream that were held back for a while. */
  delayed: number
  /** Connections that were closed, and new ones that were turned away. */
  dropped: number
  /** Connections of which bytes were swallowed. */
  halfClosed: number
  /** Frames, of all rules. */
  heldRequests: number
  heldReplies: number
  swallowedRequests: number
  swallowedReplies: number
}

export interface FrameRule {
  readonly apiKey: number
  /** Frames that the rule takes before it lets the rest through. Default: all, until it is ended. */
  readonly count?: number
  /** Of a rule that swallows: the frame's connection is closed with it. Default: false. */
  readonly close?: boolean
}

/** A rule for frames of one API that is in force. */
export class ActiveRule {
  readonly direction: Direction
  readonly apiKey: number
  readonly verdict: Verdict
  #left: number
  #struck = 0

  constructor(direction: Direction, { apiKey, count = Number.POSITIVE_INFINITY }: FrameRule, verdict: Verdict) {
    this.direction = direction
    this.apiKey = apiKey
    this.verdict = verdict
    this.#left = count
  }

  /** Frames taken so far. */
  get struck(): number {
    return this.#struck
  }

  takes(direction: Direction, apiKey: number): boolean {
    if (this.#left === 0 || this.direction !== direction || this.apiKey !== apiKey) return false
    this.#left--
    this.#struck++
    return true
  }

  /** Lets through what comes from now on. */
  end(): void {
    this.#left = 0
  }
}

export class Faults {
  delayMs = 0
  isDropping = false
  readonly swallowed = new Set<Direction>()
  readonly strikes: Strikes = {
    delayed: 0,
    dropped: 0,
    halfClosed: 0,
    heldRequests: 0,
    heldReplies: 0,
    swallowedRequests: 0,
    swallowedReplies: 0,
  }
  /** Requests that came by, by API key, those that were swallowed or held included. */
  readonly seen = new Map<number, number>()
  readonly #rules = new Set<ActiveRule>()

  add(rule: ActiveRule): void {
    this.#rules.add(rule)
  }

  remove(rule: ActiveRule): void {
    rule.end()
    this.#rules.delete(rule)
  }

  /** The rule that takes this frame, if one does. The first that was set wins. */
  ruleFor(direction: Direction, apiKey: number): ActiveRule | undefined {
    for (const rule of this.#rules) {
      if (!rule.takes(direction, apiKey)) continue
      const isRequest = direction === 'to-server'
      if (rule.verdict === 'hold') this.strikes[isRequest ? 'heldRequests' : 'heldReplies']++
      else this.strikes[isRequest ? 'swallowedRequests' : 'swallowedReplies']++
      return rule
    }
    return undefined
  }
}
