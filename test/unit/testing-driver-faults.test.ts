/** Faults of the public test driver: each of them strikes and changes nothing, a broken runtime does not get away with it, and none goes unnoticed. */
import { int64, string, topic, topology } from 'millrace'
import {
  crashAfter,
  crashBefore,
  crashEverywhere,
  createTestDriver,
  damageStore,
  loseReply,
  pause,
  rebalance,
  type Fault,
  type TestDriver,
} from 'millrace/testing'
import { describe, expect, test } from 'vitest'
import { StoreSet } from '../../src/state/store-set.ts'
import { LayeredDedupeStore } from '../../src/state/dedupe-store.ts'
import { SimProducer } from '../../src/testing/sim/client/producer.ts'
import { openDriver } from '../../src/testing/driver/driver.ts'

const numbers = topic('numbers', { key: string(), value: int64() })
const unique = topic('unique', { key: string(), value: int64() })
const dedupe = topology('dedupe', ({ stream }) => stream(numbers).dedupe({ by: 'key', window: '1h' }).to(unique))
const stateless = topology('stateless', ({ stream }) => stream(numbers).to(unique))

const record = (key: string) => ({ key, value: 1 })
async function twice(driver: TestDriver): Promise<void> {
  await driver.pipe(numbers, record('a'), record('b'), record('a'))
  await driver.pipe(numbers, record('b'), record('c'), record('a'))
}

/** Runs `act` with a method replaced. */
async function broken<T extends object, K extends keyof T>(prototype: T, name: K, by: T[K], act: () => Promise<void>): Promise<void> {
  const original = prototype[name]
  prototype[name] = by
  try {
    await act()
  } finally {
    prototype[name] = original
  }
}

describe('a fault strikes and changes nothing', () => {
  const afterLoss: readonly Fault[] = [crashAfter('commit', { loseDisk: true }), crashAfter('restore')]
  test.each<[string, readonly Fault[]]>([
    ['a crash after a poll', [crashAfter('poll')]],
    ['a crash before begin', [crashBefore('begin')]],
    ['a crash after the second record was produced', [crashAfter('produce', { occurrence: 2 })]],
    ['a crash after flush', [crashAfter('flush')]],
    ['a crash between offsets and commit', [crashAfter('sendOffsets')]],
    ['a crash after commit', [crashAfter('commit')]],
    ['a crash before the merge', [crashBefore('merge')]],
    ['a crash after a checkpoint', [crashAfter('checkpoint')]],
    ['the loss of the disk, and a crash in the restore after it', afterLoss],
    ['two crashes at the same step', [crashBefore('commit'), crashBefore('commit')]],
    ['the lost answer of sendOffsets', [loseReply('sendOffsets')]],
    ['the lost answer of commit', [loseReply('commit')]],
    ['a rebalance', [rebalance()]],
    ['a worker that is put out of the group', [rebalance({ lost: true, after: 'begin' })]],
    ['a pause longer than the transaction time-out', [pause('3s')]],
    ['a pause longer than the session time-out', [pause('20s', { after: 'sendOffsets' })]],
    ['a damaged store', [damageStore('dedupe')]],
  ])('%s', async (_name, faults) => {
    for (const workers of [1, 2]) {
      await using driver = await createTestDriver(dedupe, { workers, partitions: 2, seed: workers })
      for (const fault of faults) await driver.fault(fault)
      await twice(driver)
      expect(driver.faults.map(({ fired }) => fired)).toEqual(faults.map(() => true))
      expect(
        driver
          .pairs(unique)
          .map(([key]) => key)
          .sort(),
      ).toEqual(['a', 'b', 'c'])
      expect(await driver.differencesFromUndisturbedRun()).toEqual([])
    }
  })

  test('and is counted', async () => {
    await using driver = await createTestDriver(dedupe)
    await driver.fault(damageStore('dedupe'))
    await driver.fault(rebalance({ lost: true }))
    await twice(driver)
    expect(driver.metrics['rebuilds']).toBe(1)
    expect(driver.metrics['aborts']).toBeGreaterThan(0)
  })
})

describe('the same seed', () => {
  test('gives the same run, and another seed another one', async () => {
    const steps = async (seed: number): Promise<string> => {
      await using driver = await openDriver(dedupe, { workers: 2, partitions: 2, seed })
      await driver.fault(crashAfter('sendOffsets'))
      await twice(driver)
      const { passed, simulation } = driver.world
      return JSON.stringify([simulation.time.now, simulation.time.happened, passed])
    }
    expect(await steps(1)).toBe(await steps(1))
    expect(await steps(1)).not.toBe(await steps(2))
  })
})

