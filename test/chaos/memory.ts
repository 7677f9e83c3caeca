/** How memory develops: least squares over samples. Pure. */
import type { MemorySample } from './fleet.ts'

const MIB = 1024 ** 2
const HOUR_MS = 3_600_000

export interface MemorySlope {
  readonly mibPerHour: number
  readonly samples: number
  readonly fromMiB: number
  readonly toMiB: number
  /** Length of the time that was looked at, ms. */
  readonly spanMs: number
}

export type MemoryKind = 'rssBytes' | 'heapBytes' | 'bufferBytes'

export interface ProcessLife {
  readonly label: string
  readonly startedAt: number
  readonly samples: readonly MemorySample[]
}

/** Slope of one life, without its first `settleMs`; undefined with fewer than ten samples. */
export function slopeOf({ startedAt, samples }: ProcessLife, settleMs: number, kind: MemoryKind = 'rssBytes'): MemorySlope | undefined {
  const settled = samples.filter(({ at }) => at - startedAt >= settleMs)
  return settled.length < 10 ? undefined : fit([settled], kind)
}

/** Of the later half of a life: growth that ends shows there. */
export function lateSlopeOf({ label, startedAt, samples }: ProcessLife, settleMs: number): MemorySlope | undefined {
  const endsAt = samples.at(-1)?.at ?? startedAt
  return slopeOf({ label, startedAt, samples }, Math.max(settleMs, (endsAt - startedAt) / 2))
}

/** One slope over all lives: each life has a level of its own (a common slope, own intercepts). */
export function commonSlope(lives: readonly ProcessLife[], settleMs: number): MemorySlope | undefined {
  const settled = lives
    .map(({ startedAt, samples }) => samples.filter(({ at }) => at - startedAt >= settleMs))
    .filter(({ length }) => length >= 10)
  return settled.length === 0 ? undefined : fit(settled, 'rssBytes')
}

function fit(groups: readonly (readonly MemorySample[])[], kind: MemoryKind): MemorySlope {
  let covariance = 0
  let variance = 0
  let samples = 0
  let spanMs = 0
  for (const group of groups) {
    const meanTime = mean(group.map(({ at }) => at))
    const meanBytes = mean(group.map((sample) => sample[kind]))
    for (const sample of group) {
      const { at } = sample
      covariance += (at - meanTime) * (sample[kind] - meanBytes)
      variance += (at - meanTime) ** 2
    }
    samples += group.length
    spanMs = Math.max(spanMs, (group.at(-1)?.at ?? 0) - (group[0]?.at ?? 0))
  }
  const longest = groups.reduce((a, b) => (b.length > a.length ? b : a))
  return {
    mibPerHour: variance === 0 ? 0 : ((covariance / variance) * HOUR_MS) / MIB,
    samples,
    fromMiB: (longest[0]?.[kind] ?? 0) / MIB,
    toMiB: (longest.at(-1)?.[kind] ?? 0) / MIB,
    spanMs,
  }
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length
}
