//! Retention: what has been kept long enough goes, in short transactions of its own, one process at a time.
//!
//! A round walks through the dead letters, the deliveries of subscribers that have been inactive for long, the oldest
//! deliveries, the events period by period (see `periods`) or one by one (see `overdue`), what was counted of them (see
//! `observed`), and the few other things that age. Each step looks at a bounded number of rows and tells where the next one
//! goes on. Rows that somebody else is changing at that instant are passed over: there is another round.

mod keys;
mod observed;
mod overdue;
mod periods;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tidegate_core::id::{DeliveryNo, Lane, ProjectNo, SubscriberNo};
use tidegate_core::retention::Retention;
use tidegate_core::time::Timestamp;

use super::db::{Asked, Conn, Pool};
use super::lanes::{self, Lanes};
use super::{Periods, Shared, configuration};
use crate::sweep::before;
use crate::{Sweep, Swept};

/// Advisory locks, see `open.rs`: whoever sweeps holds the first alone.
const RETENTION: i32 = 4;
/// Whoever makes deliveries of past events holds this one with others, whoever removes events alone.
const PAST: i32 = 5;

/// What a delivery is that has been kept undelivered for long.
const EXPIRED: &str = "kept undelivered for as long as retention allows";

/// One step of a round. If another process is at it, this round is over.
pub(super) async fn sweep(
    pool: &Arc<Pool>,
    shared: &Shared,
    terms: Retention,
    sweep: Sweep,
    limit: usize,
    now: Timestamp,
) -> Asked<Swept> {
    let (space, periods) = (shared.space, shared.periods);
    pool.transact(move |conn| {
        Box::pin(async move {
            let alone = "SELECT pg_try_advisory_xact_lock($1, $2)";
            if !conn.only(alone, &[&space, &RETENTION]).await?.get::<_, bool>(0) {
                return Ok(Swept::default());
            }
            let mut step = Step { conn, space, periods, terms, now, limit, out: Swept::default() };
            let next = step.run(sweep).await?;
            Ok(Swept { next, ..step.out })
        })
    })
    .await
}

/// Past events stay as long as the transaction lasts: for whoever is about to make deliveries of them.
pub(super) async fn hold_past(conn: &Conn, space: i32) -> Asked<()> {
    conn.execute("SELECT pg_advisory_xact_lock_shared($1, $2)", &[&space, &PAST]).await?;
    Ok(())
}

struct Step<'a> {
    conn: &'a Conn,
    space: i32,
    periods: Periods,
    terms: Retention,
    now: Timestamp,
    limit: usize,
    out: Swept,
}

const EXHAUSTED: &str = "SELECT id, finished_at FROM deliveries
    WHERE project = $1 AND shelf = 4 AND id > $2 ORDER BY id LIMIT $3";
const HELD: &str = "SELECT id, status, created_at, lane FROM deliveries
    WHERE subscriber = $1 AND id > $2 ORDER BY id LIMIT $3";
const OLDEST_DELIVERIES: &str = "SELECT d.id, d.status, d.created_at, d.finished_at, s.deleted_at
    FROM deliveries d JOIN subscribers s ON s.no = d.subscriber WHERE d.id > $1 ORDER BY d.id LIMIT $2";

/// Only what still is what it was when it was looked at.
const EXPIRE: &str = "WITH expired AS (UPDATE deliveries SET status = 5, finished_at = $2, reason = $3
            WHERE id = ANY(ARRAY(SELECT id FROM deliveries WHERE id = ANY($1) AND status = ANY($4)
                AND coalesce(finished_at, 0) <= $5 FOR UPDATE SKIP LOCKED)) RETURNING fold),
        sealed AS (UPDATE windows SET stage = 2 WHERE no = ANY(ARRAY(SELECT fold FROM expired)) AND stage = 1)
    SELECT count(*) FROM expired";

/// With all that belongs to it, but for attempts in partitions: these go together, and nobody asks for them meanwhile.
const REMOVE: &str = "WITH gone AS (DELETE FROM deliveries WHERE id = ANY(ARRAY(
            SELECT d.id FROM deliveries d JOIN subscribers s ON s.no = d.subscriber WHERE d.id = ANY($1)
                AND (d.status IN (3, 5, 6) AND d.finished_at <= $2 OR d.status IN (0, 2, 4) AND s.deleted_at <= $2)
            FOR UPDATE OF d SKIP LOCKED)) RETURNING id, fold),
        tried AS (DELETE FROM attempts_kept WHERE delivery = ANY(ARRAY(SELECT id FROM gone))),
        frozen AS (DELETE FROM delivery_bodies WHERE delivery = ANY(ARRAY(SELECT id FROM gone))),
        folded AS (DELETE FROM windows WHERE no = ANY(ARRAY(SELECT fold FROM gone WHERE fold IS NOT NULL)))
    SELECT count(*) FROM gone";

const REMOVE_ENDED: &str = "DELETE FROM windows WHERE no = ANY(ARRAY(
        SELECT no FROM windows WHERE stage = 3 AND closed_at <= $1 ORDER BY closed_at LIMIT $2))";
