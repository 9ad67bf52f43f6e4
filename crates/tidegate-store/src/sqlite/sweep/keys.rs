//! Keys that a metric counts nothing under any more are given back, so that its limit is one of what is there.
//!
//! Whatever is counted is counted in weeks too, and weeks go last: a key that has no cell in any week has none at all. So
//! whenever weeks of a metric have gone, its keys are gone through, a page at a time. A number is never given again.

use std::collections::BTreeSet;

use rusqlite::{OptionalExtension, params};
use tidegate_core::id::{KeyNo, MetricNo};
use tidegate_core::observe::{Grain, Kind, page};

use super::Step;
use crate::Sweep;

const NEXT: &str = "SELECT no, kind FROM metrics WHERE no >= ?1 AND keys_due = 1 AND ended_at IS NULL
    ORDER BY no LIMIT 1";
const WEEKS: &str = "SELECT cells FROM rollups WHERE metric = ?1 AND grain = ?2 AND page = ?3";

impl Step<'_> {
    /// Weeks of a metric have gone: some of its keys may have no others.
    pub(super) fn expect_keys(&self, metric: MetricNo) -> rusqlite::Result<()> {
        self.conn.prepare_cached("UPDATE metrics SET keys_due = 1 WHERE no = ?1")?.execute([metric])?;
        Ok(())
    }

    /// Gives back those of one page.
    pub(super) fn give_back_keys(&mut self, metric: MetricNo, page: u32) -> rusqlite::Result<Sweep> {
        let next: Option<(MetricNo, i64)> = self
            .conn
            .prepare_cached(NEXT)?
            .query_row([metric], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let Some((next, kind)) = next else { return Ok(Sweep::EndedMetrics) };
        let kind = Kind::from_code(kind).unwrap_or(Kind::Counter);
        let from = if next == metric { page::keys(kind, page).0 } else { 0 };
        let first = "SELECT min(no) FROM rollup_keys WHERE metric = ?1 AND no >= ?2";
        let first: Option<KeyNo> =
            self.conn.prepare_cached(first)?.query_row(params![next, from], |row| row.get(0))?;
        let Some(first) = first else {
            self.conn.prepare_cached("UPDATE metrics SET keys_due = 0 WHERE no = ?1")?.execute([next])?;
            self.has_written = true;
            return Ok(Sweep::Keys(next + 1, 0));
        };
        let page = page::of(kind, first);
        let is_over = self.give_back_of_page(next, kind, page)?;
        Ok(Sweep::Keys(next, if is_over { page + 1 } else { page }))
    }

    /// Says whether there are no more.
    fn give_back_of_page(&mut self, metric: MetricNo, kind: Kind, page: u32) -> rusqlite::Result<bool> {
        let weeks: Vec<Vec<u8>> =
            self.rows(WEEKS, params![metric, Grain::D7.code(), page], |row| row.get(0))?;
        // What can not be read keeps all its keys.
        let Ok(living) = page::living(&weeks) else { return Ok(true) };
        let (first, last) = page::keys(kind, page);
        let there = "SELECT no, key FROM rollup_keys WHERE metric = ?1 AND no BETWEEN ?2 AND ?3";
        let there: Vec<(KeyNo, String)> =
            self.rows(there, params![metric, first, last], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let idle = idle(there, &living);
        for key in idle.iter().take(self.limit) {
            let gone = "DELETE FROM rollup_keys WHERE metric = ?1 AND key = ?2";
            self.conn.prepare_cached(gone)?.execute(params![metric, key])?;
            self.known.keys.forget(metric, key);
        }
        let back = idle.len().min(self.limit) as i64;
        let sql = "UPDATE metrics SET keys_back = keys_back + ?2 WHERE no = ?1";
        self.conn.prepare_cached(sql)?.execute([metric, back])?;
        self.has_written |= back > 0;
        Ok(idle.len() <= self.limit)
    }
}

fn idle(there: Vec<(KeyNo, String)>, living: &BTreeSet<KeyNo>) -> Vec<String> {
    there.into_iter().filter(|(no, _)| !living.contains(no)).map(|(_, key)| key).collect()
}
