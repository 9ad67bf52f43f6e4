//! What is known of an object, and what happened to objects.

use std::collections::BTreeMap;

use tidegate_core::id::{MetricNo, Seq};
use tidegate_core::observe::history::unpack;
use tidegate_core::observe::state::{Change, ObjectRow, Visited};
use tidegate_core::time::Timestamp;

use super::db::{Asked, Conn};
use super::events::text;
use crate::Error;
use crate::history::{ChangeFilter, Changes, Reading, Told};

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

/// Goes over everything that happened to the objects of a state, for as long as `each` wants more.
pub(super) async fn each(conn: &Conn, state: MetricNo, mut each: impl FnMut(&Change) -> bool) -> Asked<()> {
    let mut after = 0_i64;
    loop {
        let rows = conn.rows(ALL, &[&state, &after, &PORTION]).await?;
        for row in &rows {
            after = row.get(0);
            let changes = unpack(state, row.get(1)).map_err(|torn| Error::Unavailable(torn.to_string()))?;
            if !changes.iter().all(&mut each) {
                return Ok(());
            }
        }
        if (rows.len() as i64) < PORTION {
            return Ok(());
        }
    }
}

/// The ids of those events that are kept.
async fn ids(conn: &Conn, events: &[Seq]) -> Asked<BTreeMap<Seq, String>> {
    let rows = conn.rows(IDS, &[&events]).await?;
    Ok(rows.iter().map(|row| (row.get(0), text(row, 1))).collect())
}
