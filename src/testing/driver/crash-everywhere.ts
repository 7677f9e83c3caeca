/**
 * Runs a scenario once for each place at which a worker can die, and compares each run with one in which nobody dies.
 *
 * Owns: which places there are. A place counts once per worker and state of the world: a worker that polls and finds nothing may die at its first such poll
 * or at its tenth, the world is the same. Does not own: the runs (driver), their comparison (comparison).
 */
import { errorMessage } from '../../errors/errors.ts'
import type { Topology } from '../../topology/public-types.ts'
import { differences, type RunResult } from './comparison.ts'
import { openDriver, type SimulatedDriver } from './driver.ts'
import type { Passed } from './driver-world.ts'
import { crashAfter, crashBefore, faultText, rebalance, type Fault } from './faults.ts'
import type { CrashReport, CrashViolation, TestDriver, TestDriverOptions } from './public-types.ts'

type Scenario = (driver: TestDriver) => Promise<void>
/** A fault, and one that waits until the first has struck. */
type Schedule = readonly [first: Fault, second?: Fault]

/**
 * Runs a scenario once per step at which a worker can die after the start, and with `pairs` once more for each step after that at which a second worker, or
 * the same again, dies, or is put out of the group. Each run gets a driver of its own. A scenario of a few records has some thirty such steps, and more than a thousand
 * pairs: a second, and half a minute.
 *
 * What the scenario throws in a run counts as a violation of it, so it may hold expectations. Rejects when it fails without any crash.
 * @example
 * const report = await crashEverywhere(orderDedupe, (driver) => driver.pipe(orders, first, resent))
 * expect(report.violations).toEqual([])
 */
export async function crashEverywhere(
  topology: Topology,
  scenario: (driver: TestDriver) => Promise<void>,
  options: TestDriverOptions & { readonly pairs?: boolean } = {},
): Promise<CrashReport> {
  const { pairs = false, ...driverOptions } = options
  const violations: CrashViolation[] = []
  const calm = await calmRun(topology, scenario, driverOptions)
  let schedules = 0
  const run = async (schedule: Schedule): Promise<readonly Passed[]> => {
    schedules++
    const { passed, found } = await crashRun(topology, scenario, driverOptions, schedule, calm.expected)
    for (const difference of found) violations.push({ schedule: scheduleText(schedule), difference })
    return passed
  }
  for (const first of crashesAt(calm.passed)) {
    const passedAfter = await run([first])
    if (!pairs) continue
    for (const second of [...crashesAt(passedAfter), ...rebalancesAt(passedAfter)]) await run([first, second])
  }
  return { schedules, violations }
}

async function calmRun(
  topology: Topology,
  scenario: Scenario,
  options: TestDriverOptions,
): Promise<{ readonly passed: readonly Passed[]; readonly expected: RunResult }> {
  await using driver = await openDriver(topology, options)
  await scenario(driver)
  const passed = [...driver.world.passed]
  return { passed, expected: await driver.undisturbed() }
}

/** What was passed after the first fault struck, and what was not as it should be. */
async function crashRun(
  topology: Topology,
  scenario: Scenario,
  options: TestDriverOptions,
  [first, second]: Schedule,
  expected: RunResult,
): Promise<{ readonly passed: readonly Passed[]; readonly found: readonly string[] }> {
  const driver = await openDriver(topology, options)
  const { world } = driver
  world.faults.arm(first, second)
  const found = await outcomeOf(driver, scenario, expected)
  const passed = world.passed.slice(world.struckAt ?? world.passed.length)
  return { passed, found: [...found, ...(await endOf(driver))] }
}

async function outcomeOf(driver: SimulatedDriver, scenario: Scenario, expected: RunResult): Promise<readonly string[]> {
  try {
    await scenario(driver)
    if (driver.world.failure !== undefined) throw driver.world.failure
    return differences(expected, driver.result())
  } catch (error) {
    return [errorMessage(error)]
  }
}

/** A crash that did not happen is told when the driver ends: then the scenario is not the same in every run. */
async function endOf(driver: SimulatedDriver): Promise<readonly string[]> {
  try {
    await driver[Symbol.asyncDispose]()
    return []
  } catch (error) {
    return [errorMessage(error)]
  }
}

function crashesAt(passed: readonly Passed[]): Fault[] {
  return places(passed).map(({ step, when, occurrence }) =>
    when === 'before' ? crashBefore(step, { occurrence }) : crashAfter(step, { occurrence }),
  )
}

function rebalancesAt(passed: readonly Passed[]): Fault[] {
  return places(passed).flatMap(({ step, when, occurrence }) =>
    when === 'after' ? [rebalance({ after: step, occurrence, lost: true })] : [],
  )
}

function places(passed: readonly Passed[]): (Pick<Passed, 'step' | 'when'> & { readonly occurrence: number })[] {
  const occurrences = new Map<string, number>()
  const seen = new Set<string>()
  return passed.flatMap(({ step, when, worker, version }) => {
    const place = `${when} ${step}`
    const occurrence = (occurrences.get(place) ?? 0) + 1
    occurrences.set(place, occurrence)
    const state = `${place} ${worker} ${version}`
    if (seen.has(state)) return []
    seen.add(state)
    return [{ step, when, occurrence }]
  })
}

function scheduleText([first, second]: Schedule): string {
  return second === undefined ? faultText(first) : `${faultText(first)}, then ${faultText(second)}`
}
