import { execFileSync } from 'node:child_process'
import { createServer, type AddressInfo, type Socket } from 'node:net'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { imageVariable } from '../../scripts/broker-provider/docker-broker.ts'
import { freePorts } from '../../scripts/broker-provider/jvm-broker.ts'
import { DEFAULT_KAFKA_VERSION, defaultKafkaVersion, parseRecord, provideBroker } from '../../scripts/broker-provider/provider.ts'
import { decodeClusterView, readClusterView } from '../../scripts/broker-provider/metadata-request.ts'
import { brokerNameOfTopicSetting, clusterProperties, propertiesText } from '../../scripts/broker-provider/server-properties.ts'

describe('broker properties', () => {
  it('replicate internal topics three times with three nodes and once with one', () => {
    expect(clusterProperties({ nodes: 3 })).toMatchObject({
      'transaction.state.log.replication.factor': '3',
      'transaction.state.log.min.isr': '2',
      'min.insync.replicas': '2',
    })
    expect(clusterProperties({ nodes: 1 })).toMatchObject({
      'transaction.state.log.replication.factor': '1',
      'transaction.state.log.min.isr': '1',
      'min.insync.replicas': '1',
    })
  })

  it('create no topic by accident and start a group at once', () => {
    expect(clusterProperties({ nodes: 1 })).toMatchObject({ 'auto.create.topics.enable': 'false', 'group.initial.rebalance.delay.ms': '0' })
  })

  it.each([
    ['retention.ms', 'log.retention.ms'],
    ['max.message.bytes', 'message.max.bytes'],
    ['delete.retention.ms', 'log.cleaner.delete.retention.ms'],
    ['segment.ms', 'log.roll.ms'],
    ['min.insync.replicas', 'min.insync.replicas'],
  ])('have the topic setting %s as %s', (topic, broker) => {
    expect(brokerNameOfTopicSetting(topic)).toBe(broker)
    expect(clusterProperties({ nodes: 1, topicDefaults: { [topic]: '7' } })).toMatchObject({ [broker]: '7' })
  })

  it('give way to those of the caller', () => {
    expect(clusterProperties({ nodes: 1, serverProperties: { 'offsets.retention.minutes': '1', 'num.io.threads': '9' } })).toMatchObject({
      'offsets.retention.minutes': '1',
      'num.io.threads': '9',
    })
  })

  it('are written so that a backslash stays one', () => {
    expect(propertiesText({ a: 'x\\y' })).toBe('a=x\\\\y\n')
  })

  it('become variables of the image', () => {
    expect(imageVariable('transaction.state.log.min.isr')).toBe('KAFKA_TRANSACTION_STATE_LOG_MIN_ISR')
    expect(imageVariable('a-b_c.d')).toBe('KAFKA_A___B__C_D')
  })
})

describe('a line of the console consumer', () => {
  const line = (...fields: string[]): string => fields.join('\u0001')

  it('is a record, with null apart from empty', () => {
    expect(parseRecord(line('CreateTime:1700000000000', 'Partition:3', 'Offset:12', 'k', 'v'), 't')).toEqual({
      partition: 3,
      offset: 12,
      timestamp: 1_700_000_000_000,
      key: 'k',
      value: 'v',
    })
    expect(parseRecord(line('NO_TIMESTAMP', 'Partition:0', 'Offset:0', '\u0002null', ''), 't')).toEqual({
      partition: 0,
      offset: 0,
      timestamp: -1,
      key: null,
      value: '',
    })
  })

  it('is refused when it is half of one', () => {
    expect(() => parseRecord('second half of a value', 't')).toThrow(/topic t: .*line feed/)
  })
})

describe('KAFKA_BROKERS', () => {
  it('is refused when it is no address', async () => {
    await expect(provideBroker({ nodes: 1 }, { KAFKA_BROKERS: 'localhost' })).rejects.toThrow(/'localhost' is not host:port/)
  })

  it('that nobody answers at is an error that names it and the ways out', async () => {
    const [port] = await freePorts(1)
    await expect(provideBroker({ nodes: 1 }, { KAFKA_BROKERS: `127.0.0.1:${port}` })).rejects.toThrow(
      new RegExp(`KAFKA_BROKERS is set to 127\\.0\\.0\\.1:${port}.*unset KAFKA_BROKERS`),
    )
  })
})

describe('something between clients and brokers', () => {
  it('cannot be had with KAFKA_BROKERS, which is refused before anybody is asked', async () => {
    const advertise = (): string => {
      throw new Error('asked')
    }
    await expect(provideBroker({ nodes: 1, advertise }, { KAFKA_BROKERS: 'localhost:9092' })).rejects.toThrow(
      /KAFKA_BROKERS is set to localhost:9092.*unset KAFKA_BROKERS/,
    )
  })
})

describe('the version that is started', () => {
  it('is that of MILLRACE_KAFKA_VERSION, else the default', () => {
    expect(defaultKafkaVersion({ MILLRACE_KAFKA_VERSION: '4.0.2' })).toBe('4.0.2')
    expect(defaultKafkaVersion({ MILLRACE_KAFKA_VERSION: ' ' })).toBe(DEFAULT_KAFKA_VERSION)
    expect(defaultKafkaVersion({})).toBe(DEFAULT_KAFKA_VERSION)
  })
})

