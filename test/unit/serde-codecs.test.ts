import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { CodecError } from '../../src/serde/codec.ts'
import * as serde from '../../src/serde/index.ts'
import {
  bigint64,
  boolean,
  bytes,
  codec,
  date,
  float64,
  int32,
  int64,
  nullable,
  string,
  tuple,
  uuid,
  type Codec,
} from '../../src/serde/index.ts'

const hex = (text: string): Buffer => Buffer.from(text.replaceAll(' ', ''), 'hex')
const everyCodec: readonly Codec<never>[] = [
  string(),
  bytes(),
  int32(),
  int64(),
  bigint64(),
  float64(),
  boolean(),
  uuid(),
  date(),
  serde.json(),
  serde.structured(),
  tuple(string()),
] as never

describe('bytes are those of the Java client', () => {
  const cases: readonly [java: string, codec: Codec<never>, value: unknown, bytes: string][] = [
    ['StringSerializer("héllo €😀")', string() as never, 'héllo €😀', '68c3a96c6c6f20e282acf09f9880'],
    ['StringSerializer("")', string() as never, '', ''],
    ['IntegerSerializer(1)', int32() as never, 1, '00000001'],
    ['IntegerSerializer(-2)', int32() as never, -2, 'fffffffe'],
    ['IntegerSerializer(Integer.MIN_VALUE)', int32() as never, -2147483648, '80000000'],
    ['IntegerSerializer(Integer.MAX_VALUE)', int32() as never, 2147483647, '7fffffff'],
    ['LongSerializer(1)', int64() as never, 1, '0000000000000001'],
    ['LongSerializer(-1)', int64() as never, -1, 'ffffffffffffffff'],
    ['LongSerializer(1700000000123)', int64() as never, 1700000000123, '0000018bcfe5687b'],
    ['LongSerializer(2^53 - 1)', int64() as never, Number.MAX_SAFE_INTEGER, '001fffffffffffff'],
    ['LongSerializer(-(2^53 - 1))', int64() as never, Number.MIN_SAFE_INTEGER, 'ffe0000000000001'],
    ['LongSerializer(Long.MIN_VALUE)', bigint64() as never, -(2n ** 63n), '8000000000000000'],
    ['LongSerializer(Long.MAX_VALUE)', bigint64() as never, 2n ** 63n - 1n, '7fffffffffffffff'],
    ['DoubleSerializer(1.5)', float64() as never, 1.5, '3ff8000000000000'],
    ['DoubleSerializer(-0.1)', float64() as never, -0.1, 'bfb999999999999a'],
    ['DoubleSerializer(Infinity)', float64() as never, Infinity, '7ff0000000000000'],
    ['BooleanSerializer(true)', boolean() as never, true, '01'],
    ['BooleanSerializer(false)', boolean() as never, false, '00'],
    [
      'UUIDSerializer',
      uuid() as never,
      '123e4567-e89b-12d3-a456-426614174000',
      Buffer.from('123e4567-e89b-12d3-a456-426614174000').toString('hex'),
    ],
    ['LongSerializer(Instant.toEpochMilli())', date() as never, new Date(-1), 'ffffffffffffffff'],
  ]
  test.each(cases)('%s', (_java, { encode, decode }, value, expected) => {
    const encoded = encode(value as never)
    expect(Buffer.isBuffer(encoded)).toBe(true)
    expect((encoded as Buffer).toString('hex')).toBe(expected)
    expect(decode(hex(expected))).toEqual(value)
  })
})

describe('what is encoded decodes to the same value', () => {
  const roundTrip = <T>(name: string, given: Codec<T>, values: fc.Arbitrary<T>): void => {
    test(name, () => {
      fc.assert(
        fc.property(values, (value) => {
          const encoded = given.encode(value)
          expect(given.decode(encoded)).toEqual(value)
          // A plain Uint8Array inside a larger memory, as another client may hand it over.
          if (encoded !== null) {
            const surrounded = new Uint8Array(encoded.length + 5).fill(255)
            surrounded.set(encoded, 3)
            expect(given.decode(surrounded.subarray(3, 3 + encoded.length))).toEqual(value)
          }
        }),
        { numRuns: 300 },
      )
    })
  }
  roundTrip('string', string(), fc.string({ unit: 'binary' }))
  roundTrip(
    'bytes',
    bytes(),
    fc.uint8Array().map((array): Uint8Array => Buffer.from(array)),
  )
  roundTrip('int32', int32(), fc.integer())
  roundTrip('int64', int64(), fc.maxSafeInteger())
  roundTrip('bigint64', bigint64(), fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }))
  roundTrip('float64', float64(), fc.double())
  roundTrip('boolean', boolean(), fc.boolean())
  roundTrip('uuid', uuid(), fc.uuid())
  roundTrip('date', date(), fc.date({ noInvalidDate: true }))
  roundTrip('nullable(string)', nullable(string()), fc.option(fc.string()))
  roundTrip(
    'tuple',
    tuple(string(), nullable(int64()), tuple(uuid(), boolean())),
    fc.tuple(fc.string(), fc.option(fc.maxSafeInteger()), fc.tuple(fc.uuid(), fc.boolean())),
  )
})

