/**
 * JSON plus what JSON loses: Date, bigint, bytes, Map, Set, NaN, the infinities and -0.
 *
 * Format: JSON text. A value that JSON has no form for becomes `{"$":[tag, content]}`; an object of the user that has a field `$` is itself wrapped, so no user
 * data can be mistaken for a tag. Everything else is refused with the path to it (class instances, functions, cycles): silently losing a prototype would
 * break C3.
 */
import { CodecError, describeValue, presentBytes, refusedValue, type Bytes, type Codec } from './codec.ts'
import { decodeUtf8 } from './scalar-codecs.ts'

const ID = 'structured'
const TAG = '$'
const MAXIMUM_DEPTH = 200

/**
 * The default for internal topics and stores without a declared codec: JSON plus Date, bigint, bytes, Map and Set. Class instances fail.
 * A field that is undefined is left out, as in JSON; undefined in an array, a Map or a Set fails.
 */
export function structured<T>(): Codec<T> {
  return structuredCodec as Codec<T>
}

const structuredCodec: Codec<unknown> = Object.freeze({
  id: ID,
  encode(value: unknown): Buffer {
    if (value === null || value === undefined) throw refusedValue(ID, value, 'a value')
    return Buffer.from(JSON.stringify(toJson(value, '', 0)), 'utf8')
  },
  decode(bytes: Bytes | null): unknown {
    const buffer = presentBytes(ID, bytes)
    const text = decodeUtf8(ID, buffer)
    try {
      const parsed: unknown = JSON.parse(text)
      return text.includes('{"$":') ? fromJson(parsed) : parsed
    } catch (error) {
      if (error instanceof CodecError) throw error
      throw new CodecError(ID, `the ${buffer.length} bytes are not of this format`, error)
    }
  },
})

/** The value as JSON.stringify can write it. Returns the value itself, not a copy, where nothing in it needs a tag. */
function toJson(value: unknown, path: string, depth: number): unknown {
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return value
    case 'number':
      return Number.isFinite(value) && !Object.is(value, -0) ? value : tagged('number', Object.is(value, -0) ? '-0' : String(value))
    case 'bigint':
      return tagged('bigint', value.toString())
    case 'object':
      if (value === null) return null
      if (depth > MAXIMUM_DEPTH) throw new CodecError(ID, `nested deeper than ${MAXIMUM_DEPTH} levels, or refers to itself`)
      return objectToJson(value, path, depth)
    default:
      throw refused(value, path)
  }
}

function objectToJson(value: object, path: string, depth: number): unknown {
  const prototype: unknown = Object.getPrototypeOf(value)
  if (Array.isArray(value) && prototype === Array.prototype) return arrayToJson(value, path, depth)
  if (prototype === Object.prototype || prototype === null) return plainToJson(value as Record<string, unknown>, path, depth)
  if (value instanceof Date && prototype === Date.prototype) {
    const time = value.getTime()
    if (Number.isNaN(time)) throw new CodecError(ID, `${where(path)}: an invalid Date`)
    return tagged('date', time)
  }
  if (value instanceof Uint8Array && (prototype === Uint8Array.prototype || prototype === Buffer.prototype)) {
    return tagged('bytes', Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('base64'))
  }
  if (value instanceof Map && prototype === Map.prototype) {
    const entries = [...(value as Map<unknown, unknown>)]
    return tagged(
      'map',
      entries.map(([key, item], index) => [
        toJson(key, `${path}<key ${index}>`, depth + 1),
        toJson(item, `${path}<value ${index}>`, depth + 1),
      ]),
    )
  }
  if (value instanceof Set && prototype === Set.prototype) {
    return tagged(
      'set',
      [...(value as Set<unknown>)].map((item, index) => toJson(item, `${path}<${index}>`, depth + 1)),
    )
  }
  throw refused(value, path)
}

function arrayToJson(array: readonly unknown[], path: string, depth: number): readonly unknown[] {
  let copy: unknown[] | undefined
  // By index, so that a hole is met as undefined and refused.
  for (let index = 0; index < array.length; index++) {
    const item = array[index]
    const converted = toJson(item, `${path}[${index}]`, depth + 1)
    if (converted !== item) (copy ??= [...array])[index] = converted
  }
  return copy ?? array
}

function plainToJson(object: Record<string, unknown>, path: string, depth: number): unknown {
  let copy: Record<string, unknown> | undefined
  for (const name of Object.keys(object)) {
    const item = object[name]
    if (item === undefined) continue
    const converted = toJson(item, path === '' ? name : `${path}.${name}`, depth + 1)
    // Without a prototype, so that a field named `__proto__` stays a field.
    if (converted !== item) (copy ??= Object.assign(Object.create(null) as Record<string, unknown>, object))[name] = converted
  }
  const result = copy ?? object
  return Object.hasOwn(object, TAG) ? tagged('object', result) : result
}

function tagged(tag: string, content: unknown): Record<string, unknown> {
  return { [TAG]: [tag, content] }
}

/** Undoes the tags, in place: the parsed value is nobody else's. */
function fromJson(value: unknown): unknown {
  if (typeof value !== 'object' || value === null) return value
  if (Array.isArray(value)) {
    for (let index = 0; index < value.length; index++) value[index] = fromJson(value[index])
    return value
  }
  const object = value as Record<string, unknown>
  if (Object.hasOwn(object, TAG)) return untagged(object[TAG])
  return fieldsFromJson(object)
}

function fieldsFromJson(object: Record<string, unknown>): Record<string, unknown> {
  for (const name of Object.keys(object)) object[name] = fromJson(object[name])
  return object
}

function untagged(tag: unknown): unknown {
  const [name, content] = Array.isArray(tag) ? (tag as unknown[]) : []
  switch (name) {
    case 'number':
      return Number(content)
    case 'bigint':
      return BigInt(content as string)
    case 'date':
      return new Date(content as number)
    case 'bytes':
      return new Uint8Array(Buffer.from(content as string, 'base64'))
    case 'map':
      return new Map((content as [unknown, unknown][]).map(([key, item]) => [fromJson(key), fromJson(item)]))
    case 'set':
      return new Set((content as unknown[]).map(fromJson))
    case 'object':
      return fieldsFromJson(content as Record<string, unknown>)
    default:
      throw new CodecError(
        ID,
        `the tag ${JSON.stringify(name)} is not known; the bytes were written by a later version or by another codec`,
      )
  }
}

function refused(value: unknown, path: string): CodecError {
  return new CodecError(
    ID,
    `${where(path)}: ${describeValue(value)} has no form here; use plain objects, arrays, Date, bigint, bytes, Map and Set`,
  )
}

function where(path: string): string {
  return path === '' ? 'the whole value' : path
}
