/** Worker processes killed with -9 or stopped at chosen points of a transaction, and started again (X1, X2, X4, X8, CASES A, D, E, G). */
import { rmSync } from 'node:fs'
import { afterAll, describe, expect, inject, test } from 'vitest'
import { javaTool, TRANSACTIONS_COMMAND } from '../../scripts/broker-provider/provider.ts'
import type { ChildFault } from '../helpers/app-child.ts'
import { events, idOf, processed, scene } from '../helpers/apps.ts'
import { until } from '../helpers/condition.ts'
import { workerChild } from '../helpers/children.ts'
import { disconnectKafka, highWatermarks, notOnce, readAll, send } from '../helpers/kafka.ts'

afterAll(disconnectKafka)

const ids = (records: readonly { value: string | null }[]): string[] => records.map(({ value }) => idOf(value))
const names = (prefix: string, count: number): string[] => Array.from({ length: count }, (_, index) => `${prefix}${index}`)
const kill = (operation: ChildFault['operation'], when: ChildFault['when'], call = 3): ChildFault => ({
  operation,
  when,
  call,
  signal: 'SIGKILL',
})

describe('kill -9', () => {
  test('X1, E45, E46, A13: at every step of a transaction, with the next process started at once: each id once, its offset and its output together', async () => {
    const place = await scene('kill', 2)
    await send(place.input, [...events('a', 3_000), ...events('a', 1_000)])
    const points = [
      kill('beginTransaction', 'after'),
      kill('flush', 'after'),
      kill('sendOffsetsToTransaction', 'before'),
      kill('sendOffsetsToTransaction', 'after'),
      kill('commitTransaction', 'before'),
      kill('commitTransaction', 'after'),
    ]
    for (const fault of points) {
      const child = workerChild(place, { transactionMaxRecords: 100, commitInterval: '20ms' }, fault)
      expect(await child.exit, `${fault.operation} ${fault.when}\n${child.text}`).toEqual({ code: null, signal: 'SIGKILL' })
      // Two transactions went through before each kill, so every process made progress.
      expect(child.of('commit').length).toBeGreaterThanOrEqual(2)
    }
    const last = workerChild(place)
    await processed(place)
    expect(notOnce(ids(await readAll(place.output)), names('a', 3_000))).toEqual({})
    await last.kill()
  })

  test('replays only the tail of the changelog; a deleted state folder is restored in full (X2, X7)', async () => {
    const place = await scene('tail', 1)
    await send(place.input, events('a', 2_000))
    const config = { stateFlushInterval: '1ms', transactionMaxRecords: 100 } as const
    const first = workerChild(place, config)
    await first.says('running')
    await processed(place)
    await until('all of it is on disk', () => first.of('commit').at(-1)?.['reason'] === 'flush')
    await send(place.input, events('b', 100))
    await processed(place)
    await first.kill()

    await send(place.input, events('a', 2_000))
    const second = workerChild(place, config)
    await second.says('running')
    await processed(place)
    await second.kill()
    const tail = second.of('restore').reduce((sum, { records }) => sum + (records as number), 0)

    rmSync(place.stateDir, { recursive: true, force: true })
    await send(place.input, events('b', 100))
    const third = workerChild(place, config)
    await third.says('running')
    await processed(place)
    await third.kill()
    const [full] = third.of('restore')
    expect(full).toBeDefined()
    expect(tail).toBeLessThan((full!['records'] as number) / 2)
    expect(notOnce(ids(await readAll(place.output)), [...names('a', 2_000), ...names('b', 100)])).toEqual({})
  })

  test('G1: with every time-out at its default, killed twice in a row, the worker is running again at once: no wait for the session time-out', async () => {
    const place = await scene('defaults', 2)
    const defaults = { transactionTimeout: '10s', sessionTimeout: '30s', heartbeatInterval: '3s', maxPollInterval: '60s' } as const
    await send(place.input, events('a', 1_000))
    for (let round = 0; round < 2; round++) {
      const child = workerChild(place, { ...defaults, transactionMaxRecords: 50 }, kill('sendOffsetsToTransaction', 'before'))
      expect(await child.exit, child.text).toEqual({ code: null, signal: 'SIGKILL' })
    }
    const last = workerChild(place, defaults)
    await last.says('running')
    await processed(place)
    await last.kill()
    expect(notOnce(ids(await readAll(place.output)), names('a', 1_000))).toEqual({})
    expect(last.of('failed')).toEqual([])
  })

  test('G6: the open transaction of a dead worker does not hold readers of the output until its time-out: the next start ends it', async () => {
    const place = await scene('reader', 1)
    // Longer than this test may take.
    const patient = {
      transactionMaxRecords: 50,
      transactionTimeout: '10m',
      sessionTimeout: '20m',
      maxPollInterval: '20m',
      heartbeatInterval: '500ms',
    } as const
    await send(place.input, events('a', 200))
    const dead = workerChild(place, patient, kill('sendOffsetsToTransaction', 'before'))
    await dead.exit
    // 50 records of it are there, undecided, behind those that were committed.
    const committed = dead.of('commit').reduce((sum, { records }) => sum + (records as number), 0)
    expect(await readAll(place.output, { isolation: 'read_uncommitted' })).toHaveLength(committed + 50)
    const next = workerChild(place, patient)
    await next.says('running')
    await processed(place)
    expect(notOnce(ids(await readAll(place.output)), names('a', 200))).toEqual({})
    await next.kill()
  })
})

