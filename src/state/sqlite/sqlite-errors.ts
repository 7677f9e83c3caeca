/** What SQLite and the file system say, as our errors. */
import { SqliteError } from 'better-sqlite3'
import { CorruptedStoreError, StateDirectoryError, errorMessage } from '../../errors/errors.ts'

/** Proof of damage, and nothing less: a time-out, a full disk or a refused open is never a reason to wipe. */
export function isDamage(error: unknown): boolean {
  if (error instanceof CorruptedStoreError) return true
  return error instanceof SqliteError && (error.code === 'SQLITE_NOTADB' || error.code.startsWith('SQLITE_CORRUPT'))
}

export function isBusy(error: unknown): boolean {
  return error instanceof SqliteError && (error.code.startsWith('SQLITE_BUSY') || error.code === 'SQLITE_LOCKED')
}

/** Names the directory and the remedy; passes on what is none of SQLite's or the file system's. */
export function asStateError(error: unknown, path: string): unknown {
  if (error instanceof SqliteError) {
    if (isDamage(error)) {
      return new CorruptedStoreError(`state file ${path} is damaged: ${error.message}`, {
        code: 'state-damaged',
        remedy: 'Open the task again: the file is moved to its quarantine folder and the store is rebuilt from the changelog.',
        cause: error,
      })
    }
    const remedy =
      error.code === 'SQLITE_FULL'
        ? 'Free space on that disk and start again; nothing is lost.'
        : 'Check that the directory exists, is writable for this user and lies on a local disk.'
    return new StateDirectoryError(`state file ${path} cannot be used: ${error.message} (${error.code})`, {
      code: 'state-unusable',
      remedy,
      cause: error,
    })
  }
  const code = systemCode(error)
  if (code === undefined) return error
  return new StateDirectoryError(`state directory ${path} cannot be used: ${errorMessage(error)}`, {
    code: 'state-directory',
    remedy: 'Make it a directory that this user can write to, or choose another one with the option stateDir.',
    cause: error,
  })
}

function systemCode(error: unknown): string | undefined {
  if (!(error instanceof Error) || !('code' in error) || !('syscall' in error)) return undefined
  return String(error.code)
}
