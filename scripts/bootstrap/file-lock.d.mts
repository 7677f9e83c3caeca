export interface FileLockOptions {
  /** Called once when another live process holds the lock. */
  onWait?: (pid: number) => void
  isAlive?: (pid: number) => boolean
}
export function acquireFileLock(path: string, options?: FileLockOptions): Promise<() => void>
export function processIsAlive(pid: number): boolean
