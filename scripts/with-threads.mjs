/**
 * Runs a TypeScript program with a thread pool that is large enough for many Kafka clients: the size is read when a process starts, so it cannot be set from
 * inside. `node scripts/with-threads.mjs test/chaos/main.ts --seed 1`
 */
import { spawn } from 'node:child_process'
import { constants } from 'node:os'

const child = spawn(process.execPath, ['--import', 'tsx', ...process.argv.slice(2)], {
  stdio: 'inherit',
  env: { UV_THREADPOOL_SIZE: '24', ...process.env },
})
// Ctrl-C reaches the whole group; the program decides when it ends.
for (const signal of /** @type {const} */ (['SIGINT', 'SIGTERM', 'SIGHUP'])) process.on(signal, () => void child.kill(signal))
child.once('error', () => process.exit(1))
child.once('exit', (code, signal) => process.exit(code ?? 128 + (signal === null ? 1 : constants.signals[signal])))
