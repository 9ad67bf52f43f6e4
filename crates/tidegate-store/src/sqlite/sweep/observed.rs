//! Retention of what was counted: rollups age, what nobody declares any more goes, and so do values without events and
//! objects without news.

use std::time::Duration;

use rusqlite::{OptionalExtension, params};
use tidegate_core::id::MetricNo;
use tidegate_core::observe::state::{self, ObjectRow};
use tidegate_core::observe::{Grain, Kept, Kind, Slab};
use tidegate_core::time::Timestamp;

use super::Step;
use crate::Sweep;
use crate::sqlite::{keeping, objects, postings, rollups};
use crate::sweep::{ENDED_GRACE, METRICS_PER_STEP, before, next_walk};

/// When objects were last gone through, and the oldest news of any that was left then.
const OBJECTS_WALKED: &str = "objects_walked";
const OBJECTS_OLDEST: &str = "objects_oldest";

const LIVING: &str =
    "SELECT no, kind, keep_ms FROM metrics WHERE no > ?1 AND ended_at IS NULL ORDER BY no LIMIT ?2";
pub(in crate::sqlite) const OLDEST_BUCKET: &str =
    "SELECT min(bucket) FROM rollups WHERE metric = ?1 AND grain = ?2";
pub(in crate::sqlite) const REMOVE_BUCKETS: &str =
    "DELETE FROM rollups WHERE metric = ?1 AND grain = ?2 AND (bucket, page) IN
        (SELECT bucket, page FROM rollups WHERE metric = ?1 AND grain = ?2 AND bucket < ?3
         ORDER BY bucket, page LIMIT ?4)";
/// What came before its end has been observed, and nobody counts the past.
const ENDED: &str = "SELECT no FROM metrics WHERE ended_at <= ?1
        AND NOT EXISTS (SELECT 1 FROM backfills WHERE finished_at IS NULL)
        AND NOT EXISTS (SELECT 1 FROM events WHERE seq > (SELECT min(seq) FROM marks) AND seq <= ended_no)
    ORDER BY ended_at LIMIT 1";
/// Everything of a metric, some rows at a time.
pub(in crate::sqlite) const REMOVE_OF_METRIC: [&str; 3] = [
    "DELETE FROM rollups WHERE metric = ?1 AND (grain, bucket, page) IN
        (SELECT grain, bucket, page FROM rollups WHERE metric = ?1 LIMIT ?2)",
    "DELETE FROM rollup_keys WHERE metric = ?1 AND key IN (SELECT key FROM rollup_keys WHERE metric = ?1 LIMIT ?2)",
    "DELETE FROM object_changes WHERE no IN (SELECT no FROM object_changes WHERE state = ?1 LIMIT ?2)",
];
pub(in crate::sqlite) const NEXT_SEGMENT: &str = "SELECT min(segment) FROM postings WHERE segment > ?1";
pub(in crate::sqlite) const REMOVE_POSTINGS: &str =
    "DELETE FROM postings WHERE segment = ?1 AND (metric, value, first) IN
        (SELECT metric, value, first FROM postings WHERE segment = ?1 LIMIT ?2)";
const NEXT_STATE: &str = "SELECT no, keep_ms FROM metrics
    WHERE no >= ?1 AND kind = ?2 AND ended_at IS NULL AND rebuilds IS NULL ORDER BY no LIMIT 1";
pub(in crate::sqlite) const REMOVE_CHANGES: &str = "DELETE FROM object_changes WHERE no IN
        (SELECT no FROM object_changes WHERE state = ?1 AND until <= ?2 LIMIT ?3)";

