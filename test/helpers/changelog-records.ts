/** Records of a dedupe changelog, as a store writes them, without a topology to run. */
import { randomBytes } from 'node:crypto'
import { allocateValue, HEADER_BYTES, maxEntries, packKey, PLAIN_ENTRY_BYTES, writeTime } from '../../src/serde/dedupe-changelog.ts'
import { DIGEST_BYTES, digestOf } from '../../src/serde/digest.ts'

export interface PackedRecord {
  readonly key: Buffer
  readonly value: Buffer
}

/** The hour's window of the test topologies: a bucket of it that ends in the future. */
const BUCKET_MS = 450_000
const bucketEnd = (time: number): number => (Math.floor(time / BUCKET_MS) + 1) * BUCKET_MS

/** One record with these ids, seen just now. */
export function packedIds(ids: readonly string[]): PackedRecord[] {
  const time = Date.now()
  const value = allocateValue(ids.length, false)
  const digest = new Int32Array(4)
  ids.forEach((id, index) => {
    const at = HEADER_BYTES + index * PLAIN_ENTRY_BYTES
    digestOf(id, digest)
    digest.forEach((word, number) => value.writeInt32BE(word, at + number * 4))
    writeTime(value, at + DIGEST_BYTES, time)
  })
  return [{ key: packKey(bucketEnd(time), randomBytes(16), 0), value }]
}

/** Full records (some 10,900 ids each) of ids that nobody will ever ask for. */
export function packedNoise(records: number): PackedRecord[] {
  const time = Date.now()
  const count = maxEntries(false)
  return Array.from({ length: records }, () => {
    const value = allocateValue(count, false)
    const digests = randomBytes(count * DIGEST_BYTES)
    for (let index = 0; index < count; index++) {
      const at = HEADER_BYTES + index * PLAIN_ENTRY_BYTES
      digests.copy(value, at, index * DIGEST_BYTES, (index + 1) * DIGEST_BYTES)
      writeTime(value, at + DIGEST_BYTES, time)
    }
    return { key: packKey(bucketEnd(time), randomBytes(16), 0), value }
  })
}
