/**
 * Imports a user's TypeScript (or JavaScript) module, on Node 20 and newer alike, and turns everything that can go wrong into one clear ConfigError.
 *
 * Owns: the registration of tsx, and the reading of its errors.
 * A module that imports `millrace` gets the copy its own folder resolves to: the installed one, or, inside this repository, the package itself (dist).
 */
import { existsSync, statSync } from 'node:fs'
import { register as registerHooks } from 'node:module'
import { dirname, join, relative, resolve as resolvePath } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { asError, ConfigError, MillraceError } from '../errors/errors.ts'

/** Run from source (`node --import tsx src/cli/main.ts`): a loader for TypeScript is in place already. */
const RUNS_FROM_SOURCE = import.meta.url.endsWith('.ts')
const PACKAGE_FOLDER = fileURLToPath(new URL('../../', import.meta.url))

let registered = false

type ModuleExports = Readonly<Record<string, unknown>>

/** `what` is how messages call it: "topology", "configuration file". Throws ConfigError; an error of millrace thrown inside the module comes out as it is. */
export async function loadModule(path: string, what: string): Promise<ModuleExports> {
  const file = resolvePath(path)
  if (!existsSync(file)) {
    throw new ConfigError(`${what} ${path}: there is no such file`, {
      code: 'FILE_MISSING',
      remedy: `looked for ${file}; paths are relative to the working directory`,
    })
  }
  if (!statSync(file).isFile())
    throw new ConfigError(`${what} ${path}: this is a folder, not a file`, { code: 'FILE_MISSING', remedy: 'name the .ts file' })
  await registerTypeScript(file)
  try {
    return (await import(pathToFileURL(file).href)) as ModuleExports
  } catch (error) {
    throw importError(error, path, file, what)
  }
}

async function registerTypeScript(file: string): Promise<void> {
  if (RUNS_FROM_SOURCE || registered) return
  registered = true
  const [esm, commonjs] = await Promise.all([import('tsx/esm/api'), import('tsx/cjs/api')])
  esm.register({ tsconfig: tsconfigFor(file) })
  // For .cts files, and for what they require.
  commonjs.register()
  registerHooks(new URL('./module-hooks.js', import.meta.url))
}

/**
 * The tsconfig.json nearest to the file, for its path aliases. Not our own: it maps `millrace` to the source, and the topology would be built by a second copy
 * of the code that runs it.
 */
function tsconfigFor(file: string): string | false {
  for (let folder = dirname(file); ; folder = dirname(folder)) {
    const candidate = join(folder, 'tsconfig.json')
    if (existsSync(candidate)) return resolvePath(folder) === resolvePath(PACKAGE_FOLDER) ? false : candidate
    if (dirname(folder) === folder) return false
  }
}

function importError(thrown: unknown, path: string, file: string, what: string): MillraceError {
  // The builder's refusals are the clearest word already; only the place is added.
  if (isMillraceError(thrown)) return withPlace(thrown, path, file, what)
  const error = asError(thrown)
  const syntax = syntaxError(error)
  if (syntax !== undefined) {
    return new ConfigError(`${what} ${syntax.place ?? path}: syntax error: ${syntax.message}`, {
      code: 'SYNTAX_ERROR',
      remedy: 'mend the line and start again',
      cause: error,
    })
  }
  if (isCode(error, 'ERR_MODULE_NOT_FOUND') || isCode(error, 'MODULE_NOT_FOUND')) {
    const missing = /Cannot find (?:module|package) '([^']+)'(?:.* imported from (.+))?/.exec(error.message)
    const module = missing?.[1] ?? 'a module'
    const importer = missing?.[2] === undefined ? path : shorten(missing[2])
    const own = module === 'millrace' || module.endsWith('node_modules/millrace/package.json')
    const remedy = own
      ? 'install millrace in the project of the topology (npm install millrace)'
      : /^[./]|^file:/.test(module)
        ? 'check the path of the import'
        : `install it in the project of the topology (npm install ${module.split('/')[0] ?? module})`
    return new ConfigError(`${what} ${path}: ${importer} imports ${shorten(module)}, which is not there`, {
      code: 'IMPORT_MISSING',
      remedy,
      cause: error,
    })
  }
  const place = placeIn(error, file)
  return new ConfigError(`${what} ${place ?? path}: the module threw while it was imported: ${error.name}: ${error.message}`, {
    code: 'IMPORT_FAILED',
    remedy: 'a module like this must do nothing on import but declare; move connections and files into functions',
    cause: error,
  })
}

/** Another copy of the package may have thrown it, so not `instanceof` alone. */
function isMillraceError(error: unknown): error is MillraceError {
  return error instanceof MillraceError || (error instanceof Error && 'exitCode' in error && 'reaction' in error && 'remedy' in error)
}

function withPlace(error: MillraceError, path: string, file: string, what: string): MillraceError {
  const place = placeIn(error, file)
  const options = { code: error.code, cause: error, ...(error.remedy === undefined ? {} : { remedy: error.remedy }) }
  const wrapped = new ConfigError(`${what} ${place ?? path}: ${error.message}`, options)
  wrapped.name = error.name
  return wrapped
}

function isCode(error: Error, code: string): boolean {
  return 'code' in error && error.code === code
}

/** esbuild, through tsx, says `Transform failed with 1 error:\n<file>:<line>:<column>: ERROR: <message>`; V8 puts `<file>:<line>` at the head of the stack. */
function syntaxError(error: Error): { readonly message: string; readonly place: string | undefined } | undefined {
  const transform = /^(.+?):(\d+):(\d+): ERROR: (.+)$/m.exec(error.message)
  if (transform !== null)
    return { message: transform[4] ?? '', place: `${shorten(transform[1] ?? '')}:${transform[2]}:${Number(transform[3]) + 1}` }
  if (!(error instanceof SyntaxError)) return undefined
  const head = /^(file:\/\/\S+?|\/\S+?|[A-Z]:\\\S+?):(\d+)$/m.exec(error.stack ?? '')
  return { message: error.message, place: head === null ? undefined : `${shorten(head[1] ?? '')}:${head[2]}` }
}

/** `file:line:column` of the innermost frame inside the file. */
function placeIn(error: Error, file: string): string | undefined {
  for (const line of error.stack?.split('\n') ?? []) {
    const frame = /\(?((?:file:\/\/)?[^\s()]+):(\d+):(\d+)\)?$/.exec(line.trim())
    if (frame === null) continue
    const name = toPath(frame[1] ?? '')
    if (name === file) return `${shorten(name)}:${frame[2]}:${frame[3]}`
  }
  return undefined
}

function toPath(name: string): string {
  const plain = name.replace(/\?.*$/, '')
  if (!plain.startsWith('file:')) return plain
  return URL.canParse(plain) ? fileURLToPath(plain) : plain
}

/** Relative to the working directory where that is shorter. */
function shorten(name: string): string {
  const path = toPath(name)
  if (!path.startsWith('/') && !/^[A-Z]:\\/.test(path)) return path
  const short = relative(process.cwd(), path)
  return short.startsWith('..') || short === '' ? path : short
}
