/** What a worker owns: phases of a task, its positions, the look-up by partition, and the metadata of its offsets. */
import { describe, expect, test } from 'vitest'
import { AssignedTask, TASK_PHASES, type TaskPhase } from '../../src/runtime/assigned-task.ts'
import { readMetadata, readNonce, writeMetadata } from '../../src/runtime/offset-metadata.ts'
import { OwnedTasks } from '../../src/runtime/owned-tasks.ts'
import type { SubTopology } from '../../src/topology/nodes.ts'

const sub: SubTopology = { id: 0, nodes: [], inputs: ['a', 'b'], stores: [] }
const task = (number = 0, partition = number): AssignedTask => new AssignedTask(number, 'app-tasks', sub, partition, sub.inputs)
const PHASES = Object.keys(TASK_PHASES) as TaskPhase[]
const WAYS: Readonly<Record<TaskPhase, readonly TaskPhase[]>> = {
  preparing: [],
  restoring: ['restoring'],
  running: ['restoring', 'running'],
  closed: ['closed'],
}
const inPhase = (phase: TaskPhase): AssignedTask => {
  const made = task()
  for (const step of WAYS[phase]) made.moveTo(step)
  return made
}

describe('phases of a task', () => {
  const allowed = new Set([
    'preparing restoring',
    'preparing closed',
    'restoring running',
    'restoring preparing',
    'restoring closed',
    'running preparing',
    'running closed',
  ])
  test.each(PHASES.flatMap((from) => PHASES.map((to) => [from, to] as const)))('%s to %s', (from, to) => {
    const made = inPhase(from)
    if (allowed.has(`${from} ${to}`)) {
      made.moveTo(to)
      expect(made.phase).toBe(to)
    } else {
      expect(() => made.moveTo(to)).toThrow('invariant A1')
      expect(made.phase).toBe(from)
    }
  })

  test('nothing leaves closed: a task that was given up never runs again', () => {
    expect(TASK_PHASES.closed).toEqual([])
  })
})

describe('a task', () => {
  test('assigns its partition of the task topic and its inputs beside it', () => {
    expect(task(5, 2).assigned).toEqual([
      { topic: 'app-tasks', partition: 5 },
      { topic: 'a', partition: 2 },
      { topic: 'b', partition: 2 },
    ])
    expect(task(5, 2).name).toBe('0_2')
  })

  test('X7: is never dirty before it runs, so nothing is committed for it', () => {
    for (const phase of ['preparing', 'restoring', 'closed'] as const) {
      const made = inPhase(phase)
      made.touched = true
      expect(made.dirty).toBe(false)
    }
    const running = inPhase('running')
    running.touched = true
    expect(running.dirty).toBe(true)
  })

  test('is dirty when a position moved past control records, without a record', () => {
    const running = inPhase('running')
    const [input] = running.inputs
    input!.committed = 8
    input!.next = 8
    expect(running.dirty).toBe(false)
    input!.next = 11
    expect(running.dirty).toBe(true)
    running.commit(3)
    expect(running.dirty).toBe(false)
    expect(input).toMatchObject({ committed: 11, committedAt: 3 })
  })

  test('X7: refuses a record before its state is there', () => {
    expect(() => task().process({ topic: 'a', partition: 0, offset: 0, timestamp: 0, key: null, value: null, headers: [] })).toThrow(
      'invariant A3',
    )
  })
})

describe('owned tasks', () => {
  test('inputs are found only from the activation to the removal', () => {
    const owned = new OwnedTasks()
    const mine = task(3)
    owned.add(mine)
    expect(owned.input('a', 3)).toBeUndefined()
    owned.activate(mine)
    expect(owned.input('a', 3)?.task).toBe(mine)
    owned.remove(mine)
    expect(owned.input('a', 3)).toBeUndefined()
    expect(owned.size).toBe(0)
  })

  test('removing an earlier owner of the same number leaves the present one alone', () => {
    const owned = new OwnedTasks()
    const [earlier, later] = [task(3), task(3)]
    owned.add(earlier)
    owned.add(later)
    owned.activate(later)
    owned.remove(earlier)
    expect(owned.has(later)).toBe(true)
    expect(owned.has(earlier)).toBe(false)
    expect(owned.input('a', 3)?.task).toBe(later)
  })

  test('close closes every task', () => {
    const owned = new OwnedTasks()
    const tasks = [task(0), task(1)]
    for (const each of tasks) owned.add(each)
    tasks[0]!.close()
    owned.close()
    expect(tasks.map(({ phase }) => phase)).toEqual(['closed', 'closed'])
    expect(owned.size).toBe(0)
  })

  test('none running and all running are told apart, an empty set counts as all', () => {
    const owned = new OwnedTasks()
    expect([owned.anyRunning, owned.allRunning]).toEqual([false, true])
    const [first, second] = [task(0), task(1)]
    owned.add(first)
    owned.add(second)
    for (const step of WAYS.running) first.moveTo(step)
    expect([owned.anyRunning, owned.allRunning]).toEqual([true, false])
  })
})

describe('the metadata of a committed offset', () => {
  const full = {
    nonce: 'AAEC_-',
    streamTime: 1_700_000_000_123,
    transactionalIdPrefix: 'app-host-0',
    ringSize: 2,
    committedAt: 1_700_000_000_456,
  }

  test('comes back as it was written', () => {
    expect(readMetadata(writeMetadata(full))).toEqual(full)
    expect(readMetadata(writeMetadata({ ...full, streamTime: -1 }))?.streamTime).toBe(-1)
    expect(readNonce(writeMetadata(full))).toBe('AAEC_-')
  })

  test('stays far below the 4096 bytes that a broker accepts, with the longest names', () => {
    const longest = {
      ...full,
      nonce: Buffer.alloc(16, 255).toString('base64url'),
      transactionalIdPrefix: `${'a'.repeat(150)}-${'h'.repeat(150)}-9999`,
    }
    expect(Buffer.byteLength(writeMetadata(longest))).toBeLessThan(1_024)
  })

  test.each([
    '',
    'reset by a person',
    '{}',
    '{"v":2,"n":"x"}',
    '{"v":1,',
    '{"v":1,"n":7,"t":1,"p":"x","r":1,"c":1}',
    '{"v":1,"n":"x","t":"1","p":"x","r":1,"c":1}',
    '{"v":1,"n":"x","t":1,"p":"x","r":1}',
    '[]',
    'null',
  ])('of somebody else is ignored: %j', (text) => {
    expect(readMetadata(text)).toBeUndefined()
    expect(readNonce(text)).toBeUndefined()
  })
})
