/** What every client of the adapter needs: base settings, connect and disconnect as promises, and where its log lines go. */
import type { Logger } from '../../common/ports.ts'
import { ALL_BROKERS_DOWN } from '../../errors/broker-codes.ts'
import { BrokerError } from '../../errors/broker-error.ts'
import { brokerError, call } from './errors.ts'
import type { NativeConfig } from './native.ts'

export interface ConnectionSettings {
  readonly brokers: readonly string[]
  readonly clientId: string
  readonly connectTimeoutMs: number
  readonly metadataRefreshMs: number
  readonly logger: Logger
  /** Settings of the client that the user passed through (TLS, SASL, tuning), already checked by the configuration. */
  readonly client: Readonly<Record<string, string | number | boolean>>
}

export function baseConfig(settings: ConnectionSettings): NativeConfig {
  return {
    'metadata.broker.list': settings.brokers.join(','),
    'client.id': settings.clientId,
    'socket.nagle.disable': true,
    'socket.keepalive.enable': true,
    // A grown task topic is noticed at this interval (CLIENT-FACTS 32; the client's default is 5 minutes).
    'topic.metadata.refresh.interval.ms': settings.metadataRefreshMs,
    'reconnect.backoff.max.ms': 2_000,
    ...settings.client,
  }
}

const WARN_EVERY_MS = 10_000

interface Connectable {
  on(event: string, listener: (details: { message?: string; code?: number; severity?: number; fac?: string }) => void): void
  connect(options: { topic?: string; allTopics?: boolean; timeout?: number }, done: (error: unknown) => void): void
  disconnect(done: (error: unknown) => void): void
  isConnected(): boolean
  /** Of a producer: what its `disconnect` does after the flush, which throws when the producer is not connected, before anything is closed. */
  _disconnect?(done: (error: unknown) => void): void
}

export async function connect(client: Connectable, settings: ConnectionSettings, what: string): Promise<void> {
  let lastError = ''
  let connected = false
  let warnedAt = 0
  client.on('event.error', (error) => {
    lastError = error.message ?? 'unknown error'
    if (connected && error.code === ALL_BROKERS_DOWN && Date.now() - warnedAt > WARN_EVERY_MS) {
      warnedAt = Date.now()
      settings.logger.warn(
        { client: what, brokers: settings.brokers },
        'no Kafka broker is reachable; the client keeps trying, nothing is lost',
      )
    }
    settings.logger.debug({ client: what, error: lastError }, 'kafka client error')
  })
  client.on('event.log', (line) => {
    // librdkafka's severities are syslog's: 3 is an error, 4 a warning.
    const severity = line.severity ?? 7
    settings.logger.debug({ client: what, severity, facility: line.fac, line: line.message }, 'kafka client log')
  })
  try {
    await call('connect', (done) => {
      client.connect({ allTopics: false, timeout: settings.connectTimeoutMs }, done)
    })
    connected = true
  } catch (error) {
    const failure = brokerError('connect', error)
    await disconnect(client)
    throw new BrokerError(
      'connect',
      failure.code,
      `no Kafka broker answered at ${settings.brokers.join(', ')} within ${settings.connectTimeoutMs} ms (${lastError || failure.message})`,
      failure,
      error,
    )
  }
}

/** Never rejects: whatever is wrong, the client is gone afterwards. A producer flushes first, for `flushMs` at most. */
export function disconnect(client: Connectable, flushMs?: number): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      resolve()
    }
    try {
      if (client._disconnect !== undefined && !client.isConnected()) client._disconnect(done)
      else if (flushMs === undefined) client.disconnect(done)
      else (client as unknown as { disconnect(flushMs: number, done: () => void): void }).disconnect(flushMs, done)
    } catch {
      resolve()
    }
  })
}
