/** The public door `millrace/testing`: a driver that runs a topology, and breaks its workers, without a broker. It adds no matchers to any test runner. */
export { createTestDriver } from './testing/driver/driver.ts'
export { crashEverywhere } from './testing/driver/crash-everywhere.ts'
export { crashAfter, crashBefore, damageStore, loseReply, pause, rebalance } from './testing/driver/faults.ts'
export { TestDriverError } from './testing/driver/errors.ts'
export type { CrashOptions, Fault, RebalanceOptions, Step, StrikeOptions } from './testing/driver/faults.ts'
export type {
  CrashReport,
  CrashViolation,
  TestDeadLetter,
  TestDriver,
  TestDriverOptions,
  TestInput,
  TestOutput,
} from './testing/driver/public-types.ts'
