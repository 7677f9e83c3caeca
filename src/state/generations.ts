/**
 * Where a task's state goes while another live process holds it: a sibling of its own, `<task>.1`, `<task>.2`, ... (DESIGN 4, CASES D43). One worker that is
 * stopped or stuck must not keep its machine from running its tasks, and what it holds is never deleted.
 *
 * A sibling is like any other state of the task: it has its own checkpoint and catches up from the changelog. It is removed when the task's own place can be
 * locked again and nobody holds the sibling.
 */
import { StateLockedError } from '../errors/errors.ts'
import type { LockOwner } from './lock-wait.ts'

export const MAX_GENERATIONS = 16

/** What `onLocked` is told: the task starts in `directory`, because `owner` still holds its own place. */
export interface LockedReport {
  readonly taskId: string
  /** What the holder wrote about itself; undefined when it left no readable note. */
  readonly owner: LockOwner | undefined
  /** The sibling that is used instead; in memory its name. */
  readonly directory: string
}

export function generationName(taskId: string, generation: number): string {
  return `${taskId}.${generation}`
}

/** Whether `name` could be a sibling of another task. */
export function isGenerationName(name: string): boolean {
  return /\.\d+$/.test(name)
}

/** The first sibling for which `attempt` returns something. Throws StateLockedError, with `locked` as its cause, when all are taken. */
export function firstFreeGeneration<T>(taskId: string, locked: StateLockedError, attempt: (name: string) => T | undefined): T {
  for (let generation = 1; generation <= MAX_GENERATIONS; generation++) {
    const result = attempt(generationName(taskId, generation))
    if (result !== undefined) return result
  }
  throw new StateLockedError(`${locked.message}; so are its ${MAX_GENERATIONS} sibling generations`, {
    code: 'state-locked',
    remedy: 'Stop the processes that hold them: this many on one machine for one task are stuck, not slow. There is nothing to delete.',
    cause: locked,
  })
}
