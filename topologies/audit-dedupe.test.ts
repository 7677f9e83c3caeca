/** What `audit-dedupe` promises, on the test driver: no broker is needed. */
import { expect, test } from 'vitest'
import { createTestDriver, damageStore, pause, type TestInput } from 'millrace/testing'
import auditDedupe, { entries, entriesPerActor, lateEntries, repeatedEntries, uniqueEntries, type Entry } from './audit-dedupe.ts'

const LOGIN = '00000000-0000-4000-8000-000000000001'
const LOGOUT = '00000000-0000-4000-8000-000000000002'
const OLD = '00000000-0000-4000-8000-000000000003'
const entry = (id: string, action: string, at: string): TestInput<string, Entry> => ({ key: id, value: { actor: 'ann', action, at } })
const login = entry(LOGIN, 'login', '2026-01-02T09:15:00Z')
const logout = entry(LOGOUT, 'logout', '2026-01-02T17:00:00Z')

test('an entry that is sent again goes to a topic of its own, and names the first', async () => {
  await using driver = await createTestDriver(auditDedupe)

  await driver.pipe(entries, login, login)

  expect(driver.pairs(uniqueEntries)).toEqual([[LOGIN, login.value]])
  expect(driver.pairs(repeatedEntries)).toEqual([[LOGIN, login.value]])
  expect(driver.records(repeatedEntries)[0]?.headers.get('millrace.original.offset')).toBe('0')
})

test('entries are keyed by actor and hour', async () => {
  await using driver = await createTestDriver(auditDedupe)

  await driver.pipe(entries, login, logout)

  expect(driver.records(entriesPerActor).map(({ key }) => key)).toEqual([
    ['ann', new Date('2026-01-02T09:00:00Z')],
    ['ann', new Date('2026-01-02T17:00:00Z')],
  ])
})

test('what is older than the window goes to a topic of its own', async () => {
  await using driver = await createTestDriver(auditDedupe)
  const old = entry(OLD, 'login', '2025-12-01T00:00:00Z')

  await driver.pipe(entries, login, old)

  expect(driver.pairs(lateEntries)).toEqual([[OLD, old.value]])
  expect(driver.metrics).toMatchObject({ late: 1 })
})

test('a worker that slept while another one had its tasks, and a damaged store file, change nothing', async () => {
  await using driver = await createTestDriver(auditDedupe, { partitions: 4, workers: 2 })
  await driver.fault(pause('1m'))
  await driver.fault(damageStore('entries'))

  await driver.pipe(entries, login, logout, login)
  await driver.pipe(entries, logout)

  expect(driver.values(uniqueEntries)).toHaveLength(2)
  expect(driver.values(repeatedEntries)).toHaveLength(2)
  expect(await driver.differencesFromUndisturbedRun()).toEqual([])
})
