/**
 * The frames of the Kafka protocol in a stream of bytes: a length of 4 bytes, then in a request API key (int16), API version (int16) and correlation id
 * (int32), in a reply the correlation id (int32). Bodies are passed on in the pieces in which they come: no frame is ever gathered.
 */

/** What becomes of one frame; `hold` keeps it, `close` loses it and its connection. */
export type Verdict = 'forward' | 'swallow' | 'hold' | 'close'

export const REQUEST_PREFIX_BYTES = 12
export const REPLY_PREFIX_BYTES = 8
const LENGTH_BYTES = 4

export interface FrameSplitterOptions {
  readonly prefixBytes: number
  /** Called once a frame's prefix is complete. */
  readonly decide: (prefix: Buffer) => Verdict
  /** Pieces of frames, in order. `isLast`: the frame ends with it. */
  readonly piece: (bytes: Buffer, verdict: Verdict, isLast: boolean) => void
}

export class FrameSplitter {
  readonly #options: FrameSplitterOptions
  readonly #prefix: Buffer
  #prefixLength = 0
  /** Of the frame that was begun, without its prefix. */
  #remaining = 0
  #verdict: Verdict = 'forward'

  constructor(options: FrameSplitterOptions) {
    this.#options = options
    this.#prefix = Buffer.alloc(options.prefixBytes)
  }

  /** @throws Error when the bytes are no Kafka frames. */
  take(chunk: Buffer): void {
    const { prefixBytes, decide, piece } = this.#options
    let at = 0
    while (at < chunk.length) {
      if (this.#remaining > 0) {
        const end = Math.min(chunk.length, at + this.#remaining)
        this.#remaining -= end - at
        piece(chunk.subarray(at, end), this.#verdict, this.#remaining === 0)
        at = end
        continue
      }
      const copied = chunk.copy(this.#prefix, this.#prefixLength, at, at + prefixBytes - this.#prefixLength)
      this.#prefixLength += copied
      at += copied
      if (this.#prefixLength < prefixBytes) return
      this.#prefixLength = 0
      const bodyBytes = this.#prefix.readInt32BE(0) + LENGTH_BYTES - prefixBytes
      if (bodyBytes < 0)
        throw new Error(`no Kafka frame: its length says ${this.#prefix.readInt32BE(0)} bytes, and its header alone has more`)
      this.#remaining = bodyBytes
      this.#verdict = decide(this.#prefix)
      piece(Buffer.from(this.#prefix), this.#verdict, bodyBytes === 0)
    }
  }
}

export interface RequestHeader {
  readonly apiKey: number
  readonly correlationId: number
}

export function requestHeader(prefix: Buffer): RequestHeader {
  return { apiKey: prefix.readInt16BE(4), correlationId: prefix.readInt32BE(8) }
}

export function replyCorrelationId(prefix: Buffer): number {
  return prefix.readInt32BE(4)
}
