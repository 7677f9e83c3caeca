/** The transaction machine on a scripted producer: every move, and every reaction to a failure of every step (DESIGN 3, X1, X3, X4). */
import { describe, expect, test } from 'vitest'
import type { OffsetToCommit } from '../../src/broker/port.ts'
import { silentLogger } from '../../src/common/ports.ts'
import { WATCHDOG } from '../../src/errors/broker-error.ts'
import { BrokerUnavailableError, FatalError } from '../../src/errors/errors.ts'
import { writeMetadata } from '../../src/runtime/offset-metadata.ts'
import { ProducerRing } from '../../src/runtime/producer-ring.ts'
import { TransactionMachine, TRANSITIONS, type Outcome, type TransactionState } from '../../src/runtime/transaction.ts'
import { InstantTimers, ManualClock, settle } from '../helpers/manual-time.ts'
import { refusal, ScriptedBroker } from '../helpers/scripted-broker.ts'

const NONCE = 'nonce-of-this-transaction'
const metadata = (nonce: string): string =>
  writeMetadata({ nonce, streamTime: 1, transactionalIdPrefix: 'app', ringSize: 2, committedAt: 5 })
const OFFSETS: readonly OffsetToCommit[] = [{ topic: 'in', partition: 0, offset: 7, metadata: metadata(NONCE) }]
const BUDGETS = { callTimeoutMs: 100, commitMs: 1_000, totalMs: 5_000 }
const SIZES = { maxMessageBytes: 1_000_000, batchBytes: 1_000_000 }

async function machineOn(broker = new ScriptedBroker()) {
  const clock = new ManualClock()
  const timers = new InstantTimers(clock)
  const ring = new ProducerRing({
    broker,
    idPrefix: 'app',
    size: 2,
    transactionTimeoutMs: 10_000,
    initTimeoutMs: 1_000,
    patienceMs: 10_000,
    clock,
    timers,
    logger: silentLogger,
  })
  await ring.open(SIZES)
  broker.script.calls.length = 0
  const machine = new TransactionMachine({ ring, budgets: BUDGETS, clock, timers, logger: silentLogger })
  const commit = (stillOwned = () => true): Promise<Outcome> => machine.commit(broker.consumer, OFFSETS, NONCE, stillOwned)
  return { broker, script: broker.script, ring, machine, commit, clock, timers }
}
type Setup = Awaited<ReturnType<typeof machineOn>>

function groupHas({ broker }: Setup, nonce: string): void {
  broker.consumer.committedOffsets.set('in[0]', { topic: 'in', partition: 0, offset: 7, metadata: metadata(nonce) })
}

/** Brings a machine into a state by the way of its public methods. */
const REACH: Readonly<Record<Exclude<TransactionState, 'flushed' | 'offsets-sent' | 'unresolved'>, (setup: Setup) => Promise<void>>> = {
  idle: async () => {},
  open: async ({ machine }) => {
    expect(await machine.begin()).toBeUndefined()
  },
  'abort-only': async ({ machine }) => {
    await machine.begin()
    machine.fail(refusal('produce', -190))
  },
  fenced: async ({ machine, script, commit }) => {
    script.fail('sendOffsets', refusal('sendOffsets', -144))
    await machine.begin()
    await commit()
  },
  repairing: async ({ machine, script, broker, commit }) => {
    broker.connectGates.set('app-1', new Promise(() => {}))
    script.fail('commit', refusal('commit', 10, { isAbortRequired: true }))
    await machine.begin()
    await commit()
  },
}

/** What each call does in each resting state: the state after it, or the invariant that refuses it. */
const CALLS: Readonly<Record<string, (setup: Setup) => unknown>> = {
  begin: ({ machine }) => machine.begin(),
  produce: ({ machine }) => machine.produce('out', null, null, null, 0, []),
  commit: ({ commit }) => commit(),
  abort: ({ machine }) => machine.abort(refusal('commit', 22)),
  startRepair: ({ machine }) => machine.startRepair(),
}
const TABLE: readonly [keyof typeof REACH, keyof typeof CALLS, string][] = [
  ['idle', 'begin', 'open'],
  ['idle', 'produce', 'refused by T4'],
  ['idle', 'commit', 'refused by T1'],
  ['idle', 'abort', 'refused by T0'],
  ['idle', 'startRepair', 'refused by T3'],
  ['open', 'begin', 'refused by T3'],
  ['open', 'produce', 'open'],
  ['open', 'commit', 'idle'],
  ['open', 'abort', 'idle'],
  ['open', 'startRepair', 'refused by T3'],
  ['abort-only', 'begin', 'refused by T3'],
  ['abort-only', 'produce', 'refused by T4'],
  ['abort-only', 'commit', 'idle'],
  ['abort-only', 'abort', 'idle'],
  ['abort-only', 'startRepair', 'refused by T3'],
  ['fenced', 'begin', 'refused by T3'],
  ['fenced', 'produce', 'refused by T4'],
  ['fenced', 'commit', 'refused by T1'],
  ['fenced', 'abort', 'refused by T0'],
  ['fenced', 'startRepair', 'repairing'],
  ['repairing', 'begin', 'refused by T3'],
  ['repairing', 'produce', 'refused by T4'],
  ['repairing', 'commit', 'refused by T1'],
  ['repairing', 'abort', 'refused by T0'],
  ['repairing', 'startRepair', 'refused by T3'],
]

