//! Retention of what is partitioned: periods of events and of attempts are dropped, not deleted.
//!
//! A period of events that is over and old enough goes in three moves. First it is looked through, piece by piece and
//! in nobody's way, for events that something still needs or whose type has a term of its own. Then, in one short
//! transaction that everybody waits for, it is detached and those events are put back, into the partition for what must
//! outlive its period. Last, the ids of the others are given free, a few at a time, and the table is dropped.
//!
//! A period of which too much stays to be moved while everybody waits is thinned instead: the others go row by row, once,
//! and the table is dropped when nothing is left in it. What outlived its term is noted as overdue, see `overdue`.

use std::collections::BTreeSet;

use tidegate_core::id::Seq;
use tidegate_core::time::Timestamp;
use tokio_postgres::error::SqlState;

use super::{PAST, Step};
use crate::Sweep;
use crate::postgres::db::{Asked, Fault};
use crate::postgres::keeping;

/// Rows that are moved at most while everybody waits, and their bytes.
pub(super) const MOVED_MAX: usize = 10_000;
const MOVED_BYTES_MAX: i64 = 64 * 1024 * 1024;
/// Rows of a period looked through in one go.
const PIECE_ROWS: i64 = 5_000;

/// How long everybody may have to wait behind a detachment that waits itself.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '1s'";

/// Whether a delivery that may still be sent carries the event `e`, or a window that gathers holds it, or it has not been
/// observed while there is any metric, or somebody who counts states anew has not looked at it, or a backfill has still to
/// bring it to an ordered fold that came before it. Each is one look at an index: as `EXISTS` the planner might read all
/// deliveries instead. Subscribers are looked at only while there is a backfill.
pub(super) const NEEDED: &str =
    "((SELECT TRUE FROM deliveries d WHERE d.event = e.seq AND d.status IN (0, 1, 2, 4) LIMIT 1) IS NOT NULL
        OR (SELECT TRUE FROM members m JOIN windows w ON w.no = m.\"window\" LEFT JOIN deliveries d ON d.id = w.delivery
            WHERE m.event = e.seq AND (w.stage = 0 OR d.status IN (0, 1, 2, 4)) LIMIT 1) IS NOT NULL
        OR (SELECT TRUE FROM marks k WHERE k.incarnation = e.incarnation AND k.seq < e.seq
            AND EXISTS (SELECT 1 FROM metrics WHERE ended_at IS NULL)) IS NOT NULL
        OR (SELECT TRUE FROM backfills b WHERE b.finished_at IS NULL AND b.rebuild <> '' AND b.after < e.seq
            LIMIT 1) IS NOT NULL
        OR (SELECT TRUE FROM subscribers s WHERE s.project = e.project AND s.deleted_at IS NULL
            AND s.backfill_after < e.seq AND e.seq <= s.backfill_until AND s.created_version <= e.version
            AND EXISTS (SELECT 1 FROM subscribers WHERE backfill_after IS NOT NULL) LIMIT 1) IS NOT NULL)";
/// Whether the type of the event `e` has a term of its own: then others care for it.
pub(super) const HAS_OWN_TERM: &str = "((SELECT TRUE FROM event_terms t
    WHERE t.project = e.project AND t.source = e.source AND t.type = e.type) IS NOT NULL)";

/// What has outlived a period.
pub(super) const KEPT: &str =
    "SELECT seq FROM events_kept WHERE seq >= $1 AND seq <= $2 ORDER BY seq LIMIT $3";

/// A table that holds, or held, one period.
pub(super) struct Table {
    period: i64,
    is_attached: bool,
}

/// Events that must outlive their period.
pub(super) struct Needed {
    seqs: BTreeSet<Seq>,
    /// Those of them that have also outlived their term.
    overdue: BTreeSet<Seq>,
    /// All deliveries up to this number have been looked at.
    mark: i64,
    /// When the newest of the others happened, or was accepted if that was later.
    newest: Option<i64>,
}

