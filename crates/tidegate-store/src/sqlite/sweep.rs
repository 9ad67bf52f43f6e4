//! Retention: what has been kept long enough goes, in short transactions of its own.
//!
//! A round walks through the dead letters, the deliveries of subscribers that have been inactive for long, the oldest
//! deliveries, the oldest events (see `events`), what was counted of them (see `observed`), and the few other things that
//! age. Each step looks at a bounded number of rows and tells where the next one goes on. Freed pages are used again by
//! what is written next, so the file stays as large as the most that was ever kept; it is not made smaller.

pub(super) mod events;
mod keys;
pub(super) mod observed;

use std::sync::{Arc, PoisonError};

use rusqlite::{Connection, OptionalExtension, Row, params};
use tidegate_core::id::{DeliveryNo, Lane, ProjectNo, SubscriberNo, WindowNo};
use tidegate_core::retention::Retention;
use tidegate_core::time::Timestamp;

use super::lanes::{self, Backfilling};
use super::remembered::Remembered;
use super::{Writer, failed, folds, stamp};
use crate::sweep::before;
use crate::{Result, Sweep, Swept};

/// Pages of look-up keys removed per step.
const PAGES_PER_STEP: i64 = 128;

/// One step of a round.
pub(super) fn sweep(
    writer: &mut Writer,
    terms: &Retention,
    sweep: Sweep,
    limit: usize,
    now: Timestamp,
) -> Result<Swept> {
    let shared = Arc::clone(&writer.book);
    let mut book = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let mut known = writer.remembered.take();
    let tx = writer.conn.transaction().map_err(failed)?;
    let (out, ended, has_written) = (Swept::default(), Vec::new(), sweep == Sweep::Rest);
    let (backfilling, known_rows) = (&writer.backfilling, &mut known);
    let mut step =
        Step { conn: &tx, backfilling, known: known_rows, terms, now, limit, out, ended, has_written };
    let dropped = step.run(sweep).map_err(failed)?;
    let Step { out, ended, has_written, .. } = step;
    if out.events + out.deliveries + out.expired > 0 || has_written {
        let sealed = folds::seal_ended(&tx, &book, &ended, now).map_err(failed)?;
        remember(&tx, "last_no", writer.next_no - 1).map_err(failed)?;
        stamp(&tx, now).map_err(failed)?;
        tx.commit().map_err(failed)?;
        book.apply(sealed);
        if out.events > 0 {
            writer.recent.lock().unwrap_or_else(PoisonError::into_inner).forget();
        }
    }
    writer.remembered.put(known);
    if let Some(run) = dropped {
        writer.dedupe.lock().unwrap_or_else(PoisonError::into_inner).forget(run);
    }
    Ok(out)
}

/// Numbers are never used again, even if every row that had one is gone: memory may still speak of them.
fn remember(conn: &Connection, name: &str, last: i64) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = max(value, ?2)",
    )?
    .execute(params![name, last])?;
    Ok(())
}

/// Tables whose rows have numbers of their own and go in time.
#[derive(Clone, Copy)]
pub(super) enum Numbered {
    Jobs,
    Subscribers,
}

impl Numbered {
    /// Keeps the largest number, before its row goes.
    fn remember(self, conn: &Connection) -> rusqlite::Result<()> {
        let last: Option<i64> = conn.query_row(self.largest(), [], |row| row.get(0))?;
        last.map_or(Ok(()), |last| remember(conn, self.name(), last))
    }

    /// The number of the next row.
    pub(super) fn next(self, conn: &Connection) -> rusqlite::Result<i64> {
        let there: Option<i64> = conn.query_row(self.largest(), [], |row| row.get(0))?;
        let gone: Option<i64> = conn
            .query_row("SELECT value FROM meta WHERE name = ?1", [self.name()], |row| row.get(0))
            .optional()?;
        Ok(there.max(gone).unwrap_or(0) + 1)
    }

    fn largest(self) -> &'static str {
        match self {
            Self::Jobs => "SELECT max(no) FROM jobs",
            Self::Subscribers => "SELECT max(no) FROM subscribers",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Jobs => "last_job",
            Self::Subscribers => "last_subscriber",
        }
    }
}

struct Step<'a> {
    conn: &'a Connection,
    backfilling: &'a Backfilling,
    /// What counting remembers: it forgets what goes.
    known: &'a mut Remembered,
    terms: &'a Retention,
    now: Timestamp,
    limit: usize,
    out: Swept,
    /// Windows whose deliveries expired, which nothing may join any more.
    ended: Vec<(ProjectNo, WindowNo)>,
    /// There is something to commit beside what is counted.
    has_written: bool,
}

