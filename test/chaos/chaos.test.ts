/** One short run of the suite itself, as `npm run chaos` starts it. The long ones are started by hand: docs/testing.md. */
import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { expect, it, onTestFinished } from 'vitest'
import type { Report } from './report.ts'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
/** This seed deals every one of these faults, and deaths in the middle of a flush to SQLite. */
const FLAGS = '--seed 3 --minutes 0.7 --rate 300 --nodes 1 --faults kill,restart,failpoint,drop,hold-commit --json'.split(' ')

it('D39, A13: outputs, dead letters and state equal the model after kills, deaths at failpoints, lost connections and late replies', async () => {
  const { code, output } = await chaos(FLAGS)
  expect(code, output).toBe(0)
  const report = JSON.parse(output.trim().split('\n').at(-1) ?? '{}') as Report
  expect(report.violations).toBe(0)
  for (const kind of ['kill', 'restart', 'failpoint', 'drop', 'hold-commit']) expect(report.faults[kind]?.planned, kind).toBeGreaterThan(0)
  const fired = Object.values(report.faults).reduce((sum, { fired: number }) => sum + number, 0)
  expect(report.faults['kill']?.fired).toBeGreaterThan(0)
  expect(fired).toBeGreaterThan(3)
  expect(report.counts['output records']).toBeGreaterThan(1_000)
  expect(report.counts['dead-letters records']).toBeGreaterThan(10)
  expect(report.counts['duplicates records']).toBeGreaterThan(100)
}, 400_000)

function chaos(flags: readonly string[]): Promise<{ code: number | null; output: string }> {
  const child = spawn(process.execPath, ['--import', 'tsx', 'test/chaos/main.ts', ...flags], {
    cwd: ROOT,
    // A broker of its own: it is put behind a proxy.
    env: { ...process.env, KAFKA_BROKERS: '', UV_THREADPOOL_SIZE: '24' },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => (output += chunk.toString('utf8')))
  const closed = new Promise<{ code: number | null; output: string }>((resolve) => child.once('close', (code) => resolve({ code, output })))
  onTestFinished(async () => {
    // In order: it ends what it started.
    if (child.exitCode === null) child.kill('SIGTERM')
    await closed
  })
  return closed
}
