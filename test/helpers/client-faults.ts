/**
 * Faults in the native Kafka client below the adapter, for apps in this process: a call is answered otherwise, held, or only looked at. Each strikes one
 * application, at a call that the test chooses, and is gone at the end of its test. (For worker processes: `ChildFault` of app-child.)
 */
import { createRequire } from 'node:module'
import { onTestFinished } from 'vitest'

export type TransactionalCall =
  'initTransactions' | 'beginTransaction' | 'flush' | 'sendOffsetsToTransaction' | 'commitTransaction' | 'abortTransaction'

type Answer = (error?: unknown) => void
type Method = (...args: unknown[]) => unknown

/** As the client reports failures. */
export interface ClientFailure {
  readonly message: string
  readonly code: number
  readonly isFatal?: boolean
  readonly isRetriable?: boolean
  readonly isTxnRequiresAbort?: boolean
}

export interface InterceptedCall {
  readonly transactionalId: string
  /** Of this operation, over all producers of the application; the first is 1. */
  readonly call: number
  readonly args: readonly unknown[]
  /** Lets the call go out; `then` gets its answer instead of the caller. */
  pass(then?: Answer): void
  /** Answers the caller. Without `pass` the broker never hears of the call. */
  answer: Answer
}

interface ClientPrototype {
  globalConfig?: Readonly<Record<string, unknown>>
  [name: string]: unknown
}
interface ClientClass {
  readonly prototype: ClientPrototype
}
const client = createRequire(import.meta.url)('@confluentinc/kafka-javascript') as { Producer: ClientClass; KafkaConsumer: ClientClass }

function replaceMethod({ prototype }: ClientClass, name: string, make: (original: Method) => Method): void {
  const original = prototype[name]
  const own = Object.hasOwn(prototype, name)
  if (typeof original !== 'function') throw new Error(`the client has no ${name}`)
  prototype[name] = make(original as Method)
  onTestFinished(() => {
    if (own) prototype[name] = original
    else delete prototype[name]
  })
}

function idOf({ globalConfig }: ClientPrototype): string {
  const id = globalConfig?.['transactional.id']
  return typeof id === 'string' ? id : ''
}

/** `strike` decides about each call of `operation` by a producer whose transactional id begins with `prefix`; it must `pass` or `answer`. */
export function intercept(prefix: string, operation: TransactionalCall, strike: (call: InterceptedCall) => void): void {
  let calls = 0
  replaceMethod(client.Producer, operation, (original) => {
    return function (this: ClientPrototype, ...args: unknown[]) {
      const transactionalId = idOf(this)
      if (!transactionalId.startsWith(`${prefix}-`)) return original.apply(this, args)
      const done = args.at(-1) as Answer
      strike({
        transactionalId,
        call: ++calls,
        args,
        pass: (then = done) => original.apply(this, [...args.slice(0, -1), then]),
        answer: (error) => void setImmediate(done, error),
      })
      return undefined
    }
  })
}

/** Looks at every record that is handed to a producer of the application; a number is the client's refusal, and the record is not queued. */
export function interceptProduce(prefix: string, strike: (topic: string, value: Buffer | null, call: number) => number | undefined): void {
  let calls = 0
  replaceMethod(client.Producer, 'getClient', (original) => {
    return function (this: ClientPrototype, ...args: unknown[]) {
      const found = original.apply(this, args) as { produce: Method }
      if (!idOf(this).startsWith(`${prefix}-`)) return found
      return {
        produce: (...produced: unknown[]) =>
          strike(produced[0] as string, produced[2] as Buffer | null, ++calls) ?? found.produce(...produced),
      }
    }
  })
}

/** Counts the calls of one method of the application's group consumer. */
export function countConsumerCalls(group: string, method: 'committed'): () => number {
  let calls = 0
  replaceMethod(client.KafkaConsumer, method, (original) => {
    return function (this: ClientPrototype, ...args: unknown[]) {
      if (this.globalConfig?.['group.id'] === group) calls++
      return original.apply(this, args)
    }
  })
  return () => calls
}

export const FAILURES = {
  /** The group has a new generation. */
  illegalGeneration: { message: 'injected: illegal generation', code: 22, isTxnRequiresAbort: true },
  fenced: { message: 'injected: fenced', code: -144, isFatal: true },
  timedOut: { message: 'injected: timed out', code: -185, isRetriable: true },
  connectionClosed: { message: 'injected: connection closed', code: -195, isRetriable: true },
} as const satisfies Record<string, ClientFailure>
