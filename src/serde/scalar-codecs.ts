/**
 * Codecs of single values, byte for byte as the Java client's serializers where there is one.
 *
 * All are strict (C1): a wrong length, a number outside the range or text that is not UTF-8 fails instead of becoming another value. Two ids that differ must
 * not become equal on the way to bytes or back, or a dedupe would drop a record that is new.
 */
import { isUtf8 } from 'node:buffer'
import { asBuffer, bytesOfLength, CodecError, presentBytes, refusedValue, type Bytes, type Codec } from './codec.ts'

const TWO_POW_32 = 0x1_0000_0000
/** In the language since ES2024; Node 20 has it, the type library of ES2023 does not. */
type WellFormedCheck = string & { isWellFormed(): boolean }

/** The bytes of a text; a lone surrogate has none and fails. */
export function encodeUtf8(codecId: string, value: string): Buffer {
  if (!(value as WellFormedCheck).isWellFormed())
    throw new CodecError(codecId, 'the text has half a surrogate pair, which has no UTF-8 form')
  return Buffer.from(value, 'utf8')
}

/** The text of bytes. `isUtf8` plus a plain decode costs a fraction of a fatal TextDecoder on short texts. */
export function decodeUtf8(codecId: string, bytes: Buffer): string {
  if (!isUtf8(bytes)) throw new CodecError(codecId, `the ${bytes.length} bytes are not valid UTF-8`)
  return bytes.toString('utf8')
}

const stringCodec: Codec<string> = Object.freeze({
  id: 'string',
  encode(value: string): Buffer {
    if (typeof value !== 'string') throw refusedValue('string', value, 'a string')
    return encodeUtf8('string', value)
  },
  decode: (bytes: Bytes | null): string => decodeUtf8('string', presentBytes('string', bytes)),
})
/** UTF-8, as Java's StringSerializer. Bytes that are not UTF-8 fail. */
export function string(): Codec<string> {
  return stringCodec
}

const bytesCodec: Codec<Bytes> = Object.freeze({
  id: 'bytes',
  encode(value: Bytes): Buffer {
    if (!(value instanceof Uint8Array)) throw refusedValue('bytes', value, 'a Uint8Array')
    return asBuffer(value)
  },
  decode: (bytes: Bytes | null): Bytes => presentBytes('bytes', bytes),
})
/** The bytes as they are, not copied. */
export function bytes(): Codec<Bytes> {
  return bytesCodec
}

const int32Codec: Codec<number> = Object.freeze({
  id: 'int32',
  encode(value: number): Buffer {
    if ((value | 0) !== value) throw refusedValue('int32', value, 'a whole number from -2147483648 to 2147483647')
    const buffer = Buffer.allocUnsafe(4)
    buffer.writeInt32BE(value, 0)
    return buffer
  },
  decode: (bytes: Bytes | null): number => bytesOfLength('int32', bytes, 4).readInt32BE(0),
})
/** Big-endian 32-bit, as Java's IntegerSerializer. */
export function int32(): Codec<number> {
  return int32Codec
}

function encodeInt64(codecId: string, value: number): Buffer {
  if (!Number.isSafeInteger(value)) {
    throw refusedValue(codecId, value, 'a whole number within ±(2^53 - 1)')
  }
  const buffer = Buffer.allocUnsafe(8)
  const high = Math.floor(value / TWO_POW_32)
  buffer.writeInt32BE(high, 0)
  buffer.writeUInt32BE(value - high * TWO_POW_32, 4)
  return buffer
}
function decodeInt64(codecId: string, bytes: Bytes | null): number {
  const buffer = bytesOfLength(codecId, bytes, 8)
  const value = buffer.readInt32BE(0) * TWO_POW_32 + buffer.readUInt32BE(4)
  if (!Number.isSafeInteger(value))
    throw new CodecError(codecId, `${buffer.readBigInt64BE(0)} does not fit a number (±(2^53 - 1)); use bigint64()`)
  return value
}

