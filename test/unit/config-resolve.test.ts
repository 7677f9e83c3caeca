import { inspect } from 'node:util'
import { describe, expect, test } from 'vitest'
import { OWNED_CLIENT_SETTINGS } from '../../src/config/client-settings.ts'
import { defineConfig } from '../../src/config/define.ts'
import type { ConfigFile } from '../../src/config/define.ts'
import { editDistance, environmentName, kebabCase, nearestName } from '../../src/config/names.ts'
import { OPTION_KEYS, OPTIONS } from '../../src/config/options.ts'
import type { ConfigInputs } from '../../src/config/resolve.ts'
import { reportConfig, resolveConfig, resolveOptions, withSlot } from '../../src/config/resolve.ts'
import { ConfigError } from '../../src/errors/errors.ts'

const SURROUNDINGS = { topologyName: 'points', host: 'machine-1', directory: '/srv/app' } as const
const BROKERS = { brokers: 'localhost:9092' } as const

function resolve(inputs: ConfigInputs = {}) {
  return resolveConfig({ ...SURROUNDINGS, ...inputs, flags: { ...BROKERS, ...inputs.flags } })
}

function refusal(inputs: ConfigInputs): ConfigError {
  try {
    resolve(inputs)
  } catch (error) {
    expect(error).toBeInstanceOf(ConfigError)
    return error as ConfigError
  }
  throw new Error('expected a ConfigError')
}

/** A file as JavaScript users may write it. */
const looseFile = (file: object): ConfigFile => file

describe('defaults', () => {
  test('are those of the design', () => {
    const { sources, ...values } = resolve()
    expect(values).toEqual({
      brokers: ['localhost:9092'],
      applicationId: 'points',
      instance: 'machine-1',
      slot: 0,
      workers: 1,
      stateDir: '/srv/app/.millrace/state',
      onClose: 'keep',
      shutdownTimeoutMs: 30_000,
      commitIntervalMs: 100,
      transactionTimeoutMs: 10_000,
      producerRingSize: 2,
      transactionMaxRecords: 20_000,
      transactionMaxBytes: 16 * 1024 ** 2,
      recordMaxOutputBytes: 8 * 1024 ** 2,
      maxPollRecords: 1_000,
      sessionTimeoutMs: 30_000,
      heartbeatIntervalMs: 1_000,
      maxPollIntervalMs: 60_000,
      offsetKeepAliveMs: 6 * 3_600_000,
      metadataPollMs: 30_000,
      offsetOutOfRange: 'fail',
      corruptedRecord: 'fail',
      storeFormat: 'fail',
      changelogMissing: 'fail',
      changelogSettings: 'fail',
      taskTimeoutMs: 300_000,
      memtableBytes: 8 * 1024 ** 2,
      memoryBudgetBytes: 64 * 1024 ** 2,
      cacheEntries: 10_000,
      stateFlushIntervalMs: 10_000,
      lockTimeoutMs: 15_000,
      restoreTimeoutMs: 300_000,
      replicationFactor: -1,
      logLevel: 'info',
      logFormat: 'auto',
      statusIntervalMs: 5_000,
      kafka: {},
      security: { ssl: false, sasl: undefined },
    })
    expect(sources.commitIntervalMs).toEqual({ kind: 'default', where: 'default' })
    expect(sources.instance.where).toBe('host name')
  })

  test.each(OPTION_KEYS.filter((key) => OPTIONS[key].default !== undefined))('the default of %s passes its own check', (key) => {
    expect(OPTIONS[key].check.safeParse(OPTIONS[key].default).success).toBe(true)
  })

  test('a host name becomes an instance with nothing a client id may not hold', () => {
    expect(resolve({ host: "ann's laptop (2).local" }).instance).toBe('ann-s-laptop-2-.local')
    expect(resolve({ host: '' }).instance).toBe('local')
  })

  test('brokers have none, and the message says the three ways to give them', () => {
    expect(() => resolveConfig(SURROUNDINGS)).toThrow(
      'brokers: no value; give --brokers host:port, MILLRACE_BROKERS, or brokers in millrace.config.ts',
    )
  })
})

