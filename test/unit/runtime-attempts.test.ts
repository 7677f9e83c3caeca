/** Records that make the worker fail without being named: isolation and attempts over restarts (src/runtime/record-attempts.ts). */
import { describe, expect, test } from 'vitest'
import { AssignedTask, type InputPartition } from '../../src/runtime/assigned-task.ts'
import { MAX_ATTEMPTS, RecordAttempts } from '../../src/runtime/record-attempts.ts'
import type { SubTopology } from '../../src/topology/nodes.ts'

const sub: SubTopology = { id: 0, nodes: [], inputs: ['in'], stores: [] }

/** The note on disk; each `process` is one life of the slot. */
function slot() {
  let note: string | undefined
  const lock = { readNote: () => note, writeNote: (text: string) => void (note = text) }
  const process = (committed = 5): { attempts: RecordAttempts; input: InputPartition; task: AssignedTask } => {
    const attempts = new RecordAttempts(lock)
    const task = new AssignedTask(0, 'app-tasks', sub, 0, sub.inputs)
    const input = task.inputs[0]!
    input.committed = input.next = committed
    attempts.started(task)
    return { attempts, input, task }
  }
  const names = (): unknown => (note === undefined ? undefined : (JSON.parse(note) as { running?: unknown }).running)
  return { process, names, damage: () => (note = note?.slice(0, 10)) }
}

describe('RA2: deaths in a row', () => {
  test('one death without a commit names nothing: kill -9 is not a fault of a record', () => {
    const { process, names } = slot()
    process()
    const { attempts, input } = process()
    attempts.begin(input, 5)
    expect(names()).toBeUndefined()
  })

  test('two name what is read first, and no transaction gets smaller for it', () => {
    const { process, names } = slot()
    process()
    process()
    const { attempts, input } = process()
    for (const offset of [5, 5 + 999]) {
      expect(attempts.begin(input, offset)).toBeUndefined()
      expect(names()).toEqual({ partition: 'in[0]', offset })
      expect(attempts.isolates(input, offset)).toBe(false)
    }
    attempts.begin(input, 5 + 1_000)
    expect(names()).toBeUndefined()
  })

  test('a commit in between, or an orderly end, starts the count anew', () => {
    const { process, names } = slot()
    process()
    const second = process()
    second.attempts.committed([second.input])
    process()
    const third = process()
    third.attempts.begin(third.input, 5)
    expect(names()).toBeUndefined()
    third.attempts.ended()
    process()
    const last = process()
    last.attempts.begin(last.input, 5)
    expect(names()).toBeUndefined()
  })

  test('a note that is cut off is no note', () => {
    const { process, damage, names } = slot()
    process()
    process()
    damage()
    const { attempts, input } = process()
    attempts.begin(input, 5)
    expect(names()).toBeUndefined()
  })
})

describe('RA1, RA3: failures of one record', () => {
  test('a record that ends the process leaves its name, and is given up after three deaths that named it; another one is not touched', () => {
    const { process } = slot()
    process()
    process()
    for (let death = 1; death <= MAX_ATTEMPTS; death++) {
      const { attempts, input } = process()
      expect(attempts.begin(input, 5)).toBeUndefined()
      expect(attempts.begin(input, 6)).toBeUndefined() // and the process dies of this one
    }
    const { attempts, input } = process()
    expect(attempts.begin(input, 5)).toBeUndefined()
    expect(attempts.begin(input, 6)?.message).toBe('the process ended while it processed this record; given up after 3 attempts')
  })

  test('aborts for other reasons do not count: a named record may be read again as often as it takes', () => {
    const { process } = slot()
    process()
    process()
    const { attempts, input } = process()
    for (let abort = 0; abort < 10; abort++) expect(attempts.begin(input, 5)).toBeUndefined()
  })

  test('an orderly end is no death of the record that ran last', () => {
    const { process } = slot()
    process()
    process()
    for (let end = 0; end < 10; end++) {
      const { attempts, input } = process()
      expect(attempts.begin(input, 5)).toBeUndefined()
      attempts.ended()
    }
  })

  test('a record that passes is forgotten with its commit', () => {
    const { process } = slot()
    const { attempts, input } = process()
    attempts.slow(input, 5, 12_000)
    input.next = 6
    attempts.committed([input])
    expect(attempts.failed({ topic: 'in', partition: 0, offset: 5 })).toBe(1)
  })

  test('a slow record is given up after three times', () => {
    const { process } = slot()
    const { attempts, input } = process()
    for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt++) {
      expect(attempts.begin(input, 7)).toBeUndefined()
      attempts.slow(input, 7, 12_000)
    }
    expect(attempts.begin(input, 7)?.message).toMatch(/took 12000 ms, longer than a transaction may be open/)
    expect(attempts.begin(input, 8)).toBeUndefined()
  })

  test('a refused transaction isolates what it held; the record that is refused alone gets the reason', () => {
    const { process } = slot()
    const { attempts, input } = process()
    input.next = 9
    attempts.refused([input], new Error('too large'))
    expect([5, 8].map((offset) => attempts.isolates(input, offset))).toEqual([true, true])
    for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt++) {
      expect(attempts.begin(input, 5)).toBeUndefined()
      input.next = 6
      attempts.refused([input], new Error('too large'))
      input.next = 5
    }
    expect(attempts.begin(input, 5)?.message).toBe('the broker refused what it wrote: too large; given up after 3 attempts')
    // Not isolated any more from the first record on that was not in the refused transaction.
    expect(attempts.isolates(input, 9)).toBe(false)
  })

  test('failures by name go on over a restart that ended in order', () => {
    const { process } = slot()
    const first = process()
    expect(first.attempts.failed({ topic: 'in', partition: 0, offset: 5 })).toBe(1)
    first.attempts.ended()
    const second = process()
    expect(second.attempts.begin(second.input, 5)).toBeUndefined()
    expect(second.attempts.failed({ topic: 'in', partition: 0, offset: 5 })).toBe(2)
  })
})
