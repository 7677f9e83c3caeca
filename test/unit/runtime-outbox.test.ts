/** Outputs of one record: what the sinks accept, the cap of one record, and a full client queue. */
import { describe, expect, test } from 'vitest'
import { checkBrokerLimits } from '../../src/runtime/broker-limits.ts'
import { RecordOutbox } from '../../src/runtime/record-outbox.ts'
import { producerSizes, readSinkLimits, SinkCheck, type SinkLimits } from '../../src/runtime/sink-limits.ts'
import { UnknownSinkError } from '../../src/task/outbox.ts'
import { ManualClock } from '../helpers/manual-time.ts'
import { ScriptedAdmin } from '../helpers/scripted-broker.ts'

const HOUR = 3_600_000
const limits: SinkLimits = {
  partitions: 4,
  maxMessageBytes: 1_000,
  compacted: false,
  timestampBeforeMaxMs: 24 * HOUR,
  timestampAfterMaxMs: HOUR,
}
const clock = new ManualClock()
const now = clock.now()
const check = (changed: Partial<SinkLimits> = {}) => new SinkCheck(new Map([['out', { ...limits, ...changed }]]), clock)
const KEY = Buffer.from('k')

describe('what a sink accepts', () => {
  test.each<[string, (sink: SinkCheck) => unknown, RegExp]>([
    [
      'a value above max.message.bytes',
      (sink) => sink.check('out', null, KEY, Buffer.alloc(1_000), now, []),
      /out has \d+ bytes, the topic's max\.message\.bytes is 1000/,
    ],
    ['headers above it', (sink) => sink.check('out', null, KEY, null, now, [['h', Buffer.alloc(1_000)]]), /max\.message\.bytes/],
    ['a partition that is not there', (sink) => sink.check('out', 4, KEY, null, now, []), /chose 4 for out, which has partitions 0 to 3/],
    ['a negative partition', (sink) => sink.check('out', -1, KEY, null, now, []), /chose -1/],
    ['a partition that is no whole number', (sink) => sink.check('out', 1.5, KEY, null, now, []), /chose 1\.5/],
    ['a partition that is NaN', (sink) => sink.check('out', Number.NaN, KEY, null, now, []), /chose NaN/],
    [
      'a time too far ahead',
      (sink) => sink.check('out', null, KEY, null, now + 2 * HOUR, []),
      /message\.timestamp\.after\.max\.ms \(3600000\) ahead/,
    ],
    [
      'a time too far back',
      (sink) => sink.check('out', null, KEY, null, now - 25 * HOUR, []),
      /message\.timestamp\.before\.max\.ms \(86400000\) back/,
    ],
  ])('refuses %s by name', (_name, act, message) => {
    expect(() => act(check())).toThrow(message)
  })

  test('a topic whose limits are not known yet is named for the worker to read them; then it is checked like any other', () => {
    const sink = check()
    const unknown = (): unknown => sink.check('other', 7, KEY, null, now, [])
    expect(unknown).toThrow(UnknownSinkError)
    expect(unknown).toThrow(expect.objectContaining({ topic: 'other' }))
    sink.learn(new Map([['other', { ...limits, partitions: 8 }]]))
    expect(sink.partitions('other')).toBe(8)
    expect(unknown()).toBeGreaterThan(0)
  })

  test('the accepted timestamp is the nearest one that the topic takes', () => {
    const sink = check()
    for (const timestamp of [now + 30 * 24 * HOUR, now - 30 * 24 * HOUR, -1]) {
      const accepted = sink.acceptedTimestamp('out', timestamp)
      expect(sink.check('out', null, KEY, null, accepted, [])).toBeGreaterThan(0)
      expect(Math.abs(accepted - now)).toBeLessThan(25 * HOUR)
    }
    expect(sink.acceptedTimestamp('out', now - HOUR)).toBe(now - HOUR)
  })

  test('refuses a null key in a compacted topic, and takes it in another', () => {
    expect(() => check({ compacted: true }).check('out', null, null, KEY, now, [])).toThrow('no key, but the topic is compacted')
    expect(check().check('out', null, null, KEY, now, [])).toBeGreaterThan(0)
  })

  test('takes what fits, tombstones and empty keys included, and says its size', () => {
    const sink = check({ compacted: true })
    expect(sink.check('out', 3, Buffer.alloc(0), null, now, [])).toBeGreaterThan(0)
    expect(sink.check('out', 0, KEY, Buffer.alloc(500), now, [['n', null]])).toBeGreaterThan(500)
  })

  test('a header name counts by its bytes, as the broker counts it', () => {
    const name = '\u00e4'.repeat(400)
    expect(() => check().check('out', null, KEY, Buffer.alloc(100), now, [[name, null]])).toThrow('max.message.bytes')
  })

  test('an unlimited bound is no bound', () => {
    const sink = check({ timestampBeforeMaxMs: Number.MAX_SAFE_INTEGER, timestampAfterMaxMs: Number.MAX_SAFE_INTEGER })
    expect(sink.check('out', null, KEY, null, 1, [])).toBeGreaterThan(0)
  })
})

