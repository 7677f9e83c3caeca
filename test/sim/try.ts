import { deviationsOf, ScriptedChoices, SeededChoices } from '../../src/testing/sim/choices.ts'
import { HealingChoices, runOnce } from './run-once.ts'
const [mode, ...rest] = process.argv.slice(2)
if (mode === 'base') {
  for (let i = 0; i < 20; i++) {
    const t = performance.now()
    const r = await runOnce({ choices: new HealingChoices(new ScriptedChoices()), ...(i === 19 ? { onLine: console.log } : {}) })
    console.log((performance.now() - t).toFixed(1), r.events, r.virtualMs, r.trace.length, r.violations)
  }
} else if (mode === 'one') {
  const dev = new Map(rest.map((t) => t.split('=').map(Number) as [number, number]))
  const r = await runOnce({ choices: new HealingChoices(new ScriptedChoices(dev)), onLine: console.log })
  console.log(
    r.violations,
    [...dev.keys()].map((k) => r.trace[k]),
  )
} else if (mode === 'singles') {
  const base = await runOnce({ choices: new HealingChoices(new ScriptedChoices()) })
  let runs = 0,
    bad = 0
  const t = performance.now()
  for (let i = 0; i < base.trace.length; i++)
    for (let o = 1; o < base.trace[i]!.options; o++) {
      const r = await runOnce({ choices: new HealingChoices(new ScriptedChoices(new Map([[i, o]]))) })
      runs++
      if (r.violations.length) {
        bad++
        if (bad < 30)
          console.log(
            `${i}=${o}`,
            r.trace[i]?.what,
            r.violations.map((v) => v.slice(0, 300)),
          )
      }
    }
  console.log({ runs, bad, ms: performance.now() - t })
} else {
  const from = Number(rest[0] ?? 1),
    to = Number(rest[1] ?? 50)
  const t = performance.now()
  let bad = 0
  for (let seed = from; seed <= to; seed++) {
    const r = await runOnce({ choices: new HealingChoices(new SeededChoices(seed, () => 0.01)) })
    if (r.violations.length) {
      bad++
      console.log(
        seed,
        r.virtualMs,
        [...deviationsOf(r.trace)].map(([k, v]) => `${k}=${v}`).join(' '),
        r.violations.map((v) => v.slice(0, 300)),
      )
    }
  }
  console.log({ bad, ms: performance.now() - t })
}
process.exit(0)
