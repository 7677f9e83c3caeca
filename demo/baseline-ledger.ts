/**
 * The points database of the plain consumer: what it credits, and what it credited twice.
 *
 * `user_points` is the business; `credits` is its journal, one row for each credit with the record that caused it. The journal has no unique key, for
 * this is the consumer without de-duplication; it only lets the repeated credits be counted afterwards.
 */
import Database from 'better-sqlite3'

export interface Credit {
  readonly partition: number
  readonly offset: number
  readonly orderId: string
  readonly type: string
  readonly userId: string
  readonly points: number
}

export interface Crash {
  /** The process that was killed. */
  readonly pid: number
  /** When, ms since 1970. */
  readonly at: number
}

export interface LedgerReport {
  readonly credits: number
  /** Different records (partition and offset) that were credited. */
  readonly records: number
  /** Credits of a record that had been credited before: processed again after a crash. */
  readonly duplicates: number
  /** Credits of an order event that the producer had sent before under another offset. */
  readonly resent: number
  /** Users with at least one credit of `duplicates`. */
  readonly usersCreditedTwice: number
  /** Points of `duplicates`. */
  readonly pointsTooMany: number
  /** For each crash: from the oldest credit of the killed process that was repeated after the crash to the crash, ms; 0 when none was. */
  readonly windowsMs: readonly number[]
}

/** Waits for the other worker's write; both write a row every few hundred microseconds. */
const BUSY_TIMEOUT_MS = 10_000

export class Ledger {
  readonly #database: Database.Database
  readonly #credit: (credit: Credit) => void

  constructor(path: string) {
    this.#database = new Database(path, { timeout: BUSY_TIMEOUT_MS })
    this.#database.pragma('journal_mode = WAL')
    this.#database.pragma('synchronous = NORMAL')
    this.#database.exec(`
      CREATE TABLE IF NOT EXISTS user_points (user_id TEXT PRIMARY KEY, points INTEGER NOT NULL) WITHOUT ROWID;
      CREATE TABLE IF NOT EXISTS credits (
        id INTEGER PRIMARY KEY, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL, order_id TEXT NOT NULL, type TEXT NOT NULL,
        user_id TEXT NOT NULL, points INTEGER NOT NULL, worker INTEGER NOT NULL, at INTEGER NOT NULL
      );`)
    const addPoints = this.#database.prepare(
      'INSERT INTO user_points (user_id, points) VALUES (?, ?) ON CONFLICT (user_id) DO UPDATE SET points = points + excluded.points',
    )
    const addCredit = this.#database.prepare(
      'INSERT INTO credits (partition, "offset", order_id, type, user_id, points, worker, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)',
    )
    const both = this.#database.transaction(({ partition, offset, orderId, type, userId, points }: Credit) => {
      addPoints.run(userId, points)
      addCredit.run(partition, offset, orderId, type, userId, points, process.pid, Date.now())
    })
    this.#credit = (credit) => {
      both.immediate(credit)
    }
  }

  /** One database transaction. */
  credit(credit: Credit): void {
    this.#credit(credit)
  }

  report(crashes: readonly Crash[]): LedgerReport {
    const totals = this.#database
      .prepare(
        `WITH numbered AS (
           SELECT *, row_number() OVER (PARTITION BY partition, "offset" ORDER BY id) AS times FROM credits
         )
         SELECT count(*) AS credits, count(*) FILTER (WHERE times = 1) AS records, count(*) FILTER (WHERE times > 1) AS duplicates,
           count(DISTINCT CASE WHEN times > 1 THEN user_id END) AS users, coalesce(sum(CASE WHEN times > 1 THEN points END), 0) AS points
         FROM numbered`,
      )
      .get() as { credits: number; records: number; duplicates: number; users: number; points: number }
    const { ids } = this.#database.prepare('SELECT count(*) AS ids FROM (SELECT DISTINCT order_id, type FROM credits)').get() as {
      ids: number
    }
    const oldestRepeated = this.#database.prepare(
      `SELECT min(at) AS at FROM (
         SELECT at, worker, lead(at) OVER (PARTITION BY partition, "offset" ORDER BY id) AS repeated_at FROM credits
       ) WHERE worker = ? AND repeated_at >= ?`,
    )
    return {
      credits: totals.credits,
      records: totals.records,
      duplicates: totals.duplicates,
      resent: totals.records - ids,
      usersCreditedTwice: totals.users,
      pointsTooMany: totals.points,
      windowsMs: crashes.map(({ pid, at }) => {
        const oldest = (oldestRepeated.get(pid, at) as { at: number | null }).at
        return oldest === null ? 0 : Math.max(0, at - oldest)
      }),
    }
  }

  close(): void {
    this.#database.close()
  }
}
