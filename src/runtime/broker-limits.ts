/** Our time-outs against the broker's limits, checked at start: refused there they would only show as a failed transaction or join (CASES B21). */
import { ConfigError } from '../errors/errors.ts'
import type { WorkerSettings } from './worker-options.ts'

type Checked = Pick<WorkerSettings, 'transactionTimeoutMs' | 'sessionTimeoutMs'>

export function checkBrokerLimits(config: ReadonlyMap<string, string>, { transactionTimeoutMs, sessionTimeoutMs }: Checked): void {
  const limit = (name: string): number | undefined => {
    const value = Number(config.get(name))
    return config.has(name) && Number.isFinite(value) ? value : undefined
  }
  const maxTransaction = limit('transaction.max.timeout.ms')
  if (maxTransaction !== undefined && transactionTimeoutMs > maxTransaction) {
    throw refused('transactionTimeout', transactionTimeoutMs, 'is above', 'transaction.max.timeout.ms', maxTransaction)
  }
  const maxSession = limit('group.max.session.timeout.ms')
  if (maxSession !== undefined && sessionTimeoutMs > maxSession) {
    throw refused('sessionTimeout', sessionTimeoutMs, 'is above', 'group.max.session.timeout.ms', maxSession)
  }
  const minSession = limit('group.min.session.timeout.ms')
  if (minSession !== undefined && sessionTimeoutMs < minSession) {
    throw refused('sessionTimeout', sessionTimeoutMs, 'is below', 'group.min.session.timeout.ms', minSession)
  }
}

function refused(option: string, value: number, relation: string, brokerSetting: string, limit: number): ConfigError {
  return new ConfigError(`option ${option} (${value} ms) ${relation} the broker's ${brokerSetting} (${limit} ms)`, {
    code: 'broker-limit',
    remedy: `Set ${option} within the limit, or change ${brokerSetting} on the brokers.`,
  })
}
