/** Reading npm's lock file: what is to be installed, what is installed, and the hashes that name both. Pure but for reading files. */
import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** @typedef {{ version?: string, integrity?: string, optional?: boolean, devOptional?: boolean, peer?: boolean, link?: boolean, dependencies?: Record<string, string> }} Entry */

/** @param {string[]} parts */
export function sha256(...parts) {
  const hash = createHash('sha256')
  for (const part of parts) hash.update(`${part.length}:`).update(part)
  return hash.digest('hex')
}

/** The Node that native modules are built for. A module of another one does not load. */
export function platformName() {
  return `abi${process.versions.modules}-${process.platform}-${process.arch}-${libc()}`
}

function libc() {
  if (process.platform !== 'linux') return 'system'
  return existsSync('/etc/alpine-release') ? 'musl' : 'glibc'
}

/** What node_modules has to hold: the lock file and the Node that runs it. @param {string} root */
export function stampFor(root) {
  return sha256(readFileSync(join(root, 'package-lock.json'), 'utf8'), platformName())
}

/**
 * Names a built native module: the package itself and what it is compiled with. Not the whole lock file, so that
 * a new version of a linter does not cost a four-minute build.
 * @param {Record<string, Entry>} packages `packages` of package-lock.json
 * @param {string} name
 */
export function nativeKey(packages, name) {
  const entry = packages[`node_modules/${name}`]
  if (entry === undefined) throw new Error(`package-lock.json does not name ${name}`)
  const compiledWith = ['nan', 'node-addon-api', 'bindings']
    .filter((dependency) => entry.dependencies?.[dependency] !== undefined)
    .map((dependency) => `${dependency}@${packages[`node_modules/${dependency}`]?.version ?? ''}`)
  return sha256(name, entry.version ?? '', entry.integrity ?? '', ...compiledWith, platformName()).slice(0, 32)
}

/**
 * Whether node_modules already holds what the lock file asks for, by npm's own record of what it installed.
 * Then nothing is installed again: a person who ran `npm install` keeps the tree as it is.
 * @param {Record<string, Entry>} wanted @param {Record<string, Entry>} installed
 */
export function isInstalled(wanted, installed) {
  for (const [path, entry] of Object.entries(wanted)) {
    if (path === '') continue
    const found = installed[path]
    if (found === undefined) {
      if (entry.optional === true || entry.devOptional === true || entry.peer === true) continue
      return false
    }
    if (found.version !== entry.version || found.integrity !== entry.integrity) return false
  }
  return Object.keys(installed).every((path) => wanted[path] !== undefined)
}

/** @param {string} path @returns {Record<string, Entry> | null} */
export function readPackages(path) {
  try {
    return JSON.parse(readFileSync(path, 'utf8')).packages ?? null
  } catch {
    return null
  }
}
