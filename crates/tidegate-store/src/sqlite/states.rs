//! Objects and their states: each change is decided by what the object's row says, and written with it.

use rusqlite::{Connection, params};
use tidegate_core::id::MetricNo;
use tidegate_core::observe::state::{Change, Ledger};
use tidegate_core::observe::{Grain, Sight, Slab, history};

use super::objects;

const INSERT_CHANGES: &str = "INSERT INTO object_changes (state, until, changes) VALUES (?1, ?2, ?3)";

/// What sightings come to beside what is counted of them.
pub(super) struct Changed {
    objects: Vec<objects::Rows>,
    /// The history, whatever objects it is of: of which state, up to when, and packed.
    history: Vec<(MetricNo, Option<i64>, Vec<u8>)>,
}

/// Applies sightings object by object, without writing it yet; what they change is to be counted. `sights` are sorted by
/// state, object and time.
pub(super) fn prepare(conn: &Connection, sights: &[Sight]) -> rusqlite::Result<(Changed, Slab)> {
    let mut counted = Slab::new(sights.first().map_or(0, |sight| sight.event.unsigned_abs()));
    let mut ledger =
        Ledger::new(|metric, key: &str, time, by| counted.shift(metric, Grain::S5, key, time, by));
    let mut rows = Vec::new();
    for of_state in sights.chunk_by(|a, b| a.state == b.state) {
        let mut by_object = of_state.chunk_by(|a, b| a.object == b.object);
        let names: Vec<&str> = by_object.clone().map(|of_object| &*of_object[0].object).collect();
        rows.push(objects::prepare(conn, of_state[0].state, &names, |row| {
            let of_object = by_object.next()?;
            let mut row = row.unwrap_or_else(|| ledger.begin(&of_object[0]));
            ledger.apply(&mut row, of_object);
            Some(row)
        })?);
    }
    Ok((Changed { objects: rows, history: packed(ledger.changes) }, counted))
}

fn packed(mut changes: Vec<Change>) -> Vec<(MetricNo, Option<i64>, Vec<u8>)> {
    changes.sort_by_key(|change| (change.state, change.event));
    let of_state = changes.chunk_by(|a, b| a.state == b.state);
    let some = of_state.flat_map(|of_state| of_state.chunks(history::CHANGES_MAX));
    some.map(|some| {
        let until = some.iter().map(|change| change.time.as_ms()).max();
        (some[0].state, until, history::pack(some))
    })
    .collect()
}

impl Changed {
    pub(super) fn write(&self, tx: &Connection) -> rusqlite::Result<()> {
        self.objects.iter().try_for_each(|rows| rows.write(tx))?;
        let mut insert = tx.prepare_cached(INSERT_CHANGES)?;
        for (state, until, packed) in &self.history {
            insert.execute(params![state, until, packed])?;
        }
        Ok(())
    }
}
