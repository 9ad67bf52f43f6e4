//! Retention of what was counted: rollups age, what nobody declares any more goes, and so do values without events and
//! objects without news.

use std::time::Duration;

use tidegate_core::id::MetricNo;
use tidegate_core::observe::{Grain, Kept, Kind, Slab, state};
use tidegate_core::time::Timestamp;

use super::Step;
use crate::Sweep;
use crate::postgres::db::{Asked, Values};
use crate::postgres::{events, keeping, postings, rollups};
use crate::sweep::{ENDED_GRACE, METRICS_PER_STEP, before, next_walk};

/// When objects were last gone through, and the oldest news of any that was left then.
const OBJECTS_WALKED: &str = "objects_walked";
const OBJECTS_OLDEST: &str = "objects_oldest";
/// Segments that one step looks at.
const SEGMENTS_PER_STEP: usize = 50;

/// The oldest bucket of each length of each metric.
const OLDEST_BUCKETS: &str = "SELECT m.no, m.kind, m.keep_ms, g.code,
        (SELECT bucket FROM rollups r WHERE r.metric = m.no AND r.grain = g.code ORDER BY bucket LIMIT 1)
    FROM (SELECT no, kind, keep_ms FROM metrics WHERE no > $1 AND ended_at IS NULL ORDER BY no LIMIT $2) m
        CROSS JOIN generate_series(0::bigint, $3) AS g(code)
    ORDER BY m.no, g.code";
const REMOVE_BUCKETS: &str = "DELETE FROM rollups WHERE ctid = ANY(ARRAY(SELECT ctid FROM rollups
    WHERE metric = $1 AND grain = $2 AND bucket < $3 ORDER BY bucket, page LIMIT $4))";
/// What came before its end has been observed, and nobody counts the past.
const ENDED: &str = "SELECT no FROM metrics WHERE ended_at <= $1
        AND NOT EXISTS (SELECT 1 FROM backfills WHERE finished_at IS NULL)
        AND NOT EXISTS (SELECT 1 FROM marks WHERE seq < ended_no)
    ORDER BY ended_at LIMIT 1";
/// Everything of a metric, some rows at a time.
const REMOVE_OF_METRIC: [&str; 4] = [
    "DELETE FROM rollups WHERE ctid = ANY(ARRAY(SELECT ctid FROM rollups WHERE metric = $1 LIMIT $2))",
    "DELETE FROM rollup_keys WHERE ctid = ANY(ARRAY(SELECT ctid FROM rollup_keys WHERE metric = $1 LIMIT $2))",
    "DELETE FROM object_changes WHERE ctid = ANY(ARRAY(SELECT ctid FROM object_changes WHERE state = $1 LIMIT $2))",
    "DELETE FROM objects WHERE ctid = ANY(ARRAY(SELECT ctid FROM objects WHERE state = $1 LIMIT $2))",
];
const NEXT_SEGMENT: &str = "SELECT min(segment) FROM postings WHERE segment > $1";
/// In one statement, so that it sees every event whose values it sees.
const REMOVE_POSTINGS: &str = "DELETE FROM postings WHERE ctid = ANY(ARRAY(SELECT ctid FROM postings
    WHERE segment = $1 AND NOT EXISTS (SELECT 1 FROM events WHERE seq >= $2 AND seq <= $3) LIMIT $4))";
const NEXT_STATE: &str = "SELECT no, keep_ms FROM metrics
    WHERE no >= $1 AND kind = $2 AND ended_at IS NULL AND rebuilds IS NULL ORDER BY no LIMIT 1";
const OBJECTS: &str = "SELECT object, value, time FROM objects
    WHERE state = $1 AND object > $2 ORDER BY object LIMIT $3";
const REMOVE_CHANGES: &str = "DELETE FROM object_changes WHERE no = ANY(ARRAY(
    SELECT no FROM object_changes WHERE state = $1 AND until <= $2 LIMIT $3))";

