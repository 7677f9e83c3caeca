/** `docs/config.md`, made from the option table. Pure. */
import { OWNED_CLIENT_SETTINGS } from './client-settings.ts'
import type { Option, OptionGroup } from './options.ts'
import { OPTION_GROUPS, OPTION_KEYS, OPTIONS } from './options.ts'
import { RULE_SENTENCES } from './rules.ts'

const cell = (text: string): string => text.replaceAll('|', '\\|')

function row(option: Option<unknown>, resolvedName: string): string {
  const places = [option.flag, option.env].filter((place) => place !== undefined).map((place) => `\`${place}\``)
  const preset =
    /^[-\w./]+$/.test(option.defaultText) && option.default !== undefined && option.kind !== 'settings'
      ? `\`${option.defaultText}\``
      : option.defaultText
  const limits = option.wanted.replace(/^a number of (?:ms|bytes) or a text such as .*, (from .*)$/, '$1')
  return `| \`${option.name}\` | ${preset} | ${cell(limits)} | ${places.join('<br>')} | ${cell(option.doc)}${option.inFile ? '' : ' Not in a file.'} | \`${resolvedName}\`${option.unit === '' ? '' : ` (${option.unit})`} |`
}

/** The page, without formatting: `scripts/generate-config-docs.ts` runs it through the formatter of the project. */
export function configDocument(): string {
  const lines = [
    '# Options',
    '',
    'Made from the option table (`src/config/options.ts`) by `node --import tsx scripts/generate-config-docs.ts`; a test fails when it is stale.',
    '',
    'A value is taken from the first of these that has one: the command line, `createApp(topology, { ... })`, the environment, `millrace.config.ts` (there `topologies.<name>` before the rest), the default.',
    '`millrace config [topology.ts]` prints the values in effect and where each comes from. Unknown names are refused with the nearest known one; all problems are reported at once, exit code 2.',
    '',
    "Durations are milliseconds or a text with a unit (`'500ms'`, `'30s'`, `'5m'`, `'24h'`, `'7d'`); sizes are bytes or a text with a unit (`'64KiB'`, `'16MiB'`, `'1GiB'`). On the command line and in the environment a plain number is milliseconds or bytes.",
    '',
  ]
  for (const group of Object.keys(OPTION_GROUPS) as OptionGroup[]) {
    lines.push(
      `## ${OPTION_GROUPS[group]}`,
      '',
      '| option | default | values | flag, variable | meaning | resolved name (unit) |',
      '| --- | --- | --- | --- | --- | --- |',
    )
    for (const key of OPTION_KEYS) if (OPTIONS[key].group === group) lines.push(row(OPTIONS[key], key))
    lines.push('')
  }
  lines.push('## Rules across options', '', 'Checked at the start; the message names both options with both values.', '')
  for (const sentence of RULE_SENTENCES) lines.push(`- ${sentence}`)
  lines.push(
    '',
    '## Client settings that millrace owns',
    '',
    'Refused in `kafka`, each with its reason:',
    '',
    '| setting | reason |',
    '| --- | --- |',
  )
  for (const [name, reason] of Object.entries(OWNED_CLIENT_SETTINGS)) lines.push(`| \`${name}\` | ${cell(reason)} |`)
  lines.push('')
  return lines.join('\n')
}
