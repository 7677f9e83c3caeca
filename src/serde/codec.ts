/**
 * The contract between bytes and values.
 *
 * Owns: the codec types, the error every codec throws, and the rules all codecs share (null, buffers). Does not own: any format but the user's own.
 * Invariants:
 *  C1. A codec either returns a value of its type or throws; it never guesses, truncates or replaces.
 *  C2. Null passes only through `nullable()`. Null bytes, empty bytes and a JSON `null` are three different things.
 *  C3. `decode(encode(value))` equals `value` for every value that `encode` accepts.
 *  C4. `encode` of the codecs here returns a Buffer (or null), so the hot path needs no conversion.
 */

export type Bytes = Uint8Array

/** Values to bytes. */
export interface Encoder<in T> {
  readonly id: string
  readonly encode: (value: T) => Bytes | null
}
/** Bytes to values. */
export interface Decoder<out T> {
  readonly id: string
  readonly decode: (bytes: Bytes | null) => T
}
/**
 * Bytes <-> values. `id` names the format and is part of the topology's fingerprint; both sides of a join must have the same key codec id.
 * A codec that meets null where it is not `nullable()` fails, and the record takes the `onError` path.
 */
export interface Codec<T> extends Encoder<T>, Decoder<T> {
  readonly id: string
}

/** What a decoder decodes to. */
export type Decoded<C> = C extends Decoder<infer T> ? T : never

/** A value or bytes that a codec refuses. The message starts with the codec's id; the caller adds topic, partition and offset. */
export class CodecError extends Error {
  override readonly name = 'CodecError'
  readonly codecId: string

  constructor(codecId: string, message: string, cause?: unknown) {
    super(`${codecId}: ${message}`, cause === undefined ? undefined : { cause })
    this.codecId = codecId
  }
}

/** The same memory as a Buffer; no copy. */
export function asBuffer(bytes: Bytes): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
}

/** Narrows bytes that must be there. */
export function presentBytes(codecId: string, bytes: Bytes | null): Buffer {
  if (bytes === null || bytes === undefined) {
    throw new CodecError(codecId, `the bytes are null; if null is allowed here, declare the topic with nullable(${shortId(codecId)})`)
  }
  return asBuffer(bytes)
}

/** As `presentBytes`, for formats of one length. */
export function bytesOfLength(codecId: string, bytes: Bytes | null, length: number): Buffer {
  const buffer = presentBytes(codecId, bytes)
  if (buffer.length !== length) throw new CodecError(codecId, `${buffer.length} bytes where exactly ${length} are needed`)
  return buffer
}

/** The error for a value of another type than the codec's. Of texts and objects it says the type only: their content may be secret. */
export function refusedValue(codecId: string, value: unknown, wanted: string): CodecError {
  if (value === null || value === undefined) {
    return new CodecError(
      codecId,
      `the value is ${value === null ? 'null' : 'undefined'}; if null is allowed here, declare the topic with nullable(${shortId(codecId)})`,
    )
  }
  return new CodecError(codecId, `${describeValue(value)} where ${wanted} is needed`)
}

export function describeValue(value: unknown): string {
  switch (typeof value) {
    case 'number':
    case 'bigint':
    case 'boolean':
      return `the ${typeof value} ${String(value)}`
    case 'object': {
      if (value === null) return 'null'
      if (Array.isArray(value)) return 'an array'
      const constructorName = (Object.getPrototypeOf(value) as { constructor?: { name?: string } } | null)?.constructor?.name
      return constructorName === undefined || constructorName === 'Object' ? 'an object' : `an instance of ${constructorName}`
    }
    case 'undefined':
      return 'undefined'
    default:
      return `a ${typeof value}`
  }
}

function shortId(codecId: string): string {
  return codecId.includes('(') || codecId.includes('.') ? codecId : `${codecId}()`
}

/**
 * Your own format. `encode` and `decode` are synchronous, never see null (wrap the codec in `nullable()` for that) and may throw: the record then takes the
 * `onError` path. `id` names the format: change it when the bytes change.
 * @example
 * const csv = codec<string[]>({ id: 'csv', encode: (cells) => Buffer.from(cells.join(';')), decode: (bytes) => Buffer.from(bytes).toString().split(';') })
 */
export function codec<T>(definition: {
  readonly id: string
  readonly encode: (value: T) => Bytes
  readonly decode: (bytes: Bytes) => T
}): Codec<T> {
  const { id } = definition
  if (typeof id !== 'string' || id === '') throw new TypeError("codec(): `id` must be a text that names the format, such as 'csv'")
  if (typeof definition.encode !== 'function' || typeof definition.decode !== 'function')
    throw new TypeError(`codec '${id}': \`encode\` and \`decode\` must be functions`)
  return Object.freeze({
    id,
    encode(value: T): Buffer {
      if (value === null || value === undefined) throw refusedValue(id, value, 'a value')
      const encoded: unknown = definition.encode(value)
      if (!(encoded instanceof Uint8Array))
        throw new CodecError(id, `encode returned ${describeValue(encoded)} where bytes (Uint8Array) are needed`)
      return asBuffer(encoded)
    },
    decode(bytes: Bytes | null): T {
      return definition.decode(presentBytes(id, bytes))
    },
  })
}

/** Lets null through in both directions: a null value is a tombstone, a null key is no key. Everything else goes to `codec`. */
export function nullable<T>(codec: Codec<T>): Codec<T | null> {
  return Object.freeze({
    id: `nullable(${codec.id})`,
    encode(value: T | null): Bytes | null {
      return value === null ? null : codec.encode(value)
    },
    decode(bytes: Bytes | null): T | null {
      return bytes === null ? null : codec.decode(bytes)
    },
  })
}
