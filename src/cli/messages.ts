/** What supervisor and workers say to each other over IPC. Plain data. */
import type { WorkerState, WorkerStatus } from '../metrics/status.ts'

/** The one argument of a worker process, as JSON. */
export interface WorkerArguments {
  /** Path of the topology module. */
  readonly topology: string
  /** From `--config`. */
  readonly configFile: string | undefined
  /** Flags of the command line by option name, as they were typed. */
  readonly flags: Readonly<Record<string, unknown>>
  readonly slot: number
}

/** What the supervisor must know and only a worker can find out: the supervisor imports neither the topology nor the client. Sent before the worker starts. */
export interface WorkerPlan {
  readonly topology: string
  readonly applicationId: string
  readonly instance: string
  readonly workers: number
  readonly shutdownTimeoutMs: number
  readonly statusIntervalMs: number
}

/** An error as a worker tells it before it exits. */
export interface WorkerFailure {
  readonly name: string
  readonly message: string
  readonly code: string | undefined
  readonly remedy: string | undefined
}

export type WorkerMessage =
  | { readonly type: 'plan'; readonly plan: WorkerPlan }
  | { readonly type: 'state'; readonly state: WorkerState }
  | { readonly type: 'status'; readonly status: WorkerStatus }
  | { readonly type: 'failure'; readonly failure: WorkerFailure }
