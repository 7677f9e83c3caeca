/**
 * JSON, checked by a schema in both directions.
 *
 * Owns: parsing, the call into the user's schema library (Standard Schema 1, synchronous only) and the short error that names the field.
 * What is written is the value that was handed over, not the schema's output: a check must not change what it checks.
 */
import { ConfigError } from '../errors/errors.ts'
import { CodecError, presentBytes, refusedValue, type Bytes, type Codec } from './codec.ts'
import { decodeUtf8 } from './scalar-codecs.ts'

/** Any schema library that speaks Standard Schema 1: zod, valibot, arktype. */
export interface Schema<T> {
  readonly '~standard': {
    readonly version: 1
    readonly vendor: string
    readonly validate: (value: unknown) => SchemaResult<T> | Promise<SchemaResult<T>>
    readonly types?: { readonly input: unknown; readonly output: T } | undefined
  }
}
export type SchemaResult<T> =
  | { readonly value: T; readonly issues?: undefined }
  | { readonly issues: readonly { readonly message: string; readonly path?: readonly unknown[] | undefined }[] }

export interface JsonOptions {
  /** `'both'` (default): the schema also checks what is written. `'read'`: only what is read. */
  readonly check?: 'both' | 'read'
}

const ID = 'json'
const ISSUES_SHOWN = 3
const ISSUE_LENGTH = 160

/**
 * JSON checked by a schema on read and on write. Name the type to keep hovers short. The schema must be synchronous: it runs inside the transaction.
 * A record that does not match takes the `onError` path, with an error that names the fields.
 * @example
 * const OrderSchema = z.object({ orderId: z.string(), amount: z.number() })
 * interface Order extends z.infer<typeof OrderSchema> {}
 * const orders = topic('orders', { key: string(), value: json<Order>(OrderSchema) })
 */
export function json<T>(schema: Schema<T>, options?: JsonOptions): Codec<T>
/** JSON without a schema: `unknown`, so nothing unchecked reaches your code. */
export function json(): Codec<unknown>
export function json<T>(...given: [schema?: Schema<T>, options?: JsonOptions]): Codec<T> | Codec<unknown> {
  if (given.length === 0) return uncheckedJson
  const [schema, options] = given
  // A schema that is undefined (a circular import, a misspelt property) must not silently turn the check off.
  if (schema === undefined || schema === null || typeof schema['~standard']?.validate !== 'function') {
    throw new ConfigError(`json(): the schema is ${schema === undefined ? 'undefined' : 'not a Standard Schema'}`, {
      code: 'CODEC_SCHEMA_INVALID',
      remedy: 'Pass a schema of zod 4, valibot or arktype; json() without arguments is JSON without a check',
    })
  }
  const check = options?.check ?? 'both'
  if (check !== 'both' && check !== 'read')
    throw new ConfigError(`json(): check is ${JSON.stringify(check)}`, { code: 'CODEC_OPTION_INVALID', remedy: "Use 'both' or 'read'" })
  refuseAsynchronousSchema(schema)
  const validate = validator(schema)

  return Object.freeze({
    id: ID,
    encode(value: T): Buffer {
      if (check === 'both') validate(value)
      return encodeJson(value)
    },
    decode: (bytes: Bytes | null): T => validate(decodeJson(bytes)),
  })
}

const uncheckedJson: Codec<unknown> = Object.freeze({ id: ID, encode: encodeJson, decode: decodeJson })

function encodeJson(value: unknown): Buffer {
  // JSON `null` is no tombstone: a null that arrives here is a mistake, or a case for nullable().
  if (value === null || value === undefined) throw refusedValue(ID, value, 'a value')
  let text: string | undefined
  try {
    text = JSON.stringify(value)
  } catch (error) {
    throw new CodecError(ID, `cannot be written as JSON: ${firstLine(error)}`, error)
  }
  if (text === undefined) throw new CodecError(ID, `a ${typeof value} cannot be written as JSON`)
  return Buffer.from(text, 'utf8')
}

