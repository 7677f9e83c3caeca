/**
 * A worker was told to stop while a look-up beside its loop waited for a broker that was away. After the worker had ended the look-up went on, and the
 * native client that it opened for that was closed by nobody: the process did not end (seen under chaos, P5).
 */
import { afterAll, expect, test } from 'vitest'
import { KafkaBroker } from '../../src/broker/kafka/broker.ts'
import { LOG_START } from '../../src/broker/port.ts'
import { silentLogger } from '../../src/common/ports.ts'
import { CLOSED } from '../../src/errors/broker-codes.ts'
import { brokers, createTopic, disconnectKafka, unique } from '../helpers/kafka.ts'

afterAll(disconnectKafka)

test('close waits for a reader in use, whose next poll is refused; what is asked later opens nothing', async () => {
  const topic = await createTopic(unique('closed'), 1)
  const broker = new KafkaBroker({
    brokers: brokers.split(','),
    clientId: unique('closed'),
    connectTimeoutMs: 10_000,
    metadataRefreshMs: 60_000,
    logger: silentLogger,
    client: {},
  })
  const reader = await broker.connectReader()
  reader.assign([{ topic, partition: 0, offset: LOG_START }])
  const outstanding = reader.poll(1, 200)
  let isClosed = false
  const closing = broker.close().then(() => (isClosed = true))
  await outstanding
  const refused = expect.objectContaining({ name: 'BrokerError', code: CLOSED })
  await expect(reader.poll(1, 200)).rejects.toEqual(refused)
  await expect(broker.connectReader()).rejects.toEqual(refused)
  await expect(broker.writeRecord(topic, 0, Buffer.from('k'), Buffer.from('v'), 1_000)).rejects.toEqual(refused)
  await expect(broker.admin.offsets([{ topic, partition: 0 }])).rejects.toEqual(refused)
  await expect(broker.admin.describeGroup(unique('group'))).rejects.toEqual(refused)
  expect(isClosed).toBe(false)
  await reader.close()
  await closing
})
