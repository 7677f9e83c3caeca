/** The screen of `run` for a person: log lines scroll above, one status line and a bar for each restore stay at the bottom. */
import { MultiBar } from 'cli-progress'
import type { SingleBar } from 'cli-progress'
import type { Totals } from './status-line.ts'
import { restoreText, statusText } from './status-line.ts'

const RESTORE_FORMAT = '  restore {name} [{bar}] {percentage}%  {text}'

export interface Screen {
  log(line: string): void
  update(totals: Totals): void
  close(): void
}

/** `stream` must be a terminal. */
export function terminalScreen(stream: NodeJS.WriteStream): Screen {
  const bars = new MultiBar({
    stream,
    fps: 4,
    hideCursor: true,
    clearOnComplete: true,
    forceRedraw: true,
    barsize: 24,
    format: RESTORE_FORMAT,
  })
  const restores = new Map<string, SingleBar>()
  let status: SingleBar | undefined
  return {
    log: (line) => {
      // Before the first bar the terminal is still plain; the bars' own log needs a running redraw.
      if (status === undefined) stream.write(`${line}\n`)
      else bars.log(`${line}\n`)
    },
    update: (totals) => {
      const text = statusText(totals)
      if (status === undefined) status = bars.create(1, 0, { text }, { format: '{text}' })
      else status.update(0, { text })
      const present = new Set<string>()
      for (const restore of totals.restoring) {
        const name = `${restore.task} ${restore.store}`
        present.add(name)
        const payload = { name, text: restoreText(restore) }
        const bar = restores.get(name)
        if (bar === undefined) restores.set(name, bars.create(Math.max(1, restore.total), restore.done, payload))
        else {
          bar.setTotal(Math.max(1, restore.total))
          bar.update(restore.done, payload)
        }
      }
      for (const [name, bar] of restores) {
        if (present.has(name)) continue
        restores.delete(name)
        bars.remove(bar)
      }
    },
    close: () => {
      if (status === undefined) return
      // One more redraw writes the lines that wait in the bars' buffer.
      bars.update()
      bars.stop()
      status = undefined
    },
  }
}

/** Lines only, for an output that is no terminal. */
export function plainScreen(stream: NodeJS.WritableStream): Screen {
  return { log: (line) => void stream.write(`${line}\n`), update: () => {}, close: () => {} }
}
