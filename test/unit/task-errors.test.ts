/** A record that fails (X6, task K1-K3): nothing of it stays, and the policy decides. */
import { describe, expect, test } from 'vitest'
import { PoisonedRecordError } from '../../src/errors/errors.ts'
import { string } from '../../src/serde/index.ts'
import { UnknownSinkError } from '../../src/task/outbox.ts'
import { deadLetters, topic, topology, type Failure, type OnError, type Sources } from '../../src/topology/index.ts'
import { record } from '../helpers/scripted-broker.ts'
import { TaskDriver, type Sent } from '../helpers/task-driver.ts'
import { jsonOf } from '../helpers/codecs.ts'

const input = topic('in', { key: string(), value: jsonOf<{ id: string; bad?: boolean }>() })
const out = topic('out', { key: string(), value: jsonOf<{ id: string; bad?: boolean }>() })
const first = topic('first', { key: string(), value: jsonOf<{ id: string; bad?: boolean }>() })
const failed = deadLetters('failed')
const value = (id: string, bad = false): string => JSON.stringify({ id, bad })

/** Writes to one sink, remembers the id, then fails where the record says so: in the middle of its effects. */
const half = (onError: OnError, more?: (sources: Sources) => void) =>
  TaskDriver.of(
    topology('app', { onError }, (sources) => {
      const all = sources.stream(input)
      all.to(first)
      all
        .dedupe({ by: (event) => event.id, window: '1h', partitioned: 'by-key' })
        .mapValues(
          (event) => {
            if (event.bad === true) throw new RangeError('cannot be done')
            return event
          },
          { name: 'check' },
        )
        .to(out)
      more?.(sources)
    }),
  )
const topics = (sent: readonly Sent[]): string[] => sent.map(({ topic: name }) => name)

describe('K1: a record leaves all of its effects or none', () => {
  test.each<[string, OnError, string[]]>([
    ['skip', 'skip', []],
    ['a dead letter', { to: failed }, ['failed']],
    ['a function that says skip', () => 'skip', []],
  ])('half-way through, with %s, nothing of its outputs is there', async (_name, onError, expected) => {
    const driver = await half(onError)
    expect(topics(driver.run(record('in', 0, 'k', value('a', true))))).toEqual(expected)
  })

  test('the record before it in the same transaction keeps its outputs and its id', async () => {
    const driver = await half('skip')
    expect(topics(driver.run(record('in', 0, 'k', value('a'))))).toEqual(['first', 'out'])
    driver.run(record('in', 1, 'k', value('b', true)))
    expect(topics(driver.run(record('in', 2, 'k', value('a'))))).toEqual(['first'])
    expect(driver.commit()).toMatchObject({ records: 3, duplicates: 1, skipped: 1 })
  })

  test('a record whose outputs exceed their cap is poisoned as a whole', async () => {
    const driver = await TaskDriver.of(
      topology('app', { onError: 'skip' }, ({ stream }) => {
        const all = stream(input)
        all.to(first)
        all.to(out)
      }),
      {},
      300,
    )
    expect(driver.run(record('in', 0, 'k', value('x'.repeat(30))))).toEqual([])
    expect(driver.failures[0]!.failure.error.message).toContain('recordMaxOutputBytes')
  })
})

describe('K2: the first record of an id that fails is not remembered', () => {
  test('E45: the mended resend passes, once', async () => {
    const driver = await half('skip')
    driver.run(record('in', 0, 'k', value('a', true)))
    expect(topics(driver.run(record('in', 1, 'k', value('a'))))).toEqual(['first', 'out'])
    expect(topics(driver.run(record('in', 2, 'k', value('a'))))).toEqual(['first'])
  })

  test('also over a commit in between, and after an abort', async () => {
    const driver = await half('skip')
    driver.run(record('in', 0, 'k', value('a', true)))
    driver.commit()
    driver.run(record('in', 1, 'k', value('a')))
    driver.abort()
    expect(topics(driver.run(record('in', 1, 'k', value('a'))))).toEqual(['first', 'out'])
    driver.commit()
    expect(topics(driver.run(record('in', 2, 'k', value('a'))))).toEqual(['first'])
  })
})

