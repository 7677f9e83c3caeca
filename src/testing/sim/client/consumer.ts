/**
 * The group consumer, as librdkafka is one: it heartbeats and joins by itself, tells of rebalances through the listener, and reads read_committed.
 *
 * What it does that surprises (CLIENT-FACTS 8, 9, 20, 21, 25, 31, 32) is kept: a batch that was read before a rebalance arrives after it; after the slot
 * was taken there is one error of a poll and no callback; a position outside of the log stops that partition, and the error does not name it.
 */
import { invariant } from '../../../common/invariant.ts'
import { partitionName, type TopicPartition, type TopicPartitionOffset } from '../../../common/topic-partition.ts'
import type { CommittedOffset, GroupConsumer, GroupConsumerOptions, PollResult, RebalanceListener } from '../../../broker/port.ts'
import { BrokerError } from '../../../errors/broker-error.ts'
import type { GroupMembership, SimCluster } from '../cluster/cluster.ts'
import { CODES, type Refusal } from '../cluster/refusal.ts'
import { never, type SimProcess } from '../process.ts'
import { Connection } from './connection.ts'
import { Fetcher, type Reading } from './fetcher.ts'

const FATAL_INSTANCE = -150
const MAX_POLL_EXCEEDED = -147
export const WRONG_STATE = -172
const UNSTABLE_RETRY_MS = 100
const REJOIN_MS = 20
/** From a batch's fetch to its delivery: what happens in between is not known to it. */
const DELIVERY_MS = [1, 40] as const

export class SimConsumer implements GroupConsumer {
  readonly #options: GroupConsumerOptions
  readonly #metadataRefreshMs: number
  readonly #process: SimProcess
  readonly #cluster: SimCluster
  readonly #connection: Connection
  #topic: string | undefined
  #listener: RebalanceListener | undefined
  #memberId = ''
  #generation = -1
  #membership: 'out' | 'joining' | 'member' | 'fenced' | 'closed' = 'out'
  /** Partitions of the subscribed topic. */
  #owned: readonly number[] = []
  readonly #fetcher: Fetcher
  /** A callback is being answered: nothing is fetched. */
  #isAnswering = false
  #lostAssignment = false
  #polledAt = 0
  #knownPartitions = 0
  #cancelTimers: () => void = () => undefined
  /** Joins and answers of earlier memberships are ignored. */
  #session = 0

  constructor(options: GroupConsumerOptions, metadataRefreshMs: number, process: SimProcess, cluster: SimCluster) {
    this.#options = options
    this.#metadataRefreshMs = metadataRefreshMs
    this.#process = process
    this.#cluster = cluster
    this.#connection = new Connection(process)
    const { choices } = process.world
    const deliveryMs = (): number => DELIVERY_MS[choices.pick('late batch', DELIVERY_MS.length)] as number
    this.#fetcher = new Fetcher({ process, cluster, operation: 'poll', place: 'poll', deliveryMs })
  }

