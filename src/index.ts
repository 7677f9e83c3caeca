/** The public door of millrace. Everything else is internal. */
export * from './serde/index.ts'
export * from './topology/index.ts'
export { createApp, type App, type AppEvents } from './app.ts'
export { defineConfig, type Config, type ConfigFile } from './config/define.ts'
export type { CommitEvent, CommitReason } from './runtime/worker-options.ts'
export type { RestoreProgress } from './runtime/restore.ts'
export type { ByteSize, Duration } from './common/duration.ts'
export type { Logger } from './common/ports.ts'
export type { WorkerState, WorkerStatus } from './metrics/status.ts'
export {
  BrokerUnavailableError,
  ConfigError,
  FatalError,
  MillraceError,
  PoisonedRecordError,
  SlotTakenError,
  StateDirectoryError,
  TopologyError,
} from './errors/errors.ts'