describe('precedence', () => {
  const file = defineConfig({
    commitInterval: '40ms',
    topologies: { points: { commitInterval: '30ms' }, other: { commitInterval: '5ms' } },
  })
  const env = { MILLRACE_COMMIT_INTERVAL: '20ms' }

  test.each([
    ['a flag', { flags: { commitInterval: '10ms' }, env, file }, 10, { kind: 'flag', where: '--commit-interval' }],
    ['the environment', { env, file }, 20, { kind: 'environment', where: 'MILLRACE_COMMIT_INTERVAL' }],
    ["the file's part for the topology", { file }, 30, { kind: 'file', where: 'millrace.config.ts, topologies.points' }],
    ['the file', { file, topologyName: 'enrich' }, 40, { kind: 'file', where: 'millrace.config.ts' }],
    ['the default', {}, 100, { kind: 'default', where: 'default' }],
  ] as const)('%s is the strongest that has a value', (_name, inputs, expected, source) => {
    const config = resolve(inputs)
    expect(config.commitIntervalMs).toBe(expected)
    expect(config.sources.commitIntervalMs).toEqual(source)
  })

  test('options given in code win over environment and file', () => {
    const config = resolve({ code: { commitInterval: 15 }, env, file })
    expect(config.commitIntervalMs).toBe(15)
    expect(config.sources.commitIntervalMs).toEqual({ kind: 'code', where: 'commitInterval of createApp' })
  })

  test('an empty variable counts as not set', () => {
    expect(resolve({ env: { MILLRACE_COMMIT_INTERVAL: '' } }).commitIntervalMs).toBe(100)
  })

  test('client settings of all places are merged by name', () => {
    const config = resolve({
      flags: { kafka: ['a=flag', 'n=5', 'on=true'] },
      env: { MILLRACE_KAFKA: 'a=env,b=env' },
      file: { kafka: { a: 'file', b: 'file', c: 'file' } },
    })
    expect(config.kafka).toEqual({ a: 'flag', b: 'env', c: 'file', n: 5, on: true })
  })

  test('the function form of defineConfig gets the environment', () => {
    const file = defineConfig((env) => ({ brokers: env['PATH'] === process.env['PATH'] ? 'from-environment:9092' : 'other:9092' }))
    expect(resolveConfig({ ...SURROUNDINGS, file }).brokers).toEqual(['from-environment:9092'])
  })
})

