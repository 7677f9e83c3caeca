/**
 * The broker contract: records that are refused, by the client at once or by the broker at the commit (CLIENT-FACTS 29). The broker's refusal dooms the
 * whole transaction; whether the same producer goes on after the abort is not promised, a new one of the same id does.
 */
import { describe, expect } from 'vitest'
import type { TransactionalProducer } from '../../src/broker/port.ts'
import { bytes, commitAll, failureOf, LIMIT_MS, produceAll } from './broker-scene.ts'
import type { ContractTest } from './broker-suite.ts'

const MESSAGE_TOO_LARGE = 10
const INVALID_TIMESTAMP = 32
const INVALID_RECORD = 87
const TIMED_OUT = -185
const UNKNOWN_PARTITION = -190
/** Of what goes on while a commit is not resolved. */
const CONFLICT = -173
const STATE = -172
const HOUR_MS = 3_600_000
/** Of calls that are meant to end by it. */
const SHORT_MS = 500

interface BadRecord {
  readonly what: string
  readonly config: Readonly<Record<string, string>>
  readonly code: number
  readonly produce: (producer: TransactionalProducer, topic: string, now: number) => void
}

const BAD_RECORDS: readonly BadRecord[] = [
  {
    what: 'a record above the limit of the topic',
    config: { 'max.message.bytes': '2000' },
    code: MESSAGE_TOO_LARGE,
    produce: (producer, topic, now) => void producer.produce(topic, 0, bytes('k'), Buffer.alloc(5_000), now, []),
  },
  {
    what: 'a batch of small records above the limit of the topic',
    config: { 'max.message.bytes': '2000' },
    code: MESSAGE_TOO_LARGE,
    produce: (producer, topic, now) => {
      for (let index = 0; index < 20; index++) producer.produce(topic, 0, bytes('k'), Buffer.alloc(500), now, [])
    },
  },
  {
    what: 'a record without a key for a compacted topic',
    config: { 'cleanup.policy': 'compact' },
    code: INVALID_RECORD,
    produce: (producer, topic, now) => void producer.produce(topic, 0, null, bytes('x'), now, []),
  },
  {
    what: 'a date more than an hour ahead',
    config: {},
    code: INVALID_TIMESTAMP,
    produce: (producer, topic, now) => void producer.produce(topic, 0, bytes('k'), bytes('x'), now + 2 * HOUR_MS, []),
  },
  {
    what: 'a date before the bound of the topic',
    config: { 'message.timestamp.before.max.ms': String(HOUR_MS) },
    code: INVALID_TIMESTAMP,
    produce: (producer, topic, now) => void producer.produce(topic, 0, bytes('k'), bytes('x'), now - 2 * HOUR_MS, []),
  },
]

