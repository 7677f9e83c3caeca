/**
 * The package as users have it: compiled, in the node_modules of a project of their own, on plain Node. Here TypeScript is loaded by our registration of tsx,
 * which the other tests, run from source, never reach.
 */
import { execFile } from 'node:child_process'
import { copyFile, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import ts from 'typescript'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'

const ROOT = fileURLToPath(new URL('../../', import.meta.url))

interface Result {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

let project: string

/** Below our own node_modules, so that the dependencies of the copy are found without installing them again. */
beforeAll(async () => {
  await mkdir(join(ROOT, '.millrace'), { recursive: true })
  project = await mkdtemp(join(ROOT, '.millrace', 'installed-'))
  const copy = join(project, 'node_modules', 'millrace')
  const files = (await readdir(join(ROOT, 'src'), { recursive: true })).filter((name) => name.endsWith('.ts'))
  await Promise.all(
    files.map(async (name) => {
      const target = join(copy, 'dist', name.replace(/\.ts$/, '.js'))
      const { outputText } = ts.transpileModule(await readFile(join(ROOT, 'src', name), 'utf8'), {
        compilerOptions: {
          target: ts.ScriptTarget.ES2023,
          module: ts.ModuleKind.ESNext,
          rewriteRelativeImportExtensions: true,
          verbatimModuleSyntax: true,
        },
      })
      await mkdir(dirname(target), { recursive: true })
      await writeFile(target, outputText)
    }),
  )
  await copyFile(join(ROOT, 'package.json'), join(copy, 'package.json'))
  // Without "type": "module", as `npm init` writes it.
  await write('package.json', '{ "name": "shop" }')
})

afterAll(async () => {
  await rm(project, { recursive: true, force: true })
})

async function write(name: string, text: string): Promise<void> {
  await mkdir(dirname(join(project, name)), { recursive: true })
  await writeFile(join(project, name), text)
}

function millrace(...args: readonly string[]): Promise<Result> {
  const { NODE_OPTIONS: _, ...env } = process.env
  return new Promise((resolve) => {
    execFile(
      process.execPath,
      [join('node_modules', 'millrace', 'dist', 'cli', 'main.js'), ...args],
      { cwd: project, env: { ...env, NO_COLOR: '1', FORCE_COLOR: '0' } },
      (error, stdout, stderr) => resolve({ code: error === null ? 0 : Number(error.code), stdout, stderr }),
    )
  })
}

describe('an installed copy', () => {
  test('runs a TypeScript topology that imports it by name, in a project that says nothing of modules, with path aliases', async () => {
    await write('tsconfig.json', '{ "compilerOptions": { "paths": { "@/*": ["./shared/*"] } } }')
    await write('shared/topics.ts', "export enum Name { In = 'orders', Out = 'orders.unique' }")
    await write(
      'orders.ts',
      `import { string, topic, topology } from 'millrace'
import { Name } from '@/topics.ts'
const codecs = { key: string(), value: string() }
const prefix = await Promise.resolve('my-')
export default topology(prefix + 'orders', ({ stream }) => {
  stream(topic(Name.In, codecs)).dedupe({ by: 'key', window: '1h' }).to(topic(Name.Out, codecs))
})`,
    )
    const { code, stdout, stderr } = await millrace('describe', 'orders.ts')
    expect(stderr).toBe('')
    expect(stdout).toContain('Topology my-orders')
    expect(code).toBe(0)
  })

  test('is loaded once: topology and command share one copy', async () => {
    await write(
      'same.ts',
      `import { ConfigError } from 'millrace'\nthrow new ConfigError('from the module', { code: 'MINE', remedy: 'do this' })`,
    )
    await write(
      'check.mjs',
      "import { ConfigError } from 'millrace'\nimport { loadTopology } from './node_modules/millrace/dist/cli/load-topology.js'\nconst error = await loadTopology('same.ts').catch((thrown) => thrown)\nconsole.log(error.cause instanceof ConfigError)",
    )
    const stdout = await new Promise<string>((resolve, reject) => {
      execFile(process.execPath, ['check.mjs'], { cwd: project }, (error, output) =>
        error === null ? resolve(output) : reject(new Error(error.message)),
      )
    })
    expect(stdout).toBe('true\n')
  })

  test('reads millrace.config.ts', async () => {
    await write(
      'millrace.config.ts',
      "import { defineConfig } from 'millrace'\nexport default defineConfig((env) => ({ brokers: env['HOME'] === undefined ? 'a:1' : 'b:2' }))",
    )
    const { stdout } = await millrace('config', '--json')
    const { options } = JSON.parse(stdout) as { options: { brokers: unknown } }
    expect(options.brokers).toMatchObject({ source: 'file', where: 'millrace.config.ts' })
  })

  test('tells a syntax error with file and line', async () => {
    await write('broken.ts', 'const a = 1\nconst b = {\n')
    const { code, stderr } = await millrace('describe', 'broken.ts')
    expect(stderr).toMatch(/^error: topology broken\.ts:3:1: syntax error: /)
    expect(code).toBe(2)
  })

  test('says what to install when an import is missing', async () => {
    await write('missing.ts', "import 'left-pad-of-another-world'\nexport default 1")
    const { code, stderr } = await millrace('describe', 'missing.ts')
    expect(stderr).toBe(
      'error: topology missing.ts: missing.ts imports left-pad-of-another-world, which is not there\n-> install it in the project of the topology (npm install left-pad-of-another-world)\n',
    )
    expect(code).toBe(2)
  })

  test('tests a topology by millrace/testing, with the test runner of Node', async () => {
    await write(
      'orders.test.ts',
      `import assert from 'node:assert/strict'
import test from 'node:test'
import { string, topic, topology } from 'millrace'
import { crashAfter, crashEverywhere, createTestDriver } from 'millrace/testing'

const codecs = { key: string(), value: string() }
const orders = topic('orders', codecs)
const unique = topic('orders.unique', codecs)
const program = topology('orders', ({ stream }) => {
  stream(orders).dedupe({ by: 'key', window: '1h' }).to(unique)
})

test('a crash changes nothing, under fake timers too', async (context) => {
  context.mock.timers.enable()
  await using driver = await createTestDriver(program)
  await driver.fault(crashAfter('sendOffsets'))
  await driver.pipe(orders, { key: 'o1', value: 'first' }, { key: 'o1', value: 'again' })
  assert.deepEqual(driver.pairs(unique), [['o1', 'first']])
  assert.deepEqual(await driver.differencesFromUndisturbedRun(), [])
})

test('nor does a crash at any step', async () => {
  const report = await crashEverywhere(program, (driver) => driver.pipe(orders, { key: 'o1', value: 'first' }))
  assert.deepEqual(report.violations, [])
})`,
    )
    const { NODE_OPTIONS: _, NODE_TEST_CONTEXT: _context, ...env } = process.env
    const { code, stdout } = await new Promise<Pick<Result, 'code' | 'stdout'>>((resolve) => {
      execFile(
        process.execPath,
        ['--import', 'tsx', '--test', '--test-reporter', 'tap', 'orders.test.ts'],
        { cwd: project, env },
        (error, output) => resolve({ code: error === null ? 0 : Number(error.code), stdout: output }),
      )
    })
    expect(stdout).toContain('# pass 2\n# fail 0')
    expect(code).toBe(0)
  }, 120_000)

  test('forks its workers from the compiled program', async () => {
    await write('number.ts', 'export default 42')
    const { code, stdout } = await millrace('run', 'number.ts', '--brokers', 'localhost:1')
    expect(stdout).toContain('its default export is a number (42), not a topology')
    expect(code).toBe(2)
  })
})