describe('every call in every state', () => {
  test.each(TABLE)('in %s, %s: %s', async (state, call, expected) => {
    const setup = await machineOn()
    await REACH[state](setup)
    expect(setup.machine.state).toBe(state)
    let refused: unknown
    try {
      await (CALLS[call] as (setup: Setup) => unknown)(setup)
    } catch (error) {
      refused = error
    }
    if (refused !== undefined) expect(`refused by ${(refused as { id?: string }).id}`).toBe(expected)
    else expect(setup.machine.state).toBe(expected)
  })

  test('the table of moves is the one of the drawing, pair by pair', () => {
    const states = Object.keys(TRANSITIONS) as TransactionState[]
    expect(states.map((from) => `${from}: ${states.filter((to) => TRANSITIONS[from].includes(to)).join(', ')}`)).toEqual([
      'idle: open, abort-only, fenced',
      'open: flushed, abort-only, fenced',
      'flushed: offsets-sent, abort-only, fenced',
      'offsets-sent: idle, abort-only, unresolved, fenced, repairing',
      'abort-only: idle, fenced, repairing',
      'unresolved: idle, repairing',
      'fenced: repairing',
      'repairing: idle',
    ])
  })

  test('no state but offsets-sent leads to a commit (T1): without it the only ways to idle pass an abort, a settlement or a repair', () => {
    const toIdle = (Object.keys(TRANSITIONS) as TransactionState[]).filter((from) => TRANSITIONS[from].includes('idle'))
    expect(toIdle).toEqual(['offsets-sent', 'abort-only', 'unresolved', 'repairing'])
  })
})

describe('a good transaction', () => {
  test('is begin, produce, flush, offsets, commit, in this order (X1), and the next one is on the next producer of the ring', async () => {
    const { machine, commit, script } = await machineOn()
    await machine.begin()
    machine.produce('out', 1, Buffer.from('k'), Buffer.from('v'), 5, [])
    expect(await commit()).toEqual({ kind: 'committed' })
    await machine.begin()
    expect(script.calls).toEqual([
      'begin app-1#1',
      'produce app-1#1',
      'flush app-1#1',
      'sendOffsets app-1#1',
      'commit app-1#1',
      'begin app-0#1',
    ])
  })

  test('T2: one without offsets is refused before anything is sent', async () => {
    const { machine, broker, script } = await machineOn()
    await machine.begin()
    await expect(machine.commit(broker.consumer, [], NONCE, () => true)).rejects.toMatchObject({ id: 'T2' })
    expect(script.operations).toEqual(['begin'])
  })

  test('X3: when a partition is no longer owned its offsets are never sent, and the transaction is aborted', async () => {
    const { machine, commit, script } = await machineOn()
    await machine.begin()
    expect(await commit(() => false)).toMatchObject({ kind: 'aborted', error: { operation: 'sendOffsets' } })
    expect(script.operations).toEqual(['begin', 'flush', 'abort'])
  })
})

