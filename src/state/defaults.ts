/** What a backend takes when it is not told: the defaults of the option table, so that there is one place for them. */
import { OPTIONS, type Option } from '../config/options.ts'

export const STATE_DEFAULTS = Object.freeze({
  memtableBytes: presetOf(OPTIONS.memtableBytes),
  flushIntervalMs: presetOf(OPTIONS.stateFlushIntervalMs),
  cacheEntries: presetOf(OPTIONS.cacheEntries),
  lockTimeoutMs: presetOf(OPTIONS.lockTimeoutMs),
})

function presetOf(option: Option<number>): number {
  if (option.default === undefined) throw new TypeError(`option ${option.name} has no default`)
  return option.default
}
