/** The broker contract: who owns which partition, and what members hear of it. */
import { describe, expect } from 'vitest'
import type { TopicPartition } from '../../src/common/topic-partition.ts'
import { LIMIT_MS, ownedTwice, type Member, type Scene } from './broker-scene.ts'
import type { ContractTest } from './broker-suite.ts'

const FATAL_INSTANCE = -150
const POLL_INTERVAL_EXCEEDED = -147
const SHORT_SESSION_MS = 6_000
const SHORT_POLL_INTERVAL_MS = 7_000

const numbersOf = (partitions: readonly TopicPartition[]): number[] => partitions.map(({ partition }) => partition).sort((x, y) => x - y)

/** Two members that share four partitions. What they heard until then is forgotten. */
async function pair(
  scene: Scene,
  [one, other] = [scene.process('first'), scene.process('second')],
): Promise<{ topic: string; first: Member; second: Member }> {
  const topic = await scene.topic(4)
  const first = await scene.member({ topic, process: one })
  const second = await scene.member({ topic, process: other })
  await first.ownsSome(2)
  await second.ownsSome(2)
  await settled(scene)
  return { topic, first, second }
}

/** No rebalance is under way, as the coordinator sees it. */
async function settled(scene: Scene, group = scene.group): Promise<void> {
  await scene.until('a stable group', async () => (await scene.main.broker.admin.describeGroup(group)).stable)
}

