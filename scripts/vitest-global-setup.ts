/**
 * Starts the one broker that all broker suites share; runs before the first of them, and not at all when only unit suites run. `MILLRACE_KAFKA_VERSION`
 * names its version, and that of the brokers that a suite starts for itself.
 */
import type { TestProject } from 'vitest/node'
import { provideBroker, type BrokerKind, type JavaTools } from './broker-provider/provider.ts'

declare module 'vitest' {
  interface ProvidedContext {
    /** `host:port` of the shared broker. */
    brokers: string
    brokerKind: BrokerKind
    /** The distribution's Java tools; null when they cannot be had (an external broker without Java or Maven). */
    javaTools: JavaTools | null
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const broker = await provideBroker({ nodes: 1, onProgress: (line) => process.stderr.write(`  ... ${line}\n`) })
  project.provide('brokers', broker.brokers)
  project.provide('brokerKind', broker.kind)
  project.provide('javaTools', broker.java ?? null)
  return () => broker.stop()
}
