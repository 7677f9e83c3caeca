/**
 * Built native modules by key, so that a second clone on this machine does not compile again.
 *
 * Owns: `<cache>/native/<key>/`. Invariants:
 * 1. An entry appears whole (copied aside, then renamed) or not at all.
 * 2. Nothing restored is believed before it has loaded in a process of its own; what does not load is discarded.
 */
import { cpSync, existsSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'

/** Copied out of `build/`: the modules themselves and the libraries beside them, not the objects they were linked from. */
const KEPT = [
  { folder: 'Release', pattern: /\.(node|so(\.\d+)*|dylib|dll)$/ },
  { folder: 'deps', pattern: /\.(so\.\d+|\d+\.dylib)$/ },
]

/**
 * @param {string} entry folder of the cache entry @param {string} packageFolder
 * @returns {boolean} whether there was one
 */
export function restoreNative(entry, packageFolder) {
  if (!existsSync(join(entry, 'build'))) return false
  rmSync(join(packageFolder, 'build'), { recursive: true, force: true })
  cpSync(join(entry, 'build'), join(packageFolder, 'build'), { recursive: true })
  return true
}

/** @param {string} entry @param {string} packageFolder */
export function saveNative(entry, packageFolder) {
  if (existsSync(entry)) return
  const aside = `${entry}.${process.pid}`
  rmSync(aside, { recursive: true, force: true })
  for (const { folder, pattern } of KEPT) {
    const from = join(packageFolder, 'build', folder)
    if (!existsSync(from)) continue
    for (const file of readdirSync(from, { withFileTypes: true })) {
      if (file.isDirectory() || !pattern.test(file.name) || file.name.startsWith('test_extension')) continue
      const to = join(aside, 'build', folder, file.name)
      mkdirSync(dirname(to), { recursive: true })
      cpSync(join(from, file.name), to, { dereference: true })
    }
  }
  try {
    renameSync(aside, entry)
  } catch {
    // Another clone was quicker.
    rmSync(aside, { recursive: true, force: true })
  }
}

/** @param {string} entry */
export function discardNative(entry) {
  rmSync(entry, { recursive: true, force: true })
}
