/** Failpoints: off until armed, and each strikes exactly where and when it was ordered (src/common/failpoints.ts). */
import { afterEach, describe, expect, test } from 'vitest'
import {
  armFailpoints,
  disarmFailpoints,
  failpoint,
  FAILPOINTS,
  parseFailpoints,
  type FailpointOrder,
} from '../../src/common/failpoints.ts'

afterEach(disarmFailpoints)

function armed(text: string): string[] {
  const struck: string[] = []
  armFailpoints(parseFailpoints(text), ({ point, action }: FailpointOrder) => struck.push(`${point} ${action}`))
  return struck
}

describe('failpoints', () => {
  test('do nothing unless armed', () => {
    expect(FAILPOINTS.map((point) => failpoint(point))).not.toContain(true)
  })

  test('strike at the n-th hit of their own point, once', () => {
    const struck = armed('commit:after=kill@2')
    failpoint('commit:after')
    failpoint('commit:before')
    expect(struck).toEqual([])
    failpoint('commit:after')
    failpoint('commit:after')
    expect(struck).toEqual(['commit:after kill'])
  })

  test('strike again after each further so many hits', () => {
    const struck = armed('flush:before=stop@2/3')
    const at = Array.from({ length: 9 }, (_, index) => {
      struck.length = 0
      failpoint('flush:before')
      return struck.length > 0 ? index + 1 : 0
    }).filter((hit) => hit > 0)
    expect(at).toEqual([2, 5, 8])
  })

  test('a lost answer is told to the caller, the others are not', () => {
    armed('commit:reply=lose@1, flush:after=stop@1')
    expect(failpoint('flush:after')).toBe(false)
    expect(failpoint('commit:reply')).toBe(true)
    expect(failpoint('commit:reply')).toBe(false)
  })

  test.each(['commit:after', 'commit:after=kill', 'nowhere=kill@1', 'commit:after=explode@1', 'commit:after=kill@x'])(
    'an order that cannot be read is refused with the points there are: %s',
    (text) => {
      expect(() => parseFailpoints(text)).toThrow(/is not '<point>=.*sendOffsets:reply/)
    },
  )

  test('only an answer can be lost', () => {
    expect(() => parseFailpoints('commit:after=lose@1')).toThrow(/only a point named '...:reply'/)
  })
})
