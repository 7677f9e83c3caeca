export function restoreNative(entry: string, packageFolder: string): boolean
export function saveNative(entry: string, packageFolder: string): void
export function discardNative(entry: string): void
