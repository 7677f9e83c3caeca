/**
 * Gets the two native modules to load: as they are, from the cache, as a prebuilt download, or built from source.
 *
 * The prebuilt hosts may be out of reach, and a connection that nobody answers hangs for minutes. So the host is tried first
 * with a short time-out, and the download itself has a limit.
 */
import { execFile } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { connect } from 'node:net'
import { dirname, join } from 'node:path'
import { cacheFolder } from './cache-folder.mjs'
import { SetUpError } from './console.mjs'
import { nativeKey } from './lockfile.mjs'
import { discardNative, restoreNative, saveNative } from './native-cache.mjs'
import { findOnPath } from './requirements.mjs'

const PROBE_TIMEOUT_MS = 4_000
const DOWNLOAD_TIMEOUT_MS = 120_000
const BUILD_TIMEOUT_MS = 30 * 60_000

const DEBIAN_LIBRARIES = ['libcurl4-openssl-dev', 'libssl-dev', 'zlib1g-dev', 'libzstd-dev', 'libsasl2-dev']
const TOOLS = { make: 'make', 'g++': 'g++', python3: 'python3' }

/** @typedef {{ name: string, check: string, needsLibraries: boolean, download: { host: (manifest: any) => string | null, command: string, args: string[] } }} NativeModule */

/** @type {NativeModule[]} */
const MODULES = [
  {
    name: '@confluentinc/kafka-javascript',
    check: `if (typeof require('@confluentinc/kafka-javascript').librdkafkaVersion !== 'string') throw new Error('no librdkafka')`,
    needsLibraries: true,
    download: {
      host: (manifest) => manifest.binary?.host ?? null,
      command: '@mapbox/node-pre-gyp/bin/node-pre-gyp',
      args: ['install', '--fallback-to-build=false'],
    },
  },
  {
    name: 'better-sqlite3',
    check: `new (require('better-sqlite3'))(':memory:').prepare('select 1').get()`,
    needsLibraries: false,
    // prebuild-install takes the release host from the package's repository.
    download: { host: (manifest) => repositoryHost(manifest), command: 'prebuild-install/bin.js', args: [] },
  },
]

/**
 * @param {{ root: string, packages: Record<string, import('./lockfile.mjs').Entry>, console: import('./console.mjs').Console, env?: NodeJS.ProcessEnv }} options
 */
export async function provideNativeModules({ root, packages, console, env = process.env }) {
  const cache = join(cacheFolder(env), 'native')
  /** @type {{ module: NativeModule, folder: string, entry: string }[]} */
  const missing = []
  for (const module of MODULES) {
    const folder = join(root, 'node_modules', module.name)
    const entry = join(cache, `${module.name.replace(/[@/]/g, '-').replace(/^-/, '')}-${nativeKey(packages, module.name)}`)
    if (existsSync(join(folder, 'build')) && (await loads(root, module)) === null) {
      saveNative(entry, folder)
      continue
    }
    if (restoreNative(entry, folder)) {
      const problem = await loads(root, module)
      if (problem === null) {
        console.say(`✓ ${module.name}: from the cache`)
        continue
      }
      console.say(`  ${module.name}: the cached build does not load (${problem}); it is discarded`)
      discardNative(entry)
    }
    missing.push({ module, folder, entry })
  }
  const toBuild = []
  for (const item of missing) {
    if (await downloaded(root, item.module, item.folder, console, env)) saveNative(item.entry, item.folder)
    else toBuild.push(item)
  }
  if (toBuild.length === 0) return
  await provideBuildTools(
    console,
    toBuild.some((item) => item.module.needsLibraries),
    env,
  )
  const names = toBuild.map((item) => item.module.name)
  await console.step(`building ${names.join(' and ')} from source (2 to 5 minutes, once per machine)`, () =>
    console.run(npmCommand(), ['rebuild', ...names, '--foreground-scripts'], {
      cwd: root,
      env: buildEnvironment(env),
      timeoutMs: BUILD_TIMEOUT_MS,
    }),
  )
  for (const { module, folder, entry } of toBuild) {
    const problem = await loads(root, module)
    if (problem !== null) throw new SetUpError(`${module.name} was built, but it does not load: ${problem}`)
    saveNative(entry, folder)
  }
}

/**
 * Loads the module in a process of its own: a build for another Node can end the process instead of throwing.
 * @param {string} root @param {NativeModule} module @returns {Promise<string | null>} the problem
 */
function loads(root, module) {
  return new Promise((resolve) => {
    execFile(process.execPath, ['-e', module.check], { cwd: root, timeout: 60_000 }, (error, _stdout, stderr) => {
      if (error === null) resolve(null)
      else
        resolve(
          /^\s*(?:\w*Error: .*|.*cannot open shared object.*)$/m.exec(stderr)?.[0]?.trim() ??
            (error.signal ? `ended by ${error.signal}` : error.message),
        )
    })
  })
}

