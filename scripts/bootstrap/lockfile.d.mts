export interface Entry {
  version?: string
  integrity?: string
  optional?: boolean
  devOptional?: boolean
  peer?: boolean
  link?: boolean
  dependencies?: Record<string, string>
}
export function sha256(...parts: string[]): string
export function platformName(): string
export function stampFor(root: string): string
export function nativeKey(packages: Record<string, Entry>, name: string): string
export function isInstalled(wanted: Record<string, Entry>, installed: Record<string, Entry>): boolean
export function readPackages(path: string): Record<string, Entry> | null