describe('stopped and continued', () => {
  test('A2: a process that was stopped in mid-transaction until the broker aborted it goes on, or ends with its own code; no id twice', async () => {
    const place = await scene('stopped', 1)
    await send(place.input, [...events('a', 200), ...events('a', 200)])
    const config = { transactionTimeout: '1s', sessionTimeout: '60s', maxPollInterval: '60s', transactionMaxRecords: 50 } as const
    const child = workerChild(place, config, { operation: 'sendOffsetsToTransaction', when: 'before', call: 3, signal: 'SIGSTOP' })
    // The transaction is open: its 50 records are there, and undecided until the broker's scan for timed-out transactions (10 s).
    await child.says('commit', 2)
    const committed = child.of('commit').reduce((sum, { records }) => sum + (records as number), 0)
    await until(
      'the third transaction',
      async () => (await readAll(place.output, { isolation: 'read_uncommitted' })).length === committed + 50,
    )
    // A reader that wants what lies past the end of now returns when the broker has aborted it.
    const withItsMarker = new Map([[0, ((await highWatermarks(place.output)).get(0) ?? 0) + 1]])
    expect(notOnce(ids(await readAll(place.output, { ends: withItsMarker })), names('a', committed))).toEqual({})
    child.signal('SIGCONT')
    await Promise.race([processed(place), child.exit])
    if (child.of('failed').length > 0) {
      expect(await child.exit).toEqual({ code: 5, signal: null })
      const next = workerChild(place, config)
      await processed(place)
      await next.kill()
    }
    expect(notOnce(ids(await readAll(place.output)), names('a', 200))).toEqual({})
  })
})

describe('X10: after close() nothing is left', () => {
  test('the process ends by itself with code 0, and its slot is free', async () => {
    const place = await scene('closed', 2)
    await send(place.input, events('a', 500))
    const child = workerChild(place)
    await child.says('running')
    await processed(place)
    child.signal('SIGTERM')
    expect(await child.exit, child.text).toEqual({ code: 0, signal: null })
    expect(child.of('closed')).toHaveLength(1)
    const next = workerChild(place, { lockTimeout: '0ms' })
    await next.says('running')
    expect(next.of('restore')).toEqual([])
    next.signal('SIGTERM')
    expect(await next.exit).toEqual({ code: 0, signal: null })
  })

  test.skipIf(inject('javaTools') === null)(
    'no transaction is open, neither after a close under load nor after a record that stopped the worker',
    async () => {
      const place = await scene('transactions', 1)
      await send(place.input, events('a', 20_000))
      const child = workerChild(place, { transactionMaxRecords: 500 })
      await child.says('commit', 2)
      child.signal('SIGTERM')
      expect(await child.exit, child.text).toEqual({ code: 0, signal: null })
      const poisoned = await scene('poisoned', 1)
      await send(poisoned.input, [...events('a', 3_000), { key: 'k', value: 'no json' }])
      const failing = workerChild(poisoned, {
        transactionTimeout: '10m',
        sessionTimeout: '20m',
        maxPollInterval: '20m',
        commitInterval: '1m',
      })
      expect(await failing.exit, failing.text).toEqual({ code: 4, signal: null })
      const { stdout } = await javaTool(inject('javaTools')!, TRANSACTIONS_COMMAND, ['list'])
      const open = stdout
        .split('\n')
        .filter((line) => line.includes('Ongoing') && (line.includes(place.application) || line.includes(poisoned.application)))
      expect(open).toEqual([])
    },
  )
})
