import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { z } from 'zod'
import { ConfigError } from '../../src/errors/errors.ts'
import { CodecError } from '../../src/serde/codec.ts'
import { json, nullable, structured, type Schema } from '../../src/serde/index.ts'

const OrderSchema = z.object({
  orderId: z.string(),
  amount: z.number(),
  lines: z.array(z.object({ price: z.number().nonnegative() })).optional(),
})
const order = json(OrderSchema)
const text = (value: string): Buffer => Buffer.from(value)

function messageOf(run: () => unknown): string {
  try {
    run()
  } catch (error) {
    expect(error).toBeInstanceOf(CodecError)
    return (error as Error).message
  }
  throw new Error('did not throw')
}

describe('json(schema)', () => {
  test('reads and writes JSON text', () => {
    const encoded = order.encode({ orderId: 'ö-1', amount: 2.5 })
    expect(Buffer.isBuffer(encoded)).toBe(true)
    expect(encoded?.toString()).toBe('{"orderId":"ö-1","amount":2.5}')
    expect(order.decode(encoded)).toEqual({ orderId: 'ö-1', amount: 2.5 })
  })

  test('names the field and the reason, on read', () => {
    expect(messageOf(() => order.decode(text('{"orderId":7,"amount":1,"lines":[{"price":1},{"price":-1}]}')))).toBe(
      'json: does not match the schema: orderId: Invalid input: expected string, received number; lines[1].price: Too small: expected number to be >=0',
    )
    expect(messageOf(() => order.decode(text('[]')))).toMatch(/^json: does not match the schema: the whole value: /)
  })

  test('names the field and the reason, on write', () => {
    expect(messageOf(() => order.encode({ orderId: 'a', amount: '1' } as never))).toBe(
      'json: does not match the schema: amount: Invalid input: expected number, received string',
    )
  })

  test('shows three fields and counts the others', () => {
    const wide = json(z.object({ a: z.string(), b: z.string(), c: z.string(), d: z.string(), e: z.string() }))
    const message = messageOf(() => wide.decode(text('{}')))
    expect(message).toMatch(/a: .*; b: .*; c: .* \(and 2 more\)$/)
    expect(message).not.toContain('d:')
  })

  test("check: 'read' writes without a check and still reads with one", () => {
    const readOnly = json(OrderSchema, { check: 'read' })
    const encoded = readOnly.encode({ orderId: 1 } as never)
    expect(encoded?.toString()).toBe('{"orderId":1}')
    expect(() => readOnly.decode(encoded)).toThrow(CodecError)
  })

  test('writes the value it was given, not what the schema would make of it', () => {
    const doubling = json(z.object({ n: z.number().transform((n) => n * 2) }))
    expect(doubling.encode({ n: 2 })?.toString()).toBe('{"n":2}')
    expect(doubling.decode(text('{"n":2}'))).toEqual({ n: 4 })
  })

  test('says what is wrong with bytes that are no JSON', () => {
    expect(messageOf(() => order.decode(text('{"orderId":')))).toMatch(/^json: the 11 bytes are not JSON: /)
    expect(messageOf(() => order.decode(Buffer.alloc(0)))).toBe('json: the value is empty (0 bytes), which is neither JSON nor null')
    expect(messageOf(() => order.decode(Buffer.from([0x22, 0xff, 0x22])))).toBe('json: the 3 bytes are not valid UTF-8')
  })

  test('says what is wrong with values that have no JSON', () => {
    const any = json()
    const cyclic: { self?: unknown } = {}
    cyclic.self = cyclic
    expect(messageOf(() => any.encode(cyclic))).toMatch(/^json: cannot be written as JSON: Converting circular structure/)
    expect(messageOf(() => any.encode({ n: 1n }))).toMatch(/^json: cannot be written as JSON: .*BigInt/)
    expect(messageOf(() => any.encode(() => 1))).toBe('json: a function cannot be written as JSON')
  })

  test('null is a tombstone with nullable() only', () => {
    expect(() => json().encode(null)).toThrow(/nullable\(json\(\)\)/)
    expect(nullable(order).encode(null)).toBeNull()
    expect(nullable(order).decode(null)).toBeNull()
  })
})