export function groupContract(it: ContractTest): void {
  it('one member gets every partition', async ({ scene }) => {
    const topic = await scene.topic(4)
    const member = await scene.member({ topic })
    await member.owns(0, 1, 2, 3)
    expect(numbersOf(member.consumer.assignments())).toEqual([0, 1, 2, 3])
    expect(member.consumer.assignmentLost()).toBe(false)
    expect(member.events.map(({ kind }) => kind)).toEqual(['assigned'])
  })

  it('a second one gets its share, and only what moves is revoked: never are there two owners', async ({ scene }) => {
    const topic = await scene.topic(4)
    const first = await scene.member({ topic, process: scene.process('first') })
    await first.owns(0, 1, 2, 3)
    const second = await scene.member({ topic, process: scene.process('second') })
    await second.ownsSome(2)
    await first.ownsSome(2)
    const moved = first.events.filter(({ kind }) => kind === 'revoked')
    expect(moved.flatMap(({ partitions }) => partitions)).toEqual(second.owned)
    expect([...first.owned, ...second.owned].sort()).toEqual([0, 1, 2, 3])
    // What stays was given once, and not again.
    expect(first.events.filter(({ kind }) => kind === 'assigned').flatMap(({ partitions }) => partitions)).toEqual([0, 1, 2, 3])
    expect(ownedTwice(scene.timeline)).toEqual([])
  })

  it('what moves is given on only when the revoke was answered', async ({ scene }) => {
    const topic = await scene.topic(2)
    const first = await scene.member({ topic, process: scene.process('first') })
    await first.owns(0, 1)
    first.holdOn()
    const second = await scene.member({ topic, process: scene.process('second') })
    await scene.until('the revoke', () => first.events.at(-1)?.kind === 'revoked')
    expect(second.owned).toEqual([])
    first.letGo()
    await second.ownsSome(1)
    expect(ownedTwice(scene.timeline)).toEqual([])
  })

  it('partitions of other topics, assigned beside those of the group, are given up with them (CF 17)', async ({ scene }) => {
    const [topic, beside] = [await scene.topic(), await scene.topic()]
    await scene.world.append(beside, 0, ['x', 'y'])
    const consumer = await scene.consumer()
    const both = [
      { topic, partition: 0, offset: 0 },
      { topic: beside, partition: 0, offset: 0 },
    ]
    consumer.subscribe(topic, { assigned: () => both, revoked: async () => both })
    const records: string[] = []
    const poll = async (): Promise<void> => {
      const polled = await consumer.poll(10, 50)
      records.push(...polled.records.map((record) => `${record.topic === beside ? 'beside ' : ''}${String(record.value)}`))
    }
    await scene.until('both', async () => {
      await poll()
      return consumer.assignments().length === 2
    })
    records.length = 0 // the poll that was out may have brought some of the dummy offset (CF 9)
    await scene.until('the seek', async () => {
      try {
        await consumer.seek([{ topic: beside, partition: 0, offset: 1 }], LIMIT_MS)
        return true
      } catch {
        return false // busy with the assignment
      }
    })
    consumer.resume([{ topic: beside, partition: 0 }])
    await scene.until('the record beside', async () => {
      await poll()
      return records.length > 0
    })
    expect(records).toEqual(['beside y'])
    consumer.unsubscribe()
    await scene.until('neither', async () => {
      await poll()
      return consumer.assignments().length === 0
    })
  })

  describe('a static member', () => {
    it('that was killed and comes back within its session has its partitions, and nobody else hears of it (CF 19)', async ({ scene }) => {
      const dying = scene.strikable('place')
      const { topic, first: before, second: other } = await pair(scene, [dying, scene.process('other')])
      const [had, heard] = [before.owned, other.events.length]
      dying.kill()
      const after = await scene.member({ topic, process: { ...scene.process('place'), name: dying.name } })
      await after.owns(...had)
      await settled(scene)
      expect(other.events.length).toBe(heard)
      expect(numbersOf(other.consumer.assignments())).toEqual(other.owned)
    })

    it('that was closed without leaving keeps its place as well (CF 14, CF 19)', async ({ scene }) => {
      const place = scene.process('place')
      const { topic, first: before, second: other } = await pair(scene, [place, scene.process('other')])
      const [had, heard] = [before.owned, other.events.length]
      await before.halt()
      await before.consumer.close()
      await before.consumer.close() // idempotent
      const after = await scene.member({ topic, process: place })
      await after.owns(...had)
      await settled(scene)
      expect(other.events.length).toBe(heard)
    })

    it('whose place another process takes gets one error of a poll and no callback, and has nothing any more (CF 21)', async ({
      scene,
    }) => {
      const topic = await scene.topic(2)
      const place = scene.process('place')
      const first = await scene.member({ topic, process: place })
      await first.owns(0, 1)
      const second = await scene.member({ topic, process: place })
      await second.owns(0, 1)
      await scene.until('the first is told', () => first.failures.length > 0)
      expect(first.codes()).toEqual([FATAL_INSTANCE])
      expect(first.consumer.assignments()).toEqual([])
      expect(first.consumer.assignmentLost()).toBe(false)
      expect(first.events.map(({ kind }) => kind)).toEqual(['assigned'])

      await scene.world.append(topic, 0, ['x'])
      await second.readFrom(0, 0)
      await scene.until('the second reads', () => second.values().length === 1)
      expect(first.values()).toEqual([])
      expect(first.codes()).toEqual([FATAL_INSTANCE])
    })

    it('that unsubscribes leaves at once, and the others get what it had (CF 14, CF 19)', async ({ scene }) => {
      const { first, second } = await pair(scene)
      first.consumer.unsubscribe()
      await second.owns(0, 1, 2, 3)
      expect(first.events.slice(-2).map(({ kind }) => kind)).toEqual(['revoked', 'released'])
      expect(first.consumer.assignments()).toEqual([])
      expect(ownedTwice(scene.timeline)).toEqual([])
      const { members } = await scene.main.broker.admin.describeGroup(scene.group)
      expect(members).toHaveLength(1)
    })

    it('that was frozen past its session loses its partitions, hears of that as lost, and joins again (CF 4)', async ({ scene }) => {
      const topic = await scene.topic(4)
      const process = scene.strikable('frozen')
      const frozen = await scene.member({ topic, process, sessionTimeoutMs: SHORT_SESSION_MS })
      const other = await scene.member({ topic, process: scene.process('other') })
      await frozen.ownsSome(2)
      await other.ownsSome(2)
      const had = frozen.owned
      process.freeze()
      await other.owns(0, 1, 2, 3)
      process.thaw()
      await scene.until('it hears of it', () => frozen.events.some(({ kind }) => kind === 'lost'))
      expect(frozen.events.find(({ kind }) => kind === 'lost')?.partitions).toEqual(had)
      await frozen.ownsSome(2)
      await other.ownsSome(2)
      expect([...frozen.owned, ...other.owned].sort()).toEqual([0, 1, 2, 3])
      expect(frozen.consumer.assignmentLost()).toBe(false)
    })

    it('that does not poll for longer than its interval is told so, has lost its partitions, and joins again', async ({ scene }) => {
      const topic = await scene.topic(2)
      const member = await scene.member({ topic, sessionTimeoutMs: SHORT_SESSION_MS, maxPollIntervalMs: SHORT_POLL_INTERVAL_MS })
      await member.owns(0, 1)
      await member.halt()
      const stoodStillAt = scene.main.now()
      await scene.until('the interval is over', () => scene.main.now() > stoodStillAt + SHORT_POLL_INTERVAL_MS + 2_000)
      member.go()
      await scene.until('it is told', () => member.codes().includes(POLL_INTERVAL_EXCEEDED))
      await scene.until('it hears of it', () => member.events.some(({ kind }) => kind === 'lost'))
      await member.owns(0, 1)
    })
  })

  it('partitions that are added to the topic are noticed and given to somebody (CF 32)', async ({ scene }) => {
    const topic = await scene.topic(2)
    const first = await scene.member({ topic, process: scene.process('first') })
    const second = await scene.member({ topic, process: scene.process('second') })
    await first.ownsSome(1)
    await second.ownsSome(1)
    await scene.main.broker.admin.createPartitions(topic, 4)
    await first.ownsSome(2)
    await second.ownsSome(2)
    expect([...first.owned, ...second.owned].sort()).toEqual([0, 1, 2, 3])
    expect(ownedTwice(scene.timeline)).toEqual([])
  })

  it('a member beyond the number of partitions hears that it has none', async ({ scene }) => {
    const topic = await scene.topic(1)
    const first = await scene.member({ topic, process: scene.process('first') })
    await first.owns(0)
    const second = await scene.member({ topic, process: scene.process('second') })
    await scene.until('it is told', () => second.events.length > 0)
    expect(second.events[0]).toMatchObject({ kind: 'assigned', partitions: [] })
    expect(first.owned).toEqual([0])
    expect(first.events.filter(({ kind }) => kind === 'revoked')).toEqual([])
  })

  it('the coordinator describes a stable group: its members, their places and what they have', async ({ scene }) => {
    const { topic, first, second } = await pair(scene)
    const { stable, members } = await scene.main.broker.admin.describeGroup(scene.group)
    expect(stable).toBe(true)
    expect(new Set(members.map(({ memberId }) => memberId)).size).toBe(2)
    expect(members.map(({ instanceId }) => String(instanceId).replace(/-.*/, '')).sort()).toEqual(['first', 'second'])
    for (const [name, member] of [
      ['first', first],
      ['second', second],
    ] as const) {
      const found = members.find(({ instanceId }) => instanceId?.startsWith(name) === true)
      expect(found?.assigned.every((each) => each.topic === topic)).toBe(true)
      expect(numbersOf(found?.assigned ?? [])).toEqual(member.owned)
    }
  })
}