test('int64 and bigint64 agree byte for byte', () => {
  fc.assert(
    fc.property(fc.maxSafeInteger(), (value) => {
      expect(int64().encode(value)).toEqual(bigint64().encode(BigInt(value)))
    }),
  )
})

test('int64 refuses every stored value that a number cannot hold exactly, and no other', () => {
  fc.assert(
    fc.property(fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }), (value) => {
      const stored = bigint64().encode(value)
      if (BigInt.asIntN(54, value) === value && value !== -(2n ** 53n)) expect(int64().decode(stored)).toBe(Number(value))
      else expect(() => int64().decode(stored)).toThrow(`int64: ${value} does not fit a number (±(2^53 - 1)); use bigint64()`)
    }),
  )
  for (const value of [2n ** 53n, 2n ** 53n - 1n, -(2n ** 53n), -(2n ** 53n) + 1n]) {
    const stored = bigint64().encode(value)
    const fits = value > -(2n ** 53n) && value < 2n ** 53n
    if (fits) expect(int64().decode(stored)).toBe(Number(value))
    else expect(() => int64().decode(stored)).toThrow(CodecError)
  }
})

test('two tuples that differ never share their bytes', () => {
  const pair = tuple(string(), string())
  const pairs = fc.tuple(fc.string({ maxLength: 4 }), fc.string({ maxLength: 4 }))
  fc.assert(
    fc.property(pairs, pairs, (left, right) => {
      const equalBytes = (pair.encode(left) as Buffer).equals(pair.encode(right) as Buffer)
      expect(equalBytes).toBe(left[0] === right[0] && left[1] === right[1])
    }),
  )
  expect(pair.encode(['ab', 'c'])).not.toEqual(pair.encode(['a', 'bc']))
})

