/**
 * The jars of a Kafka version: fetched by Maven once per machine and version into the cache folder.
 * Invariant: `<cache>/kafka/<version>/libs` appears whole or not at all.
 */
import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { cacheFolder } from '../bootstrap/cache-folder.mjs'
import { findJava, findMaven, MINIMUM_JAVA } from '../bootstrap/requirements.mjs'
import { BrokerUnavailableError } from './types.ts'

export interface Distribution {
  readonly java: string
  readonly classpath: string
  readonly version: string
}

/** @throws BrokerUnavailableError when Java or Maven is missing, or Maven fails. */
export async function provideDistribution(version: string, onProgress: (line: string) => void = () => undefined): Promise<Distribution> {
  if (!/^\d+\.\d+\.\d+$/.test(version)) throw new BrokerUnavailableError(`'${version}' is not a Kafka version such as 4.3.1`)
  const java = await findJava()
  if (java === null) throw new BrokerUnavailableError(`no Java was found: install Java ${MINIMUM_JAVA} or newer, or set JAVA_HOME`)
  if (java.major < MINIMUM_JAVA)
    throw new BrokerUnavailableError(
      `Java ${java.major} at ${java.path} is too old for Kafka ${version}: install Java ${MINIMUM_JAVA} or newer, or set JAVA_HOME`,
    )
  const folder = join(cacheFolder(), 'kafka', version)
  const libs = join(folder, 'libs')
  if (!existsSync(libs)) await fetchJars(version, folder, onProgress)
  return { java: java.path, classpath: join(libs, '*'), version }
}

async function fetchJars(version: string, folder: string, onProgress: (line: string) => void): Promise<void> {
  const maven = findMaven()
  if (maven === null)
    throw new BrokerUnavailableError(
      `Kafka ${version} is not in the cache and Maven, which fetches it, was not found: install Maven (Debian, Ubuntu: apt-get install -y maven)`,
    )
  onProgress(`fetching Kafka ${version} by Maven (about 60 MB, once per machine)`)
  const aside = `${folder}.${process.pid}`
  rmSync(aside, { recursive: true, force: true })
  mkdirSync(aside, { recursive: true })
  try {
    writeFileSync(join(aside, 'pom.xml'), pom(version))
    const output = await runMaven(maven, ['-q', '-B', 'dependency:copy-dependencies', `-DoutputDirectory=${join(aside, 'libs')}`], aside)
    if (output !== null) throw new BrokerUnavailableError(`Maven could not fetch Kafka ${version}:\n${output}`)
    if (!readdirSync(join(aside, 'libs')).some((name) => name === `kafka-tools-${version}.jar`))
      throw new BrokerUnavailableError(`Maven fetched Kafka ${version} without kafka-tools-${version}.jar`)
    try {
      renameSync(aside, folder)
    } catch {
      // Another process was quicker.
      if (!existsSync(join(folder, 'libs')))
        throw new BrokerUnavailableError(`${folder} is there without its jars: remove it and try again`)
    }
  } finally {
    rmSync(aside, { recursive: true, force: true })
  }
}

function pom(version: string): string {
  const dependency = (group: string, artifact: string, of: string): string =>
    `    <dependency><groupId>${group}</groupId><artifactId>${artifact}</artifactId><version>${of}</version></dependency>\n`
  return `<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>millrace</groupId><artifactId>kafka-distribution</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
${dependency('org.apache.kafka', 'kafka_2.13', version)}${dependency('org.apache.kafka', 'kafka-tools', version)}${dependency('org.slf4j', 'slf4j-simple', '1.7.36')}  </dependencies>
</project>
`
}

/** The tail of the output when it failed, else null. */
function runMaven(maven: string, args: readonly string[], cwd: string): Promise<string | null> {
  return new Promise((resolve) => {
    const child = spawn(maven, args, { cwd, stdio: ['ignore', 'pipe', 'pipe'] })
    let tail = ''
    const take = (chunk: Buffer): void => {
      tail = (tail + chunk.toString('utf8')).slice(-4_000)
    }
    child.stdout.on('data', take)
    child.stderr.on('data', take)
    child.once('error', (error) => resolve(error.message))
    child.once('close', (code) => resolve(code === 0 ? null : tail.trim()))
  })
}
