/** Arms failpoints in a worker process, by MILLRACE_FAILPOINTS. For the tests of millrace itself: see docs/testing.md. */
import { armFailpoints, parseFailpoints } from '../common/failpoints.ts'

/** `say` gets one line per strike, before it strikes. */
export function armFailpointsFromEnvironment(say: (text: string) => void): void {
  const text = process.env['MILLRACE_FAILPOINTS']
  if (text === undefined || text === '') return
  armFailpoints(parseFailpoints(text), ({ point, action, hit }) => {
    say(`failpoint ${point} ${action} at hit ${hit}`)
    if (action === 'kill') process.kill(process.pid, 'SIGKILL')
    if (action === 'stop') process.kill(process.pid, 'SIGSTOP')
  })
}
