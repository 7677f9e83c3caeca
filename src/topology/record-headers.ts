/**
 * Record headers as callbacks see them, over the list the broker port carries.
 *
 * Invariant: the list is never changed; `with` and `without` copy it. Headers that nobody touched give back the very list they were made of, so passing a
 * record on costs nothing.
 */
import type { HeaderList } from '../broker/port.ts'
import { asBuffer, type Bytes } from '../serde/codec.ts'
import type { RecordHeaders } from './public-types.ts'

/** Global, so that headers made by another copy of the package are known too. */
const LIST = Symbol.for('millrace.header-list')

class HeadersOfList implements RecordHeaders {
  readonly [LIST]: HeaderList

  constructor(list: HeaderList) {
    this[LIST] = list
  }

  get(name: string): string | undefined {
    const value = this.bytes(name)
    return value === undefined || value === null ? undefined : asBuffer(value).toString('utf8')
  }

  bytes(name: string): Bytes | null | undefined {
    const list = this[LIST]
    for (let index = list.length - 1; index >= 0; index--) {
      const header = list[index]
      if (header?.[0] === name) return header[1]
    }
    return undefined
  }

  with(name: string, value: string | Bytes): RecordHeaders {
    if (typeof name !== 'string') throw new TypeError('headers.with(): the name is not a string')
    if (typeof value !== 'string' && !(value instanceof Uint8Array))
      throw new TypeError(`headers.with('${name}'): the value is neither a string nor bytes`)
    return new HeadersOfList([...this[LIST], [name, typeof value === 'string' ? Buffer.from(value, 'utf8') : asBuffer(value)]])
  }

  without(name: string): RecordHeaders {
    const kept = this[LIST].filter((header) => header[0] !== name)
    return kept.length === this[LIST].length ? this : new HeadersOfList(kept)
  }

  [Symbol.iterator](): Iterator<readonly [name: string, value: Bytes | null]> {
    return this[LIST][Symbol.iterator]()
  }
}

export const EMPTY_HEADERS: RecordHeaders = new HeadersOfList(Object.freeze([]))

/** Headers over a list; the list must not be changed afterwards. */
export function recordHeaders(list: HeaderList): RecordHeaders {
  return list.length === 0 ? EMPTY_HEADERS : new HeadersOfList(list)
}

/** The list behind headers: the same object when they came from here, a converted copy when the user made an implementation of their own. */
export function headerList(headers: RecordHeaders): HeaderList {
  const list = (headers as Partial<HeadersOfList>)[LIST]
  return list ?? Array.from(headers, ([name, value]) => [name, value === null ? null : asBuffer(value)] as const)
}
