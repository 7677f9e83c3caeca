/** The broker contract: what a transaction does, and what readers and the group see of it. */
import { describe, expect } from 'vitest'
import { bytes, commitAll, failureOf, LIMIT_MS, produceAll } from './broker-scene.ts'
import type { ContractTest } from './broker-suite.ts'

/** The client's "wrong state". */
const STATE = -172
/** murmur2 of these, from the tests of Java's client. */
const MURMUR2: readonly (readonly [key: string, hash: number])[] = [
  ['21', -973_932_308],
  ['foobar', -790_332_482],
  ['a-little-bit-long-string', -985_981_536],
  ['a-little-bit-longer-string', -1_486_304_829],
  ['lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8', -58_897_971],
  ['abc', 479_470_107],
]

export function transactionContract(it: ContractTest): void {
  it('a commit shows the records and moves the offsets of the group, with their metadata (CF 17, CF 22)', async ({ scene }) => {
    const [input, output] = [await scene.topic(), await scene.topic()]
    const member = await scene.member({ topic: input })
    await member.owns(0)
    const producer = await scene.producer()
    await producer.begin()
    produceAll(producer, output, ['x', 'y'])
    await producer.flush(LIMIT_MS)
    await producer.sendOffsets(member.consumer, [member.next(3, 'a nonce')], LIMIT_MS)
    await producer.commit(LIMIT_MS)
    expect(await scene.committedValues(output)).toEqual(['x', 'y'])
    expect(await member.committed()).toEqual({ offset: 3, metadata: 'a nonce' })
    expect(await scene.groupOffset(input)).toEqual({ offset: 3, metadata: 'a nonce' })
  })

  it('an abort shows nothing and moves nothing, and the next transaction works', async ({ scene }) => {
    const [input, output] = [await scene.topic(), await scene.topic()]
    const member = await scene.member({ topic: input })
    await member.owns(0)
    const producer = await scene.producer()
    await producer.begin()
    produceAll(producer, output, ['x'])
    await producer.flush(LIMIT_MS)
    await producer.sendOffsets(member.consumer, [member.next(3)], LIMIT_MS)
    await producer.abort(LIMIT_MS)
    expect(await member.committed()).toEqual({ offset: undefined, metadata: '' })
    await commitAll(producer, output, ['y'])
    expect(await scene.committedValues(output)).toEqual(['y'])
    expect(await member.committed()).toEqual({ offset: undefined, metadata: '' })
  })

  it('an abort also drops what still waits in the client', async ({ scene }) => {
    const output = await scene.topic()
    const producer = await scene.producer()
    await producer.begin()
    produceAll(producer, output, ['x'])
    await producer.abort(LIMIT_MS)
    await commitAll(producer, output, ['y'])
    expect(await scene.committedValues(output)).toEqual(['y'])
  })

  it('a commit sends what still waits in the client: a flush before it is not needed', async ({ scene }) => {
    const output = await scene.topic(2)
    const producer = await scene.producer()
    await producer.begin()
    produceAll(producer, output, ['x'], 0)
    produceAll(producer, output, ['y'], 1)
    await producer.commit(LIMIT_MS)
    expect(await scene.committedValues(output)).toEqual(['x', 'y'])
  })

  it.for(['commit', 'abort'] as const)('a %s of nothing is answered, and the next transaction works', async (end, { scene }) => {
    const output = await scene.topic()
    const producer = await scene.producer()
    for (let turn = 0; turn < 2; turn++) {
      await producer.begin()
      await producer[end](LIMIT_MS)
    }
    await commitAll(producer, output, ['x'])
    expect(await scene.committedValues(output)).toEqual(['x'])
  })

  it('transactions one after the other keep their order', async ({ scene }) => {
    const output = await scene.topic()
    const producer = await scene.producer()
    const values = Array.from({ length: 12 }, (_, index) => `v${index}`)
    for (const value of values) await commitAll(producer, output, [value])
    expect(await scene.committedValues(output)).toEqual(values)
  })

  it('a record is kept as it was: null and empty keys, tombstones, repeated headers in order, its timestamp', async ({ scene }) => {
    const output = await scene.topic()
    const producer = await scene.producer()
    const timestamp = scene.main.now() - 5_000
    await producer.begin()
    producer.produce(output, 0, null, bytes('x'), timestamp, [])
    producer.produce(output, 0, Buffer.alloc(0), Buffer.alloc(0), timestamp, [])
    producer.produce(output, 0, bytes('k'), null, timestamp, [
      ['a', bytes('1')],
      ['b', Buffer.alloc(0)],
      ['a', bytes('2')],
    ])
    await producer.commit(LIMIT_MS)
    expect(await scene.world.committedRecords(output)).toEqual([
      { partition: 0, offset: 0, timestamp, key: null, value: 'x', headers: [] },
      { partition: 0, offset: 1, timestamp, key: '', value: '', headers: [] },
      {
        partition: 0,
        offset: 2,
        timestamp,
        key: 'k',
        value: null,
        headers: [
          ['a', '1'],
          ['b', ''],
          ['a', '2'],
        ],
      },
    ])
  })

  it('a null header goes out as an empty one, and the date 0 as itself or the first millisecond after it (CF 12)', async ({ scene }) => {
    const output = await scene.topic()
    const producer = await scene.producer()
    await producer.begin()
    producer.produce(output, 0, bytes('k'), bytes('x'), 0, [['n', null]])
    await producer.commit(LIMIT_MS)
    const [record] = await scene.world.committedRecords(output)
    expect(record?.headers).toEqual([['n', '']])
    expect([0, 1]).toContain(record?.timestamp)
  })

  it('the buffers of a record may be used again once it was produced (P2)', async ({ scene }) => {
    const output = await scene.topic()
    const producer = await scene.producer()
    const buffer = bytes('x')
    await producer.begin()
    producer.produce(output, 0, buffer, buffer, scene.main.now(), [['h', buffer]])
    buffer.write('y')
    await producer.commit(LIMIT_MS)
    expect(await scene.world.committedRecords(output)).toMatchObject([{ key: 'x', value: 'x', headers: [['h', 'x']] }])
  })

  it('a record without a partition goes where Java sends its key (CF 12)', async ({ scene }) => {
    const partitions = 7
    const output = await scene.topic(partitions)
    const producer = await scene.producer()
    await producer.begin()
    for (const [key] of MURMUR2) producer.produce(output, null, bytes(key), bytes(key), scene.main.now(), [])
    await producer.commit(LIMIT_MS)
    const found = new Map((await scene.world.committedRecords(output)).map(({ partition, key }) => [key, partition]))
    expect(found).toEqual(new Map(MURMUR2.map(([key, hash]) => [key, (hash & 0x7fff_ffff) % partitions])))
  })

  describe('in the wrong state', () => {
    it.for(['begin', 'produce', 'commit', 'abort'] as const)('%s before init is refused by the client', async (step, { scene }) => {
      const output = await scene.topic()
      const producer = await scene.connectProducer()
      const act = {
        begin: () => producer.begin(),
        produce: () => producer.produce(output, 0, bytes('k'), bytes('x'), scene.main.now(), []),
        commit: () => producer.commit(LIMIT_MS),
        abort: () => producer.abort(LIMIT_MS),
      }
      expect((await failureOf(act[step])).code).toBe(STATE)
    })

    it('a record between two transactions is refused by the client', async ({ scene }) => {
      const output = await scene.topic()
      const producer = await scene.producer()
      await commitAll(producer, output, ['x'])
      expect((await failureOf(() => producer.produce(output, 0, bytes('k'), bytes('y'), scene.main.now(), []))).code).toBe(STATE)
      expect(await scene.committedValues(output)).toEqual(['x'])
    })

    it('a second begin, and an end without a begin, are refused by the client and harm nothing', async ({ scene }) => {
      const output = await scene.topic()
      const producer = await scene.producer()
      expect((await failureOf(producer.commit(LIMIT_MS))).code).toBe(STATE)
      expect((await failureOf(producer.abort(LIMIT_MS))).code).toBe(STATE)
      await producer.begin()
      expect((await failureOf(producer.begin())).code).toBe(STATE)
      produceAll(producer, output, ['x'])
      await producer.commit(LIMIT_MS)
      expect(await scene.committedValues(output)).toEqual(['x'])
    })
  })

  describe('while it is open', () => {
    it.for(['commit', 'abort'] as const)(
      'its first record holds readers of the partition back, and the end they are told, until its %s (CF 11)',
      async (end, { scene }) => {
        const output = await scene.topic(2)
        const where = { topic: output, partition: 0 }
        const { admin } = scene.main.broker
        await scene.world.append(output, 0, ['before'])
        const producer = await scene.producer()
        await producer.begin()
        produceAll(producer, output, ['x'])
        await producer.flush(LIMIT_MS)
        await scene.world.append(output, 0, ['after'])
        await scene.world.append(output, 1, ['beside'])

        const reading = await scene.reading({ ...where, offset: 0 }, { topic: output, partition: 1, offset: 0 })
        await scene.until('the end before the transaction', () => reading.endOf(0) === 1 && reading.endOf(1) === 1)
        expect(reading.values(0)).toEqual(['before'])
        expect(reading.values(1)).toEqual(['beside'])
        expect(await admin.offsets([where])).toEqual([{ ...where, logStart: 0, highWatermark: 3 }])
        expect(await admin.lastStableOffsets([where])).toEqual([1])

        await producer[end](LIMIT_MS)
        await scene.until('the end past the marker', () => reading.endOf(0) === 4)
        expect(reading.values(0)).toEqual(end === 'commit' ? ['before', 'x', 'after'] : ['before', 'after'])
        expect(await admin.lastStableOffsets([where])).toEqual([4])
      },
    )

    it('the last stable offset is that of the oldest open transaction, whatever was committed behind it (CF 11)', async ({ scene }) => {
      const output = await scene.topic()
      const where = { topic: output, partition: 0 }
      const [first, second] = [await scene.producer(), await scene.producer()]
      await first.begin()
      produceAll(first, output, ['x'])
      await first.flush(LIMIT_MS)
      await commitAll(second, output, ['y'])
      const { admin } = scene.main.broker
      await scene.until('the marker of the second', async () => (await admin.offsets([where]))[0]?.highWatermark === 3)
      expect(await admin.lastStableOffsets([where])).toEqual([0])
      const reading = await scene.reading({ ...where, offset: 0 })
      await scene.until('an end', () => reading.endOf() === 0)
      expect(reading.values()).toEqual([])
      await first.abort(LIMIT_MS)
      await scene.until('all markers', () => reading.endOf() === 4)
      expect(reading.values()).toEqual(['y'])
    })
  })
}
