/** Compiles the worker once per run: a process that starts by the hundred should not translate TypeScript each time. Types are the type check's business. */
import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import ts from 'typescript'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))

/** Returns the path of the compiled worker below `folder`. */
export function compileWorker(folder: string): string {
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}\n')
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
  const program = ts.createProgram([join(ROOT, 'test/chaos/worker.ts')], {
    target: ts.ScriptTarget.ES2023,
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
    allowImportingTsExtensions: true,
    rewriteRelativeImportExtensions: true,
    verbatimModuleSyntax: true,
    noCheck: true,
    skipLibCheck: true,
    types: [],
    rootDir: ROOT,
    outDir: folder,
  })
  const { emitSkipped, diagnostics } = program.emit()
  if (emitSkipped || diagnostics.length > 0) throw new Error(`the worker could not be compiled: ${ts.formatDiagnostics(diagnostics, HOST)}`)
  return join(folder, 'test/chaos/worker.js')
}

const HOST: ts.FormatDiagnosticsHost = { getCanonicalFileName: (name) => name, getCurrentDirectory: () => ROOT, getNewLine: () => '\n' }
