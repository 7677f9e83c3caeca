/**
 * The changelog reader of the restores, and what its failures mean.
 *
 * Owns: the connection, which comes and goes beside the loop. Does not own: what is read from where (restore).
 */
import type { ChangelogReader, PollResult } from '../broker/port.ts'
import { within } from '../common/delay.ts'
import type { Logger, Timers } from '../common/ports.ts'
import type { TopicPartitionOffset } from '../common/topic-partition.ts'
import { AUTO_OFFSET_RESET, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_LOCALLY, UNKNOWN_TOPIC_OR_PARTITION } from '../errors/broker-codes.ts'
import { BrokerError } from '../errors/broker-error.ts'
import { classify } from '../errors/classify.ts'
import { asError, ConfigError, FatalError } from '../errors/errors.ts'

export interface RestoreReaderOptions {
  readonly connectReader: () => Promise<ChangelogReader>
  readonly timers: Timers
  readonly logger: Logger
}

const NOTHING: PollResult = { records: [], ends: [] }

export class RestoreReader {
  readonly #options: RestoreReaderOptions
  #reader: ChangelogReader | undefined
  #connecting: Promise<void> | undefined
  #connectFailure: Error | undefined
  #assigned: ReadonlySet<string> = new Set()
  #closed = false

  constructor(options: RestoreReaderOptions) {
    this.#options = options
  }

  /** False when the reader is not connected within `timeoutMs`: the loop has other things to do meanwhile. Throws what trying again cannot mend. */
  async connect(timeoutMs: number): Promise<boolean> {
    if (this.#reader !== undefined) return true
    const { connectReader, timers, logger } = this.#options
    this.#connecting ??= connectReader().then(
      async (reader) => {
        if (this.#closed) await reader.close()
        else this.#reader = reader
      },
      (error: unknown) => {
        this.#connecting = undefined // the next call tries again; the no-progress deadline bounds it
        if (error instanceof BrokerError && classify(error).reaction !== 'config')
          logger.warn({ error: error.message }, 'the changelog reader could not connect; trying again')
        else this.#connectFailure = asError(error)
      },
    )
    await within(timers, timeoutMs, this.#connecting)
    if (this.#connectFailure !== undefined) throw this.#connectFailure
    return this.#reader !== undefined
  }

  /** Replaces the whole assignment. Only when connected. */
  assign(positions: readonly TopicPartitionOffset[]): void {
    this.#assigned = new Set(positions.map(({ topic }) => topic))
    this.#reader?.assign(positions)
  }

  /**
   * Failures that pass are logged and look like an empty poll. 'stopped': one partition's position lies outside of its log; the client has stopped it without
   * saying which, once, and goes on with the others.
   */
  async poll(maxRecords: number, timeoutMs: number): Promise<PollResult | 'stopped'> {
    try {
      return (await this.#reader?.poll(maxRecords, timeoutMs)) ?? NOTHING
    } catch (error) {
      if (!(error instanceof BrokerError)) throw error
      if (error.code === OFFSET_OUT_OF_RANGE || error.code === AUTO_OFFSET_RESET) return 'stopped'
      const { reaction, reason } = classify(error)
      const topics = [...this.#assigned].join(', ')
      if (error.code === UNKNOWN_TOPIC_OR_PARTITION || error.code === UNKNOWN_TOPIC_LOCALLY) {
        throw new ConfigError(`a changelog disappeared while it was read (${topics}): ${error.message}`, {
          code: 'changelog-missing',
          remedy: 'It was deleted: restore the topic, or start under another applicationId, which begins anew.',
          cause: error,
        })
      }
      // The client has stepped over the damaged batch already: going on would skip it.
      if (reaction === 'corrupted') {
        throw new FatalError(`a changelog cannot be read (${topics}): ${error.message}: ${reason}`, {
          code: 'changelog-corrupted',
          remedy:
            'Its bytes are damaged on the broker\u2019s disk or on the way: check the replicas; a change of leader may serve a sound copy.',
          cause: error,
        })
      }
      if (reaction !== 'retriable') throw error
      this.#options.logger.warn({ code: error.code, error: error.message }, `reading changelogs failed: ${reason}`)
      return NOTHING
    }
  }

  /** A reader that is still connecting is closed when it is there: the client cannot be interrupted. */
  async close(): Promise<void> {
    this.#closed = true
    await this.#connecting
    await this.#reader?.close()
    this.#reader = undefined
  }
}