describe('failures of one step', () => {
  const steps = ['flush', 'sendOffsets', 'commit'] as const

  test.each(steps)('a retriable failure of %s repeats that step alone', async (step) => {
    const { machine, commit, script } = await machineOn()
    script.fail(step, refusal(step, -195, { isRetriable: true }), refusal(step, -185))
    await machine.begin()
    expect(await commit()).toEqual({ kind: 'committed' })
    const expected = ['begin', 'flush', 'sendOffsets', 'commit'].flatMap((call) => (call === step ? [call, call, call] : [call]))
    expect(script.operations.slice(0, 6)).toEqual(expected)
  })

  // Found by the simulation once requests could be late: (1) sendOffsets has no answer, (2) repeated, it has, (3) the commit succeeds, (4) the next transaction
  // of this producer begins, (5) the first request arrives and puts the old offsets into it.
  test.each([
    ['sendOffsets', -185],
    ['sendOffsets', -195],
    ['commit', -185],
    ['commit', -195],
  ] as const)(
    'T6: %s had no answer (%i) and worked when it was repeated: the next transaction waits for a new epoch',
    async (step, code) => {
      const { machine, commit, script } = await machineOn()
      script.fail(step, refusal(step, code, { isRetriable: true }))
      await machine.begin()
      expect(await commit()).toEqual({ kind: 'committed' })
      expect([machine.state, machine.isUsable]).toEqual(['repairing', false])
      await settle()
      expect(script.calls.slice(-3)).toEqual(['close app-1#1', 'connect app-1', 'init app-1#2'])
      expect(machine.repairStep()).toBe(true)
      expect(machine.state).toBe('idle')
    },
  )

  test.each([
    ['flush', -185],
    ['sendOffsets', 14],
    ['commit', 51],
  ] as const)(
    'T6: after %s was refused for a moment (%i), or records were late, nothing can still arrive: the producer stays',
    async (step, code) => {
      const { machine, commit, script } = await machineOn()
      script.fail(step, refusal(step, code, { isRetriable: true }))
      await machine.begin()
      expect(await commit()).toEqual({ kind: 'committed' })
      expect(machine.state).toBe('idle')
      expect(script.operations).not.toContain('init')
    },
  )

  test('T6: likewise after an abort', async () => {
    const { machine, commit, script } = await machineOn()
    script.fail('sendOffsets', refusal('sendOffsets', 22, { isAbortRequired: true }))
    script.fail('abort', refusal('abort', -185, { isRetriable: true }))
    await machine.begin()
    expect(await commit()).toMatchObject({ kind: 'aborted' })
    expect(machine.state).toBe('repairing')
    await settle()
    expect(machine.repairStep()).toBe(true)
  })

  test('T1: sendOffsets that stays retriable for the whole budget is never followed by a commit', async () => {
    const { machine, commit, script } = await machineOn()
    script.fail('sendOffsets', ...Array.from({ length: 1_000 }, () => refusal('sendOffsets', -195, { isRetriable: true })))
    await machine.begin()
    expect(await commit()).toMatchObject({ kind: 'aborted', cause: { reaction: 'retriable' } })
    expect(script.operations.filter((operation) => operation === 'commit')).toEqual([])
    expect(script.operations).toContain('abort')
    expect(machine.state).toBe('repairing')
  })

  test.each(['flush', 'sendOffsets', 'commit', 'abort'] as const)(
    'a %s that never comes back ends the worker: it is not repeated beside itself, and its client is never closed under it',
    async (step) => {
      const { machine, commit, script, ring, broker } = await machineOn()
      script.fail(step, refusal(step, WATCHDOG))
      await machine.begin()
      if (step === 'abort') machine.fail(refusal('produce', -190))
      const hung = commit()
      await expect(hung).rejects.toBeInstanceOf(FatalError)
      await expect(hung).rejects.toMatchObject({ code: 'client-hangs', message: expect.stringContaining(step) })
      expect(script.operations.filter((operation) => operation === step)).toHaveLength(1)
      const calls = script.calls.length
      await machine.abortAtEnd()
      expect(script.calls).toHaveLength(calls)
      await ring.close()
      const isClosed = (name: string) => broker.producers.find((producer) => producer.name === name)!.isClosed
      expect([isClosed('app-1#1'), isClosed('app-0#1')]).toEqual([false, true])
    },
  )

  test.each([
    ['flush', -192],
    ['sendOffsets', 22],
    ['sendOffsets', 25],
    ['sendOffsets', 27],
    ['commit', -152],
  ] as const)('%s failing with %i aborts on the same producer', async (step, code) => {
    const { machine, commit, script } = await machineOn()
    script.fail(step, refusal(step, code, { isAbortRequired: true }))
    await machine.begin()
    expect(await commit()).toMatchObject({ kind: 'aborted', error: { operation: step, code } })
    expect(script.operations.at(-1)).toBe('abort')
    expect(script.operations).not.toContain('init')
  })

  test('a retriable code with the abort flag is aborted, not repeated', async () => {
    const { machine, commit, script } = await machineOn()
    script.fail('sendOffsets', refusal('sendOffsets', -185, { isRetriable: true, isAbortRequired: true }))
    await machine.begin()
    expect(await commit()).toMatchObject({ kind: 'aborted', cause: { reaction: 'abortable' } })
    expect(script.operations.slice(0, 4)).toEqual(['begin', 'flush', 'sendOffsets', 'abort'])
  })

  test.each([
    ['commit', 10],
    ['commit', 32],
    ['commit', 87],
    ['commit', 45],
    ['sendOffsets', 49],
    ['sendOffsets', 48],
  ] as const)('%s failing with %i replaces the producer: its next transaction could fail too', async (step, code) => {
    const { machine, commit, script } = await machineOn()
    script.fail(step, refusal(step, code, { isAbortRequired: true }))
    await machine.begin()
    expect(await commit()).toMatchObject({ kind: 'aborted', error: { code } })
    expect(script.calls.slice(-3)).toEqual(['close app-1#1', 'connect app-1', 'init app-1#2'])
    expect(machine.state).toBe('idle')
  })

  test.each(['flush', 'sendOffsets', 'commit'] as const)('%s fenced: nothing more is called until the slot is proven', async (step) => {
    const { machine, commit, script } = await machineOn()
    script.fail(step, refusal(step, -144, { isFatal: true }))
    await machine.begin()
    expect(await commit()).toMatchObject({ kind: 'fenced' })
    expect(machine.state).toBe('fenced')
    expect(script.operations.at(-1)).toBe(step)
    expect(machine.repairStep()).toBe(false)
    machine.startRepair()
    await settle()
    expect(machine.repairStep()).toBe(true)
    expect(machine.state).toBe('idle')
    expect(script.calls.filter((call) => call.startsWith('init')).sort()).toEqual(['init app-0#2', 'init app-1#2'])
  })

  test('abort is repeated until the broker said so', async () => {
    const { machine, commit, script } = await machineOn()
    script.fail('sendOffsets', refusal('sendOffsets', 22, { isAbortRequired: true }))
    script.fail('abort', refusal('abort', -185), refusal('abort', -195))
    await machine.begin()
    expect(await commit()).toMatchObject({ kind: 'aborted' })
    expect(script.operations.slice(0, 6)).toEqual(['begin', 'flush', 'sendOffsets', 'abort', 'abort', 'abort'])
  })

  test('an abort that the client refuses replaces the producer, whose init aborts as well', async () => {
    const { machine, commit, script } = await machineOn()
    script.fail('sendOffsets', refusal('sendOffsets', 22, { isAbortRequired: true }))
    script.fail('abort', refusal('abort', -173))
    await machine.begin()
    expect(await commit()).toMatchObject({ kind: 'aborted', error: { code: 22 } })
    expect(script.calls.slice(-4)).toEqual(['abort app-1#1', 'close app-1#1', 'connect app-1', 'init app-1#2'])
  })

  test('an abort that is fenced is a fence', async () => {
    const { machine, commit, script } = await machineOn()
    script.fail('sendOffsets', refusal('sendOffsets', 22, { isAbortRequired: true }))
    script.fail('abort', refusal('abort', -144, { isFatal: true }))
    await machine.begin()
    expect(await commit()).toMatchObject({ kind: 'fenced' })
  })
})

