/**
 * One port for a Kafka broker: the one of KAFKA_BROKERS, else Docker, else JVMs started from Maven's jars.
 * Used by demo, tests and bench, which need not know which it was.
 */
import { dockerEngineAnswers, findJava, findMaven, MINIMUM_JAVA, noBrokerWay } from '../bootstrap/requirements.mjs'
import { connectExternalBroker } from './external-broker.ts'
import { startJvmBroker } from './jvm-broker.ts'
import { BrokerUnavailableError, type BrokerOptions, type ProvidedBroker } from './types.ts'

export * from './java-tools.ts'
export * from './types.ts'

/**
 * A broker that answers. The caller calls `stop()` at the end; what a killed caller leaves behind ends by itself (JVMs at once, containers by
 * testcontainers' reaper).
 * @throws BrokerUnavailableError naming the three ways when none is open, or the one that was chosen and why it failed.
 */
export async function provideBroker(options: BrokerOptions, env: NodeJS.ProcessEnv = process.env): Promise<ProvidedBroker> {
  const external = env.KAFKA_BROKERS
  if (external !== undefined && external.trim() !== '') return connectExternalBroker(external, options)
  if (await dockerEngineAnswers(env)) {
    const { startDockerBroker } = await import('./docker-broker.ts')
    return startDockerBroker(options)
  }
  const java = await findJava(env)
  if (java === null)
    throw new BrokerUnavailableError(noBrokerWay(findMaven(env) === null ? 'no Java and no Maven was found' : 'no Java was found'))
  if (java.major < MINIMUM_JAVA) throw new BrokerUnavailableError(noBrokerWay(`Java ${java.major} at ${java.path} is too old`))
  return startJvmBroker(options)
}
