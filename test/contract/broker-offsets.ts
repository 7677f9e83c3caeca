/** The broker contract: committed offsets while a transaction holds them. */
import { expect } from 'vitest'
import type { TransactionalProducer } from '../../src/broker/port.ts'
import { classify } from '../../src/errors/classify.ts'
import { failureOf, LIMIT_MS, type Member, type Scene } from './broker-scene.ts'
import type { ContractTest } from './broker-suite.ts'

const TIMED_OUT = -185
/** Of a read that is meant to end by it. */
const SHORT_MS = 1_500

/** Offset 3 is committed, offset 7 is in a transaction that is open. */
async function pending(scene: Scene): Promise<{ input: string; member: Member; producer: TransactionalProducer }> {
  const input = await scene.topic()
  const member = await scene.member({ topic: input })
  await member.owns(0)
  const producer = await scene.producer()
  await producer.begin()
  await producer.sendOffsets(member.consumer, [member.next(3, 'first')], LIMIT_MS)
  await producer.commit(LIMIT_MS)
  expect(await member.committed()).toEqual({ offset: 3, metadata: 'first' })
  await producer.begin()
  await producer.sendOffsets(member.consumer, [member.next(7, 'second')], LIMIT_MS)
  return { input, member, producer }
}

export function offsetsContract(it: ContractTest): void {
  it('a partition that nobody committed has none, and no metadata', async ({ scene }) => {
    const input = await scene.topic()
    const member = await scene.member({ topic: input })
    await member.owns(0)
    expect(await member.committed()).toEqual({ offset: undefined, metadata: '' })
    expect(await scene.groupOffset(input)).toEqual({ offset: undefined, metadata: '' })
  })

  it('a stable read ends at its time-out while a transaction holds an offset, which is retriable (CF 28)', async ({ scene }) => {
    const { member, producer } = await pending(scene)
    const failure = await failureOf(member.committed(0, SHORT_MS))
    expect(failure.code).toBe(TIMED_OUT)
    expect(classify(failure).reaction).toBe('retriable')
    await producer.commit(LIMIT_MS)
    expect(await member.committed()).toEqual({ offset: 7, metadata: 'second' })
  })

  it.for(['commit', 'abort'] as const)('a stable read that waits is answered after the %s (CF 28)', async (end, { scene }) => {
    const { member, producer } = await pending(scene)
    const asked = member.committed()
    await producer[end](LIMIT_MS)
    expect(await asked).toEqual(end === 'commit' ? { offset: 7, metadata: 'second' } : { offset: 3, metadata: 'first' })
  })

  it('the admin\u2019s read waits for nothing and shows what was committed before (CF 28)', async ({ scene }) => {
    const { input, producer } = await pending(scene)
    expect(await scene.groupOffset(input)).toEqual({ offset: 3, metadata: 'first' })
    await producer.abort(LIMIT_MS)
    expect(await scene.groupOffset(input)).toEqual({ offset: 3, metadata: 'first' })
  })

  it('an offset that is held does not hold those of other partitions', async ({ scene }) => {
    const [input, other] = [await scene.topic(), await scene.topic()]
    const member = await scene.member({ topic: input })
    await member.owns(0)
    const producer = await scene.producer()
    await producer.begin()
    await producer.sendOffsets(member.consumer, [member.next(7)], LIMIT_MS)
    const [found] = await member.consumer.committed([{ topic: other, partition: 0 }], LIMIT_MS)
    expect(found).toMatchObject({ offset: undefined })
    await producer.abort(LIMIT_MS)
  })

  it('an offset may go back: nothing but the order of commits counts', async ({ scene }) => {
    const { member, producer } = await pending(scene)
    await producer.commit(LIMIT_MS)
    await producer.begin()
    await producer.sendOffsets(member.consumer, [member.next(2, 'third')], LIMIT_MS)
    await producer.commit(LIMIT_MS)
    expect(await member.committed()).toEqual({ offset: 2, metadata: 'third' })
  })

  it('offsets that are sent twice in a transaction: the last ones count', async ({ scene }) => {
    const { member, producer } = await pending(scene)
    await producer.sendOffsets(member.consumer, [member.next(9, 'again')], LIMIT_MS)
    await producer.commit(LIMIT_MS)
    expect(await member.committed()).toEqual({ offset: 9, metadata: 'again' })
  })
}
