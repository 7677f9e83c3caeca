/**
 * A client's connection and ours to the broker behind it.
 *
 * Owns: both sockets, the frames that rules hold, the order of requests whose replies are due.
 * Does not own: which faults there are (faults), delay and backpressure (flow).
 *
 * Invariants:
 *  C1. A broker answers the requests of one connection in order, so a reply belongs to the oldest request with its correlation id, and older ones get none.
 *  C2. A request that is held reaches the broker when it is released, also when its client is gone: that is what a late EndTxn is.
 *  C3. A connection of which bytes were swallowed is of no use any more: it is closed when the fault ends.
 */
import { connect, type Socket } from 'node:net'
import type { ActiveRule, Direction, Faults } from './faults.ts'
import {
  FrameSplitter,
  replyCorrelationId,
  REPLY_PREFIX_BYTES,
  requestHeader,
  REQUEST_PREFIX_BYTES,
  type RequestHeader,
  type Verdict,
} from './frames.ts'
import { Flow } from './flow.ts'

interface HeldFrame {
  readonly rule: ActiveRule
  readonly pieces: Buffer[]
  bytes: number
  /** Of a request: its reply is due once it was sent. */
  readonly request: RequestHeader | undefined
  /** Pieces of it that come later go on at once. */
  isReleased: boolean
}

export class ProxiedConnection {
  readonly #client: Socket
  readonly #server: Socket
  readonly #faults: Faults
  readonly #flows: Readonly<Record<Direction, Flow>>
  readonly #held: Readonly<Record<Direction, HeldFrame[]>> = { 'to-server': [], 'to-client': [] }
  /** Those of which later pieces are still to come. */
  readonly #incoming: Record<Direction, HeldFrame | undefined> = { 'to-server': undefined, 'to-client': undefined }
  readonly #due: RequestHeader[] = []
  readonly #closed: () => void
  readonly #broken = new Set<Direction>()
  #clientIsGone = false
  /** Its client was gone when a request was released: the answer is awaited. */
  #hasOutlived = false
  #isClosed = false

