import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createMemoryBackend, MemoryDisk } from '../../src/state/memory/memory-backend.ts'
import { createSqliteBackend } from '../../src/state/sqlite/sqlite-backend.ts'
import { stateContract } from './state-suite.ts'

stateContract('memory', () => {
  const disk = new MemoryDisk()
  return { backend: (settings) => createMemoryBackend({ ...settings, disk }), remove: () => undefined }
})

stateContract('SQLite', () => {
  const directory = mkdtempSync(join(tmpdir(), 'millrace-state-'))
  return {
    backend: (settings) => createSqliteBackend({ ...settings, directory: join(directory, 'app') }),
    remove: () => rmSync(directory, { recursive: true, force: true }),
  }
})
