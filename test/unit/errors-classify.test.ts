/** What each answer of the broker asks for (DESIGN 7): the whole table, and what the flags change. */
import { describe, expect, test } from 'vitest'
import { BrokerError, WATCHDOG, type BrokerOperation } from '../../src/errors/broker-error.ts'
import { classify, CODE_RULES } from '../../src/errors/classify.ts'
import {
  BrokerUnavailableError,
  ConfigError,
  CorruptedStoreError,
  EXIT_CODES,
  FatalError,
  PoisonedRecordError,
  SlotTakenError,
  StateDirectoryError,
  StateLockedError,
  StoreMismatchError,
  TopologyError,
} from '../../src/errors/errors.ts'

const OPERATIONS: readonly BrokerOperation[] = [
  'init',
  'begin',
  'produce',
  'flush',
  'sendOffsets',
  'commit',
  'abort',
  'poll',
  'committed',
  'seek',
  'read',
  'admin',
  'connect',
  'close',
]
const PRODUCER = new Set<BrokerOperation>(['init', 'begin', 'produce', 'flush', 'sendOffsets', 'commit', 'abort'])
const UNKNOWN = -12_345
const on = (operation: BrokerOperation, code: number, flags: ConstructorParameters<typeof BrokerError>[3] = {}) =>
  classify(new BrokerError(operation, code, 'said the broker', flags))

describe('the table', () => {
  test('is this one: code, reaction, whether the producer is thrown away', () => {
    const rows = Object.keys(CODE_RULES)
      .map(Number)
      .sort((a, b) => a - b)
      .map((code) => {
        const { reaction, replaceProducer } = on('commit', code)
        return `${code} ${reaction}${replaceProducer ? ', new producer' : ''}`
      })
    expect(rows).toMatchInlineSnapshot(`
      [
        "-10003 abortable, new producer",
        "-10002 abortable",
        "-10001 retriable",
        "-199 corrupted",
        "-197 abortable",
        "-195 retriable",
        "-193 retriable",
        "-192 abortable",
        "-190 poisoned",
        "-188 poisoned",
        "-187 retriable",
        "-185 retriable",
        "-180 retriable",
        "-173 abortable, new producer",
        "-172 abortable, new producer",
        "-156 retriable",
        "-152 abortable",
        "-150 fenced, new producer",
        "-147 abortable",
        "-144 fenced, new producer",
        "-140 config",
        "1 config",
        "2 retriable",
        "3 poisoned",
        "5 retriable",
        "6 retriable",
        "7 retriable",
        "8 retriable",
        "9 retriable",
        "10 poisoned, new producer",
        "12 fatal",
        "13 retriable",
        "14 retriable",
        "15 retriable",
        "16 retriable",
        "17 config",
        "18 poisoned, new producer",
        "19 retriable",
        "20 retriable",
        "22 abortable",
        "25 abortable",
        "27 abortable",
        "29 config",
        "30 config",
        "31 config",
        "32 poisoned, new producer",
        "41 retriable",
        "45 abortable, new producer",
        "47 fenced, new producer",
        "48 abortable, new producer",
        "49 abortable, new producer",
        "50 config",
        "51 retriable",
        "52 retriable",
        "53 config",
        "56 retriable",
        "58 config",
        "59 abortable, new producer",
        "72 retriable",
        "74 retriable",
        "75 retriable",
        "78 retriable",
        "79 abortable",
        "82 fenced, new producer",
        "87 poisoned, new producer",
        "88 retriable",
        "89 retriable",
        "90 fenced, new producer",
        "100 retriable",
        "120 abortable",
      ]
    `)
  })

  test('every row has a reason in words', () => {
    for (const code of Object.keys(CODE_RULES).map(Number)) expect(on('commit', code).reason).toMatch(/^[a-zA-Z].{8,}/)
  })

  // operation, code, flags, reaction: the answers that were seen on a real broker (CLIENT-FACTS).
  test.each([
    ['sendOffsets', 22, { isAbortRequired: true }, 'abortable'],
    ['sendOffsets', 25, { isAbortRequired: true }, 'abortable'],
    ['sendOffsets', -195, { isRetriable: true }, 'retriable'],
    ['sendOffsets', 49, { isAbortRequired: true }, 'abortable'],
    ['sendOffsets', WATCHDOG, { isRetriable: true }, 'retriable'],
    ['commit', -185, { isRetriable: true }, 'retriable'],
    ['commit', 10, { isAbortRequired: true }, 'poisoned'],
    ['commit', 32, { isAbortRequired: true }, 'poisoned'],
    ['commit', 45, { isAbortRequired: true }, 'abortable'],
    ['commit', 87, { isAbortRequired: true }, 'poisoned'],
    ['commit', -144, { isFatal: true }, 'fenced'],
    ['abort', -173, {}, 'abortable'],
    ['begin', -144, {}, 'fenced'],
    ['produce', -190, {}, 'poisoned'],
    ['produce', 10, {}, 'poisoned'],
    ['poll', -150, {}, 'fenced'],
    ['poll', -140, {}, 'config'],
    ['committed', -185, {}, 'retriable'],
    ['init', 50, {}, 'config'],
    ['init', 51, { isRetriable: true }, 'retriable'],
    ['init', 53, { isFatal: true }, 'config'],
  ] as const)('%s answered with %i %o asks for: %s', (operation, code, flags, reaction) => {
    expect(on(operation, code, flags).reaction).toBe(reaction)
  })

  test.each([2, 5, 6, 8, 41, 56, 72, 74, 75, 78, 100])(
    'code %i is what a broker says while leaders move: it is repeated, and never ends the worker',
    (code) => {
      for (const operation of ['admin', 'read', 'committed'] as const) expect(on(operation, code).reaction).toBe('retriable')
    },
  )
})