pub(super) const EXHAUSTED: &str = "SELECT id, finished_at FROM deliveries
    WHERE project = ?1 AND status = 4 AND id > ?2 ORDER BY id LIMIT ?3";
pub(super) const HELD: &str = "SELECT id, status, created_at, lane FROM deliveries
    WHERE subscriber = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
pub(super) const OLDEST_DELIVERIES: &str = "SELECT d.id, d.status, d.created_at, d.finished_at, s.deleted_at
    FROM deliveries d JOIN subscribers s ON s.no = d.subscriber WHERE d.id > ?1 ORDER BY d.id LIMIT ?2";
const OLDEST_QUARANTINED: &str = "SELECT at FROM quarantine ORDER BY no LIMIT 1";
const OLDEST_JOB: &str =
    "SELECT finished_at FROM jobs WHERE status <> 0 AND finished_at IS NOT NULL ORDER BY finished_at LIMIT 1";
pub(super) const REMOVE_ENDED: &str = "DELETE FROM windows WHERE no IN
    (SELECT no FROM windows WHERE stage = 3 AND closed_at <= ?1 ORDER BY closed_at LIMIT ?2)";
pub(super) const OLDEST_ENDED: &str =
    "SELECT closed_at FROM windows WHERE stage = 3 ORDER BY closed_at LIMIT 1";