const OLDEST_ENDED: &str = "SELECT closed_at FROM windows WHERE stage = 3 ORDER BY closed_at LIMIT 1";

const OLDEST_QUARANTINED: &str = "SELECT at FROM quarantine ORDER BY no LIMIT 1";
const OLDEST_JOB: &str =
    "SELECT finished_at FROM jobs WHERE status <> 0 AND finished_at IS NOT NULL ORDER BY finished_at LIMIT 1";

impl Step<'_> {
    /// Says where the round goes on.
    async fn run(&mut self, sweep: Sweep) -> Asked<Option<Sweep>> {
        Ok(match sweep {
            Sweep::Exhausted(project, after) => Some(self.expire_exhausted(project, after).await?),
            Sweep::Held(subscriber, after) => Some(self.expire_held(subscriber, after).await?),
            Sweep::Deliveries(after) => Some(self.remove_deliveries(after).await?),
            Sweep::Overdue(after) => Some(self.remove_overdue(after).await?),
            Sweep::Typed(after) => Some(self.remove_typed(after).await?),
            Sweep::Events(after) => Some(self.remove_events(after).await?),
            Sweep::Rollups(after) => Some(self.age_rollups(after).await?),
            Sweep::Keys(metric, page) => Some(self.give_back_keys(metric, page).await?),
            Sweep::EndedMetrics => Some(self.remove_ended_metrics().await?),
            Sweep::Postings(after) => Some(self.remove_postings(after).await?),
            Sweep::Objects(state, after) => Some(self.forget_objects(state, &after).await?),
            Sweep::Rest => self.remove_rest().await?,
        })
    }

    async fn first(&self, sql: &str, after: i64) -> Asked<Option<i64>> {
        Ok(self.conn.only(sql, &[&after]).await?.get(0))
    }

    fn limit(&self) -> i64 {
        self.limit as i64
    }

    async fn expire_exhausted(&mut self, project: ProjectNo, after: DeliveryNo) -> Asked<Sweep> {
        let rows = self.conn.rows(EXHAUSTED, &[&project, &after, &self.limit()]).await?;
        let mut over = Vec::new();
        for row in &rows {
            let due = Timestamp::from_ms(row.get(1)).plus(self.terms.undelivered);
            if due <= self.now {
                over.push(row.get(0));
            } else {
                self.out.due_at(due);
            }
        }
        let ended_by = before(self.now, self.terms.undelivered);
        self.expire(&over, &[4], ended_by).await?;
        if let Some(last) = rows.last().filter(|_| rows.len() == self.limit) {
            return Ok(Sweep::Exhausted(project, last.get(0)));
        }
        let next = self.first("SELECT min(no) FROM projects WHERE no > $1", project).await?;
        Ok(next.map_or(Sweep::Held(0, 0), |project| Sweep::Exhausted(project, 0)))
    }

    async fn expire(&mut self, ids: &[DeliveryNo], statuses: &[i16], ended_by: i64) -> Asked<()> {
        if !ids.is_empty() {
            let values: super::db::Values<'_> = &[&ids, &self.now.as_ms(), &EXPIRED, &statuses, &ended_by];
            let expired: i64 = self.conn.only(EXPIRE, values).await?.get(0);
            self.out.expired += expired.unsigned_abs();
        }
        Ok(())
    }

    async fn expire_held(&mut self, subscriber: SubscriberNo, after: DeliveryNo) -> Asked<Sweep> {
        // Nobody is resumed meanwhile.
        configuration::hold(self.conn, self.space).await?;
        let inactive =
            "SELECT inactive_at FROM subscribers WHERE no = $1 AND NOT active AND deleted_at IS NULL";
        let inactive = self.conn.row(inactive, &[&subscriber]).await?;
        let inactive = inactive.and_then(|row| row.get::<_, Option<i64>>(0));
        if let Some(inactive) = inactive
            && let Some(last) = self.expire_held_of(subscriber, Timestamp::from_ms(inactive), after).await?
        {
            return Ok(Sweep::Held(subscriber, last));
        }
        let next = "SELECT min(no) FROM subscribers WHERE no > $1 AND NOT active AND deleted_at IS NULL";
        let next = self.first(next, subscriber).await?;
        Ok(next.map_or(Sweep::Deliveries(0), |subscriber| Sweep::Held(subscriber, 0)))
    }

    /// Says where to go on, if there is more that may be due.
    async fn expire_held_of(
        &mut self,
        subscriber: SubscriberNo,
        inactive_at: Timestamp,
        after: DeliveryNo,
    ) -> Asked<Option<DeliveryNo>> {
        let rows = self.conn.rows(HELD, &[&subscriber, &after, &self.limit()]).await?;
        let mut go_on = rows.last().filter(|_| rows.len() == self.limit).map(|row| row.get(0));
        let (mut over, mut lanes) = (Vec::new(), Lanes::new());
        for row in &rows {
            let due = self.terms.held_until(Timestamp::from_ms(row.get(2)), inactive_at);
            if due > self.now {
                // What was made later is due later.
                self.out.due_at(due);
                go_on = None;
                break;
            }
            if matches!(row.get::<_, i16>(1), 0 | 2) {
                over.push(row.get(0));
                lanes.extend(row.get::<_, Option<Lane>>(3).map(|lane| (subscriber, lane)));
            }
        }
        lanes::lock(self.conn, self.space, &lanes).await?;
        self.expire(&over, &[0, 2], i64::MAX).await?;
        lanes::make_next_due(self.conn, &lanes, self.now).await?;
        Ok(go_on)
    }

    async fn remove_deliveries(&mut self, after: DeliveryNo) -> Asked<Sweep> {
        let rows = self.conn.rows(OLDEST_DELIVERIES, &[&after, &self.limit()]).await?;
        let mut go_on = rows.last().filter(|_| rows.len() == self.limit).map(|row| row.get(0));
        let mut over: Vec<DeliveryNo> = Vec::new();
        for row in &rows {
            let first = Timestamp::from_ms(row.get(2)).plus(self.terms.deliveries);
            if first > self.now {
                self.out.due_at(first);
                go_on = None;
                break;
            }
            let ended: Option<i64> = match row.get::<_, i16>(1) {
                3 | 5 | 6 => row.get(3),
                1 => None,
                _ => row.get(4),
            };
            match ended.map(|at| Timestamp::from_ms(at).plus(self.terms.deliveries)) {
                Some(due) if due <= self.now => over.push(row.get(0)),
                Some(due) => self.out.due_at(due),
                // It is not over yet: nothing is due before it has been over for the whole term.
                None => {}
            }
        }
        if !over.is_empty() {
            let ended_by = before(self.now, self.terms.deliveries);
            let gone: i64 = self.conn.only(REMOVE, &[&over, &ended_by]).await?.get(0);
            self.out.deliveries += gone.unsigned_abs();
        }
        Ok(go_on.map_or(Sweep::Overdue(0), Sweep::Deliveries))
    }

    /// Everything else that ages is little, but for quarantined units, which go a few at a time, and attempts.
    async fn remove_rest(&mut self) -> Asked<Option<Sweep>> {
        let over = before(self.now, self.terms.deliveries);
        self.conn.execute("DELETE FROM jobs WHERE status <> 0 AND finished_at <= $1", &[&over]).await?;
        let quarantined = "DELETE FROM quarantine WHERE no = ANY(ARRAY(
            SELECT no FROM (SELECT no, at FROM quarantine ORDER BY no LIMIT $2) q WHERE at <= $1))";
        let quarantined = self.conn.execute(quarantined, &[&over, &self.limit()]).await?;
        for sql in [OLDEST_QUARANTINED, OLDEST_JOB] {
            if let Some(row) = self.conn.row(sql, &[]).await?.filter(|_| quarantined == 0) {
                self.out.due_at(Timestamp::from_ms(row.get(0)).plus(self.terms.deliveries));
            }
        }
        let is_more = self.remove_ended(over).await?;
        self.remove_definitions(over).await?;
        let oldest = "SELECT accepted_at FROM events ORDER BY seq LIMIT 1";
        let oldest = self.conn.row(oldest, &[]).await?;
        self.out.oldest_event = oldest.map(|row| Timestamp::from_ms(row.get(0)));
        // At the end, since everybody's results, or arrivals, wait for it.
        let dropped = self.drop_attempts().await? || self.drop_members().await?;
        Ok((dropped || quarantined > 0 || is_more).then_some(Sweep::Rest))
    }

    /// Windows that ended without a delivery; the others go with theirs. Says whether there may be more.
    async fn remove_ended(&mut self, over: i64) -> Asked<bool> {
        let removed = self.conn.execute(REMOVE_ENDED, &[&over, &self.limit()]).await?;
        if removed == self.limit as u64 {
            return Ok(true);
        }
        if let Some(row) = self.conn.row(OLDEST_ENDED, &[]).await? {
            self.out.due_at(Timestamp::from_ms(row.get(0)).plus(self.terms.deliveries));
        }
        Ok(false)
    }

    /// Definitions by which no event that is left was judged, and deleted subscribers that nothing speaks of any more.
    async fn remove_definitions(&self, over: i64) -> Asked<()> {
        let oldest = "SELECT coalesce((SELECT version FROM events ORDER BY seq LIMIT 1),
            (SELECT version FROM installation))";
        let oldest: i64 = self.conn.only(oldest, &[]).await?.get(0);
        self.conn
            .execute(
                "DELETE FROM subscriber_versions v WHERE EXISTS (SELECT 1 FROM subscriber_versions w
                    WHERE w.project = v.project AND w.subscriber = v.subscriber AND w.version > v.version
                        AND w.version <= $1)",
                &[&oldest],
            )
            .await?;
        self.remove_types(over, oldest).await?;
        self.conn
            .execute(
                "WITH gone AS (DELETE FROM subscribers s WHERE deleted_at <= $1 AND version <= $2
                    AND NOT EXISTS (SELECT 1 FROM deliveries WHERE subscriber = s.no) RETURNING no, project)
                 DELETE FROM subscriber_versions v USING gone WHERE v.project = gone.project AND v.subscriber = gone.no",
                &[&over, &oldest],
            )
            .await?;
        Ok(())
    }
}
