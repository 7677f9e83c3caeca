/**
 * The transaction machine: one Kafka transaction at a time, each on the next producer of the ring.
 *
 *            begin             flush               sendOffsets             commit
 *   idle ----------> open ----------> flushed ----------------> offsets-sent ------> idle   (committed)
 *                      |                 |                           |
 *                      +-----------------+---------------------------+--> abort-only --> idle   (aborted)
 *                                                                    |
 *                                                                    +--> unresolved --> idle   (settled: committed or aborted, X4)
 *   any state --> fenced --> idle, after the ring was re-inited with the slot still ours
 *
 * Owns: the state, the ring's present producer, the retry budgets of one transaction.
 * Does not own: tasks, write-sets, offsets; the caller merges or drops them by the outcome.
 *
 * Invariants:
 *  T1. Only the state `offsets-sent` commits. A retriable failure of sendOffsets followed by a commit made outputs visible without offsets (CLIENT-FACTS 23).
 *  T2. No transaction without an offset: it is not fenced by the group and cannot be decided afterwards (CLIENT-FACTS 24).
 *  T3. After an unknown outcome there is no second `begin` on the old epoch: the producer is replaced first, which settles it (CLIENT-FACTS 7, 22).
 *  T4. After a thrown `produce` the transaction can only abort: a commit would succeed without that record (CLIENT-FACTS 29).
 */
import type { GroupConsumer, HeaderList, OffsetToCommit } from '../broker/port.ts'
import { invariant } from '../common/invariant.ts'
import type { Clock, Logger } from '../common/ports.ts'
import { BrokerError, GIVEN_UP, WATCHDOG } from '../errors/broker-error.ts'
import { classify, type Classification } from '../errors/classify.ts'
import { FatalError } from '../errors/errors.ts'
import type { ProducerRing } from './producer-ring.ts'
import { readNonce } from './offset-metadata.ts'

export type TransactionState = 'idle' | 'open' | 'flushed' | 'offsets-sent' | 'abort-only' | 'unresolved' | 'fenced'

/** Every allowed move. A test walks all pairs. */
export const TRANSITIONS: Readonly<Record<TransactionState, readonly TransactionState[]>> = {
  idle: ['open', 'fenced'],
  open: ['flushed', 'abort-only', 'fenced'],
  flushed: ['offsets-sent', 'abort-only', 'fenced'],
  'offsets-sent': ['idle', 'abort-only', 'unresolved', 'fenced'],
  'abort-only': ['idle', 'fenced'],
  unresolved: ['idle'],
  fenced: ['idle'],
}

/** How a transaction ended. `in-doubt`: not even the group's offsets could tell; the tasks must be closed and restored. */
export type Outcome =
  | { readonly kind: 'committed' }
  | { readonly kind: 'aborted'; readonly cause: Classification; readonly error: BrokerError }
  | { readonly kind: 'fenced'; readonly error: BrokerError; readonly commitSent: boolean }
  | { readonly kind: 'in-doubt'; readonly error: BrokerError }

export interface TransactionBudgets {
  /** One call to the broker. */
  readonly callTimeoutMs: number
  /** How long retriable failures of one commit are repeated before its outcome is called unknown. */
  readonly commitBudgetMs: number
  /** How long a replacement is tried before the broker counts as gone. */
  readonly replaceBudgetMs: number
}

export class TransactionMachine {
  readonly #ring: ProducerRing
  readonly #clock: Clock
  readonly #logger: Logger
  readonly #budgets: TransactionBudgets
  #state: TransactionState = 'idle'
  #failure: BrokerError | undefined

  constructor(ring: ProducerRing, budgets: TransactionBudgets, clock: Clock, logger: Logger) {
    this.#ring = ring
    this.#budgets = budgets
    this.#clock = clock
    this.#logger = logger
  }

  get state(): TransactionState {
    return this.#state
  }

