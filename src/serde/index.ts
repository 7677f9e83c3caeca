/** The public codecs. `index.ts` of the package re-exports this barrel as it is. */
export { codec, nullable } from './codec.ts'
export type { Bytes, Codec, Decoder, Encoder } from './codec.ts'
export { bigint64, boolean, bytes, date, float64, int32, int64, string, uuid } from './scalar-codecs.ts'
export { json } from './json.ts'
export type { JsonOptions, Schema } from './json.ts'
export { structured } from './structured.ts'
export { tuple } from './tuple.ts'
