/** Java's default partitioner: murmur2 of the key's bytes, made positive. */
export function murmur2Partition(key: Buffer | null, partitions: number): number {
  if (key === null) return 0
  return (murmur2(key) & 0x7fff_ffff) % partitions
}

const SEED = 0x9747_b28c
const FACTOR = 0x5bd1_e995
const SHIFT = 24

function murmur2(data: Buffer): number {
  let hash = SEED ^ data.length
  const words = data.length >> 2
  for (let index = 0; index < words; index++) {
    let word = Math.imul(data.readInt32LE(index * 4), FACTOR)
    word = Math.imul(word ^ (word >>> SHIFT), FACTOR)
    hash = Math.imul(hash, FACTOR) ^ word
  }
  const rest = words * 4
  const left = data.length - rest
  if (left > 0) {
    for (let index = left - 1; index >= 0; index--) hash ^= (data[rest + index] as number) << (8 * index)
    hash = Math.imul(hash, FACTOR)
  }
  hash = Math.imul(hash ^ (hash >>> 13), FACTOR)
  return hash ^ (hash >>> 15)
}