impl Step<'_> {
    /// Tables of one kind, oldest first.
    pub(super) async fn tables(&self, kind: &str) -> Asked<Vec<Table>> {
        let sql = "SELECT substr(c.relname, length($1) + 2)::bigint, EXISTS
                (SELECT 1 FROM pg_inherits i WHERE i.inhrelid = c.oid) FROM pg_class c
            WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'
                AND c.relname ~ ('^' || $1 || '_[0-9]+$') ORDER BY 1";
        let rows = self.conn.rows(sql, &[&kind]).await?;
        Ok(rows.iter().map(|row| Table { period: row.get(0), is_attached: row.get(1) }).collect())
    }

    fn first_no(&self, table: &Table) -> i64 {
        self.periods.first_no(table.period)
    }

    fn last_no(&self, table: &Table) -> i64 {
        self.periods.first_no(table.period + 1) - 1
    }

    /// When a period is over.
    fn end_of(&self, table: &Table) -> Timestamp {
        let length = i64::try_from(self.periods.length.as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_ms(length.saturating_mul(table.period + 1))
    }

    /// Goes on behind a number, with the first period that has higher ones.
    pub(super) async fn remove_events(&mut self, after: Seq) -> Asked<Sweep> {
        let tables = self.tables("events").await?;
        let Some(table) = tables.iter().find(|table| self.last_no(table) > after) else {
            return Ok(Sweep::Rollups(0));
        };
        let go_on = if !table.is_attached {
            self.forget(table, after).await?
        } else if after < self.first_no(table) {
            return self.begin(table).await;
        } else {
            self.thin(table, after).await?
        };
        Ok(Sweep::Events(go_on.unwrap_or(self.last_no(table))))
    }

    /// Detaches a period if its time has come.
    async fn begin(&mut self, table: &Table) -> Asked<Sweep> {
        let (before, last) = (self.first_no(table) - 1, self.last_no(table));
        if self.is_thin(table).await? {
            if !self.is_empty(table).await? {
                return Ok(Sweep::Events(last));
            }
        } else {
            let newest = self.newest(table).await?;
            let end = self.end_of(table);
            let due = newest.map_or(end, |newest| newest.plus(self.terms.events).max(end));
            if due > self.now {
                // Later periods are younger.
                newest.into_iter().for_each(|_| self.out.due_at(due));
                return Ok(Sweep::Rollups(0));
            }
        }
        if self.is_rebuilding(table).await? {
            self.look_again();
            return Ok(Sweep::Rollups(0));
        }
        let Some(needed) = self.needed(table).await? else {
            let begin = "INSERT INTO periods_kept VALUES ($1, FALSE) ON CONFLICT DO NOTHING";
            self.conn.execute(begin, &[&table.period]).await?;
            return Ok(Sweep::Events(self.thin(table, before).await?.unwrap_or(last)));
        };
        if !needed.overdue.is_empty() {
            self.look_again();
        }
        if self.detach_events(table, needed).await? {
            return Ok(Sweep::Events(before));
        }
        self.look_again();
        Ok(Sweep::Events(last))
    }

    /// Whether it has been looked through row by row, and no type has lost its own term since.
    async fn is_thin(&self, table: &Table) -> Asked<bool> {
        let sql = "SELECT 1 FROM periods_kept WHERE period = $1 AND is_thin";
        self.conn.exists(sql, &[&table.period]).await
    }

    async fn is_empty(&self, table: &Table) -> Asked<bool> {
        let sql = format!("SELECT NOT EXISTS (SELECT 1 FROM {})", name("events", table));
        Ok(self.conn.only_once(&sql, &[]).await?.get(0))
    }

    /// Removes events of a period one by one, but for those with terms of their own. Says where to go on.
    async fn thin(&mut self, table: &Table, after: Seq) -> Asked<Option<Seq>> {
        let name = name("events", table);
        let sql = format!(
            "SELECT seq, greatest(accepted_at, time), {HAS_OWN_TERM} FROM {name} e WHERE seq > $1 ORDER BY seq LIMIT $2"
        );
        let rows = self.conn.rows_once(&sql, &[&after, &self.limit()]).await?;
        let due: Vec<(Seq, i64)> =
            rows.iter().filter(|row| !row.get::<_, bool>(2)).map(|row| (row.get(0), row.get(1))).collect();
        let removed = self.remove_unless_needed(&name, &due).await?;
        keeping::raise_swept_until(self.conn, removed).await?;
        if rows.len() == self.limit {
            return Ok(rows.last().map(|row| row.get(0)));
        }
        let end = "UPDATE periods_kept SET is_thin = TRUE WHERE period = $1";
        self.conn.execute(end, &[&table.period]).await?;
        Ok(None)
    }

    /// When a delivery ends is nobody's guess: look again, but not all the time.
    pub(super) fn look_again(&mut self) {
        self.out.due_at(self.now.plus(self.terms.events / 100));
    }

    /// When the newest event of a period was accepted. Numbers and times of two processes may be a little at odds.
    async fn newest(&self, table: &Table) -> Asked<Option<Timestamp>> {
        let sql = format!(
            "SELECT max(accepted_at) FROM (SELECT accepted_at FROM {} ORDER BY seq DESC LIMIT 1000) e",
            name("events", table)
        );
        let row = self.conn.only_once(&sql, &[]).await?;
        Ok(row.get::<_, Option<i64>>(0).map(Timestamp::from_ms))
    }

    /// The events of a period that must outlive it, if they are few enough to be moved.
    pub(super) async fn needed(&self, table: &Table) -> Asked<Option<Needed>> {
        let sql = format!(
            "SELECT count(*), max(seq), array_agg(seq) FILTER (WHERE is_needed OR has_own),
                coalesce(sum(bytes) FILTER (WHERE is_needed OR has_own), 0)::bigint,
                array_agg(seq) FILTER (WHERE is_needed AND NOT has_own),
                max(newest) FILTER (WHERE NOT is_needed AND NOT has_own)
             FROM (SELECT seq, greatest(accepted_at, time) AS newest, octet_length(body) AS bytes, {NEEDED} AS is_needed, {HAS_OWN_TERM} AS has_own
                FROM {} e WHERE seq > $1 ORDER BY seq LIMIT $2) e",
            name("events", table)
        );
        let mark = self.mark().await?;
        let (mut seqs, mut overdue, mut newest) = (BTreeSet::new(), BTreeSet::new(), None);
        let (mut bytes, mut after) = (0_i64, 0_i64);
        loop {
            let row = self.conn.only_once(&sql, &[&after, &PIECE_ROWS]).await?;
            seqs.extend(row.get::<_, Option<Vec<Seq>>>(2).unwrap_or_default());
            bytes += row.get::<_, i64>(3);
            overdue.extend(row.get::<_, Option<Vec<Seq>>>(4).unwrap_or_default());
            newest = newest.max(row.get::<_, Option<i64>>(5));
            if seqs.len() > MOVED_MAX || bytes > MOVED_BYTES_MAX {
                return Ok(None);
            }
            if row.get::<_, i64>(0) < PIECE_ROWS {
                break;
            }
            after = row.get(1);
        }
        let later = self.mark().await?;
        let since = self.needed_since(table, mark).await?;
        seqs.extend(&since);
        overdue.extend(since);
        Ok(Some(Needed { seqs, overdue, mark: later, newest }))
    }

    /// A number such that every delivery of a past event up to it is visible from here on, or will never be.
    async fn mark(&self) -> Asked<i64> {
        self.conn.tell("SAVEPOINT mark").await?;
        self.conn.execute("SELECT pg_advisory_xact_lock($1, $2)", &[&self.space, &PAST]).await?;
        let last = self.conn.only("SELECT ((last_value + 1) << 20) - 1 FROM numbers", &[]).await?.get(0);
        // Lets go of the lock again.
        self.conn.tell("ROLLBACK TO mark; RELEASE mark").await?;
        Ok(last)
    }

    /// Those that deliveries need which were made after a mark.
    async fn needed_since(&self, table: &Table, mark: i64) -> Asked<Vec<Seq>> {
        let sql = "SELECT d.event FROM (SELECT event FROM deliveries WHERE id > $1 AND status IN (0, 1, 2, 4) OFFSET 0) d
                WHERE d.event >= $2 AND d.event <= $3
            UNION SELECT m.event FROM (SELECT event FROM members WHERE past > $1 OFFSET 0) m
                WHERE m.event >= $2 AND m.event <= $3";
        let rows = self.conn.rows(sql, &[&mark, &self.first_no(table), &self.last_no(table)]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Whether it could be done: whoever reads or writes events right now may take too long.
    pub(super) async fn detach_events(&self, table: &Table, mut needed: Needed) -> Asked<bool> {
        self.detaching(async {
            let name = name("events", table);
            self.detach("events", &name).await?;
            // Whoever begins to count states anew looks at events, and waits from here on.
            if self.is_rebuilding(table).await? {
                return Ok(false);
            }
            // Whoever was about to make a delivery of one of these has ended, or will not find it.
            let since = self.needed_since(table, needed.mark).await?;
            needed.seqs.extend(&since);
            needed.overdue.extend(since);
            let seqs: Vec<Seq> = needed.seqs.into_iter().collect();
            let put_back = format!("INSERT INTO events SELECT * FROM {name} WHERE seq = ANY($1)");
            self.conn.execute_once(&put_back, &[&seqs]).await?;
            self.note_overdue(&needed.overdue.into_iter().collect::<Vec<_>>()).await?;
            keeping::raise_swept_until(self.conn, needed.newest).await?;
            self.conn.execute("DELETE FROM periods_kept WHERE period = $1", &[&table.period]).await?;
            Ok(true)
        })
        .await
    }

    async fn detach(&self, kind: &str, name: &str) -> Asked<()> {
        let sql = format!("{LOCK_TIMEOUT}; ALTER TABLE {kind} DETACH PARTITION {name}");
        self.conn.tell(&sql).await
    }

    /// Undoes `work` if it had to wait for too long, or says no.
    async fn detaching(&self, work: impl Future<Output = Asked<bool>>) -> Asked<bool> {
        self.conn.tell("SAVEPOINT detaching").await?;
        match work.await {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(Fault::Database(error)) if has_waited(&error) => {}
            Err(error) => return Err(error),
        }
        self.conn.tell("ROLLBACK TO detaching").await?;
        tracing::debug!("a period is dropped another time: others are using it");
        Ok(false)
    }

    /// Whether somebody who counts states anew has not looked at all of a period.
    async fn is_rebuilding(&self, table: &Table) -> Asked<bool> {
        let sql = "SELECT 1 FROM backfills WHERE finished_at IS NULL AND rebuild <> '' AND after < $1";
        self.conn.exists(sql, &[&self.last_no(table)]).await
    }

    /// Gives free the ids of what is gone with a detached period, and drops it at the end. Says where to go on.
    async fn forget(&mut self, table: &Table, after: Seq) -> Asked<Option<Seq>> {
        let name = name("events", table);
        let sql = format!(
            "WITH e AS MATERIALIZED (SELECT seq, key_high, key_low,
                (SELECT TRUE FROM events_kept k WHERE k.seq = g.seq) IS NOT NULL AS is_kept
                FROM {name} g WHERE seq > $1 ORDER BY seq LIMIT $2),
             free AS (DELETE FROM dedupe d USING e WHERE NOT e.is_kept AND d.key_high = e.key_high
                AND d.key_low = e.key_low AND d.event = e.seq),
             folded AS (DELETE FROM members_kept m USING e WHERE NOT e.is_kept AND m.event = e.seq)
             SELECT count(*), count(*) FILTER (WHERE NOT is_kept), max(seq) FROM e"
        );
        let row = self.conn.only_once(&sql, &[&after, &self.limit()]).await?;
        self.out.events += row.get::<_, i64>(1).unsigned_abs();
        if row.get::<_, i64>(0) < self.limit() {
            self.conn.tell(&format!("DROP TABLE {name}")).await?;
            return Ok(None);
        }
        Ok(row.get(2))
    }

    /// Drops the oldest period of attempts whose deliveries have gone, or nearly all: the attempts of the others are put
    /// back, into the partition for what must outlive its period. Says whether there was one.
    pub(super) async fn drop_attempts(&mut self) -> Asked<bool> {
        for table in self.tables("attempts").await? {
            if self.end_of(&table).plus(self.terms.deliveries) > self.now {
                break;
            }
            let sql = "SELECT id FROM deliveries WHERE id >= $1 AND id <= $2 ORDER BY id LIMIT $3";
            let more = MOVED_MAX as i64 + 1;
            let rows = self.conn.rows(sql, &[&self.first_no(&table), &self.last_no(&table), &more]).await?;
            if rows.len() > MOVED_MAX {
                continue;
            }
            let left: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            return self.drop_attempts_of(&table, &left).await;
        }
        Ok(false)
    }

    /// Drops the oldest period of members whose events have gone, or nearly all, in the same way.
    pub(super) async fn drop_members(&mut self) -> Asked<bool> {
        let there: Vec<i64> = self.tables("events").await?.iter().map(|table| table.period).collect();
        for table in self.tables("members").await? {
            if there.contains(&table.period) || self.end_of(&table) > self.now {
                continue;
            }
            if let Some(left) = self.events_of_members(&table).await? {
                return self.drop_members_of(&table, &left).await;
            }
        }
        Ok(false)
    }

    /// The kept events of a period, unless too many members would have to be moved with them. They do not become more: the
    /// period itself is gone.
    async fn events_of_members(&self, table: &Table) -> Asked<Option<Vec<Seq>>> {
        let more = MOVED_MAX as i64 + 1;
        let range = [self.first_no(table), self.last_no(table)];
        let rows = self.conn.rows(KEPT, &[&range[0], &range[1], &more]).await?;
        let left: Vec<Seq> = rows.iter().map(|row| row.get(0)).collect();
        if left.len() > MOVED_MAX {
            return Ok(None);
        }
        let sql = members_sql(&name("members", table), "1");
        let sql = format!("SELECT count(*) FROM ({sql} LIMIT $2) m");
        let count: i64 = self.conn.only_once(&sql, &[&left, &more]).await?.get(0);
        Ok((count < more).then_some(left))
    }

    async fn drop_members_of(&self, table: &Table, left: &[Seq]) -> Asked<bool> {
        self.detaching(async {
            let name = name("members", table);
            self.detach("members", &name).await?;
            let put_back = format!("INSERT INTO members {}", members_sql(&name, "m.*"));
            self.conn.execute_once(&put_back, &[&left]).await?;
            self.conn.tell(&format!("DROP TABLE {name}")).await?;
            Ok(true)
        })
        .await
    }

    async fn drop_attempts_of(&self, table: &Table, left: &[i64]) -> Asked<bool> {
        self.detaching(async {
            let name = name("attempts", table);
            self.detach("attempts", &name).await?;
            let put_back = format!("INSERT INTO attempts SELECT * FROM {name} WHERE delivery = ANY($1)");
            self.conn.execute_once(&put_back, &[&left]).await?;
            self.conn.tell(&format!("DROP TABLE {name}")).await?;
            Ok(true)
        })
        .await
    }
}

fn name(kind: &str, table: &Table) -> String {
    format!("{kind}_{}", table.period)
}

/// What the events of `$1` have in a table of members. Each is one look at its index, whatever the planner makes of arrays.
pub(super) fn members_sql(table: &str, what: &str) -> String {
    format!(
        "SELECT {what} FROM unnest($1::bigint[]) AS k(event)
            CROSS JOIN LATERAL (SELECT * FROM {table} i WHERE i.event = k.event OFFSET 0) m"
    )
}

/// Others stood in the way for longer than they may be held up, or it took too long itself.
fn has_waited(error: &tokio_postgres::Error) -> bool {
    let codes = [&SqlState::LOCK_NOT_AVAILABLE, &SqlState::T_R_DEADLOCK_DETECTED, &SqlState::QUERY_CANCELED];
    error.code().is_some_and(|code| codes.contains(&code))
}
