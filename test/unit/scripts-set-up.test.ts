import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { cacheFolder } from '../../scripts/bootstrap/cache-folder.mjs'
import { acquireFileLock } from '../../scripts/bootstrap/file-lock.mjs'
import { isInstalled, nativeKey, type Entry } from '../../scripts/bootstrap/lockfile.mjs'
import { discardNative, restoreNative, saveNative } from '../../scripts/bootstrap/native-cache.mjs'
import { dockerEngineAnswers, findBrokerWay, nodeVersionProblem, parseJavaMajor } from '../../scripts/bootstrap/requirements.mjs'

const lockModule = new URL('../../scripts/bootstrap/file-lock.mjs', import.meta.url).href
let folder: string
beforeEach(() => (folder = mkdtempSync(join(tmpdir(), 'millrace-set-up-'))))
afterEach(() => rmSync(folder, { recursive: true, force: true }))

describe('requirements', () => {
  it.each(['20.19.0', '20.20.2', '22.0.0', '24.1.0', '100.0.0'])('Node %s is accepted', (version) => {
    expect(nodeVersionProblem(version)).toBeNull()
  })

  it.each(['20.18.3', '18.20.0', '8.0.0'])('Node %s is refused, with its number and the one that is needed', (version) => {
    expect(nodeVersionProblem(version)).toMatch(new RegExp(`Node ${version.replaceAll('.', '\\.')} .* 20\\.19 or newer`))
  })

  it.each([
    ['openjdk version "17.0.15" 2025-04-15', 17],
    ['java version "1.8.0_392"', 8],
    ['openjdk version "21" 2023-09-19', 21],
    ['command not found', null],
  ])('%s is Java %s', (text, major) => {
    expect(parseJavaMajor(text)).toBe(major)
  })

  it('no way to a broker gives one message with the three ways', async () => {
    const way = await findBrokerWay({ env: { PATH: folder, DOCKER_HOST: `unix://${folder}/none.sock` } })
    expect(way).toHaveProperty('problem')
    const { problem } = way as { problem: string }
    expect(problem).toContain('KAFKA_BROKERS')
    expect(problem).toContain('Docker')
    expect(problem).toContain('Java 17')
    expect(problem).toContain('Maven')
  })

  it('KAFKA_BROKERS needs nothing else', async () => {
    expect(await findBrokerWay({ env: { PATH: folder, KAFKA_BROKERS: 'host:9092' } })).toEqual({ way: 'external' })
  })

  it('a Java that is too old is named with its number', async () => {
    mkdirSync(join(folder, 'bin'))
    writeFileSync(join(folder, 'bin', 'java'), '#!/bin/sh\necho \'openjdk version "11.0.2" 2019-01-15\' >&2\n', { mode: 0o755 })
    const way = await findBrokerWay({
      env: { PATH: `${folder}:/usr/bin:/bin`, JAVA_HOME: folder, DOCKER_HOST: `unix://${folder}/none.sock` },
    })
    expect((way as { problem: string }).problem).toContain('Java 11')
  })

  it('a container engine that answers its ping is found, and one that hangs is given up', async () => {
    const answering = createServer((_request, response) => response.end('OK'))
    const hanging = createServer(() => undefined)
    const [first, second] = [join(folder, 'a.sock'), join(folder, 'b.sock')]
    await Promise.all([
      new Promise<void>((resolve) => answering.listen(first, resolve)),
      new Promise<void>((resolve) => hanging.listen(second, resolve)),
    ])
    try {
      expect(await dockerEngineAnswers({ DOCKER_HOST: `unix://${first}` })).toBe(true)
      expect(await dockerEngineAnswers({ DOCKER_HOST: `unix://${second}` }, 50)).toBe(false)
      expect(await dockerEngineAnswers({ DOCKER_HOST: `unix://${folder}/none.sock` })).toBe(false)
    } finally {
      for (const server of [answering, hanging]) {
        server.closeAllConnections()
        server.close()
      }
    }
  })

  it('the cache folder can be moved', () => {
    expect(cacheFolder({ MILLRACE_CACHE_DIR: folder })).toBe(folder)
    expect(cacheFolder({ XDG_CACHE_HOME: folder })).toBe(join(folder, 'millrace'))
  })
})

