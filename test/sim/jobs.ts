/** Work of the simulation, spread over processes: jobs are plain data, and so are their results. */
import { fork, type ChildProcess } from 'node:child_process'
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import { deviationsOf, type Decision } from '../../src/testing/sim/choices.ts'
import { deviationsText, firstOfPairs, pairsWith, parseDeviations, replay, runSeed, shrink, singles, type Shape } from './explore.ts'
import { MUTANTS } from './mutants.ts'
import type { RunResult } from './run-once.ts'

export type Job =
  | { readonly kind: 'seeds'; readonly from: number; readonly to: number; readonly twiceEvery: number }
  /** Single deviations from the n-th on, every `step`. */
  | { readonly kind: 'singles'; readonly offset: number; readonly step: number; readonly shape: Shape }
  | { readonly kind: 'pairs'; readonly first: string; readonly shape: Shape }
  | { readonly kind: 'mutant'; readonly index: number; readonly seeds: number }

export interface Failure {
  readonly seed: number | undefined
  /** The fewest deviations that still fail. */
  readonly deviations: string
  readonly shape: Shape
  readonly violations: readonly string[]
}

export interface JobResult {
  runs: number
  events: number
  readonly failures: Failure[]
  readonly fired: Record<string, number>
  /** Of a mutant: what caught it. */
  caughtBy?: string
}

/** First halves of pairs, as jobs. */
export async function pairJobs(shape: Shape): Promise<Job[]> {
  const { trace } = await replay(new Map(), shape)
  return firstOfPairs(trace).map((first): Job => ({ kind: 'pairs', first: deviationsText(first), shape }))
}

export async function work(job: Job): Promise<JobResult> {
  const result: JobResult = { runs: 0, events: 0, failures: [], fired: {} }
  switch (job.kind) {
    case 'seeds':
      for (let seed = job.from; seed < job.to; seed++) {
        const { shape, result: run } = runSeed(seed)
        const first = await run
        await take(result, first, shape, seed)
        if (seed % job.twiceEvery === 0 && (await runSeed(seed).result).digest !== first.digest)
          result.failures.push({
            seed,
            deviations: '',
            shape,
            violations: ['two runs of this seed differ: something in them is not decided by it'],
          })
      }
      break
    case 'singles': {
      const all = singles((await replay(new Map(), job.shape)).trace)
      for (let index = job.offset; index < all.length; index += job.step)
        await take(result, await replay(all[index] as ReadonlyMap<number, number>, job.shape), job.shape, undefined)
      break
    }
    case 'pairs': {
      const first = parseDeviations(job.first)
      for (const pair of pairsWith(first, (await replay(first, job.shape)).trace))
        await take(result, await replay(pair, job.shape), job.shape, undefined)
      break
    }
    case 'mutant': {
      const mutant = MUTANTS[job.index] as (typeof MUTANTS)[number]
      const mend = mutant.apply()
      try {
        for (let seed = 1; seed <= job.seeds && result.caughtBy === undefined; seed++) {
          const run = await runSeed(seed).result
          result.runs++
          const [violation] = run.violations
          if (violation !== undefined) result.caughtBy = `seed ${seed}: ${violation}`
        }
        if (result.caughtBy === undefined && mutant.directed !== undefined) await workDirected(mutant.directed, result)
      } finally {
        mend()
      }
      break
    }
  }
  return result
}

const DIRECTED: Shape = { workers: 2, partitions: 2, records: 16, startEveryMs: 300 }

async function workDirected(what: string, result: JobResult): Promise<void> {
  const { trace } = await replay(new Map(), DIRECTED)
  for (const first of singles(trace).filter((deviations) => [...deviations.keys()].every((index) => trace[index]?.what === what))) {
    const [violation] = (await replay(first, DIRECTED)).violations
    result.runs++
    if (violation === undefined) continue
    result.caughtBy = `deviations ${deviationsText(first)}: ${violation}`
    return
  }
}

async function take(result: JobResult, run: RunResult, shape: Shape, seed: number | undefined): Promise<void> {
  result.runs++
  result.events += run.events
  for (const [name, count] of run.fired) result.fired[name] = (result.fired[name] ?? 0) + count
  if (run.violations.length === 0) return
  const deviations = await shrunk(run.trace, shape)
  result.failures.push({ seed, deviations, shape, violations: run.violations })
}

async function shrunk(trace: readonly Decision[], shape: Shape): Promise<string> {
  const deviations = deviationsOf(trace)
  return deviationsText(deviations.size > 1 ? await shrink(trace, shape) : deviations)
}

/** Runs the jobs in as many processes as the machine has processors. `onResult` is called as they end; a process that dies is an error. */
export async function runJobs(jobs: readonly Job[], onResult: (job: Job, result: JobResult) => void): Promise<void> {
  const queue = [...jobs]
  const children = Array.from({ length: Math.min(availableParallelism(), jobs.length) }, () =>
    fork(fileURLToPath(new URL('child.ts', import.meta.url)), [], { execArgv: ['--import', 'tsx'], serialization: 'advanced' }),
  )
  try {
    await Promise.all(
      children.map(async (child) => {
        for (let job = queue.shift(); job !== undefined; job = queue.shift()) onResult(job, await ask(child, job))
      }),
    )
  } finally {
    for (const child of children) child.kill()
  }
}

function ask(child: ChildProcess, job: Job): Promise<JobResult> {
  return new Promise((resolve, reject) => {
    const died = (code: number | null): void =>
      reject(new Error(`a process of the simulation died with ${code}, at ${JSON.stringify(job)}`))
    child.once('exit', died)
    child.once('message', (result) => {
      child.off('exit', died)
      resolve(result as JobResult)
    })
    child.send(job)
  })
}
