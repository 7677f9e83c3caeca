/** One process of the simulation: a job in, its result out. */
import { work, type Job } from './jobs.ts'

process.on('disconnect', () => process.exit(0))
process.on('message', (job: Job) => {
  work(job).then(
    (result) => process.send?.(result),
    (error: unknown) => {
      console.error(error)
      process.exit(1)
    },
  )
})
