import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitest/config'

// The Kafka client blocks threads of libuv's pool, whose size is read when a process starts: the forks inherit it.
process.env.UV_THREADPOOL_SIZE ??= '16'

/** Suites that need a broker: by folder, or by name anywhere. */
const BROKER_SUITES = ['test/broker/**/*.test.ts', 'test/chaos/**/*.test.ts', 'test/**/*.broker.test.ts']
const source = fileURLToPath(new URL('src/index.ts', import.meta.url))
const testing = fileURLToPath(new URL('src/testing.ts', import.meta.url))

export default defineConfig({
  resolve: {
    alias: [
      { find: /^millrace\/testing$/, replacement: testing },
      { find: /^millrace$/, replacement: source },
    ],
  },
  test: {
    // Native modules do not run in worker threads.
    pool: 'forks',
    teardownTimeout: 30_000,
    projects: [
      {
        extends: true,
        test: {
          name: 'unit',
          include: ['test/**/*.test.ts', 'topologies/**/*.test.ts'],
          exclude: [...BROKER_SUITES, '**/node_modules/**'],
          testTimeout: 30_000,
          hookTimeout: 30_000,
          sequence: { groupOrder: 0 },
        },
      },
      {
        extends: true,
        test: {
          name: 'broker',
          include: BROKER_SUITES,
          globalSetup: ['scripts/vitest-global-setup.ts'],
          testTimeout: 120_000,
          hookTimeout: 180_000,
          // One broker on two cores: suites beside each other only slow each other down, into their time-outs.
          maxWorkers: 1,
          sequence: { groupOrder: 1 },
        },
      },
    ],
  },
})
