import { describe, expect, it } from 'vitest'
import { countTopic, IdCounter, judge } from '../../demo/verifier.ts'

const event = (orderId: string, type = 'paid'): string => JSON.stringify({ orderId, type, userId: 'ann', amount: 1 })

function counterOf(...values: readonly (string | null)[]): IdCounter {
  const counter = new IdCounter()
  for (const value of values) counter.add(value)
  return counter
}

describe('the verdict of the demo', () => {
  it('is clean when each id of the input is in the output exactly once, in whatever order', () => {
    const input = counterOf(event('a'), event('b'), event('a'), event('a', 'shipped'))
    expect(judge(input, counterOf(event('a', 'shipped'), event('b'), event('a')))).toEqual({
      input: 4,
      uniqueIds: 3,
      output: 3,
      duplicates: 0,
      lost: 0,
      invented: 0,
      examples: [],
    })
  })

  it('counts every repetition in the output, not only the ids that are repeated', () => {
    const verdict = judge(counterOf(event('a'), event('b')), counterOf(event('a'), event('a'), event('a'), event('b')))
    expect(verdict).toMatchObject({ output: 4, duplicates: 2, lost: 0, examples: ['3 times: a/paid'] })
  })

  it('counts an id that is missing as lost even when a duplicate makes up the number', () => {
    const verdict = judge(counterOf(event('a'), event('b')), counterOf(event('a'), event('a')))
    expect(verdict).toMatchObject({ duplicates: 1, lost: 1 })
    expect(verdict.examples).toContain('lost: b/paid')
  })

  it('tells two types of one order apart', () => {
    expect(judge(counterOf(event('a', 'paid'), event('a', 'shipped')), counterOf(event('a', 'paid')))).toMatchObject({
      uniqueIds: 2,
      lost: 1,
    })
  })

  it('counts what is in the output only, and what is no order event, as invented', () => {
    const verdict = judge(counterOf(event('a')), counterOf(event('a'), event('x'), 'not json', null, '{"orderId":1}'))
    expect(verdict).toMatchObject({ duplicates: 0, lost: 0, invented: 4 })
  })

  it('names only a few examples', () => {
    const many = Array.from({ length: 500 }, (_unused, index) => event(`order-${index}`))
    const verdict = judge(counterOf(...many), counterOf())
    expect(verdict.lost).toBe(500)
    expect(verdict.examples).toHaveLength(10)
  })

  it('counts what a reader hands over, for each topic by itself', async () => {
    const topics: Readonly<Record<string, readonly string[]>> = { in: [event('a'), event('a')], out: [event('a')] }
    const reader = (topic: string, take: (value: string | null) => void): Promise<void> => {
      for (const value of topics[topic] ?? []) take(value)
      return Promise.resolve()
    }
    const [input, output] = await Promise.all([countTopic(reader, 'in'), countTopic(reader, 'out')])
    expect([input.records, input.uniqueIds, output.records, output.uniqueIds]).toEqual([2, 1, 1, 1])
  })
})
