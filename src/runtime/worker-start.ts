/**
 * The start of a worker, step by step, until everything is there but the membership: limits of the brokers, tasks, internal topics, the task table,
 * changelogs, producers, consumer.
 *
 * Order matters: nothing is created before the topology was found to fit, and all transactional ids are inited before the group is joined, so that what a
 * dead predecessor of this slot left open is aborted before anybody waits for it.
 */
import type { BrokerAdmin, GroupConsumer } from '../broker/port.ts'
import { notKnownYet } from '../errors/broker-error.ts'
import { ConfigError } from '../errors/errors.ts'
import { CommitCycle } from './commit-cycle.ts'
import { GroupWatch } from './group-watch.ts'
import { InputReader } from './input-reader.ts'
import { checkBrokerLimits } from './broker-limits.ts'
import { InputGrowth } from './input-growth.ts'
import { ensureInternalTopics, inputPartitions, refuseLostChangelogs } from './internal-topics.ts'
import { LogStarts } from './log-starts.ts'
import type { OwnedTasks } from './owned-tasks.ts'
import { PositionCheck } from './position-check.ts'
import type { ProducerRing } from './producer-ring.ts'
import type { RecordAttempts } from './record-attempts.ts'
import { RecordOutbox } from './record-outbox.ts'
import type { Restorer } from './restore.ts'
import { untilAnswered } from './retry.ts'
import { producerSizes, readSinkLimits, SinkCheck } from './sink-limits.ts'
import { SlotOwnership } from './slot-ownership.ts'
import { agreeOnTasks } from './task-agreement.ts'
import { TaskLayouts } from './task-layout.ts'
import { claimSlot } from './task-table.ts'
import { TaskLifecycle } from './task-lifecycle.ts'
import { transactionBudgets } from './transaction-budgets.ts'
import { TransactionMachine } from './transaction.ts'
import type { WorkerMetrics } from './worker-metrics.ts'
import type { WorkerOptions } from './worker-options.ts'

const TASK_TABLE_TIMEOUT_MS = 30_000

/** What exists once the worker is connected. */
export interface WorkerParts {
  readonly consumer: GroupConsumer
  readonly watch: GroupWatch
  readonly growth: InputGrowth
  readonly layouts: TaskLayouts
  readonly logStarts: LogStarts
  readonly slot: SlotOwnership
  readonly reader: InputReader
  readonly cycle: CommitCycle
  readonly lifecycle: TaskLifecycle
  readonly sinkCheck: SinkCheck
  readonly attempts: RecordAttempts
  /** Offsets older than this are committed again. */
  readonly keepAliveMs: number
}

export interface WorkerStartOptions {
  readonly worker: WorkerOptions
  readonly slotName: string
  /** Of this process, written before anything of the slot is taken (SO3). */
  readonly claim: string
  readonly hasLastClaim: () => Promise<boolean>
  readonly tasksTopic: string
  readonly tasks: OwnedTasks
  readonly metrics: WorkerMetrics
  readonly restorer: Restorer
  readonly ring: ProducerRing
  readonly attempts: RecordAttempts
  /** Gets the consumer as soon as there is one, so that it is closed whatever happens next. */
  readonly onConsumer: (consumer: GroupConsumer) => void
}

