import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { describe, expect, it } from 'vitest'
import { endLeftovers, findLeftovers, MARK } from '../../scripts/test-run/leftovers.mjs'
import { closingLine, totalsOf } from '../../scripts/test-run/totals.mjs'

const report = (passed: number, failed: number, files: object[] = []): object => ({
  numPassedTests: passed,
  numFailedTests: failed,
  numPendingTests: 0,
  numTodoTests: 0,
  testResults: files,
})

describe('the totals of a run', () => {
  it('are those of the report when all went well', () => {
    expect(totalsOf(report(12, 0), 0)).toMatchObject({ passed: 12, failed: 0 })
  })

  it('count failed tests once, not again for the file they are in', () => {
    expect(
      totalsOf(report(1, 2, [{ name: 'x', status: 'failed', assertionResults: [{ status: 'failed' }, { status: 'failed' }] }]), 1),
    ).toMatchObject({ passed: 1, failed: 2 })
  })

  it('count a file that could not be loaded, with its first line of reason', () => {
    const totals = totalsOf(
      report(3, 0, [{ name: 'broken.test.ts', status: 'failed', message: 'no such module\nat x', assertionResults: [] }]),
      1,
    )
    expect(totals).toMatchObject({ passed: 3, failed: 1, notes: ['broken.test.ts: the file failed outside its tests: no such module'] })
  })

  it('count an unhandled error that no test shows', () => {
    expect(totalsOf(report(3, 0), 1)).toMatchObject({ passed: 3, failed: 1 })
  })

  it('count a crash without a report', () => {
    expect(totalsOf(null, 139)).toMatchObject({ passed: 0, failed: 1 })
  })

  it('count a run without a test as failed', () => {
    expect(totalsOf(report(0, 0), 0)).toMatchObject({ passed: 0, failed: 1 })
  })

  it('close with the plain line', () => {
    expect(closingLine({ passed: 3, failed: 0, skipped: 0 })).toBe('3 passed, 0 failed')
    expect(closingLine({ passed: 3, failed: 1, skipped: 2 })).toBe('3 passed, 1 failed, 2 skipped')
  })
})

describe('what a run leaves behind', () => {
  it('is found also when its parent is gone, and is ended; other processes are left alone', async () => {
    const mark = randomUUID()
    // The child starts a grandchild in a session of its own and ends at once.
    const script = `
      const child = require('node:child_process').spawn(process.execPath, ['-e', 'setInterval(() => {}, 1 << 30)'], { detached: true, stdio: 'ignore' })
      process.stdout.write(String(child.pid), () => process.exit(0))`
    const pid = await new Promise<number>((resolve, reject) => {
      const child = spawn(process.execPath, ['-e', script], { env: { ...process.env, [MARK]: mark }, stdio: ['ignore', 'pipe', 'inherit'] })
      let text = ''
      child.stdout.on('data', (chunk: Buffer) => (text += chunk.toString()))
      child.once('error', reject)
      child.once('close', () => resolve(Number(text)))
    })
    const leftovers = await findLeftovers(mark, 0)
    try {
      expect(leftovers.map((leftover) => leftover.pid)).toEqual([pid])
    } finally {
      endLeftovers(leftovers)
    }
    expect(await findLeftovers(mark, 10_000)).toEqual([])
    expect(await findLeftovers(randomUUID(), 0)).toEqual([])
  })
})
