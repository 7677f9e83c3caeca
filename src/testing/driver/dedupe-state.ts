/**
 * What the dedupe stores of a run remember, read from where it must be: the committed changelog, which is the truth, and each worker's disk, which with the
 * rest of the changelog from its checkpoint on must come to the same (X2).
 */
import { partitionName } from '../../common/topic-partition.ts'
import { readMetadata } from '../../runtime/offset-metadata.ts'
import { PackedReader } from '../../serde/dedupe-changelog.ts'
import type { DedupeEntry } from '../../state/dedupe-backing.ts'
import type { SubTopology } from '../../topology/nodes.ts'
import { changelogTopic } from '../../topology/internal-topics.ts'
import type { MemoryDisk } from '../../state/memory/memory-backend.ts'
import type { DriverWorld } from './driver-world.ts'

interface RememberedId {
  readonly digest: Int32Array
  readonly time: number
  /** Time and origin of the id. */
  readonly text: string
}

/** By digest. */
export type RememberedIds = ReadonlyMap<string, RememberedId>

export interface StateResult {
  /** By store and task, for example `store dedupe of task 0_1`. */
  readonly stores: ReadonlyMap<string, RememberedIds>
  /** Disks that do not fit the changelog, in words. */
  readonly problems: readonly string[]
}

export function stateOf(world: DriverWorld): StateResult {
  const { plan, config, partitions } = world.options
  const stores = new Map<string, RememberedIds>()
  const problems: string[] = []
  for (const sub of plan.subTopologies) {
    for (const node of sub.nodes) {
      if (node.kind !== 'dedupe') continue
      const changelog = changelogTopic(config.applicationId, node.store)
      for (let partition = 0; partition < partitions; partition++) {
        const now = node.clock === 'wall-clock' ? world.now : streamTimeOf(world, sub, partition)
        const task = `${sub.id}_${partition}`
        const where = `store ${node.store} of task ${task}`
        const isLive = ({ time }: RememberedId): boolean => time + node.windowMs > now
        const ids = new Map([...idsIn(world, changelog, partition, 0)].filter(([, id]) => isLive(id)))
        stores.set(where, ids)
        for (const { slot, disk } of world.simulation.slots) {
          const lacking = lackingOn(disk, task, node.store, ids, (from) => idsIn(world, changelog, partition, from))
          if (lacking > 0)
            problems.push(`${where}: the disk of worker ${slot} and the changelog behind it lack ${lacking} of ${ids.size} ids`)
        }
      }
    }
  }
  return { stores, problems }
}

/** Committed event time of a task, ms; -1 before its first record. */
function streamTimeOf({ simulation, options }: DriverWorld, { inputs }: SubTopology, partition: number): number {
  const { committed } = simulation.cluster.offsets(options.config.applicationId)
  return Math.max(...inputs.map((topic) => readMetadata(committed.get(partitionName(topic, partition))?.metadata ?? '')?.streamTime ?? -1))
}

function idsIn({ simulation }: DriverWorld, changelog: string, partition: number, from: number): RememberedIds {
  const ids = new Map<string, RememberedId>()
  const log = simulation.cluster.topics.find(changelog)?.partitions[partition]
  const reader = new PackedReader()
  for (const { value } of log?.read(from, Number.MAX_SAFE_INTEGER).records ?? []) {
    if (value === null) continue
    reader.open(value)
    while (reader.next()) {
      const key = reader.words.join()
      const { time, hasOrigin, originTime, partition: originPartition, offset } = reader
      if ((ids.get(key)?.time ?? -Infinity) >= time) continue
      const text = hasOrigin ? `${time} of ${originTime} ${originPartition} ${offset}` : String(time)
      ids.set(key, { digest: reader.words.slice(), time, text })
    }
  }
  return ids
}

/** How many of the ids neither the disk's rows nor the changelog behind its checkpoint know. A worker that never had the task lacks none. */
function lackingOn(
  disk: MemoryDisk,
  taskId: string,
  store: string,
  ids: RememberedIds,
  idsFrom: (offset: number) => RememberedIds,
): number {
  const task = disk.tasks.get(taskId)
  if (task === undefined) return 0
  const rest = idsFrom(task.checkpoints.get(store)?.offset ?? 0)
  const backing = task.backings.get(store)
  const buckets = backing?.load() ?? []
  const entry: DedupeEntry = { time: 0, originTime: 0, partition: -1, offset: -1 }
  const isKnown = (key: string, { digest, time }: RememberedId): boolean =>
    (rest.get(key)?.time ?? -Infinity) >= time || buckets.some(({ id }) => backing?.get(id, digest, entry) === true && entry.time >= time)
  return [...ids].filter(([key, id]) => !isKnown(key, id)).length
}