impl Step<'_> {
    /// Says which run of look-up keys is gone, if one is.
    fn run(&mut self, sweep: Sweep) -> rusqlite::Result<Option<i64>> {
        let next = match sweep {
            Sweep::Exhausted(project, after) => self.expire_exhausted(project, after)?,
            Sweep::Held(subscriber, after) => self.expire_held(subscriber, after)?,
            Sweep::Deliveries(after) => self.remove_deliveries(after)?,
            Sweep::Overdue(after) => self.remove_overdue(after)?,
            Sweep::Typed(after) => self.remove_typed(after)?,
            Sweep::Events(_) => self.remove_events()?,
            Sweep::Rollups(after) => self.age_rollups(after)?,
            Sweep::Keys(metric, page) => self.give_back_keys(metric, page)?,
            Sweep::EndedMetrics => self.remove_ended_metrics()?,
            Sweep::Postings(after) => self.remove_postings(after)?,
            Sweep::Objects(state, after) => self.forget_objects(state, &after)?,
            Sweep::Rest => return self.remove_rest(),
        };
        self.out.next = Some(next);
        Ok(None)
    }

    fn rows<T>(
        &self,
        sql: &str,
        values: impl rusqlite::Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.conn.prepare_cached(sql)?.query_map(values, read)?.collect()
    }

    fn expire_exhausted(&mut self, project: ProjectNo, after: DeliveryNo) -> rusqlite::Result<Sweep> {
        let limit = self.limit as i64;
        let rows =
            self.rows(EXHAUSTED, params![project, after, limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
        for (id, ended) in &rows {
            let due = Timestamp::from_ms(*ended).plus(self.terms.undelivered);
            if due <= self.now {
                self.expire(*id)?;
            } else {
                self.out.due_at(due);
            }
        }
        if let Some((last, _)) = rows.last().filter(|_| rows.len() == self.limit) {
            return Ok(Sweep::Exhausted(project, *last));
        }
        let next = self.first("SELECT min(no) FROM projects WHERE no > ?1", project)?;
        Ok(next.map_or(Sweep::Held(0, 0), |project| Sweep::Exhausted(project, 0)))
    }

    fn first(&self, sql: &str, after: i64) -> rusqlite::Result<Option<i64>> {
        self.conn.prepare_cached(sql)?.query_row([after], |row| row.get(0))
    }

    fn expire_held(&mut self, subscriber: SubscriberNo, after: DeliveryNo) -> rusqlite::Result<Sweep> {
        let inactive: Option<i64> = self
            .conn
            .prepare_cached(
                "SELECT inactive_at FROM subscribers WHERE no = ?1 AND active = 0 AND deleted_at IS NULL",
            )?
            .query_row([subscriber], |row| row.get(0))
            .optional()?
            .flatten();
        if let Some(inactive) = inactive
            && let Some(last) = self.expire_held_of(subscriber, Timestamp::from_ms(inactive), after)?
        {
            return Ok(Sweep::Held(subscriber, last));
        }
        let next = "SELECT min(no) FROM subscribers WHERE no > ?1 AND active = 0 AND deleted_at IS NULL";
        let next = self.first(next, subscriber)?;
        Ok(next.map_or(Sweep::Deliveries(0), |subscriber| Sweep::Held(subscriber, 0)))
    }

    /// Says where to go on, if there is more that may be due.
    fn expire_held_of(
        &mut self,
        subscriber: SubscriberNo,
        inactive_at: Timestamp,
        after: DeliveryNo,
    ) -> rusqlite::Result<Option<DeliveryNo>> {
        type Held = (DeliveryNo, i64, i64, Option<Lane>);
        let limit = self.limit as i64;
        let rows: Vec<Held> = self.rows(HELD, params![subscriber, after, limit], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?;
        for (id, status, created, lane) in &rows {
            let due = self.terms.held_until(Timestamp::from_ms(*created), inactive_at);
            let is_unsent = matches!(status, 0 | 2);
            if due > self.now {
                // What was made later is due later.
                self.out.due_at(due);
                return Ok(None);
            }
            if !is_unsent {
                continue;
            }
            self.expire(*id)?;
            if let Some(lane) = lane {
                lanes::make_next_due(self.conn, self.backfilling, subscriber, *lane, self.now)?;
            }
        }
        Ok(rows.last().filter(|_| rows.len() == self.limit).map(|(last, ..)| *last))
    }

    fn expire(&mut self, id: DeliveryNo) -> rusqlite::Result<()> {
        let why = "kept undelivered for as long as retention allows";
        let expire = "UPDATE deliveries SET status = 5, finished_at = ?2, reason = ?3 WHERE id = ?1
            RETURNING project, fold";
        let (project, fold): (ProjectNo, Option<WindowNo>) = self
            .conn
            .prepare_cached(expire)?
            .query_row(params![id, self.now.as_ms(), why], |row| Ok((row.get(0)?, row.get(1)?)))?;
        self.ended.extend(fold.map(|window| (project, window)));
        self.out.expired += 1;
        Ok(())
    }

    fn remove_deliveries(&mut self, after: DeliveryNo) -> rusqlite::Result<Sweep> {
        type Old = (DeliveryNo, i64, i64, Option<i64>, Option<i64>);
        let rows: Vec<Old> = self.rows(OLDEST_DELIVERIES, params![after, self.limit as i64], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })?;
        for (id, status, created, ended, deleted) in &rows {
            let first = Timestamp::from_ms(*created).plus(self.terms.deliveries);
            if first > self.now {
                self.out.due_at(first);
                return Ok(Sweep::Overdue(0));
            }
            let over = match status {
                3 | 5 | 6 => *ended,
                1 => None,
                _ => *deleted,
            };
            match over.map(|at| Timestamp::from_ms(at).plus(self.terms.deliveries)) {
                Some(due) if due <= self.now => self.remove_delivery(*id)?,
                Some(due) => self.out.due_at(due),
                // It is not over yet: nothing is due before it has been over for the whole term.
                None => {}
            }
        }
        let last = rows.last().filter(|_| rows.len() == self.limit);
        Ok(last.map_or(Sweep::Overdue(0), |(last, ..)| Sweep::Deliveries(*last)))
    }

    fn remove_delivery(&mut self, id: DeliveryNo) -> rusqlite::Result<()> {
        for sql in [
            "DELETE FROM attempts WHERE delivery = ?1",
            "DELETE FROM windows WHERE no = (SELECT fold FROM deliveries WHERE id = ?1)",
            "DELETE FROM deliveries WHERE id = ?1",
        ] {
            self.conn.prepare_cached(sql)?.execute([id])?;
        }
        self.out.deliveries += 1;
        Ok(())
    }

    /// Everything else that ages is little, but for quarantined units and look-up keys, which go a few at a time.
    fn remove_rest(&mut self) -> rusqlite::Result<Option<i64>> {
        Numbered::Jobs.remember(self.conn)?;
        Numbered::Subscribers.remember(self.conn)?;
        let over = before(self.now, self.terms.deliveries);
        self.conn
            .prepare_cached("DELETE FROM jobs WHERE status <> 0 AND finished_at <= ?1")?
            .execute([over])?;
        let limit = self.limit;
        let quarantined = self
            .conn
            .prepare_cached(
                "DELETE FROM quarantine WHERE no IN
                    (SELECT no FROM quarantine WHERE no <= (SELECT min(no) FROM quarantine) + ?2 AND at <= ?1)",
            )?
            .execute(params![over, limit as i64])?;
        if quarantined > 0 {
            self.out.next = Some(Sweep::Rest);
        }
        for sql in [OLDEST_QUARANTINED, OLDEST_JOB] {
            let oldest: Option<i64> =
                self.conn.prepare_cached(sql)?.query_row([], |row| row.get(0)).optional()?;
            if let Some(at) = oldest.filter(|_| quarantined == 0) {
                self.out.due_at(Timestamp::from_ms(at).plus(self.terms.deliveries));
            }
        }
        self.remove_ended(over)?;
        self.remove_definitions(over)?;
        let run = self.idle_run()?;
        let mut dropped = None;
        if let Some(run) = run {
            let removed = super::run::remove_pages(self.conn, run, PAGES_PER_STEP)?;
            if removed < PAGES_PER_STEP {
                self.conn.prepare_cached("DELETE FROM dedupe_runs WHERE run = ?1")?.execute([run])?;
            }
            dropped = Some(run).filter(|_| removed < PAGES_PER_STEP);
            self.out.next = Some(Sweep::Rest);
        }
        let oldest = "SELECT accepted_at FROM events ORDER BY seq LIMIT 1";
        let oldest: Option<i64> =
            self.conn.prepare_cached(oldest)?.query_row([], |row| row.get(0)).optional()?;
        self.out.oldest_event = oldest.map(Timestamp::from_ms);
        Ok(dropped)
    }

    /// Windows that ended without a delivery; the others go with theirs.
    fn remove_ended(&mut self, over: i64) -> rusqlite::Result<()> {
        let removed = self.conn.prepare_cached(REMOVE_ENDED)?.execute(params![over, self.limit as i64])?;
        if removed == self.limit {
            self.out.next = Some(Sweep::Rest);
            return Ok(());
        }
        let oldest = self.conn.prepare_cached(OLDEST_ENDED)?.query_row([], |row| row.get(0)).optional()?;
        if let Some(at) = oldest {
            self.out.due_at(Timestamp::from_ms(at).plus(self.terms.deliveries));
        }
        Ok(())
    }

    /// A run of look-up keys, not the newest, whose events are all gone.
    fn idle_run(&self) -> rusqlite::Result<Option<i64>> {
        self.conn
            .prepare_cached(
                "SELECT run FROM dedupe_runs r WHERE run < (SELECT max(run) FROM dedupe_runs) AND NOT EXISTS
                    (SELECT 1 FROM events WHERE seq <= r.through AND seq >
                        coalesce((SELECT max(p.through) FROM dedupe_runs p WHERE p.run < r.run), 0))
                 ORDER BY run LIMIT 1",
            )?
            .query_row([], |row| row.get(0))
            .optional()
    }

    /// Definitions by which no event that is left was judged, and deleted subscribers that nothing speaks of any more.
    fn remove_definitions(&self, over: i64) -> rusqlite::Result<()> {
        let oldest: i64 = self
            .conn
            .prepare_cached(
                "SELECT coalesce((SELECT version FROM events ORDER BY seq LIMIT 1),
                    (SELECT value FROM meta WHERE name = 'version'))",
            )?
            .query_row([], |row| row.get(0))?;
        self.conn
            .prepare_cached(
                "DELETE FROM subscriber_versions AS v WHERE EXISTS (SELECT 1 FROM subscriber_versions w
                    WHERE w.project = v.project AND w.subscriber = v.subscriber AND w.version > v.version
                    AND w.version <= ?1)",
            )?
            .execute([oldest])?;
        self.remove_types(over, oldest)?;
        let gone = self.rows(
            "SELECT no, project FROM subscribers s WHERE deleted_at <= ?1 AND version <= ?2
                AND NOT EXISTS (SELECT 1 FROM deliveries WHERE subscriber = s.no)",
            [over, oldest],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        for (no, project) in gone {
            let (no, project): (SubscriberNo, ProjectNo) = (no, project);
            self.conn
                .prepare_cached("DELETE FROM subscriber_versions WHERE project = ?1 AND subscriber = ?2")?
                .execute([project, no])?;
            self.conn.prepare_cached("DELETE FROM subscribers WHERE no = ?1")?.execute([no])?;
        }
        Ok(())
    }
}
