/** The broker contract: who may end a transaction. A newer producer, the transaction's time-out, and the group. */
import { describe, expect } from 'vitest'
import type { BrokerError } from '../../src/errors/broker-error.ts'
import { bytes, commitAll, failureOf, LIMIT_MS, produceAll, type Scene } from './broker-scene.ts'
import type { ContractTest } from './broker-suite.ts'

const FENCED = -144
const ILLEGAL_GENERATION = 22
const UNKNOWN_MEMBER = 25
const STATE = -172
/** What a fenced producer says to a record. */
const FATAL = -150
const SHORT_TRANSACTION_MS = 2_000
const SHORT_SESSION_MS = 6_000

function expectFenced(failure: BrokerError): void {
  expect(failure).toMatchObject({ code: FENCED, isFatal: true })
}

export function fenceContract(it: ContractTest): void {
  describe('a second producer with the same transactional id', () => {
    it('fences the first at its commit, and what that one left open is aborted (CF 21)', async ({ scene }) => {
      const output = await scene.topic()
      const transactionalId = scene.name('id')
      const first = await scene.producer({ transactionalId })
      await first.begin()
      produceAll(first, output, ['old'])
      await first.flush(LIMIT_MS)
      const second = await scene.producer({ transactionalId })
      await commitAll(second, output, ['new'])
      expectFenced(await failureOf(first.commit(LIMIT_MS)))
      expect(await scene.committedValues(output)).toEqual(['new'])
    })

    it('fences the first at its offsets', async ({ scene }) => {
      const [input, output] = [await scene.topic(), await scene.topic()]
      const member = await scene.member({ topic: input })
      await member.owns(0)
      const transactionalId = scene.name('id')
      const first = await scene.producer({ transactionalId })
      await first.begin()
      produceAll(first, output, ['old'])
      await first.flush(LIMIT_MS)
      await scene.producer({ transactionalId })
      expectFenced(await failureOf(first.sendOffsets(member.consumer, [member.next(3)], LIMIT_MS)))
      expect(await member.committed()).toEqual({ offset: undefined, metadata: '' })
      expect(await scene.committedValues(output)).toEqual([])
    })

    it('fences the first at its records: they are taken, and the commit says so', async ({ scene }) => {
      const output = await scene.topic()
      const transactionalId = scene.name('id')
      const first = await scene.producer({ transactionalId })
      await first.begin()
      await scene.producer({ transactionalId })
      produceAll(first, output, ['old'])
      expectFenced(await failureOf(first.commit(LIMIT_MS)))
      expect(await scene.committedValues(output)).toEqual([])
    })

    it('leaves the first with nothing that works: begin, produce, commit and abort fail at once (CF 7)', async ({ scene }) => {
      const output = await scene.topic()
      const transactionalId = scene.name('id')
      const first = await scene.producer({ transactionalId })
      const second = await scene.producer({ transactionalId })
      // Local: the broker hears of it with the first record.
      await first.begin()
      produceAll(first, output, ['old'])
      expectFenced(await failureOf(first.commit(LIMIT_MS)))
      expect((await failureOf(first.begin())).code).toBe(FENCED)
      expect((await failureOf(() => first.produce(output, 0, bytes('k'), bytes('x'), scene.main.now(), []))).code).toBe(FATAL)
      expectFenced(await failureOf(first.commit(LIMIT_MS)))
      expectFenced(await failureOf(first.abort(LIMIT_MS)))
      await commitAll(second, output, ['new'])
      expect(await scene.committedValues(output)).toEqual(['new'])
    })
  })

  it('init aborts what a dead predecessor left open, its offsets too (CF 19, CF 28)', async ({ scene }) => {
    const [input, output] = [await scene.topic(), await scene.topic()]
    const member = await scene.member({ topic: input })
    await member.owns(0)
    const transactionalId = scene.name('id')
    const dying = scene.strikable('dying')
    const predecessor = await scene.producer({ transactionalId, process: dying })
    await predecessor.begin()
    produceAll(predecessor, output, ['old'])
    await predecessor.flush(LIMIT_MS)
    await predecessor.sendOffsets(member.consumer, [member.next(3, 'old')], LIMIT_MS)
    dying.kill()
    const successor = await scene.producer({ transactionalId })
    expect(await member.committed()).toEqual({ offset: undefined, metadata: '' })
    await commitAll(successor, output, ['new'])
    expect(await scene.committedValues(output)).toEqual(['new'])
  })

  it('init settles a commit that was decided: its records stay (CF 22)', async ({ scene }) => {
    const output = await scene.topic()
    const transactionalId = scene.name('id')
    await commitAll(await scene.producer({ transactionalId }), output, ['old'])
    await commitAll(await scene.producer({ transactionalId }), output, ['new'])
    expect(await scene.committedValues(output)).toEqual(['old', 'new'])
  })

  it('the transaction time-out aborts, frees readers and fences; init of the same id goes on (CF 21, CF 30)', async ({ scene }) => {
    const output = await scene.topic()
    const where = { topic: output, partition: 0 }
    const transactionalId = scene.name('id')
    const slow = await scene.producer({ transactionalId, transactionTimeoutMs: SHORT_TRANSACTION_MS })
    await slow.begin()
    produceAll(slow, output, ['old'])
    await slow.flush(LIMIT_MS)
    const { admin } = scene.main.broker
    expect(await admin.lastStableOffsets([where])).toEqual([0])
    await scene.until('its abort', async () => (await admin.lastStableOffsets([where]))[0] === 2)
    expectFenced(await failureOf(slow.commit(LIMIT_MS)))
    await commitAll(await scene.producer({ transactionalId }), output, ['new'])
    expect(await scene.committedValues(output)).toEqual(['new'])
  })

  it('a transaction time-out above what the broker allows is refused at init', async ({ scene }) => {
    const most = Number((await scene.main.broker.admin.brokerConfig()).get('transaction.max.timeout.ms'))
    const producer = await scene.connectProducer({ transactionTimeoutMs: most + 1 })
    expect((await failureOf(producer.init(LIMIT_MS))).code).toBe(50)
  })

  describe('offsets of a transaction', () => {
    it('under a generation that is over are refused, and the transaction can only abort (CF 20)', async ({ scene }) => {
      const [input, output] = [await scene.topic(2), await scene.topic()]
      const kept = scene.strikable('kept')
      const member = await scene.member({ topic: input, process: kept })
      await member.owns(0, 1)
      const producer = await scene.producer()
      await producer.begin()
      produceAll(producer, output, ['x'])
      await producer.flush(LIMIT_MS)
      const joins = kept.holdJoins(scene.group)
      const joining = await scene.member({ topic: input, process: scene.process('joining') })
      await scene.until('the next generation', () => joins.struck > 0)
      const failure = await failureOf(producer.sendOffsets(member.consumer, [member.next(3)], LIMIT_MS))
      expect(failure).toMatchObject({ code: ILLEGAL_GENERATION, isAbortRequired: true, isFatal: false })
      await failureOf(producer.commit(LIMIT_MS))
      await producer.abort(LIMIT_MS)

      joins.release()
      await member.ownsSome(1)
      await joining.ownsSome(1)
      await producer.begin()
      produceAll(producer, output, ['y'])
      await producer.sendOffsets(member.consumer, [member.next(4)], LIMIT_MS)
      await producer.commit(LIMIT_MS)
      expect(await scene.committedValues(output)).toEqual(['y'])
      expect((await member.committed()).offset).toBe(4)
    })

    it('of a member that was put out are refused; those of an empty list are not sent, and nothing stops that commit (CF 4, CF 24)', async ({
      scene,
    }) => {
      const [input, output] = [await scene.topic(2), await scene.topic()]
      const frozen = scene.strikable('frozen')
      const zombie = await scene.member({ topic: input, process: frozen, sessionTimeoutMs: SHORT_SESSION_MS })
      await zombie.owns(0, 1)
      const other = await scene.member({ topic: input, process: scene.process('other') })
      await zombie.ownsSome(1)
      await other.ownsSome(1)
      zombie.holdOn()
      const producer = await scene.producer()
      await producer.begin()
      produceAll(producer, output, ['x'])
      await producer.flush(LIMIT_MS)
      frozen.freeze()
      await other.owns(0, 1)
      frozen.thaw()
      await scene.until('the zombie hears of it', () => zombie.events.at(-1)?.kind === 'lost')
      const failure = await failureOf(producer.sendOffsets(zombie.consumer, [zombie.next(3)], LIMIT_MS))
      expect(failure).toMatchObject({ code: UNKNOWN_MEMBER, isAbortRequired: true, isFatal: false })
      await producer.abort(LIMIT_MS)

      await producer.begin()
      produceAll(producer, output, ['unfenced'])
      await producer.sendOffsets(zombie.consumer, [], LIMIT_MS)
      await producer.commit(LIMIT_MS)
      zombie.letGo()
      expect(await scene.committedValues(output)).toEqual(['unfenced'])
      expect(await other.committed()).toEqual({ offset: undefined, metadata: '' })
    })

    it('of a member that left are refused, whether the group has others or nobody (CF 5)', async ({ scene }) => {
      const input = await scene.topic(2)
      const [leaving, other] = [
        await scene.member({ topic: input, process: scene.process('leaving') }),
        await scene.member({ topic: input, process: scene.process('other') }),
      ]
      await leaving.ownsSome(1)
      await other.ownsSome(1)
      const producer = await scene.producer()
      const expectRefused = async (): Promise<void> => {
        await producer.begin()
        const failure = await failureOf(producer.sendOffsets(leaving.consumer, [leaving.next(3)], LIMIT_MS))
        expect(failure).toMatchObject({ code: UNKNOWN_MEMBER, isAbortRequired: true })
        await producer.abort(LIMIT_MS)
      }
      leaving.consumer.unsubscribe()
      await other.ownsSome(2)
      await expectRefused()
      other.consumer.unsubscribe()
      await emptied(scene)
      await expectRefused()
      expect(await scene.groupOffset(input)).toEqual({ offset: undefined, metadata: '' })
    })

    it('of a lone member that was frozen past its session are refused by the group that is empty now', async ({ scene }) => {
      const input = await scene.topic()
      const frozen = scene.strikable('frozen')
      const zombie = await scene.member({ topic: input, process: frozen, sessionTimeoutMs: SHORT_SESSION_MS })
      await zombie.owns(0)
      zombie.holdOn()
      const producer = await scene.producer()
      frozen.freeze()
      await emptied(scene)
      frozen.thaw()
      await scene.until('the zombie hears of it', () => zombie.events.at(-1)?.kind === 'lost')
      await producer.begin()
      const failure = await failureOf(producer.sendOffsets(zombie.consumer, [zombie.next(3)], LIMIT_MS))
      expect(failure).toMatchObject({ code: UNKNOWN_MEMBER, isAbortRequired: true })
      await producer.abort(LIMIT_MS)
    })

    it('of a consumer that never joined are taken by a group that is empty, unfenced: never use one (CF 5)', async ({ scene }) => {
      const input = await scene.topic()
      const [consumer, producer] = [await scene.consumer(), await scene.producer()]
      await producer.begin()
      await producer.sendOffsets(consumer, [{ topic: input, partition: 0, offset: 3, metadata: '' }], LIMIT_MS)
      await producer.commit(LIMIT_MS)
      await scene.until('its offset', async () => (await scene.groupOffset(input)).offset === 3)
    })

    it('are not checked against what the member owns: that is the caller\u2019s affair (CF 6, CF 17)', async ({ scene }) => {
      const [input, foreign] = [await scene.topic(2), await scene.topic()]
      const [member, other] = [
        await scene.member({ topic: input, process: scene.process('one') }),
        await scene.member({ topic: input, process: scene.process('other') }),
      ]
      await member.ownsSome(1)
      await other.ownsSome(1)
      const producer = await scene.producer()
      await producer.begin()
      const offsets = [member.next(1, '', 0), member.next(2, '', 1), { topic: foreign, partition: 0, offset: 3, metadata: '' }]
      await producer.sendOffsets(member.consumer, offsets, LIMIT_MS)
      await producer.commit(LIMIT_MS)
      expect((await other.committed(0)).offset).toBe(1)
      expect((await other.committed(1)).offset).toBe(2)
      await scene.until('the foreign offset', async () => (await scene.groupOffset(foreign)).offset === 3)
    })

    it('of a consumer that is closed are refused by the client (CF 6)', async ({ scene }) => {
      const input = await scene.topic()
      const member = await scene.member({ topic: input })
      await member.owns(0)
      const producer = await scene.producer()
      await producer.begin()
      await member.halt()
      await member.consumer.close()
      const failure = await failureOf(() => producer.sendOffsets(member.consumer, [member.next(3)], LIMIT_MS))
      expect(failure).toMatchObject({ code: STATE, isAbortRequired: true })
      await producer.abort(LIMIT_MS)
    })
  })
}

async function emptied(scene: Scene): Promise<void> {
  await scene.until('the group is empty', async () => (await scene.main.broker.admin.describeGroup(scene.group)).members.length === 0)
}
