//! Retention of events one by one: what outlived its term, and what has a term of its own.
//!
//! What something still needs when its term is over is noted as overdue and looked at again, round after round, until
//! nothing needs it. Types with a term of their own are gone through by their index, each event once. So a round costs as
//! much as there is to be removed, however much is kept for longer. Nobody makes deliveries of past events while rows are
//! judged, see [`hold_past`](super::hold_past).

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_core::id::{ProjectNo, Seq};
use tidegate_core::time::Timestamp;

use super::periods::{HAS_OWN_TERM, NEEDED};
use super::{PAST, Step};
use crate::Sweep;
use crate::postgres::db::Asked;
use crate::postgres::{events, keeping};

const OVERDUE: &str = "SELECT seq FROM events_overdue WHERE seq > $1 ORDER BY seq LIMIT $2";
const OVERDUE_EVENTS: &str =
    "SELECT e.seq, e.accepted_at, greatest(e.accepted_at, e.time), t.no, t.keep_ms FROM events e
    LEFT JOIN event_terms t ON t.project = e.project AND t.source = e.source AND t.type = e.type
    WHERE e.seq = ANY($1)";
const TERM: &str = "SELECT no, project, source, type, keep_ms, walked FROM event_terms
    WHERE no > $1 ORDER BY no LIMIT 1";
const OLDEST_OF_TYPE: &str = "SELECT seq, accepted_at, greatest(accepted_at, time), source FROM events
    WHERE project = $1 AND type = $2 AND seq > $3 ORDER BY seq LIMIT $4";

/// A type whose events are kept for another time than the others.
struct Term {
    no: i64,
    project: ProjectNo,
    source: Vec<u8>,
    kind: Vec<u8>,
    keep: Duration,
    walked: Seq,
}