describe('K3: stream time', () => {
  test('moves with processed records, never back, and not with a failed one', async () => {
    const driver = await half('skip')
    driver.run(record('in', 0, 'k', value('a'), { timestamp: 5_000 }))
    driver.run(record('in', 1, 'k', value('b'), { timestamp: 3_000 }))
    expect(driver.task.streamTime).toBe(5_000)
    driver.run(record('in', 2, 'k', value('c', true), { timestamp: 9_000 }))
    expect(driver.task.streamTime).toBe(5_000)
    expect(driver.task.streamTimeOf('in')).toBe(5_000)
  })

  test('returns to the committed value on abort', async () => {
    const driver = await half('skip')
    driver.run(record('in', 0, 'k', value('a'), { timestamp: 5_000 }))
    driver.commit()
    driver.run(record('in', 1, 'k', value('b'), { timestamp: 9_000 }))
    driver.abort()
    expect([driver.task.streamTime, driver.task.streamTimeOf('in')]).toEqual([5_000, 5_000])
  })

  test('begins where the committed offset said, so it survives a move of the task', async () => {
    const driver = await half('skip')
    driver.task.setStreamTime('in', 8_000)
    driver.run(record('in', 0, 'k', value('a'), { timestamp: 5_000 }))
    driver.abort()
    expect(driver.task.streamTime).toBe(8_000)
  })

  test('the time that a map gives its output does not move it', async () => {
    const driver = await TaskDriver.of(
      topology('app', ({ stream }) =>
        stream(input)
          .map((event, { key }) => ({ key, value: event, timestamp: 9_000 }))
          .to(out),
      ),
    )
    driver.run(record('in', 0, 'k', value('a'), { timestamp: 5_000 }))
    expect(driver.task.streamTime).toBe(5_000)
  })
})

