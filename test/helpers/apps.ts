/** Apps in this process, on the shared broker: own folders, and everything is closed at the end of the test whatever happened. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { createApp, type App, type AppEvents } from '../../src/app.ts'
import { silentLogger, type Logger } from '../../src/common/ports.ts'
import type { Config } from '../../src/config/define.ts'
import { string } from '../../src/serde/index.ts'
import { topic, topology, type DedupeOptions, type OnError, type Topology } from '../../src/topology/index.ts'
import { until } from './condition.ts'
import { brokers, createTopic, groupLag, unique } from './kafka.ts'
import { jsonOf } from './codecs.ts'

/** A folder that is gone after the test. */
export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'millrace-test-'))
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
  return folder
}

export interface Logged {
  readonly level: 'info' | 'warn' | 'error'
  readonly message: string
  readonly details: Readonly<Record<string, unknown>>
}

export interface StartedApp {
  readonly app: App
  readonly restores: AppEvents['restore'][]
  readonly commits: AppEvents['commit'][]
  readonly failures: AppEvents['failure'][]
  readonly assigned: string[][]
  readonly revoked: string[][]
  readonly log: Logged[]
}

/** Short group times, so that what waits for them is quick; the rule transactionTimeout + 10 s <= sessionTimeout still holds. */
export const QUICK: Partial<Config> = {
  transactionTimeout: '2s',
  sessionTimeout: '12s',
  heartbeatInterval: '500ms',
  maxPollInterval: '15s',
  taskTimeout: '30s',
  lockTimeout: '10s',
}

/** An app that is not started; closed after the test. */
export function appOf(topologyOfApp: Topology, config: Partial<Config>): StartedApp {
  const log: Logged[] = []
  const note =
    (level: Logged['level']) =>
    (details: object, message: string): void => {
      log.push({ level, message, details: details as Record<string, unknown> })
    }
  const logger: Logger = { ...silentLogger, info: note('info'), warn: note('warn'), error: note('error') }
  const app = createApp(topologyOfApp, { brokers, instance: 'test', ...QUICK, ...config, logger })
  const started: StartedApp = { app, restores: [], commits: [], failures: [], assigned: [], revoked: [], log }
  app.on('restore', (event) => started.restores.push(event))
  app.on('commit', (event) => started.commits.push(event))
  app.on('failure', (event) => started.failures.push(event))
  app.on('assigned', ({ tasks }) => started.assigned.push([...tasks]))
  app.on('revoked', ({ tasks }) => started.revoked.push([...tasks]))
  onTestFinished(async () => {
    await app.close({ timeout: '20s' }).catch(() => undefined)
  })
  return started
}

export async function startApp(topologyOfApp: Topology, config: Partial<Config>): Promise<StartedApp> {
  const started = appOf(topologyOfApp, config)
  await started.app.start()
  return started
}

export interface Scene {
  readonly application: string
  readonly input: string
  readonly output: string
  readonly stateDir: string
}

/** Input and output topic, application id and state folder of one test. */
export async function scene(
  name: string,
  partitions: number,
  outputConfig: Readonly<Record<string, string>> = {},
  inputConfig: Readonly<Record<string, string>> = {},
): Promise<Scene> {
  const application = unique(name)
  const input = await createTopic(`${application}.in`, partitions, inputConfig)
  const output = await createTopic(`${application}.out`, partitions, outputConfig)
  return { application, input, output, stateDir: temporaryFolder() }
}

export interface Event {
  readonly id: string
}
export const eventTopic = (name: string) => topic(name, { key: string(), value: jsonOf<Event>() })

export function dedupeTopology(
  { application, input, output }: Scene,
  more: Partial<DedupeOptions<string, Event>> & { onError?: OnError } = {},
): Topology {
  const { onError, ...options } = more
  return topology(application, onError === undefined ? {} : { onError }, ({ stream }) => {
    stream(eventTopic(input))
      .dedupe({ by: (event) => event.id, window: '1h', partitioned: 'by-key', ...options })
      .to(eventTopic(output))
  })
}

/** Every record of the input is committed by the group. Given the app, its failure ends the wait. */
export async function processed({ application, input }: Scene, started?: StartedApp): Promise<void> {
  const done = until(`lag 0 of ${application}`, async () => (await groupLag(application, input)) === 0, 60_000)
  done.catch(() => undefined)
  await (started === undefined ? done : Promise.race([done, started.app.finished]))
}

export const idOf = (value: string | null): string => (JSON.parse(value ?? 'null') as Event).id

/** `count` ids, each under its own key. */
export function events(prefix: string, count: number): { key: string; value: string }[] {
  return Array.from({ length: count }, (_, index) => ({ key: `${prefix}${index}`, value: JSON.stringify({ id: `${prefix}${index}` }) }))
}
