/** Names of options in their three spellings, and the nearest one to a misspelt name. Pure. */

/** `transactionMaxBytes` -> `transaction-max-bytes`; `security.ssl` -> `security-ssl`. */
export function kebabCase(name: string): string {
  return name
    .replaceAll('.', '-')
    .replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)
    .toLowerCase()
}

/** `transactionMaxBytes` -> `MILLRACE_TRANSACTION_MAX_BYTES`. */
export function environmentName(name: string): string {
  return `MILLRACE_${kebabCase(name).replaceAll('-', '_').toUpperCase()}`
}

/** Edits (insert, delete, replace, swap of neighbours) from one text to the other. */
export function editDistance(from: string, to: string): number {
  let beforePrevious: number[] = []
  let previous = Array.from({ length: to.length + 1 }, (_, index) => index)
  for (let row = 1; row <= from.length; row++) {
    const current = [row]
    for (let column = 1; column <= to.length; column++) {
      const same = from[row - 1] === to[column - 1]
      let best = Math.min((previous[column] ?? 0) + 1, (current[column - 1] ?? 0) + 1, (previous[column - 1] ?? 0) + (same ? 0 : 1))
      if (row > 1 && column > 1 && from[row - 1] === to[column - 2] && from[row - 2] === to[column - 1]) {
        best = Math.min(best, (beforePrevious[column - 2] ?? 0) + 1)
      }
      current.push(best)
    }
    beforePrevious = previous
    previous = current
  }
  return previous[to.length] ?? 0
}

/**
 * The candidate with the fewest edits, upper and lower case alike; undefined when none is within a third of the name's length (at least 2 edits) and none begins
 * like it (`stateDirectory` -> `stateDir`).
 */
export function nearestName(name: string, candidates: Iterable<string>): string | undefined {
  const limit = Math.max(2, Math.floor(name.length / 3))
  const wanted = name.toLowerCase()
  let nearest: string | undefined
  let longer: string | undefined
  let fewest = limit + 1
  for (const candidate of candidates) {
    const known = candidate.toLowerCase()
    const edits = editDistance(wanted, known)
    if (edits < fewest) {
      fewest = edits
      nearest = candidate
    }
    if (Math.min(known.length, wanted.length) >= 4 && (wanted.startsWith(known) || known.startsWith(wanted))) longer ??= candidate
  }
  return nearest ?? longer
}
