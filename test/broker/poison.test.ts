/** Records that fail without being named: found, counted over restarts, and ended on the error path (issue: poison path; CASES F50). */
import { ConfigResourceTypes } from 'kafkajs'
import { afterAll, describe, expect, test } from 'vitest'
import { deadLetters } from '../../src/topology/index.ts'
import { dedupeTopology, events, idOf, processed, scene, startApp, type Scene } from '../helpers/apps.ts'
import { workerChild } from '../helpers/children.ts'
import { until } from '../helpers/condition.ts'
import { createTopic, disconnectKafka, groupLag, notOnce, readAll, send, sharedAdmin } from '../helpers/kafka.ts'

afterAll(disconnectKafka)

const header = (record: { headers: readonly (readonly [string, string | null])[] }, name: string): string | null | undefined =>
  record.headers.find(([found]) => found === name)?.[1]

async function outcome({ output }: Scene): Promise<{ ids: (string | null)[]; dead: Awaited<ReturnType<typeof readAll>> }> {
  return { ids: (await readAll(output)).map(({ value }) => idOf(value)), dead: await readAll(`${output}.dead`) }
}

describe('a record that fails without being named', () => {
  test('F50: a handler that outlives the transaction is one dead letter after three attempts; the others pass once', async () => {
    const where = await scene('poison-slow', 2)
    await createTopic(`${where.output}.dead`, 1)
    const input = events('a', 40)
    await send(where.input, input)
    const child = workerChild(where, { transactionTimeout: '1s', sessionTimeout: '11s' }, undefined, {
      id: 'a7',
      action: 'block',
      blockMs: 1_500,
    })
    await until('lag 0', async () => (await groupLag(where.application, where.input)) === 0)
    child.signal('SIGTERM')
    expect(await child.exit).toEqual({ code: 0, signal: null })
    const { ids, dead } = await outcome(where)
    expect(
      notOnce(
        ids,
        input.map(({ value }) => idOf(value)).filter((id) => id !== 'a7'),
      ),
    ).toEqual({})
    expect(dead.map(({ value }) => idOf(value))).toEqual(['a7'])
    expect(header(dead[0]!, 'millrace.message')).toMatch(/took \d+ ms, longer than a transaction may be open.*given up after 3 attempts/)
    expect(child.of('poison')).toHaveLength(3)
  })

  test('a record that ends the process each time is one dead letter, over restarts; the others pass once', async () => {
    const where = await scene('poison-kill', 2)
    await createTopic(`${where.output}.dead`, 1)
    const input = events('k', 40)
    await send(where.input, input)
    let deaths = 0
    for (;;) {
      const child = workerChild(where, {}, undefined, { id: 'k9', action: 'kill' })
      const done = until('lag 0', async () => (await groupLag(where.application, where.input)) === 0)
      const first = await Promise.race([child.exit, done.then(() => 'done' as const)])
      if (first === 'done') {
        child.signal('SIGTERM')
        await child.exit
        break
      }
      done.catch(() => undefined)
      expect(first).toEqual({ code: null, signal: 'SIGKILL' })
      // Two deaths without a word, then three tries by name; a commit of other records between deaths can add rounds, but never for ever.
      expect(++deaths).toBeLessThan(12)
    }
    const { ids, dead } = await outcome(where)
    expect(
      notOnce(
        ids,
        input.map(({ value }) => idOf(value)).filter((id) => id !== 'k9'),
      ),
    ).toEqual({})
    expect(dead.map(({ value }) => idOf(value))).toEqual(['k9'])
    expect(header(dead[0]!, 'millrace.message')).toMatch(/the process ended while it processed this record; given up after 3 attempts/)
    expect(deaths).toBeGreaterThanOrEqual(3)
    // Half a dozen processes one after the other.
  }, 300_000)

  test('an output that the broker refuses although it fitted at start is one dead letter; the rest of its transaction passes once', async () => {
    const where = await scene('poison-refused', 1)
    const dead = await createTopic(`${where.output}.dead`, 1)
    const started = await startApp(dedupeTopology(where, { onError: { to: deadLetters(dead) } }), {
      applicationId: where.application,
      stateDir: where.stateDir,
      commitInterval: '500ms',
    })
    // Made smaller under the running worker, whose check knows the limit of its start.
    await (
      await sharedAdmin()
    ).alterConfigs({
      validateOnly: false,
      resources: [{ type: ConfigResourceTypes.TOPIC, name: where.output, configEntries: [{ name: 'max.message.bytes', value: '2000' }] }],
    })
    const input = events('r', 20)
    // Bytes that no compression makes small.
    const large = Array.from({ length: 700 }, (_, index) => ((index * 7919 + 104729) % 1_000_003).toString(36)).join('')
    input.splice(11, 0, { key: 'large', value: JSON.stringify({ id: 'large', large }) })
    await send(where.input, input)
    await processed(where, started)
    const ids = (await readAll(where.output)).map(({ value }) => idOf(value))
    expect(
      notOnce(
        ids,
        events('r', 20).map(({ value }) => idOf(value)),
      ),
    ).toEqual({})
    const letters = await readAll(dead)
    expect(letters.map(({ value }) => idOf(value))).toEqual(['large'])
    expect(header(letters[0]!, 'millrace.message')).toMatch(/the broker refused what it wrote.*given up after 3 attempts/)
    expect(started.app.state).toBe('running')
  })
})
