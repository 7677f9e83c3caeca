import { expect, test } from 'vitest'
import { silentLogger } from '../../src/common/ports.ts'
import { LogStarts } from '../../src/runtime/log-starts.ts'
import { ManualClock } from '../helpers/manual-time.ts'

function logs() {
  const clock = new ManualClock()
  const answer = { logStart: 40, looks: 0, fails: false }
  const starts = new LogStarts({
    admin: {
      offsets: (partitions) => {
        answer.looks++
        if (answer.fails) return Promise.reject(new Error('no broker'))
        return Promise.resolve(partitions.map((partition) => ({ ...partition, logStart: answer.logStart, highWatermark: 100 })))
      },
    },
    partitions: () => [{ topic: 'in', partition: 3 }],
    intervalMs: 1_000,
    clock,
    logger: silentLogger,
  })
  return { clock, answer, starts }
}
const turn = () => new Promise((resolve) => setImmediate(resolve))

test('an input is assigned where its log begins, not at 0 that retention has deleted', async () => {
  const { starts } = logs()
  await starts.look()
  expect(starts.of('in', 3)).toBe(40)
})

test('the start of a log is looked at again when the interval is over, once at a time', async () => {
  const { starts, answer, clock } = logs()
  await starts.look()
  answer.logStart = 70
  starts.lookWhenDue()
  await turn()
  expect(starts.of('in', 3)).toBe(40)
  clock.advance(1_000)
  starts.lookWhenDue()
  clock.advance(1_000)
  starts.lookWhenDue()
  await turn()
  expect(starts.of('in', 3)).toBe(70)
  expect(answer.looks).toBe(2)
})

test('a broker that does not answer leaves the starts as they were', async () => {
  const { starts, answer, clock } = logs()
  await starts.look()
  answer.fails = true
  clock.advance(1_000)
  starts.lookWhenDue()
  await turn()
  expect(starts.of('in', 3)).toBe(40)
})
