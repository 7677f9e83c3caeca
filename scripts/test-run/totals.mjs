/** The totals of a test run: what vitest's JSON report says, and what it does not say. Pure. */

/**
 * Counts a report. A run is never better than its exit code: a crash, an unhandled error or a missing report counts as one failure more.
 * @param {any} report vitest's JSON report, or null when there is none
 * @param {number} exitCode of vitest
 * @returns {{ passed: number, failed: number, skipped: number, notes: string[] }}
 */
export function totalsOf(report, exitCode) {
  if (report === null) return { passed: 0, failed: 1, skipped: 0, notes: [`vitest left no report (exit code ${exitCode})`] }
  const passed = count(report.numPassedTests)
  let failed = count(report.numFailedTests)
  const skipped = count(report.numPendingTests) + count(report.numTodoTests)
  const notes = []
  for (const file of report.testResults ?? []) {
    const hasFailedTest = (file.assertionResults ?? []).some((/** @type {any} */ test) => test.status === 'failed')
    if (file.status !== 'failed' || hasFailedTest) continue
    failed += 1
    notes.push(`${file.name}: the file failed outside its tests${file.message ? `: ${String(file.message).split('\n')[0]}` : ''}`)
  }
  if (failed === 0 && exitCode !== 0) {
    failed = 1
    notes.push(`every test passed, but vitest ended with exit code ${exitCode}: an error outside the tests`)
  }
  if (failed === 0 && passed === 0) {
    failed = 1
    notes.push('no test ran')
  }
  return { passed, failed, skipped, notes }
}

/** @param {unknown} value */
function count(value) {
  return typeof value === 'number' ? value : 0
}

/** The closing line. @param {{ passed: number, failed: number, skipped: number }} totals */
export function closingLine({ passed, failed, skipped }) {
  return `${passed} passed, ${failed} failed${skipped > 0 ? `, ${skipped} skipped` : ''}`
}
