/** Committed records of a topic, as a test reads them. Owns: decoding, and what counts as the last of a key. */
import { errorMessage } from '../../errors/errors.ts'
import type { Topic } from '../../topology/public-types.ts'
import { recordHeaders } from '../../topology/record-headers.ts'
import type { SimCluster } from '../sim/cluster/cluster.ts'
import type { LogRecord } from '../sim/cluster/partition-log.ts'
import { TestDriverError } from './errors.ts'
import type { TestDeadLetter, TestOutput } from './public-types.ts'

export interface CommittedRecord extends LogRecord {
  readonly partition: number
  readonly offset: number
}

/** In order per partition, partitions in turn. */
export function committedRecords(cluster: SimCluster, topic: string): CommittedRecord[] {
  return cluster.topics
    .topic(topic)
    .partitions.flatMap((log, partition) => log.read(0, Number.MAX_SAFE_INTEGER).records.map((record) => ({ ...record, partition })))
}

export function decodedRecords<K, V>(topic: Topic<K, V>, records: readonly CommittedRecord[]): TestOutput<K, V>[] {
  return records.map((record) => decodedRecord(topic, record))
}

/** The last of each key by its bytes; those that deleted their key, and those without one, are left out. */
export function lastOfKeys(records: readonly CommittedRecord[]): CommittedRecord[] {
  const last = new Map<string, CommittedRecord>()
  for (const record of records) {
    if (record.key === null) continue
    const key = record.key.toString('latin1')
    if (record.value === null) last.delete(key)
    else last.set(key, record)
  }
  return [...last.values()]
}

export function deadLetter({ value, headers: list }: CommittedRecord): TestDeadLetter {
  // Behind the headers of the record itself, so the last of a name is ours.
  const headers = recordHeaders(list)
  const text = (name: string): string => headers.get(`millrace.${name}`) ?? ''
  return {
    topic: text('topic'),
    partition: Number(text('partition')),
    offset: Number(text('offset')),
    error: `${text('error')}: ${text('message')}`,
    value,
  }
}

function decodedRecord<K, V>(topic: Topic<K, V>, { key, value, timestamp, partition, offset, headers }: CommittedRecord): TestOutput<K, V> {
  const decoded = <T>(what: string, decode: () => T): T => {
    try {
      return decode()
    } catch (error) {
      throw new TestDriverError(`the ${what} of ${topic.name}[${partition}] offset ${offset} cannot be decoded: ${errorMessage(error)}`, {
        cause: error,
      })
    }
  }
  return {
    key: decoded('key', () => topic.key.decode(key)),
    value: decoded('value', () => topic.value.decode(value)),
    timestamp,
    partition,
    headers: recordHeaders(headers),
  }
}
