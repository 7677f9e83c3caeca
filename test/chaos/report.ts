/** What a run says at its end: a table of faults, figures, violations with the story around them, and the line that repeats it. Pure. */
import Table from 'cli-table3'
import { commonSlope, lateSlopeOf, slopeOf, type MemorySlope, type ProcessLife } from './memory.ts'
import { commandOf, type ChaosOptions } from './options.ts'
import type { FiredFault, RunResult } from './run.ts'
import { FAULT_KINDS } from './timeline.ts'

/** A process grows while its caches fill. */
const SETTLE_MS = 60_000
const MOST_EXAMPLES = 10
const STORY_FAULTS = 8

export interface Report {
  readonly faults: Readonly<Record<string, { readonly planned: number; readonly fired: number }>>
  /** Failpoints at which a process died, and how often. */
  readonly failpoints: Readonly<Record<string, number>>
  readonly counts: Readonly<Record<string, number>>
  readonly firstCommitAfterKillMs: { readonly samples: number; readonly p50: number; readonly most: number } | undefined
  /** By what was looked at; `all` is a common slope, the others are of the longest-living process. */
  readonly memory: Readonly<Record<'longest' | 'laterHalf' | 'heap' | 'buffers' | 'all', MemorySlope | undefined>>
  readonly violations: number
}

export function reportOf({ faults, counts, workers, violations }: Pick<RunResult, 'faults' | 'counts' | 'workers' | 'violations'>): Report {
  const table: Record<string, { planned: number; fired: number }> = {}
  const failpoints: Record<string, number> = {}
  for (const kind of FAULT_KINDS) {
    const those = faults.filter(({ planned }) => planned.kind === kind)
    if (those.length === 0) continue
    const fired = those.filter(({ firedAt }) => firedAt !== undefined)
    table[kind] = { planned: those.length, fired: fired.length }
    for (const { planned } of fired) {
      if (planned.point === undefined) continue
      const name = `${kind} ${planned.point}`
      failpoints[name] = (failpoints[name] ?? 0) + 1
    }
  }
  const lives: ProcessLife[] = workers.map(({ slot, pid, startedAt, memory }) => ({
    label: `worker ${slot} (${pid ?? '?'})`,
    startedAt,
    samples: memory,
  }))
  const longest = lives.reduce<ProcessLife | undefined>(
    (a, b) => (a === undefined || b.samples.length > a.samples.length ? b : a),
    undefined,
  )
  return {
    faults: table,
    failpoints,
    counts,
    firstCommitAfterKillMs: restartTimes(workers),
    memory: {
      longest: longest && slopeOf(longest, SETTLE_MS),
      laterHalf: longest && lateSlopeOf(longest, SETTLE_MS),
      heap: longest && slopeOf(longest, SETTLE_MS, 'heapBytes'),
      buffers: longest && slopeOf(longest, SETTLE_MS, 'bufferBytes'),
      all: commonSlope(lives, SETTLE_MS),
    },
    violations: violations.length,
  }
}

/** From the end of a killed process to the first commit of the next one of its slot. */
function restartTimes(workers: RunResult['workers']): Report['firstCommitAfterKillMs'] {
  const times: number[] = []
  for (const killed of workers) {
    if (killed.signal !== 'SIGKILL' || killed.endedAt === undefined) continue
    const ended = killed.endedAt
    const next = workers
      .filter(({ slot, startedAt }) => slot === killed.slot && startedAt >= ended)
      .sort((a, b) => a.startedAt - b.startedAt)[0]
    if (next?.firstCommitAt !== undefined && next.startedAt - ended < 1_000) times.push(next.firstCommitAt - ended)
  }
  if (times.length === 0) return undefined
  times.sort((a, b) => a - b)
  return { samples: times.length, p50: times[Math.floor(times.length / 2)] ?? 0, most: times.at(-1) ?? 0 }
}

export function textOf(result: RunResult, options: ChaosOptions): string {
  const report = reportOf(result)
  const table = new Table({ head: ['fault', 'planned', 'fired'], style: { head: [], border: [] } })
  for (const [kind, { planned, fired }] of Object.entries(report.faults)) table.push([kind, String(planned), String(fired)])
  const lines = [table.toString()]
  const points = Object.entries(report.failpoints)
  if (points.length > 0) lines.push(`at failpoints: ${points.map(([name, number]) => `${name} ${number}`).join(', ')}`)
  lines.push(`input: ${result.committedByLoader}`)
  for (const [name, number] of Object.entries(report.counts)) lines.push(`${name}: ${number}`)
  const first = report.firstCommitAfterKillMs
  if (first !== undefined)
    lines.push(`kill -9 to first commit of the same slot: p50 ${first.p50} ms, most ${first.most} ms, ${first.samples} times`)
  lines.push(
    `memory of the longest-living worker: ${slopeText(report.memory.longest)}`,
    `  its later half: ${slopeText(report.memory.laterHalf)}`,
    `  V8 heap: ${slopeText(report.memory.heap)}`,
    `  buffers: ${slopeText(report.memory.buffers)}`,
    `memory of all workers: ${slopeText(report.memory.all)}`,
  )
  lines.push(...violationsText(result))
  lines.push(result.violations.length === 0 ? 'no violations' : `${result.violations.length} violations`, commandOf(options))
  return lines.join('\n')
}

function slopeText(slope: MemorySlope | undefined): string {
  if (slope === undefined) return `no process lived long enough after its first ${SETTLE_MS / 1_000} s`
  return `${slope.mibPerHour.toFixed(1)} MiB/hour over ${(slope.spanMs / 60_000).toFixed(1)} min (${slope.samples} samples, ${slope.fromMiB.toFixed(0)} -> ${slope.toMiB.toFixed(0)} MiB)`
}

function violationsText({ violations, faults, startedAt }: RunResult): string[] {
  const lines: string[] = []
  const shown = new Map<string, number>()
  for (const { kind, text } of violations) {
    const number = (shown.get(kind) ?? 0) + 1
    shown.set(kind, number)
    if (number <= MOST_EXAMPLES) lines.push(`VIOLATION ${kind}: ${text}`)
  }
  if (lines.length === 0) return lines
  const times = violations.flatMap(({ text }) => [...text.matchAll(/time (\d\d:\d\d:\d\d\.\d\d\d)/g)].map((match) => match[1] ?? ''))
  lines.push(...storyAround(faults, times[0], startedAt))
  return lines
}

/** Faults near the first violation that has a time, else all. */
function storyAround(faults: readonly FiredFault[], time: string | undefined, startedAt: number): string[] {
  const at = time === undefined ? undefined : Date.parse(`${new Date(startedAt).toISOString().slice(0, 11)}${time}Z`)
  const fired = faults.filter(({ firedAt }) => firedAt !== undefined)
  const near =
    at === undefined
      ? fired
      : [...fired].sort((a, b) => Math.abs((a.firedAt ?? 0) - at) - Math.abs((b.firedAt ?? 0) - at)).slice(0, STORY_FAULTS)
  return [
    at === undefined ? 'faults:' : `faults around ${time ?? ''}:`,
    ...[...near]
      .sort((a, b) => (a.firedAt ?? 0) - (b.firedAt ?? 0))
      .map(({ planned, beganAt, endedAt, detail }) => `  ${timeText(beganAt)} to ${timeText(endedAt)}: ${planned.kind}: ${detail}`),
  ]
}

function timeText(time: number | undefined): string {
  return time === undefined ? '...' : new Date(time).toISOString().slice(11, 23)
}
