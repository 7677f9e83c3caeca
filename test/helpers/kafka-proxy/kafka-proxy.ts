/**
 * A TCP proxy in front of one broker that knows the frames of the Kafka protocol, with faults that are switched on and off while it runs.
 *
 * Its port is bound at once and its target named later, because a broker must be told before its start what it is to advertise:
 *
 *     const proxy = await startKafkaProxy()
 *     const broker = await provideBroker({ nodes: 1, advertise: ({ address }) => (proxy.connectTo(address), proxy.address) })
 *
 * Owns: the listener, the connections. Does not own: the broker behind it.
 * Invariants:
 *  KP1. After `close()` no socket and no timer is left.
 *  KP2. Memory is bounded: what is delayed or held stops the reading of its connection above a limit.
 */
import { createServer, type AddressInfo, type Socket } from 'node:net'
import { ProxiedConnection } from './connection.ts'
import { ActiveRule, Faults, type Direction, type FrameRule, type Strikes } from './faults.ts'
import type { Verdict } from './frames.ts'

/** API keys of requests that tests strike at. */
export const API = {
  produce: 0,
  fetch: 1,
  offsetFetch: 9,
  joinGroup: 11,
  heartbeat: 12,
  initProducerId: 22,
  addPartitionsToTransaction: 24,
  addOffsetsToTransaction: 25,
  endTransaction: 26,
  transactionOffsetCommit: 28,
} as const

/** Frames that are kept back. */
export interface Hold {
  /** Frames kept so far, those that were released included. */
  readonly struck: number
  /** Ends the hold and sends what is kept, late and in order. Returns how many frames found their receiver: that of a reply may be gone. */
  release(): number
}

/** Frames that are lost. */
export interface Loss {
  readonly struck: number
  end(): void
}

export interface KafkaProxy extends AsyncDisposable {
  /** `host:port` for clients. */
  readonly address: string
  /** `host:port` of the broker; may be changed, for connections that come later. Until it is named, clients are turned away. */
  connectTo(target: string): void
  /** Every byte takes `ms` longer, in both directions; 0 ends it. */
  delay(ms: number): void
  /** Closes all connections and turns new ones away, until `restore()`. */
  drop(): void
  /** Connections stay open while the bytes of one direction (default: `'to-client'`) are lost, until `restore()`, which closes those that lost some. */
  halfClose(direction?: Direction): void
  /** The broker gets these requests when they are released, even if their client is gone by then. */
  holdRequests(rule: FrameRule): Hold
  holdReplies(rule: FrameRule): Hold
  swallowRequests(rule: FrameRule): Loss
  swallowReplies(rule: FrameRule): Loss
  /** Ends every fault; frames that are held are sent. */
  restore(): void
  /** How often each fault really struck. */
  readonly strikes: Readonly<Strikes>
  /** Requests of this API that came by, whatever became of them. */
  requests(apiKey: number): number
  readonly connections: number
  /** Closes everything. */
  close(): Promise<void>
}

export async function startKafkaProxy(): Promise<KafkaProxy> {
  const proxy = new FramedProxy()
  await proxy.listen()
  return proxy
}

class FramedProxy implements KafkaProxy {
  readonly #server = createServer({ allowHalfOpen: true, noDelay: true }, (client) => {
    this.#accept(client)
  })
  readonly #faults = new Faults()
  readonly #connections = new Set<ProxiedConnection>()
  readonly #holds = new Set<ActiveRule>()
  readonly #losses = new Set<ActiveRule>()
  #target: { readonly host: string; readonly port: number } | undefined
  #closed: Promise<void> | undefined

  listen(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#server.once('error', reject)
      this.#server.listen(0, '127.0.0.1', resolve)
    })
  }

  get address(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`
  }

  get strikes(): Readonly<Strikes> {
    return this.#faults.strikes
  }

  get connections(): number {
    return this.#connections.size
  }

  requests(apiKey: number): number {
    return this.#faults.seen.get(apiKey) ?? 0
  }

  connectTo(target: string): void {
    const colon = target.lastIndexOf(':')
    const port = Number(target.slice(colon + 1))
    if (colon <= 0 || !Number.isInteger(port)) throw new Error(`'${target}' is not host:port`)
    this.#target = { host: target.slice(0, colon), port }
  }

  delay(ms: number): void {
    this.#faults.delayMs = ms
    for (const connection of this.#connections) connection.redate()
  }

  drop(): void {
    this.#faults.isDropping = true
    this.#faults.strikes.dropped += this.#connections.size
    for (const connection of this.#connections) connection.close()
  }

  halfClose(direction: Direction = 'to-client'): void {
    this.#faults.swallowed.add(direction)
  }

  holdRequests(rule: FrameRule): Hold {
    return this.#hold('to-server', rule)
  }

  holdReplies(rule: FrameRule): Hold {
    return this.#hold('to-client', rule)
  }

  swallowRequests(rule: FrameRule): Loss {
    return this.#lose('to-server', rule)
  }

  swallowReplies(rule: FrameRule): Loss {
    return this.#lose('to-client', rule)
  }

  restore(): void {
    this.#faults.isDropping = false
    this.#faults.swallowed.clear()
    for (const connection of this.#connections) if (connection.isBroken) connection.close()
    for (const rule of this.#losses) this.#faults.remove(rule)
    this.#losses.clear()
    for (const rule of this.#holds) this.#release(rule)
    this.delay(0)
  }

  close(): Promise<void> {
    return (this.#closed ??= new Promise((resolve) => {
      for (const connection of this.#connections) connection.close()
      this.#server.close(() => {
        resolve()
      })
    }))
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  #accept(client: Socket): void {
    if (this.#faults.isDropping || this.#target === undefined) {
      if (this.#faults.isDropping) this.#faults.strikes.dropped++
      client.destroy()
      return
    }
    const connection: ProxiedConnection = new ProxiedConnection(client, this.#target, this.#faults, () => {
      this.#connections.delete(connection)
    })
    this.#connections.add(connection)
  }

  #hold(direction: Direction, options: FrameRule): Hold {
    const rule = this.#set(direction, options, 'hold')
    this.#holds.add(rule)
    return {
      get struck() {
        return rule.struck
      },
      release: () => this.#release(rule),
    }
  }

  #release(rule: ActiveRule): number {
    this.#faults.remove(rule)
    this.#holds.delete(rule)
    let sent = 0
    for (const connection of this.#connections) sent += connection.release(rule)
    return sent
  }

  #lose(direction: Direction, options: FrameRule): Loss {
    const rule = this.#set(direction, options, options.close === true ? 'close' : 'swallow')
    this.#losses.add(rule)
    return {
      get struck() {
        return rule.struck
      },
      end: () => {
        this.#losses.delete(rule)
        this.#faults.remove(rule)
      },
    }
  }

  #set(direction: Direction, options: FrameRule, verdict: Verdict): ActiveRule {
    const rule = new ActiveRule(direction, options, verdict)
    this.#faults.add(rule)
    return rule
  }
}
