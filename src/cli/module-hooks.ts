/**
 * Module hooks beside those of tsx: a `.ts` file is an ES module also where its package.json does not say so.
 * Without it tsx turns such a file into CommonJS, its `import 'millrace'` into a `require`, and the topology is built by a second copy of the package.
 */
import type { ResolveHook } from 'node:module'

export const resolve: ResolveHook = async (specifier, context, nextResolve) => {
  const resolved = await nextResolve(specifier, context)
  return resolved.format === 'commonjs' && /\.tsx?(?:\?|$)/.test(resolved.url) ? { ...resolved, format: 'module' } : resolved
}
