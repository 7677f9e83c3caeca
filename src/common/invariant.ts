/** A broken promise of our own code. Never caught and continued: the transaction is aborted and the worker stops. */
export class InvariantError extends Error {
  override readonly name = 'InvariantError'
  readonly id: string
  readonly details: Readonly<Record<string, unknown>>

  constructor(id: string, details: Readonly<Record<string, unknown>>) {
    super(
      `invariant ${id} does not hold: ${JSON.stringify(details, (_key, value: unknown) => (typeof value === 'bigint' ? `${value}n` : value))}`,
    )
    this.id = id
    this.details = details
  }
}

/**
 * Checks a border. `id` names the invariant as in docs/invariants.md; it is never stripped from a build.
 * `details` is only built when the condition fails if given as a function: use that on a hot path.
 */
export function invariant(
  condition: boolean,
  id: string,
  details: Readonly<Record<string, unknown>> | (() => Readonly<Record<string, unknown>>) = {},
): asserts condition {
  if (!condition) throw new InvariantError(id, typeof details === 'function' ? details() : details)
}