impl Step<'_> {
    /// What outlived its term, from the oldest on.
    pub(super) async fn remove_overdue(&mut self, after: Seq) -> Asked<Sweep> {
        if let Some(walked) = keeping::kept_walked(self.conn).await? {
            self.note_kept(walked).await?;
            return Ok(Sweep::Overdue(0));
        }
        let seqs = self.conn.rows(OVERDUE, &[&after, &self.limit()]).await?;
        let seqs: Vec<Seq> = seqs.iter().map(|row| row.get(0)).collect();
        // By term, so that what is gone is remembered there.
        let mut due: BTreeMap<Option<i64>, Vec<(Seq, i64)>> = BTreeMap::new();
        let rows =
            if seqs.is_empty() { Vec::new() } else { self.conn.rows(OVERDUE_EVENTS, &[&seqs]).await? };
        for row in &rows {
            let at = Timestamp::from_ms(row.get(1));
            let at = at.plus(row.get::<_, Option<i64>>(4).map_or(self.terms.events, length));
            if at > self.now {
                self.out.due_at(at);
            } else {
                due.entry(row.get(3)).or_default().push((row.get(0), row.get(2)));
            }
        }
        for (term, due) in due {
            let removed = self.remove_unless_needed("events", &due).await?;
            self.note_removed(term, removed).await?;
        }
        let gone = "DELETE FROM events_overdue o WHERE o.seq = ANY($1)
            AND (SELECT TRUE FROM events e WHERE e.seq = o.seq) IS NULL";
        self.conn.execute(gone, &[&seqs]).await?;
        let last = seqs.last().filter(|_| seqs.len() == self.limit);
        Ok(last.map_or(Sweep::Typed(0), |last| Sweep::Overdue(*last)))
    }

    /// A type has lost its own term: what it has among what outlived its period is looked at from now on.
    async fn note_kept(&self, walked: Seq) -> Asked<()> {
        let sql = format!(
            "WITH looked AS MATERIALIZED (SELECT seq, {HAS_OWN_TERM} AS has_own FROM events_kept e
                WHERE seq > $1 ORDER BY seq LIMIT $2),
             noted AS (INSERT INTO events_overdue SELECT seq FROM looked WHERE NOT has_own ON CONFLICT DO NOTHING)
             SELECT count(*), max(seq) FROM looked"
        );
        let row = self.conn.only(&sql, &[&walked, &self.limit()]).await?;
        let go_on = row.get::<_, Option<Seq>>(1).filter(|_| row.get::<_, i64>(0) == self.limit());
        keeping::set_kept_walked(self.conn, go_on).await
    }

    /// Type after type, for as long as a step may take.
    pub(super) async fn remove_typed(&mut self, mut after: i64) -> Asked<Sweep> {
        let mut left = self.limit;
        // Each is looked at once, so not before everything with a lower number is there.
        let horizon = events::horizon(self.conn, self.space).await?;
        while left > 0 {
            let Some(row) = self.conn.row(TERM, &[&after]).await? else { return Ok(Sweep::Events(0)) };
            let term = Term {
                no: row.get(0),
                project: row.get(1),
                source: row.get(2),
                kind: row.get(3),
                keep: length(row.get(4)),
                walked: row.get(5),
            };
            let (looked, is_over) = self.remove_of_type(&term, horizon, left).await?;
            // One that has nothing to be looked at costs as much as a row.
            left -= looked.clamp(1, left);
            after = if is_over { term.no } else { term.no - 1 };
        }
        Ok(Sweep::Typed(after))
    }

    /// Says how many rows it looked at, and whether there are no more that are due.
    async fn remove_of_type(&mut self, term: &Term, horizon: Seq, limit: usize) -> Asked<(usize, bool)> {
        let values: crate::postgres::db::Values<'_> =
            &[&term.project, &term.kind, &term.walked, &(limit as i64)];
        let rows = self.conn.rows(OLDEST_OF_TYPE, values).await?;
        let (mut walked, mut is_over, mut due) = (term.walked, rows.len() < limit, Vec::new());
        for row in &rows {
            let seq = row.get(0);
            if seq > horizon {
                self.look_again();
                is_over = true;
                break;
            }
            if row.get::<_, &[u8]>(3) == term.source {
                let at = Timestamp::from_ms(row.get(1)).plus(term.keep);
                if at > self.now {
                    self.out.due_at(at);
                    is_over = true;
                    break;
                }
                due.push((seq, row.get(2)));
            }
            walked = seq;
        }
        let removed = self.remove_unless_needed("events", &due).await?;
        self.note_removed(Some(term.no), removed).await?;
        if walked > term.walked {
            let sql = "UPDATE event_terms SET walked = $2 WHERE no = $1";
            self.conn.execute(sql, &[&term.no, &walked]).await?;
        }
        self.out.due_at(self.now.plus(term.keep));
        Ok((rows.len(), is_over))
    }

    /// Removes those of these events that nothing needs, with their ids, and notes the others as overdue. Each stands with
    /// when it happened, or was accepted if that was later; says the latest of those that are gone.
    pub(super) async fn remove_unless_needed(
        &mut self,
        table: &str,
        due: &[(Seq, i64)],
    ) -> Asked<Option<i64>> {
        if due.is_empty() {
            return Ok(None);
        }
        let seqs: Vec<Seq> = due.iter().map(|(seq, _)| *seq).collect();
        // In this order: whoever makes deliveries of past events may wait for the table, but not with the table in hand.
        self.conn.tell(&format!("LOCK TABLE {table} IN ROW EXCLUSIVE MODE")).await?;
        self.conn.execute("SELECT pg_advisory_xact_lock($1, $2)", &[&self.space, &PAST]).await?;
        let sql = format!("SELECT seq FROM {table} e WHERE seq = ANY($1) AND {NEEDED}");
        let needed = self.conn.rows_once(&sql, &[&seqs]).await?;
        let needed: Vec<Seq> = needed.iter().map(|row| row.get(0)).collect();
        if !needed.is_empty() {
            self.note_overdue(&needed).await?;
            self.look_again();
        }
        let gone: Vec<&(Seq, i64)> = due.iter().filter(|(seq, _)| !needed.contains(seq)).collect();
        let seqs: Vec<Seq> = gone.iter().map(|(seq, _)| *seq).collect();
        let sql = format!(
            "WITH gone AS (DELETE FROM {table} WHERE seq = ANY($1) RETURNING seq, key_high, key_low),
                folded AS (DELETE FROM members WHERE event = ANY($1)),
                free AS (DELETE FROM dedupe d USING gone
                    WHERE d.key_high = gone.key_high AND d.key_low = gone.key_low AND d.event = gone.seq)
             SELECT count(*) FROM gone"
        );
        let removed: i64 = self.conn.only_once(&sql, &[&seqs]).await?.get(0);
        self.out.events += removed.unsigned_abs();
        Ok(gone.iter().map(|(_, newest)| *newest).max())
    }

    pub(super) async fn note_overdue(&self, seqs: &[Seq]) -> Asked<()> {
        let sql = "INSERT INTO events_overdue SELECT * FROM unnest($1::bigint[]) ON CONFLICT DO NOTHING";
        self.conn.execute(sql, &[&seqs]).await?;
        Ok(())
    }

    /// Remembers when the newest that is gone happened, or was accepted if that was later.
    async fn note_removed(&self, term: Option<i64>, newest: Option<i64>) -> Asked<()> {
        let (Some(no), Some(newest)) = (term, newest) else {
            return keeping::raise_swept_until(self.conn, newest).await;
        };
        let sql = "UPDATE event_terms SET swept_until = greatest(swept_until, $2) WHERE no = $1";
        self.conn.execute(sql, &[&no, &newest]).await?;
        Ok(())
    }
}

fn length(ms: i64) -> Duration {
    Duration::from_millis(ms.unsigned_abs())
}