const int64Codec: Codec<number> = Object.freeze({
  id: 'int64',
  encode: (value: number): Buffer => encodeInt64('int64', value),
  decode: (bytes: Bytes | null): number => decodeInt64('int64', bytes),
})
/** Big-endian 64-bit, as Java's LongSerializer; a value beyond 2^53 fails. Use `bigint64()` for the full range. */
export function int64(): Codec<number> {
  return int64Codec
}

const bigint64Codec: Codec<bigint> = Object.freeze({
  id: 'bigint64',
  encode(value: bigint): Buffer {
    if (typeof value !== 'bigint' || BigInt.asIntN(64, value) !== value)
      throw refusedValue('bigint64', value, 'a bigint from -2^63 to 2^63 - 1')
    const buffer = Buffer.allocUnsafe(8)
    buffer.writeBigInt64BE(value, 0)
    return buffer
  },
  decode: (bytes: Bytes | null): bigint => bytesOfLength('bigint64', bytes, 8).readBigInt64BE(0),
})
/** Big-endian 64-bit over the full range, as Java's LongSerializer. */
export function bigint64(): Codec<bigint> {
  return bigint64Codec
}

const float64Codec: Codec<number> = Object.freeze({
  id: 'float64',
  encode(value: number): Buffer {
    if (typeof value !== 'number') throw refusedValue('float64', value, 'a number')
    const buffer = Buffer.allocUnsafe(8)
    buffer.writeDoubleBE(value, 0)
    return buffer
  },
  decode: (bytes: Bytes | null): number => bytesOfLength('float64', bytes, 8).readDoubleBE(0),
})
/** Big-endian IEEE 754 double, as Java's DoubleSerializer. NaN and the infinities pass. */
export function float64(): Codec<number> {
  return float64Codec
}

const booleanCodec: Codec<boolean> = Object.freeze({
  id: 'boolean',
  encode(value: boolean): Buffer {
    if (typeof value !== 'boolean') throw refusedValue('boolean', value, 'true or false')
    return Buffer.of(value ? 1 : 0)
  },
  decode(bytes: Bytes | null): boolean {
    const byte = bytesOfLength('boolean', bytes, 1)[0]
    if (byte !== 0 && byte !== 1) throw new CodecError('boolean', `the byte ${byte} where 0 or 1 is needed`)
    return byte === 1
  },
})
/** One byte, 0 or 1, as Java's BooleanSerializer. */
export function boolean(): Codec<boolean> {
  return booleanCodec
}

const UUID_TEXT = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i
const uuidCodec: Codec<string> = Object.freeze({
  id: 'uuid',
  encode(value: string): Buffer {
    if (typeof value !== 'string') throw refusedValue('uuid', value, 'a UUID')
    if (!UUID_TEXT.test(value))
      throw new CodecError('uuid', `a text of ${value.length} characters where a UUID (8-4-4-4-12 hex digits) is needed`)
    return Buffer.from(value.toLowerCase(), 'latin1')
  },
  decode(bytes: Bytes | null): string {
    const text = presentBytes('uuid', bytes).toString('latin1')
    if (!UUID_TEXT.test(text)) throw new CodecError('uuid', `${text.length} bytes that are not a UUID as text (8-4-4-4-12 hex digits)`)
    return text.toLowerCase()
  },
})
/** The 36 characters of a UUID, as Java's UUIDSerializer; lower case in both directions, so that equal UUIDs are equal keys. */
export function uuid(): Codec<string> {
  return uuidCodec
}

const dateCodec: Codec<Date> = Object.freeze({
  id: 'date',
  encode(value: Date): Buffer {
    if (!(value instanceof Date)) throw refusedValue('date', value, 'a Date')
    const time = value.getTime()
    if (Number.isNaN(time)) throw new CodecError('date', 'an invalid Date')
    return encodeInt64('date', time)
  },
  decode(bytes: Bytes | null): Date {
    const time = decodeInt64('date', bytes)
    const date = new Date(time)
    if (Number.isNaN(date.getTime())) throw new CodecError('date', `${time} ms is outside the range of Date`)
    return date
  },
})
/** Milliseconds since the epoch, big-endian 64-bit (Java: LongSerializer of `Instant.toEpochMilli()`). */
export function date(): Codec<Date> {
  return dateCodec
}
