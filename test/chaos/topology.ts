/** The topology under test. `model.ts` says what it must do. */
import { string } from '../../src/serde/index.ts'
import { deadLetters, topic, topology, type Topology } from '../../src/topology/index.ts'
import { jsonOf } from '../helpers/codecs.ts'
import type { ChaosEvent, ChaosOutput, Scenario } from './scenario.ts'

export function chaosTopology(scenario: Scenario): Topology {
  const events = (name: string) => topic(name, { key: string(), value: jsonOf<ChaosEvent>() })
  const output = topic(scenario.output, { key: string(), value: jsonOf<ChaosOutput>() })
  return topology(scenario.application, { onError: { to: deadLetters(scenario.deadLetters) } }, ({ stream }) => {
    stream(events(scenario.input))
      .filter((event) => event.kind !== 'skip')
      .dedupe({
        by: (event) => event.id,
        window: scenario.windowMs,
        partitioned: 'by-key',
        onDuplicate: { to: events(scenario.duplicates) },
      })
      .map((event, { key, partition, offset }) => {
        if (event.kind === 'throw') throw new Error(`event ${event.id} cannot be processed`)
        const value: ChaosOutput = { ...event, from: [partition, offset] }
        return { key, value }
      })
      .to(output)
  })
}
