/** The broker contract: reading of a group's member, and of a changelog reader. */
import { describe, expect } from 'vitest'
import { LOG_START } from '../../src/broker/port.ts'
import { commitAll, failureOf, LIMIT_MS, produceAll, type Member, type Scene } from './broker-scene.ts'
import type { ContractTest } from './broker-suite.ts'

const OUT_OF_RANGE = -140
const STATE = -172

const values = (count: number, from = 0): string[] => Array.from({ length: count }, (_, index) => `v${from + index}`)

/** A member that has all partitions of a topic, with these records in each; nothing is read yet. */
async function memberOf(scene: Scene, ...records: readonly (readonly string[])[]): Promise<{ topic: string; member: Member }> {
  const topic = await scene.topic(records.length)
  for (const [partition, ofPartition] of records.entries()) await scene.world.append(topic, partition, ofPartition)
  const member = await scene.member({ topic })
  await member.owns(...records.keys())
  return { topic, member }
}

async function abortAll(scene: Scene, topic: string, records: readonly string[]): Promise<void> {
  const producer = await scene.producer()
  await producer.begin()
  produceAll(producer, topic, records)
  await producer.flush(LIMIT_MS)
  await producer.abort(LIMIT_MS)
}

export function readingContract(it: ContractTest): void {
  describe('of a member', () => {
    it('what was assigned is paused: polls from then on read nothing of it before seek and resume (CF 8, CF 9, CF 25)', async ({
      scene,
    }) => {
      const { topic, member } = await memberOf(scene, values(5), values(5))
      await member.readFrom(1, 0)
      await scene.until('the end of the other', () => member.endOf(1) === 5)
      expect(member.values(0)).toEqual([])
      expect(member.endOf(0)).toBeUndefined()
      await member.readFrom(0, 2)
      await scene.until('the end', () => member.endOf(0) === 5)
      expect(member.values(0)).toEqual(values(3, 2))
      expect(member.values(1)).toEqual(values(5))
      expect(member.records.every((record) => record.topic === topic)).toBe(true)
    })

    it('a poll brings as many records as were asked for at most, and the next one goes on', async ({ scene }) => {
      const { member } = await memberOf(scene, values(10))
      member.maxRecords = 3
      await member.readFrom(0, 0)
      await scene.until('the end', () => member.endOf() === 10)
      expect(member.values()).toEqual(values(10))
      expect(member.records.map(({ offset }) => offset)).toEqual([...values(10).keys()])
    })

    it.for([
      ['back', 2],
      ['forward', 7],
    ] as const)('a seek %s drops what was fetched before: reading goes on exactly there (CF 9)', async ([, target], { scene }) => {
      const { topic, member } = await memberOf(scene, values(10))
      await member.seek(0, 0)
      await member.halt()
      member.consumer.resume([{ topic, partition: 0 }])
      await member.take(4)
      expect(member.endOf()).toBeUndefined()
      await member.seek(0, target)
      await scene.until('the end', () => member.endOf() === 10)
      expect(member.values()).toEqual([...values(4), ...values(10 - target, target)])
    })

    it('a partition that is paused stands still while others go on, and goes on without a gap and without repeating', async ({ scene }) => {
      const { topic, member } = await memberOf(scene, values(5), values(5))
      await member.readFrom(0, 0)
      await member.readFrom(1, 0)
      await scene.until('both ends', () => member.endOf(0) === 5 && member.endOf(1) === 5)
      member.consumer.pause([{ topic, partition: 0 }])
      member.consumer.pause([{ topic, partition: 0 }]) // twice is harmless
      await member.halt() // a poll that was out may bring what was fetched before
      const seen = member.values(0).length
      member.go()
      await scene.world.append(topic, 0, values(3, 5))
      await scene.world.append(topic, 1, values(3, 5))
      await scene.until('the end of the other', () => member.endOf(1) === 8)
      expect(member.values(0)).toHaveLength(seen)
      member.consumer.resume([{ topic, partition: 0 }])
      await scene.until('the end', () => member.endOf(0) === 8)
      expect(member.values(0)).toEqual(values(8))
      expect(member.values(1)).toEqual(values(8))
    })

    it('the end is told each time it is reached, past control records, and so does the position (CF 18, CF 31)', async ({ scene }) => {
      const topic = await scene.topic()
      const producer = await scene.producer()
      await commitAll(producer, topic, values(3))
      const member = await scene.member({ topic })
      await member.owns(0)
      await member.readFrom(0, 0)
      await scene.until('the first end', () => member.endOf() === 4)
      expect(member.position()).toBe(4)
      await abortAll(scene, topic, ['aborted'])
      await scene.until('the second end', () => member.endOf() === 6)
      await scene.until('the position', () => member.position() === 6)
      await commitAll(producer, topic, values(2, 3))
      await scene.until('the third end', () => member.endOf() === 9)
      expect(member.values()).toEqual(values(5))
      expect(member.position()).toBe(9)
      await scene.until('the known end', () => member.consumer.knownEnd(topic, 0) === 9)
    })

    it('a partition of nothing but aborted records ends past them, with no record (CF 31, B25)', async ({ scene }) => {
      const topic = await scene.topic()
      await abortAll(scene, topic, values(3))
      const member = await scene.member({ topic })
      await member.owns(0)
      await member.readFrom(0, 0)
      await scene.until('the end', () => member.endOf() === 4)
      expect(member.values()).toEqual([])
      await scene.until('the position', () => member.position() === 4)
    })

    it('an empty partition ends at 0', async ({ scene }) => {
      const { member } = await memberOf(scene, [])
      await member.readFrom(0, 0)
      await scene.until('the end', () => member.endOf() === 0)
      expect(member.values()).toEqual([])
    })

    it.for(['above', 'below'] as const)(
      'a position %s the log is one error that names nobody; that partition stands still until it is assigned anew, others go on (CF 32)',
      async (side, { scene }) => {
        const topic = await scene.topic(2)
        for (const partition of [0, 1]) await scene.world.append(topic, partition, values(5))
        await scene.world.deleteBefore(topic, 0, 2)
        const member = await scene.member({ topic, insideLog: 2 })
        await member.owns(0, 1)
        await member.readFrom(0, side === 'above' ? 100 : 1)
        await scene.until('the error', () => member.failures.length > 0)
        expect(member.codes()).toEqual([OUT_OF_RANGE])
        expect(member.position(0)).toBeUndefined()
        await member.readFrom(1, 0)
        await scene.until('the end of the other', () => member.endOf(1) === 5)
        expect(member.values(0)).toEqual([])
        await member.halt()
        const seek = member.consumer.seek([{ topic, partition: 0, offset: 2 }], LIMIT_MS)
        expect((await failureOf(seek)).code).toBe(STATE)
        expect(member.codes()).toEqual([OUT_OF_RANGE])
      },
    )

    it('a partition that is not assigned can be neither moved, paused nor resumed, and has no position', async ({ scene }) => {
      const { member } = await memberOf(scene, [])
      const foreign = { topic: await scene.topic(), partition: 0 }
      await member.halt()
      await failureOf(() => member.consumer.seek([{ ...foreign, offset: 0 }], LIMIT_MS))
      expect(member.consumer.position(foreign.topic, 0)).toBeUndefined()
      expect(member.consumer.knownEnd(foreign.topic, 0)).toBeUndefined()
    })
  })

  describe('of a changelog', () => {
    it('begins at the start of the log, wherever that is', async ({ scene }) => {
      const topic = await scene.topic()
      await scene.world.append(topic, 0, values(6))
      await scene.world.deleteBefore(topic, 0, 4)
      const reading = await scene.reading({ topic, partition: 0, offset: LOG_START })
      await scene.until('the end', () => reading.endOf() === 6)
      expect(reading.values()).toEqual(values(2, 4))
      expect(reading.records.map(({ offset }) => offset)).toEqual([4, 5])
    })

    it('begins at an explicit offset, and tells of the end again when more came', async ({ scene }) => {
      const topic = await scene.topic()
      await scene.world.append(topic, 0, values(6))
      const reading = await scene.reading({ topic, partition: 0, offset: 4 })
      await scene.until('the end', () => reading.endOf() === 6)
      await commitAll(await scene.producer(), topic, values(1, 6))
      await scene.until('the next end', () => reading.endOf() === 8)
      expect(reading.values()).toEqual(values(3, 4))
      expect(reading.endsOf()).toEqual([...new Set(reading.endsOf())])
    })

    it('at the end of a log begins with the end', async ({ scene }) => {
      const topic = await scene.topic()
      await scene.world.append(topic, 0, values(6))
      const reading = await scene.reading({ topic, partition: 0, offset: 6 })
      await scene.until('the end', () => reading.endOf() === 6)
      expect(reading.values()).toEqual([])
    })

    it('an assignment replaces the whole one before it, also what was fetched for that', async ({ scene }) => {
      const topic = await scene.topic(2)
      await scene.world.append(topic, 0, values(10))
      await scene.world.append(topic, 1, values(10, 100))
      const reading = await scene.reading({ topic, partition: 0, offset: 0 })
      await reading.take(3)
      const seen = reading.values(0).length
      await reading.assign({ topic, partition: 1, offset: 5 })
      await scene.until('the end', () => reading.endOf(1) === 10)
      expect(reading.values(0)).toHaveLength(seen)
      expect(reading.values(1)).toEqual(values(5, 105))
      // The same one again, from another offset.
      await reading.assign({ topic, partition: 1, offset: 8 })
      await scene.until('the end, again', () => reading.endsOf(1).length === 2)
      expect(reading.values(1)).toEqual([...values(5, 105), ...values(2, 108)])
      await reading.assign()
      await scene.world.append(topic, 1, ['unread'])
      await reading.assign({ topic, partition: 0, offset: LOG_START })
      await scene.until('the other end', () => reading.endOf(0) === 10)
      expect(reading.values(1)).not.toContain('unread')
    })

    it.for(['above', 'below'] as const)(
      'an offset %s the log is an error, and an assignment inside of it goes on',
      async (side, { scene }) => {
        const topic = await scene.topic()
        await scene.world.append(topic, 0, values(5))
        await scene.world.deleteBefore(topic, 0, 2)
        const reading = await scene.reading({ topic, partition: 0, offset: side === 'above' ? 100 : 1 })
        await scene.until('the error', () => reading.failures.length > 0)
        expect(reading.codes()).toEqual([OUT_OF_RANGE])
        await reading.assign({ topic, partition: 0, offset: LOG_START })
        await scene.until('the end', () => reading.endOf() === 5)
        expect(reading.values()).toEqual(values(3, 2))
      },
    )
  })
}
