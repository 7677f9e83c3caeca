/**
 * A checkpoint that lied (docs/decisions/0004). (1) A is stopped for longer than its session, (2) B takes the task over and commits ids, (3) A wakes; before it
 * hears of its loss its flush is due, and the changelog's last stable offset lies behind B's records by now: written as A's checkpoint, it would (4) make A
 * restore nothing when the task comes back, and (5) B's ids pass a second time.
 */
import { afterAll, expect, test } from 'vitest'
import { events, idOf, processed, scene, temporaryFolder } from '../helpers/apps.ts'
import { workerChild } from '../helpers/children.ts'
import { disconnectKafka, notOnce, readAll, send } from '../helpers/kafka.ts'

afterAll(disconnectKafka)

test('F1: a worker that was stopped past its session time-out, while another one took over, doubles no id when the task comes back to it', async () => {
  const place = await scene('zombie', 1)
  const names = (prefix: string): string[] => Array.from({ length: 100 }, (_, index) => `${prefix}${index}`)
  // Longer than what A needs for its first ids, shorter than its stop: its flush is due when it wakes.
  const a = workerChild(place, { instance: 'a', stateFlushInterval: '8s' })
  await a.says('running')
  await send(place.input, events('a', 100))
  await processed(place)
  a.signal('SIGSTOP')

  const b = workerChild({ ...place, stateDir: temporaryFolder() }, { instance: 'b', onClose: 'leave' })
  await b.says('restore')
  await send(place.input, events('b', 100))
  await processed(place)
  a.signal('SIGCONT')
  await a.says('revoked')

  b.signal('SIGTERM')
  expect(await b.exit, b.text).toEqual({ code: 0, signal: null })
  await a.says('assigned', 2)
  // Both again: A knows its own, and must have read those of B.
  await send(place.input, [...events('a', 100), ...events('b', 100)])
  await processed(place)
  const output = (await readAll(place.output)).map(({ value }) => idOf(value))
  expect(notOnce(output, [...names('a'), ...names('b')]), a.text).toEqual({})
  expect(a.of('restore').at(-1)?.['records']).toBeGreaterThan(0)
  a.signal('SIGTERM')
  expect(await a.exit, a.text).toEqual({ code: 0, signal: null })
})