function decodeJson(bytes: Bytes | null): unknown {
  const buffer = presentBytes(ID, bytes)
  try {
    return JSON.parse(decodeUtf8(ID, buffer))
  } catch (error) {
    if (error instanceof CodecError) throw error
    if (buffer.length === 0) throw new CodecError(ID, 'the value is empty (0 bytes), which is neither JSON nor null', error)
    throw new CodecError(ID, `the ${buffer.length} bytes are not JSON: ${firstLine(error)}`, error)
  }
}

function validator<T>(schema: Schema<T>): (value: unknown) => T {
  const standard = schema['~standard']
  return (value) => {
    const result = standard.validate(value)
    if (isPromiseLike(result)) throw promiseError(schema, value, result)
    if (result.issues !== undefined) throw new CodecError(ID, `does not match the schema: ${issuesText(result.issues)}`)
    return result.value
  }
}

function isPromiseLike<T>(result: T | Promise<T>): result is Promise<T> {
  return typeof (result as { then?: unknown }).then === 'function'
}

/** `orderId: expected string, received undefined; lines[2].price: too small (and 4 more)` */
function issuesText(issues: readonly { readonly message: string; readonly path?: readonly unknown[] | undefined }[]): string {
  const shown = issues
    .slice(0, ISSUES_SHOWN)
    .map(({ message, path }) => `${pathText(path)}: ${message.length > ISSUE_LENGTH ? `${message.slice(0, ISSUE_LENGTH)}...` : message}`)
  const hidden = issues.length - shown.length
  return shown.join('; ') + (hidden > 0 ? ` (and ${hidden} more)` : '')
}

function pathText(path: readonly unknown[] | undefined): string {
  let text = ''
  for (const segment of path ?? []) {
    const key = typeof segment === 'object' && segment !== null ? (segment as { key?: unknown }).key : segment
    if (typeof key === 'number') text += `[${key}]`
    else text += text === '' ? String(key) : `.${String(key)}`
  }
  return text === '' ? 'the whole value' : text
}

/**
 * Why a schema answered with a promise. Either it is asynchronous, or (zod) one of its functions threw: zod then starts again asynchronously and the promise
 * rejects. Asking zod's own synchronous `parse` tells the two apart. Returns the error that was thrown, undefined for an asynchronous schema.
 */
function thrownInside(schema: Schema<unknown>, value: unknown): unknown {
  const { parse } = schema as { parse?: unknown }
  if (schema['~standard'].vendor !== 'zod' || typeof parse !== 'function') return undefined
  try {
    parse.call(schema, value)
  } catch (error) {
    return error instanceof Error && error.constructor.name.includes('Async') ? undefined : error
  }
  return undefined
}

const SYNCHRONOUS_ONLY = 'the schema is asynchronous, but codecs run inside the transaction; do the asynchronous check outside of the codec'

function promiseError(schema: Schema<unknown>, value: unknown, promise: Promise<unknown>): CodecError {
  // Nobody awaits this promise: without this line its rejection would end the process.
  promise.then(undefined, () => undefined)
  const error = thrownInside(schema, value)
  return error === undefined
    ? new CodecError(ID, SYNCHRONOUS_ONLY)
    : new CodecError(ID, `a function of the schema threw: ${firstLine(error)}`, error)
}

/** Finds at declaration what can be found without a record; the rest shows at the first record. */
function refuseAsynchronousSchema(schema: Schema<unknown>): void {
  let result: SchemaResult<unknown> | Promise<SchemaResult<unknown>>
  try {
    result = schema['~standard'].validate(undefined)
  } catch {
    return // It throws on undefined, at once: synchronous.
  }
  if (!isPromiseLike(result)) return
  result.then(undefined, () => undefined)
  if (thrownInside(schema, undefined) !== undefined) return
  throw new ConfigError(`json(): ${SYNCHRONOUS_ONLY}`, {
    code: 'CODEC_SCHEMA_ASYNCHRONOUS',
    remedy: 'Use the synchronous form of the schema',
  })
}

function firstLine(error: unknown): string {
  const message = error instanceof Error ? error.message : String(error)
  return message.split('\n', 1)[0] ?? message
}