describe('the view of one broker', () => {
  // Metadata, version 5, of a broker: two members, a topic of two partitions, one of them without a leader and with a replica that is behind.
  const int = (value: number, bytes: 1 | 2 | 4): Buffer => {
    const buffer = Buffer.alloc(bytes)
    buffer.writeIntBE(value, 0, bytes)
    return buffer
  }
  const text = (value: string | null): Buffer => Buffer.concat([int(value?.length ?? -1, 2), Buffer.from(value ?? '')])
  const list = (...elements: Buffer[]): Buffer => Buffer.concat([int(elements.length, 4), ...elements])
  const ids = (...values: number[]): Buffer => list(...values.map((value) => int(value, 4)))
  const member = (id: number, port: number, rack: string | null): Buffer =>
    Buffer.concat([int(id, 4), text('localhost'), int(port, 4), text(rack)])
  const answer = Buffer.concat([
    int(1, 4),
    int(0, 4),
    list(member(1, 9_001, null), member(2, 9_002, 'r')),
    text('cluster'),
    int(2, 4),
    list(
      Buffer.concat([
        int(0, 2),
        text('t'),
        int(0, 1),
        list(
          Buffer.concat([int(0, 2), int(0, 4), int(1, 4), ids(1, 2), ids(1, 2), ids()]),
          Buffer.concat([int(5, 2), int(1, 4), int(-1, 4), ids(2, 1), ids(2), ids(2)]),
        ),
      ]),
    ),
  ])

  it('has its members, and per partition leader, replicas and those in sync', () => {
    expect(decodeClusterView(answer)).toEqual({
      members: [
        { nodeId: 1, host: 'localhost', port: 9_001 },
        { nodeId: 2, host: 'localhost', port: 9_002 },
      ],
      partitions: [
        { topic: 't', partition: 0, leader: 1, replicas: [1, 2], inSync: [1, 2] },
        { topic: 't', partition: 1, leader: -1, replicas: [2, 1], inSync: [2] },
      ],
    })
  })

  it('is read from an answer that comes in pieces; silence, a closed connection and an answer that is none are errors', async () => {
    const behaviours: ((socket: Socket) => void)[] = [
      (socket) => {
        socket.setNoDelay(true)
        const frame = Buffer.concat([int(answer.length, 4), answer])
        for (const byte of frame) socket.write(Buffer.of(byte))
      },
      () => undefined,
      (socket) => socket.end(),
      (socket) => socket.write(Buffer.concat([int(6, 4), Buffer.alloc(6, 0x7f)])),
    ]
    const sockets = new Set<Socket>()
    const server = createServer((socket) => {
      sockets.add(socket)
      socket.on('error', () => undefined)
      socket.once('data', () => behaviours.shift()?.(socket))
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const address = `127.0.0.1:${(server.address() as AddressInfo).port}`
    expect((await readClusterView(address, 10_000)).members).toHaveLength(2)
    await expect(readClusterView(address, 50)).rejects.toThrow(/does not answer within 50 ms/)
    await expect(readClusterView(address, 10_000)).rejects.toThrow(/closed the connection/)
    await expect(readClusterView(address, 10_000)).rejects.toThrow(RangeError)
    for (const socket of sockets) socket.destroy()
    await new Promise<void>((resolve) => server.close(() => resolve()))
    await expect(readClusterView(address, 10_000)).rejects.toThrow(/ECONNREFUSED/)
  })
})

describe('free ports', () => {
  it('are all different and can be bound', async () => {
    const ports = await freePorts(8)
    expect(new Set(ports).size).toBe(8)
    const server = createServer()
    await new Promise<void>((resolve) => server.listen(ports[0], '127.0.0.1', resolve))
    expect((server.address() as AddressInfo).port).toBe(ports[0])
    await new Promise<void>((resolve) => server.close(() => resolve()))
  })
})

describe('no way to a broker', () => {
  it('is one error that names the three ways', async () => {
    const nowhere = { PATH: '/nonexistent', DOCKER_HOST: 'unix:///nonexistent/docker.sock' }
    await expect(provideBroker({ nodes: 1 }, nowhere)).rejects.toThrow(/KAFKA_BROKERS[^]*Docker[^]*Java 17 or newer and Maven/)
  })
})

it('waits for several processes at once: the first that ends does not let the program go from under the others', () => {
  // A program of its own: here the test runner would hold it.
  const program = `
    import { Keeper } from ${JSON.stringify(fileURLToPath(new URL('../../scripts/broker-provider/keeper-client.ts', import.meta.url)))}
    const keeper = new Keeper()
    const order = (code) => ({ command: process.execPath, args: ['-e', code], log: '/dev/null' })
    keeper.start('short', order(''))
    keeper.start('long', order('process.stdin.destroy(); setTimeout(() => undefined, 300)'))
    await Promise.all([keeper.exit('short'), keeper.exit('long')])
    console.log('both')
    await keeper.close()`
  const output = execFileSync(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', program], { encoding: 'utf8' })
  expect(output).toBe('both\n')
})
