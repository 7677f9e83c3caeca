/** LU1: look-ups end with the admin client, also those under way (X10). */
import { execFile } from 'node:child_process'
import { createServer, type AddressInfo } from 'node:net'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, onTestFinished, test } from 'vitest'

test('a look-up that is under way when the client is closed leaves neither a socket nor a timer behind', async () => {
  // Takes connections and says nothing: the question stays under way, and is asked again when its connection breaks.
  const server = createServer(() => undefined)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(() => void server.close())
  const module = fileURLToPath(new URL('../../src/broker/kafka/look-ups.ts', import.meta.url))
  const brokers = [`127.0.0.1:${(server.address() as AddressInfo).port}`]
  // A program of its own: whether it ends by itself is the question.
  const program = `
    import { LookUps } from ${JSON.stringify(module)}
    const logger = { debug() {}, info() {}, warn() {}, error() {} }
    const lookUps = new LookUps({ brokers: ${JSON.stringify(brokers)}, clientId: 'c', connectTimeoutMs: 60_000, metadataRefreshMs: 60_000, logger, client: {} })
    const asked = lookUps.ask((admin) => admin.describeCluster()).then(() => 'answered', (error) => error.name)
    while (!process.getActiveResourcesInfo().includes('TCPSocketWrap')) await new Promise((resolve) => setImmediate(resolve))
    await lookUps.close()
    const left = process.getActiveResourcesInfo().filter((name) => name === 'TCPSocketWrap' || name === 'Timeout')
    console.log(JSON.stringify([await asked, left]))`
  const child = promisify(execFile)(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', program])
  onTestFinished(() => void child.child.kill('SIGKILL'))
  expect(JSON.parse((await child).stdout)).toEqual(['BrokerError', []])
})
