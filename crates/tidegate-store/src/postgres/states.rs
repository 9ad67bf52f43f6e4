//! Objects and their states: each change is decided by what the object's row says, and written with it. Whoever decides
//! holds the metric's row.

use std::collections::BTreeMap;

use tidegate_core::id::MetricNo;
use tidegate_core::observe::state::{Change, Ledger, ObjectRow, Visited};
use tidegate_core::observe::{Grain, Sight, Slab, history};
use tidegate_core::time::Timestamp;

use super::db::{Asked, Conn};
use super::events::text;

/// What is to be written, column by column.
#[derive(Default)]
struct Rows {
    states: Vec<MetricNo>,
    objects: Vec<Vec<u8>>,
    values: Vec<Vec<u8>>,
    times: Vec<i64>,
    events: Vec<i64>,
    visited: Vec<Vec<u8>>,
}

/// Applies sightings object by object; what they change is to be counted. `sights` are sorted by state, object and time.
pub(super) async fn apply(conn: &Conn, sights: &[Sight]) -> Asked<Slab> {
    let mut counted = Slab::new(sights.first().map_or(0, |sight| sight.event.unsigned_abs()));
    if sights.is_empty() {
        return Ok(counted);
    }
    let mut there = objects(conn, sights).await?;
    let mut rows = Rows::default();
    let mut ledger =
        Ledger::new(|metric, key: &str, time, by| counted.shift(metric, Grain::S5, key, time, by));
    for of_object in sights.chunk_by(|a, b| (a.state, &a.object) == (b.state, &b.object)) {
        let (state, object) = (of_object[0].state, of_object[0].object.as_bytes());
        let row = there.remove(&(state, object.to_vec()));
        let mut row = row.unwrap_or_else(|| ledger.begin(&of_object[0]));
        ledger.apply(&mut row, of_object);
        rows.push(state, object, &row);
    }
    let changes = ledger.changes;
    rows.write(conn).await?;
    record(conn, changes).await?;
    Ok(counted)
}

async fn objects(conn: &Conn, sights: &[Sight]) -> Asked<BTreeMap<(MetricNo, Vec<u8>), ObjectRow>> {
    let mut names: Vec<(MetricNo, &[u8])> =
        sights.iter().map(|sight| (sight.state, sight.object.as_bytes())).collect();
    names.dedup();
    let (states, objects): (Vec<MetricNo>, Vec<&[u8]>) = names.into_iter().unzip();
    let sql = "SELECT o.state, o.object, o.value, o.time, o.event, o.visited
        FROM unnest($1::bigint[], $2::bytea[]) AS i(state, object) CROSS JOIN LATERAL
            (SELECT * FROM objects WHERE state = i.state AND object = i.object OFFSET 0) o";
    let rows = conn.rows(sql, &[&states, &objects]).await?;
    let row = |row: &tokio_postgres::Row| {
        let found = ObjectRow {
            value: text(row, 2).into(),
            time: Timestamp::from_ms(row.get(3)),
            event: row.get(4),
            visited: Visited::read(&text(row, 5)),
        };
        ((row.get(0), row.get(1)), found)
    };
    Ok(rows.iter().map(row).collect())
}

impl Rows {
    fn push(&mut self, state: MetricNo, object: &[u8], row: &ObjectRow) {
        self.states.push(state);
        self.objects.push(object.to_vec());
        self.values.push(row.value.as_bytes().to_vec());
        self.times.push(row.time.as_ms());
        self.events.push(row.event);
        self.visited.push(row.visited.to_json().into_bytes());
    }

    async fn write(&self, conn: &Conn) -> Asked<()> {
        conn.execute(
            "INSERT INTO objects (state, object, value, time, event, visited)
             SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bytea[])
             ON CONFLICT (state, object) DO UPDATE SET value = excluded.value, time = excluded.time,
                event = excluded.event, visited = excluded.visited",
            &[&self.states, &self.objects, &self.values, &self.times, &self.events, &self.visited],
        )
        .await?;
        Ok(())
    }
}

/// Writes the history: one change behind the other, whatever objects they are of.
async fn record(conn: &Conn, mut changes: Vec<Change>) -> Asked<()> {
    changes.sort_by_key(|change| (change.state, change.event));
    let of_state = changes.chunk_by(|a, b| a.state == b.state);
    let rows: Vec<&[Change]> = of_state.flat_map(|some| some.chunks(history::CHANGES_MAX)).collect();
    let states: Vec<MetricNo> = rows.iter().map(|some| some[0].state).collect();
    let until = |some: &&[Change]| some.iter().map(|change| change.time.as_ms()).max().unwrap_or(0);
    let until: Vec<i64> = rows.iter().map(until).collect();
    let packed: Vec<Vec<u8>> = rows.iter().map(|some| history::pack(some)).collect();
    let sql = "INSERT INTO object_changes (state, until, changes)
        SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[])";
    conn.execute(sql, &[&states, &until, &packed]).await?;
    Ok(())
}
