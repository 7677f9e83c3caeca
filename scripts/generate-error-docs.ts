/** Writes docs/errors.md from the table of reactions. */
import { writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { format, resolveConfig } from 'prettier'
import { errorDocument } from '../src/errors/document.ts'

const page = fileURLToPath(new URL('../docs/errors.md', import.meta.url))
await writeFile(page, await format(errorDocument(), { ...(await resolveConfig(page)), parser: 'markdown' }))
console.log('docs/errors.md written')
