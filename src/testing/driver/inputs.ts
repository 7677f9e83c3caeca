/** From what a test pipes to records of an input partition. Owns: encoding, timestamps, the choice of the partition. */
import { durationMs } from '../../common/duration.ts'
import { errorMessage } from '../../errors/errors.ts'
import { asBuffer } from '../../serde/codec.ts'
import type { Topic } from '../../topology/public-types.ts'
import { murmur2Partition } from '../sim/murmur2.ts'
import type { InputRecord } from './driver-world.ts'
import { TestDriverError } from './errors.ts'
import type { TestInput } from './public-types.ts'

export class InputEncoder {
  readonly #partitions: number
  readonly #startAt: number
  /** Records without a key so far, by topic. */
  readonly #withoutKey = new Map<string, number>()

  constructor(partitions: number, startAt: number) {
    this.#partitions = partitions
    this.#startAt = startAt
  }

  /** All of them or none: one that cannot be encoded throws, and none counts. `now`: the driver's clock. */
  encode<K, V>(topic: Topic<K, V>, inputs: readonly TestInput<K, V>[], now: number): InputRecord[] {
    let withoutKey = this.#withoutKey.get(topic.name) ?? 0
    const records = inputs.map((input, index): InputRecord => {
      const where = `pipe('${topic.name}'), record ${index + 1}`
      const { at, headers = {} } = input
      const key = encoded(where, 'key', () => topic.key.encode(input.key))
      const value = encoded(where, 'value', () => topic.value.encode(input.value))
      const partition = input.partition ?? (key === null ? withoutKey++ % this.#partitions : murmur2Partition(key, this.#partitions))
      if (!Number.isInteger(partition) || partition < 0 || partition >= this.#partitions)
        throw new TestDriverError(`${where}: there is no partition ${partition}; the driver has ${this.#partitions} (option partitions)`)
      return {
        partition,
        record: {
          timestamp: at === undefined ? now : this.#startAt + durationMs(at, `${where}: at`),
          key,
          value,
          headers: Object.entries(headers).map(([name, bytes]) => [name, typeof bytes === 'string' ? Buffer.from(bytes) : asBuffer(bytes)]),
        },
      }
    })
    this.#withoutKey.set(topic.name, withoutKey)
    return records
  }
}

function encoded(where: string, what: 'key' | 'value', encode: () => Uint8Array | null): Buffer | null {
  try {
    const bytes = encode()
    return bytes === null ? null : asBuffer(bytes)
  } catch (error) {
    throw new TestDriverError(`${where}: its ${what} cannot be encoded: ${errorMessage(error)}`, { cause: error })
  }
}
