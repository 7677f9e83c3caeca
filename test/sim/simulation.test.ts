/**
 * A short run of the simulation for every test run; in full it is `npm run sim`. Checks the promises X1 to X8 and X10 on simulated brokers, that a run is decided
 * by its choices alone, and that the checks are awake.
 */
import { describe, expect, onTestFinished, test } from 'vitest'
import { runSeed, replay, singles, type Shape } from './explore.ts'
import { MUTANTS } from './mutants.ts'

const SEEDS = Array.from({ length: 40 }, (_, index) => index + 1)
const SMALL: Shape = { workers: 2, partitions: 1, records: 2 }
/** Of the single deviations, every n-th. */
const EVERY = 7

test('swarm: seeds 1 to 40 keep every promise', async () => {
  for (const seed of SEEDS) expect((await runSeed(seed).result).violations, `seed ${seed}`).toEqual([])
})

test.each([3, 17, 29])('seed %i is decided by its choices alone: twice the same, event by event', async (seed) => {
  const first = await runSeed(seed).result
  const second = await runSeed(seed).result
  expect(second.digest).toBe(first.digest)
  expect(second.trace).toEqual(first.trace)
})

test('single deviations: a death, a pause, a lost disk, a rebalance, a lost or late request keeps every promise, wherever it comes', async () => {
  const all = singles((await replay(new Map(), SMALL)).trace)
  expect(all.length).toBeGreaterThan(500)
  for (let index = 0; index < all.length; index += EVERY)
    expect((await replay(all[index]!, SMALL)).violations, `deviation ${[...all[index]!].join()}`).toEqual([])
})

describe('broken runtimes are caught', () => {
  test.each(['a transaction without offsets', 'an aborted write-set is merged', 'the restore reads and does not apply'])(
    '%s',
    async (name) => {
      const mutant = MUTANTS.find((each) => each.name === name)!
      const mend = mutant.apply()
      onTestFinished(mend)
      let violations: readonly string[] = []
      for (let seed = 1; seed <= 200 && violations.length === 0; seed++) ({ violations } = await runSeed(seed).result)
      expect(violations).not.toEqual([])
    },
  )
})
