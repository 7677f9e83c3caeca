/**
 * Failpoints: named places at which a test can end, freeze or deceive this process. Compiled in and off: an unarmed one is one comparison.
 *
 * Owns: the names, the text form of an order, the counting of hits. Does not own: what a signal does; whoever arms them passes that in.
 *
 * They are armed in child processes only (`cli/worker.ts`, the workers of the tests), from MILLRACE_FAILPOINTS: a library never kills its host.
 */
export const FAILPOINTS = [
  'begin:after',
  'produce:before',
  'flush:before',
  'flush:after',
  'sendOffsets:before',
  'sendOffsets:after',
  'sendOffsets:reply',
  'commit:before',
  'commit:after',
  'commit:reply',
  'abort:before',
  'abort:after',
  'init:after',
  'memtable:merge',
  'sqlite:begin',
  'sqlite:rows',
  'sqlite:commit',
  'assign:before',
  'assign:after',
  'revoke:before',
  'revoke:after',
  'restore:step',
  'restore:finish',
] as const
export type Failpoint = (typeof FAILPOINTS)[number]

/**
 * `kill`, `stop`: SIGKILL, SIGSTOP to this process. `lose`: the call had its effect, but its answer counts as lost; only the points named `...:reply`
 * can do that.
 */
export type FailpointAction = 'kill' | 'stop' | 'lose'

export interface FailpointOrder {
  readonly point: Failpoint
  readonly action: FailpointAction
  /** Strikes at this hit; the first is 1. */
  readonly hit: number
  /** Strikes again after each further so many hits; 0: once. */
  readonly every: number
}

let strike: ((point: Failpoint) => boolean) | undefined

/** Marks a place. True: the answer of the call just made counts as lost. */
export function failpoint(point: Failpoint): boolean {
  return strike?.(point) ?? false
}

/** `act` gets each order that is due. Replaces what was armed before. */
export function armFailpoints(orders: readonly FailpointOrder[], act: (order: FailpointOrder) => void): void {
  const hits = new Map<Failpoint, number>()
  strike = (point) => {
    const hit = (hits.get(point) ?? 0) + 1
    hits.set(point, hit)
    let lost = false
    for (const order of orders) {
      if (order.point !== point || !isDue(order, hit)) continue
      act(order)
      lost ||= order.action === 'lose'
    }
    return lost
  }
}

export function disarmFailpoints(): void {
  strike = undefined
}

function isDue({ hit: first, every }: FailpointOrder, hit: number): boolean {
  return hit === first || (every > 0 && hit > first && (hit - first) % every === 0)
}

/** Reads `commit:after=kill@3, commit:reply=lose@2/50`: at the third hit; at the second and every 50 after it. Throws what is wrong with it. */
export function parseFailpoints(text: string): readonly FailpointOrder[] {
  return text
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '')
    .map((part) => {
      const match = /^([A-Za-z:]+)=(kill|stop|lose)@(\d+)(?:\/(\d+))?$/.exec(part)
      const point = FAILPOINTS.find((name) => name === match?.[1])
      if (match === null || point === undefined) {
        throw new Error(`failpoint '${part}' is not '<point>=<kill|stop|lose>@<hit>[/<every>]' with a point of ${FAILPOINTS.join(', ')}`)
      }
      const action = match[2] as FailpointAction
      if (action === 'lose' && !point.endsWith(':reply'))
        throw new Error(`failpoint '${part}': only a point named '...:reply' can lose an answer`)
      return { point, action, hit: Number(match[3]), every: Number(match[4] ?? 0) }
    })
}
