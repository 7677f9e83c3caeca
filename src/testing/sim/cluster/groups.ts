/**
 * The coordinator of one consumer group, as brokers do it for the classic protocol: members with sessions, generations, static members.
 *
 *   empty -> preparing (members are asked to join again) -> completing (the leader assigns) -> stable -> preparing -> ...
 *
 * What is checked of an offset commit: member and generation, never partitions (CLIENT-FACTS 5, 6).
 *
 * Invariants:
 *  GR1. A generation has one assignment. A static member that comes back while the group is stable gets that of its place, and nobody hears of it
 *       (KIP-345); its predecessor is fenced.
 *  GR2. A rebalance ends when every member has joined again, or its session or the rebalance time-out is over.
 */
import type { VirtualTime } from '../virtual-time.ts'
import { assign } from './assignor.ts'
import { CODES, Refusal } from './refusal.ts'

export interface JoinRequest {
  readonly instanceId: string
  /** Empty for a process that starts. */
  readonly memberId: string
  readonly owned: readonly number[]
  readonly sessionTimeoutMs: number
  readonly rebalanceTimeoutMs: number
}

export interface Joined {
  readonly memberId: string
  readonly generation: number
}

/** Where a member is told of things. `synced` comes after `joined`; a refusal instead of either. */
export interface JoinReply {
  joined(answer: Joined): void
  synced(partitions: readonly number[]): void
  refused(refusal: Refusal): void
}

interface Member {
  readonly memberId: string
  readonly instanceId: string
  owned: readonly number[]
  assigned: readonly number[]
  sessionTimeoutMs: number
  rebalanceTimeoutMs: number
  waiting: JoinReply | undefined
  cancelSession: () => void
}

export type GroupState = 'empty' | 'preparing' | 'completing' | 'stable'

export interface GroupOptions {
  readonly time: VirtualTime
  /** Partitions of the topic that the group subscribes to, as the leader's client knows them. */
  readonly partitions: () => number
}

/** From the last join to the leader's assignment. */
const SYNC_MS = 2

export class Group {
  readonly #options: GroupOptions
  readonly #members = new Map<string, Member>()
  readonly #static = new Map<string, string>()
  #state: GroupState = 'empty'
  #generation = 0
  #memberIds = 0
  #cancelRebalance: () => void = () => undefined

  constructor(options: GroupOptions) {
    this.#options = options
  }

  get state(): GroupState {
    return this.#state
  }