export async function startWorker(options: WorkerStartOptions): Promise<WorkerParts> {
  const { worker, slotName, claim, tasksTopic, tasks, metrics, restorer, ring, attempts } = options
  const { broker, plan, settings, clock, random, timers, logger, listener } = worker
  const keepAliveMs = await checkedKeepAlive(broker.admin, worker)
  await inputPartitions(broker.admin, plan)
  // From here on a broker has answered: a failure that passes (a leader moves, a connection breaks) is waited out.
  const retry = { random, clock, timers, logger, timeoutMs: TASK_TABLE_TIMEOUT_MS }
  const answered = <T>(what: string, ask: () => Promise<T>): Promise<T> => untilAnswered(ask, { ...retry, what })
  const sinks = await answered('limits of the output topics', () => readSinkLimits(broker.admin, plan.sinks))
  const sinkCheck = new SinkCheck(sinks, clock)
  const outbox = new RecordOutbox(sinkCheck, settings.recordMaxOutputBytes)
  const agreement = { ...retry, broker, plan, applicationId: settings.applicationId }
  const { replicationFactor } = settings
  const agreed = await answered('the tasks', () => agreeOnTasks({ ...agreement, instanceId: slotName, replicationFactor }))
  const { changelogs } = agreed
  const layouts = new TaskLayouts(agreed.layout, agreed.taskPartitions)
  await answered('changelogs', () =>
    refuseLostChangelogs(broker.admin, changelogs, agreed.progress, { policy: settings.changelogMissing, logger }),
  )
  await answered('changelogs', () => ensureInternalTopics(broker.admin, changelogs, retry, settings.changelogSettings))
  const own = [tasksTopic, ...changelogs.map(({ name }) => name)]
  const written = [
    ...sinks.values(),
    ...(await answered('limits of internal topics', () => readSinkLimits(broker.admin, own).catch(notHeardOfYet))).values(),
  ]
  const logStarts = new LogStarts({
    admin: broker.admin,
    partitions: () => layouts.partitions(tasksTopic),
    intervalMs: settings.metadataPollMs,
    clock,
    logger,
  })
  await answered('the starts of the input logs', () => logStarts.look())
  // Before the producers: who is fenced by them, or put out of the group, finds the claim (SO3).
  await answered('the claim of the slot', () => claimSlot(broker, tasksTopic, slotName, claim, TASK_TABLE_TIMEOUT_MS))
  await ring.open(producerSizes(written))
  const consumer = await broker.connectConsumer({
    groupId: settings.applicationId,
    groupInstanceId: slotName,
    sessionTimeoutMs: settings.sessionTimeoutMs,
    heartbeatIntervalMs: settings.heartbeatIntervalMs,
    maxPollIntervalMs: settings.maxPollIntervalMs,
    checkChecksums: settings.corruptedRecord === 'fail',
  })
  options.onConsumer(consumer)
  const slot = new SlotOwnership(consumer, tasks, slotName)
  const positions = new PositionCheck({
    admin: broker.admin,
    tasks,
    logStarts,
    policy: settings.offsetOutOfRange,
    metrics,
    intervalMs: settings.metadataPollMs,
    clock,
    logger,
  })
  const reader = new InputReader({
    consumer,
    tasks,
    slot,
    positions,
    logStarts,
    tasksTopic,
    clock,
    timers,
    logger,
  })
  const lifecycle = new TaskLifecycle({
    worker,
    tasks,
    layouts,
    tasksTopic,
    logStarts,
    consumer,
    outbox,
    reader,
    positions,
    cycle: () => cycle,
    attempts,
    restorer,
  })
  const cycle = new CommitCycle({
    settings,
    clock,
    timers,
    random,
    logger,
    listener,
    machine: new TransactionMachine({ ring, budgets: transactionBudgets(settings), clock, timers, logger }),
    consumer,
    reader,
    slot,
    tasks,
    attempts,
    outbox,
    metrics,
    transactionalIdPrefix: slotName,
    progressTopic: tasksTopic,
    restart: (restarted, reason) => {
      lifecycle.restart(restarted, reason)
    },
    hasLastClaim: options.hasLastClaim,
  })
  const growth = new InputGrowth({
    ...agreement,
    layouts,
    intervalMs: settings.metadataPollMs,
    prepare: (partitions) => logStarts.look(partitions),
  })
  const watch = new GroupWatch({
    admin: broker.admin,
    groupId: settings.applicationId,
    instanceId: slotName,
    tasksTopic,
    tasks: () => growth.ownedTasks,
    intervalMs: settings.metadataPollMs,
    clock,
    logger,
  })
  return { consumer, watch, growth, layouts, logStarts, slot, reader, cycle, lifecycle, sinkCheck, attempts, keepAliveMs }
}

/** The broker's own limits, against our settings. Who may not read broker settings goes without. Returns how old an offset may become. */
async function checkedKeepAlive(admin: BrokerAdmin, { settings, logger }: WorkerOptions): Promise<number> {
  let config: ReadonlyMap<string, string>
  try {
    config = await admin.brokerConfig()
  } catch (error) {
    logger.warn({ error: String(error) }, 'the settings of the broker could not be read: time-outs are not checked against them')
    return settings.offsetKeepAliveMs
  }
  checkBrokerLimits(config, settings)
  const retentionMs = Number(config.get('offsets.retention.minutes') ?? 0) * 60_000
  return retentionMs > 0 ? Math.min(settings.offsetKeepAliveMs, retentionMs / 4) : settings.offsetKeepAliveMs
}

/** Topics that were made or found a moment ago are not missing: the broker that answered has not heard of them yet. */
function notHeardOfYet(error: unknown): never {
  throw error instanceof ConfigError && error.code === 'topic-missing' ? notKnownYet(error.message, error) : error
}