describe('limits read at start', () => {
  test('come from the topics; a topic with the time of its broker has no bounds', async () => {
    const admin = new ScriptedAdmin()
    admin.topics.set('a', {
      partitions: 3,
      config: { 'max.message.bytes': '5000', 'cleanup.policy': 'compact,delete', 'message.timestamp.after.max.ms': '1000' },
    })
    admin.topics.set('b', {
      partitions: 1,
      config: { 'message.timestamp.type': 'LogAppendTime', 'message.timestamp.after.max.ms': '1000' },
    })
    const read = await readSinkLimits(admin, ['a', 'b'])
    expect(read.get('a')).toMatchObject({ partitions: 3, maxMessageBytes: 5_000, compacted: true, timestampAfterMaxMs: 1_000 })
    expect(read.get('b')).toMatchObject({ compacted: false, timestampAfterMaxMs: Number.MAX_SAFE_INTEGER })
  })

  test('name every missing topic, and how to make it', async () => {
    const admin = new ScriptedAdmin()
    await expect(readSinkLimits(admin, ['x', 'y'])).rejects.toMatchObject({
      name: 'ConfigError',
      code: 'topic-missing',
      message: 'topics x, y, written to by this topology, do not exist',
      remedy: expect.stringContaining('kafka-topics.sh --create --topic x'),
    })
  })
})

describe('the sizes of the client follow the topics', () => {
  const of = (...maxMessageBytes: number[]) => producerSizes(maxMessageBytes.map((max) => ({ ...limits, maxMessageBytes: max })))

  test('the largest record that any of them takes goes out, and no batch is above what all of them take', () => {
    expect(of(4_000, 5_000_000)).toEqual({ maxMessageBytes: 5_000_000, batchBytes: 4_000 })
    expect(of(5_000_000)).toEqual({ maxMessageBytes: 5_000_000, batchBytes: 1_000_000 })
    expect(of()).toEqual({ maxMessageBytes: 1_000_000, batchBytes: 1_000_000 })
  })
})

describe('time-outs above the limits of the broker', () => {
  const settings = { transactionTimeoutMs: 60_000, sessionTimeoutMs: 90_000 }
  const config = (values: Record<string, number>) => new Map(Object.entries(values).map(([name, value]) => [name, String(value)]))

  test.each([
    ['transactionTimeout', 'transaction.max.timeout.ms', 59_999, 60_000],
    ['sessionTimeout', 'group.max.session.timeout.ms', 89_999, 90_000],
    ['sessionTimeout', 'group.min.session.timeout.ms', 90_001, 90_000],
  ])('B21: %s against %s is refused, both values named; equal is fine', (option, name, limit, value) => {
    expect(() => checkBrokerLimits(config({ [name]: limit }), settings)).toThrow(
      expect.objectContaining({
        name: 'ConfigError',
        code: 'broker-limit',
        message: expect.stringMatching(new RegExp(`option ${option} \\(${value} ms\\) is .* ${name} \\(${limit} ms\\)`)),
      }),
    )
    expect(() => checkBrokerLimits(config({ [name]: value }), settings)).not.toThrow()
  })

  test('a limit that the broker does not tell is no limit', () => {
    expect(() => checkBrokerLimits(new Map(), settings)).not.toThrow()
  })
})

describe('the outbox of a record', () => {
  const outbox = (maxBytes = 1_000_000) => new RecordOutbox(check(), maxBytes)
  const take = (taken: string[], room = Infinity) => {
    return (_topic: string, _partition: number | null, _key: Buffer | null, value: Buffer | null): boolean => {
      if (taken.length >= room) return false
      taken.push(String(value))
      return true
    }
  }
  const send = (box: RecordOutbox, value: string) => box.send('out', null, KEY, Buffer.from(value), now, [])

  test('delivers in order and is empty then', () => {
    const box = outbox()
    const taken: string[] = []
    send(box, 'one')
    send(box, 'two')
    expect(box.count).toBe(2)
    expect(box.deliver(take(taken))).toBe(true)
    expect(taken).toEqual(['one', 'two'])
    expect([box.count, box.bytes]).toEqual([0, 0])
  })

  test('X9: a full queue stops it where it was, and nothing is sent twice afterwards', () => {
    const box = outbox()
    const taken: string[] = []
    for (const value of ['one', 'two', 'three']) send(box, value)
    expect(box.deliver(take(taken, 1))).toBe(false)
    expect(box.deliver(take(taken, 1))).toBe(false)
    expect(box.deliver(take(taken))).toBe(true)
    expect(taken).toEqual(['one', 'two', 'three'])
  })

  test('what is discarded is not delivered, also when the slots are used again', () => {
    const box = outbox()
    const taken: string[] = []
    send(box, 'of a failed record')
    send(box, 'another of it')
    box.discard()
    send(box, 'good')
    expect(box.deliver(take(taken))).toBe(true)
    expect(taken).toEqual(['good'])
  })

  test('X9: the outputs of one record have a cap of their own, named in the message', () => {
    const box = outbox(1_500)
    box.send('out', null, KEY, Buffer.alloc(700), now, [])
    expect(() => box.send('out', null, KEY, Buffer.alloc(700), now, [])).toThrow('exceed 1500 bytes (option recordMaxOutputBytes)')
    box.discard()
    box.send('out', null, KEY, Buffer.alloc(700), now, [])
    expect(box.count).toBe(1)
  })
})
