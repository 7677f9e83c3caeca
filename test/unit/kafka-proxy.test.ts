/** The proxy of the broker suites, in front of a small server that speaks frames: what it lets through, holds, loses, and what it leaves. */
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { expect, onTestFinished, test } from 'vitest'
import { startKafkaProxy, type KafkaProxy } from '../helpers/kafka-proxy/kafka-proxy.ts'
import { FrameSplitter, REPLY_PREFIX_BYTES, REQUEST_PREFIX_BYTES, requestHeader, type Verdict } from '../helpers/kafka-proxy/frames.ts'
import { until } from '../helpers/condition.ts'

const END_TRANSACTION = 26
const HEARTBEAT = 12

function requestFrame(apiKey: number, correlationId: number, body: Buffer = Buffer.alloc(0)): Buffer {
  const head = Buffer.alloc(REQUEST_PREFIX_BYTES)
  head.writeInt32BE(8 + body.length, 0)
  head.writeInt16BE(apiKey, 4)
  head.writeInt16BE(3, 6)
  head.writeInt32BE(correlationId, 8)
  return Buffer.concat([head, body])
}

function replyFrame(correlationId: number, body: Buffer): Buffer {
  const head = Buffer.alloc(REPLY_PREFIX_BYTES)
  head.writeInt32BE(4 + body.length, 0)
  head.writeInt32BE(correlationId, 4)
  return Buffer.concat([head, body])
}

/** Whole frames out of a stream. */
function collect(socket: Socket, prefixBytes: number, frame: (bytes: Buffer) => void): void {
  let pieces: Buffer[] = []
  const splitter = new FrameSplitter({
    prefixBytes,
    decide: () => 'forward',
    piece: (bytes, _verdict, isLast) => {
      pieces.push(Buffer.from(bytes))
      if (!isLast) return
      frame(Buffer.concat(pieces))
      pieces = []
    },
  })
  socket.on('data', (chunk: Buffer) => {
    splitter.take(chunk)
  })
  socket.on('error', () => undefined)
}

interface FrameServer {
  readonly address: string
  /** Correlation ids in the order of their arrival, over all connections. */
  readonly got: number[]
  readonly sockets: Set<Socket>
}

