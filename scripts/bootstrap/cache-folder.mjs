/** The folder that outlives a clone: built native modules and the broker's jars. `MILLRACE_CACHE_DIR` moves it. */
import { homedir } from 'node:os'
import { join, resolve } from 'node:path'

/** @param {NodeJS.ProcessEnv} [env] */
export function cacheFolder(env = process.env) {
  const named = env.MILLRACE_CACHE_DIR
  if (named !== undefined && named !== '') return resolve(named)
  const base = env.XDG_CACHE_HOME
  return join(base !== undefined && base !== '' ? base : join(homedir(), '.cache'), 'millrace')
}