export function refusalContract(it: ContractTest): void {
  describe('by the broker (CF 29)', () => {
    const cases = BAD_RECORDS.map((bad) => [bad.what, bad] as const)
    it.for(cases)(
      '%s: flush is OK, the commit is refused, the transaction can only abort',
      async ([, { config, code, produce }], { scene }) => {
        const [good, bad] = [await scene.topic(), await scene.topic(1, config)]
        const transactionalId = scene.name('id')
        const producer = await scene.producer({ transactionalId })
        await producer.begin()
        produceAll(producer, good, ['beside'])
        produce(producer, bad, scene.main.now())
        await producer.flush(LIMIT_MS)
        expect(await failureOf(producer.commit(LIMIT_MS))).toMatchObject({ code, isAbortRequired: true, isFatal: false })
        await producer.abort(LIMIT_MS)
        await producer.close()

        const next = await scene.producer({ transactionalId })
        await next.begin()
        produceAll(next, good, ['next'])
        next.produce(bad, 0, bytes('k'), bytes('next'), scene.main.now(), [])
        await next.commit(LIMIT_MS)
        expect(await scene.committedValues(good)).toEqual(['next'])
        expect(await scene.committedValues(bad)).toEqual(['next'])
      },
    )

    it('small records in batches below the limit of the topic are taken, however many they are', async ({ scene }) => {
      const topic = await scene.topic(1, { 'max.message.bytes': '2000' })
      const producer = await scene.producer({ batchBytes: 1_500 })
      await producer.begin()
      for (let index = 0; index < 20; index++) producer.produce(topic, 0, bytes(`k${index}`), Buffer.alloc(500, 'x'), scene.main.now(), [])
      await producer.commit(LIMIT_MS)
      expect((await scene.world.committedRecords(topic)).map(({ key }) => key)).toEqual(
        Array.from({ length: 20 }, (_, index) => `k${index}`),
      )
    })

    it('offset metadata above the limit of the broker: the offsets are refused, and the transaction can only abort', async ({ scene }) => {
      const most = Number((await scene.main.broker.admin.brokerConfig()).get('offset.metadata.max.bytes'))
      const input = await scene.topic()
      const member = await scene.member({ topic: input })
      await member.owns(0)
      const producer = await scene.producer()
      await producer.begin()
      const failure = await failureOf(producer.sendOffsets(member.consumer, [member.next(3, 'm'.repeat(most + 1))], LIMIT_MS))
      expect(failure).toMatchObject({ code: 12, isAbortRequired: true })
      await producer.abort(LIMIT_MS)
      expect((await member.committed()).offset).toBeUndefined()
    })
  })

  describe('by the client (CF 29)', () => {
    it('a record above its own limit is thrown, and the commit succeeds without it', async ({ scene }) => {
      const topic = await scene.topic()
      const producer = await scene.producer({ maxMessageBytes: 1_000, batchBytes: 1_000 })
      await producer.begin()
      produceAll(producer, topic, ['x'])
      const produce = (): boolean => producer.produce(topic, 0, bytes('k'), Buffer.alloc(5_000), scene.main.now(), [])
      expect((await failureOf(produce)).code).toBe(MESSAGE_TOO_LARGE)
      await producer.commit(LIMIT_MS)
      expect(await scene.committedValues(topic)).toEqual(['x'])
    })

    it('a partition that a known topic does not have is thrown, and the commit succeeds without it', async ({ scene }) => {
      const topic = await scene.topic()
      const producer = await scene.producer()
      await producer.begin()
      produceAll(producer, topic, ['x'])
      await producer.flush(LIMIT_MS) // from here on the client knows the topic
      const produce = (): boolean => producer.produce(topic, 9, bytes('k'), bytes('y'), scene.main.now(), [])
      expect((await failureOf(produce)).code).toBe(UNKNOWN_PARTITION)
      await producer.commit(LIMIT_MS)
      expect(await scene.committedValues(topic)).toEqual(['x'])
    })

    it('a record for an unknown topic waits for the topic: the flush times out, and an abort drops it', async ({ scene }) => {
      const [topic, unknown] = [await scene.topic(), scene.name('unknown')]
      const producer = await scene.producer()
      await producer.begin()
      produceAll(producer, topic, ['x'])
      expect(producer.produce(unknown, 0, bytes('k'), bytes('x'), scene.main.now(), [])).toBe(true)
      expect((await failureOf(producer.flush(SHORT_MS))).code).toBe(TIMED_OUT)
      await producer.abort(LIMIT_MS)
      await commitAll(producer, topic, ['y'])
      expect(await scene.committedValues(topic)).toEqual(['y'])
    })

    it('a commit that timed out is not resolved: it may be repeated, and nothing else works until a new producer of the id settles it (CF 7, CF 22)', async ({
      scene,
    }) => {
      const [topic, unknown] = [await scene.topic(), scene.name('unknown')]
      const transactionalId = scene.name('id')
      const producer = await scene.producer({ transactionalId })
      await producer.begin()
      produceAll(producer, topic, ['x'])
      producer.produce(unknown, 0, bytes('k'), bytes('x'), scene.main.now(), [])
      for (let turn = 0; turn < 2; turn++)
        expect(await failureOf(producer.commit(SHORT_MS))).toMatchObject({ code: TIMED_OUT, isRetriable: true })
      expect((await failureOf(producer.abort(SHORT_MS))).code).toBe(CONFLICT)
      expect((await failureOf(producer.begin())).code).toBe(CONFLICT)
      expect((await failureOf(() => producer.produce(topic, 0, bytes('k'), bytes('x'), scene.main.now(), []))).code).toBe(STATE)
      await producer.close()
      await commitAll(await scene.producer({ transactionalId }), topic, ['y'])
      expect(await scene.committedValues(topic)).toEqual(['y'])
    })

    it('a commit that waits for an unknown topic fails in the end, and the transaction can only abort', async ({ scene }) => {
      const [topic, unknown] = [await scene.topic(), scene.name('unknown')]
      const producer = await scene.producer()
      await producer.begin()
      produceAll(producer, topic, ['x'])
      producer.produce(unknown, 0, bytes('k'), bytes('x'), scene.main.now(), [])
      expect(await failureOf(producer.commit(LIMIT_MS))).toMatchObject({ isRetriable: false, isAbortRequired: true })
      await producer.abort(LIMIT_MS)
      await commitAll(producer, topic, ['y'])
      expect(await scene.committedValues(topic)).toEqual(['y'])
    })

    it('a record for a topic that is made meanwhile goes out', async ({ scene }) => {
      const topic = scene.name('late')
      const producer = await scene.producer()
      await producer.begin()
      producer.produce(topic, 0, bytes('k'), bytes('x'), scene.main.now(), [])
      expect(await failureOf(producer.flush(SHORT_MS))).toMatchObject({ code: TIMED_OUT })
      await scene.world.createTopic(topic, 1, {})
      await producer.commit(LIMIT_MS)
      expect(await scene.committedValues(topic)).toEqual(['x'])
    })
  })
}