describe('what is installed', () => {
  const wanted: Record<string, Entry> = {
    '': { version: '0.1.0' },
    'node_modules/a': { version: '1.0.0', integrity: 'x' },
    'node_modules/win': { version: '1.0.0', integrity: 'w', optional: true },
  }

  it('is kept when it is what the lock file asks for, without the optional packages of other systems', () => {
    expect(isInstalled(wanted, { 'node_modules/a': { version: '1.0.0', integrity: 'x' } })).toBe(true)
  })

  it.each([
    ['a missing package', {}],
    ['another version', { 'node_modules/a': { version: '1.0.1', integrity: 'x' } }],
    ['another content of the same version', { 'node_modules/a': { version: '1.0.0', integrity: 'y' } }],
    [
      'a package that the lock file does not know',
      { 'node_modules/a': { version: '1.0.0', integrity: 'x' }, 'node_modules/b': { version: '1.0.0' } },
    ],
  ])('is installed anew for %s', (_name, installed) => {
    expect(isInstalled(wanted, installed)).toBe(false)
  })

  it('the key of a native module changes with its version and with what it is compiled with, and with nothing else', () => {
    const packages = (own: string, nan: string, other: string): Record<string, Entry> => ({
      'node_modules/native': { version: own, integrity: own, dependencies: { nan: '^2' } },
      'node_modules/nan': { version: nan },
      'node_modules/other': { version: other },
    })
    const key = nativeKey(packages('1', '1', '1'), 'native')
    expect(nativeKey(packages('1', '1', '2'), 'native')).toBe(key)
    expect(nativeKey(packages('2', '1', '1'), 'native')).not.toBe(key)
    expect(nativeKey(packages('1', '2', '1'), 'native')).not.toBe(key)
  })
})

describe('the cache of native modules', () => {
  it('keeps modules and their libraries, not what they were linked from, and gives them back', () => {
    const built = join(folder, 'built')
    for (const [path, text] of [
      ['build/Release/module.node', 'module'],
      ['build/Release/obj.target/part.o', 'object'],
      ['build/Release/test_extension.node', 'test'],
      ['build/deps/library.so.1', 'library'],
      ['build/deps/library.a', 'archive'],
    ] as const) {
      mkdirSync(join(built, path, '..'), { recursive: true })
      writeFileSync(join(built, path), text)
    }
    const entry = join(folder, 'cache', 'key')
    mkdirSync(join(folder, 'cache'))
    saveNative(entry, built)
    const clone = join(folder, 'clone')
    mkdirSync(join(clone, 'build', 'Release'), { recursive: true })
    writeFileSync(join(clone, 'build', 'Release', 'half.node'), 'a build that was broken off')
    expect(restoreNative(entry, clone)).toBe(true)
    expect(readFileSync(join(clone, 'build/Release/module.node'), 'utf8')).toBe('module')
    expect(readFileSync(join(clone, 'build/deps/library.so.1'), 'utf8')).toBe('library')
    for (const absent of [
      'build/Release/half.node',
      'build/Release/obj.target',
      'build/Release/test_extension.node',
      'build/deps/library.a',
    ]) {
      expect(existsSync(join(clone, absent)), absent).toBe(false)
    }
    discardNative(entry)
    expect(restoreNative(entry, clone)).toBe(false)
  })
})

describe('the lock of a set-up', () => {
  it('lets one process in at a time', async () => {
    const counter = join(folder, 'counter')
    writeFileSync(counter, '0')
    // Each child reads, waits for others to interfere, and writes: without the lock increments get lost.
    const script = `
      import { acquireFileLock } from ${JSON.stringify(lockModule)}
      import { readFileSync, writeFileSync } from 'node:fs'
      const counter = ${JSON.stringify(counter)}
      for (let i = 0; i < 5; i++) {
        const release = await acquireFileLock(${JSON.stringify(join(folder, 'lock'))})
        const seen = Number(readFileSync(counter, 'utf8'))
        await new Promise((resolve) => setImmediate(resolve))
        writeFileSync(counter, String(seen + 1))
        release()
      }`
    const codes = await Promise.all(Array.from({ length: 4 }, () => runModule(script)))
    expect(codes).toEqual([0, 0, 0, 0])
    expect(readFileSync(counter, 'utf8')).toBe('20')
    expect(existsSync(join(folder, 'lock'))).toBe(false)
  })

  it('is taken from a holder that died, and waits for one that lives', async () => {
    const path = join(folder, 'lock')
    const dead = await deadProcessId()
    writeFileSync(path, `${dead} x`)
    const release = await acquireFileLock(path)
    let waited = 0
    const second = acquireFileLock(path, {
      onWait: (pid) => {
        waited = pid
        release()
      },
    })
    ;(await second)()
    expect(waited).toBe(process.pid)
    expect(existsSync(path)).toBe(false)
  })
})

function runModule(script: string): Promise<number | null> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, ['--input-type=module', '-e', script], {
      stdio: ['ignore', 'inherit', 'inherit'],
      cwd: fileURLToPath(new URL('../..', import.meta.url)),
    })
    child.once('error', reject)
    child.once('close', resolve)
  })
}

function deadProcessId(): Promise<number> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, ['-e', ''], { stdio: 'ignore' })
    const { pid } = child
    child.once('error', reject)
    child.once('close', () => (pid === undefined ? reject(new Error('no process id')) : resolve(pid)))
  })
}
