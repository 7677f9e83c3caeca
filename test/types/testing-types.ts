/** Claims about the types of `millrace/testing`. Compiled by the type check, never run, as in public-types.ts. */
import { deadLetters, int64, json, nullable, string, topic, type Topology } from 'millrace'
import {
  crashAfter,
  crashEverywhere,
  createTestDriver,
  loseReply,
  pause,
  rebalance,
  type TestDriver,
  type TestOutput,
} from 'millrace/testing'
import { z } from 'zod'

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
function expectType<Expected>() {
  return <Actual>(_actual: Actual, ..._same: Equal<Actual, Expected> extends true ? [] : [expected: Expected]): void => {}
}

interface Order {
  readonly id: string
  readonly amount: number
}
const orders = topic('orders', { key: string(), value: json<Order>(z.object({ id: z.string(), amount: z.number() })) })
const rows = topic('rows', { key: int64(), value: nullable(string()) })
declare const driver: TestDriver
declare const program: Topology

// --- what comes out is typed by the topic -------------------------------------------------------------------------------

expectType<Order[]>()(driver.values(orders))
expectType<TestOutput<string, Order>[]>()(driver.records(orders))
expectType<[number, string | null][]>()(driver.pairs(rows))
expectType<Map<number, string>>()(driver.latest(rows))
expectType<Promise<readonly string[]>>()(driver.differencesFromUndisturbedRun())

// --- what goes in as well -----------------------------------------------------------------------------------------------

void driver.pipe(orders, { key: 'a', value: { id: 'a', amount: 1 } }, { key: 'b', value: { id: 'b', amount: 2 }, at: '5s', partition: 1 })
void driver.pipe(rows, { key: 1, value: null, headers: { trace: 'x' } })
// @ts-expect-error wrong value for the topic
void driver.pipe(orders, { key: 'a', value: { id: 'a' } })
// @ts-expect-error wrong key for the topic
void driver.pipe(orders, { key: 1, value: { id: 'a', amount: 1 } })
// @ts-expect-error a key must be given, null too
void driver.pipe(rows, { value: 'x' })
// @ts-expect-error not a duration
void driver.pipe(rows, { key: 1, value: 'x', at: '5 seconds' })
// @ts-expect-error a misspelt field
void driver.pipe(rows, { key: 1, value: 'x', headres: {} })
// @ts-expect-error a topic by name has no codecs
driver.values('orders')

// --- faults -------------------------------------------------------------------------------------------------------------

void driver.fault(crashAfter('sendOffsets', { occurrence: 2, loseDisk: true }))
void driver.fault(pause('20s', { after: 'begin' }))
void driver.fault(rebalance({ lost: true }))
// @ts-expect-error no such step
void driver.fault(crashAfter('comit'))
// @ts-expect-error only two replies can be lost
void driver.fault(loseReply('flush'))
// @ts-expect-error not a fault
void driver.fault('crash')

// --- drivers ------------------------------------------------------------------------------------------------------------

void createTestDriver(program, { partitions: 2, workers: 2, startAt: new Date(0), seed: 1, config: { commitInterval: '1s' } })
void createTestDriver(program, { topics: [deadLetters('failed'), orders] })
void crashEverywhere(program, (each) => each.pipe(orders, { key: 'a', value: { id: 'a', amount: 1 } }), { pairs: true })
// @ts-expect-error a misspelt option
void createTestDriver(program, { partition: 2 })
// @ts-expect-error a scenario is awaited, so it returns a promise
void crashEverywhere(program, () => undefined)
