/**
 * Committed offsets of one group. Those of a transaction are pending until its end is known: a stable read waits for them, any other does not see them.
 *
 * Invariant:
 *  GO1. What was sent last counts, whatever order the ends of the transactions come in: a late marker of an earlier one takes nothing back.
 */
import type { CommittedOffset, OffsetToCommit } from '../../../broker/port.ts'
import { partitionName, type TopicPartition } from '../../../common/topic-partition.ts'
import { CODES, Refusal } from './refusal.ts'

interface SentOffset extends OffsetToCommit {
  /** Place in the coordinator's own log. */
  readonly order: number
}

export class GroupOffsets {
  readonly #maxMetadataBytes: number
  readonly #committed = new Map<string, SentOffset>()
  /** By producer id, then by partition. */
  readonly #pending = new Map<number, Map<string, SentOffset>>()
  #sent = 0

  /** Told of every offset that was committed. */
  onCommitted: (name: string, offset: number) => void = () => undefined

  /** `maxMetadataBytes`: the broker's `offset.metadata.max.bytes`. */
  constructor(maxMetadataBytes: number) {
    this.#maxMetadataBytes = maxMetadataBytes
  }

  get committed(): ReadonlyMap<string, SentOffset> {
    return this.#committed
  }

  addPending(producerId: number, offsets: readonly OffsetToCommit[]): void {
    const tooLarge = offsets.find(({ metadata }) => metadata.length > this.#maxMetadataBytes)
    if (tooLarge !== undefined)
      throw new Refusal(CODES.OFFSET_METADATA_TOO_LARGE, `metadata of ${partitionName(tooLarge.topic, tooLarge.partition)} are too large`)
    const pending = this.#pending.get(producerId) ?? new Map<string, SentOffset>()
    this.#pending.set(producerId, pending)
    for (const offset of offsets) pending.set(partitionName(offset.topic, offset.partition), { ...offset, order: this.#sent++ })
  }

  /** What the transaction of a producer would commit. */
  pendingOf(producerId: number): readonly OffsetToCommit[] {
    return [...(this.#pending.get(producerId)?.values() ?? [])]
  }

  decide(producerId: number, kind: 'commit' | 'abort'): void {
    const pending = this.#pending.get(producerId)
    this.#pending.delete(producerId)
    if (kind === 'abort' || pending === undefined) return
    for (const [name, offset] of pending) {
      if (offset.order < (this.#committed.get(name)?.order ?? -1)) continue // GO1
      this.#committed.set(name, offset)
      this.onCommitted(name, offset.offset)
    }
  }

  /** `stable`: refuses while a transaction holds one of them. */
  fetch(partitions: readonly TopicPartition[], stable: boolean): readonly CommittedOffset[] {
    return partitions.map(({ topic, partition }) => {
      const name = partitionName(topic, partition)
      if (stable && [...this.#pending.values()].some((pending) => pending.has(name)))
        throw new Refusal(CODES.UNSTABLE_OFFSET_COMMIT, `the offset of ${name} is pending in an open transaction`)
      const found = this.#committed.get(name)
      return { topic, partition, offset: found?.offset, metadata: found?.metadata ?? '' }
    })
  }

  /** Offsets expire when nobody commits them for `offsets.retention.minutes`. */
  expire(name: string): void {
    this.#committed.delete(name)
  }
}
