/** Records and headers between the client's shape and the port's. */
import type { BrokerRecord, HeaderList, PollResult } from '../port.ts'
import type { NativeEof, NativeMessage } from './native.ts'

const NO_HEADERS: HeaderList = Object.freeze([])
const EMPTY = Buffer.alloc(0)

/** The client's message becomes the record in place: no second object per record on the hot path. */
function toRecord(message: NativeMessage): BrokerRecord {
  message.headers = message.headers === undefined ? NO_HEADERS : fromNativeHeaders(message.headers as readonly Record<string, Buffer>[])
  return message as unknown as BrokerRecord
}

function fromNativeHeaders(headers: readonly Record<string, Buffer>[]): HeaderList {
  const list: [string, Buffer | null][] = []
  for (const header of headers) for (const name in header) list.push([name, header[name] ?? null])
  return list
}

/** A view of memory that is there: the client takes a plain empty buffer, whose memory is nowhere, for null (seen: an empty value was a tombstone). */
const EMPTY_BYTES = Buffer.alloc(1).subarray(0, 0)

export function toNativeBytes(bytes: Buffer | null): Buffer | null {
  return bytes?.length === 0 ? EMPTY_BYTES : bytes
}

/** One object per header, in order, so that a name may repeat. The client cannot write a null value: it goes out as an empty one. */
export function toNativeHeaders(headers: HeaderList): readonly Record<string, Buffer>[] | undefined {
  if (headers.length === 0) return undefined
  return headers.map(([name, value]) => ({ [name]: value ?? EMPTY }))
}

export function toPollResult(messages: readonly NativeMessage[], ends: readonly NativeEof[]): PollResult {
  for (const message of messages) toRecord(message)
  return { records: messages as unknown as readonly BrokerRecord[], ends: ends }
}
