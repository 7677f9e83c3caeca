/**
 * The transaction machine: one Kafka transaction at a time, each on the next producer of the ring.
 *
 *            begin             flush               sendOffsets             commit
 *   idle ----------> open ----------> flushed ----------------> offsets-sent ------> idle   (committed)
 *                      |                 |                           |
 *                      +-----------------+---------------------------+--> abort-only --> idle   (aborted)
 *                                                                    |
 *                                                                    +--> unresolved --> idle   (settled: committed or aborted, X4)
 *   abort-only, unresolved --> repairing --> idle   the producer could not be replaced within the budget: it goes on beside the loop
 *   offsets-sent, abort-only --> repairing --> idle it ended, but a request on the way had no answer (T6)
 *   any state --> fenced --> repairing              once the consumer proved that the slot is still ours
 *
 * Owns: the state, the ring's present producer, the time one commit may take.
 * Does not own: tasks, write-sets, offsets; the caller merges or drops them by the outcome.
 *
 * Invariants:
 *  T1. Only the state `offsets-sent` commits. A retriable failure of sendOffsets followed by a commit made outputs visible without offsets (CLIENT-FACTS 23).
 *  T2. No transaction without an offset: it is not fenced by the group and cannot be decided afterwards (CLIENT-FACTS 24).
 *  T3. After an unknown outcome there is no second `begin` on the old epoch: the producer is replaced first, which settles it (CLIENT-FACTS 7, 22).
 *  T4. After a thrown `produce` the transaction can only abort: a commit would succeed without that record (CLIENT-FACTS 29).
 *  T6. After a transaction of which a request had no answer the producer is replaced, however well the repeat went. The first request may still lie in a
 *      broker, and within its epoch it counts whenever it arrives: a late EndTxn would end half of the next transaction, late offsets would overwrite newer
 *      ones with those of this one, which moves the group back (KIP-890; the client has none of it, CLIENT-FACTS 7).
 *  T5. Nothing here lasts longer than `TransactionBudgets` allow, whatever the broker does: a revoke may be waiting for it (CASES A16).
 */
import type { GroupConsumer, HeaderList, OffsetToCommit } from '../broker/port.ts'
import { delay, within } from '../common/delay.ts'
import { failpoint } from '../common/failpoints.ts'
import { invariant } from '../common/invariant.ts'
import type { Clock, Logger, Timers } from '../common/ports.ts'
import { ALL_BROKERS_DOWN, TIMED_OUT, TRANSPORT } from '../errors/broker-codes.ts'
import { BrokerError, GIVEN_UP, WATCHDOG } from '../errors/broker-error.ts'
import { classify, type Classification } from '../errors/classify.ts'
import { asError, FatalError } from '../errors/errors.ts'
import type { ProducerRing } from './producer-ring.ts'
import { readNonce } from './offset-metadata.ts'
import type { TransactionBudgets } from './transaction-budgets.ts'

export type TransactionState = 'idle' | 'open' | 'flushed' | 'offsets-sent' | 'abort-only' | 'unresolved' | 'fenced' | 'repairing'

/** Every allowed move. A test walks all pairs. */
export const TRANSITIONS: Readonly<Record<TransactionState, readonly TransactionState[]>> = {
  idle: ['open', 'abort-only', 'fenced'],
  open: ['flushed', 'abort-only', 'fenced'],
  flushed: ['offsets-sent', 'abort-only', 'fenced'],
  'offsets-sent': ['idle', 'abort-only', 'unresolved', 'repairing', 'fenced'],
  'abort-only': ['idle', 'repairing', 'fenced'],
  unresolved: ['idle', 'repairing'],
  fenced: ['repairing'],
  repairing: ['idle'],
}

/**
 * How a transaction ended. `fenced` and `in-doubt`: nothing is known of its outcome; the tasks must be closed and restored, which waits until the broker
 * has decided it.
 */
export type Outcome =
  | { readonly kind: 'committed' }
  | { readonly kind: 'aborted'; readonly cause: Classification; readonly error: BrokerError }
  | { readonly kind: 'fenced'; readonly error: BrokerError }
  | { readonly kind: 'in-doubt'; readonly error: BrokerError }

export interface TransactionMachineOptions {
  readonly ring: ProducerRing
  readonly budgets: TransactionBudgets
  readonly clock: Clock
  readonly timers: Timers
  readonly logger: Logger
}

const RETRY_PAUSE_MS = 20
const COMMITTED_PAUSE_MS = 100

interface Repair {
  done: boolean
  error: Error | undefined
}

export class TransactionMachine {
  readonly #ring: ProducerRing
  readonly #clock: Clock
  readonly #timers: Timers
  readonly #logger: Logger
  readonly #budgets: TransactionBudgets
  #state: TransactionState = 'idle'
  #failure: BrokerError | undefined
  /** A request of this transaction had no answer (T6). */
  #hasUnanswered = false
  /** The replacement that goes on beside the loop. */
  #repair: Repair | undefined