/** Answers every request, in order, with its body; a heartbeat's answer is `heartbeatBytes` long. */
async function frameServer(heartbeatBytes = 0): Promise<FrameServer> {
  const got: number[] = []
  const sockets = new Set<Socket>()
  const server = createServer((socket) => {
    sockets.add(socket)
    socket.on('close', () => sockets.delete(socket))
    collect(socket, REQUEST_PREFIX_BYTES, (frame) => {
      const { apiKey, correlationId } = requestHeader(frame)
      got.push(correlationId)
      socket.write(replyFrame(correlationId, apiKey === HEARTBEAT ? Buffer.alloc(heartbeatBytes) : frame.subarray(REQUEST_PREFIX_BYTES)))
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(
    () =>
      new Promise<void>((resolve) => {
        for (const socket of sockets) socket.destroy()
        server.close(() => resolve())
      }),
  )
  return { address: `127.0.0.1:${(server.address() as AddressInfo).port}`, got, sockets }
}

async function proxyTo(server?: FrameServer): Promise<KafkaProxy> {
  const proxy = await startKafkaProxy()
  onTestFinished(() => proxy.close())
  if (server !== undefined) proxy.connectTo(server.address)
  return proxy
}

interface Client {
  readonly socket: Socket
  /** Replies in the order of their arrival. */
  readonly replies: { readonly correlationId: number; readonly body: Buffer }[]
  readonly isClosed: boolean
  send(apiKey: number, correlationId: number, body?: Buffer): void
}

async function clientOf({ address }: { readonly address: string }): Promise<Client> {
  const [host = '', port = ''] = address.split(':')
  const socket = connect({ host, port: Number(port) })
  const replies: Client['replies'] = []
  let isClosed = false
  collect(socket, REPLY_PREFIX_BYTES, (frame) => {
    replies.push({ correlationId: frame.readInt32BE(4), body: frame.subarray(REPLY_PREFIX_BYTES) })
  })
  socket.on('close', () => (isClosed = true))
  onTestFinished(() => void socket.destroy())
  await new Promise<void>((resolve) => socket.once('connect', resolve))
  return {
    socket,
    replies,
    get isClosed() {
      return isClosed
    },
    send: (apiKey, correlationId, body) => void socket.write(requestFrame(apiKey, correlationId, body)),
  }
}

const order = (client: Client): number[] => client.replies.map(({ correlationId }) => correlationId)

test.each([1, 3, 7, 11, 12, 13, 64, 100_000])('frames are found however the stream is cut: every %i bytes', (size) => {
  const bodies = [0, 1, 5, 300, 0, 70_000].map((length, index) => Buffer.alloc(length, index))
  const stream = Buffer.concat(bodies.map((body, index) => requestFrame(index, index, body)))
  const seen: number[] = []
  const forwarded: Buffer[] = []
  const splitter = new FrameSplitter({
    prefixBytes: REQUEST_PREFIX_BYTES,
    decide: (prefix): Verdict => {
      seen.push(requestHeader(prefix).apiKey)
      return requestHeader(prefix).apiKey === 3 ? 'swallow' : 'forward'
    },
    piece: (bytes, verdict) => {
      if (verdict === 'forward') forwarded.push(bytes)
    },
  })
  for (let at = 0; at < stream.length; at += size) splitter.take(stream.subarray(at, at + size))
  expect(seen).toEqual([0, 1, 2, 3, 4, 5])
  const kept = bodies.flatMap((body, index) => (index === 3 ? [] : [requestFrame(index, index, body)]))
  expect(Buffer.concat(forwarded).equals(Buffer.concat(kept))).toBe(true)
})

test('the address is there before the target is known; until then clients are turned away', async () => {
  const server = await frameServer()
  const proxy = await proxyTo()
  const early = await clientOf(proxy)
  await until('the early client is turned away', () => early.isClosed)
  proxy.connectTo(server.address)
  const client = await clientOf(proxy)
  client.send(1, 7, Buffer.from('body'))
  await until('the reply', () => client.replies.length === 1)
  expect(client.replies[0]).toEqual({ correlationId: 7, body: Buffer.from('body') })
  expect(proxy.requests(1)).toBe(1)
})

test('a client of a broker that is down is closed, and the next one finds it when it is back', async () => {
  const server = await frameServer()
  const proxy = await proxyTo()
  const gone = createServer()
  await new Promise<void>((resolve) => gone.listen(0, '127.0.0.1', resolve))
  proxy.connectTo(`127.0.0.1:${(gone.address() as AddressInfo).port}`)
  await new Promise<void>((resolve) => gone.close(() => resolve()))
  const client = await clientOf(proxy)
  await until('closed', () => client.isClosed)
  proxy.connectTo(server.address)
  const next = await clientOf(proxy)
  next.send(1, 1)
  await until('the reply', () => next.replies.length === 1)
})

test('replies that are held come late and in order, others pass them, and the count is kept', async () => {
  const server = await frameServer()
  const proxy = await proxyTo(server)
  const client = await clientOf(proxy)
  const hold = proxy.holdReplies({ apiKey: END_TRANSACTION, count: 2 })
  for (const [apiKey, id] of [
    [END_TRANSACTION, 1],
    [1, 2],
    [END_TRANSACTION, 3],
    [END_TRANSACTION, 4],
    [1, 5],
  ] as const)
    client.send(apiKey, id, Buffer.alloc(id * 10, id))
  await until('those that pass', () => client.replies.length === 3)
  expect(order(client)).toEqual([2, 4, 5])
  expect(server.got).toEqual([1, 2, 3, 4, 5])
  expect(hold.struck).toBe(2)
  expect(hold.release()).toBe(2)
  await until('those that were held', () => client.replies.length === 5)
  expect(order(client)).toEqual([2, 4, 5, 1, 3])
  expect(client.replies.at(-1)?.body).toEqual(Buffer.alloc(30, 3))
  expect(proxy.strikes.heldReplies).toBe(2)
  client.send(END_TRANSACTION, 6)
  await until('the one after the release', () => client.replies.length === 6)
})

test('a held reply whose client is gone is released to nobody', async () => {
  const server = await frameServer()
  const proxy = await proxyTo(server)
  const client = await clientOf(proxy)
  const hold = proxy.holdReplies({ apiKey: END_TRANSACTION })
  client.send(END_TRANSACTION, 1)
  await until('held', () => hold.struck === 1)
  client.socket.destroy()
  await until('the connection is closed', () => proxy.connections === 0)
  expect(hold.release()).toBe(0)
})

test('a request that is held reaches the server when it is released, after its client is gone', async () => {
  const server = await frameServer()
  const proxy = await proxyTo(server)
  const client = await clientOf(proxy)
  const hold = proxy.holdRequests({ apiKey: END_TRANSACTION })
  client.send(1, 1)
  client.send(END_TRANSACTION, 2, Buffer.alloc(5))
  client.send(1, 3)
  await until('the others', () => client.replies.length === 2)
  client.socket.end()
  client.socket.destroy()
  const other = await clientOf(proxy)
  other.send(1, 4)
  await until('another client is served meanwhile', () => other.replies.length === 1)
  expect(server.got).toEqual([1, 3, 4])
  expect(hold.release()).toBe(1)
  await until('it arrived', () => server.got.includes(2))
  await until('its connection is closed once it is answered', () => proxy.connections === 1)
})

test('a held frame larger than the limit stops its connection, and goes through whole when it is released half-way', async () => {
  const server = await frameServer()
  const proxy = await proxyTo(server)
  const client = await clientOf(proxy)
  const body = Buffer.alloc(20_000_000, 'x')
  const hold = proxy.holdRequests({ apiKey: END_TRANSACTION })
  client.send(END_TRANSACTION, 1, body)
  await until('it is held', () => hold.struck === 1)
  const other = await clientOf(proxy)
  other.send(1, 2)
  await until('another connection goes on', () => other.replies.length === 1)
  // Its sender is not read any more: the bytes are in the sender.
  expect(client.socket.writableLength).toBeGreaterThan(1_000_000)
  hold.release()
  await until('the reply', () => client.replies.length === 1)
  expect(client.replies[0]?.body.equals(body)).toBe(true)
})

test('a swallowed request never arrives, its reply does not come, and the connection goes on; the rest passes after the count', async () => {
  const server = await frameServer()
  const proxy = await proxyTo(server)
  const client = await clientOf(proxy)
  const loss = proxy.swallowRequests({ apiKey: END_TRANSACTION, count: 1 })
  client.send(END_TRANSACTION, 1, Buffer.alloc(100))
  client.send(END_TRANSACTION, 2)
  client.send(1, 3)
  await until('the others', () => client.replies.length === 2)
  expect(order(client)).toEqual([2, 3])
  expect(server.got).toEqual([2, 3])
  expect(loss.struck).toBe(1)
  expect(proxy.strikes.swallowedRequests).toBe(1)
})

test('a swallowed reply was asked for: the server did the work', async () => {
  const server = await frameServer()
  const proxy = await proxyTo(server)
  const client = await clientOf(proxy)
  const loss = proxy.swallowReplies({ apiKey: END_TRANSACTION })
  client.send(END_TRANSACTION, 1)
  client.send(1, 2)
  await until('the other', () => client.replies.length === 1)
  expect(order(client)).toEqual([2])
  expect(server.got).toEqual([1, 2])
  loss.end()
  client.send(END_TRANSACTION, 3)
  await until('after the end', () => client.replies.length === 2)
})

test.each(['swallowRequests', 'swallowReplies'] as const)(
  '%s with close: the connection of that frame is closed, others are not',
  async (fault) => {
    const server = await frameServer()
    const proxy = await proxyTo(server)
    const [client, other] = [await clientOf(proxy), await clientOf(proxy)]
    proxy[fault]({ apiKey: END_TRANSACTION, count: 1, close: true })
    client.send(END_TRANSACTION, 1)
    await until('closed', () => client.isClosed)
    other.send(END_TRANSACTION, 2)
    await until('the other', () => other.replies.length === 1)
    expect(client.replies).toEqual([])
    expect(server.got).toEqual(fault === 'swallowRequests' ? [2] : [1, 2])
  },
)

test('drop closes every connection and turns new ones away until restore, each counted', async () => {
  const server = await frameServer()
  const proxy = await proxyTo(server)
  const clients = [await clientOf(proxy), await clientOf(proxy)]
  await until('both are there', () => server.sockets.size === 2)
  proxy.drop()
  await until('both are closed', () => clients.every(({ isClosed }) => isClosed))
  const refused = await clientOf(proxy)
  await until('the new one is turned away', () => refused.isClosed)
  expect(proxy.strikes.dropped).toBe(3)
  proxy.restore()
  const client = await clientOf(proxy)
  client.send(1, 1)
  await until('the reply', () => client.replies.length === 1)
})

test('halfClose loses what the server says while the connection stays open; restore closes that connection, and not the others', async () => {
  const server = await frameServer()
  const proxy = await proxyTo(server)
  const [client, silent] = [await clientOf(proxy), await clientOf(proxy)]
  proxy.halfClose()
  client.send(1, 1)
  await until('it arrived', () => server.got.length === 1)
  await until('its reply is lost', () => proxy.strikes.halfClosed === 1)
  expect({ replies: client.replies, isClosed: client.isClosed }).toEqual({ replies: [], isClosed: false })
  proxy.restore()
  await until('closed', () => client.isClosed)
  silent.send(1, 2)
  await until('the other one goes on', () => silent.replies.length === 1)
})

test("halfClose('to-server') loses what the client says", async () => {
  const server = await frameServer()
  const proxy = await proxyTo(server)
  const client = await clientOf(proxy)
  proxy.halfClose('to-server')
  client.send(1, 1)
  await until('it is lost', () => proxy.strikes.halfClosed === 1)
  expect(client.isClosed).toBe(false)
  proxy.restore()
  await until('closed', () => client.isClosed)
  expect(server.got).toEqual([])
})

test('delay keeps everything back in both directions, in order, and its end lets it go at once', async () => {
  const server = await frameServer()
  const proxy = await proxyTo(server)
  const client = await clientOf(proxy)
  client.send(1, 0)
  await until('the connection works', () => client.replies.length === 1)
  proxy.delay(2 ** 30)
  for (let id = 1; id <= 50; id++) client.send(1, id, Buffer.alloc(id))
  await until('some of it is kept back', () => proxy.strikes.delayed > 0)
  expect(server.got).toEqual([0])
  proxy.delay(1)
  await until('all of it came', () => client.replies.length === 51)
  expect(order(client)).toEqual(Array.from({ length: 51 }, (_, id) => id))
  proxy.delay(0)
  client.send(1, 51)
  await until('the last', () => client.replies.length === 52)
})

test('what is delayed is bounded: the sender is not read while more than the limit waits', async () => {
  const server = await frameServer()
  const proxy = await proxyTo(server)
  const client = await clientOf(proxy)
  proxy.delay(2 ** 30)
  client.send(1, 1, Buffer.alloc(20_000_000))
  await until('the sender is stuck', () => proxy.strikes.delayed > 0 && client.socket.writableNeedDrain)
  expect(client.socket.writableLength).toBeGreaterThan(1_000_000)
  proxy.delay(0)
  await until('the reply', () => client.replies.length === 1)
})

test('a client that does not read slows the server down, and gets everything when it reads again', async () => {
  const server = await frameServer(1_000_000)
  const proxy = await proxyTo(server)
  const client = await clientOf(proxy)
  client.socket.pause()
  for (let id = 1; id <= 50; id++) client.send(HEARTBEAT, id)
  await until('all requests arrived', () => server.got.length === 50)
  const [socket] = server.sockets
  // 50 MB do not fit into the buffers between: they wait where they were written.
  await until('the server is stuck', () => socket?.writableNeedDrain === true)
  expect(socket?.writableLength).toBeGreaterThan(5_000_000)
  client.socket.resume()
  await until('all replies', () => client.replies.length === 50)
  expect(order(client)).toEqual(Array.from({ length: 50 }, (_, index) => index + 1))
})

test('restore ends every fault and sends what was held', async () => {
  const server = await frameServer()
  const proxy = await proxyTo(server)
  const client = await clientOf(proxy)
  const hold = proxy.holdReplies({ apiKey: END_TRANSACTION })
  proxy.swallowRequests({ apiKey: 1 })
  client.send(END_TRANSACTION, 1)
  client.send(1, 2)
  await until('both struck', () => hold.struck === 1 && proxy.strikes.swallowedRequests === 1)
  proxy.restore()
  client.send(END_TRANSACTION, 3)
  client.send(1, 4)
  await until('the held one and the new ones', () => client.replies.length === 3)
  expect(order(client)).toEqual([1, 3, 4])
})

test('a stream that is not Kafka closes its connection', async () => {
  const proxy = await proxyTo(await frameServer())
  const client = await clientOf(proxy)
  client.socket.write(Buffer.alloc(64, 0xff))
  await until('closed', () => client.isClosed)
})

test('close leaves nothing: connections are closed, the port is free, held and delayed frames are gone', async () => {
  const server = await frameServer()
  const proxy = await startKafkaProxy()
  proxy.connectTo(server.address)
  const client = await clientOf(proxy)
  const hold = proxy.holdReplies({ apiKey: END_TRANSACTION })
  client.send(END_TRANSACTION, 1)
  await until('held', () => hold.struck === 1)
  proxy.delay(2 ** 30)
  client.send(1, 2)
  await until('delayed', () => proxy.strikes.delayed > 0)
  const port = Number(proxy.address.split(':')[1])
  await Promise.all([proxy.close(), proxy.close()])
  await until('the client is closed', () => client.isClosed)
  await until('the server sees it', () => server.sockets.size === 0)
  expect(proxy.connections).toBe(0)
  const again = createServer()
  await new Promise<void>((resolve, reject) => again.once('error', reject).listen(port, '127.0.0.1', resolve))
  await new Promise<void>((resolve) => again.close(() => resolve()))
})