describe('begin', () => {
  test('a refused begin replaces the producer: its errors carry no flags', async () => {
    const { machine, script } = await machineOn()
    script.fail('begin', refusal('begin', -172))
    expect(await machine.begin()).toMatchObject({ kind: 'aborted', cause: { replaceProducer: true } })
    expect(script.calls).toEqual(['begin app-1#1', 'close app-1#1', 'connect app-1', 'init app-1#2'])
    expect(machine.state).toBe('idle')
  })

  test('a fenced begin is a fence', async () => {
    const { machine, script } = await machineOn()
    script.fail('begin', refusal('begin', -144))
    expect(await machine.begin()).toMatchObject({ kind: 'fenced' })
    expect(machine.state).toBe('fenced')
  })
})

describe('T4: after a thrown produce', () => {
  test('the transaction can only abort, and keeps the first reason', async () => {
    const { machine, commit, script } = await machineOn()
    script.fail('produce', refusal('produce', -190))
    await machine.begin()
    expect(() => machine.produce('out', 99, null, null, 0, [])).toThrow('-190')
    expect(machine.state).toBe('abort-only')
    expect(await commit()).toMatchObject({ kind: 'aborted', error: { operation: 'produce', code: -190 } })
    expect(script.operations).toEqual(['begin', 'produce', 'abort'])
  })
})