  #transition(to: TransactionState): void {
    invariant(TRANSITIONS[this.#state].includes(to), 'T0', { from: this.#state, to })
    this.#state = to
  }

  /** Lazily, right before the first record. A refusal is a classified outcome, as at commit. */
  async begin(): Promise<Outcome | undefined> {
    invariant(this.#state === 'idle', 'T3', { begin: this.#state })
    const producer = this.#ring.next()
    try {
      await producer.begin()
    } catch (error) {
      const failure = asBrokerError(error)
      const cause = classify(failure)
      if (cause.reaction === 'fenced') {
        this.#transition('fenced')
        return { kind: 'fenced', error: failure, commitSent: false }
      }
      // `begin` is local and its errors carry no flags: the producer is not to be trusted any more (CLIENT-FACTS 15).
      await this.#ring.replaceCurrent(this.#budgets.replaceBudgetMs)
      return { kind: 'aborted', cause: { ...cause, replaceProducer: true }, error: failure }
    }
    this.#failure = undefined
    this.#transition('open')
    return undefined
  }

  /** False: the local queue is full, nothing was queued. A refusal makes the transaction abort-only (T4) and is thrown. */
  produce(
    topic: string,
    partition: number | null,
    key: Buffer | null,
    value: Buffer | null,
    timestamp: number,
    headers: HeaderList,
  ): boolean {
    invariant(this.#state === 'open', 'T4', { produce: this.#state })
    try {
      return this.#ring.current.produce(topic, partition, key, value, timestamp, headers)
    } catch (error) {
      this.fail(asBrokerError(error))
      throw error
    }
  }

  writable(): Promise<void> {
    return this.#ring.current.writable()
  }

  /** From now on this transaction can only abort. */
  fail(error: BrokerError): void {
    this.#failure ??= error
    if (this.#state === 'open') this.#transition('abort-only')
  }

  /**
   * Flush, offsets, commit. `offsets` must not be empty (T2). Every retriable failure is repeated in its own step, within one budget.
   * `stillOwned` is asked right before the offsets are sent: the client takes the generation at call time, not at fetch time (CLIENT-FACTS 6).
   */
  async commit(consumer: GroupConsumer, offsets: readonly OffsetToCommit[], nonce: string, stillOwned: () => boolean): Promise<Outcome> {
    invariant(offsets.length > 0, 'T2', { state: this.#state })
    const deadline = this.#clock.monotonic() + this.#budgets.commitBudgetMs
    if (this.#state === 'abort-only') return this.abort(this.#failure ?? unknownFailure())
    invariant(this.#state === 'open', 'T1', { commit: this.#state })

    const producer = this.#ring.current
    let failure = await this.#repeat(deadline, () => producer.flush(this.#budgets.callTimeoutMs))
    if (failure !== undefined) return this.#giveUp(failure)
    this.#transition('flushed')

    if (!stillOwned()) return this.abort(new BrokerError('sendOffsets', GIVEN_UP, 'a partition of this transaction is no longer owned'))
    failure = await this.#repeat(deadline, () => producer.sendOffsets(consumer, offsets, this.#budgets.callTimeoutMs))
    if (failure !== undefined) return this.#giveUp(failure)
    this.#transition('offsets-sent')

    let attempts = 0
    failure = await this.#repeat(deadline, () => {
      attempts++
      return producer.commit(this.#budgets.callTimeoutMs)
    })
    if (failure === undefined) {
      this.#transition('idle')
      return { kind: 'committed' }
    }
    if (classify(failure).reaction === 'fenced') {
      this.#transition('fenced')
      return { kind: 'fenced', error: failure, commitSent: true }
    }
    // Only the answer to the very first try can prove that nothing was committed. After a try without an answer the next one may be refused *because* the
    // first took effect: (1) EndTxn takes effect, its reply is lost, (2) the repeat is refused, (3) an abort would drop a write-set whose outputs are visible.
    return attempts === 1 && provesRefusal(failure) ? this.#giveUp(failure) : this.#settle(consumer, offsets, nonce, failure)
  }

  /** Runs one step until it succeeds, fails for good, or the budget is spent; returns the last failure. */
  async #repeat(deadline: number, step: () => Promise<void>): Promise<BrokerError | undefined> {
    for (;;) {
      try {
        await step()
        return undefined
      } catch (error) {
        const failure = asBrokerError(error)
        if (failure.code === WATCHDOG) throw this.#hung(failure)
        if (classify(failure).reaction !== 'retriable' || this.#clock.monotonic() >= deadline) return failure
        this.#logger.debug({ operation: failure.operation, code: failure.code }, 'retriable failure, repeating the step')
        await this.#ring.pause(20)
      }
    }
  }

  /**
   * A native call that never came back cannot be repeated beside itself, and its client cannot be closed under it. The worker ends; the next init of the id,
   * in a new process, settles the transaction.
   */
  #hung(failure: BrokerError): FatalError {
    this.#ring.abandonCurrent()
    return new FatalError(`the Kafka client hangs: ${failure.message}`, {
      code: 'client-hangs',
      remedy:
        'Let the process end and start again (`millrace run` does that by itself): the start settles the open transaction, nothing is lost.',
      cause: failure,
    })
  }

  async #giveUp(failure: BrokerError): Promise<Outcome> {
    if (classify(failure).reaction === 'fenced') {
      this.#transition('fenced')
      return { kind: 'fenced', error: failure, commitSent: false }
    }
    return this.abort(failure)
  }

  /** Aborts until the broker said so, or replaces the producer, which aborts as well. */
  async abort(failure: BrokerError): Promise<Outcome> {
    if (this.#state !== 'abort-only') this.#transition('abort-only')
    const cause = classify(failure)
    const producer = this.#ring.current
    const refusal = cause.replaceProducer
      ? failure
      : await this.#repeat(this.#clock.monotonic() + this.#budgets.commitBudgetMs, () => producer.abort(this.#budgets.callTimeoutMs))
    if (refusal !== undefined) {
      if (classify(refusal).reaction === 'fenced') {
        this.#transition('fenced')
        return { kind: 'fenced', error: refusal, commitSent: false }
      }
      await this.#ring.replaceCurrent(this.#budgets.replaceBudgetMs)
    }
    this.#transition('idle')
    return { kind: 'aborted', cause, error: failure }
  }

  /**
   * The worker ends with an error: one try to abort, so that readers of the outputs are not held up until the time-out (CASES G6). Whatever it answers,
   * the next init of this id aborts as well.
   */
  async abortAtEnd(): Promise<void> {
    if (this.#state === 'idle' || this.#state === 'unresolved' || this.#state === 'fenced' || !this.#ring.isUsable) return
    if (this.#state !== 'abort-only') this.#transition('abort-only')
    try {
      await this.#ring.current.abort(this.#budgets.callTimeoutMs)
      this.#transition('idle')
    } catch (error) {
      this.#logger.warn({ error: String(error) }, 'the open transaction could not be aborted; the next start of this slot does it')
    }
  }

  /** X4: the new epoch settles the old transaction; whether it had committed is read from the group's stable offsets. */
  async #settle(consumer: GroupConsumer, offsets: readonly OffsetToCommit[], nonce: string, failure: BrokerError): Promise<Outcome> {
    this.#transition('unresolved')
    this.#logger.warn(
      { code: failure.code, transactionalId: this.#ring.current.transactionalId },
      'the outcome of a commit is unknown: replacing the producer to settle it',
    )
    await this.#ring.replaceCurrent(this.#budgets.replaceBudgetMs)
    const committed = await this.wasCommitted(consumer, offsets, nonce)
    this.#transition('idle')
    if (committed === undefined) return { kind: 'in-doubt', error: failure }
    this.#logger.info({ committed }, 'the outcome of the commit is settled')
    if (committed) return { kind: 'committed' }
    return {
      kind: 'aborted',
      cause: { reaction: 'ambiguous', replaceProducer: true, reason: 'the commit did not take effect' },
      error: failure,
    }
  }

  /** Looks for our nonce in the group's offsets. Undefined when the group does not answer. */
  async wasCommitted(consumer: GroupConsumer, offsets: readonly OffsetToCommit[], nonce: string): Promise<boolean | undefined> {
    const deadline = this.#clock.monotonic() + this.#budgets.replaceBudgetMs
    for (;;) {
      try {
        const found = await consumer.committed(offsets, this.#budgets.callTimeoutMs)
        return found.some(({ metadata }) => readNonce(metadata) === nonce)
      } catch (error) {
        if (classify(asBrokerError(error)).reaction !== 'retriable' || this.#clock.monotonic() >= deadline) return undefined
        await this.#ring.pause(100)
      }
    }
  }

  /** After `fenced`, once the slot is proven ours: all producers anew. */
  async recover(): Promise<void> {
    invariant(this.#state === 'fenced', 'T3', { recover: this.#state })
    await this.#ring.replaceAll(this.#budgets.replaceBudgetMs)
    this.#transition('idle')
  }
}

/** The client refused to send the commit, or the coordinator said no. */
function provesRefusal(failure: BrokerError): boolean {
  const { reaction } = classify(failure)
  return reaction === 'poisoned' || reaction === 'config' || (reaction === 'abortable' && failure.isAbortRequired)
}

function unknownFailure(): BrokerError {
  return new BrokerError('produce', GIVEN_UP, 'the transaction was marked abort-only')
}

function asBrokerError(error: unknown): BrokerError {
  if (error instanceof BrokerError) return error
  throw error
}