describe('null passes through nullable() only', () => {
  test.each(everyCodec.map((each) => [each.id, each] as const))(
    '%s refuses null and undefined in both directions, and says what to declare',
    (id, each) => {
      for (const absent of [null, undefined]) {
        expect(() => each.encode(absent as never)).toThrow(CodecError)
        expect(() => each.encode(absent as never)).toThrow(/nullable\(/)
        expect(() => each.decode(absent as never)).toThrow(/nullable\(/)
      }
      expect(() => each.decode(null)).toThrow(`${id}: the bytes are null`)
    },
  )

  test('null and empty stay distinct', () => {
    const optional = nullable(string())
    expect(optional.encode(null)).toBeNull()
    expect(optional.encode('')).toEqual(Buffer.alloc(0))
    expect(optional.decode(null)).toBeNull()
    expect(optional.decode(Buffer.alloc(0))).toBe('')
  })

  test('nullable() does not hide undefined', () => {
    expect(() => nullable(string()).encode(undefined as never)).toThrow(CodecError)
  })
})

describe('wrong bytes and wrong values fail instead of becoming another value', () => {
  test.each([
    ['int32 of 3 bytes', () => int32().decode(hex('000001')), 'int32: 3 bytes where exactly 4 are needed'],
    ['int32 of 8 bytes', () => int32().decode(hex('0000000000000001')), 'int32: 8 bytes where exactly 4 are needed'],
    ['int64 of 4 bytes', () => int64().decode(hex('00000001')), 'int64: 4 bytes where exactly 8 are needed'],
    ['int64 of nothing', () => int64().decode(Buffer.alloc(0)), 'int64: 0 bytes where exactly 8 are needed'],
    ['float64 of 7 bytes', () => float64().decode(hex('00000000000000')), 'float64: 7 bytes where exactly 8 are needed'],
    ['boolean of 2', () => boolean().decode(hex('02')), 'boolean: the byte 2 where 0 or 1 is needed'],
    ['boolean of two bytes', () => boolean().decode(hex('0101')), 'boolean: 2 bytes where exactly 1 are needed'],
    ['string of bytes that are not UTF-8', () => string().decode(hex('61ff62')), 'string: the 3 bytes are not valid UTF-8'],
    ['string of an overlong form', () => string().decode(hex('c0af')), 'string: the 2 bytes are not valid UTF-8'],
    ['string of an encoded surrogate', () => string().decode(hex('eda080')), 'string: the 3 bytes are not valid UTF-8'],
    ['a text with half a surrogate pair', () => string().encode('a\ud800'), 'string: the text has half a surrogate pair'],
    ['a number as a string', () => string().encode(7 as never), 'string: the number 7 where a string is needed'],
    [
      'int32 of 2^31',
      () => int32().encode(2 ** 31),
      'int32: the number 2147483648 where a whole number from -2147483648 to 2147483647 is needed',
    ],
    ['int32 of a fraction', () => int32().encode(1.5), 'int32: the number 1.5'],
    ['int32 of NaN', () => int32().encode(NaN), 'int32: the number NaN'],
    ['int64 of 2^53', () => int64().encode(2 ** 53), 'int64: the number 9007199254740992 where a whole number within'],
    ['int64 of a bigint', () => int64().encode(1n as never), 'int64: the bigint 1'],
    ['bigint64 of 2^63', () => bigint64().encode(2n ** 63n), 'bigint64: the bigint 9223372036854775808'],
    ['float64 of a text', () => float64().encode('1' as never), 'float64: a string where a number is needed'],
    ['boolean of a number', () => boolean().encode(1 as never), 'boolean: the number 1 where true or false is needed'],
    ['bytes of an array', () => bytes().encode([1, 2] as never), 'bytes: an array where a Uint8Array is needed'],
    ['uuid of another text', () => uuid().encode('123e4567'), 'uuid: a text of 8 characters where a UUID'],
    ['uuid of 16 raw bytes', () => uuid().decode(Buffer.alloc(16)), 'uuid: 16 bytes that are not a UUID as text'],
    ['an invalid Date', () => date().encode(new Date(NaN)), 'date: an invalid Date'],
    [
      'a date outside the range',
      () => date().decode(int64().encode(8.64e15 + 1)),
      'date: 8640000000000001 ms is outside the range of Date',
    ],
    [
      'a tuple of too few',
      () => tuple(string(), string()).encode(['a'] as never),
      'tuple(string,string): 1 elements where exactly 2 are needed',
    ],
    ['a wrong element', () => tuple(string(), int32()).encode(['a', 0.5]), 'tuple(string,int32): element 1: int32: the number 0.5'],
    [
      'a tuple cut short',
      () => tuple(string(), string()).decode(hex('00000001 61')),
      'tuple(string,string): the bytes end before element 1',
    ],
    [
      'a tuple with a length too large',
      () => tuple(string()).decode(hex('7fffffff 61')),
      'tuple(string): the length of element 0, 2147483647, does not fit the 5 bytes',
    ],
    [
      'a tuple with a negative length',
      () => tuple(string()).decode(hex('fffffffe')),
      'tuple(string): the length of element 0, -2, does not fit',
    ],
    [
      'a tuple with bytes left over',
      () => tuple(string()).decode(hex('00000001 61 62')),
      'tuple(string): 1 bytes too many after the last element',
    ],
    ['a null element', () => tuple(string()).decode(hex('ffffffff')), 'tuple(string): element 0: string: the bytes are null'],
  ])('%s', (_name, run, message) => {
    expect(run).toThrow(CodecError)
    expect(run).toThrow(message)
  })

  test('a UUID is one key whatever the case of its letters', () => {
    const upper = '123E4567-E89B-12D3-A456-426614174000'
    expect(uuid().encode(upper)).toEqual(uuid().encode(upper.toLowerCase()))
    expect(uuid().decode(Buffer.from(upper))).toBe(upper.toLowerCase())
  })
})

describe('codec() of your own', () => {
  const csv = codec<string[]>({
    id: 'csv',
    encode: (cells) => new TextEncoder().encode(cells.join(';')),
    decode: (given) => Buffer.from(given).toString().split(';'),
  })

  test('encodes to a Buffer whatever bytes the function returns', () => {
    expect(Buffer.isBuffer(csv.encode(['a', 'b']))).toBe(true)
    expect(csv.decode(csv.encode(['a', 'b']))).toEqual(['a', 'b'])
  })

  test('never sees null', () => {
    expect(() => csv.encode(null as never)).toThrow(
      'csv: the value is null; if null is allowed here, declare the topic with nullable(csv())',
    )
    expect(() => csv.decode(null)).toThrow('csv: the bytes are null')
    expect(nullable(csv).id).toBe('nullable(csv)')
  })

  test('that returns no bytes fails', () => {
    const wrong = codec<string>({ id: 'wrong', encode: (text) => text as never, decode: String })
    expect(() => wrong.encode('a')).toThrow('wrong: encode returned a string where bytes (Uint8Array) are needed')
  })

  test('needs an id and two functions', () => {
    expect(() => codec({ id: '', encode: () => Buffer.alloc(0), decode: () => 0 })).toThrow('`id` must be a text')
    expect(() => codec({ id: 'half', encode: () => Buffer.alloc(0) } as never)).toThrow(
      "codec 'half': `encode` and `decode` must be functions",
    )
  })
})

test('ids name the formats', () => {
  expect([...everyCodec, nullable(string()), tuple(string(), nullable(int64()))].map((each) => each.id)).toEqual([
    'string',
    'bytes',
    'int32',
    'int64',
    'bigint64',
    'float64',
    'boolean',
    'uuid',
    'date',
    'json',
    'structured',
    'tuple(string)',
    'nullable(string)',
    'tuple(string,nullable(int64))',
  ])
})