  membership(): GroupMembership {
    if (this.#membership === 'closed')
      throw new BrokerError('sendOffsets', WRONG_STATE, 'the consumer is disconnected', { isAbortRequired: true })
    return {
      groupId: this.#options.groupId,
      memberId: this.#memberId,
      instanceId: this.#options.groupInstanceId,
      generation: this.#generation,
    }
  }

  // --- membership ----------------------------------------------------------------------------------------------------

  subscribe(topic: string, listener: RebalanceListener): void {
    this.#topic = topic
    this.#listener = listener
    this.#cluster.subscribe(this.#options.groupId, topic)
    this.#polledAt = this.#process.monotonic()
    this.#knownPartitions = this.#cluster.topics.find(topic)?.partitions.length ?? 0
    this.#startTimers()
    this.#join()
  }

  #startTimers(): void {
    this.#cancelTimers()
    let isCancelled = false
    const every = (ms: number, act: () => void): void => {
      this.#process.after(ms, () => {
        if (isCancelled) return
        act()
        every(ms, act)
      })
    }
    every(this.#options.heartbeatIntervalMs, () => this.#heartbeat())
    every(this.#metadataRefreshMs, () => this.#lookAtTopic())
    this.#cancelTimers = () => {
      isCancelled = true
    }
  }

  #join(): void {
    const session = ++this.#session
    this.#membership = 'joining'
    const isCurrent = (): boolean => session === this.#session && this.#membership === 'joining'
    const { groupId, groupInstanceId, sessionTimeoutMs, maxPollIntervalMs } = this.#options
    const request = {
      instanceId: groupInstanceId,
      memberId: this.#memberId,
      owned: this.#owned,
      sessionTimeoutMs,
      rebalanceTimeoutMs: maxPollIntervalMs,
    }
    this.#connection.arrive('JoinGroup', () => {
      if (this.#process.isDead) return
      this.#cluster.group(groupId).join(request, {
        joined: ({ memberId, generation }) =>
          this.#connection.answer(() => {
            if (!isCurrent()) return
            this.#memberId = memberId
            this.#generation = generation
          }),
        synced: (partitions) =>
          this.#connection.answer(() => {
            if (!isCurrent()) return
            this.#membership = 'member'
            this.#follow(partitions)
          }),
        refused: (refusal) => this.#connection.answer(() => isCurrent() && this.#refused(refusal)),
      })
    })
  }

  #heartbeat(): void {
    if (this.#process.monotonic() - this.#polledAt > this.#options.maxPollIntervalMs && this.#membership === 'member') {
      this.#fetcher.fail(new BrokerError('poll', MAX_POLL_EXCEEDED, 'the poll interval was exceeded'))
      this.#lose()
      return
    }
    if (this.#membership !== 'member' || this.#isAnswering) return
    const session = this.#session
    const [memberId, generation] = [this.#memberId, this.#generation]
    const { groupId, groupInstanceId } = this.#options
    this.#connection
      .call({ operation: 'poll', name: 'Heartbeat', timeoutMs: this.#options.sessionTimeoutMs }, () =>
        this.#cluster.group(groupId).heartbeat(memberId, groupInstanceId, generation),
      )
      .catch((error: unknown) => {
        if (session !== this.#session || this.#membership !== 'member') return
        const { code } = error as BrokerError
        if (code === CODES.REBALANCE_IN_PROGRESS) this.#join()
        else if (code === CODES.FENCED_INSTANCE_ID) this.#fence()
        else if (code === CODES.UNKNOWN_MEMBER_ID || code === CODES.ILLEGAL_GENERATION) this.#lose()
      })
  }

  #refused({ code }: Refusal): void {
    if (code === CODES.FENCED_INSTANCE_ID) this.#fence()
    else if (code === CODES.UNKNOWN_MEMBER_ID) this.#lose()
    else this.#process.after(REJOIN_MS, () => this.#membership === 'joining' && this.#join())
  }

  /** The slot is somebody else's: one error of a poll, no callback, nothing assigned (CLIENT-FACTS 21). */
  #fence(): void {
    this.#membership = 'fenced'
    this.#session++
    this.#cancelTimers()
    this.#owned = []
    this.#fetcher.clear()
    this.#fetcher.fail(new BrokerError('poll', FATAL_INSTANCE, 'fatal: another process has this group instance id'))
  }

  /** The group went on without this member. */
  #lose(): void {
    this.#memberId = ''
    this.#session++
    this.#membership = 'out'
    const lost = this.#owned
    if (lost.length === 0) {
      this.#join()
      return
    }
    this.#lostAssignment = true
    void this.#revoke(lost, true).then(() => {
      this.#lostAssignment = false
      if (this.#membership === 'out' && this.#topic !== undefined) this.#join()
    })
  }

  /** Takes up what the leader assigned: what goes first, then what comes. */
  #follow(assigned: readonly number[]): void {
    const gone = this.#owned.filter((partition) => !assigned.includes(partition))
    const added = assigned.filter((partition) => !this.#owned.includes(partition))
    const session = this.#session
    if (gone.length === 0) {
      this.#assign(added)
      return
    }
    void this.#revoke(gone, false).then(() => {
      if (session !== this.#session || this.#membership !== 'member') return
      this.#assign(added)
      // What was given up can be given to somebody else only when all join again.
      this.#join()
    })
  }

  #assign(partitions: readonly number[]): void {
    // Also for none: that is how a member without partitions hears that it is one.
    this.#owned = [...this.#owned, ...partitions]
    const all = this.#listener?.assigned(this.#named(partitions)) ?? []
    for (const { topic, partition, offset } of all) {
      invariant(this.#fetcher.find(topic, partition) === undefined, 'SIM-assigned-twice', { topic, partition })
      this.#fetcher.add(topic, partition, offset, true)
    }
  }

  async #revoke(partitions: readonly number[], lost: boolean): Promise<void> {
    this.#isAnswering = true
    this.#fetcher.hold()
    const named = this.#named(partitions)
    const all = (await this.#listener?.revoked(named, lost)) ?? named
    if (this.#membership === 'fenced' || this.#membership === 'closed') return
    for (const partition of all) this.#fetcher.remove(partition)
    this.#owned = this.#owned.filter((partition) => !partitions.includes(partition))
    this.#isAnswering = false
    this.#fetcher.release()
  }

  #named(partitions: readonly number[]): TopicPartition[] {
    return partitions.map((partition) => ({ topic: this.#topic as string, partition }))
  }

  /** A grown topic is noticed by the members themselves. */
  #lookAtTopic(): void {
    const partitions = this.#cluster.topics.find(this.#topic ?? '')?.partitions.length ?? 0
    if (partitions === this.#knownPartitions) return
    this.#knownPartitions = partitions
    if (this.#membership === 'member' && !this.#isAnswering) this.#join()
  }

  unsubscribe(): void {
    const [memberId, session] = [this.#memberId, ++this.#session]
    const { groupId, groupInstanceId } = this.#options
    const wasMember = this.#membership === 'member' || this.#membership === 'joining'
    this.#membership = 'out'
    this.#topicWasLeft()
    const leave = (): void => {
      if (!wasMember) return
      this.#connection.arrive('LeaveGroup', () => {
        try {
          this.#cluster.group(groupId).leave(memberId, groupInstanceId)
        } catch {
          // It was out already.
        }
      })
      if (session === this.#session) this.#memberId = ''
    }
    if (this.#owned.length === 0) leave()
    else void this.#revoke(this.#owned, false).then(leave)
  }

  #topicWasLeft(): void {
    this.#cancelTimers()
  }

  async close(): Promise<void> {
    if (!this.#process.survives('close consumer')) return never()
    this.#membership = 'closed'
    this.#session++
    this.#cancelTimers()
    this.#fetcher.clear()
    this.#owned = []
  }

  // --- reading -------------------------------------------------------------------------------------------------------

  poll(maxRecords: number, timeoutMs: number): Promise<PollResult> {
    this.#polledAt = this.#process.monotonic()
    return this.#fetcher.poll(maxRecords, timeoutMs)
  }

  async seek(positions: readonly TopicPartitionOffset[]): Promise<void> {
    this.#fetcher.forbidWhilePolling('seek')
    if (!this.#process.survives('seek:before')) return never()
    for (const { topic, partition, offset } of positions) {
      const reading = this.#fetcher.find(topic, partition)
      if (reading?.position === undefined) throw new BrokerError('seek', WRONG_STATE, `${partitionName(topic, partition)} cannot be moved`)
      reading.position = offset
      reading.endTold = -1
    }
  }

  pause(partitions: readonly TopicPartition[]): void {
    this.#process.passes('pause')
    for (const { topic, partition } of partitions) this.#of(topic, partition).isPaused = true
  }

  resume(partitions: readonly TopicPartition[]): void {
    this.#process.passes('resume')
    for (const { topic, partition } of partitions) {
      const reading = this.#of(topic, partition)
      invariant(reading.isPaused, 'SIM-resumed-twice', { topic, partition })
      reading.isPaused = false
    }
  }

  #of(topic: string, partition: number): Reading {
    const reading = this.#fetcher.find(topic, partition)
    if (reading === undefined) throw new BrokerError('poll', WRONG_STATE, `${partitionName(topic, partition)} is not assigned`)
    return reading
  }

  async committed(partitions: readonly TopicPartition[], timeoutMs: number): Promise<readonly CommittedOffset[]> {
    if (!this.#process.survives('committed:before')) return never()
    const found = await this.#connection.call(
      {
        operation: 'committed',
        name: 'OffsetFetch',
        timeoutMs,
        retryOn: [CODES.UNSTABLE_OFFSET_COMMIT],
        retryMs: UNSTABLE_RETRY_MS,
      },
      () => this.#cluster.offsets(this.#options.groupId).fetch(partitions, true),
    )
    return this.#process.survives('committed:after') ? found : never()
  }

  position(topic: string, partition: number): number | undefined {
    return this.#fetcher.find(topic, partition)?.position
  }

  knownEnd(topic: string, partition: number): number | undefined {
    return this.#fetcher.find(topic, partition)?.knownEnd
  }

  assignments(): readonly TopicPartition[] {
    return this.#fetcher.readings.map(({ topic, partition }) => ({ topic, partition }))
  }

  assignmentLost(): boolean {
    return this.#lostAssignment
  }
}

export function membershipOf(consumer: GroupConsumer): GroupMembership {
  invariant(consumer instanceof SimConsumer, 'GC5', { consumer: 'of another adapter' })
  return consumer.membership()
}
