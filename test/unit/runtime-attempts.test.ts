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
  return { process, damage: () => (note = note?.slice(0, 10)) }
}

describe('RA2: deaths in a row', () => {
  test('one death without a commit isolates nothing: kill -9 is not a fault of a record', () => {
    const { process } = slot()
    process()
    const { attempts, input } = process()
    expect(attempts.isolates(input, 5)).toBe(false)
  })

  test('two isolate what is read first', () => {
    const { process } = slot()
    process()
    process()
    const { attempts, input } = process()
    expect(attempts.isolates(input, 5)).toBe(true)
    expect(attempts.isolates(input, 5 + 999)).toBe(true)
    expect(attempts.isolates(input, 5 + 1_000)).toBe(false)
  })

  test('a commit in between, or an orderly end, starts the count anew', () => {
    const { process } = slot()
    process()
    const { attempts, input } = process()
    attempts.committed([input])
    process()
    const third = process()
    expect(third.attempts.isolates(third.input, 5)).toBe(false)
    third.attempts.ended()
    process()
    const last = process()
    expect(last.attempts.isolates(last.input, 5)).toBe(false)
  })

  test('a note that is cut off is no note', () => {
    const { process, damage } = slot()
    process()
    process()
    damage()
    const { attempts, input } = process()
    expect(attempts.isolates(input, 5)).toBe(false)
  })
})

describe('RA1, RA3: attempts of one record', () => {
  test('a record that ends the process leaves its name, and is given up after three tries that named it', () => {
    const { process } = slot()
    process()
    process()
    for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt++) {
      const { attempts, input } = process()
      expect(attempts.isolates(input, 5)).toBe(true)
      expect(attempts.begin(input, 5)).toBeUndefined() // and the process dies of it
    }
    const { attempts, input } = process()
    expect(attempts.begin(input, 5)?.message).toBe('the process ended while it processed this record; given up after 3 attempts')
  })

  test('a record that passes is forgotten with its commit', () => {
    const { process } = slot()
    process()
    process()
    const { attempts, input } = process()
    attempts.begin(input, 5)
    input.next = 6
    attempts.committed([input])
    // Left by a later death, the note holds no suspect: nothing at 5 or behind is isolated.
    const next = process(5)
    expect(next.attempts.isolates(next.input, 5)).toBe(false)
  })

  test('a slow record is named at once, isolated alone, and given up after three tries', () => {
    const { process } = slot()
    const { attempts, input } = process()
    attempts.slow(input, 7, 12_000)
    expect([attempts.isolates(input, 7), attempts.isolates(input, 8)]).toEqual([true, false])
    attempts.slow(input, 7, 12_000) // isolates() forgot it when 8 was asked for: counted by slow() itself
    for (let attempt = 3; attempt <= MAX_ATTEMPTS; attempt++) {
      expect(attempts.begin(input, 7)).toBeUndefined()
      attempts.slow(input, 7, 12_000)
    }
    expect(attempts.begin(input, 7)?.message).toMatch(/took 12000 ms, longer than a transaction may be open/)
  })

  test('a refused transaction isolates what it held; the record that is refused alone gets the reason', () => {
    const { process } = slot()
    const { attempts, input } = process()
    input.next = 9
    attempts.refused([input], new Error('too large'))
    expect([5, 8, 9].map((offset) => attempts.isolates(input, offset))).toEqual([true, true, false])
    input.next = 9
    attempts.refused([input], new Error('too large'))
    for (let attempt = 1; attempt <= MAX_ATTEMPTS; attempt++) {
      expect(attempts.isolates(input, 5)).toBe(true)
      expect(attempts.begin(input, 5)).toBeUndefined()
      input.next = 6
      attempts.refused([input], new Error('too large'))
      input.next = 5
    }
    expect(attempts.begin(input, 5)?.message).toBe('the broker refused what it wrote: too large; given up after 3 attempts')
  })

  test('attempts of a record that fails by name go on over a restart that ended in order', () => {
    const { process } = slot()
    const first = process()
    expect(first.attempts.failed(first.task, { topic: 'in', partition: 0, offset: 5 })).toBe(1)
    first.attempts.ended()
    const second = process()
    expect(second.attempts.isolates(second.input, 5)).toBe(true)
    second.attempts.begin(second.input, 5)
    expect(second.attempts.failed(second.task, { topic: 'in', partition: 0, offset: 5 })).toBe(2)
  })
})