describe('policies', () => {
  test("X6: 'fail' stops with the record by name, its node, the reason and what to do", async () => {
    const driver = await half('fail')
    let thrown: unknown
    try {
      driver.run(record('in', 41, 'k', value('a', true), { partition: 2 }))
    } catch (error) {
      thrown = error
    }
    expect(thrown).toBeInstanceOf(PoisonedRecordError)
    expect(thrown).toMatchObject({
      message: 'record in[2] offset 41 failed in node "check" (process): cannot be done',
      exitCode: 4,
      remedy: expect.stringContaining('onError'),
      cause: expect.any(RangeError),
    })
    expect(driver.outbox.count).toBe(0)
  })

  test("'skip' counts it", async () => {
    const driver = await half('skip')
    driver.run(record('in', 0, 'k', value('a', true)))
    expect(driver.commit()).toEqual({ records: 1, duplicates: 0, late: 0, skipped: 1, deadLetters: 0 })
    expect(driver.failures.map(({ reaction }) => reaction)).toEqual(['skip'])
  })

  test('F50: a dead letter carries the original bytes, key, time and headers, and where and why it failed', async () => {
    const driver = await half({ to: failed })
    const broken = record('in', 7, 'k', '{"id": nonsense', { partition: 2, timestamp: 1_234_567, headers: [['trace', Buffer.from('t1')]] })
    const [letter] = driver.run(broken)
    expect(letter).toMatchObject({ topic: 'failed', partition: null, key: 'k', value: '{"id": nonsense', timestamp: 1_234_567 })
    expect(letter!.headers).toMatchObject({
      trace: 't1',
      'millrace.topic': 'in',
      'millrace.partition': '2',
      'millrace.offset': '7',
      'millrace.timestamp': '1234567',
      'millrace.node': 'in',
      'millrace.phase': 'decode',
      'millrace.error': 'CodecError',
      'millrace.attempts': '1',
    })
    expect(letter!.headers['millrace.message']).toMatch(/json/)
    expect(driver.raw[0]!.value).toBe(broken.value)
    expect(driver.commit()).toMatchObject({ records: 1, deadLetters: 1, skipped: 0 })
  })

  test('long messages and stacks are capped, so the dead letter fits', async () => {
    const driver = await TaskDriver.of(
      topology('app', { onError: { to: failed } }, ({ stream }) =>
        stream(input)
          .peek(() => {
            throw new Error('x'.repeat(50_000))
          })
          .to(out),
      ),
    )
    const [letter] = driver.run(record('in', 0, 'k', value('a')))
    expect(letter!.headers['millrace.message']!.length).toBeLessThanOrEqual(1_024)
    expect(letter!.headers['millrace.stack']!.length).toBeLessThanOrEqual(4_096)
  })

  test('what is thrown need not be an error', async () => {
    const driver = await TaskDriver.of(
      topology('app', { onError: 'skip' }, ({ stream }) =>
        stream(input)
          .peek(() => {
            // eslint-disable-next-line @typescript-eslint/only-throw-error -- users throw anything
            throw 'a text'
          })
          .to(out),
      ),
    )
    driver.run(record('in', 0, 'k', value('a')))
    expect(driver.failures[0]!.failure.error.message).toBe('a text')
  })

  test("a source's own policy wins over the topology's", async () => {
    const driver = await TaskDriver.of(topology('app', { onError: 'fail' }, ({ stream }) => stream(input, { onError: 'skip' }).to(out)))
    expect(driver.run(record('in', 0, 'k', 'no json'))).toEqual([])
  })

  test('a function decides by the failure it gets', async () => {
    const seen: Failure[] = []
    const driver = await half((failure) => {
      seen.push(failure)
      return failure.phase === 'decode' ? 'skip' : 'fail'
    })
    expect(driver.run(record('in', 0, 'k', 'no json'))).toEqual([])
    expect(() => driver.run(record('in', 1, 'k', value('a', true)))).toThrow('failed in node "check"')
    expect(seen.map(({ node, phase, record: { offset } }) => [node, phase, offset])).toEqual([
      ['in', 'decode', 0],
      ['check', 'process', 1],
    ])
  })

  test('a function that fails itself is no permission to go on', async () => {
    const driver = await half(() => {
      throw new Error('policy is broken')
    })
    expect(() => driver.run(record('in', 0, 'k', value('a', true)))).toThrow('cannot be done; and onError itself failed: policy is broken')
    expect(driver.outbox.count).toBe(0)
  })

  test.each([
    ['nothing', undefined],
    ['null', null],
    ['another word', 'retry'],
    ['an object without `to`', {}],
    ['a promise', Promise.resolve('skip')],
  ])('a function that answers %s stops with what it may answer', async (_name, answer) => {
    const driver = await half((() => answer) as never)
    let thrown: unknown
    try {
      driver.run(record('in', 3, 'k', value('a', true)))
    } catch (error) {
      thrown = error
    }
    expect(thrown).toBeInstanceOf(PoisonedRecordError)
    expect((thrown as Error).message).toMatch(/in\[0\] offset 3.*onError/)
  })

  test('a function may send to dead letters that nothing else names: the record is rolled back until their limits are known, then it runs once more', async () => {
    const driver = await half(() => ({ to: failed }))
    const bad = record('in', 0, 'k', value('a', true))
    expect(() => driver.run(bad)).toThrow(expect.objectContaining({ constructor: UnknownSinkError, topic: 'failed' }))
    expect([driver.outbox.count, driver.failures.length]).toEqual([0, 0])
    driver.learn('failed')
    expect(topics(driver.run(bad))).toEqual(['failed'])
    // The first run left nothing behind: it counts once.
    expect(driver.commit()).toMatchObject({ records: 1, deadLetters: 1, duplicates: 0 })
  })

  test('a dead letter that does not fit its topic stops, with both reasons', async () => {
    const driver = await TaskDriver.of(
      topology('app', { onError: { to: failed } }, ({ stream }) => stream(input).to(out)),
      { failed: { maxMessageBytes: 200 } },
    )
    expect(() => driver.run(record('in', 0, 'k', `no json ${'x'.repeat(300)}`))).toThrow(
      /dead letter does not fit failed: .*max\.message\.bytes is 200/,
    )
  })

  test('an output that its sink refuses takes the error path of the record', async () => {
    const driver = await TaskDriver.of(
      topology('app', { onError: { to: failed } }, ({ stream }) => stream(input).to(out)),
      { out: { maxMessageBytes: 200 } },
    )
    expect(topics(driver.run(record('in', 0, 'k', value('x'.repeat(300)))))).toEqual(['failed'])
  })

  test('a record dated too far ahead for the sinks can still become a dead letter', async () => {
    const bounds = { timestampAfterMaxMs: 3_600_000 }
    const driver = await TaskDriver.of(
      topology('app', { onError: { to: failed } }, ({ stream }) => stream(input).to(out)),
      { out: bounds, failed: bounds },
    )
    const ahead = driver.clock.now() + 30 * 86_400_000
    const sent = driver.run(record('in', 0, 'k', value('a'), { timestamp: ahead }))
    expect(topics(sent)).toEqual(['failed'])
    expect(sent[0]!.headers['millrace.timestamp']).toBe(String(ahead))
  })
})
