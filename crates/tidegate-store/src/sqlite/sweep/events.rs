//! Retention of events.
//!
//! Events are looked at in the order of their numbers, once: each when its term is over. What something still needs then
//! is noted as overdue and looked at again, round after round, until nothing needs it. Types with a term of their own are
//! gone through one by one in the same way, and passed over by the rest. So a round costs as much as there is to be removed,
//! however much is kept for longer. What has not been observed stays, for as long as there is any metric.

use std::time::Duration;

use rusqlite::{Connection, params};
use tidegate_core::id::{ProjectNo, Seq};
use tidegate_core::time::Timestamp;

use super::Step;
use crate::Sweep;
use crate::sqlite::keeping;

pub(in crate::sqlite) const OLDEST_EVENTS: &str =
    "SELECT e.seq, e.accepted_at, max(e.accepted_at, e.time), t.no IS NOT NULL FROM events e
    LEFT JOIN event_terms t ON t.project = e.project AND t.source = e.source AND t.type = e.type
    WHERE e.seq > ?1 AND e.seq <= ?2 ORDER BY e.seq LIMIT ?3";
pub(in crate::sqlite) const OLDEST_OF_TYPE: &str =
    "SELECT seq, accepted_at, max(accepted_at, time), source FROM events
    WHERE project = ?1 AND type = ?2 AND seq > ?3 AND seq <= ?4 ORDER BY seq LIMIT ?5";
pub(in crate::sqlite) const OVERDUE: &str =
    "SELECT o.seq, e.accepted_at, max(e.accepted_at, e.time), t.no, t.keep_ms FROM events_overdue o
    LEFT JOIN events e ON e.seq = o.seq
    LEFT JOIN event_terms t ON t.project = e.project AND t.source = e.source AND t.type = e.type
    WHERE o.seq > ?1 ORDER BY o.seq LIMIT ?2";
/// Everything up to here has been observed, and looked at by those who count states anew; everything there is, where
/// nothing is counted.
const OBSERVED: &str = "SELECT CASE WHEN EXISTS (SELECT 1 FROM metrics WHERE ended_at IS NULL)
    THEN min((SELECT min(seq) FROM marks), coalesce(
        (SELECT min(after) FROM backfills WHERE finished_at IS NULL AND rebuild <> ''), ?1)) ELSE ?1 END";
const TERM: &str = "SELECT no, project, source, type, keep_ms, walked FROM event_terms
    WHERE no > ?1 ORDER BY no LIMIT 1";

/// A type whose events are kept for another time than the others.
struct Term {
    no: i64,
    project: ProjectNo,
    source: String,
    type_name: String,
    keep: Duration,
    walked: Seq,
}

