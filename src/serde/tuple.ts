import { CodecError, asBuffer, presentBytes, refusedValue, type Bytes, type Codec, type Decoded } from './codec.ts'

const NULL_ELEMENT = -1

/**
 * Several values in one, each with its own codec: per element its length (big-endian 32-bit, -1 for null) and its bytes. No two tuples share their bytes,
 * whatever their elements hold, so it is safe as a key: `tuple(string(), int64())`.
 */
// eslint-disable-next-line @typescript-eslint/no-explicit-any -- Codec<T> is invariant: only `any` accepts a codec of every type and keeps the element's own type for inference
export function tuple<const C extends readonly Codec<any>[]>(...codecs: C): Codec<{ -readonly [I in keyof C]: Decoded<C[I]> }> {
  type Values = { -readonly [I in keyof C]: Decoded<C[I]> }
  const elements = codecs as readonly Codec<unknown>[]
  if (elements.length === 0) throw new TypeError('tuple(): needs at least one codec')
  const id = `tuple(${elements.map((element) => element.id).join(',')})`

  function encode(values: Values): Buffer {
    if (!Array.isArray(values)) throw refusedValue(id, values, `an array of ${elements.length}`)
    if (values.length !== elements.length) throw new CodecError(id, `${values.length} elements where exactly ${elements.length} are needed`)
    const parts: (Bytes | null)[] = []
    let size = 4 * elements.length
    for (let index = 0; index < elements.length; index++) {
      const part = atElement(id, index, () => (elements[index] as Codec<unknown>).encode(values[index]))
      parts.push(part)
      size += part === null ? 0 : part.length
    }
    const buffer = Buffer.allocUnsafe(size)
    let position = 0
    for (const part of parts) {
      position = buffer.writeInt32BE(part === null ? NULL_ELEMENT : part.length, position)
      if (part === null) continue
      asBuffer(part).copy(buffer, position)
      position += part.length
    }
    return buffer
  }

  function decode(bytes: Bytes | null): Values {
    const buffer = presentBytes(id, bytes)
    const values: unknown[] = []
    let position = 0
    for (let index = 0; index < elements.length; index++) {
      if (position + 4 > buffer.length) throw new CodecError(id, `the bytes end before element ${index}`)
      const length = buffer.readInt32BE(position)
      position += 4
      if (length < NULL_ELEMENT || position + length > buffer.length)
        throw new CodecError(id, `the length of element ${index}, ${length}, does not fit the ${buffer.length} bytes`)
      const part = length === NULL_ELEMENT ? null : buffer.subarray(position, position + length)
      values.push(atElement(id, index, () => (elements[index] as Codec<unknown>).decode(part)))
      position += part === null ? 0 : length
    }
    if (position !== buffer.length) throw new CodecError(id, `${buffer.length - position} bytes too many after the last element`)
    return values as Values
  }

  return Object.freeze({ id, encode, decode })
}

function atElement<T>(id: string, index: number, run: () => T): T {
  try {
    return run()
  } catch (error) {
    throw new CodecError(id, `element ${index}: ${error instanceof Error ? error.message : String(error)}`, error)
  }
}
