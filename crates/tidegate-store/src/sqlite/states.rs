//! Objects and their states: each change is decided by what the object's row says, and written with it.

use rusqlite::{Connection, params};
use tidegate_core::observe::state::{Change, Ledger};
use tidegate_core::observe::{Grain, Sight, Slab, history};

use super::objects;

const INSERT_CHANGES: &str = "INSERT INTO object_changes (state, until, changes) VALUES (?1, ?2, ?3)";

/// Applies sightings object by object; what they change is to be counted. `sights` are sorted by state, object and time.
pub(super) fn apply(tx: &Connection, sights: &[Sight]) -> rusqlite::Result<Slab> {
    let mut counted = Slab::new(sights.first().map_or(0, |sight| sight.event.unsigned_abs()));
    let mut ledger =
        Ledger::new(|metric, key: &str, time, by| counted.shift(metric, Grain::S5, key, time, by));
    for of_state in sights.chunk_by(|a, b| a.state == b.state) {
        let mut by_object = of_state.chunk_by(|a, b| a.object == b.object);
        let names: Vec<&str> = by_object.clone().map(|of_object| &*of_object[0].object).collect();
        objects::change(tx, of_state[0].state, &names, |row| {
            let of_object = by_object.next()?;
            let mut row = row.unwrap_or_else(|| ledger.begin(&of_object[0]));
            ledger.apply(&mut row, of_object);
            Some(row)
        })?;
    }
    record(tx, ledger.changes)?;
    Ok(counted)
}

/// Writes the history, whatever objects it is of.
fn record(tx: &Connection, mut changes: Vec<Change>) -> rusqlite::Result<()> {
    changes.sort_by_key(|change| (change.state, change.event));
    let mut insert = tx.prepare_cached(INSERT_CHANGES)?;
    for of_state in changes.chunk_by(|a, b| a.state == b.state) {
        for some in of_state.chunks(history::CHANGES_MAX) {
            let until = some.iter().map(|change| change.time.as_ms()).max();
            insert.execute(params![some[0].state, until, history::pack(some)])?;
        }
    }
    Ok(())
}