describe('values', () => {
  test('durations and sizes are numbers or texts with a unit, from every place', () => {
    expect(resolve({ flags: { commitInterval: '250', memtableBytes: '1MiB' } })).toMatchObject({
      commitIntervalMs: 250,
      memtableBytes: 1024 ** 2,
    })
    expect(resolve({ env: { MILLRACE_SESSION_TIMEOUT: '45s' }, file: { memtableBytes: 65_536 } })).toMatchObject({
      sessionTimeoutMs: 45_000,
      memtableBytes: 65_536,
    })
  })

  test('brokers are one text, a list, or both', () => {
    expect(resolve({ flags: { brokers: 'b1:9092, b2:9092' } }).brokers).toEqual(['b1:9092', 'b2:9092'])
    expect(resolveConfig({ ...SURROUNDINGS, file: { brokers: ['b1:9092,b2:9092', '[::1]:9092'] } }).brokers).toEqual([
      'b1:9092',
      'b2:9092',
      '[::1]:9092',
    ])
  })

  test('the state directory becomes absolute', () => {
    expect(resolve({ flags: { stateDir: 'data' } }).stateDir).toBe('/srv/app/data')
    expect(resolve({ flags: { stateDir: '/var/lib/millrace' } }).stateDir).toBe('/var/lib/millrace')
  })

  test.each([
    [{ commitInterval: '5x' }, 'commitInterval (--commit-interval): "5x" is not a number of ms'],
    [{ commitInterval: '-5' }, 'commitInterval (--commit-interval): "-5" is not a number of ms'],
    [{ commitInterval: '2h' }, 'from 1ms to 1h'],
    [{ producerRingSize: '2.5' }, 'producerRingSize (--producer-ring-size): "2.5" is not a whole number from 1 to 8'],
    [{ workers: 'many' }, 'workers (--workers): "many" is not a whole number from 1 to 256'],
    [{ onClose: 'stay' }, 'onClose (--on-close): "stay" is not one of keep, leave'],
    [{ brokers: 'http://host/path' }, 'brokers (--brokers): "http://host/path" is not addresses such as'],
    [{ applicationId: 'a b' }, 'applicationId (--application-id): "a b" is not 1 to 150 letters'],
    [{ replicationFactor: '0' }, 'replicationFactor (--replication-factor): the number of replicas is -1'],
    [{ kafka: ['novalue'] }, 'kafka (--kafka): the value is not names with texts'],
  ])('%o is refused with the option, its place, the value and what would fit', (flags, message) => {
    expect(refusal({ flags }).message).toContain(message)
  })

  test('a topology whose name is no id needs an applicationId', () => {
    expect(refusal({ topologyName: 'my topology' }).message).toContain('the name of the topology, "my topology", is its default')
    expect(resolve({ topologyName: 'my topology', flags: { applicationId: 'mine' } }).applicationId).toBe('mine')
  })

  test('everything that is wrong is said at once', () => {
    const { message, exitCode, remedy } = refusal({ flags: { commitInterval: 'x', workers: '0' }, file: looseFile({ brokrs: 'a:1' }) })
    expect(message).toMatch(/^3 options are wrong:/)
    for (const part of ['commitInterval', 'workers', 'brokrs']) expect(message).toContain(part)
    expect(exitCode).toBe(2)
    expect(remedy).toContain('docs/config.md')
  })
})

describe('unknown names', () => {
  test.each([
    [
      'a file',
      { file: looseFile({ commitIntervall: 5 }) },
      'commitIntervall (millrace.config.ts) is no option; did you mean commitInterval?',
    ],
    [
      'a resolved name in a file',
      { file: looseFile({ commitIntervalMs: 5 }) },
      'commitIntervalMs (millrace.config.ts) is no option; did you mean commitInterval?',
    ],
    [
      'the part for a topology',
      { file: looseFile({ topologies: { points: { workes: 2 } } }) },
      'workes (millrace.config.ts, topologies.points) is no option; did you mean workers?',
    ],
    ['a nested object', { file: looseFile({ security: { sasl: { user: 'a' } } }) }, 'security.sasl.user (millrace.config.ts) is no option'],
    ['code', { code: looseFile({ stateDirectory: 'x' }) }, 'stateDirectory (createApp) is no option; did you mean stateDir?'],
    ['flags', { flags: { onclose: 'keep' } }, 'onclose (flags) is no option; did you mean onClose?'],
    ['the environment', { env: { MILLRACE_BROKER: 'a:1' } }, 'MILLRACE_BROKER (environment) is no option; did you mean MILLRACE_BROKERS?'],
  ])('in %s are refused with the nearest one', (_where, inputs, message) => {
    expect(refusal(inputs as ConfigInputs).message).toContain(message)
  })

  test('variables an orchestrator derives from a service of that name are none of ours', () => {
    expect(resolve({ env: { MILLRACE_SERVICE_HOST: '10.0.0.1', MILLRACE_PORT_9092_TCP: 'tcp://10.0.0.1' } }).applicationId).toBe('points')
  })

  test('options of the interface that do not exist yet are refused as such', () => {
    expect(refusal({ file: looseFile({ maxTaskIdle: '1s' }) }).message).toContain(
      'maxTaskIdle (millrace.config.ts) is not available in this version',
    )
  })

  test('slot and log format belong to the one who starts the process, not into a file', () => {
    expect(refusal({ file: looseFile({ slot: 3 }) }).message).toContain(
      'slot (millrace.config.ts) belongs on the command line (--slot) or in the environment',
    )
    expect(resolve({ code: { slot: 3 } }).slot).toBe(3)
  })

  test('the logger of createApp is no option, and no mistake', () => {
    const logger = { debug() {}, info() {}, warn() {}, error() {} }
    expect(resolve({ code: { logger } })).not.toHaveProperty('logger')
  })

  test('names that are far from every option get no suggestion', () => {
    expect(refusal({ file: looseFile({ zookeeper: 'x' }) }).message).toBe('zookeeper (millrace.config.ts) is no option')
  })
})

