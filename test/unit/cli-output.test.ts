import { Writable } from 'node:stream'
import { describe, expect, test } from 'vitest'
import { createLogger, prettyLine } from '../../src/cli/logger.ts'
import { restoreText, statusText, totalsOf } from '../../src/cli/status-line.ts'
import type { WorkerView } from '../../src/cli/supervisor.ts'
import { terminalScreen } from '../../src/cli/terminal.ts'
import { NO_COUNTS, type WorkerStatus } from '../../src/metrics/status.ts'

const STATUS: WorkerStatus = {
  state: 'running',
  recordsPerSecond: 1_000.4,
  records: 5_000,
  outputs: 4_500,
  duplicates: 500,
  late: 0,
  deadLetters: 0,
  skipped: 0,
  lag: 30,
  commitP50Ms: 4.04,
  commitP99Ms: 12.26,
  restoring: [],
  transactions: 50,
  aborts: 0,
  fences: 0,
  offsetsPassedOver: 0,
  transactionAgeMs: 0,
  oldestTransactionMs: 0,
  abortsByCause: {},
  tasks: 3,
  restores: 0,
  restoredRecords: 0,
  rebuilds: 0,
  rebuildsByReason: {},
  rssBytes: 100,
}
const RESTORE = { task: '0_2', store: 'dedupe', done: 1_200, total: 4_000, ratePerSecond: 600, etaMs: 4_700 }
const NOTHING_BEFORE = NO_COUNTS

function worker(slot: number, status: Partial<WorkerStatus> | undefined): WorkerView {
  return {
    slot,
    pid: 100 + slot,
    state: status === undefined ? 'starting' : 'running',
    status: status === undefined ? undefined : { ...STATUS, ...status },
  }
}

/** Colours and cursor movements taken out. */
function plain(text: string): string {
  return text.replace(/\u001b\[[0-9;?]*[A-Za-z]/g, '')
}

describe('the status line', () => {
  test('adds up workers, and the processes they had before; of commit times it shows the slowest', () => {
    const totals = totalsOf([worker(0, {}), worker(1, { commitP99Ms: 40, lag: 1_200 }), worker(2, undefined)], {
      ...NOTHING_BEFORE,
      records: 7,
      duplicates: 3,
    })
    expect(totals).toMatchObject({
      workers: 3,
      running: 2,
      tasks: 6,
      recordsPerSecond: 2_001,
      records: 10_007,
      outputs: 9_000,
      duplicates: 1_003,
      lag: 1_230,
      commitP50Ms: 4,
      commitP99Ms: 40,
    })
    expect(statusText(totals)).toBe('2/3 workers  2,001 records/s  1,003 duplicates  lag 1,230  commit p99 40 ms')
  })

  test('mentions aborts once there are some', () => {
    expect(statusText(totalsOf([worker(0, { aborts: 2 })], NOTHING_BEFORE))).toBe(
      '1/1 worker  1,000 records/s  500 duplicates  lag 30  commit p99 12 ms  2 aborts',
    )
  })

  test('of a restore tells how far it is, how fast, and how long it takes', () => {
    expect(restoreText(RESTORE)).toBe('1,200 of 4,000 records, 600/s, 4.7 s left')
    expect(restoreText({ ...RESTORE, etaMs: undefined })).toBe('1,200 of 4,000 records, 600/s')
  })
})

describe('logs', () => {
  test('are one JSON object a line, with time, level, slot and pid', () => {
    const lines: string[] = []
    const logger = createLogger({ level: 'info', slot: 4, write: (line) => lines.push(line) })
    logger.info({ event: 'state', to: 'running' }, 'hello')
    logger.debug({}, 'not shown')
    expect(lines).toHaveLength(1)
    expect(JSON.parse(lines[0] ?? '')).toEqual({
      time: expect.stringMatching(/^\d{4}-\d\d-\d\dT.*Z$/) as string,
      level: 'info',
      pid: process.pid,
      slot: 4,
      event: 'state',
      to: 'running',
      msg: 'hello',
    })
  })

  test("of the supervisor name the worker's slot and pid once", () => {
    const lines: string[] = []
    createLogger({ level: 'info', slot: undefined, write: (line) => lines.push(line) }).info(
      { event: 'worker started', slot: 1, pid: 77 },
      'worker 1 started',
    )
    expect(lines[0]?.match(/"pid":/g)).toHaveLength(1)
    expect(JSON.parse(lines[0] ?? '')).toMatchObject({ supervisor: process.pid, slot: 1, pid: 77 })
  })

  test('become readable for people: events by their message, other lines with their details, a stack below', () => {
    const line = (entry: object): string => plain(prettyLine(JSON.stringify({ time: '2026-01-02T12:00:01.250Z', level: 'warn', ...entry })))
    expect(line({ slot: 1, pid: 7, event: 'worker exited', code: 3, msg: 'worker 1 exited' })).toBe(
      '12:00:01.250 warn  [1] worker 1 exited',
    )
    expect(line({ topic: 'orders', partition: 2, msg: 'no leader' })).toBe('12:00:01.250 warn  no leader topic=orders partition=2')
    expect(line({ msg: 'failed\nremedy', stack: 'Error: failed\n    at f' })).toBe(
      '12:00:01.250 warn  failed\n  remedy\nError: failed\n    at f',
    )
  })

  test.each(['plain text', '{"a": 1}', '{broken', '[1]', ''])('leave what others print as it is: %o', (line) => {
    expect(prettyLine(line)).toBe(line)
  })
})

describe('the screen', () => {
  class Terminal extends Writable {
    readonly isTTY = true
    readonly columns = 120
    text = ''

    override _write(chunk: Buffer, _encoding: BufferEncoding, done: () => void): void {
      this.text += chunk.toString()
      done()
    }
  }

  test('shows the status and a bar for each running restore, and loses no line of the log', () => {
    const terminal = new Terminal()
    const screen = terminalScreen(terminal as unknown as NodeJS.WriteStream)
    screen.log('before the first status')
    screen.update(totalsOf([worker(0, { restoring: [RESTORE] })], NOTHING_BEFORE))
    screen.log('while it runs')
    screen.update(totalsOf([worker(0, { restoring: [{ ...RESTORE, done: 3_000 }] })], NOTHING_BEFORE))
    screen.close()
    const shown = plain(terminal.text)
    expect(shown).toContain('before the first status\n')
    expect(shown).toContain('while it runs\n')
    expect(shown).toContain('1/1 worker  1,000 records/s')
    expect(shown).toMatch(/restore 0_2 dedupe \[=+-+\] 75% {2}3,000 of 4,000 records, 600\/s, 4\.7 s left/)
  })

  test('takes away the bar of a restore that is done', () => {
    const terminal = new Terminal()
    const screen = terminalScreen(terminal as unknown as NodeJS.WriteStream)
    screen.update(totalsOf([worker(0, { restoring: [RESTORE] })], NOTHING_BEFORE))
    screen.update(totalsOf([worker(0, {})], NOTHING_BEFORE))
    const before = terminal.text.length
    screen.close()
    expect(plain(terminal.text.slice(before))).not.toContain('restore 0_2')
    expect(plain(terminal.text.slice(before))).toContain('1/1 worker')
  })
})
