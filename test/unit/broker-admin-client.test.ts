/** AC1, P5: clients of the admin are let go of when nothing is in them, and none is made after the end. */
import { expect, test } from 'vitest'
import { AdminClient } from '../../src/broker/kafka/admin-client.ts'
import type { NativeAdmin } from '../../src/broker/kafka/native.ts'
import { CLOSED } from '../../src/errors/broker-codes.ts'

function clients() {
  const made: { disconnected: boolean }[] = []
  const create = (): NativeAdmin => {
    const client = { disconnected: false }
    made.push(client)
    return { disconnect: () => void (client.disconnected = true) } as NativeAdmin
  }
  return { made, create }
}

test('a client is closed when the call inside has come back, and the next call gets another one', async () => {
  const { made, create } = clients()
  const admin = new AdminClient(create)
  let answer: ((error: unknown, result: string) => void) | undefined
  const call = admin.call<string>((_client, done) => (answer = done))
  admin.renew()
  expect(made).toEqual([{ disconnected: false }])
  await admin.call<void>((_client, done) => done(undefined))
  expect(made).toHaveLength(2)
  answer?.(undefined, 'late')
  expect(await call).toBe('late')
  await admin.close()
  expect(made).toEqual([{ disconnected: true }, { disconnected: true }])
})

// Seen under chaos: a worker that was told to stop while it looked at its inputs, with a broker away. The look-up failed, was repeated after the end, and the
// client made for that held the process.
test('a look-up that is repeated after the end gets CLOSED and no client', async () => {
  const { made, create } = clients()
  const admin = new AdminClient(create)
  let fail: ((error: unknown) => void) | undefined
  const first = admin.call<void>((_client, done) => (fail = done))
  const again = first.catch(() => admin.call<void>((_client, done) => done(undefined)))
  const closing = admin.close()
  fail?.({ message: 'timed out', code: -185 })
  await expect(again).rejects.toMatchObject({ name: 'BrokerError', code: CLOSED })
  await closing
  expect(made).toEqual([{ disconnected: true }])
})