describe('X4: an unknown outcome of a commit', () => {
  const stuck = Array.from({ length: 1_000 }, () => refusal('commit', -185, { isRetriable: true }))

  test.each([
    ['our nonce is in the group: committed', NONCE, 'committed'],
    ['another nonce is there: aborted', 'of-an-earlier-transaction', 'aborted'],
  ])('%s', async (_name, nonce, kind) => {
    const setup = await machineOn()
    const { machine, commit, script } = setup
    script.fail('commit', ...stuck)
    groupHas(setup, nonce)
    await machine.begin()
    expect(await commit()).toMatchObject({ kind })
    expect(machine.state).toBe('idle')
    const after = script.calls.slice(script.operations.lastIndexOf('commit') + 1)
    // Never an abort, never a second begin on the old epoch: the replacement settles it, then the group is asked (T3).
    expect(after).toEqual(['close app-1#1', 'connect app-1', 'init app-1#2', 'committed consumer'])
  })

  test('the next transaction on that id is on the new producer', async () => {
    const setup = await machineOn()
    const { machine, commit, script } = setup
    script.fail('commit', ...stuck)
    await machine.begin()
    await commit()
    script.fail('commit')
    await machine.begin()
    await machine.abort(refusal('commit', 22))
    await machine.begin()
    expect(script.calls.filter((call) => call.startsWith('begin'))).toEqual(['begin app-1#1', 'begin app-0#1', 'begin app-1#2'])
  })

  test('a group that does not answer leaves it in doubt', async () => {
    const setup = await machineOn()
    setup.script.fail('commit', ...stuck)
    setup.script.fail('committed', ...Array.from({ length: 1_000 }, () => refusal('committed', -185)))
    await setup.machine.begin()
    expect(await setup.commit()).toMatchObject({ kind: 'in-doubt' })
    expect(setup.machine.state).toBe('idle')
  })

  // The first try may have taken effect, and the refusal of the second may be the consequence of just that (decision 5).
  test.each([
    ['the client refusing the call', -173, {}],
    ['a refused record', 10, { isAbortRequired: true }],
    ['a missing sequence number', 45, { isAbortRequired: true }],
    ['a purged transaction', -152, { isAbortRequired: true }],
  ])('no answer and then %s (%i): only the nonce tells', async (_name, code, flags) => {
    for (const [nonce, kind] of [
      [NONCE, 'committed'],
      ['of-an-earlier-transaction', 'aborted'],
    ] as const) {
      const setup = await machineOn()
      setup.script.fail('commit', refusal('commit', -185, { isRetriable: true }), refusal('commit', code, flags))
      groupHas(setup, nonce)
      await setup.machine.begin()
      expect(await setup.commit()).toMatchObject({ kind })
      expect(setup.script.operations).not.toContain('abort')
      expect(setup.script.operations.slice(-3)).toEqual(['connect', 'init', 'committed'])
    }
  })

  test('a refusal of the very first try proves that nothing was committed: nobody is asked', async () => {
    const setup = await machineOn()
    setup.script.fail('commit', refusal('commit', -152, { isAbortRequired: true }))
    groupHas(setup, NONCE)
    await setup.machine.begin()
    expect(await setup.commit()).toMatchObject({ kind: 'aborted' })
    expect(setup.script.operations).not.toContain('committed')
  })

  test('a failure of commit that is fatal and of no known code is unknown too', async () => {
    const setup = await machineOn()
    setup.script.fail('commit', refusal('commit', -12_199, { isFatal: true }))
    groupHas(setup, NONCE)
    await setup.machine.begin()
    expect(await setup.commit()).toMatchObject({ kind: 'committed' })
  })
})

