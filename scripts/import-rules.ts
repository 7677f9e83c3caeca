/**
 * The import table of the design as data, and the checks that read a source tree by it. Pure: files come in as a map of path to text.
 * Used by test/tidy.test.ts; a rule that is not here is not enforced.
 */
import ts from 'typescript'

export interface Finding {
  /** Path from the project's root. */
  readonly file: string
  readonly line: number
  readonly rule: RuleName
  readonly message: string
}

export type RuleName = 'layers' | 'port-types' | 'client' | 'sqlite' | 'world' | 'rebalance-calls' | 'file-size'

export const MAX_LINES = 600

/** What each part of `src` may import from the others. Sub-folders with a row of their own are parts of their own. */
const BASE = ['common', 'errors'] as const
const LOW = [...BASE, 'config', 'serde', 'metrics'] as const
const MIDDLE = [...LOW, 'topology', 'state', 'broker'] as const
const ADAPTERS = ['broker/kafka', 'state/sqlite'] as const
export const LAYERS: Readonly<Record<string, readonly string[]>> = {
  common: [],
  errors: ['common'],
  config: BASE,
  serde: BASE,
  metrics: BASE,
  // Record shapes of the port, as types only: see PORT_TYPES_ONLY.
  topology: [...LOW, 'broker'],
  state: LOW,
  broker: LOW,
  effects: LOW,
  'state/sqlite': [...LOW, 'state'],
  'broker/kafka': [...LOW, 'broker'],
  task: MIDDLE,
  runtime: [...MIDDLE, 'task'],
  testing: [...MIDDLE, 'task', 'runtime', 'effects'],
  app: [...MIDDLE, ...ADAPTERS, 'task', 'runtime', 'effects'],
  index: [...MIDDLE, 'task', 'runtime', 'effects', 'app'],
  'testing-door': [...MIDDLE, 'task', 'runtime', 'effects', 'testing'],
  cli: [...MIDDLE, 'task', 'runtime', 'effects', 'app', 'index', 'testing', 'testing-door'],
}

/** Parts that may name the port's record types, and know no broker besides. */
const PORT_TYPES_ONLY = new Set(['task', 'topology'])

/** Packages that only one part of src may know; `demo` loads, counts and compares with bare clients, apart from the runtime. */
const CLIENT_HOMES: Readonly<Record<string, readonly string[]>> = {
  '@confluentinc/kafka-javascript': ['src/broker/kafka/', 'demo/'],
  kafkajs: ['src/broker/kafka/', 'demo/'],
}
const SQLITE_HOMES = ['src/state/sqlite/', 'demo/']

const WORLD_HOMES = ['src/app.ts', 'src/broker/kafka/', 'src/state/sqlite/', 'src/cli/', 'demo/']
const WORLD_MODULES = new Set(['fs', 'fs/promises', 'timers', 'timers/promises', 'process', 'child_process', 'perf_hooks'])
const WORLD_NAMES = new Set(['setTimeout', 'setInterval', 'setImmediate', 'clearTimeout', 'clearInterval', 'clearImmediate', 'performance'])
/** Where a rule gives way, and why. */
const WORLD_EXCEPTIONS: Readonly<Record<string, readonly string[]>> = {
  // A user's config file is evaluated by defineConfig, whose function form is handed the environment.
  'src/config/define.ts': ['process.env'],
  // All promises that can go on do so before an immediate runs: that is how virtual time knows that a moment is over.
  'src/testing/sim/virtual-time.ts': ['setImmediate'],
}
const WORLD_PROPERTIES: Readonly<Record<string, ReadonlySet<string>>> = {
  Math: new Set(['random']),
  Date: new Set(['now']),
  process: new Set(['env', 'hrtime', 'uptime']),
  crypto: new Set(['randomUUID', 'getRandomValues']),
}

/** Named imports of `node:crypto` that draw from the machine's randomness; hashing is pure. */
const RANDOM_IMPORTS = new Set(['randomBytes', 'randomUUID', 'randomInt', 'randomFillSync', 'getRandomValues', 'webcrypto'])

const SINGLE_CALLS = ['incrementalAssign', 'incrementalUnassign'] as const

/** All findings of a tree; paths such as `src/task/task.ts`, `topologies/x.ts`, `demo/y.ts`. */
export function checkTree(files: ReadonlyMap<string, string>): Finding[] {
  const findings: Finding[] = []
  const calls = new Map<string, { file: string; line: number }[]>(SINGLE_CALLS.map((name) => [name, []]))
  for (const [file, text] of files) {
    const source = ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true)
    checkSize(file, text, findings)
    visit(source, source, file, findings, calls)
  }
  for (const [name, sites] of calls) {
    if (sites.length === 1) continue
    const where =
      sites.length === 0 ? 'there is none' : `there are ${sites.length}: ${sites.map((site) => `${site.file}:${site.line}`).join(', ')}`
    const first = sites[0] ?? { file: 'src/broker/kafka', line: 1 }
    findings.push({ ...first, rule: 'rebalance-calls', message: `${name} has exactly one call site, in the rebalance callback; ${where}` })
  }
  return findings
}

