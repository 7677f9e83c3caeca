export const MINIMUM_NODE: string
export const MINIMUM_JAVA: number
export function nodeVersionProblem(version: string): string | null
export function findOnPath(name: string, env?: NodeJS.ProcessEnv): string | null
export function findJava(env?: NodeJS.ProcessEnv): Promise<{ path: string; major: number } | null>
export function parseJavaMajor(text: string): number | null
export function findMaven(env?: NodeJS.ProcessEnv): string | null
export function dockerEngineAnswers(env?: NodeJS.ProcessEnv, timeoutMs?: number): Promise<boolean>
export function findBrokerWay(options?: {
  env?: NodeJS.ProcessEnv
  distributionCached?: boolean
}): Promise<{ way: 'external' | 'docker' | 'jvm' } | { problem: string }>
export function noBrokerWay(jvm: string): string
