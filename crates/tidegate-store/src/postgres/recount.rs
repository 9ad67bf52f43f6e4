//! Counting again: every observed event of a type, and what was counted of it, as of one snapshot.

use tidegate_core::id::{MetricNo, Seq};
use tidegate_core::observe::state::{ObjectRow, Visited};
use tidegate_core::time::Timestamp;

use super::db::{Asked, Conn};
use super::{backfills, events, history, keeping, postings, rollups};
use crate::observe::LISTED_EVENTS;
use crate::{Recount, Recounted, Recounter};

/// Events that one question brings.
const ROWS_PER_QUESTION: usize = 2_000;

/// What a life has accepted is observed up to its mark; of one that has none any more, all.
fn events_sql() -> String {
    let columns = events::COLUMNS;
    format!(
        "SELECT {columns} FROM events e WHERE project = $1 AND type = $2 AND seq > $6 AND source = $3
            AND time >= $4 AND time < $5 AND NOT EXISTS
                (SELECT 1 FROM marks m WHERE m.incarnation = e.incarnation AND m.seq < e.seq)
         ORDER BY seq LIMIT $7"
    )
}

pub(super) async fn recount(
    conn: &Conn,
    of: &Recount,
    mut recounter: Box<dyn Recounter>,
) -> Asked<Recounted> {
    // The lock comes before the snapshot: whoever waits for a period to be detached with a snapshot from before that finds
    // its events neither there nor where they were put.
    let begin =
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; LOCK TABLE events IN ACCESS SHARE MODE";
    conn.tell(begin).await?;
    recounter.begin(backfills::of_service(conn, of).await?);
    let (sql, limit) = (events_sql(), ROWS_PER_QUESTION as i64);
    let (kind, source) = (of.type_name.as_bytes(), of.service.as_bytes());
    let (mut after, mut seen): (Seq, Vec<Seq>) = (0, Vec::new());
    'all: loop {
        let values: super::db::Values<'_> =
            &[&of.project, &kind, &source, &of.range.0, &of.range.1, &after, &limit];
        let rows = conn.rows(&sql, values).await?;
        for row in &rows {
            let event = events::event_row(row);
            after = event.seq;
            if !recounter.event(&event) {
                break 'all;
            }
            seen.push(event.seq);
        }
        if seen.len() >= LISTED_EVENTS {
            recounter.listed(postings::listed(conn, &of.indexes, &seen).await?);
            seen.clear();
        }
        if rows.len() < ROWS_PER_QUESTION {
            break;
        }
    }
    recounter.listed(postings::listed(conn, &of.indexes, &seen).await?);
    let kept_since = keeping::kept_since(conn, &of.name()).await?;
    let mut rollups = Vec::new();
    for metric in &of.metrics {
        rollups.push((*metric, rollups::read(conn, *metric, &of.buckets()).await?));
    }
    for state in &of.states {
        rollups.push((*state, rollups::read(conn, *state, &of.buckets_of_states()).await?));
        objects(conn, *state, &mut *recounter).await?;
        let is_followed = of.followed.contains(state);
        history::each(conn, *state, is_followed, |change, event| recounter.change(change, event)).await?;
    }
    Ok(Recounted { recounter, kept_since, rollups })
}

/// All objects of a state, some at a time.
async fn objects(conn: &Conn, state: MetricNo, recounter: &mut dyn Recounter) -> Asked<()> {
    let sql = "SELECT object, value, time, event FROM objects WHERE state = $1 AND object > $2
        ORDER BY object LIMIT $3";
    let mut after: Vec<u8> = Vec::new();
    loop {
        let rows = conn.rows(sql, &[&state, &after, &(ROWS_PER_QUESTION as i64)]).await?;
        for row in &rows {
            let known = ObjectRow {
                value: events::text(row, 1).into(),
                time: Timestamp::from_ms(row.get(2)),
                event: row.get(3),
                visited: Visited::default(),
            };
            if !recounter.object(state, &events::text(row, 0), &known) {
                return Ok(());
            }
        }
        let Some(last) = rows.last().filter(|_| rows.len() == ROWS_PER_QUESTION) else { return Ok(()) };
        after = last.get(0);
    }
}