impl Step<'_> {
    /// What outlived its term, from the oldest on.
    pub(super) fn remove_overdue(&mut self, after: Seq) -> rusqlite::Result<Sweep> {
        type Row = (Seq, Option<(i64, i64)>, Option<i64>, Option<i64>);
        let rows: Vec<Row> = self.rows(OVERDUE, params![after, self.limit as i64], |row| {
            let times = row.get::<_, Option<i64>>(1)?.zip(row.get(2)?);
            Ok((row.get(0)?, times, row.get(3)?, row.get(4)?))
        })?;
        let observed = self.observed()?;
        for (seq, times, term, keep_ms) in &rows {
            if let Some((accepted, newest)) = times {
                let due = Timestamp::from_ms(*accepted).plus(keep_ms.map_or(self.terms.events, length));
                if due > self.now {
                    self.out.due_at(due);
                    continue;
                }
                // It may have been observed, and yet somebody who began to count anew has not looked at it.
                if *seq > observed || self.is_needed(*seq)? {
                    self.look_again();
                    continue;
                }
                self.remove_event(*seq)?;
                self.note_removed(*term, Some(*newest))?;
            }
            self.conn.prepare_cached("DELETE FROM events_overdue WHERE seq = ?1")?.execute([seq])?;
            self.has_written = true;
        }
        let last = rows.last().filter(|_| rows.len() == self.limit);
        Ok(last.map_or(Sweep::Typed(0), |(last, ..)| Sweep::Overdue(*last)))
    }

    /// Type after type, for as long as a step may take.
    pub(super) fn remove_typed(&mut self, mut after: i64) -> rusqlite::Result<Sweep> {
        let mut left = self.limit;
        while left > 0 {
            let term = self.rows(TERM, [after], |row| {
                let (no, project, source, type_name) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
                Ok(Term { no, project, source, type_name, keep: length(row.get(4)?), walked: row.get(5)? })
            })?;
            let Some(term) = term.into_iter().next() else { return Ok(Sweep::Events(0)) };
            let (looked, is_over) = self.remove_of_type(&term, left)?;
            // One that has nothing to be looked at costs as much as a row.
            left -= looked.clamp(1, left);
            after = if is_over { term.no } else { term.no - 1 };
        }
        Ok(Sweep::Typed(after))
    }

    /// Says how many rows it looked at, and whether there are no more that are due.
    fn remove_of_type(&mut self, term: &Term, limit: usize) -> rusqlite::Result<(usize, bool)> {
        let until = self.observed()?;
        let values = params![term.project, term.type_name, term.walked, until, limit as i64];
        let rows: Vec<(Seq, i64, i64, String)> = self
            .rows(OLDEST_OF_TYPE, values, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
        let (mut walked, mut is_over, mut removed) = (term.walked, rows.len() < limit, None);
        for (seq, accepted, newest, source) in &rows {
            if *source == term.source {
                let due = Timestamp::from_ms(*accepted).plus(term.keep);
                if due > self.now {
                    self.out.due_at(due);
                    is_over = true;
                    break;
                }
                if self.remove_unless_needed(*seq)? {
                    removed = removed.max(Some(*newest));
                }
            }
            walked = *seq;
        }
        if walked > term.walked {
            let sql = "UPDATE event_terms SET walked = ?2 WHERE no = ?1";
            self.conn.prepare_cached(sql)?.execute([term.no, walked])?;
            self.has_written = true;
        }
        self.note_removed(Some(term.no), removed)?;
        self.out.due_at(self.now.plus(term.keep));
        Ok((rows.len(), is_over))
    }

    /// All others, from where the last step came to. A type that lost its own term sends it back to the beginning.
    pub(super) fn remove_events(&mut self) -> rusqlite::Result<Sweep> {
        let (before, until) = (keeping::walked(self.conn)?, self.observed()?);
        let rows: Vec<(Seq, i64, i64, bool)> =
            self.rows(OLDEST_EVENTS, params![before, until, self.limit as i64], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })?;
        let (mut walked, mut is_over, mut removed) = (before, rows.len() < self.limit, None);
        for (seq, accepted, newest, has_own_term) in &rows {
            if !has_own_term {
                let due = Timestamp::from_ms(*accepted).plus(self.terms.events);
                if due > self.now {
                    self.out.due_at(due);
                    is_over = true;
                    break;
                }
                if self.remove_unless_needed(*seq)? {
                    removed = removed.max(Some(*newest));
                }
            }
            walked = *seq;
        }
        if walked > before {
            keeping::set_walked(self.conn, walked)?;
            self.has_written = true;
        }
        self.note_removed(None, removed)?;
        if !is_over {
            return Ok(Sweep::Events(walked));
        }
        self.wait_for_observing(until)?;
        Ok(Sweep::Rollups(0))
    }

    fn observed(&self) -> rusqlite::Result<Seq> {
        self.conn.prepare_cached(OBSERVED)?.query_row([Seq::MAX], |row| row.get(0))
    }

    /// What is not observed yet goes soon after it is, if its term is over.
    fn wait_for_observing(&mut self, observed: Seq) -> rusqlite::Result<()> {
        let next = "SELECT accepted_at FROM events WHERE seq > ?1 ORDER BY seq LIMIT 1";
        let next = self.rows(next, [observed], |row| row.get(0))?;
        for accepted in next {
            let due = Timestamp::from_ms(accepted).plus(self.terms.events);
            self.out.due_at(due.max(self.now.plus(self.terms.events / 100)));
        }
        Ok(())
    }

    /// Says whether it is gone.
    fn remove_unless_needed(&mut self, seq: Seq) -> rusqlite::Result<bool> {
        if self.is_needed(seq)? {
            let sql = "INSERT OR IGNORE INTO events_overdue VALUES (?1)";
            self.conn.prepare_cached(sql)?.execute([seq])?;
            self.look_again();
            return Ok(false);
        }
        self.remove_event(seq)?;
        Ok(true)
    }

    fn remove_event(&mut self, seq: Seq) -> rusqlite::Result<()> {
        self.conn.prepare_cached("DELETE FROM events WHERE seq = ?1")?.execute([seq])?;
        self.conn.prepare_cached("DELETE FROM members_apart WHERE event = ?1")?.execute([seq])?;
        self.out.events += 1;
        Ok(())
    }

    fn is_needed(&self, event: Seq) -> rusqlite::Result<bool> {
        Ok(is_carried(self.conn, event)? || self.is_left_to_a_backfill(event)?)
    }

    /// Whether a backfill has still to bring a live event to an ordered fold: until then nothing else speaks of it.
    fn is_left_to_a_backfill(&self, event: Seq) -> rusqlite::Result<bool> {
        for (subscriber, after) in self.backfilling {
            if *after < event && self.conn.prepare_cached(LEFT)?.exists([event, *subscriber])? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// When a delivery ends is nobody's guess: look again, but not all the time.
    fn look_again(&mut self) {
        self.out.due_at(self.now.plus(self.terms.events / 100));
    }

    /// Remembers when the newest that is gone happened, or was accepted if that was later.
    fn note_removed(&self, term: Option<i64>, newest: Option<i64>) -> rusqlite::Result<()> {
        let (Some(no), Some(newest)) = (term, newest) else {
            return if newest.is_some() { keeping::raise_swept_until(self.conn, newest) } else { Ok(()) };
        };
        let sql = "UPDATE event_terms SET swept_until = max(coalesce(swept_until, ?2), ?2) WHERE no = ?1";
        self.conn.prepare_cached(sql)?.execute([no, newest])?;
        Ok(())
    }
}

fn length(ms: i64) -> Duration {
    Duration::from_millis(ms.unsigned_abs())
}

pub(in crate::sqlite) const FOLLOWING: &str =
    "SELECT event, late, status FROM deliveries WHERE id > ?1 ORDER BY id LIMIT ?2";
pub(in crate::sqlite) const LATER: &str =
    "SELECT 1 FROM deliveries WHERE event = ?1 AND late = 1 AND status IN (0, 1, 2, 4) LIMIT 1";
pub(in crate::sqlite) const AMONG_OTHERS: &str = "SELECT 1 FROM members m JOIN windows w ON w.no = m.window
    LEFT JOIN deliveries d ON d.id = w.delivery
    WHERE m.event = ?1 AND (w.stage = 0 OR d.status IN (0, 1, 2, 4)) LIMIT 1";

pub(in crate::sqlite) const LEFT: &str = "SELECT 1 FROM events e JOIN subscribers s ON s.no = ?2
    WHERE e.seq = ?1 AND s.project = e.project AND s.deleted_at IS NULL AND e.version >= s.created_version
        AND s.backfill_after < e.seq AND e.seq <= s.backfill_until";

/// Whether a delivery that may still be sent carries the event. What was made with it follows it.
fn is_carried(conn: &Connection, event: Seq) -> rusqlite::Result<bool> {
    let mut following = conn.prepare_cached(FOLLOWING)?;
    let mut rows = following.query(params![event, i64::MAX])?;
    while let Some(row) = rows.next()? {
        if row.get::<_, Seq>(0)? != event || row.get::<_, bool>(1)? {
            break;
        }
        if matches!(row.get::<_, i64>(2)?, 0 | 1 | 2 | 4) {
            return Ok(true);
        }
    }
    Ok(conn.prepare_cached(LATER)?.exists([event])? || conn.prepare_cached(AMONG_OTHERS)?.exists([event])?)
}