function checkSize(file: string, text: string, findings: Finding[]): void {
  const lines = text.split('\n').length - (text.endsWith('\n') ? 1 : 0)
  if (file.startsWith('src/') && lines > MAX_LINES) {
    findings.push({ file, line: MAX_LINES + 1, rule: 'file-size', message: `${lines} lines: split it by owner, ${MAX_LINES} at most` })
  }
}

function visit(
  node: ts.Node,
  source: ts.SourceFile,
  file: string,
  findings: Finding[],
  calls: Map<string, { file: string; line: number }[]>,
): void {
  const add = (rule: RuleName, message: string): void => {
    findings.push({ file, line: source.getLineAndCharacterOfPosition(node.getStart(source)).line + 1, rule, message })
  }
  const imported = importOf(node)
  if (imported !== undefined) checkImport(file, imported.specifier, imported.typeOnly, add)
  if (isInCore(file)) checkWorld(node, WORLD_EXCEPTIONS[file] ?? [], add)
  if (isInCore(file) && ts.isImportSpecifier(node) && RANDOM_IMPORTS.has((node.propertyName ?? node.name).text)) {
    add('world', `${(node.propertyName ?? node.name).text} is random: take the Random port by the constructor (src/common/ports.ts)`)
  }
  if (ts.isCallExpression(node)) {
    const callee = node.expression
    const name = ts.isPropertyAccessExpression(callee)
      ? callee.name.text
      : ts.isElementAccessExpression(callee) && ts.isStringLiteral(callee.argumentExpression)
        ? callee.argumentExpression.text
        : ''
    calls.get(name)?.push({ file, line: source.getLineAndCharacterOfPosition(node.getStart(source)).line + 1 })
  }
  ts.forEachChild(node, (child) => visit(child, source, file, findings, calls))
}

interface ImportSite {
  readonly specifier: string
  readonly typeOnly: boolean
}

/** Static, re-exporting, dynamic and type imports, and `require`. */
function importOf(node: ts.Node): ImportSite | undefined {
  if (ts.isImportDeclaration(node) && ts.isStringLiteral(node.moduleSpecifier)) {
    const clause = node.importClause
    return { specifier: node.moduleSpecifier.text, typeOnly: clause !== undefined && isTypeOnlyClause(clause) }
  }
  if (ts.isExportDeclaration(node) && node.moduleSpecifier !== undefined && ts.isStringLiteral(node.moduleSpecifier)) {
    const named = node.exportClause
    const allTypes =
      named !== undefined && ts.isNamedExports(named) && named.elements.length > 0 && named.elements.every((element) => element.isTypeOnly)
    return { specifier: node.moduleSpecifier.text, typeOnly: node.isTypeOnly || allTypes }
  }
  if (ts.isImportTypeNode(node) && ts.isLiteralTypeNode(node.argument) && ts.isStringLiteral(node.argument.literal)) {
    return { specifier: node.argument.literal.text, typeOnly: true }
  }
  if (
    ts.isCallExpression(node) &&
    (node.expression.kind === ts.SyntaxKind.ImportKeyword || (ts.isIdentifier(node.expression) && node.expression.text === 'require'))
  ) {
    const argument = node.arguments[0]
    if (argument !== undefined && ts.isStringLiteralLike(argument)) return { specifier: argument.text, typeOnly: false }
  }
  return undefined
}

function isTypeOnlyClause(clause: ts.ImportClause): boolean {
  if (clause.phaseModifier === ts.SyntaxKind.TypeKeyword) return true
  if (clause.name !== undefined) return false
  const bindings = clause.namedBindings
  return (
    bindings !== undefined &&
    ts.isNamedImports(bindings) &&
    bindings.elements.length > 0 &&
    bindings.elements.every((element) => element.isTypeOnly)
  )
}

