export interface Leftover {
  pid: number
  command: string
}
export const MARK: string
export function findLeftovers(mark: string, graceMs: number): Promise<Leftover[]>
export function endLeftovers(leftovers: Leftover[]): void
