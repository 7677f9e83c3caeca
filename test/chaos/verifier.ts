/**
 * The judge, a process of its own: reads everything read committed by a bare client past the proxies, folds the input by the model, and compares. It imports
 * nothing of src but the decoding of the changelog.
 *
 * One argument, JSON. Says one line per step on stderr; the verdict is one JSON line on stdout. Exit code 1: there are violations.
 */
import { javaTool, TRANSACTIONS_COMMAND, type JavaTools } from '../../scripts/broker-provider/provider.ts'
import { BareClient, type RawRecord } from './bare-client.ts'
import { TopicComparison, type Violation } from './comparison.ts'
import { ReferenceModel, type OutputKind, type ReadRecord } from './model.ts'
import type { Scenario } from './scenario.ts'
import { ChangelogReplay, checkStateFiles, type FileCheck } from './state-files.ts'

export interface VerifierArguments {
  readonly brokers: string
  readonly scenario: Scenario
  readonly stateDirs: readonly string[]
  readonly java: JavaTools | undefined
  /** Records that the brokers acknowledged to the loader outside of transactions. */
  readonly acknowledged: number
}

export interface Verdict {
  readonly violations: readonly Violation[]
  readonly counts: Readonly<Record<string, number>>
  readonly files: readonly FileCheck[]
}

const TRANSACTION_DEADLINE_MS = 45_000
const OPEN_STATES = /\b(Ongoing|PrepareCommit|PrepareAbort)\b/

const input = JSON.parse(process.argv[2] ?? '{}') as VerifierArguments
const { scenario } = input
const { partitions } = scenario
const client = new BareClient(input.brokers)
const violations: Violation[] = []
const counts: Record<string, number> = {}

await checkTransactions()
const committed = await client.committed(scenario.application, scenario.input, partitions)
const model = new ReferenceModel(scenario)
let inputRecords = 0
await client.readCommitted(scenario.input, partitions, (record) => {
  inputRecords++
  // What is behind the committed offsets is lag, which is a violation of its own, and not lost.
  if (record.offset < (committed.get(record.partition) ?? 0)) model.add(asText(record))
})
const reference = model.result()
counts['input records'] = inputRecords
counts['ids new again after their window'] = reference.expired
if (inputRecords < input.acknowledged)
  violations.push({
    kind: 'input',
    text: `the input holds ${inputRecords} committed records, ${input.acknowledged} were acknowledged`,
  })

for (const [kind, topic, expected] of [
  ['output', scenario.output, reference.output],
  ['duplicates', scenario.duplicates, reference.duplicates],
  ['dead-letters', scenario.deadLetters, reference.deadLetters],
] as const satisfies readonly (readonly [OutputKind, string, unknown])[]) {
  const comparison = new TopicComparison(kind, topic, expected)
  await client.readCommitted(topic, partitions, (record) => comparison.add(asText(record)))
  const { violations: found, records } = comparison.end()
  violations.push(...found)
  counts[`${kind} records`] = records
}
await checkLag()
const files = await checkState()
process.stdout.write(`${JSON.stringify({ violations: capped(violations), counts, files } satisfies Verdict)}\n`)
process.exitCode = violations.length === 0 ? 0 : 1

/** No transaction of the application is open; one that is just ending may end. */
async function checkTransactions(): Promise<void> {
  const { java } = input
  if (java === undefined) return
  const giveUpAt = performance.now() + TRANSACTION_DEADLINE_MS
  for (;;) {
    const { code, stdout, stderr } = await javaTool(java, TRANSACTIONS_COMMAND, ['list'])
    const lines = stdout.split('\n').filter((line) => line.trim().startsWith(scenario.application))
    const open = lines.filter((line) => OPEN_STATES.test(line))
    if (code === 0 && open.length === 0) {
      counts['transactional ids'] = lines.length
      return
    }
    if (performance.now() < giveUpAt) continue
    if (code !== 0) violations.push({ kind: 'open-transaction', text: `transactions could not be listed: ${stderr.slice(-500)}` })
    for (const line of open) violations.push({ kind: 'open-transaction', text: line.trim().replace(/\s+/g, ' ') })
    return
  }
}

async function checkLag(): Promise<void> {
  const ends = await client.ends(scenario.input, partitions)
  for (const [partition, end] of ends) {
    const offset = committed.get(partition)
    if (end > 0 && offset !== end)
      violations.push({ kind: 'lag', text: `${scenario.input}[${partition}]: committed ${offset ?? 'nothing'}, the end is ${end}` })
  }
}

async function checkState(): Promise<readonly FileCheck[]> {
  const horizons = reference.streamTimes.map((time) => time - scenario.windowMs)
  const replays = horizons.map((horizon) => new ChangelogReplay(horizon))
  const ends = await client.readCommitted(scenario.changelog, partitions, (record) => replays[record.partition]?.add(record))
  for (const [partition, end] of ends) {
    const replay = replays[partition]
    if (replay !== undefined) replay.end = end
  }
  counts['changelog tombstones'] = replays.reduce((sum, { tombstones }) => sum + tombstones, 0)
  counts['live ids'] = replays.reduce((sum, replay) => sum + replay.upTo(Infinity).size, 0)
  const files: FileCheck[] = []
  for (const stateDir of input.stateDirs) {
    const found = checkStateFiles(stateDir, scenario.application, replays, horizons)
    files.push(...found.files)
    violations.push(...found.violations)
  }
  for (let task = 0; task < partitions; task++) {
    if ((replays[task]?.end ?? 0) === 0 || files.some((file) => file.task === task && file.isCurrent)) continue
    const those = files
      .filter((file) => file.task === task)
      .map(({ path, checkpoint, ids }) => `${path}: checkpoint ${checkpoint ?? 'none'}, ${ids} live ids`)
    violations.push({
      kind: 'state',
      text: `task 0_${task}: no file equals the whole changelog (end ${replays[task]?.end ?? 0}, ${replays[task]?.upTo(Infinity).size ?? 0} live ids) after a clean stop; ${those.join('; ')}`,
    })
  }
  counts['state files'] = files.length
  return files
}

function asText({ partition, offset, timestamp, key, value, headers }: RawRecord): ReadRecord {
  return { partition, offset, timestamp, key: key?.toString('utf8') ?? null, value: value?.toString('utf8') ?? null, headers }
}

/** A broken run may have a hundred thousand of them: the first of each kind, and how many there are. */
function capped(all: readonly Violation[]): readonly Violation[] {
  const shown: Violation[] = []
  const kinds = new Map<string, number>()
  for (const violation of all) {
    const number = (kinds.get(violation.kind) ?? 0) + 1
    kinds.set(violation.kind, number)
    if (number <= 10) shown.push(violation)
  }
  for (const [kind, number] of kinds) {
    counts[`violations: ${kind}`] = number
    if (number > 10) shown.push({ kind: kind as Violation['kind'], text: `... and ${number - 10} more of this kind` })
  }
  return shown
}