describe('a schema that cannot be used', () => {
  const standard = (validate: Schema<unknown>['~standard']['validate']): Schema<unknown> => ({
    '~standard': { version: 1, vendor: 'own', validate },
  })

  test('asynchronous schemas are refused when declared, where that can be seen', () => {
    const asynchronous = standard((value) => Promise.resolve({ value }))
    expect(() => json(asynchronous)).toThrow(ConfigError)
    expect(() => json(asynchronous)).toThrow('json(): the schema is asynchronous')
    expect(() => json(z.any().refine(async () => Promise.resolve(true)))).toThrow('json(): the schema is asynchronous')
  })

  test('others are refused at the first record that needs the asynchronous part', () => {
    const late = json(z.object({ id: z.string().refine(async () => Promise.resolve(true)) }))
    expect(messageOf(() => late.decode(text('{"id":"a"}')))).toMatch(
      /^json: the schema is asynchronous, but codecs run inside the transaction/,
    )
    expect(messageOf(() => late.encode({ id: 'a' }))).toMatch(/^json: the schema is asynchronous/)
  })

  test('a function of the schema that throws is reported as that, and leaves no unhandled rejection', async () => {
    const rejections: unknown[] = []
    const listener = (reason: unknown): void => void rejections.push(reason)
    process.on('unhandledRejection', listener)
    try {
      const throwing = json(
        z.object({
          id: z.string().refine((id) => {
            if (id === 'bad') throw new Error('no such shard')
            return true
          }),
        }),
      )
      expect(throwing.decode(text('{"id":"good"}'))).toEqual({ id: 'good' })
      expect(messageOf(() => throwing.decode(text('{"id":"bad"}')))).toBe('json: a function of the schema threw: no such shard')
      await new Promise((resolve) => setImmediate(resolve))
      expect(rejections).toEqual([])
    } finally {
      process.off('unhandledRejection', listener)
    }
  })

  test('undefined is not "no schema"', () => {
    expect(() => json(undefined as never)).toThrow('json(): the schema is undefined')
    expect(() => json({} as never)).toThrow('json(): the schema is not a Standard Schema')
    expect(() => json(OrderSchema, { check: 'write' } as never)).toThrow('json(): check is "write"')
  })

  test('works with any library that speaks Standard Schema', () => {
    const own = json(
      standard((value) =>
        value === 1 ? { value } : { issues: [{ message: 'must be one', path: [{ key: 'a' }, 0, 'b'] }] },
      ) as Schema<number>,
    )
    expect(own.decode(text('1'))).toBe(1)
    expect(messageOf(() => own.decode(text('2')))).toBe('json: does not match the schema: a[0].b: must be one')
  })
})

test('json() round-trips every JSON value', () => {
  const plain = json()
  fc.assert(
    fc.property(fc.jsonValue({ stringUnit: 'binary' }), (value) => {
      fc.pre(value !== null)
      // JSON itself has no -0.
      expect(plain.decode(plain.encode(value))).toEqual(JSON.parse(JSON.stringify(value)))
    }),
  )
})

