/** What a store must be opened with; derived from the topology. Part of the file's identity: another `hash` or `version` on disk is refused. */
export interface DedupeStoreSpec {
  readonly kind: 'dedupe'
  readonly name: string
  readonly windowMs: number
  readonly refresh: boolean
  readonly keepOrigin: boolean
  readonly version: number
}
export type StoreSpec = DedupeStoreSpec
