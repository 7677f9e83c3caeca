/** Whether state that was written under one specification can be used under another (CASES E49). */
import type { DedupeStoreSpec } from '../common/store-spec.ts'
import { StoreMismatchError } from '../errors/errors.ts'

/**
 * Throws StoreMismatchError for another `version`: only its author knows what changed. Everything else is taken over in place:
 *  - `windowMs`: entries carry their own times and stored buckets their own bounds, so every look-up applies the new window at once. A shorter one forgets
 *    sooner; a longer one cannot bring back ids that were already forgotten, so it is complete once the new window has passed.
 *  - `refresh`: decides only about later duplicates.
 *  - `keepOrigin` on: ids from before have no origin (`lastOrigin()` is undefined for them) until they expire. Off: stored origins are ignored.
 */
export function checkSpec(stored: DedupeStoreSpec, wanted: DedupeStoreSpec, where: string): void {
  if (stored.version !== wanted.version) {
    throw new StoreMismatchError(
      `store ${wanted.name} (${where}) has version ${stored.version} on disk, the topology asks for version ${wanted.version}`,
      {
        code: 'store-version',
        remedy: `Run the topology with version ${stored.version}, give the store another name to start empty, or reset the application (state, changelog and committed offsets).`,
      },
    )
  }
}