describe('T5: the broker does not let a producer be replaced', () => {
  const stuck = Array.from({ length: 1_000 }, () => refusal('commit', -185, { isRetriable: true }))
  const gated = (setup: Setup): (() => void) => {
    let open = () => {}
    setup.broker.connectGates.set('app-1', new Promise((resolve) => (open = resolve)))
    return open
  }

  test('an unknown outcome is in doubt when its time is over, however long the replacement takes, which goes on and ends in idle', async () => {
    const setup = await machineOn()
    const { machine, commit, script, clock } = setup
    script.fail('commit', ...stuck)
    const open = gated(setup)
    await machine.begin()
    expect(await commit()).toMatchObject({ kind: 'in-doubt' })
    expect(clock.monotonic()).toBeLessThanOrEqual(BUDGETS.totalMs + BUDGETS.callTimeoutMs)
    expect([machine.state, machine.isUsable, machine.isOpen]).toEqual(['repairing', false, false])
    expect(machine.repairStep()).toBe(false)
    open()
    await settle()
    expect(machine.repairStep()).toBe(true)
    expect(machine.state).toBe('idle')
    // One init of the id alone (A10), and the next transactions are on new epochs.
    expect(script.calls.filter((call) => call.startsWith('init'))).toEqual(['init app-1#2'])
  })

  test('an abort is known to be one, whether the producer could be replaced in time or not', async () => {
    const setup = await machineOn()
    const { machine, commit, script } = setup
    script.fail('commit', refusal('commit', 10, { isAbortRequired: true }))
    gated(setup)
    await machine.begin()
    expect(await commit()).toMatchObject({ kind: 'aborted', error: { code: 10 } })
    expect(machine.state).toBe('repairing')
  })

  test('abort, repeated without an answer, leaves time for the replacement', async () => {
    const { machine, commit, script, clock } = await machineOn()
    script.fail('sendOffsets', refusal('sendOffsets', 22, { isAbortRequired: true }))
    script.fail('abort', ...Array.from({ length: 10_000 }, () => refusal('abort', -185)))
    await machine.begin()
    expect(await commit()).toMatchObject({ kind: 'aborted', error: { code: 22 } })
    expect(clock.monotonic()).toBeLessThanOrEqual(BUDGETS.totalMs)
    expect(machine.state).toBe('idle')
  })

  test('a replacement that fails for good shows at the next look, in its own words', async () => {
    const { machine, script, commit } = await machineOn()
    script.fail('sendOffsets', refusal('sendOffsets', -144, { isFatal: true }))
    script.fail('init', refusal('init', 53))
    await machine.begin()
    await commit()
    machine.startRepair()
    await settle()
    expect(() => machine.repairStep()).toThrow(expect.objectContaining({ code: 53 }))
  })

  test('X10: a ring that is closed during a replacement keeps no producer of it', async () => {
    const setup = await machineOn()
    const { machine, commit, script, ring, broker } = setup
    script.fail('commit', ...stuck)
    const open = gated(setup)
    await machine.begin()
    await commit()
    const closed = ring.close()
    open()
    await closed
    expect(broker.producers.filter(({ isClosed }) => !isClosed).map(({ name }) => name)).toEqual([])
  })
})

describe('the ring of producers', () => {
  const ringOn = (broker: ScriptedBroker) => {
    const clock = new ManualClock()
    return new ProducerRing({
      broker,
      idPrefix: 'app',
      size: 2,
      transactionTimeoutMs: 10_000,
      initTimeoutMs: 1_000,
      patienceMs: 10_000,
      clock,
      timers: new InstantTimers(clock),
      logger: silentLogger,
    })
  }

  test('A10: a failed init drops its whole client before the next try, so a late result is not used', async () => {
    const broker = new ScriptedBroker()
    broker.script.fail('init', undefined, refusal('init', -185), refusal('init', WATCHDOG))
    const ring = ringOn(broker)
    await ring.open(SIZES)
    const ofOne = broker.producers.filter(({ transactionalId }) => transactionalId === broker.producers.at(-1)?.transactionalId)
    expect(ofOne.map(({ isClosed }) => isClosed)).toEqual([true, true, false])
  })

  test('an init that does not succeed within its budget ends in a message that names the transactional id', async () => {
    const broker = new ScriptedBroker()
    broker.script.fail('init', ...Array.from({ length: 500 }, () => refusal('init', -185)))
    const opened = ringOn(broker).open(SIZES)
    await expect(opened).rejects.toBeInstanceOf(BrokerUnavailableError)
    await expect(opened).rejects.toThrow(/transactional id app-[01] could not be initialised within 10000 ms/)
  })

  test('X10: when one id is refused for good, the other producers are closed too, also one that connects later', async () => {
    const broker = new ScriptedBroker()
    let connect = () => {}
    broker.connectGates.set('app-1', new Promise((resolve) => (connect = resolve)))
    broker.script.fail('init', refusal('init', 53))
    const ring = ringOn(broker)
    const opened = ring.open(SIZES)
    opened.catch(() => undefined)
    await settle()
    connect()
    await expect(opened).rejects.toMatchObject({ code: 53 })
    await ring.close()
    expect(broker.producers.filter(({ isClosed }) => !isClosed).map(({ name }) => name)).toEqual([])
  })
})