  get members(): readonly Pick<Member, 'memberId' | 'instanceId' | 'assigned'>[] {
    return [...this.#members.values()]
  }

  join(request: JoinRequest, reply: JoinReply): void {
    const present = this.#static.get(request.instanceId)
    if (request.memberId !== '' && present !== request.memberId) {
      reply.refused(present === undefined ? unknown(request.memberId) : fenced(request.instanceId))
      return
    }
    const member = request.memberId === '' ? this.#admit(request, present) : (this.#members.get(request.memberId) as Member)
    const isReplacement = request.memberId === '' && present !== undefined
    member.owned = request.owned
    member.sessionTimeoutMs = request.sessionTimeoutMs
    member.rebalanceTimeoutMs = request.rebalanceTimeoutMs
    this.#seen(member)
    if (isReplacement && this.#state === 'stable') {
      reply.joined({ memberId: member.memberId, generation: this.#generation })
      reply.synced(member.assigned)
      return
    }
    member.waiting = reply
    if (this.#state !== 'preparing') this.#prepare()
    this.#completeWhenAllJoined()
  }

  heartbeat(memberId: string, instanceId: string, generation: number): void {
    const member = this.#check(memberId, instanceId)
    this.#seen(member)
    if (this.#state === 'preparing') throw new Refusal(CODES.REBALANCE_IN_PROGRESS, 'the group is preparing a rebalance')
    if (generation !== this.#generation)
      throw new Refusal(CODES.ILLEGAL_GENERATION, `generation ${generation}, the group is at ${this.#generation}`)
  }

  /** LeaveGroup: the place is given up, also that of a static member. */
  leave(memberId: string, instanceId: string): void {
    this.#remove(this.#check(memberId, instanceId))
  }

  /**
   * Of TxnOffsetCommit. The state of the group does not matter, but for this: with nobody in it, a consumer that is in no generation (any more) is taken
   * for one that never joins groups.
   */
  checkCommit(memberId: string, instanceId: string, generation: number): void {
    if (generation < 0 && this.#state === 'empty') return
    this.#check(memberId, instanceId)
    if (generation !== this.#generation)
      throw new Refusal(CODES.ILLEGAL_GENERATION, `generation ${generation}, the group is at ${this.#generation}`)
  }

  /** The topic has grown, or a member was told to: everybody joins again. */
  rebalance(): void {
    if (this.#state === 'stable') this.#prepare()
  }

  #check(memberId: string, instanceId: string): Member {
    const present = this.#static.get(instanceId)
    const member = this.#members.get(memberId)
    if (present !== undefined && present !== memberId) throw fenced(instanceId)
    if (member === undefined) throw unknown(memberId)
    return member
  }

  #admit({ instanceId, sessionTimeoutMs, rebalanceTimeoutMs }: JoinRequest, predecessor: string | undefined): Member {
    const memberId = `${instanceId}-${++this.#memberIds}`
    const old = predecessor === undefined ? undefined : this.#members.get(predecessor)
    const member: Member = {
      memberId,
      instanceId,
      owned: [],
      assigned: old?.assigned ?? [],
      sessionTimeoutMs,
      rebalanceTimeoutMs,
      waiting: undefined,
      cancelSession: () => undefined,
    }
    if (old !== undefined) {
      old.cancelSession()
      old.waiting?.refused(fenced(instanceId))
      this.#members.delete(old.memberId)
    }
    this.#members.set(memberId, member)
    this.#static.set(instanceId, memberId)
    return member
  }

  #seen(member: Member): void {
    member.cancelSession()
    member.cancelSession = this.#options.time.schedule(member.sessionTimeoutMs, () => {
      // A member that waits for the others is not late: its answer is what it waits for.
      if (member.waiting !== undefined) this.#seen(member)
      else this.#remove(member)
    })
  }

  #remove(member: Member): void {
    member.cancelSession()
    this.#members.delete(member.memberId)
    if (this.#static.get(member.instanceId) === member.memberId) this.#static.delete(member.instanceId)
    if (this.#members.size === 0) {
      this.#cancelRebalance()
      this.#state = 'empty'
      return
    }
    if (this.#state !== 'preparing') this.#prepare()
    this.#completeWhenAllJoined()
  }

  #prepare(): void {
    this.#state = 'preparing'
    this.#cancelRebalance()
    const timeoutMs = Math.max(...[...this.#members.values()].map(({ rebalanceTimeoutMs }) => rebalanceTimeoutMs))
    this.#cancelRebalance = this.#options.time.schedule(timeoutMs, () => this.#complete())
  }

  #completeWhenAllJoined(): void {
    if (this.#state === 'preparing' && [...this.#members.values()].every(({ waiting }) => waiting !== undefined)) this.#complete()
  }

  /** Static members that did not come back in time keep their place until their session is over (GR2). */
  #complete(): void {
    this.#cancelRebalance()
    this.#generation++
    this.#state = 'completing'
    const generation = this.#generation
    const replies = new Map<Member, JoinReply>()
    for (const member of this.#members.values()) {
      if (member.waiting === undefined) continue
      replies.set(member, member.waiting)
      member.waiting.joined({ memberId: member.memberId, generation })
      member.waiting = undefined
    }
    this.#options.time.schedule(SYNC_MS, () => {
      if (this.#state !== 'completing' || this.#generation !== generation) {
        for (const reply of replies.values()) reply.refused(new Refusal(CODES.REBALANCE_IN_PROGRESS, 'another rebalance came in between'))
        return
      }
      const members = [...this.#members.values()]
      const claims = members.map(({ memberId, instanceId, owned }) => ({ memberId, name: instanceId, owned }))
      const assignment = assign(this.#options.partitions(), claims)
      this.#state = 'stable'
      for (const member of members) member.assigned = assignment.get(member.memberId) ?? []
      for (const [member, reply] of replies) reply.synced(member.assigned)
    })
  }
}

function unknown(memberId: string): Refusal {
  return new Refusal(CODES.UNKNOWN_MEMBER_ID, `the group does not know member ${memberId}`)
}

function fenced(instanceId: string): Refusal {
  return new Refusal(CODES.FENCED_INSTANCE_ID, `instance ${instanceId} has another member`)
}