impl Step<'_> {
    /// Buckets whose time is over, metric after metric and length after length.
    pub(super) fn age_rollups(&mut self, after: MetricNo) -> rusqlite::Result<Sweep> {
        type Row = (MetricNo, i64, Option<i64>);
        let metrics: Vec<Row> = self.rows(LIVING, params![after, METRICS_PER_STEP as i64], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
        let mut left = self.limit;
        for (metric, kind, keep_ms) in &metrics {
            let Some(kind) = Kind::from_code(*kind).filter(|kind| *kind != Kind::Index) else { continue };
            let term = self.rollup_term(*keep_ms);
            let kept = Kept::new(kind, term, self.now);
            for grain in Grain::ALL {
                left -= self.age(*metric, grain, &kept, left)?;
                if left == 0 {
                    return Ok(Sweep::Rollups(metric - 1));
                }
            }
            self.out.due_at(self.now.plus(Grain::S5.kept(term)));
        }
        let last = metrics.last().filter(|_| metrics.len() == METRICS_PER_STEP);
        Ok(last.map_or(Sweep::Keys(0, 0), |(last, ..)| Sweep::Rollups(*last)))
    }

    fn rollup_term(&self, keep_ms: Option<i64>) -> Duration {
        keep_ms.map_or(self.terms.rollups, |ms| Duration::from_millis(ms.unsigned_abs()))
    }

    /// Says how many rows are gone.
    fn age(&mut self, metric: MetricNo, grain: Grain, kept: &Kept, limit: usize) -> rusqlite::Result<usize> {
        let mut removed = 0;
        loop {
            let oldest: Option<i64> = self
                .conn
                .prepare_cached(OLDEST_BUCKET)?
                .query_row(params![metric, grain.code()], |row| row.get(0))?;
            let Some(oldest) = oldest else { return Ok(removed) };
            if oldest >= kept.over(grain) || removed > 0 {
                kept.until(grain, oldest).into_iter().for_each(|at| self.out.due_at(at));
                return Ok(removed);
            }
            let values = params![metric, grain.code(), kept.over(grain), limit as i64];
            removed = self.conn.prepare_cached(REMOVE_BUCKETS)?.execute(values)?;
            self.out.rollups += removed as u64;
            self.has_written = true;
            if grain == Grain::D7 {
                self.expect_keys(metric)?;
            }
        }
    }

    /// A metric that nobody declares any more goes with all it has, when nothing can add to it any more.
    pub(super) fn remove_ended_metrics(&mut self) -> rusqlite::Result<Sweep> {
        let over = before(self.now, ENDED_GRACE);
        let Some(metric) = self.rows(ENDED, [over], |row| row.get::<_, MetricNo>(0))?.pop() else {
            if self.conn.prepare_cached("SELECT 1 FROM metrics WHERE ended_at IS NOT NULL")?.exists([])? {
                self.out.due_at(self.now.plus(ENDED_GRACE));
            }
            return Ok(Sweep::Postings(-1));
        };
        self.has_written = true;
        self.known.forget_metric(metric);
        let mut left = self.limit;
        for (place, sql) in REMOVE_OF_METRIC.into_iter().enumerate() {
            let removed = self.conn.prepare_cached(sql)?.execute(params![metric, left as i64])?;
            self.out.rollups += if place == 0 { removed as u64 } else { 0 };
            left -= removed;
            if left == 0 {
                return Ok(Sweep::EndedMetrics);
            }
        }
        if self.remove_objects(metric, left)? == left {
            return Ok(Sweep::EndedMetrics);
        }
        self.conn.prepare_cached("DELETE FROM metrics WHERE no = ?1")?.execute([metric])?;
        Ok(Sweep::EndedMetrics)
    }

    /// The first objects of a state; says how many there were.
    fn remove_objects(&mut self, metric: MetricNo, limit: usize) -> rusqlite::Result<usize> {
        let gone: Vec<String> =
            self.objects_behind(metric, "", limit)?.into_iter().map(|(name, _)| name).collect();
        let names: Vec<&str> = gone.iter().map(String::as_str).collect();
        objects::change(self.conn, metric, &names, |_| None)?;
        self.out.objects += gone.len() as u64;
        Ok(gone.len())
    }

    fn objects_behind(
        &self,
        metric: MetricNo,
        after: &str,
        limit: usize,
    ) -> rusqlite::Result<Vec<(String, ObjectRow)>> {
        let mut found = Vec::new();
        objects::walk(self.conn, metric, after, |name, object| {
            found.push((name.to_owned(), object));
            found.len() < limit
        })?;
        Ok(found)
    }

    /// Segments of which no event is left.
    pub(super) fn remove_postings(&mut self, mut after: i64) -> rusqlite::Result<Sweep> {
        for _ in 0..self.limit {
            let next: Option<i64> =
                self.conn.prepare_cached(NEXT_SEGMENT)?.query_row([after], |row| row.get(0))?;
            let Some(segment) = next else { return Ok(Sweep::OBJECTS) };
            let (first, last) = postings::bounds(segment);
            let any = "SELECT 1 FROM events WHERE seq >= ?1 AND seq <= ?2 LIMIT 1";
            if !self.conn.prepare_cached(any)?.exists([first, last])? {
                let values = params![segment, self.limit as i64];
                let removed = self.conn.prepare_cached(REMOVE_POSTINGS)?.execute(values)?;
                self.out.postings += removed as u64;
                self.has_written = true;
                return Ok(Sweep::Postings(after));
            }
            after = segment;
        }
        Ok(Sweep::Postings(after))
    }

    /// Objects of which nothing was heard for the whole term, and what others did before it. A walk through all of them
    /// begins when something may be due, and not all the time.
    pub(super) fn forget_objects(&mut self, state: MetricNo, after: &str) -> rusqlite::Result<Sweep> {
        let is_begin = (state, after) == (0, "");
        if is_begin && self.objects_due()? > self.now {
            return Ok(Sweep::Rest);
        }
        let next = self
            .conn
            .prepare_cached(NEXT_STATE)?
            .query_row(params![state, Kind::State.code()], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((next, keep_ms)) = next else {
            if !is_begin {
                keeping::set_number(self.conn, OBJECTS_WALKED, self.now.as_ms())?;
                self.has_written = true;
                self.objects_due()?;
            }
            return Ok(Sweep::Rest);
        };
        if is_begin {
            keeping::set_number(self.conn, OBJECTS_OLDEST, self.now.as_ms())?;
            self.has_written = true;
        }
        let after = if next == state { after } else { "" };
        let over = before(self.now, self.rollup_term(keep_ms));
        let last = self.forget_objects_of(next, after, over)?;
        Ok(last.map_or(Sweep::Objects(next + 1, String::new()), |last| Sweep::Objects(next, last)))
    }

    /// When it is time to go through them.
    fn objects_due(&mut self) -> rusqlite::Result<Timestamp> {
        let oldest = keeping::number(self.conn, OBJECTS_OLDEST)?.unwrap_or(0);
        let walked = keeping::number(self.conn, OBJECTS_WALKED)?.unwrap_or(0);
        let due = next_walk(walked, oldest, self.terms.rollups);
        if due > self.now {
            self.out.due_at(due);
        }
        Ok(due)
    }

    /// Says where to go on, if there are more.
    fn forget_objects_of(
        &mut self,
        metric: MetricNo,
        after: &str,
        over: i64,
    ) -> rusqlite::Result<Option<String>> {
        let rows = self.objects_behind(metric, after, self.limit)?;
        let is_full = rows.len() == self.limit;
        let removed =
            self.conn.prepare_cached(REMOVE_CHANGES)?.execute(params![metric, over, self.limit as i64])?;
        self.has_written |= removed > 0;
        if removed == self.limit {
            return Ok(Some(after.to_owned()));
        }
        let (mut gone, mut oldest) = (Slab::new(metric.unsigned_abs()), i64::MAX);
        let mut names = Vec::new();
        for (name, object) in &rows {
            if object.time.as_ms() <= over {
                names.push(name.as_str());
                gone.shift(metric, Grain::S5, &state::counted_as(&object.value), self.now, -1);
            } else {
                oldest = oldest.min(object.time.as_ms());
            }
        }
        objects::change(self.conn, metric, &names, |_| None)?;
        self.out.objects += names.len() as u64;
        rollups::add(self.conn, self.known, &gone.into_delta())?;
        self.note_oldest(oldest)?;
        self.has_written |= self.out.objects > 0;
        Ok(rows.into_iter().next_back().filter(|_| is_full).map(|(last, ..)| last))
    }

    fn note_oldest(&mut self, oldest: i64) -> rusqlite::Result<()> {
        if keeping::number(self.conn, OBJECTS_OLDEST)?.is_none_or(|known| oldest < known) {
            keeping::set_number(self.conn, OBJECTS_OLDEST, oldest)?;
            self.has_written = true;
        }
        Ok(())
    }

    /// What types were before any event that is left, and backfills that nobody could ask for again.
    pub(super) fn remove_types(&self, over: i64, oldest: i64) -> rusqlite::Result<()> {
        self.conn
            .prepare_cached(
                "DELETE FROM catalog_versions AS v WHERE v.version <= ?1 AND (EXISTS
                    (SELECT 1 FROM catalog_versions w WHERE w.project = v.project AND w.service = v.service
                        AND w.type = v.type AND w.version > v.version AND w.version <= ?1)
                    OR v.definition IS NULL AND NOT EXISTS
                    (SELECT 1 FROM catalog_versions w WHERE w.project = v.project AND w.service = v.service
                        AND w.type = v.type AND w.version > v.version))",
            )?
            .execute([oldest])?;
        self.conn
            .prepare_cached(
                "DELETE FROM backfills AS b WHERE finished_at <= ?1 AND NOT EXISTS
                    (SELECT 1 FROM events e WHERE e.project = b.project AND e.type = b.type AND e.seq <= b.until)",
            )?
            .execute([over])?;
        Ok(())
    }
}
