//! What is known of an object, and what happened to objects.

use std::collections::BTreeMap;

use tidegate_core::id::{MetricNo, Seq};
use tidegate_core::observe::history::unpack;
use tidegate_core::observe::state::{Change, ObjectRow, Visited};
use tidegate_core::time::Timestamp;

use super::db::{Asked, Conn};
use super::events::{self, text};
use crate::history::{ChangeFilter, Changes, Reading, Told};
use crate::{Error, EventRow};

/// Changes whose events are read at once: these may be large.
const CHANGES_PER_QUESTION: usize = 100;
/// Rows that are read at once.
const PORTION: i64 = 50;

const OBJECT: &str = "SELECT state, value, time, event, visited FROM objects
    WHERE state = ANY($1) AND object = $2 ORDER BY state";
pub(super) const ROWS: &str = "SELECT until, no, changes FROM object_changes
    WHERE state = $1 AND until >= $2 AND (until, no) <= ($3, $4) ORDER BY until DESC, no DESC LIMIT $5";
const IDS: &str = "SELECT seq, id FROM events WHERE seq = ANY($1)";

/// An object in each of these states in which it was seen.
pub(super) async fn object(
    conn: &Conn,
    states: &[MetricNo],
    name: &str,
) -> Asked<Vec<(MetricNo, Told<ObjectRow>)>> {
    let rows = conn.rows(OBJECT, &[&states, &name.as_bytes()]).await?;
    let events: Vec<Seq> = rows.iter().map(|row| row.get(3)).collect();
    let ids = ids(conn, &events).await?;
    let read = |row: &tokio_postgres::Row| {
        let found = ObjectRow {
            value: text(row, 1).into(),
            time: Timestamp::from_ms(row.get(2)),
            event: row.get(3),
            visited: Visited::read(&text(row, 4)),
        };
        let event = ids.get(&found.event).cloned();
        (row.get(0), (found, event))
    };
    Ok(rows.iter().map(read).collect())
}

/// Changes of objects, the latest first.
pub(super) async fn changes(conn: &Conn, filter: &ChangeFilter) -> Asked<Changes> {
    let mut reading = Reading::new(filter);
    let (mut until, mut no) = reading.begin();
    loop {
        let values: super::db::Values<'_> = &[&filter.state, &filter.until_min(), &until, &no, &PORTION];
        let rows = conn.rows(ROWS, values).await?;
        let mut is_more = rows.len() as i64 == PORTION;
        for row in &rows {
            (until, no) = (row.get(0), row.get(1));
            let is_wanted = reading.row(until, no, row.get(2));
            if !is_wanted.map_err(|torn| Error::Unavailable(torn.to_string()))? {
                is_more = false;
                break;
            }
        }
        if !is_more {
            break;
        }
        no -= 1;
    }
    let (items, next) = reading.end();
    let events: Vec<Seq> = items.iter().map(|change| change.event).collect();
    let ids = ids(conn, &events).await?;
    let told = items.into_iter().map(|change| {
        let event = ids.get(&change.event).cloned();
        (change, event)
    });
    Ok(Changes { items: told.collect(), next })
}

const ALL: &str = "SELECT no, changes FROM object_changes WHERE state = $1 AND no > $2 ORDER BY no LIMIT $3";

/// Goes over everything that happened to the objects of a state, for as long as `each` wants more; if it is followed, with the
/// events that are kept.
pub(super) async fn each(
    conn: &Conn,
    state: MetricNo,
    is_followed: bool,
    mut each: impl FnMut(&Change, Option<&EventRow>) -> bool,
) -> Asked<()> {
    let mut after = 0_i64;
    loop {
        let rows = conn.rows(ALL, &[&state, &after, &PORTION]).await?;
        for row in &rows {
            after = row.get(0);
            let changes = unpack(state, row.get(1)).map_err(|torn| Error::Unavailable(torn.to_string()))?;
            for some in changes.chunks(CHANGES_PER_QUESTION) {
                let events = if is_followed { followed(conn, some).await? } else { BTreeMap::new() };
                if !some.iter().all(|change| each(change, events.get(&change.event))) {
                    return Ok(());
                }
            }
        }
        if (rows.len() as i64) < PORTION {
            return Ok(());
        }
    }
}

/// The events of changes, as far as they are kept.
async fn followed(conn: &Conn, changes: &[Change]) -> Asked<BTreeMap<Seq, EventRow>> {
    let events: Vec<Seq> = changes.iter().map(|change| change.event).collect();
    let sql = format!("SELECT {} FROM events e WHERE seq = ANY($1)", events::COLUMNS);
    let rows = conn.rows(&sql, &[&events]).await?;
    Ok(rows.iter().map(events::event_row).map(|event| (event.seq, event)).collect())
}

/// The ids of those events that are kept.
async fn ids(conn: &Conn, events: &[Seq]) -> Asked<BTreeMap<Seq, String>> {
    let rows = conn.rows(IDS, &[&events]).await?;
    Ok(rows.iter().map(|row| (row.get(0), text(row, 1))).collect())
}
