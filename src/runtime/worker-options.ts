/** What the worker is made of: its settings, the ports it talks through, and who listens to it. */
import type { Broker } from '../broker/port.ts'
import type { Clock, Logger, Random, Timers } from '../common/ports.ts'
import type { WorkerState } from '../metrics/status.ts'
import type { StateBackend } from '../state/store.ts'
import type { TopologyPlan } from '../topology/nodes.ts'
import type { Failure } from '../topology/public-types.ts'
import type { RestoreProgress } from './restore.ts'

export type CommitReason = 'drained' | 'interval' | 'records' | 'bytes' | 'flush' | 'revoke' | 'close' | 'isolated'

/** What happens when an input's position lies outside of its log: stop, or go on at the log's start or end without the records between. */
export type OffsetOutOfRangePolicy = 'fail' | 'earliest' | 'latest'
/** What happens when a batch of an input does not fit its checksum: stop, or never look. */
export type CorruptedRecordPolicy = 'fail' | 'deliver'

export interface WorkerSettings {
  readonly applicationId: string
  readonly instance: string
  readonly slot: number
  readonly commitIntervalMs: number
  readonly maxPollRecords: number
  readonly sessionTimeoutMs: number
  readonly heartbeatIntervalMs: number
  readonly maxPollIntervalMs: number
  readonly transactionTimeoutMs: number
  readonly producerRingSize: number
  readonly transactionMaxRecords: number
  readonly transactionMaxBytes: number
  readonly recordMaxOutputBytes: number
  readonly memtableBytes: number
  readonly memoryBudgetBytes: number
  readonly taskTimeoutMs: number
  readonly restoreTimeoutMs: number
  readonly shutdownTimeoutMs: number
  readonly onClose: 'keep' | 'leave'
  readonly replicationFactor: number
  readonly offsetKeepAliveMs: number
  readonly metadataPollMs: number
  readonly offsetOutOfRange: OffsetOutOfRangePolicy
  readonly corruptedRecord: CorruptedRecordPolicy
  readonly changelogMissing: 'fail' | 'recreate'
  readonly changelogSettings: 'fail' | 'repair'
}

export interface CommitEvent {
  readonly records: number
  readonly bytes: number
  readonly durationMs: number
  readonly reason: CommitReason
}

export interface WorkerListener {
  state(from: WorkerState, to: WorkerState): void
  assigned(tasks: readonly string[]): void
  revoked(tasks: readonly string[], lost: boolean): void
  restored(progress: RestoreProgress): void
  commit(event: CommitEvent): void
  failure(failure: Failure, reaction: 'fail' | 'skip' | 'dead-letter'): void
}

export interface WorkerOptions {
  readonly plan: TopologyPlan
  readonly settings: WorkerSettings
  readonly broker: Broker
  readonly backend: StateBackend
  readonly clock: Clock
  readonly timers: Timers
  readonly random: Random
  readonly logger: Logger
  readonly listener: WorkerListener
}