/** @param {string} root @param {NativeModule} module @param {string} folder @param {import('./console.mjs').Console} console @param {NodeJS.ProcessEnv} env */
async function downloaded(root, module, folder, console, env) {
  const manifest = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8'))
  const host = module.download.host(manifest)
  const script = join(root, 'node_modules', module.download.command)
  if (host === null || !existsSync(script)) return false
  const proxied = ['https_proxy', 'HTTPS_PROXY', 'npm_config_https_proxy', 'npm_config_proxy'].some((name) => (env[name] ?? '') !== '')
  if (!proxied && !(await reachable(host))) {
    console.say(`  ${module.name}: the host of its prebuilt binaries does not answer, so it is built from source`)
    return false
  }
  try {
    await console.step(`${module.name}: downloading the prebuilt binary`, () =>
      console.run(process.execPath, [script, ...module.download.args], { cwd: folder, env, timeoutMs: DOWNLOAD_TIMEOUT_MS }),
    )
  } catch {
    console.say(`  ${module.name}: no prebuilt binary could be had, so it is built from source`)
    return false
  }
  const problem = await loads(root, module)
  if (problem === null) return true
  console.say(`  ${module.name}: the prebuilt binary does not load (${problem}), so it is built from source`)
  return false
}

/** @param {string} url @returns {Promise<boolean>} */
function reachable(url) {
  const { hostname, port } = new URL(url)
  return new Promise((resolve) => {
    const socket = connect({ host: hostname, port: port === '' ? 443 : Number(port) })
    const finish = (/** @type {boolean} */ answer) => {
      clearTimeout(timer)
      socket.destroy()
      resolve(answer)
    }
    const timer = setTimeout(() => finish(false), PROBE_TIMEOUT_MS)
    socket.once('connect', () => finish(true))
    socket.once('error', () => finish(false))
  })
}

/** @param {any} manifest */
function repositoryHost(manifest) {
  const url = typeof manifest.repository === 'string' ? manifest.repository : (manifest.repository?.url ?? '')
  const match = /(?:git\+)?(?:https?|git|ssh):\/\/(?:[^@/]*@)?([^/:]+)/.exec(url)
  return match === null ? null : `https://${match[1]}`
}

/** @param {import('./console.mjs').Console} console @param {boolean} needsLibraries @param {NodeJS.ProcessEnv} env */
async function provideBuildTools(console, needsLibraries, env) {
  const missing = Object.entries(TOOLS)
    .filter(([tool]) => findOnPath(tool, env) === null)
    .map(([, name]) => name)
  const isDebian = findOnPath('dpkg-query', env) !== null && findOnPath('apt-get', env) !== null
  if (needsLibraries && isDebian) {
    for (const library of DEBIAN_LIBRARIES) if (!(await isDebianPackageInstalled(library))) missing.push(library)
  }
  if (missing.length === 0) return
  if (!isDebian) {
    throw new SetUpError(
      `The source build needs ${missing.join(', ')} and the development files of curl, OpenSSL, zlib, zstd and Cyrus SASL. Install them with this system's package manager (Fedora: dnf install make gcc-c++ python3 libcurl-devel openssl-devel zlib-devel libzstd-devel cyrus-sasl-devel; Alpine: apk add make g++ python3 curl-dev openssl-dev zlib-dev zstd-dev cyrus-sasl-dev bash) and run the command again.`,
    )
  }
  const install = ['install', '-y', '--no-install-recommends', '-o', 'DPkg::Lock::Timeout=300', ...missing]
  if (process.getuid?.() !== 0) {
    throw new SetUpError(
      `The source build of the Kafka client needs Debian packages that are missing. Run this line, then the same command again:\n  sudo apt-get update && sudo apt-get install -y ${missing.join(' ')}`,
    )
  }
  await console.step(`installing ${missing.join(', ')}`, async () => {
    const quiet = { ...env, DEBIAN_FRONTEND: 'noninteractive' }
    await console.run('apt-get', ['update'], { env: quiet })
    await console.run('apt-get', install, { env: quiet })
  })
}

/** @param {string} name @returns {Promise<boolean>} */
function isDebianPackageInstalled(name) {
  return new Promise((resolve) => {
    execFile('dpkg-query', ['-W', '-f', '${Status}', name], (error, stdout) =>
      resolve(error === null && stdout.includes('install ok installed')),
    )
  })
}

/** @param {NodeJS.ProcessEnv} env @returns {NodeJS.ProcessEnv} */
function buildEnvironment(env) {
  const headers = dirname(dirname(process.execPath))
  const hasHeaders = isHeaderFolder(headers)
  // Not in parallel: the client's build file does not order librdkafka's configure before its compile ("No rule to make target config.h").
  // librdkafka itself is built with all cores all the same.
  const { JOBS: _jobs, MAKEFLAGS: _flags, npm_config_jobs: _npmJobs, ...rest } = env
  return {
    ...rest,
    // Links the system's libraries: the static build would download the sources of its own.
    CKJS_LINKING: 'dynamic',
    npm_config_build_from_source: 'true',
    ...(hasHeaders && env.npm_config_nodedir === undefined ? { npm_config_nodedir: headers } : {}),
  }
}

/** Headers that came with this very Node save a download. @param {string} folder */
function isHeaderFolder(folder) {
  const path = join(folder, 'include', 'node', 'node_version.h')
  if (!existsSync(path)) return false
  const text = readFileSync(path, 'utf8')
  const part = (/** @type {string} */ name) => new RegExp(`#define NODE_${name}_VERSION (\\d+)`).exec(text)?.[1]
  return `${part('MAJOR')}.${part('MINOR')}.${part('PATCH')}` === process.versions.node
}

export function npmCommand() {
  return process.platform === 'win32' ? 'npm.cmd' : 'npm'
}
