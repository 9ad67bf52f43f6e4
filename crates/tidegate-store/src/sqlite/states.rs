//! Objects and their states: each change is decided by what the object's row says, and written with it.

use rusqlite::{OptionalExtension, Transaction, params};
use tidegate_core::observe::state::{self, ObjectRow};
use tidegate_core::observe::{Grain, Sight, Slab};
use tidegate_core::time::Timestamp;

pub(super) const OBJECT: &str =
    "SELECT value, time, event, visited FROM objects WHERE state = ?1 AND object = ?2";
const PUT_OBJECT: &str = "INSERT INTO objects (state, object, value, time, event, visited)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (state, object) DO UPDATE SET
        value = excluded.value, time = excluded.time, event = excluded.event, visited = excluded.visited";
const PUT_CHANGE: &str = "INSERT INTO object_changes (state, object, time, event, from_state, to_state, late)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING";

/// Applies sightings object by object; what they change is to be counted.
pub(super) fn apply(tx: &Transaction<'_>, sights: &[Sight]) -> rusqlite::Result<Slab> {
    let mut sorted: Vec<&Sight> = sights.iter().collect();
    sorted.sort_by_key(|sight| (sight.state, &sight.object, sight.time, sight.event));
    let mut counted = Slab::new(sights.first().map_or(0, |sight| sight.event.unsigned_abs()));
    for of_object in sorted.chunk_by(|a, b| (a.state, &a.object) == (b.state, &b.object)) {
        apply_to_object(tx, of_object, &mut counted)?;
    }
    Ok(counted)
}

fn apply_to_object(tx: &Transaction<'_>, sights: &[&Sight], counted: &mut Slab) -> rusqlite::Result<()> {
    let (state, object) = (sights[0].state, &sights[0].object);
    let row = tx
        .prepare_cached(OBJECT)?
        .query_row(params![state, object], |row| {
            Ok(ObjectRow {
                value: row.get::<_, String>(0)?.into(),
                time: Timestamp::from_ms(row.get(1)?),
                event: row.get(2)?,
                visited: row.get::<_, String>(3)?.into(),
            })
        })
        .optional()?;
    let applied = state::apply(row, sights);
    for (metric, key, time, count) in &applied.cells {
        counted.shift(*metric, Grain::S5, key, *time, *count);
    }
    for change in &applied.changes {
        let (from, to) = (change.from.as_deref(), &change.to);
        let values = params![state, object, change.time.as_ms(), change.event, from, to, change.is_late];
        tx.prepare_cached(PUT_CHANGE)?.execute(values)?;
    }
    if let Some(ObjectRow { value, time, event, visited }) = &applied.row {
        let values = params![state, object, value, time.as_ms(), event, visited];
        tx.prepare_cached(PUT_OBJECT)?.execute(values)?;
    }
    Ok(())
}
