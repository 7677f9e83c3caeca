/** Tasks that nobody owns: who finds them, when, and who acts (regression of the orphaned tasks; src/runtime/group-watch.ts). */
import { describe, expect, test } from 'vitest'
import type { GroupDescription } from '../../src/broker/port.ts'
import { silentLogger } from '../../src/common/ports.ts'
import { GroupWatch, orphanTasks, whoActs } from '../../src/runtime/group-watch.ts'
import { ManualClock, settle } from '../helpers/manual-time.ts'
import { refusal, ScriptedAdmin } from '../helpers/scripted-broker.ts'

const TOPIC = 'app-tasks'
function group(owned: Readonly<Record<string, readonly number[]>>, stable = true): GroupDescription {
  return {
    stable,
    members: Object.entries(owned).map(([instanceId, partitions]) => ({
      memberId: `member-of-${instanceId}`,
      instanceId,

      assigned: partitions.map((partition) => ({ topic: TOPIC, partition })),
    })),
  }
}
const healthy = group({ 'app-a-0': [0, 1], 'app-b-0': [2, 3] })
const orphaned = group({ 'app-a-0': [0, 1], 'app-b-0': [2] })

describe('orphan tasks', () => {
  test('are the numbers no member owns', () => {
    expect(orphanTasks(healthy, TOPIC, 4)).toEqual([])
    expect(orphanTasks(orphaned, TOPIC, 4)).toEqual([3])
    expect(orphanTasks(group({}), TOPIC, 2)).toEqual([0, 1])
  })

  test('partitions of another topic own nothing', () => {
    const other: GroupDescription = {
      stable: true,
      members: [{ memberId: 'm', instanceId: 'i', assigned: [{ topic: 'other', partition: 0 }] }],
    }
    expect(orphanTasks(other, TOPIC, 1)).toEqual([0])
  })
})

describe('who acts', () => {
  test('is the member with the fewest tasks', () => {
    expect(whoActs(orphaned, TOPIC)).toBe('app-b-0')
    expect(whoActs(group({ z: [], a: [0] }), TOPIC)).toBe('z')
  })

  test('with equally many it is the smaller instance id, so that exactly one acts', () => {
    expect(whoActs(group({ b: [0], a: [1], c: [2] }), TOPIC)).toBe('a')
  })

  test('is nobody in an empty group', () => {
    expect(whoActs(group({}), TOPIC)).toBeUndefined()
  })
})

describe('the watch', () => {
  const watchOf = (instanceId: string, ...groups: ScriptedAdmin['groups']) => {
    const clock = new ManualClock()
    const admin = new ScriptedAdmin()
    admin.groups.push(...groups)
    const watch = new GroupWatch({
      admin,
      groupId: 'app',
      instanceId,
      tasksTopic: TOPIC,
      tasks: () => 4,
      intervalMs: 30_000,
      clock,
      logger: silentLogger,
    })
    /** One turn of the loop, then time for the coordinator's answer, then the turn that sees it. */
    const look = async (rebalances = 1) => {
      const first = watch.look(rebalances)
      await settle()
      return first ?? watch.look(rebalances)
    }
    return { clock, admin, look, watch }
  }

  test('asks nobody before its first interval, and not on every turn', async () => {
    const { clock, admin, look } = watchOf('app-b-0', healthy)
    await look()
    expect(admin.groupLooks).toBe(0)
    clock.advance(2_000)
    await look()
    await look()
    expect(admin.groupLooks).toBe(1)
    clock.advance(29_999)
    await look()
    expect(admin.groupLooks).toBe(1)
    clock.advance(1)
    await look()
    expect(admin.groupLooks).toBe(2)
  })

  test('one look is not enough: two must agree, two seconds apart', async () => {
    const { clock, look } = watchOf('app-b-0', orphaned)
    await look()
    clock.advance(2_000)
    expect(await look()).toBeUndefined()
    clock.advance(1_999)
    expect(await look()).toBeUndefined()
    clock.advance(1)
    expect(await look()).toEqual([3])
  })

  test('says it once, then looks again', async () => {
    const { clock, look, watch } = watchOf('app-b-0', orphaned)
    await look()
    clock.advance(2_000)
    await look()
    clock.advance(2_000)
    expect(await look()).toEqual([3])
    expect(watch.look(1)).toBeUndefined()
  })

  test('only the member that acts is told', async () => {
    const { clock, look } = watchOf('app-a-0', orphaned)
    for (let turn = 0; turn < 10; turn++) {
      clock.advance(2_000)
      expect(await look()).toBeUndefined()
    }
  })

  test('looks that name different tasks do not agree', async () => {
    const { clock, look } = watchOf('app-b-0', orphaned, group({ 'app-a-0': [0, 1], 'app-b-0': [3] }), orphaned, orphaned)
    await look()
    const seen: unknown[] = []
    for (let turn = 0; turn < 4; turn++) {
      clock.advance(2_000)
      seen.push(await look())
    }
    expect(seen).toEqual([undefined, undefined, undefined, [3]])
  })

  test('a rebalance under way is not disturbed: an unstable group is no evidence', async () => {
    const { clock, look } = watchOf('app-b-0', group({ 'app-a-0': [0, 1], 'app-b-0': [] }, false))
    for (let turn = 0; turn < 5; turn++) {
      clock.advance(2_000)
      expect(await look()).toBeUndefined()
    }
  })

  test('a rebalance between two looks starts the count anew', async () => {
    const { clock, look } = watchOf('app-b-0', orphaned)
    await look(1)
    clock.advance(2_000)
    expect(await look(1)).toBeUndefined()
    clock.advance(2_000)
    expect(await look(2)).toBeUndefined()
    clock.advance(2_000)
    expect(await look(2)).toBeUndefined()
    clock.advance(2_000)
    expect(await look(2)).toEqual([3])
  })

  test('an answer that was asked before a rebalance is not used', async () => {
    const { clock, watch } = watchOf('app-b-0', orphaned)
    watch.look(1)
    clock.advance(2_000)
    watch.look(1) // asks
    watch.look(2) // the rebalance comes before the answer
    await settle()
    clock.advance(2_000)
    watch.look(2) // asks again: the first answer that counts
    await settle()
    expect(watch.look(2)).toBeUndefined()
  })

  test('a coordinator that does not answer changes nothing', async () => {
    const { clock, look } = watchOf('app-b-0', refusal('admin', -185), orphaned, orphaned)
    await look()
    clock.advance(2_000)
    expect(await look()).toBeUndefined()
    clock.advance(30_000)
    expect(await look()).toBeUndefined()
    clock.advance(2_000)
    expect(await look()).toEqual([3])
  })
})