describe('a broken runtime', () => {
  test('whose restore forgets what it reads lets a duplicate through', () =>
    broken(
      LayeredDedupeStore.prototype,
      'restore',
      () => undefined,
      async () => {
        await using driver = await createTestDriver(dedupe)
        await driver.fault(crashAfter('commit', { loseDisk: true }))
        await twice(driver)
        expect(await driver.differencesFromUndisturbedRun()).toEqual(
          ['b', 'a'].map((key) => `pipe 2 (numbers, 3 records): unique[0] has, and should not have, ${key}: 0x0000000000000001 at 0`),
        )
      },
    ))

  test('whose checkpoint lies ahead of its rows is found by the disk it leaves', () => {
    const { flush } = StoreSet.prototype
    const ahead = function (this: StoreSet, checkpoints: ReadonlyMap<string, number>, knownAt?: number) {
      flush.call(this, new Map([...checkpoints].map(([store, offset]) => [store, offset + 2])), knownAt)
    }
    return broken(StoreSet.prototype, 'flush', ahead, async () => {
      await using driver = await createTestDriver(dedupe)
      await driver.pipe(numbers, record('a'))
      await driver.fault(crashBefore('checkpoint'))
      await driver.pipe(numbers, record('b'))
      const found = (await driver.differencesFromUndisturbedRun()).join()
      expect(found).toMatch(/store dedupe of task 0_0: the disk of worker 0 and the changelog behind it lack \d of 2 ids/)
    })
  })

  test('that commits outputs without their offsets writes them twice after a crash', () => {
    const { sendOffsets } = SimProducer.prototype
    let hasForgotten = false
    const forgetful: SimProducer['sendOffsets'] = async function (this: SimProducer, consumer, offsets, timeoutMs) {
      if (hasForgotten || offsets.every(({ offset }) => offset === 0)) return sendOffsets.call(this, consumer, offsets, timeoutMs)
      hasForgotten = true
    }
    return broken(SimProducer.prototype, 'sendOffsets', forgetful, async () => {
      await using driver = await createTestDriver(stateless)
      await driver.fault(crashAfter('commit'))
      await driver.pipe(numbers, record('a'))
      expect(await driver.differencesFromUndisturbedRun()).toEqual([
        'pipe 1 (numbers, 1 record): unique[0] has, and should not have, a: 0x0000000000000001 at 0',
      ])
    })
  })

  test('is found by crashEverywhere, with the crash that shows it', () =>
    broken(
      LayeredDedupeStore.prototype,
      'restore',
      () => undefined,
      async () => {
        const { violations } = await crashEverywhere(dedupe, twice)
        expect(violations).toContainEqual({
          schedule: "crashAfter('commit')",
          difference: expect.stringContaining('unique[0] has, and should not have'),
        })
        await using driver = await createTestDriver(dedupe)
        await driver.fault(crashAfter('commit'))
        await twice(driver)
        expect(await driver.differencesFromUndisturbedRun()).not.toEqual([])
      },
    ))
})

describe('crashEverywhere', () => {
  test('tries every step of a stateless topology, and finds nothing', async () => {
    const report = await crashEverywhere(stateless, (driver) => driver.pipe(numbers, record('a'), record('b')), {
      workers: 2,
      partitions: 2,
    })
    expect(report.violations).toEqual([])
    expect(report.schedules).toBeGreaterThan(10)
  })

  test('tries pairs of a crash and a second one, or a lost membership', async () => {
    const one = await crashEverywhere(stateless, (driver) => driver.pipe(numbers, record('a')))
    const pairs = await crashEverywhere(stateless, (driver) => driver.pipe(numbers, record('a')), { pairs: true })
    expect(pairs.violations).toEqual([])
    expect(pairs.schedules).toBeGreaterThan(one.schedules * 5)
  }, 120_000)

  test('counts what the scenario itself throws', async () => {
    let runs = 0
    const report = await crashEverywhere(stateless, async (driver) => {
      await driver.pipe(numbers, record('a'))
      if (++runs === 2) throw new Error('not what I expected')
    })
    expect(report.violations).toMatchObject([{ difference: 'not what I expected' }])
  })

  test('rejects when the scenario fails without any crash, and says so when it is not the same in every run', async () => {
    await expect(crashEverywhere(stateless, () => Promise.reject(new Error('wrong from the start')))).rejects.toThrow(
      'wrong from the start',
    )
    let runs = 0
    const report = await crashEverywhere(stateless, (driver) => driver.pipe(numbers, record(runs++ === 0 ? 'a' : 'b')))
    expect(report.violations[0]?.difference).toContain('unique[0]')
  })
})

describe('a fault that cannot be, or was not', () => {
  test('is refused when no worker of the topology comes to its step', async () => {
    await using driver = await createTestDriver(stateless)
    for (const fault of [crashAfter('restore'), crashBefore('merge'), crashAfter('checkpoint')])
      await expect(driver.fault(fault)).rejects.toThrow("topology 'stateless' has no store")
    await expect(driver.fault(damageStore('dedupe'))).rejects.toThrow("damageStore('dedupe'): topology 'stateless' has no store")
    await expect(driver.fault(crashAfter('comit' as any))).rejects.toThrow("there is no step 'comit', only poll, begin")
    await expect(driver.fault(crashAfter('commit', { occurrence: 0 }))).rejects.toThrow("crashAfter('commit', { occurrence: 0 })")
    await expect(driver.fault(loseReply('flush' as any))).rejects.toThrow('only the replies of sendOffsets and commit')
    await expect(driver.fault({} as any)).rejects.toThrow('not what crashAfter()')
    expect(() => pause('long' as any)).toThrow('pause()')
  })

  test('is told when the driver ends', async () => {
    const driver = await createTestDriver(dedupe)
    await driver.fault(crashAfter('restore'))
    await twice(driver)
    expect(driver.faults).toEqual([{ fault: "crashAfter('restore')", fired: false }])
    await expect(driver[Symbol.asyncDispose]()).rejects.toThrow(/a fault never struck.*crashAfter\('restore'\)/)
  })

  test('or when its run is compared, and then not twice', async () => {
    await using driver = await createTestDriver(dedupe)
    await driver.pipe(numbers, record('a'))
    await driver.fault(crashAfter('commit'))
    await driver.fault(rebalance({ after: 'begin', occurrence: 2, lost: true }))
    await expect(driver.differencesFromUndisturbedRun()).rejects.toThrow(
      "2 faults never struck, so this test does not show what it seems to: crashAfter('commit'), rebalance({ after: 'begin', occurrence: 2, lost: true })",
    )
  })
})
