/**
 * The record at hand, as user functions see it: one object per task, moved from record to record, so the hot path allocates nothing for it.
 * Valid during the call only. `map` changes key, timestamp and headers for what is below it and restores them afterwards.
 */
import type { BrokerRecord, HeaderList } from '../broker/port.ts'
import { headerList, recordHeaders } from '../topology/record-headers.ts'
import type { RecordHeaders, StreamRecord } from '../topology/public-types.ts'

const NO_RECORD: BrokerRecord = Object.freeze({ topic: '', partition: -1, offset: -1, timestamp: -1, key: null, value: null, headers: [] })

export class ProcessingContext implements StreamRecord<unknown, unknown> {
  key: unknown = undefined
  value: unknown = undefined
  timestamp = -1
  topic = ''
  partition = -1
  offset = -1
  /** The record as it was read. */
  source: BrokerRecord = NO_RECORD
  /** Key as decoded from `source.key`: while it is unchanged, its bytes need no encoding. */
  sourceKey: unknown = undefined
  sourceKeyCodec = ''
  #headerList: HeaderList = NO_RECORD.headers
  #headers: RecordHeaders | undefined

  start(source: BrokerRecord): void {
    this.source = source
    this.topic = source.topic
    this.partition = source.partition
    this.offset = source.offset
    this.timestamp = source.timestamp
    this.key = undefined
    this.value = undefined
    this.#headerList = source.headers
    this.#headers = undefined
  }

  get headers(): RecordHeaders {
    this.#headers ??= recordHeaders(this.#headerList)
    return this.#headers
  }

  set headers(headers: RecordHeaders) {
    this.#headers = headers
    this.#headerList = headerList(headers)
  }

  /** Headers as they go out: untouched ones pass through without a copy. */
  get outputHeaders(): HeaderList {
    return this.#headerList
  }

  /** Puts a header list back, for the siblings of a step that changed it. */
  restoreHeaders(list: HeaderList): void {
    if (this.#headerList === list) return
    this.#headerList = list
    this.#headers = undefined
  }
}
