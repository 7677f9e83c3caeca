/**
 * Set-up in one command: `npm run demo`, `npm test` and `npm run broker` begin here. Only Node built-ins, as it runs before node_modules exists.
 *
 *   node scripts/bootstrap.mjs [--quiet] [--needs-broker] [--no-build]
 *
 * Owns: node_modules, its stamp, dist and its stamp. Does not own: starting a broker.
 * Invariants:
 * 1. A stamp is written last: what it vouches for was there and had loaded.
 * 2. One set-up at a time in one clone; the second waits and then finds everything done.
 */
import { existsSync, mkdirSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { cacheFolder } from './bootstrap/cache-folder.mjs'
import { Console, SetUpError, seconds } from './bootstrap/console.mjs'
import { acquireFileLock } from './bootstrap/file-lock.mjs'
import { isInstalled, readPackages, sha256, stampFor } from './bootstrap/lockfile.mjs'
import { npmCommand, provideNativeModules } from './bootstrap/native-modules.mjs'
import { findBrokerWay, nodeVersionProblem } from './bootstrap/requirements.mjs'

const root = resolve(fileURLToPath(new URL('..', import.meta.url)))
const stampPath = join(root, 'node_modules', '.millrace-stamp')
const distStampPath = join(root, 'dist', '.millrace-stamp')
const logFile = join(root, '.millrace', 'bootstrap.log')
const OPTIONS = ['--quiet', '--needs-broker', '--no-build']

async function main() {
  const options = process.argv.slice(2)
  const unknown = options.find((option) => !OPTIONS.includes(option))
  if (unknown !== undefined) throw new SetUpError(`${unknown} is no option of the set-up; there are ${OPTIONS.join(', ')}.`)
  const problem = nodeVersionProblem(process.versions.node)
  if (problem !== null) throw new SetUpError(problem)

  const start = Date.now()
  const console = new Console({ logFile })
  for (const signal of /** @type {const} */ (['SIGINT', 'SIGTERM', 'SIGHUP'])) {
    process.once(signal, () => {
      console.abort()
      process.exit(130)
    })
  }
  if (options.includes('--needs-broker')) await checkBrokerWay()
  const wantsBuild = !options.includes('--no-build')
  if (!isCurrent(wantsBuild)) {
    const release = await acquireFileLock(join(root, '.millrace', 'bootstrap.lock'), {
      onWait: (pid) => console.say(`  ... another set-up of this folder is running (process ${pid}); waiting for it`),
    })
    try {
      if (!dependenciesAreCurrent()) await installDependencies(console)
      if (wantsBuild && !distIsCurrent()) await buildDist(console)
    } finally {
      release()
    }
  }
  if (console.steps > 0) console.say(`✓ set-up done in ${seconds(Date.now() - start)}`)
  else if (!options.includes('--quiet')) console.say(`✓ set-up is up to date (${seconds(Date.now() - start)})`)
}

async function checkBrokerWay() {
  const kafka = join(cacheFolder(), 'kafka')
  const way = await findBrokerWay({ distributionCached: existsSync(kafka) && readdirSync(kafka).length > 0 })
  if ('problem' in way) throw new SetUpError(way.problem)
}

/** @param {boolean} withBuild */
function isCurrent(withBuild) {
  return dependenciesAreCurrent() && (!withBuild || distIsCurrent())
}

function dependenciesAreCurrent() {
  return readText(stampPath) === stampFor(root)
}

/** @param {Console} console */
async function installDependencies(console) {
  const wanted = readPackages(join(root, 'package-lock.json'))
  if (wanted === null) throw new SetUpError('package-lock.json is missing or damaged: restore it with  git checkout package-lock.json')
  const installed = readPackages(join(root, 'node_modules', '.package-lock.json'))
  rmSync(stampPath, { force: true })
  if (installed === null || !isInstalled(wanted, installed)) {
    // Install scripts are left out: the two that matter are run below, with limits; the others (esbuild, ssh2, protobufjs) are optional.
    await console.step('installing dependencies (npm ci)', () =>
      console.run(npmCommand(), ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--prefer-offline'], {
        cwd: root,
        env: { ...process.env, npm_config_loglevel: 'warn' },
      }),
    )
  }
  await provideNativeModules({ root, packages: wanted, console })
  writeFileSync(stampPath, stampFor(root))
}

function distIsCurrent() {
  return readText(distStampPath) === distStamp()
}

function distStamp() {
  const files = readdirSync(join(root, 'src'), { recursive: true, withFileTypes: true })
    .filter((file) => file.isFile())
    .map((file) => join(file.parentPath, file.name))
    .sort()
  return sha256(
    ...['tsconfig.json', 'tsconfig.build.json', 'package-lock.json'].map((name) => readText(join(root, name)) ?? ''),
    ...files.flatMap((file) => [file.slice(root.length), readText(file) ?? '']),
  )
}

/** @param {Console} console */
async function buildDist(console) {
  const stamp = distStamp()
  const aside = join(root, '.millrace', `dist-${process.pid}`)
  try {
    await console.step('building dist (tsc)', () =>
      console.run(
        process.execPath,
        [join(root, 'node_modules', 'typescript', 'bin', 'tsc'), '-p', 'tsconfig.build.json', '--outDir', aside],
        { cwd: root },
      ),
    )
    writeFileSync(join(aside, '.millrace-stamp'), stamp)
    const old = join(root, '.millrace', `dist-old-${process.pid}`)
    mkdirSync(join(root, '.millrace'), { recursive: true })
    if (existsSync(join(root, 'dist'))) renameSync(join(root, 'dist'), old)
    renameSync(aside, join(root, 'dist'))
    rmSync(old, { recursive: true, force: true })
  } finally {
    rmSync(aside, { recursive: true, force: true })
  }
}

/** @param {string} path */
function readText(path) {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return null
  }
}

main().catch((error) => {
  if (error instanceof SetUpError) {
    if (error.tail.length > 0) process.stderr.write(`${error.tail.map((line) => `    ${line}`).join('\n')}\n`)
    process.stderr.write(`Set-up failed: ${error.message}\n`)
    if (error.logFile !== undefined) process.stderr.write(`The whole output is in ${error.logFile}\n`)
  } else {
    process.stderr.write(`Set-up failed, which is a fault of the set-up itself: ${error instanceof Error ? error.stack : String(error)}\n`)
  }
  process.exitCode = 1
})
