/** Work that somebody else waits for, and the end of all of it. */
export class UnderWay {
  readonly #ends = new Set<Promise<void>>()

  get isEmpty(): boolean {
    return this.#ends.size === 0
  }

  /** Returns the work as it is; its failure is for whoever waits for it. */
  add<T>(work: Promise<T>): Promise<T> {
    const ended: Promise<void> = work.then(
      () => undefined,
      () => undefined,
    )
    this.#ends.add(ended)
    void ended.then(() => this.#ends.delete(ended))
    return work
  }

  /** Resolves when all that is under way now has ended, well or not. */
  async ended(): Promise<void> {
    await Promise.all(this.#ends)
  }
}
