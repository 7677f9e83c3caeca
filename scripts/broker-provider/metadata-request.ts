/**
 * One question to exactly one broker: its view of the cluster (Metadata, version 5, over a connection of its own).
 *
 * Clients will not do for this: they ask any broker that they know of, and after a restart the views of the brokers differ for a while.
 */
import { connect } from 'node:net'

export interface ClusterMember {
  readonly nodeId: number
  readonly host: string
  readonly port: number
}

interface PartitionView {
  readonly topic: string
  readonly partition: number
  /** -1 while there is none. */
  readonly leader: number
  readonly replicas: readonly number[]
  readonly inSync: readonly number[]
}

export interface ClusterView {
  readonly members: readonly ClusterMember[]
  /** Of all topics, internal ones included. */
  readonly partitions: readonly PartitionView[]
}

const METADATA_API_KEY = 3
const VERSION = 5
const LENGTH_BYTES = 4
const CLIENT_ID = 'millrace-broker-check'

/** Rejects when nothing is listening, when the answer does not come within `timeoutMs`, or when it is none. `address` is `host:port`. */
export async function readClusterView(address: string, timeoutMs: number): Promise<ClusterView> {
  return decodeClusterView(await exchange(address, metadataRequest(), timeoutMs))
}

function metadataRequest(): Buffer {
  const clientId = Buffer.from(CLIENT_ID)
  const header = Buffer.alloc(LENGTH_BYTES + 10)
  header.writeInt16BE(METADATA_API_KEY, LENGTH_BYTES)
  header.writeInt16BE(VERSION, LENGTH_BYTES + 2)
  header.writeInt32BE(1, LENGTH_BYTES + 4) // correlation id
  header.writeInt16BE(clientId.length, LENGTH_BYTES + 8)
  const body = Buffer.alloc(5)
  body.writeInt32BE(-1, 0) // all topics; then no creation of topics
  const request = Buffer.concat([header, clientId, body])
  request.writeInt32BE(request.length - LENGTH_BYTES, 0)
  return request
}

/** Sends a frame and returns the one that comes back, without its length. */
function exchange(address: string, request: Buffer, timeoutMs: number): Promise<Buffer> {
  const colon = address.lastIndexOf(':')
  const host = address.slice(0, colon).replace(/^\[(.*)\]$/, '$1')
  return new Promise((resolve, reject) => {
    const socket = connect({ host, port: Number(address.slice(colon + 1)) })
    const fail = (error: Error): void => {
      clearTimeout(timer)
      socket.destroy()
      reject(error)
    }
    const timer = setTimeout(() => {
      fail(new Error(`${address} does not answer within ${timeoutMs} ms`))
    }, timeoutMs)
    let received = Buffer.alloc(0)
    socket.on('connect', () => socket.write(request))
    socket.on('data', (chunk: Buffer) => {
      received = Buffer.concat([received, chunk])
      if (received.length < LENGTH_BYTES || received.length < LENGTH_BYTES + received.readInt32BE(0)) return
      clearTimeout(timer)
      socket.destroy()
      resolve(received.subarray(LENGTH_BYTES))
    })
    socket.on('error', fail)
    socket.on('close', () => {
      fail(new Error(`${address} closed the connection without an answer`))
    })
  })
}

/** The answer from its correlation id on. */
export function decodeClusterView(answer: Buffer): ClusterView {
  let at = 0
  const int = (bytes: 1 | 2 | 4): number => {
    at += bytes
    return answer.readIntBE(at - bytes, bytes)
  }
  const text = (): string | null => {
    const length = int(2)
    if (length < 0) return null
    at += length
    return answer.toString('utf8', at - length, at)
  }
  const list = <T>(element: () => T): T[] => Array.from({ length: Math.max(0, int(4)) }, element)
  const skip = (...fields: readonly unknown[]): void => void fields

  skip(int(4), int(4)) // correlation id, throttle time
  const members = list(() => {
    const member = { nodeId: int(4), host: text() ?? '', port: int(4) }
    skip(text()) // rack
    return member
  })
  skip(text(), int(4)) // cluster id, controller
  const partitions = list(() => {
    skip(int(2)) // error: of a topic without a leader, which its partitions say themselves
    const topic = text() ?? ''
    skip(int(1)) // internal
    return list((): PartitionView => {
      skip(int(2))
      const view = { topic, partition: int(4), leader: int(4), replicas: list(() => int(4)), inSync: list(() => int(4)) }
      skip(list(() => int(4))) // offline replicas
      return view
    })
  }).flat()
  return { members, partitions }
}
