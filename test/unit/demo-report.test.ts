import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { Ledger, type Credit } from '../../demo/baseline-ledger.ts'
import { defaultRate } from '../../demo/options.ts'
import { failures, jsonOf, median, tableOf, type Outcome } from '../../demo/report.ts'

let folder = ''
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'millrace-demo-test-'))
})
afterEach(() => {
  rmSync(folder, { recursive: true, force: true })
})

const credit = (offset: number, orderId: string, userId = 'ann'): Credit => ({
  partition: 0,
  offset,
  orderId,
  type: 'paid',
  userId,
  points: 5,
})

/** Credits by a process of its own, as a killed worker would have; returns its process id. */
function creditElsewhere(path: string, credits: readonly Credit[]): number {
  const module = fileURLToPath(new URL('../../demo/baseline-ledger.ts', import.meta.url))
  const program = `import { Ledger } from ${JSON.stringify(module)}
    const ledger = new Ledger(${JSON.stringify(path)})
    for (const credit of ${JSON.stringify(credits)}) ledger.credit(credit)
    ledger.close()
    console.log(process.pid)`
  return Number(execFileSync(process.execPath, ['--import', 'tsx', '--input-type=module', '--eval', program], { encoding: 'utf8' }))
}

describe('the ledger of the plain consumer', () => {
  it('tells a record that was credited again from an event that the producer sent again', () => {
    const ledger = new Ledger(join(folder, 'points.sqlite'))
    for (const each of [credit(0, 'a'), credit(1, 'b', 'bob'), credit(1, 'b', 'bob'), credit(1, 'b', 'bob'), credit(2, 'a')])
      ledger.credit(each)
    expect(ledger.report([])).toEqual({
      credits: 5,
      records: 3,
      duplicates: 2,
      resent: 1,
      usersCreditedTwice: 1,
      pointsTooMany: 10,
      windowsMs: [],
    })
    ledger.close()
  })

  it('measures the window from the oldest credit of the killed process that was repeated after the kill', () => {
    const path = join(folder, 'points.sqlite')
    const before = Date.now()
    const pid = creditElsewhere(path, [credit(0, 'a'), credit(1, 'b')])
    const ledger = new Ledger(path)
    const at = Date.now()
    ledger.credit(credit(1, 'b'))
    const [window] = ledger.report([{ pid, at }]).windowsMs
    expect(window).toBeGreaterThan(0)
    expect(window).toBeLessThanOrEqual(at - before)
    // A repetition before the kill is not its doing, and what this process wrote was repeated by nobody.
    expect(
      ledger.report([
        { pid, at: at + 60_000 },
        { pid: process.pid, at },
      ]).windowsMs,
    ).toEqual([0, 0])
    ledger.close()
  })
})

const clean: Outcome = {
  seed: 7,
  plannedKills: 3,
  sent: 100,
  generatedIds: 90,
  verdict: { input: 100, uniqueIds: 90, output: 90, duplicates: 0, lost: 0, invented: 0, examples: [] },
  ledger: { credits: 130, records: 100, duplicates: 30, resent: 10, usersCreditedTwice: 12, pointsTooMany: 99, windowsMs: [180, 20, 0] },
  naive: { kills: 3, recoveriesMs: [6_100, 6_300, 6_000] },
  millrace: {
    kills: 3,
    killsInTransaction: 2,
    recoveriesMs: [900, 700],
    recordsPerSecond: 3_000,
    peakRecordsPerSecond: 4_000,
    commitP50Ms: 8.123,
    commitP99Ms: 40.05,
    restoreMs: 250,
  },
  problems: [],
}

describe('the report of the demo', () => {
  it('has no failure when nothing was duplicated or lost and every kill happened', () => {
    expect(failures(clean)).toEqual([])
  })

  it.each([
    ['a duplicate', { verdict: { ...clean.verdict, duplicates: 1 } }, /1 records of the output are duplicates/],
    ['a loss', { verdict: { ...clean.verdict, lost: 1 } }, /1 ids of the input are missing/],
    ['an invented id', { verdict: { ...clean.verdict, invented: 1 } }, /not in the input/],
    ['an input that is not what was sent', { sent: 101 }, /sent 101 records, the input topic holds 100/],
    ['an input with other ids than were made', { generatedIds: 91 }, /made 91 different ids/],
    ['a plain consumer that skipped records', { ledger: { ...clean.ledger, records: 99 } }, /credited 99 of 100/],
    ['a kill that did not happen', { millrace: { ...clean.millrace, kills: 2 } }, /killed 2 times instead of 3/],
    ['a kill of the plain consumer that did not happen', { naive: { ...clean.naive, kills: 0 } }, /killed 0 times instead of 3/],
    ['whatever else went wrong', { problems: ['exit code 1 after SIGTERM'] }, /exit code 1 after SIGTERM/],
  ] satisfies [string, Partial<Outcome>, RegExp][])('fails for %s', (_what, change, expected) => {
    expect(failures({ ...clean, ...change })).toEqual([expect.stringMatching(expected)])
  })

  it('ends in one line of JSON with the promised keys', () => {
    const json = jsonOf(clean)
    expect(json).not.toContain('\n')
    expect(JSON.parse(json)).toMatchObject({
      input: 100,
      uniqueIds: 90,
      output: 90,
      duplicates: 0,
      lost: 0,
      kills: 3,
      naive: { duplicates: 30, windowMs: 180, resent: 10, usersCreditedTwice: 12 },
      recordsPerSecond: 3_000,
      commitP50Ms: 8.1,
      commitP99Ms: 40.1,
      restoreMs: 250,
      seed: 7,
    })
  })

  it('shows both sides in a table', () => {
    const table = tableOf(clean)
    expect(table).toContain('plain kafkajs consumer')
    expect(table).toMatch(/duplicates after crashes.*30.*0/)
    expect(table).toMatch(/duplicate window.*180 ms.*none/)
  })

  it('has no median of nothing', () => {
    expect(median([])).toBeNull()
    expect(median([9, 1, 5])).toBe(5)
  })
})

describe('the rate of the demo', () => {
  it('leaves each kill its time when there are few records, and is bounded when there are many', () => {
    expect(defaultRate(200_000, 3)).toBe(3_000)
    expect(50_000 / defaultRate(50_000, 6)).toBeGreaterThanOrEqual(40)
    expect(defaultRate(1_000, 50)).toBeGreaterThanOrEqual(1)
  })
})
