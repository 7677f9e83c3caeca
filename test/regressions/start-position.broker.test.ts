/** Where a task begins when the group has no offset for it, and when it must not begin at all (docs/decisions/0005). */
import { afterAll, expect, test } from 'vitest'
import { topology } from '../../src/topology/index.ts'
import { appOf, eventTopic, events, idOf, processed, scene, startApp, type Scene } from '../helpers/apps.ts'
import { until } from '../helpers/condition.ts'
import { committedOffsets, disconnectKafka, groupLag, notOnce, readAll, send, sharedAdmin } from '../helpers/kafka.ts'

afterAll(disconnectKafka)

const forward = ({ application, input, output }: Scene, startFrom: 'earliest' | 'latest') =>
  topology(application, ({ stream }) => stream(eventTopic(input), { startFrom }).to(eventTopic(output)))

/**
 * (1) A worker starts at the end of its input, and stops before any record came, (2) records arrive, (3) it starts again. Its start position was only in its
 * memory, so it would begin at the end again, past them.
 */
test("with startFrom 'latest' nothing is lost between a stop and the next start, though no record had been processed before", async () => {
  const place = await scene('latest', 2)
  await send(place.input, events('old', 10))
  const before = await startApp(forward(place, 'latest'), { stateDir: place.stateDir })
  await until('the start positions are committed', async () => (await groupLag(place.application, place.input)) === 0)
  await before.app.close()
  await send(place.input, events('between', 10))
  const after = await startApp(forward(place, 'latest'), { stateDir: place.stateDir })
  await send(place.input, events('after', 10))
  await processed(place, after)
  const expected = ['between', 'after'].flatMap((prefix) => events(prefix, 10).map(({ key }) => key))
  expect(
    notOnce(
      (await readAll(place.output)).map(({ value }) => idOf(value)),
      expected,
    ),
  ).toEqual({})
})

/** (1) The workers are down for longer than the broker keeps offsets, or somebody deletes the group, (2) the next start begins at the log start: every output again. */
test('F52: a group whose offsets are gone is refused, not begun anew: no output is repeated', async () => {
  const place = await scene('expired', 1)
  await send(place.input, events('a', 20))
  const before = await startApp(forward(place, 'earliest'), { stateDir: place.stateDir })
  await processed(place, before)
  await before.app.close({ leave: true })
  const admin = await sharedAdmin()
  await until('the group is empty', async () => (await admin.describeGroups([place.application])).groups[0]?.state === 'Empty')
  await admin.deleteGroups([place.application])

  const after = appOf(forward(place, 'earliest'), { stateDir: place.stateDir })
  await expect(after.app.start()).rejects.toMatchObject({
    name: 'ConfigError',
    code: 'offsets-missing',
    message: expect.stringContaining(`no committed offset for ${place.input}[0]`),
  })
  expect([...(await committedOffsets(place.application, place.input)).values()]).toEqual([-1])
  expect(await readAll(place.output)).toHaveLength(20)
})
