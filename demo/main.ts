/**
 * `npm run demo`: order events with resends through a plain consumer and through millrace, both killed with -9; an independent reader counts.
 *
 * Owns: the order of things, the temporary folder, the exit code (1 unless nothing was duplicated or lost and every kill happened; 130 after Ctrl-C).
 * Does not own: the processes (`baseline-side.ts`, `millrace-side.ts`), the counting (`verifier.ts`).
 */
import { fork } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import pc from 'picocolors'
import { provideBroker, type ProvidedBroker } from '../scripts/broker-provider/provider.ts'
import { endAll } from './children.ts'
import { Display } from './display.ts'
import { parseOptions } from './options.ts'
import { failures, jsonOf, tableOf } from './report.ts'
import { Show, TOPICS } from './show.ts'

const options = parseOptions(process.argv.slice(2))
const display = new Display(process.stdout)
const interrupted = new AbortController()
const folder = mkdtempSync(join(tmpdir(), 'millrace-demo-'))
