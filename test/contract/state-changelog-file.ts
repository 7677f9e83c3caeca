/** A changelog in a file: length-prefixed keys and values; a transaction ends with a record whose key is `end <ids so far>`. */
import { readFileSync } from 'node:fs'
import type { ChangelogRecord } from '../../src/state/store.ts'

/** Event time of `id-<n>`: a window of 80 s holds 8,000 ids, so buckets come and go while the test runs. */
export function timeOf(n: number): number {
  return 1_700_000_000_000 + n * 10
}

export function frame(key: Buffer, value: Buffer | null): Buffer {
  const head = Buffer.alloc(8)
  head.writeInt32BE(key.length, 0)
  head.writeInt32BE(value === null ? -1 : value.length, 4)
  return Buffer.concat([head, key, value ?? Buffer.alloc(0)])
}

/** Committed records only: what follows the last end mark was torn off by the kill. End marks take an offset, as control records do. */
export interface ChangelogFile {
  readonly records: ChangelogRecord[]
  /** Ids committed so far: `id-0` to `id-<ids - 1>`. */
  readonly ids: number
  readonly nextOffset: number
  /** Length of the committed part, bytes. */
  readonly length: number
}

export function readChangelog(file: string): ChangelogFile {
  const bytes = readFileSync(file)
  const records: ChangelogRecord[] = []
  let open: ChangelogRecord[] = []
  let ids = 0
  let offset = 0
  let nextOffset = 0
  let length = 0
  for (let at = 0; at + 8 <= bytes.length;) {
    const keyLength = bytes.readInt32BE(at)
    const valueLength = bytes.readInt32BE(at + 4)
    const end = at + 8 + keyLength + Math.max(0, valueLength)
    if (end > bytes.length) break
    const key = bytes.subarray(at + 8, at + 8 + keyLength)
    at = end
    if (key.toString().startsWith('end ')) {
      records.push(...open)
      open = []
      ids = Number(key.toString().slice(4))
      nextOffset = ++offset
      length = end
    } else open.push({ offset: offset++, key, value: valueLength < 0 ? null : bytes.subarray(at - valueLength, at) })
  }
  return { records, ids, nextOffset, length }
}
