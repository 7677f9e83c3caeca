/** The outcome of the demo: as a table for people, as one line of JSON for programs, and as the list of what went wrong. Pure. */
import Table from 'cli-table3'
import pc from 'picocolors'
import type { LedgerReport } from './baseline-ledger.ts'
import type { Verdict } from './verifier.ts'

interface SideFigures {
  /** kill -9 that happened. */
  readonly kills: number
  /** From each kill to the first commit after it that moved on in the victim's partitions, ms. Shorter than `kills` when nothing was left to do. */
  readonly recoveriesMs: readonly number[]
}

export interface Outcome {
  readonly seed: number
  readonly plannedKills: number
  /** What the loader says it sent. */
  readonly sent: number
  /** Different ids by the generator's own count. */
  readonly generatedIds: number
  readonly verdict: Verdict
  readonly ledger: LedgerReport
  readonly naive: SideFigures
  readonly millrace: SideFigures & {
    /** Of `kills`, those that left a transaction open. */
    readonly killsInTransaction: number
    readonly recordsPerSecond: number
    readonly peakRecordsPerSecond: number
    readonly commitP50Ms: number
    readonly commitP99Ms: number
    readonly restoreMs: number
  }
  /** What did not go as planned, beside the counts. */
  readonly problems: readonly string[]
}

/** Everything that makes the demo fail, as sentences. Empty: all is well. */
export function failures({ verdict, ledger, plannedKills, sent, generatedIds, naive, millrace, problems }: Outcome): readonly string[] {
  const found = [...problems]
  const check = (isWell: boolean, text: string): void => {
    if (!isWell) found.push(text)
  }
  check(verdict.duplicates === 0, `millrace: ${verdict.duplicates} records of the output are duplicates`)
  check(verdict.lost === 0, `millrace: ${verdict.lost} ids of the input are missing in the output`)
  check(verdict.invented === 0, `millrace: ${verdict.invented} ids of the output are not in the input`)
  check(verdict.input === sent, `the loader sent ${sent} records, the input topic holds ${verdict.input}`)
  check(verdict.uniqueIds === generatedIds, `the generator made ${generatedIds} different ids, the input topic holds ${verdict.uniqueIds}`)
  check(ledger.records === verdict.input, `the plain consumer credited ${ledger.records} of ${verdict.input} records`)
  check(naive.kills === plannedKills, `the plain consumer was killed ${naive.kills} times instead of ${plannedKills}`)
  check(millrace.kills === plannedKills, `millrace was killed ${millrace.kills} times instead of ${plannedKills}`)
  return found
}

export function jsonOf(outcome: Outcome): string {
  const { verdict, ledger, naive, millrace } = outcome
  return JSON.stringify({
    input: verdict.input,
    uniqueIds: verdict.uniqueIds,
    output: verdict.output,
    duplicates: verdict.duplicates,
    lost: verdict.lost,
    kills: millrace.kills,
    killsInTransaction: millrace.killsInTransaction,
    naive: {
      duplicates: ledger.duplicates,
      windowMs: Math.max(0, ...ledger.windowsMs),
      usersCreditedTwice: ledger.usersCreditedTwice,
      pointsTooMany: ledger.pointsTooMany,
      resent: ledger.resent,
      kills: naive.kills,
      recoveryMs: median(naive.recoveriesMs),
    },
    recordsPerSecond: millrace.recordsPerSecond,
    peakRecordsPerSecond: millrace.peakRecordsPerSecond,
    commitP50Ms: round(millrace.commitP50Ms),
    commitP99Ms: round(millrace.commitP99Ms),
    restoreMs: millrace.restoreMs,
    recoveryMs: median(millrace.recoveriesMs),
    seed: outcome.seed,
  })
}

const NUMBER = new Intl.NumberFormat('en-US', { maximumFractionDigits: 1 })

export function tableOf(outcome: Outcome): string {
  const { verdict, ledger, naive, millrace } = outcome
  const number = (value: number): string => NUMBER.format(value)
  const ms = (value: number | null): string => (value === null ? '-' : `${number(value)} ms`)
  const bad = (value: number): string => (value === 0 ? pc.green('0') : pc.red(number(value)))
  const table = new Table({
    head: ['', 'plain kafkajs consumer', 'millrace order-dedupe'],
    colAligns: ['left', 'right', 'right'],
    style: { head: pc.isColorSupported ? ['bold'] : [], border: pc.isColorSupported ? ['gray'] : [] },
  })
  table.push(
    [
      'records in / different ids',
      `${number(verdict.input)} / ${number(verdict.uniqueIds)}`,
      `${number(verdict.input)} / ${number(verdict.uniqueIds)}`,
    ],
    ['credits / records out', number(ledger.credits), number(verdict.output)],
    ['kill -9', number(naive.kills), `${number(millrace.kills)} (${number(millrace.killsInTransaction)} in a transaction)`],
    ['duplicates after crashes', bad(ledger.duplicates), bad(verdict.duplicates)],
    ['users credited twice by them', bad(ledger.usersCreditedTwice), verdict.duplicates === 0 ? bad(0) : ''],
    ['duplicate window', ms(Math.max(0, ...ledger.windowsMs)), verdict.duplicates === 0 ? 'none' : pc.red('see duplicates')],
    ['resends credited / let through', bad(ledger.resent), bad(Math.max(0, verdict.output - verdict.uniqueIds))],
    ['lost', bad(verdict.input - ledger.records), bad(verdict.lost)],
    ['from kill to new progress', ms(median(naive.recoveriesMs)), ms(median(millrace.recoveriesMs))],
    ['records/s (peak)', '', `${number(millrace.recordsPerSecond)} (${number(millrace.peakRecordsPerSecond)})`],
    ['commit p50 / p99', '', `${ms(millrace.commitP50Ms)} / ${ms(millrace.commitP99Ms)}`],
    ['restore of a deleted state folder', '', ms(millrace.restoreMs)],
  )
  return table.toString()
}

/** Null when there is none. */
export function median(values: readonly number[]): number | null {
  if (values.length === 0) return null
  const sorted = [...values].sort((one, other) => one - other)
  return sorted[Math.floor(sorted.length / 2)] ?? null
}

function round(value: number): number {
  return Math.round(value * 10) / 10
}
