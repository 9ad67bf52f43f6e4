//! Keys that a metric counts nothing under any more are given back, so that its limit is one of what is there.
//!
//! Whatever is counted is counted in weeks too, and weeks go last: a key that has no cell in any week has none at all. So
//! whenever weeks of a metric have gone, its keys are gone through, a page at a time, with the metric's row in hand: whoever
//! counts waits, and so does this. A number is never given again.

use tidegate_core::id::{KeyNo, MetricNo};
use tidegate_core::observe::{Grain, Kind, page};

use super::Step;
use crate::Sweep;
use crate::postgres::db::{Asked, Values};

const NEXT: &str = "SELECT no, kind FROM metrics WHERE no >= $1 AND keys_due = 1 AND ended_at IS NULL
    ORDER BY no LIMIT 1 FOR NO KEY UPDATE";
const WEEKS: &str = "SELECT cells FROM rollups WHERE metric = $1 AND grain = $2 AND page = $3";
const GIVE_BACK: &str =
    "WITH gone AS (DELETE FROM rollup_keys WHERE metric = $1 AND key = ANY($2) RETURNING no)
    UPDATE metrics SET keys_back = keys_back + (SELECT count(*) FROM gone) WHERE no = $1";

impl Step<'_> {
    /// Weeks of a metric have gone: some of its keys may have no others.
    pub(super) async fn expect_keys(&self, metric: MetricNo) -> Asked<()> {
        self.conn.execute("UPDATE metrics SET keys_due = 1 WHERE no = $1", &[&metric]).await?;
        Ok(())
    }

    /// Gives back those of one page.
    pub(super) async fn give_back_keys(&mut self, metric: MetricNo, page: u32) -> Asked<Sweep> {
        let Some(row) = self.conn.row(NEXT, &[&metric]).await? else { return Ok(Sweep::EndedMetrics) };
        let next: MetricNo = row.get(0);
        let kind = Kind::from_code(row.get(1)).unwrap_or(Kind::Counter);
        let from = if next == metric { page::keys(kind, page).0 } else { 0 };
        let first = "SELECT min(no) FROM rollup_keys WHERE metric = $1 AND no >= $2";
        let first: Option<i64> = self.conn.only(first, &[&next, &i64::from(from)]).await?.get(0);
        let Some(first) = first.and_then(|first| KeyNo::try_from(first).ok()) else {
            self.conn.execute("UPDATE metrics SET keys_due = 0 WHERE no = $1", &[&next]).await?;
            return Ok(Sweep::Keys(next + 1, 0));
        };
        let page = page::of(kind, first);
        let is_over = self.give_back_of_page(next, kind, page).await?;
        Ok(Sweep::Keys(next, if is_over { page + 1 } else { page }))
    }

    /// Says whether there are no more.
    async fn give_back_of_page(&mut self, metric: MetricNo, kind: Kind, page: u32) -> Asked<bool> {
        let weeks = self.conn.rows(WEEKS, &[&metric, &Grain::D7.code(), &i64::from(page)]).await?;
        let weeks: Vec<Vec<u8>> = weeks.iter().map(|row| row.get(0)).collect();
        // What can not be read keeps all its keys.
        let Ok(living) = page::living(&weeks) else { return Ok(true) };
        let (first, last) = page::keys(kind, page);
        let there = "SELECT no, key FROM rollup_keys WHERE metric = $1 AND no BETWEEN $2 AND $3";
        let values: Values<'_> = &[&metric, &i64::from(first), &i64::from(last)];
        let there = self.conn.rows(there, values).await?;
        let is_idle = |no: i64| KeyNo::try_from(no).is_ok_and(|no| !living.contains(&no));
        let idle: Vec<&[u8]> = there.iter().filter(|row| is_idle(row.get(0))).map(|row| row.get(1)).collect();
        let some = &idle[..idle.len().min(self.limit)];
        if !some.is_empty() {
            self.conn.execute(GIVE_BACK, &[&metric, &some]).await?;
        }
        Ok(idle.len() <= self.limit)
    }
}
