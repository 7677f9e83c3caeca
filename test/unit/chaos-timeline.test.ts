import { describe, expect, it } from 'vitest'
import { FAILPOINTS } from '../../src/common/failpoints.ts'
import { FAULT_KINDS, planTimeline } from '../chaos/timeline.ts'

const all = { minutes: 3, faults: FAULT_KINDS }

describe('the timeline of a chaos run', () => {
  it('is the same for the same seed, and another for another', () => {
    expect(planTimeline({ seed: 7, ...all })).toEqual(planTimeline({ seed: 7, ...all }))
    expect(planTimeline({ seed: 8, ...all })).not.toEqual(planTimeline({ seed: 7, ...all }))
  })

  it('has every fault in three minutes, in the order of time, and leaves the last seconds to what has begun', () => {
    for (let seed = 1; seed <= 10; seed++) {
      const plan = planTimeline({ seed, ...all })
      expect(new Set(plan.map(({ kind }) => kind))).toEqual(new Set(FAULT_KINDS))
      const times = plan.map(({ atMs }) => atMs)
      expect(times).toEqual([...times].sort((a, b) => a - b))
      expect(Math.max(...times)).toBeLessThan(3 * 60_000 - 7_000)
    }
  })

  it('reaches each failpoint at least twice over ten seeds in a row, wherever they begin', () => {
    for (const first of [1, 1_000, 123_456]) {
      const times = new Map<string, number>()
      for (let seed = first; seed < first + 10; seed++) {
        for (const { kind, point } of planTimeline({ seed, ...all })) {
          if (kind === 'failpoint' && point !== undefined) times.set(point, (times.get(point) ?? 0) + 1)
        }
      }
      expect(FAILPOINTS.filter((point) => (times.get(point) ?? 0) < 2)).toEqual([])
    }
  })

  it('loses replies only at points that can', () => {
    const points = Array.from({ length: 10 }, (_unused, seed) => planTimeline({ seed, ...all }))
      .flat()
      .filter(({ kind }) => kind === 'lose-reply')
      .map(({ point }) => point)
    expect(new Set(points)).toEqual(new Set(['sendOffsets:reply', 'commit:reply']))
  })

  it('has exactly the kills it was asked for, and no fault that was not asked for', () => {
    const plan = planTimeline({ seed: 3, minutes: 30, faults: ['kill'], kills: 20 })
    expect(plan.map(({ kind }) => kind)).toEqual(Array.from({ length: 20 }, () => 'kill'))
    expect(new Set(plan.map(({ atMs }) => atMs)).size).toBe(20)
    expect(planTimeline({ seed: 3, minutes: 3, faults: [], kills: 0 })).toEqual([])
  })
})
