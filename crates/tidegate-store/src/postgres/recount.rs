//! Counting again: every observed event of a type, and what was counted of it, as of one snapshot.

use tidegate_core::id::Seq;

use super::db::{Asked, Conn};
use super::{backfills, events, keeping, rollups};
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
    conn.client().batch_execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?;
    recounter.begin(backfills::of_type(conn, of).await?);
    let (sql, limit) = (events_sql(), ROWS_PER_QUESTION as i64);
    let (kind, source) = (of.type_name.as_bytes(), of.service.as_bytes());
    let mut after: Seq = 0;
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
        }
        if rows.len() < ROWS_PER_QUESTION {
            break;
        }
    }
    let kept_since = keeping::kept_since(conn, &of.name()).await?;
    let mut found = Recounted { recounter, kept_since, rollups: Vec::new(), objects: Vec::new() };
    for metric in &of.metrics {
        found.rollups.push((*metric, rollups::read(conn, *metric, &of.buckets()).await?));
    }
    let sql = "SELECT value, count(*) FROM objects WHERE state = $1 GROUP BY value";
    for state in &of.states {
        found.rollups.push((*state, rollups::read(conn, *state, &[Recount::WEEKS]).await?));
        let rows = conn.rows(sql, &[state]).await?;
        found.objects.extend(rows.iter().map(|row| (*state, events::text(row, 0), row.get(1))));
    }
    Ok(found)
}
