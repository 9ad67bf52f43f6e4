//! Objects and their states: each change is decided by what the object's row says, and written with it.

use std::sync::Arc;

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use tidegate_core::id::MetricNo;
use tidegate_core::observe::state::{Change, Ledger, ObjectRow};
use tidegate_core::observe::{Grain, Sight, Slab, history};
use tidegate_core::time::Timestamp;

use super::remembered::Remembered;

pub(super) const OBJECT: &str =
    "SELECT value, time, event, visited FROM objects WHERE state = ?1 AND object = ?2";
const INSERT_OBJECT: &str = "INSERT INTO objects (state, object, value, time, event, visited)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
pub(super) const UPDATE_OBJECT: &str =
    "UPDATE objects SET value = ?3, time = ?4, event = ?5, visited = ?6 WHERE state = ?1 AND object = ?2";
const INSERT_CHANGES: &str = "INSERT INTO object_changes (state, until, changes) VALUES (?1, ?2, ?3)";

/// Applies sightings object by object; what they change is to be counted. `sights` are sorted by state, object and time.
pub(super) fn apply(tx: &Connection, known: &mut Remembered, sights: &[Sight]) -> rusqlite::Result<Slab> {
    let mut counted = Slab::new(sights.first().map_or(0, |sight| sight.event.unsigned_abs()));
    let mut ledger =
        Ledger::new(|metric, key: &str, time, by| counted.shift(metric, Grain::S5, key, time, by));
    let mut objects = Objects::prepare(tx)?;
    for of_object in sights.chunk_by(|a, b| (a.state, &a.object) == (b.state, &b.object)) {
        let (state, object) = (of_object[0].state, &of_object[0].object);
        if let Some(row) = known.objects.get(state, object) {
            ledger.apply(row, of_object);
            put(&mut objects.update, state, object, row)?;
            continue;
        }
        let (mut row, write) = match objects.stored(state, object)? {
            Some(row) => (row, &mut objects.update),
            None => (ledger.begin(&of_object[0]), &mut objects.insert),
        };
        ledger.apply(&mut row, of_object);
        put(write, state, object, &row)?;
        known.objects.put(state, Arc::clone(object), row);
    }
    record(tx, ledger.changes)?;
    Ok(counted)
}

/// The statements that run for every object.
struct Objects<'c> {
    read: CachedStatement<'c>,
    insert: CachedStatement<'c>,
    update: CachedStatement<'c>,
}

impl<'c> Objects<'c> {
    fn prepare(tx: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            read: tx.prepare_cached(OBJECT)?,
            insert: tx.prepare_cached(INSERT_OBJECT)?,
            update: tx.prepare_cached(UPDATE_OBJECT)?,
        })
    }

    fn stored(&mut self, state: MetricNo, object: &str) -> rusqlite::Result<Option<ObjectRow>> {
        let row = |row: &rusqlite::Row<'_>| {
            Ok(ObjectRow {
                value: row.get_ref(0)?.as_str()?.into(),
                time: Timestamp::from_ms(row.get(1)?),
                event: row.get(2)?,
                visited: row.get_ref(3)?.as_str()?.into(),
            })
        };
        self.read.query_row(params![state, object], row).optional()
    }
}

fn put(
    write: &mut CachedStatement<'_>,
    state: MetricNo,
    object: &str,
    row: &ObjectRow,
) -> rusqlite::Result<()> {
    let ObjectRow { value, time, event, visited } = row;
    write.execute(params![state, object, value, time.as_ms(), event, visited])?;
    Ok(())
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
