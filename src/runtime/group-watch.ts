/**
 * Finds tasks that nobody owns.
 *
 * How that happens, with static members and the cooperative protocol: (1) a member joins, and the group's first round takes partitions away from worker A;
 * (2) A dies before it has joined the second round, in which they would be handed on; (3) A comes back in its place: the coordinator gives a static member
 * its old assignment without a rebalance, so there is no second round, and the partitions taken away in (1) belong to nobody until the group happens
 * to change. (Seen on Kafka 4.3.1: no owner until the next join.)
 *
 * Owns: when to look, and the decision who acts. Two looks must agree, so that a rebalance under way is not disturbed; the member that owns the fewest
 * tasks acts (ties: the smaller instance id), because leaving and joining anew costs it the least.
 */
import type { BrokerAdmin, GroupDescription } from '../broker/port.ts'
import type { Clock, Logger } from '../common/ports.ts'

/** After a change in the group the next look comes this soon, and a look that found orphans is repeated after the same time. */
const SOON_MS = 2_000

export interface GroupWatchOptions {
  readonly admin: BrokerAdmin
  readonly groupId: string
  readonly instanceId: string
  readonly tasksTopic: string
  /** Number of tasks that should have an owner. */
  readonly tasks: () => number
  readonly intervalMs: number
  readonly clock: Clock
  readonly logger: Logger
}

export class GroupWatch {
  readonly #options: GroupWatchOptions
  #nextLookAt: number
  #looking = false
  #seenRebalances = 0
  #suspects = ''
  #verdict: readonly number[] | undefined

  constructor(options: GroupWatchOptions) {
    this.#options = options
    this.#nextLookAt = options.clock.monotonic() + SOON_MS
  }

  /**
   * Called every turn of the loop; asks the coordinator in the background now and then. `rebalances` counts the group's callbacks of this worker.
   * Returns task numbers without an owner when this worker should join anew, once.
   */
  look(rebalances: number): readonly number[] | undefined {
    const now = this.#options.clock.monotonic()
    if (rebalances !== this.#seenRebalances) {
      this.#seenRebalances = rebalances
      this.#suspects = ''
      this.#verdict = undefined
      this.#nextLookAt = now + SOON_MS
    }
    const verdict = this.#verdict
    this.#verdict = undefined
    if (verdict !== undefined || this.#looking || now < this.#nextLookAt) return verdict
    this.#looking = true
    const { admin, groupId, logger, intervalMs, clock } = this.#options
    this.#nextLookAt = now + intervalMs
    admin.describeGroup(groupId).then(
      (group) => {
        this.#looking = false
        if (this.#seenRebalances === rebalances && this.#judge(group)) this.#nextLookAt = clock.monotonic() + SOON_MS
      },
      (error: unknown) => {
        this.#looking = false
        logger.debug({ error: String(error) }, 'the group could not be described')
      },
    )
    return undefined
  }

  /** True when the next look should come soon. */
  #judge(group: GroupDescription): boolean {
    if (!group.stable) return true
    const orphans = orphanTasks(group, this.#options.tasksTopic, this.#options.tasks())
    const suspects = orphans.join()
    const confirmed = suspects !== '' && suspects === this.#suspects
    this.#suspects = suspects
    if (confirmed && whoActs(group, this.#options.tasksTopic) === this.#options.instanceId) this.#verdict = orphans
    return suspects !== ''
  }
}

export function orphanTasks(group: GroupDescription, tasksTopic: string, tasks: number): readonly number[] {
  const owned = new Set(
    group.members.flatMap(({ assigned }) => assigned.flatMap(({ topic, partition }) => (topic === tasksTopic ? [partition] : []))),
  )
  return Array.from({ length: tasks }, (_, number) => number).filter((number) => !owned.has(number))
}

export function whoActs(group: GroupDescription, tasksTopic: string): string | undefined {
  const members = group.members.map(({ instanceId, memberId, assigned }) => ({
    id: instanceId ?? memberId,
    tasks: assigned.filter(({ topic }) => topic === tasksTopic).length,
  }))
  members.sort((a, b) => a.tasks - b.tasks || (a.id < b.id ? -1 : 1))
  return members[0]?.id
}
