//! Objects and their states: each change is decided by what the object's row says, and written with it. Whoever decides
//! holds the metric's row.

use std::collections::BTreeMap;

use tidegate_core::id::MetricNo;
use tidegate_core::observe::state::{self, ObjectRow};
use tidegate_core::observe::{Grain, Sight, Slab};
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

#[derive(Default)]
struct Changes {
    states: Vec<MetricNo>,
    objects: Vec<Vec<u8>>,
    times: Vec<i64>,
    events: Vec<i64>,
    from: Vec<Option<Vec<u8>>>,
    to: Vec<Vec<u8>>,
    late: Vec<bool>,
}

/// Applies sightings object by object; what they change is to be counted.
pub(super) async fn apply(conn: &Conn, sights: &[Sight]) -> Asked<Slab> {
    let mut counted = Slab::new(sights.first().map_or(0, |sight| sight.event.unsigned_abs()));
    if sights.is_empty() {
        return Ok(counted);
    }
    let mut sorted: Vec<&Sight> = sights.iter().collect();
    sorted.sort_by_key(|sight| (sight.state, &sight.object, sight.time, sight.event));
    let mut there = objects(conn, &sorted).await?;
    let (mut rows, mut changes) = (Rows::default(), Changes::default());
    for of_object in sorted.chunk_by(|a, b| (a.state, &a.object) == (b.state, &b.object)) {
        let (state, object) = (of_object[0].state, of_object[0].object.as_bytes());
        let applied = state::apply(there.remove(&(state, object.to_vec())), of_object);
        for (metric, key, time, count) in &applied.cells {
            counted.shift(*metric, Grain::S5, key, *time, *count);
        }
        for change in &applied.changes {
            changes.push(state, object, change);
        }
        if let Some(row) = &applied.row {
            rows.push(state, object, row);
        }
    }
    rows.write(conn).await?;
    changes.write(conn).await?;
    Ok(counted)
}

async fn objects(conn: &Conn, sights: &[&Sight]) -> Asked<BTreeMap<(MetricNo, Vec<u8>), ObjectRow>> {
    let mut names: Vec<(MetricNo, &[u8])> =
        sights.iter().map(|sight| (sight.state, sight.object.as_bytes())).collect();
    names.dedup();
    let (states, objects): (Vec<MetricNo>, Vec<&[u8]>) = names.into_iter().unzip();
    let sql = "SELECT o.state, o.object, o.value, o.time, o.event, o.visited
        FROM unnest($1::bigint[], $2::bytea[]) AS i(state, object) JOIN objects o USING (state, object)";
    let rows = conn.rows(sql, &[&states, &objects]).await?;
    let row = |row: &tokio_postgres::Row| {
        let found = ObjectRow {
            value: text(row, 2).into(),
            time: Timestamp::from_ms(row.get(3)),
            event: row.get(4),
            visited: text(row, 5).into(),
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
        self.visited.push(row.visited.as_bytes().to_vec());
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

impl Changes {
    fn push(&mut self, state: MetricNo, object: &[u8], change: &state::Change) {
        self.states.push(state);
        self.objects.push(object.to_vec());
        self.times.push(change.time.as_ms());
        self.events.push(change.event);
        self.from.push(change.from.as_deref().map(|from| from.as_bytes().to_vec()));
        self.to.push(change.to.as_bytes().to_vec());
        self.late.push(change.is_late);
    }

    async fn write(&self, conn: &Conn) -> Asked<()> {
        conn.execute(
            "INSERT INTO object_changes (state, object, time, event, from_state, to_state, late)
             SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bytea[],
                $7::boolean[]) ON CONFLICT DO NOTHING",
            &[&self.states, &self.objects, &self.times, &self.events, &self.from, &self.to, &self.late],
        )
        .await?;
        Ok(())
    }
}
