/**
 * Questions that the native client cannot ask, or dies of, are asked by kafkajs. One connection for all, made at the first question.
 *
 * Invariant:
 *  LU1. After `close` nothing of it holds the process (X10). kafkajs connects again for a question that is under way when its admin client is
 *       disconnected, so its sockets are ours: they are destroyed, and none is made after that.
 */
import { readFileSync } from 'node:fs'
import { connect as connectTcp, isIP, type Socket } from 'node:net'
import { connect as connectTls, type ConnectionOptions } from 'node:tls'
import kafkajs, { type Admin, type ISocketFactory, type KafkaConfig } from 'kafkajs'
import { UnderWay } from '../../common/under-way.ts'
import { NOT_KNOWN_YET, TRANSPORT, UNKNOWN_TOPIC_OR_PARTITION } from '../../errors/broker-codes.ts'
import { BrokerError, closedError } from '../../errors/broker-error.ts'
import type { ConnectionSettings } from './connection.ts'
import { brokerError } from './errors.ts'

// A CommonJS package whose enums Node's import analysis does not see.
const { Kafka, KafkaJSError, KafkaJSProtocolError, logLevel } = kafkajs

const KEEP_ALIVE_MS = 60_000
const RETRIES = 3

export class LookUps {
  readonly #settings: ConnectionSettings
  readonly #sockets = new Set<Socket>()
  readonly #underWay = new UnderWay()
  #admin: Promise<Admin> | undefined
  #closed = false

  constructor(settings: ConnectionSettings) {
    this.#settings = settings
  }

  /** Rejects with `BrokerError` only. */
  async ask<T>(question: (admin: Admin) => Promise<T>): Promise<T> {
    if (this.#closed) throw closedError('admin')
    try {
      return await this.#underWay.add(this.#ask(question))
    } catch (error) {
      throw lookUpError(error)
    }
  }

  async #ask<T>(question: (admin: Admin) => Promise<T>): Promise<T> {
    return question(await (this.#admin ??= this.#connect()))
  }

  async #connect(): Promise<Admin> {
    const admin = new Kafka(this.#config()).admin()
    try {
      await admin.connect()
      return admin
    } catch (error) {
      this.#admin = undefined // the next question tries again
      await admin.disconnect()
      throw error
    }
  }

  /** Questions under way fail within the few retries that kafkajs makes. Idempotent. */
  async close(): Promise<void> {
    this.#closed = true
    for (const socket of this.#sockets) socket.destroy(new Error('closed'))
    await this.#underWay.ended()
    const admin = this.#admin
    this.#admin = undefined
    await admin?.then((connected) => connected.disconnect()).catch(() => undefined)
    await Promise.all([...this.#sockets].map((socket) => new Promise((resolve) => socket.once('close', resolve))))
  }

  #config(): KafkaConfig {
    const { brokers, clientId, connectTimeoutMs, client } = this.#settings
    const ssl = tlsOf(client)
    const sasl = saslOf(client)
    return {
      brokers: [...brokers],
      clientId: `${clientId}-look-ups`,
      connectionTimeout: connectTimeoutMs,
      requestTimeout: connectTimeoutMs,
      logLevel: logLevel.NOTHING,
      retry: { retries: RETRIES },
      socketFactory: this.#socket,
      ...(ssl === undefined ? {} : { ssl }),
      ...(sasl === undefined ? {} : { sasl }),
    }
  }

  readonly #socket: ISocketFactory = ({ host, port, ssl, onConnect }) => {
    // For plaintext kafkajs hands over null, whatever its types say.
    const tls = ssl as ConnectionOptions | null | undefined
    const socket =
      tls === undefined || tls === null
        ? connectTcp({ host, port }, onConnect)
        : connectTls({ host, port, ...(isIP(host) === 0 ? { servername: host } : {}), ...tls }, onConnect)
    socket.setKeepAlive(true, KEEP_ALIVE_MS)
    this.#sockets.add(socket)
    socket.once('close', () => this.#sockets.delete(socket))
    if (this.#closed) socket.destroy(new Error('closed'))
    return socket
  }
}

type ClientSettings = ConnectionSettings['client']

/** The native client's TLS settings in Node's words. */
function tlsOf(client: ClientSettings): ConnectionOptions | undefined {
  if (!text(client, 'security.protocol').toLowerCase().includes('ssl')) return undefined
  const file = (name: string): Buffer | undefined => (text(client, name) === '' ? undefined : readFileSync(text(client, name)))
  const ca = file('ssl.ca.location') ?? (text(client, 'ssl.ca.pem') || undefined)
  const cert = file('ssl.certificate.location') ?? (text(client, 'ssl.certificate.pem') || undefined)
  const key = file('ssl.key.location') ?? (text(client, 'ssl.key.pem') || undefined)
  const passphrase = text(client, 'ssl.key.password')
  return {
    ...(ca === undefined ? {} : { ca }),
    ...(cert === undefined ? {} : { cert }),
    ...(key === undefined ? {} : { key }),
    ...(passphrase === '' ? {} : { passphrase }),
    ...(String(client['enable.ssl.certificate.verification']) === 'false' ? { rejectUnauthorized: false } : {}),
    ...(text(client, 'ssl.endpoint.identification.algorithm').toLowerCase() === 'none' ? { checkServerIdentity: () => undefined } : {}),
  }
}

function saslOf(client: ClientSettings): KafkaConfig['sasl'] {
  const mechanism = (text(client, 'sasl.mechanisms') || text(client, 'sasl.mechanism')).toLowerCase()
  if (mechanism !== 'plain' && mechanism !== 'scram-sha-256' && mechanism !== 'scram-sha-512') return undefined
  return { mechanism: mechanism as 'plain', username: text(client, 'sasl.username'), password: text(client, 'sasl.password') }
}

function text(client: ClientSettings, name: string): string {
  return String(client[name] ?? '')
}

/** kafkajs has codes for what a broker answered; all else it throws is about the connection, and the next try makes a new one. */
function lookUpError(error: unknown): BrokerError {
  if (error instanceof BrokerError) return error
  if (error instanceof KafkaJSProtocolError) {
    // A topic that was found or made a moment ago: not every broker has heard of it yet.
    const isUnknown = error.code === UNKNOWN_TOPIC_OR_PARTITION
    return brokerError('admin', {
      message: error.message,
      code: isUnknown ? NOT_KNOWN_YET : error.code,
      isRetriable: isUnknown || error.retriable,
    })
  }
  return error instanceof KafkaJSError
    ? new BrokerError('admin', TRANSPORT, error.message, { isRetriable: true }, error)
    : brokerError('admin', error)
}
