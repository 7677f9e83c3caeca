/** Partition 0 of a task topic on a scripted broker: what is written can be read, by every reader from the start of the log. */
import type { ChangelogReader } from '../../src/broker/port.ts'
import { record, type ScriptedBroker } from './scripted-broker.ts'

export class TaskTopicLog {
  readonly #records: { readonly key: string; readonly value: string }[] = []
  readonly #name: string
  readonly #broker: ScriptedBroker
  /** Called once, before the next record is written: somebody else's comes first. */
  beforeWrite: (() => void) | undefined
  reads = 0

  constructor(broker: ScriptedBroker, name: string) {
    this.#broker = broker
    this.#name = name
  }

  get records(): readonly { readonly key: string; readonly value: string }[] {
    return this.#records
  }

  add(key: string, value: string): void {
    this.#records.push({ key, value })
    this.#broker.admin.bounds.set(`${this.#name}[0]`, {
      topic: this.#name,
      partition: 0,
      logStart: 0,
      highWatermark: this.#records.length,
    })
  }

  reader(): ChangelogReader {
    this.reads++
    return {
      assign: () => undefined,
      poll: () =>
        Promise.resolve({
          records: this.#records.map(({ key, value }, offset) => record(this.#name, offset, key, value)),
          ends: [{ topic: this.#name, partition: 0, offset: this.#records.length }],
        }),
      close: () => Promise.resolve(),
    }
  }
}

export function taskTopicOn(broker: ScriptedBroker, name: string, ...records: readonly (readonly [string, string])[]): TaskTopicLog {
  const log = new TaskTopicLog(broker, name)
  for (const [key, value] of records) log.add(key, value)
  broker.connectReader = () => Promise.resolve(log.reader())
  broker.writeRecord = (topic, _partition, key, value) => {
    const before = log.beforeWrite
    log.beforeWrite = undefined
    before?.()
    broker.written.push({ topic, key, value })
    log.add(String(key), String(value))
    return Promise.resolve()
  }
  return log
}