  constructor(client: Socket, target: { readonly host: string; readonly port: number }, faults: Faults, closed: () => void) {
    this.#client = client
    this.#server = connect({ ...target, allowHalfOpen: true, noDelay: true })
    this.#faults = faults
    this.#closed = closed
    this.#flows = { 'to-server': new Flow(client, this.#server, faults), 'to-client': new Flow(this.#server, client, faults) }
    this.#join(client, this.#server, 'to-server', this.#splitter('to-server', REQUEST_PREFIX_BYTES))
    this.#join(this.#server, client, 'to-client', this.#splitter('to-client', REPLY_PREFIX_BYTES))
    client.on('end', () => {
      this.#clientIsGone = true
      if (this.#held['to-server'].length === 0) this.#flows['to-server'].end()
    })
    client.on('close', () => {
      this.#clientIsGone = true
      this.#closeIfDone()
    })
    this.#server.on('end', () => {
      this.#flows['to-client'].end()
    })
    this.#server.on('close', () => {
      this.close()
    })
  }

  /** True when this connection has lost bytes. */
  get isBroken(): boolean {
    return this.#broken.size > 0
  }

  /** Sends what `rule` holds here, in order. Returns how many of its frames found their receiver. */
  release(rule: ActiveRule): number {
    const { direction } = rule
    const held = this.#held[direction]
    let sent = 0
    for (const frame of held.filter((each) => each.rule === rule)) {
      held.splice(held.indexOf(frame), 1)
      if (this.#send(direction, frame)) sent++
    }
    this.#closeIfDone()
    return sent
  }

  redate(): void {
    for (const flow of Object.values(this.#flows)) flow.redate()
  }

  close(): void {
    if (this.#isClosed) return
    this.#isClosed = true
    for (const flow of Object.values(this.#flows)) flow.stop()
    this.#client.destroy()
    this.#server.destroy()
    this.#closed()
  }

  #join(from: Socket, to: Socket, direction: Direction, splitter: FrameSplitter): void {
    from.on('data', (chunk: Buffer) => {
      if (this.#isClosed) return
      if (this.#faults.swallowed.has(direction) || this.#broken.has(direction)) {
        if (!this.#broken.has(direction)) this.#faults.strikes.halfClosed++
        this.#broken.add(direction)
        return
      }
      to.cork()
      try {
        splitter.take(chunk)
      } catch {
        this.close()
      } finally {
        to.uncork()
      }
    })
    // What it was is seen by `close`, which follows: a proxy loses connections as the network does.
    from.on('error', () => undefined)
  }

  #splitter(direction: Direction, prefixBytes: number): FrameSplitter {
    return new FrameSplitter({
      prefixBytes,
      decide: (prefix) => {
        if (this.#isClosed) return 'swallow'
        return direction === 'to-server' ? this.#decideOnRequest(requestHeader(prefix)) : this.#decideOnReply(replyCorrelationId(prefix))
      },
      piece: (bytes, verdict, isLast) => {
        if (verdict === 'forward') this.#flows[direction].send(bytes)
        else if (verdict === 'hold') this.#hold(direction, bytes, isLast)
        else if (verdict === 'close' && isLast) this.close()
        if (isLast && this.#hasOutlived) this.#closeIfDone()
      },
    })
  }

  #decideOnRequest(request: RequestHeader): Verdict {
    const { seen } = this.#faults
    seen.set(request.apiKey, (seen.get(request.apiKey) ?? 0) + 1)
    const rule = this.#faults.ruleFor('to-server', request.apiKey)
    if (rule?.verdict === 'hold') this.#open('to-server', rule, request)
    if (rule === undefined) this.#due.push(request)
    return rule?.verdict ?? 'forward'
  }

  #decideOnReply(correlationId: number): Verdict {
    const index = this.#due.findIndex((request) => request.correlationId === correlationId)
    const request = this.#due.splice(0, index + 1).at(-1)
    const rule = request === undefined ? undefined : this.#faults.ruleFor('to-client', request.apiKey)
    if (rule?.verdict === 'hold') this.#open('to-client', rule, undefined)
    return rule?.verdict ?? 'forward'
  }

  #open(direction: Direction, rule: ActiveRule, request: RequestHeader | undefined): void {
    const frame: HeldFrame = { rule, pieces: [], bytes: 0, request, isReleased: false }
    this.#held[direction].push(frame)
    this.#incoming[direction] = frame
  }

  #hold(direction: Direction, bytes: Buffer, isLast: boolean): void {
    const frame = this.#incoming[direction]
    if (isLast) this.#incoming[direction] = undefined
    if (frame === undefined) return
    if (frame.isReleased) {
      this.#flows[direction].send(bytes)
      return
    }
    frame.pieces.push(Buffer.from(bytes)) // a piece of a chunk would keep the whole chunk
    frame.bytes += bytes.length
    this.#flows[direction].hold(bytes.length)
  }

  /** False: there is nobody any more to get it. */
  #send(direction: Direction, frame: HeldFrame): boolean {
    frame.isReleased = true
    this.#flows[direction].hold(-frame.bytes)
    const receiver = direction === 'to-server' ? this.#server : this.#client
    if (this.#isClosed || !receiver.writable) return false
    if (frame.request !== undefined) {
      this.#due.push(frame.request)
      if (this.#clientIsGone) this.#hasOutlived = true
    }
    for (const piece of frame.pieces) this.#flows[direction].send(piece)
    return true
  }

  /** Its client is gone: it stays while requests of it are held, or unanswered after they were (C2). */
  #closeIfDone(): void {
    if (!this.#clientIsGone || this.#held['to-server'].length > 0) return
    if (this.#hasOutlived ? this.#due.length === 0 : this.#client.destroyed) this.close()
  }
}