describe('flags', () => {
  test.each(OPERATIONS)('an unknown code of %s without flags is fatal: nothing is guessed', (operation) => {
    expect(on(operation, UNKNOWN)).toEqual({ reaction: 'fatal', replaceProducer: false, reason: 'unknown code' })
  })

  test('an unknown code follows the strongest flag: fatal, then abort, then retry', () => {
    expect(on('commit', UNKNOWN, { isFatal: true, isAbortRequired: true, isRetriable: true })).toMatchObject({
      reaction: 'abortable',
      replaceProducer: true,
    })
    expect(on('commit', UNKNOWN, { isAbortRequired: true, isRetriable: true }).reaction).toBe('abortable')
    expect(on('commit', UNKNOWN, { isRetriable: true }).reaction).toBe('retriable')
  })

  test('what must be aborted is not repeated, whatever its code says', () => {
    for (const code of [-195, -185, 7, 14, 15, 16, 51]) {
      expect(on('sendOffsets', code, { isRetriable: true, isAbortRequired: true }).reaction).toBe('abortable')
    }
  })

  test.each(OPERATIONS)('a fatal %s costs the producer only when it was the producer that spoke', (operation) => {
    expect(on(operation, -185, { isFatal: true }).replaceProducer).toBe(PRODUCER.has(operation))
  })
})

describe('exit codes', () => {
  test('X10: say what happened', () => {
    const options = { code: 'x' }
    const exits = [
      new ConfigError('', options),
      new TopologyError('', options),
      new BrokerUnavailableError('', options),
      new PoisonedRecordError('', options),
      new SlotTakenError('', options),
      new StateDirectoryError('', options),
      new StateLockedError('', options),
      new StoreMismatchError('', options),
      new CorruptedStoreError('', options),
      new FatalError('', options),
    ].map(({ name, exitCode, reaction }) => `${name} ${exitCode} ${reaction}`)
    expect(exits).toEqual([
      'ConfigError 2 config',
      'TopologyError 2 config',
      'BrokerUnavailableError 3 retriable',
      'PoisonedRecordError 4 poisoned',
      'SlotTakenError 5 fenced',
      'StateDirectoryError 6 config',
      'StateLockedError 6 config',
      'StoreMismatchError 6 config',
      'CorruptedStoreError 6 corrupted',
      'FatalError 1 fatal',
    ])
    expect(new Set(Object.values(EXIT_CODES)).size).toBe(Object.keys(EXIT_CODES).length)
  })
})