  constructor({ ring, budgets, clock, timers, logger }: TransactionMachineOptions) {
    this.#ring = ring
    this.#budgets = budgets
    this.#clock = clock
    this.#timers = timers
    this.#logger = logger
  }

  get state(): TransactionState {
    return this.#state
  }

  /** True from the begin of a transaction to its end, whichever. */
  get isOpen(): boolean {
    return this.#state !== 'idle' && this.isUsable
  }

  /** False: no transaction can begin until `repairStep` said so. */
  get isUsable(): boolean {
    return this.#state !== 'fenced' && this.#state !== 'repairing'
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
      failpoint('begin:after')
    } catch (error) {
      const failure = asBrokerError(error)
      const cause = classify(failure)
      if (cause.reaction === 'fenced') return this.#fenced(failure)
      // `begin` is local and its errors carry no flags: the producer is not to be trusted any more (CLIENT-FACTS 15).
      this.#transition('abort-only')
      await this.#replaceCurrent(this.#clock.monotonic() + this.#budgets.totalMs)
      return { kind: 'aborted', cause: { ...cause, replaceProducer: true }, error: failure }
    }
    this.#failure = undefined
    this.#hasUnanswered = false
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
      failpoint('produce:before')
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
    const startedAt = this.#clock.monotonic()
    const end = startedAt + this.#budgets.totalMs
    const deadline = startedAt + this.#budgets.commitMs
    if (this.#state === 'abort-only') return this.#abort(this.#failure ?? unknownFailure(), end)
    invariant(this.#state === 'open', 'T1', { commit: this.#state })

    const producer = this.#ring.current
    const timeoutMs = this.#budgets.callTimeoutMs
    let failure = await this.#repeat(deadline, async () => {
      failpoint('flush:before')
      await producer.flush(timeoutMs)
      failpoint('flush:after')
    })
    if (failure !== undefined) return this.#abort(failure, end)
    this.#transition('flushed')

