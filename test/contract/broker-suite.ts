/**
 * What every broker behind the port promises (src/broker/port.ts). One body, run on the simulated brokers by broker-sim.test.ts and on a real one by
 * broker-kafka.broker.test.ts. Where the two may differ (timing, texts, some flags) it asserts what both promise. "CF n" is fact n about client and broker.
 */
import { afterAll, beforeAll, describe, test } from 'vitest'
import { adminContract } from './broker-admin.ts'
import { fenceContract } from './broker-fences.ts'
import { groupContract } from './broker-group.ts'
import { offsetsContract } from './broker-offsets.ts'
import { readingContract } from './broker-reading.ts'
import { refusalContract } from './broker-refusals.ts'
import { Scene } from './broker-scene.ts'
import { transactionContract } from './broker-transactions.ts'
import type { ContractCluster } from './broker-world.ts'

function testsIn(cluster: () => ContractCluster) {
  return test.extend<{ scene: Scene }>({
    scene: async ({}, use) => {
      const scene = new Scene(cluster())
      scene.world.start()
      try {
        await use(scene)
      } finally {
        await scene.end()
      }
    },
  })
}

export type ContractTest = ReturnType<typeof testsIn>

export function brokerContract(name: string, makeCluster: () => Promise<ContractCluster>): void {
  describe(`the broker port on ${name}`, () => {
    let cluster: ContractCluster | undefined
    beforeAll(async () => {
      cluster = await makeCluster()
    })
    afterAll(() => cluster?.close())
    const it = testsIn(() => cluster as ContractCluster)

    describe('transactions', () => transactionContract(it))
    describe('fences', () => fenceContract(it))
    describe('refusals', () => refusalContract(it))
    describe('offsets of a group', () => offsetsContract(it))
    describe('members of a group', () => groupContract(it))
    describe('reading', () => readingContract(it))
    describe('administration', () => adminContract(it))
  })
}
