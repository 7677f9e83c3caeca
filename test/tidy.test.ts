import { readdirSync, readFileSync } from 'node:fs'
import { join, relative, sep } from 'node:path'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { checkTree, LAYERS, partOf, type Finding } from '../scripts/import-rules.ts'

const root = fileURLToPath(new URL('..', import.meta.url))
const fixture = fileURLToPath(new URL('fixtures/tidy', import.meta.url))

function readTree(base: string, folders: readonly string[], ending: RegExp): Map<string, string> {
  const files = new Map<string, string>()
  for (const folder of folders) {
    for (const entry of readdirSync(join(base, folder), { recursive: true, withFileTypes: true })) {
      if (!entry.isFile() || !ending.test(entry.name)) continue
      const path = join(entry.parentPath, entry.name)
      files.set(
        relative(base, path)
          .split(sep)
          .join('/')
          .replace(/\.txt$/, ''),
        readFileSync(path, 'utf8'),
      )
    }
  }
  return files
}

const own = readTree(root, ['src', 'topologies', 'demo'], /\.ts$/)
const describeFinding = (finding: Finding): string => `${finding.file}:${finding.line} ${finding.rule}: ${finding.message}`

describe('the source tree', () => {
  const findings = checkTree(own)

  it('imports downwards only, as the table of the design says', () => {
    expect(findings.filter((finding) => finding.rule === 'layers' || finding.rule === 'port-types').map(describeFinding)).toEqual([])
  })

  it('knows the Kafka client in src/broker/kafka only and SQLite in src/state/sqlite only', () => {
    expect(findings.filter((finding) => finding.rule === 'client' || finding.rule === 'sqlite').map(describeFinding)).toEqual([])
  })

  it('reaches the clock, timers, randomness, the environment and files through ports only', () => {
    expect(findings.filter((finding) => finding.rule === 'world').map(describeFinding)).toEqual([])
  })

  it('calls incrementalAssign and incrementalUnassign in one place each', () => {
    expect(findings.filter((finding) => finding.rule === 'rebalance-calls').map(describeFinding)).toEqual([])
  })

  it('has no file that is too long to have one owner', () => {
    expect(findings.filter((finding) => finding.rule === 'file-size').map(describeFinding)).toEqual([])
  })

  it('has a row in the table for each of its parts', () => {
    const parts = new Set([...own.keys()].filter((file) => file.startsWith('src/')).map(partOf))
    expect([...parts].filter((part) => LAYERS[part] === undefined)).toEqual([])
  })
})

describe('the deliberately bad tree', () => {
  const findings = checkTree(readTree(fixture, ['src', 'topologies'], /\.ts\.txt$/)).map(
    (finding) => `${finding.file}:${finding.line} ${finding.rule}`,
  )

  it.each([
    ['an upward import, even of a type', 'src/common/upwards.ts:1 layers'],
    ['an upward re-export', 'src/errors/re-export.ts:1 layers'],
    ['an upward dynamic import', 'src/topology/dynamic.ts:1 layers'],
    ['a task that takes code from the broker port', 'src/task/knows-broker.ts:2 port-types'],
    ['a task that knows a broker adapter', 'src/task/knows-broker.ts:3 layers'],
    ['a runtime that knows SQLite stores', 'src/runtime/knows-adapters.ts:1 layers'],
    ['a runtime that knows the Kafka client', 'src/runtime/knows-adapters.ts:2 client'],
    ['a runtime that knows the SQLite driver', 'src/runtime/knows-adapters.ts:3 sqlite'],
    ['files', 'src/state/reaches-the-world.ts:1 world'],
    ['drawn ids', 'src/state/reaches-the-world.ts:2 world'],
    ['the clock', 'src/state/reaches-the-world.ts:6 world'],
    ['a timer', 'src/state/reaches-the-world.ts:7 world'],
    ['randomness', 'src/state/reaches-the-world.ts:8 world'],
    ['the environment', 'src/state/reaches-the-world.ts:9 world'],
    ['a date of now', 'src/state/reaches-the-world.ts:12 world'],
    ['a second call of incrementalAssign, and none of incrementalUnassign', 'src/broker/kafka/second-call.ts:2 rebalance-calls'],
    ['a call that is missing', 'src/broker/kafka:1 rebalance-calls'],
    ['a file above the limit', 'src/state/too-long.ts:601 file-size'],
    ['a topology that knows a client', 'topologies/knows-client.ts:1 client'],
  ])('is caught for %s', (_name, expected) => {
    expect(findings).toContain(expected)
  })

  it('is caught for nothing else: types, ports, hashing, given dates and the command line are free', () => {
    expect(findings.filter((finding) => /reaches-the-world.ts:(?:[345]|1[013]) |knows-broker.ts:1 |cli\/allowed/.test(finding))).toEqual([])
    expect(findings).toHaveLength(19)
  })
})
