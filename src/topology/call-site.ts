/** Where in the user's file a step was built, for messages: `order-dedupe.ts:20`. */
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'

const OWN_FOLDER = dirname(fileURLToPath(import.meta.url))
/** `at name (file:///a/b.ts:12:3)`, `at /a/b.ts:12:3` */
const FRAME = /(?:\(|at (?:async )?)(?<file>(?:file:\/\/)?[^()]+?):(?<line>\d+):\d+\)?$/

/** The first frame outside of this folder, file name and line only; undefined when the stack does not say. */
export function callSite(): string | undefined {
  const lines = new Error('call site').stack?.split('\n').slice(1) ?? []
  for (const line of lines) {
    const match = FRAME.exec(line)
    if (match === null) continue
    const { file = '', line: number = '' } = match.groups ?? {}
    if (file.startsWith('node:')) continue
    const path = pathOf(file)
    if (path === undefined || dirname(path) === OWN_FOLDER) continue
    return `${path.split(/[\\/]/).at(-1)}:${number}`
  }
  return undefined
}

function pathOf(file: string): string | undefined {
  if (!file.startsWith('file://')) return file
  try {
    // A loader may add `?query` to make a module fresh.
    return fileURLToPath(file.split('?', 1)[0] ?? file)
  } catch {
    return undefined
  }
}
