import { readFile } from 'node:fs/promises'
import { format, resolveConfig } from 'prettier'
import { expect, test } from 'vitest'
import { errorDocument } from '../../src/errors/document.ts'

test('docs/errors.md is what the table of reactions prints', async () => {
  const page = new URL('../../docs/errors.md', import.meta.url)
  const printed = await format(errorDocument(), { ...(await resolveConfig(page)), parser: 'markdown' })
  expect(await readFile(page, 'utf8')).toBe(printed)
})