describe('rules across options', () => {
  test.each([
    [
      { transactionTimeout: '25s' },
      ['transactionTimeout 25s does not go with sessionTimeout 30s', 'a worker that takes over would wait for the open transaction'],
    ],
    [{ commitInterval: '5s' }, ['commitInterval 5s does not go with transactionTimeout 10s', 'the broker would abort']],
    [{ heartbeatInterval: '10s' }, ['heartbeatInterval 10s does not go with sessionTimeout 30s', 'less than a third']],
    [{ maxPollInterval: '20s' }, ['sessionTimeout 30s does not go with maxPollInterval 20s', 'the Kafka client refuses to start']],
  ])('%o is refused, both options and both values named', (flags, parts) => {
    const { message } = refusal({ flags })
    for (const part of parts) expect(message).toContain(part)
  })

  test('the limits themselves are allowed', () => {
    expect(
      resolve({ flags: { transactionTimeout: '20s', commitInterval: '9999', heartbeatInterval: '9999', maxPollInterval: '30s' } })
        .transactionTimeoutMs,
    ).toBe(20_000)
  })

  test('a rule says nothing about a value that was refused already', () => {
    expect(refusal({ flags: { sessionTimeout: 'soon' } }).message).not.toContain('does not go with')
  })

  test('a login is complete or absent', () => {
    expect(refusal({ file: looseFile({ security: { sasl: { username: 'ann' } } }) }).message).toBe(
      'security.sasl is incomplete: security.sasl.mechanism and security.sasl.password missing; a login needs mechanism, username and password',
    )
  })

  test('the connection is described in one place', () => {
    const sasl = { mechanism: 'plain', username: 'ann', password: 'pw' } as const
    expect(refusal({ file: { security: { sasl }, kafka: { 'sasl.username': 'bob' } } }).message).toContain(
      'kafka sasl.username does not go with security.sasl',
    )
    expect(refusal({ file: { security: { ssl: true }, kafka: { 'security.protocol': 'ssl' } } }).message).toContain(
      'kafka security.protocol does not go with security',
    )
  })
})

describe('client settings', () => {
  test.each(Object.entries(OWNED_CLIENT_SETTINGS))('%s is refused with its reason', (name, reason) => {
    expect(refusal({ file: { kafka: { [name]: 'x' } } }).message).toBe(
      `kafka (millrace.config.ts): the client setting ${name} belongs to millrace: ${reason}`,
    )
  })

  test.each([
    'enable.idempotence',
    'transactional.id',
    'group.id',
    'group.instance.id',
    'isolation.level',
    'enable.auto.commit',
    'auto.offset.reset',
    'partition.assignment.strategy',
    'acks',
    'enable.partition.eof',
  ])('%s, which would break a promise, is among them', (name) => {
    expect(OWNED_CLIENT_SETTINGS).toHaveProperty([name])
  })

  test('others pass as they are', () => {
    const kafka = { 'linger.ms': 1, 'ssl.ca.location': '/etc/ca.pem', 'socket.nagle.disable': true }
    expect(resolve({ file: { kafka } }).kafka).toEqual(kafka)
  })
})