describe('structured()', () => {
  const codec = structured<unknown>()

  test('round-trips JSON plus Date, bigint, bytes, Map, Set and every number', () => {
    const leaf = fc.oneof(
      fc.string({ unit: 'binary' }).filter((each) => (each as string & { isWellFormed(): boolean }).isWellFormed()),
      fc.double(),
      fc.boolean(),
      fc.constant(null),
      fc.bigInt(),
      fc.date({ noInvalidDate: true }),
      fc.uint8Array().map((array) => new Uint8Array(array)),
    )
    const key = fc.oneof(fc.string(), fc.constantFrom('$', '__proto__', 'constructor', 'toString', ''))
    const { value } = fc.letrec<{ value: unknown }>((tie) => ({
      value: fc.oneof(
        { depthSize: 'small' },
        leaf,
        fc.array(tie('value'), { maxLength: 4 }),
        fc.array(fc.tuple(key, tie('value')), { maxLength: 4 }).map((entries) => Object.fromEntries(entries)),
        fc.array(fc.tuple(leaf, tie('value')), { maxLength: 3 }).map((entries) => new Map(entries)),
        fc.array(tie('value'), { maxLength: 3 }).map((items) => new Set(items)),
      ),
    }))
    fc.assert(
      fc.property(value, (given) => {
        fc.pre(given !== null)
        const decoded = codec.decode(codec.encode(given))
        expect(decoded).toEqual(given)
        // Stable: what was read can be written again, to the same bytes.
        expect(codec.encode(decoded)).toEqual(codec.encode(given))
      }),
      { numRuns: 500 },
    )
  })

  test('is plain JSON where JSON is enough', () => {
    expect(codec.encode({ a: [1, 'x', null], b: { c: true }, left: undefined })?.toString()).toBe('{"a":[1,"x",null],"b":{"c":true}}')
  })

  test('does not change what it writes', () => {
    const value = Object.freeze({ at: new Date(5), list: Object.freeze([1n]) })
    codec.encode(value)
    expect(value).toEqual({ at: new Date(5), list: [1n] })
  })

  test('user data cannot be mistaken for a tag', () => {
    for (const value of [{ $: ['date', 5] }, { $: 1, other: new Date(1) }, { a: { $: ['bigint', '7'] } }])
      expect(codec.decode(codec.encode(value))).toEqual(value)
  })

  test('a field named __proto__ stays a field', () => {
    const value = JSON.parse('{"__proto__":{"admin":true},"at":{"x":1}}') as object
    const decoded = codec.decode(codec.encode({ ...value, when: new Date(1) })) as { admin?: boolean }
    expect(decoded.admin).toBeUndefined()
    const direct = codec.decode(
      codec.encode(Object.defineProperty({ big: 1n }, '__proto__', { value: { n: 2n }, enumerable: true })),
    ) as object
    expect(Object.getPrototypeOf(direct)).toBe(Object.prototype)
    expect(Object.getOwnPropertyDescriptor(direct, '__proto__')?.value).toEqual({ n: 2n })
  })

  test.each([
    ['a class instance', { user: new (class User {})() }, 'structured: user: an instance of User has no form here'],
    ['an instance deep inside', { a: [{ b: new Map([['k', new Error('x')]]) }] }, 'structured: a[0].b<value 0>: an instance of Error'],
    ['a subclass of Array', new (class List extends Array {})(), 'structured: the whole value: an array has no form here'],
    ['a function', { run: () => 1 }, 'structured: run: a function'],
    ['a symbol', [Symbol('x')], 'structured: [0]: a symbol'],
    ['undefined in an array', [undefined], 'structured: [0]: undefined'],
    ['a hole in an array', [, 1], 'structured: [0]: undefined'],
    ['undefined in a Map', new Map([['a', undefined]]), 'structured: <value 0>: undefined'],
    ['an invalid Date', { at: new Date(NaN) }, 'structured: at: an invalid Date'],
  ])('refuses %s and says where', (_name, value, message) => {
    expect(messageOf(() => codec.encode(value))).toContain(message)
  })

  test('refuses a cycle', () => {
    const cyclic: { self?: unknown } = {}
    cyclic.self = [cyclic]
    expect(messageOf(() => codec.encode(cyclic))).toBe('structured: nested deeper than 200 levels, or refers to itself')
  })

  test.each([
    ['an unknown tag', '{"$":["regexp","a"]}', 'structured: the tag "regexp" is not known'],
    ['a malformed tag', '{"$":["map",7]}', 'structured: the 15 bytes are not of this format'],
    ['no JSON', 'hello', 'structured: the 5 bytes are not of this format'],
  ])('refuses bytes with %s', (_name, given, message) => {
    expect(messageOf(() => codec.decode(text(given)))).toContain(message)
  })
})
