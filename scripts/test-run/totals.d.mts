export interface Totals {
  passed: number
  failed: number
  skipped: number
}
export function totalsOf(report: unknown, exitCode: number): Totals & { notes: string[] }
export function closingLine(totals: Totals): string
