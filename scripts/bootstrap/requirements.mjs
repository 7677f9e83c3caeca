/** What has to be on the machine: Node, and one of the three ways to a Kafka broker. Only Node built-ins: it runs before the dependencies exist. */
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { request } from 'node:http'
import { homedir } from 'node:os'
import { delimiter, join } from 'node:path'
import { promisify } from 'node:util'

const execute = promisify(execFile)

export const MINIMUM_NODE = '20.19'
export const MINIMUM_JAVA = 17
const ENGINE_TIMEOUT_MS = 2_000

/** @param {string} version e.g. `20.19.1` @returns {string | null} what is wrong, in one sentence */
export function nodeVersionProblem(version) {
  const [major = 0, minor = 0] = version.split('.').map(Number)
  if (major > 20 || (major === 20 && minor >= 19)) return null
  return `Node ${version} runs this, but millrace needs Node ${MINIMUM_NODE} or newer (20, 22 and 24 are tested): install one of them and run the command again.`
}

/** @param {string} name @param {NodeJS.ProcessEnv} [env] @returns {string | null} full path */
export function findOnPath(name, env = process.env) {
  for (const folder of (env.PATH ?? '').split(delimiter)) {
    if (folder === '') continue
    const path = join(folder, name)
    if (existsSync(path)) return path
  }
  return null
}

/**
 * The Java that JAVA_HOME or PATH names.
 * @param {NodeJS.ProcessEnv} [env] @returns {Promise<{ path: string, major: number } | null>}
 */
export async function findJava(env = process.env) {
  const home = env.JAVA_HOME
  const path =
    home !== undefined && home !== '' && existsSync(join(home, 'bin', 'java')) ? join(home, 'bin', 'java') : findOnPath('java', env)
  if (path === null) return null
  try {
    const { stdout, stderr } = await execute(path, ['-version'], { env, timeout: 20_000 })
    const major = parseJavaMajor(`${stderr}${stdout}`)
    return major === null ? null : { path, major }
  } catch {
    return null
  }
}

/** @param {string} text what `java -version` prints */
export function parseJavaMajor(text) {
  const match = /version "(?:1\.)?(\d+)/.exec(text)
  return match === null ? null : Number(match[1])
}

/** @param {NodeJS.ProcessEnv} [env] */
export function findMaven(env = process.env) {
  return findOnPath('mvn', env)
}

/**
 * Whether a container engine answers a ping in time: the one of DOCKER_HOST, else the usual sockets.
 * @param {NodeJS.ProcessEnv} [env] @param {number} [timeoutMs]
 */
export async function dockerEngineAnswers(env = process.env, timeoutMs = ENGINE_TIMEOUT_MS) {
  const answers = await Promise.all(engineAddresses(env).map((address) => ping(address, timeoutMs)))
  return answers.includes(true)
}

/** @param {NodeJS.ProcessEnv} env @returns {import('node:http').RequestOptions[]} */
function engineAddresses(env) {
  const host = env.DOCKER_HOST
  if (host !== undefined && host !== '') {
    if (host.startsWith('unix://')) return [{ socketPath: host.slice('unix://'.length) }]
    if (host.startsWith('tcp://') || host.startsWith('http://')) {
      const url = new URL(host.replace(/^tcp:/, 'http:'))
      return [{ host: url.hostname, port: url.port === '' ? 2375 : Number(url.port) }]
    }
    return []
  }
  const runtime = env.XDG_RUNTIME_DIR
  const sockets = [
    '/var/run/docker.sock',
    ...(runtime === undefined ? [] : [join(runtime, 'docker.sock'), join(runtime, 'podman', 'podman.sock')]),
    join(homedir(), '.docker', 'run', 'docker.sock'),
    join(homedir(), '.colima', 'default', 'docker.sock'),
  ]
  return sockets.filter((path) => existsSync(path)).map((socketPath) => ({ socketPath }))
}

/** @param {import('node:http').RequestOptions} address @param {number} timeoutMs @returns {Promise<boolean>} */
function ping(address, timeoutMs) {
  return new Promise((resolve) => {
    const call = request({ ...address, path: '/_ping', method: 'GET', agent: false }, (response) => {
      response.resume()
      finish(response.statusCode === 200)
    })
    const timer = setTimeout(() => finish(false), timeoutMs)
    const finish = (/** @type {boolean} */ answer) => {
      clearTimeout(timer)
      call.destroy()
      resolve(answer)
    }
    call.once('error', () => finish(false))
    call.end()
  })
}

/**
 * Whether a broker can be had at all, without starting one.
 * @param {{ env?: NodeJS.ProcessEnv, distributionCached?: boolean }} [options]
 * @returns {Promise<{ way: 'external' | 'docker' | 'jvm' } | { problem: string }>}
 */
export async function findBrokerWay({ env = process.env, distributionCached = false } = {}) {
  if (env.KAFKA_BROKERS !== undefined && env.KAFKA_BROKERS.trim() !== '') return { way: 'external' }
  if (await dockerEngineAnswers(env)) return { way: 'docker' }
  const java = await findJava(env)
  const maven = findMaven(env)
  if (java !== null && java.major >= MINIMUM_JAVA && (maven !== null || distributionCached)) return { way: 'jvm' }
  const jvm =
    java === null
      ? `no Java was found${maven === null ? ' and no Maven' : ''}`
      : java.major < MINIMUM_JAVA
        ? `Java ${java.major} was found at ${java.path}, which is too old`
        : `Java ${java.major} was found, but no Maven`
  return { problem: noBrokerWay(jvm) }
}

/** @param {string} jvm why the JVM way is closed */
export function noBrokerWay(jvm) {
  return [
    'There is no way to a Kafka broker here. One of these three is needed:',
    '  1. a broker of your own:  export KAFKA_BROKERS=host:port[,host:port]',
    '  2. Docker: a running container engine (none answered)',
    `  3. Java ${MINIMUM_JAVA} or newer and Maven, from which a broker is started (${jvm}); on Debian or Ubuntu:  apt-get install -y openjdk-${MINIMUM_JAVA}-jre-headless maven`,
  ].join('\n')
}