function checkImport(file: string, specifier: string, typeOnly: boolean, add: (rule: RuleName, message: string) => void): void {
  if (specifier.startsWith('.')) {
    const target = resolvePath(file, specifier)
    if (file.startsWith('src/') && target.startsWith('src/')) checkLayer(file, target, typeOnly, add)
    return
  }
  const packageName = specifier
    .split('/')
    .slice(0, specifier.startsWith('@') ? 2 : 1)
    .join('/')
  const homes = CLIENT_HOMES[packageName]
  if (homes !== undefined && !homes.some((home) => file.startsWith(home)))
    add('client', `${packageName} is known in ${homes.join(' and ')} only`)
  if (packageName === 'better-sqlite3' && !SQLITE_HOMES.some((home) => file.startsWith(home))) {
    add('sqlite', `better-sqlite3 is known in ${SQLITE_HOMES.join(' and ')} only`)
  }
  if (isInCore(file) && WORLD_MODULES.has(specifier.replace(/^node:/, '')) && !typeOnly) {
    add('world', `${specifier} reaches the world: take a port by the constructor (src/common/ports.ts)`)
  }
}

function checkLayer(file: string, target: string, typeOnly: boolean, add: (rule: RuleName, message: string) => void): void {
  const from = partOf(file)
  const to = partOf(target)
  if (from === to) return
  const allowed = LAYERS[from]
  if (allowed === undefined) {
    add('layers', `${from} has no row in the import table`)
    return
  }
  if (!allowed.includes(to))
    add('layers', `${from} imports ${to} (${target}); it may import ${allowed.length === 0 ? 'nothing' : allowed.join(', ')}`)
  else if (PORT_TYPES_ONLY.has(from) && to === 'broker' && !(typeOnly && target === 'src/broker/port.ts')) {
    add('port-types', `${from} takes types from src/broker/port.ts only, and no code of a broker: ${target}`)
  }
}

/** The row of the table that a file of `src` belongs to. */
export function partOf(file: string): string {
  const path = file.replace(/^src\//, '')
  if (!path.includes('/')) return path === 'testing.ts' ? 'testing-door' : path.replace(/\.ts$/, '')
  const [first = '', second = ''] = path.split('/')
  return (ADAPTERS as readonly string[]).includes(`${first}/${second}`) ? `${first}/${second}` : first
}

function resolvePath(file: string, specifier: string): string {
  const parts = file.split('/').slice(0, -1)
  for (const part of specifier.split('/')) {
    if (part === '..') parts.pop()
    else if (part !== '.') parts.push(part)
  }
  return parts.join('/')
}

function isInCore(file: string): boolean {
  return file.startsWith('src/') && !WORLD_HOMES.some((home) => file.startsWith(home))
}

/** Values only: a type named Date or a property called setTimeout (as in the Timers port) reaches nothing. */
function checkWorld(node: ts.Node, exceptions: readonly string[], add: (rule: RuleName, message: string) => void): void {
  if (
    ts.isPropertyAccessExpression(node) &&
    ts.isIdentifier(node.expression) &&
    WORLD_PROPERTIES[node.expression.text]?.has(node.name.text) === true
  ) {
    const name = `${node.expression.text}.${node.name.text}`
    if (exceptions.includes(name)) return
    add('world', `${name} reaches the world: take a port by the constructor (src/common/ports.ts)`)
    return
  }
  if (readsClock(node)) {
    add('world', 'Date without an argument is the wall clock: take the Clock port by the constructor (src/common/ports.ts)')
    return
  }
  if (!ts.isIdentifier(node) || !WORLD_NAMES.has(node.text) || !isValueUse(node) || exceptions.includes(node.text)) return
  add('world', `${node.text} reaches the world: take a port by the constructor (src/common/ports.ts)`)
}

/** `new Date()`, `Date()` and the constructor handed on; `new Date(ms)` and `instanceof Date` are pure. */
function readsClock(node: ts.Node): boolean {
  if (!ts.isIdentifier(node) || node.text !== 'Date' || !isValueUse(node)) return false
  const parent = node.parent
  if (ts.isNewExpression(parent)) return (parent.arguments?.length ?? 0) === 0
  if (ts.isBinaryExpression(parent)) return parent.operatorToken.kind !== ts.SyntaxKind.InstanceOfKeyword
  return !ts.isPropertyAccessExpression(parent)
}

function isValueUse(node: ts.Identifier): boolean {
  const parent = node.parent
  if (ts.isPropertyAccessExpression(parent)) return parent.expression === node
  if (ts.isNewExpression(parent) || ts.isCallExpression(parent) || ts.isBinaryExpression(parent) || ts.isSpreadElement(parent)) return true
  if (ts.isVariableDeclaration(parent) || ts.isPropertyAssignment(parent)) return parent.initializer === node
  return (
    ts.isShorthandPropertyAssignment(parent) ||
    ts.isArrowFunction(parent) ||
    ts.isReturnStatement(parent) ||
    ts.isElementAccessExpression(parent)
  )
}
