/** Nothing is dropped unseen: resent audit entries go to a topic of their own, and so do entries that are older than the window. */
import { date, json, string, topic, topology, tuple, uuid } from 'millrace'
import { z } from 'zod'

const EntrySchema = z.object({ actor: z.string(), action: z.string(), at: z.iso.datetime() })
export interface Entry extends z.infer<typeof EntrySchema> {}

const entry = json<Entry>(EntrySchema)
/** Keyed by the id that the auditing service gives each entry. */
export const entries = topic('audit-entries', { key: uuid(), value: entry })
export const uniqueEntries = topic('audit-entries.unique', { key: uuid(), value: entry })
export const repeatedEntries = topic('audit-entries.repeated', { key: uuid(), value: entry })
export const lateEntries = topic('audit-entries.late', { key: uuid(), value: entry })
/** By actor and hour, for reports. */
export const entriesPerActor = topic('audit-entries.per-actor', { key: tuple(string(), date()), value: entry })

const HOUR_MS = 3_600_000

export default topology('audit-dedupe', ({ stream }) => {
  const unique = stream(entries, { timestamp: (each) => Date.parse(each.at) }).dedupe({
    by: 'key',
    name: 'entries',
    window: '7d',
    onDuplicate: { to: repeatedEntries },
    late: { to: lateEntries },
  })
  unique.to(uniqueEntries)
  unique
    .map((each, { timestamp }) => ({ key: [each.actor, new Date(timestamp - (timestamp % HOUR_MS))] as [string, Date], value: each }))
    .to(entriesPerActor)
})
