/** Starts `field-child.ts`. */
import { fileURLToPath } from 'node:url'
import type { Config } from '../../src/config/define.ts'
import { QUICK, type Scene } from './apps.ts'
import { Child } from './children.ts'
import type { FieldChildOptions } from './field-child.ts'
import { brokers } from './kafka.ts'

export function fieldChild(
  { application, input, output, stateDir }: Scene,
  what: Pick<FieldChildOptions, 'failed' | 'mark' | 'onMark' | 'blockMs'>,
  config: Partial<Config> = {},
): Child {
  const options: FieldChildOptions = {
    application,
    input,
    output,
    ...what,
    config: { brokers, instance: 'child', stateDir, ...QUICK, ...config },
  }
  return new Child([fileURLToPath(new URL('field-child.ts', import.meta.url)), JSON.stringify(options)])
}
