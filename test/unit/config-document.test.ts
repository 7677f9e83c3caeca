import { readFile } from 'node:fs/promises'
import { fileURLToPath } from 'node:url'
import { format, resolveConfig } from 'prettier'
import { expect, test } from 'vitest'
import { configDocument } from '../../src/config/document.ts'
import { OPTION_KEYS, OPTIONS } from '../../src/config/options.ts'

const PAGE = fileURLToPath(new URL('../../docs/config.md', import.meta.url))

test('docs/config.md is what the option table says (node --import tsx scripts/generate-config-docs.ts writes it)', async () => {
  const expected = await format(configDocument(), { ...(await resolveConfig(PAGE)), parser: 'markdown' })
  expect(await readFile(PAGE, 'utf8')).toBe(expected)
})

test('the page names every option, its variable and its flag', () => {
  const page = configDocument()
  for (const key of OPTION_KEYS) {
    expect(page).toContain(`| \`${OPTIONS[key].name}\` |`)
    expect(page).toContain(`\`${OPTIONS[key].env}\``)
    if (OPTIONS[key].flag !== undefined) expect(page).toContain(`\`${OPTIONS[key].flag}\``)
  }
})
