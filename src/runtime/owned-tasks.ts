/**
 * The tasks this worker owns, and their inputs by partition. Data with look-ups; who moves a task is said in `task-lifecycle`.
 *
 * A task is in here from the assign callback until its revoke is answered; its inputs only while it runs.
 */
import { partitionName } from '../common/topic-partition.ts'
import type { AssignedTask, InputPartition } from './assigned-task.ts'

export class OwnedTasks {
  readonly #tasks = new Map<number, AssignedTask>()
  readonly #inputs = new Map<string, InputPartition>()

  get size(): number {
    return this.#tasks.size
  }

  get(number: number): AssignedTask | undefined {
    return this.#tasks.get(number)
  }

  /** False when the number was given up, or assigned anew, meanwhile. */
  has(task: AssignedTask): boolean {
    return this.#tasks.get(task.number) === task
  }

  add(task: AssignedTask): void {
    this.#tasks.set(task.number, task)
  }

  /** From now on records of the task's inputs are accepted. */
  activate(task: AssignedTask): void {
    for (const input of task.inputs) this.#inputs.set(partitionName(input.topic, input.partition), input)
  }

  remove(task: AssignedTask): void {
    for (const input of task.inputs) {
      const name = partitionName(input.topic, input.partition)
      if (this.#inputs.get(name) === input) this.#inputs.delete(name)
    }
    if (this.has(task)) this.#tasks.delete(task.number)
  }

  input(topic: string, partition: number): InputPartition | undefined {
    return this.#inputs.get(partitionName(topic, partition))
  }

  inputs(): Iterable<InputPartition> {
    return this.#inputs.values()
  }

  all(): AssignedTask[] {
    return [...this.#tasks.values()]
  }

  running(): AssignedTask[] {
    return this.all().filter(({ phase }) => phase === 'running')
  }

  /** Tasks with something to commit. */
  dirty(): AssignedTask[] {
    return this.all().filter((task) => task.dirty)
  }

  get anyRunning(): boolean {
    for (const { phase } of this.#tasks.values()) if (phase === 'running') return true
    return false
  }

  get allRunning(): boolean {
    for (const { phase } of this.#tasks.values()) if (phase !== 'running') return false
    return true
  }

  get anyDirty(): boolean {
    for (const task of this.#tasks.values()) if (task.dirty) return true
    return false
  }

  /** Closes every task: the end of the worker. */
  close(): void {
    for (const task of this.#tasks.values()) if (task.phase !== 'closed') task.close()
    this.#tasks.clear()
    this.#inputs.clear()
  }
}
