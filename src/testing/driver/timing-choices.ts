/** The choices of a driver's run: everything goes the ordinary way but for answers that a fault has lost, and for what a seed makes late. */
import { SeededNumbers } from '../../common/seeded-numbers.ts'
import type { Choices, Decision } from '../sim/choices.ts'
import { FATES } from '../sim/client/connection.ts'

const REPLY_LOST = FATES.indexOf('reply lost')
/** How often something is late, when a seed is given. */
const LATE_ODDS = 0.1

export class TimingChoices implements Choices {
  /** Not kept: a driver's run is told by its input and its faults. */
  readonly trace: readonly Decision[] = []
  readonly #random: SeededNumbers | undefined
  #lost: string | undefined

  /** 0: nothing is late. */
  constructor(seed: number) {
    this.#random = seed === 0 ? undefined : new SeededNumbers(seed)
  }

  /** The next request of this name takes effect, and its answer is lost. */
  loseReplyOf(request: string): void {
    this.#lost = `fate of ${request}`
  }

  pick(what: string, options: number): number {
    if (what === this.#lost) {
      this.#lost = undefined
      return REPLY_LOST
    }
    if (this.#random === undefined || !(what.startsWith('delay of ') || what.startsWith('late '))) return 0
    return this.#random.next() < LATE_ODDS ? 1 + this.#random.below(options - 1) : 0
  }
}
