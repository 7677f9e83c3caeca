/** What a person sees while the demo runs: bars on a terminal, a line every few seconds elsewhere, and each event as a line of its own. */
import { MultiBar, type SingleBar } from 'cli-progress'
import pc from 'picocolors'

export interface Progress {
  readonly sent: number
  /** Committed by the plain consumer, of the input. */
  readonly plain: number
  /** Committed by millrace, of the input. */
  readonly millrace: number
}

const LINE_INTERVAL_MS = 5_000
const NUMBER = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 })

export class Display {
  readonly #output: NodeJS.WriteStream
  readonly #startedAt = performance.now()
  #bars: MultiBar | undefined
  #lines: { readonly sent: SingleBar; readonly plain: SingleBar; readonly millrace: SingleBar } | undefined
  #total = 0
  #lineAt = 0

  constructor(output: NodeJS.WriteStream) {
    this.#output = output
  }

  /** From now on `update` is shown. */
  start(total: number): void {
    this.#total = total
    this.#lineAt = performance.now()
    if (!this.#output.isTTY) return
    this.#bars = new MultiBar(
      { format: '{name} [{bar}] {value}/{total}', hideCursor: true, barsize: 30, fps: 5, stream: this.#output, linewrap: false },
      undefined,
    )
    const bar = (name: string): SingleBar => (this.#bars as MultiBar).create(total, 0, { name: name.padEnd(15) })
    this.#lines = { sent: bar('producer'), plain: bar('plain consumer'), millrace: bar('millrace') }
  }

  update({ sent, plain, millrace }: Progress): void {
    if (this.#lines !== undefined) {
      this.#lines.sent.update(sent)
      this.#lines.plain.update(plain)
      this.#lines.millrace.update(millrace)
      return
    }
    if (this.#total === 0 || performance.now() - this.#lineAt < LINE_INTERVAL_MS) return
    this.#lineAt = performance.now()
    const share = (value: number): string => `${NUMBER.format(value)} (lag ${NUMBER.format(Math.max(0, sent - value))})`
    this.say(
      `sent ${NUMBER.format(sent)} of ${NUMBER.format(this.#total)}  |  plain consumer ${share(plain)}  |  millrace ${share(millrace)}`,
    )
  }

  say(line: string): void {
    const seconds = ((performance.now() - this.#startedAt) / 1_000).toFixed(1).padStart(6)
    const text = `${pc.dim(`${seconds} s`)}  ${line}`
    if (this.#bars === undefined) this.#output.write(`${text}\n`)
    else this.#bars.log(`${text}\n`)
  }

  /** Bars end; lines go on. */
  stop(): void {
    this.#bars?.stop()
    this.#bars = undefined
    this.#lines = undefined
    this.#total = 0
  }
}
