/**
 * Preloaded into the `millrace run` of the demo: it ends when the demo is gone, even when that was killed with -9 and could end nothing itself.
 * Workers inherit the preload and are left alone: that they stop when their supervisor is gone is millrace's own business.
 */
import { basename } from 'node:path'

if (basename(process.argv[1] ?? '') === 'main.js' && process.channel) {
  process.once('disconnect', () => process.kill(process.pid, 'SIGKILL'))
  // The channel must not hold the process open when everything else has ended.
  process.channel.unref()
}
