/** `millrace config`: every option with the value in effect and where it comes from. */
import Table from 'cli-table3'
import pc from 'picocolors'
import type { OptionKey } from '../config/options.ts'
import { OPTION_KEYS, OPTIONS } from '../config/options.ts'
import type { ConfigReport } from '../config/resolve.ts'
import { printableValue } from '../config/resolve.ts'
import { durationText, sizeText } from '../config/units.ts'

interface ConfigRow {
  readonly option: string
  readonly resolvedName: OptionKey
  readonly value: unknown
  readonly source: string
  readonly where: string
}

/** One row an option; secrets redacted. */
function configRows(report: ConfigReport): readonly ConfigRow[] {
  return OPTION_KEYS.map((key) => ({
    option: OPTIONS[key].name,
    resolvedName: key,
    value: printableValue(key, report.values[key]),
    source: report.sources[key]?.kind ?? 'default',
    where: report.sources[key]?.where ?? '',
  }))
}

export function configJson(report: ConfigReport): string {
  const options = Object.fromEntries(configRows(report).map(({ option, ...row }) => [option, { ...row, value: row.value ?? null }]))
  return JSON.stringify({ options, problems: report.problems }, undefined, 2)
}

export function configTable(report: ConfigReport): string {
  const table = new Table({ head: ['option', 'value', 'source'], style: { head: [], border: [], compact: true } })
  for (const row of configRows(report)) {
    const source =
      row.source === 'default' ? pc.dim(row.where === 'default' ? 'default' : `default: ${row.where}`) : `${row.source}: ${row.where}`
    table.push([row.option, valueText(row.resolvedName, row.value), source])
  }
  return table.toString()
}

function valueText(key: OptionKey, value: unknown): string {
  if (value === undefined) return key === 'applicationId' ? '(name of the topology)' : '-'
  if (OPTIONS[key].kind === 'duration' && typeof value === 'number') return durationText(value)
  if (OPTIONS[key].kind === 'size' && typeof value === 'number') return sizeText(value)
  if (Array.isArray(value)) return value.join('\n')
  if (typeof value === 'object' && value !== null)
    return (
      Object.entries(value)
        .map(([name, setting]) => `${name}=${String(setting)}`)
        .join('\n') || '-'
    )
  return typeof value === 'string' ? value : JSON.stringify(value)
}
