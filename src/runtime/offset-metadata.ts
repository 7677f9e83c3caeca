/**
 * What travels with every committed input offset: the nonce that decides an unknown commit (X4), the stream time of the input partition, and the
 * transactional id prefix with the ring's size, so that a successor can settle a dead owner's ids. At most 4096 bytes by the broker's default.
 */
export interface OffsetMetadata {
  readonly nonce: string
  /** Highest event time seen on this input partition, ms; -1 when none. */
  readonly streamTime: number
  /** With the ring's size: names the ids a successor of a dead owner has to settle. Written from the first version on, so that it can be relied upon. */
  readonly transactionalIdPrefix: string
  readonly ringSize: number
  /** Wall clock of the commit, ms: an offset that nobody commits again expires, also while its task moves from worker to worker. */
  readonly committedAt: number
}

export function writeMetadata({ nonce, streamTime, transactionalIdPrefix, ringSize, committedAt }: OffsetMetadata): string {
  return JSON.stringify({ v: 1, n: nonce, t: streamTime, p: transactionalIdPrefix, r: ringSize, c: committedAt })
}

/** Undefined for anything that this library did not write (for example after a manual offset reset by a tool). */
export function readMetadata(text: string): OffsetMetadata | undefined {
  if (!text.startsWith('{"v":1,')) return undefined
  try {
    const { n, t, p, r, c } = JSON.parse(text) as Record<string, unknown>
    if (typeof n !== 'string' || typeof t !== 'number' || typeof p !== 'string' || typeof r !== 'number' || typeof c !== 'number') {
      return undefined
    }
    return { nonce: n, streamTime: t, transactionalIdPrefix: p, ringSize: r, committedAt: c }
  } catch {
    return undefined
  }
}

export function readNonce(text: string): string | undefined {
  return readMetadata(text)?.nonce
}
