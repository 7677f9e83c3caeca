/** docs/errors.md, printed from the table that `classify` reads. */
import { GIVEN_UP, TOO_SLOW, WATCHDOG } from './broker-error.ts'
import { CODE_NAMES } from './code-names.ts'
import { CODE_RULES } from './classify.ts'
import { EXIT_CODES, type Reaction } from './errors.ts'

/** Not of Kafka: reasons of the worker itself. */
const OUR_OWN: ReadonlySet<number> = new Set([GIVEN_UP, TOO_SLOW, WATCHDOG])

const REACTIONS: Readonly<Record<Reaction, string>> = {
  retriable: 'The same step is repeated with a back-off, inside its budget. A commit whose budget is spent becomes ambiguous.',
  abortable: 'The transaction is aborted, write-sets are dropped, reading goes back to the committed offsets, work goes on.',
  fenced: 'Nothing more is committed. The worker proves that the slot is still its own and starts anew, or ends with exit code 5.',
  ambiguous: 'A commit whose outcome is unknown: the producer is replaced, which settles it, and the group\u2019s offsets say how.',
  corrupted:
    'A store file is moved aside and rebuilt from its changelog once; a batch of an input is a matter of the option `corruptedRecord`.',
  poisoned:
    'A record the broker will not take. The transaction is aborted, and its records run again one by one until the bad one is found; after three attempts it takes the error path (`onError`).',
  config: 'Refused at start, or the worker stops with exit code 2; the message names the option or topic.',
  fatal: 'The worker stops with exit code 1.',
}

const EXIT_MEANINGS: Readonly<Record<keyof typeof EXIT_CODES, string>> = {
  ok: 'stopped as asked',
  fatal: 'an error that nothing inside can repair; restarted with a back-off by `millrace run`',
  config: 'wrong option, topic or topology',
  unavailable: 'no broker answered in time; restarted with a back-off',
  poisoned: "a record failed under `onError: 'fail'`",
  slotTaken: 'another process has taken this slot',
  state: 'the state directory cannot be used: not writable, locked, or of another format',
}

export function errorDocument(): string {
  const codes = Object.keys(CODE_RULES)
    .map(Number)
    .sort((a, b) => (a < 0 === b < 0 ? Math.abs(a) - Math.abs(b) : a < 0 ? 1 : -1))
  return [
    '# Errors and reactions',
    '',
    'Printed from `src/errors/classify.ts` by `node --import tsx scripts/generate-error-docs.ts`. Codes above 0 are the Kafka protocol\u2019s, those below are librdkafka\u2019s.',
    '',
    '## Reactions',
    '',
    '| reaction | what millrace does |',
    '|---|---|',
    ...Object.entries(REACTIONS).map(([name, text]) => `| ${name} | ${text} |`),
    '',
    '## Codes',
    '',
    'A failure that the client marks "abort required" is aborted even where the table says retriable. A code that is not listed goes by the client\u2019s flags (abort required, retriable), and is fatal without any.',
    '',
    '| code | name | reaction | producer replaced | reason |',
    '|---|---|---|---|---|',
    ...codes.map((code) => {
      const rule = CODE_RULES[code]
      const number = OUR_OWN.has(code) ? '' : String(code)
      return `| ${number} | ${CODE_NAMES[code] ?? ''} | ${rule?.reaction ?? ''} | ${rule?.replaceProducer === true ? 'yes' : ''} | ${rule?.reason ?? ''} |`
    }),
    '',
    '## Exit codes of a worker and of `millrace run`',
    '',
    '| code | meaning |',
    '|---|---|',
    ...Object.entries(EXIT_CODES).map(([name, code]) => `| ${code} | ${EXIT_MEANINGS[name as keyof typeof EXIT_CODES]} |`),
    '',
  ].join('\n')
}
