import { json, type Codec } from '../../src/serde/index.ts'

/** JSON of a type that the test knows to be right; nothing is checked. */
export function jsonOf<T>(): Codec<T> {
  const unchecked: unknown = json()
  return unchecked as Codec<T>
}
