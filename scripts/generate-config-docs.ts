/** Writes docs/config.md from the option table. `--check` compares instead, and fails when the page is stale. */
import { readFile, writeFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { format, resolveConfig } from 'prettier'
import { configDocument } from '../src/config/document.ts'

const page = fileURLToPath(new URL('../docs/config.md', import.meta.url))

const text = await format(configDocument(), { ...(await resolveConfig(page)), parser: 'markdown' })
if (process.argv.includes('--check')) {
  const present = await readFile(page, 'utf8').catch(() => '')
  if (present !== text) {
    console.error('docs/config.md is stale: run node --import tsx scripts/generate-config-docs.ts')
    process.exitCode = 1
  }
} else {
  await writeFile(page, text)
  console.log('docs/config.md written')
}