impl Step<'_> {
    /// Buckets whose time is over, metric after metric and length after length.
    pub(super) async fn age_rollups(&mut self, after: MetricNo) -> Asked<Sweep> {
        let values: Values<'_> = &[&after, &(METRICS_PER_STEP as i64), &Grain::D7.code()];
        let rows = self.conn.rows(OLDEST_BUCKETS, values).await?;
        let mut left = self.limit;
        for row in &rows {
            let kind = Kind::from_code(row.get(1)).filter(|kind| *kind != Kind::Index);
            let (Some(kind), Some(grain)) = (kind, Grain::from_code(row.get(3))) else { continue };
            let (metric, term): (MetricNo, _) = (row.get(0), self.rollup_term(row.get(2)));
            let kept = Kept::new(kind, term, self.now);
            self.out.due_at(self.now.plus(Grain::S5.kept(term)));
            let Some(oldest) = row.get::<_, Option<i64>>(4) else { continue };
            if oldest >= kept.over(grain) {
                kept.until(grain, oldest).into_iter().for_each(|at| self.out.due_at(at));
                continue;
            }
            let values: Values<'_> = &[&metric, &grain.code(), &kept.over(grain), &(left as i64)];
            let removed = self.conn.execute(REMOVE_BUCKETS, values).await?;
            self.out.rollups += removed;
            if grain == Grain::D7 {
                self.expect_keys(metric).await?;
            }
            left = left.saturating_sub(usize::try_from(removed).unwrap_or(left));
            if left == 0 {
                return Ok(Sweep::Rollups(metric - 1));
            }
        }
        let last = rows.last().filter(|_| rows.len() == METRICS_PER_STEP * Grain::ALL.len());
        Ok(last.map_or(Sweep::Keys(0, 0), |row| Sweep::Rollups(row.get(0))))
    }

    fn rollup_term(&self, keep_ms: Option<i64>) -> Duration {
        keep_ms.map_or(self.terms.rollups, |ms| Duration::from_millis(ms.unsigned_abs()))
    }

    /// A metric that nobody declares any more goes with all it has, when nothing can add to it any more.
    pub(super) async fn remove_ended_metrics(&mut self) -> Asked<Sweep> {
        let ended = self.conn.row(ENDED, &[&before(self.now, ENDED_GRACE)]).await?;
        let Some(metric) = ended.map(|row| row.get::<_, MetricNo>(0)) else {
            let any = "SELECT 1 FROM metrics WHERE ended_at IS NOT NULL LIMIT 1";
            if self.conn.exists(any, &[]).await? {
                self.out.due_at(self.now.plus(ENDED_GRACE));
            }
            return Ok(Sweep::Postings(-1));
        };
        let mut left = self.limit as u64;
        for (place, sql) in REMOVE_OF_METRIC.into_iter().enumerate() {
            let removed = self.conn.execute(sql, &[&metric, &(left as i64)]).await?;
            match place {
                0 => self.out.rollups += removed,
                3 => self.out.objects += removed,
                _ => {}
            }
            left -= removed;
            if left == 0 {
                return Ok(Sweep::EndedMetrics);
            }
        }
        self.conn.execute("DELETE FROM metrics WHERE no = $1", &[&metric]).await?;
        Ok(Sweep::EndedMetrics)
    }

    /// Segments of which no event is left.
    pub(super) async fn remove_postings(&mut self, mut after: i64) -> Asked<Sweep> {
        for _ in 0..SEGMENTS_PER_STEP {
            let Some(segment) = self.first(NEXT_SEGMENT, after).await? else { return Ok(Sweep::OBJECTS) };
            let (first, last) = postings::bounds(segment);
            let values: Values<'_> = &[&segment, &first, &last, &self.limit()];
            let removed = self.conn.execute(REMOVE_POSTINGS, values).await?;
            self.out.postings += removed;
            if removed > 0 {
                return Ok(Sweep::Postings(after));
            }
            after = segment;
        }
        Ok(Sweep::Postings(after))
    }

    /// Objects of which nothing was heard for the whole term, and what others did before it. A walk through all of them
    /// begins when something may be due, and not all the time.
    pub(super) async fn forget_objects(&mut self, state: MetricNo, after: &str) -> Asked<Sweep> {
        let is_begin = (state, after) == (0, "");
        if is_begin && self.objects_due().await? > self.now {
            return Ok(Sweep::Rest);
        }
        let Some(next) = self.conn.row(NEXT_STATE, &[&state, &Kind::State.code()]).await? else {
            if !is_begin {
                keeping::set_number(self.conn, OBJECTS_WALKED, self.now.as_ms()).await?;
                self.objects_due().await?;
            }
            return Ok(Sweep::Rest);
        };
        if is_begin {
            keeping::set_number(self.conn, OBJECTS_OLDEST, self.now.as_ms()).await?;
        }
        let (next, term): (MetricNo, _) = (next.get(0), self.rollup_term(next.get(1)));
        let after = if next == state { after } else { "" };
        let last = self.forget_objects_of(next, after, before(self.now, term)).await?;
        Ok(last.map_or(Sweep::Objects(next + 1, String::new()), |last| Sweep::Objects(next, last)))
    }

    /// When it is time to go through them.
    async fn objects_due(&mut self) -> Asked<Timestamp> {
        let oldest = keeping::number(self.conn, OBJECTS_OLDEST).await?.unwrap_or(0);
        let walked = keeping::number(self.conn, OBJECTS_WALKED).await?.unwrap_or(0);
        let due = next_walk(walked, oldest, self.terms.rollups);
        if due > self.now {
            self.out.due_at(due);
        }
        Ok(due)
    }

    /// Says where to go on, if there are more.
    async fn forget_objects_of(&mut self, metric: MetricNo, after: &str, over: i64) -> Asked<Option<String>> {
        // Whoever adds to the metric waits, and so does this.
        self.conn.execute("SELECT 1 FROM metrics WHERE no = $1 FOR NO KEY UPDATE", &[&metric]).await?;
        let values: Values<'_> = &[&metric, &over, &self.limit()];
        if self.conn.execute(REMOVE_CHANGES, values).await? == self.limit as u64 {
            return Ok(Some(after.to_owned()));
        }
        let rows = self.conn.rows(OBJECTS, &[&metric, &after.as_bytes(), &self.limit()]).await?;
        let (mut gone, mut forgotten) = (Slab::new(metric.unsigned_abs()), Vec::new());
        let mut oldest = i64::MAX;
        for row in &rows {
            let time: i64 = row.get(2);
            if time <= over {
                forgotten.push(row.get::<_, &[u8]>(0));
                gone.shift(metric, Grain::S5, &state::counted_as(&events::text(row, 1)), self.now, -1);
            } else {
                oldest = oldest.min(time);
            }
        }
        let forget = "DELETE FROM objects WHERE state = $1 AND object = ANY($2)";
        self.out.objects += self.conn.execute(forget, &[&metric, &forgotten]).await?;
        rollups::add(self.conn, &gone.into_delta()).await?;
        if keeping::number(self.conn, OBJECTS_OLDEST).await?.is_none_or(|known| oldest < known) {
            keeping::set_number(self.conn, OBJECTS_OLDEST, oldest).await?;
        }
        Ok(rows.last().filter(|_| rows.len() == self.limit).map(|row| events::text(row, 0)))
    }

    /// What types were before any event that is left, and backfills that nobody could ask for again.
    pub(super) async fn remove_types(&self, over: i64, oldest: i64) -> Asked<()> {
        self.conn
            .execute(
                "DELETE FROM catalog_versions v WHERE v.version <= $1 AND (EXISTS
                    (SELECT 1 FROM catalog_versions w WHERE w.project = v.project AND w.service = v.service
                        AND w.type = v.type AND w.version > v.version AND w.version <= $1)
                    OR v.definition IS NULL AND NOT EXISTS
                    (SELECT 1 FROM catalog_versions w WHERE w.project = v.project AND w.service = v.service
                        AND w.type = v.type AND w.version > v.version))",
                &[&oldest],
            )
            .await?;
        self.conn
            .execute(
                "DELETE FROM backfills b WHERE finished_at <= $1 AND NOT EXISTS (SELECT 1 FROM events e
                    WHERE e.project = b.project AND e.type = convert_to(b.type, 'UTF8') AND e.seq <= b.until)",
                &[&over],
            )
            .await?;
        Ok(())
    }
}
