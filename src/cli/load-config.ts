/** Finds and reads `millrace.config.ts`. */
import { existsSync } from 'node:fs'
import { basename, resolve as resolvePath } from 'node:path'
import type { ConfigFile } from '../config/define.ts'
import { ConfigError } from '../errors/errors.ts'
import { loadModule } from './load-module.ts'

const NAMES = ['millrace.config.ts', 'millrace.config.mts', 'millrace.config.js', 'millrace.config.mjs']

interface LoadedConfigFile {
  readonly file: ConfigFile | undefined
  /** As messages call it. */
  readonly fileName: string | undefined
}

/** `path` from `--config`, which must exist; otherwise the first of the usual names in the working directory, if any. Throws ConfigError. */
export async function loadConfigFile(path: string | undefined): Promise<LoadedConfigFile> {
  const found = path ?? NAMES.find((name) => existsSync(resolvePath(name)))
  if (found === undefined) return { file: undefined, fileName: undefined }
  const exports = await loadModule(found, 'configuration file')
  let value = exports['default']
  // A bare function is accepted too: it is what defineConfig would have called.
  if (typeof value === 'function') value = (value as (env: NodeJS.ProcessEnv) => unknown)(process.env)
  if (typeof value !== 'object' || value === null || Array.isArray(value) || value instanceof Promise) {
    throw new ConfigError(
      `configuration file ${found}: ${value === undefined ? 'it has no default export' : 'its default export is no object with options'}`,
      {
        code: 'CONFIG_FILE',
        remedy: "write: export default defineConfig({ brokers: 'localhost:9092' })",
      },
    )
  }
  return { file: value, fileName: basename(found) }
}