    if (!stillOwned())
      return this.#abort(new BrokerError('sendOffsets', GIVEN_UP, 'a partition of this transaction is no longer owned'), end)
    failure = await this.#repeat(deadline, async () => {
      failpoint('sendOffsets:before')
      await producer.sendOffsets(consumer, offsets, timeoutMs)
      failpoint('sendOffsets:after')
      loseReply('sendOffsets')
    })
    if (failure !== undefined) return this.#abort(failure, end)
    this.#transition('offsets-sent')

    let attempts = 0
    failure = await this.#repeat(deadline, async () => {
      attempts++
      failpoint('commit:before')
      await producer.commit(timeoutMs)
      failpoint('commit:after')
      loseReply('commit')
    })
    if (failure === undefined) {
      this.#ended()
      return { kind: 'committed' }
    }
    if (classify(failure).reaction === 'fenced') return this.#fenced(failure)
    // Only the answer to the very first try can prove that nothing was committed. After a try without an answer the next one may be refused *because* the
    // first took effect: (1) EndTxn takes effect, its reply is lost, (2) the repeat is refused, (3) an abort would drop a write-set whose outputs are visible.
    return attempts === 1 && provesRefusal(failure) ? this.#abort(failure, end) : this.#settle(consumer, offsets, nonce, failure, end)
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
        if (isUnanswered(failure)) this.#hasUnanswered = true
        if (classify(failure).reaction !== 'retriable' || this.#clock.monotonic() >= deadline) return failure
        this.#logger.debug({ operation: failure.operation, code: failure.code }, 'retriable failure, repeating the step')
        await delay(this.#timers, RETRY_PAUSE_MS)
      }
    }
  }

  /** The end is known; the next transaction can begin at once, unless something of this one may still arrive (T6). */
  #ended(): void {
    if (!this.#hasUnanswered) {
      this.#transition('idle')
      return
    }
    this.#repair = this.#follow(this.#ring.replaceCurrent()).state
    this.#transition('repairing')
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

  #fenced(error: BrokerError): Outcome {
    this.#transition('fenced')
    return { kind: 'fenced', error }
  }

  /** Aborts until the broker said so, or replaces the producer, which aborts as well. */
  async abort(failure: BrokerError): Promise<Outcome> {
    invariant(this.#state === 'open' || this.#state === 'abort-only', 'T0', { abort: this.#state })
    return this.#abort(failure, this.#clock.monotonic() + this.#budgets.totalMs)
  }

  async #abort(failure: BrokerError, end: number): Promise<Outcome> {
    const cause = classify(failure)
    if (cause.reaction === 'fenced') return this.#fenced(failure)
    if (this.#state !== 'abort-only') this.#transition('abort-only')
    const producer = this.#ring.current
    let refusal: BrokerError | undefined = failure
    if (!cause.replaceProducer) {
      // Half of what is left: the other half is for the replacement.
      const now = this.#clock.monotonic()
      refusal = await this.#repeat(now + Math.max(0, end - now) / 2, async () => {
        failpoint('abort:before')
        await producer.abort(this.#budgets.callTimeoutMs)
        failpoint('abort:after')
      })
    }
    if (refusal === undefined) this.#ended()
    else if (refusal !== failure && classify(refusal).reaction === 'fenced') return this.#fenced(refusal)
    else await this.#replaceCurrent(end)
    return { kind: 'aborted', cause, error: failure }
  }

  /**
   * The worker ends with an error: one try to abort, so that readers of the outputs are not held up until the time-out (CASES G6). Whatever it answers,
   * the next init of this id aborts as well.
   */
  async abortAtEnd(): Promise<void> {
    if (!this.isOpen || this.#state === 'unresolved' || !this.#ring.isUsable) return
    if (this.#state !== 'abort-only') this.#transition('abort-only')
    try {
      await this.#ring.current.abort(this.#budgets.callTimeoutMs)
      this.#transition('idle')
    } catch (error) {
      this.#logger.warn({ error: String(error) }, 'the open transaction could not be aborted; the next start of this slot does it')
    }
  }

  /** X4: the new epoch settles the old transaction; whether it had committed is read from the group's stable offsets. */
  async #settle(
    consumer: GroupConsumer,
    offsets: readonly OffsetToCommit[],
    nonce: string,
    failure: BrokerError,
    end: number,
  ): Promise<Outcome> {
    this.#transition('unresolved')
    this.#logger.warn(
      { code: failure.code, transactionalId: this.#ring.current.transactionalId },
      'the outcome of a commit is unknown: replacing the producer to settle it',
    )
    const settled = await this.#replaceCurrent(end)
    const committed = settled ? await this.#wasCommitted(consumer, offsets, nonce, end) : undefined
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
  async #wasCommitted(
    consumer: GroupConsumer,
    offsets: readonly OffsetToCommit[],
    nonce: string,
    deadline: number,
  ): Promise<boolean | undefined> {
    for (;;) {
      try {
        const found = await consumer.committed(offsets, this.#budgets.callTimeoutMs)
        return found.some(({ metadata }) => readNonce(metadata) === nonce)
      } catch (error) {
        if (classify(asBrokerError(error)).reaction !== 'retriable' || this.#clock.monotonic() >= deadline) return undefined
        await delay(this.#timers, COMMITTED_PAUSE_MS)
      }
    }
  }

  /** Ends in `idle` when the new producer is there by `end`, else in `repairing`, and it goes on beside the loop. */
  async #replaceCurrent(end: number): Promise<boolean> {
    const repair = this.#follow(this.#ring.replaceCurrent())
    if (!(await within(this.#timers, Math.max(1, end - this.#clock.monotonic()), repair.settled))) {
      this.#repair = repair.state
      this.#transition('repairing')
      return false
    }
    if (repair.state.error !== undefined) throw repair.state.error
    this.#transition('idle')
    return true
  }

  /** After `fenced`, once the slot is proven ours: all producers anew, beside the loop. */
  startRepair(): void {
    invariant(this.#state === 'fenced', 'T3', { repair: this.#state })
    this.#repair = this.#follow(this.#ring.replaceAll()).state
    this.#transition('repairing')
  }

  /** Called every turn while `repairing`: true when transactions can begin again. Throws what made the replacement fail for good. */
  repairStep(): boolean {
    if (this.#state !== 'repairing' || this.#repair?.done !== true) return false
    const { error } = this.#repair
    this.#repair = undefined
    if (error !== undefined) throw error
    this.#transition('idle')
    return true
  }

  #follow(replacement: Promise<void>): { readonly state: Repair; readonly settled: Promise<void> } {
    const state: Repair = { done: false, error: undefined }
    const settled = replacement.then(
      () => {
        state.done = true
      },
      (error: unknown) => {
        state.error = asError(error)
        state.done = true
      },
    )
    return { state, settled }
  }
}

/** A failpoint's word for it: the call had its effect, its answer is gone. */
function loseReply(operation: 'sendOffsets' | 'commit'): void {
  if (failpoint(`${operation}:reply`)) throw new BrokerError(operation, TIMED_OUT, 'the answer was lost (failpoint)', { isRetriable: true })
}

/** What the client says when no broker said anything. A flush is none of it: records have sequence numbers. */
const UNANSWERED: ReadonlySet<number> = new Set([TIMED_OUT, TRANSPORT, ALL_BROKERS_DOWN])

function isUnanswered({ operation, code }: BrokerError): boolean {
  return UNANSWERED.has(code) && (operation === 'sendOffsets' || operation === 'commit' || operation === 'abort')
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
