#!/usr/bin/env node
/** The `millrace` command: its arguments, and errors as text and exit code. Each command's work is a module of its own, loaded when it is needed. */
import { readFileSync } from 'node:fs'
import { Command, CommanderError, InvalidArgumentError, Option } from 'commander'
import pc from 'picocolors'
import type { Option as ConfigOption } from '../config/options.ts'
import { OPTION_GROUPS, OPTION_KEYS, OPTIONS } from '../config/options.ts'
import { asError, EXIT_CODES } from '../errors/errors.ts'

const packageJson = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
  readonly version: string
  readonly description: string
}

/** Commander's name of a flag's value: `--commit-interval` -> `commitInterval`. */
type ParsedFlags = Readonly<Record<string, unknown>>

const program = new Command('millrace')
  .description(packageJson.description)
  .version(packageJson.version)
  .showHelpAfterError('(millrace --help shows the commands and options)')
  .exitOverride()

const runCommand = program
  .command('run')
  .summary('run a topology until it is stopped')
  .description(
    'Runs a topology as a long-lived processor: supervises worker processes, restarts those that die, stops all in good order on Ctrl-C or SIGTERM.',
  )
  .argument('<topology.ts>', 'module whose default export is the topology')
  .option('--config <file>', 'configuration file (default: millrace.config.ts in the working directory, if there is one)')
  .addHelpText(
    'after',
    `
Examples:
  $ millrace run topologies/order-dedupe.ts --brokers localhost:9092
  $ millrace run topologies/order-dedupe.ts --brokers b1:9092,b2:9092 --workers 4 --instance machine-1
  $ MILLRACE_BROKERS=b1:9092 millrace run points.ts --log-format json --commit-interval 50ms
  $ millrace run points.ts --brokers b1:9092 --kafka ssl.ca.location=/etc/ca.pem --kafka security.protocol=ssl

Exit codes: 0 stopped as asked, 1 fatal error, 2 wrong option or topology, 3 no broker, 4 poisoned record, 5 slot taken by another process, 6 state directory not usable.
Ctrl-C twice kills the workers at once: nothing is lost, the next start restores more.`,
  )
  .action(async (topology: string, flags: ParsedFlags) => {
    const { run } = await import('./run.ts')
    process.exitCode = await run({ topology, configFile: textOf(flags['config']), flags: optionFlags(flags) })
  })
addOptionFlags(runCommand)

program
  .command('describe')
  .summary('print what a topology consists of')
  .description('Prints the sub-topologies, steps, stores and internal topics of a topology. Needs no broker.')
  .argument('<topology.ts>', 'module whose default export is the topology')
  .option('--application-id <name>', 'prefix of the internal topics (default: the name of the topology)')
  .option('--json', 'print JSON')
  .addHelpText('after', '\nExample:\n  $ millrace describe topologies/order-dedupe.ts')
  .action(async (path: string, flags: ParsedFlags) => {
    const { loadTopology } = await import('./load-topology.ts')
    const topology = await loadTopology(path)
    const applicationId = textOf(flags['applicationId'])
    const description = topology.describe(applicationId === undefined ? {} : { applicationId })
    process.stdout.write(flags['json'] === true ? `${JSON.stringify(description, undefined, 2)}\n` : `${String(description).trimEnd()}\n`)
  })

const configCommand = program
  .command('config')
  .summary('print the options in effect and where each value comes from')
  .description(
    'Prints every option with its value and source (flag, environment, file, default). Secrets are not shown. Exit code 2 when something is wrong.',
  )
  .argument('[topology.ts]', 'topology whose name and own options in the file count')
  .option('--config <file>', 'configuration file (default: millrace.config.ts in the working directory, if there is one)')
  .option('--json', 'print JSON')
  .addHelpText('after', '\nExample:\n  $ millrace config topologies/order-dedupe.ts --brokers localhost:9092')
  .action(async (path: string | undefined, flags: ParsedFlags) => {
    const [{ loadConfigFile }, { reportConfig }, { configJson, configTable }] = await Promise.all([
      import('./load-config.ts'),
      import('../config/resolve.ts'),
      import('./show-config.ts'),
    ])
    const { file, fileName } = await loadConfigFile(textOf(flags['config']))
    const topologyName = path === undefined ? undefined : (await (await import('./load-topology.ts')).loadTopology(path)).name
    const report = reportConfig({ flags: optionFlags(flags), env: process.env, file, fileName, topologyName })
    process.stdout.write(`${flags['json'] === true ? configJson(report) : configTable(report)}\n`)
    if (report.problems.length === 0) return
    if (flags['json'] !== true) for (const problem of report.problems) process.stderr.write(`${pc.red('error:')} ${problem}\n`)
    process.exitCode = EXIT_CODES.config
  })
addOptionFlags(configCommand)

function addOptionFlags(command: Command): void {
  for (const key of OPTION_KEYS) {
    const spec: ConfigOption<unknown> = OPTIONS[key]
    if (spec.flag === undefined) continue
    const value = spec.choices === undefined ? argumentName(spec) : spec.choices.join('|')
    const option = new Option(`${spec.flag} <${value}>`, `${firstSentence(spec.doc)} [${spec.defaultText}]`)
    option.helpGroup(`${OPTION_GROUPS[spec.group]}:`)
    if (spec.kind === 'settings') option.argParser(collectSetting)
    command.addOption(option)
  }
}

function argumentName(spec: ConfigOption<unknown>): string {
  switch (spec.kind) {
    case 'settings':
      return 'name=value'
    case 'list':
      return 'host:port,...'
    case 'number':
      return 'number'
    case 'duration':
    case 'size':
      return spec.kind
    case 'switch':
      return 'true|false'
    case 'text':
      return spec.unit === 'path' ? 'path' : 'name'
  }
}

function firstSentence(doc: string): string {
  return (/^.*?[.](?= |$)/.exec(doc)?.[0] ?? doc).replace(/[.]$/, '').replaceAll('`', '')
}

/** `--kafka a=1 --kafka b=2` -> `['a=1', 'b=2']`. */
function collectSetting(text: string, previous: unknown): readonly string[] {
  if (!/^[^=\s]+=/.test(text)) throw new InvalidArgumentError('Give a client setting as name=value.')
  return [...(Array.isArray(previous) ? (previous as string[]) : []), text]
}

/** Only the flags that are options of the table, by their names there. */
function optionFlags(flags: ParsedFlags): Record<string, unknown> {
  const given: Record<string, unknown> = {}
  for (const key of OPTION_KEYS) {
    const { name, flag } = OPTIONS[key]
    if (flag !== undefined && flags[name] !== undefined) given[name] = flags[name]
  }
  return given
}

function textOf(value: unknown): string | undefined {
  return typeof value === 'string' ? value : undefined
}

/** An error that explains itself is printed as message and remedy; any other with its stack below the message. */
function printError(error: Error & { readonly exitCode?: unknown; readonly remedy?: unknown }): number {
  process.stderr.write(`${pc.red('error:')} ${error.message}\n`)
  if (typeof error.remedy === 'string') process.stderr.write(`${pc.dim('->')} ${error.remedy}\n`)
  if (typeof error.exitCode === 'number') return error.exitCode
  process.stderr.write(`${pc.dim(error.stack ?? '')}\n`)
  return EXIT_CODES.fatal
}

try {
  await program.parseAsync()
} catch (error) {
  // Commander has printed its own errors; a wrong argument is a wrong option.
  if (error instanceof CommanderError) process.exitCode = error.exitCode === 0 ? EXIT_CODES.ok : EXIT_CODES.config
  else process.exitCode = printError(asError(error))
}
