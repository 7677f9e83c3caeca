/**
 * `npm run chaos -- --seed S --minutes M`: exit code 0 when nothing was lost, invented, doubled, reordered or left open; 1 otherwise; 130 after Ctrl-C.
 *
 * Owns: the folder, signals, the exit code. Invariant: when it ends, no process of it is left; the folder stays after a failure or with `--keep`.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { commandOf, parseOptions } from './options.ts'
import { reportOf, textOf, type Report } from './report.ts'
import { ChaosRun } from './run.ts'

const INTERRUPTED_EXIT_CODE = 130

const options = parseOptions(process.argv.slice(2))
const folder = mkdtempSync(join(tmpdir(), 'millrace-chaos-'))
const say = (line: string): void => void process.stdout.write(`${new Date().toISOString().slice(11, 19)} ${line}\n`)
const run = new ChaosRun(options, folder, say)
process.on('exit', () => run.killAllNow())
const interrupted = new Promise<number>((resolve) => {
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => resolve(INTERRUPTED_EXIT_CODE))
})

let report: Report | undefined
say(commandOf(options))
const exitCode = await Promise.race([chaos(), interrupted])
await run.cleanUp()
if (exitCode === 0 && !options.keep) rmSync(folder, { recursive: true, force: true })
else say(`logs, timeline and state are in ${folder}`)
if (exitCode !== 0) say(`to repeat it: ${commandOf(options)}`)
if (options.json) process.stdout.write(`${JSON.stringify({ command: commandOf(options), exitCode, ...report })}\n`)
process.exit(exitCode)

async function chaos(): Promise<number> {
  try {
    const result = await run.run()
    process.stdout.write(`${textOf(result, options)}\n`)
    report = reportOf(result)
    return result.violations.length === 0 ? 0 : 1
  } catch (error) {
    process.stderr.write(`chaos: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}\n`)
    for (const { planned, detail, firedAt } of run.fired)
      if (firedAt !== undefined) process.stderr.write(`  ${new Date(firedAt).toISOString()} ${planned.kind}: ${detail}\n`)
    return 1
  }
}
