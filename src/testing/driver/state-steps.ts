/**
 * Makes the steps between a worker and its state visible: where it may be struck, and where its disk may turn out to be damaged.
 *
 * Owns: when a merge and a checkpoint begin and end. Does not own: the state itself, or who is struck.
 */
import { CorruptedStoreError } from '../../errors/errors.ts'
import type { StateBackend, TaskState } from '../../state/store.ts'
import type { When } from './faults.ts'

export interface StateSteps {
  /** May throw: the process died there. `damage`: the file is found damaged. */
  readonly passes: (step: 'merge' | 'checkpoint', when: When, stores: readonly string[]) => 'damage' | undefined
  /** The file of this task is set aside: it is empty when it is opened again. */
  readonly setAside: (taskId: string) => void
}

export function withStateSteps(backend: StateBackend, steps: StateSteps): StateBackend {
  return {
    async open(taskId, specs) {
      const state = await backend.open(taskId, specs)
      const stores = [...state.stores.keys()]
      for (const [name, store] of state.stores) {
        const commit = store.commit.bind(store)
        store.commit = () => {
          steps.passes('merge', 'before', [name])
          commit()
          steps.passes('merge', 'after', [name])
        }
      }
      const flush: TaskState['flush'] = state.flush.bind(state)
      state.flush = (checkpoints, knownAt) => {
        if (steps.passes('checkpoint', 'before', stores) === 'damage') {
          steps.setAside(taskId)
          throw new CorruptedStoreError(`the state of task ${taskId} is damaged (fault of the test driver)`, { code: 'state-damaged' })
        }
        flush(checkpoints, knownAt)
        steps.passes('checkpoint', 'after', stores)
      }
      return state
    },
    lockSlot: (slotName) => backend.lockSlot(slotName),
    close: () => backend.close(),
  }
}
