/**
 * The cooperative sticky assignment, as the leader of a group makes it: everybody keeps what it has as far as that is even; what has to move is taken
 * away in this round and given in the next, so that a partition never has two owners.
 */
export interface Claim {
  readonly memberId: string
  /** Sorts members, so that the result does not depend on who came first. */
  readonly name: string
  readonly owned: readonly number[]
}

export function assign(partitions: number, claims: readonly Claim[]): ReadonlyMap<string, readonly number[]> {
  const members = [...claims].sort((left, right) => (left.name < right.name ? -1 : 1))
  const claimedBy = new Map<number, string>()
  for (const { memberId, owned } of members)
    for (const partition of owned) if (partition < partitions && !claimedBy.has(partition)) claimedBy.set(partition, memberId)
  const share = Math.floor(partitions / Math.max(1, members.length))
  let larger = partitions - share * members.length

  const result = new Map<string, number[]>()
  const free = new Set<number>()
  for (let partition = 0; partition < partitions; partition++) if (!claimedBy.has(partition)) free.add(partition)
  // Those that have most keep the larger shares.
  const byOwned = [...members].sort((left, right) => right.owned.length - left.owned.length)
  const quotas = new Map<string, number>()
  for (const { memberId, owned } of byOwned) {
    const kept = owned.filter((partition) => claimedBy.get(partition) === memberId)
    const quota = kept.length > share && larger > 0 ? share + 1 : share
    if (quota > share) larger--
    quotas.set(memberId, quota)
    result.set(memberId, kept.slice(0, quota))
    for (const partition of kept.slice(quota)) free.add(partition)
  }
  for (const { memberId } of members) {
    if (larger === 0) break
    if (quotas.get(memberId) !== share) continue
    quotas.set(memberId, share + 1)
    larger--
  }
  for (const partition of [...free].sort((left, right) => left - right)) {
    const taker = members.find(({ memberId }) => (result.get(memberId)?.length ?? 0) < (quotas.get(memberId) ?? 0))
    if (taker !== undefined) result.get(taker.memberId)?.push(partition)
  }
  // What somebody still owns is given to its new owner in the next round only.
  for (const [memberId, given] of result) {
    result.set(
      memberId,
      given.filter((partition) => (claimedBy.get(partition) ?? memberId) === memberId),
    )
  }
  return result
}