describe('a resolved configuration', () => {
  const secret = 'hunter2'
  const config = resolve({
    env: { MILLRACE_SECURITY_SASL_PASSWORD: secret },
    file: {
      security: { ssl: true, sasl: { mechanism: 'plain', username: 'ann', password: 'from-file' } },
      kafka: { 'ssl.key.password': secret, 'client.id': 'c' },
    },
  })

  test('holds the secrets for the client, and prints none', () => {
    expect(config.security).toEqual({ ssl: true, sasl: { mechanism: 'plain', username: 'ann', password: secret } })
    for (const printed of [
      JSON.stringify(config),
      inspect(config, { depth: 9 }),
      JSON.stringify(withSlot(config, 4)),
      inspect(withSlot(config, 4)),
    ]) {
      expect(printed).not.toContain(secret)
      expect(printed).toContain('[redacted]')
      expect(printed).toContain('ann')
    }
  })

  test('never shows a secret in a refusal', () => {
    expect(refusal({ flags: { kafka: ['sasl.password=hunter2', 'oops'] } }).message).not.toContain(secret)
    expect(refusal({ file: looseFile({ kafka: { 'sasl.password': ['hunter2'] } }) }).message).toBe(
      'kafka (millrace.config.ts): the value of sasl.password is not names with texts, numbers or booleans as values',
    )
  })

  test('is frozen', () => {
    expect(Object.isFrozen(config)).toBe(true)
    for (const part of [config.security, config.security.sasl, config.kafka, config.brokers, config.sources])
      expect(Object.isFrozen(part)).toBe(true)
  })

  test('for another slot differs in the slot alone', () => {
    expect(withSlot(config, 7)).toEqual({ ...config, slot: 7 })
  })

  test('report tells what is wrong together with the values that are not', () => {
    const report = reportConfig({ ...SURROUNDINGS, flags: { workers: 'x', slot: '2' } })
    expect(report.problems).toHaveLength(2)
    expect(report.values.slot).toBe(2)
  })

  test('a few options can be read before file and topology are known', () => {
    expect(resolveOptions(['slot', 'logFormat'], { flags: { slot: '3' }, env: { MILLRACE_LOG_FORMAT: 'json' } })).toEqual({
      slot: 3,
      logFormat: 'json',
    })
    expect(() => resolveOptions(['slot'], { flags: { slot: 'x' } })).toThrow('slot (--slot): "x" is not a whole number')
  })
})

describe('names', () => {
  test('flag and variable follow from the name', () => {
    expect(kebabCase('transactionMaxBytes')).toBe('transaction-max-bytes')
    expect(environmentName('security.sasl.password')).toBe('MILLRACE_SECURITY_SASL_PASSWORD')
  })

  test('no two options share a name, a flag or a variable', () => {
    for (const of of ['name', 'env', 'flag'] as const) {
      const all = OPTION_KEYS.map((key) => OPTIONS[key][of]).filter((value) => value !== undefined)
      expect(new Set(all).size).toBe(all.length)
    }
  })

  test('resolved names end in the unit, user-facing ones of durations do not', () => {
    for (const key of OPTION_KEYS) {
      if (OPTIONS[key].kind === 'duration') expect([key, OPTIONS[key].name]).toEqual([expect.stringMatching(/Ms$/), key.slice(0, -2)])
    }
  })

  test('the distance counts a swap of neighbours once', () => {
    expect([
      editDistance('brokers', 'brokers'),
      editDistance('borkers', 'brokers'),
      editDistance('brokers', 'broker'),
      editDistance('', 'abc'),
    ]).toEqual([0, 1, 1, 3])
    expect(nearestName('Brokrs', ['workers', 'brokers'])).toBe('brokers')
  })
})
