//! Which ids are known: the one random index of the product, kept off the hot path.
//!
//! A random key dirties a page of its own: 4 KiB to the log and 4 KiB at the checkpoint for every event, growing
//! with the table. So new keys are gathered in memory; when there are enough of them they are sorted and merged
//! into the table in slices, inside the ordinary group commits. A mark, moved in the same transaction as the last
//! slice, says up to which event the table is complete; at start the younger keys are read back from the events.
//!
//! Promises: what is committed is found, from memory or from the table; memory holds at most a few merges' worth.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use rusqlite::{Connection, OptionalExtension, params};
use tidegate_core::event::lookup_key;
use tidegate_core::id::Seq;

/// Keys gathered before they are merged: enough that a sorted merge touches each page for several keys.
const MERGE_KEYS: usize = 65_536;
/// Keys merged per commit at least; twice the group's events at best, so that merging outruns ingest.
const SLICE_KEYS_MIN: usize = 512;

pub(super) const LOOK_UP: &str = "SELECT seq FROM dedupe WHERE key = ?1";
pub(super) const LOOK_UP_WITHIN: &str = "SELECT seq FROM dedupe WHERE key >= ?1 AND key < ?2";
pub(super) const YOUNGER: &str = "SELECT seq, project, source, id FROM events WHERE seq > ?1";

/// The keys that are not, or not all, in the table yet.
#[derive(Default)]
pub(super) struct Dedupe {
    fresh: Keys,
    fresh_through: Seq,
    merging: Keys,
    /// The same, sorted, of which `merged` are in the table.
    slices: Vec<(i64, Seq)>,
    merging_through: Seq,
    merged: usize,
    /// Events whose key the table holds for another event: it has room for one each. There are hardly ever any.
    twins: Vec<(i64, Seq)>,
}

/// What one group commit adds and merges; applied to memory only after the commit.
#[derive(Default)]
pub(super) struct Delta {
    added: Keys,
    added_through: Seq,
    merged: usize,
    twins: Vec<(i64, Seq)>,
}

/// Keys and their events. Keys are nearly unique: the second event of one is an exception, kept apart.
#[derive(Default)]
struct Keys {
    events: HashMap<i64, Seq>,
    twins: Vec<(i64, Seq)>,
}

impl Keys {
    fn insert(&mut self, key: i64, seq: Seq) {
        match self.events.entry(key) {
            Entry::Vacant(place) => {
                place.insert(seq);
            }
            Entry::Occupied(other) if *other.get() == seq => {}
            Entry::Occupied(_) => self.twins.push((key, seq)),
        }
    }

    fn absorb(&mut self, others: &Self) {
        others.events.iter().for_each(|(key, seq)| self.insert(*key, *seq));
        others.twins.iter().for_each(|(key, seq)| self.insert(*key, *seq));
    }

    fn len(&self) -> usize {
        self.events.len() + self.twins.len()
    }

    fn find(&self, key: i64, found: &mut Vec<Seq>) {
        found.extend(self.events.get(&key));
        found.extend(self.twins.iter().filter(|(twin, _)| *twin == key).map(|(_, seq)| *seq));
    }

    fn find_within(&self, keys: &Range<i64>, found: &mut Vec<Seq>) {
        let all = self.events.iter().map(|(key, seq)| (*key, *seq)).chain(self.twins.iter().copied());
        found.extend(all.filter(|(key, _)| keys.contains(key)).map(|(_, seq)| seq));
    }

    fn sorted(&self) -> Vec<(i64, Seq)> {
        let mut all: Vec<(i64, Seq)> = self.events.iter().map(|(key, seq)| (*key, *seq)).collect();
        all.extend(&self.twins);
        all.sort_unstable();
        all
    }
}

impl Dedupe {
    /// Reads back what the table does not hold yet.
    pub(super) fn load(conn: &Connection) -> rusqlite::Result<Self> {
        let mark: Seq = conn.query_row("SELECT seq FROM dedupe_mark", [], |row| row.get(0))?;
        let twins = conn
            .prepare("SELECT key, seq FROM dedupe_twins")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        let mut dedupe = Self { fresh_through: mark, twins, ..Self::default() };
        let mut statement = conn.prepare(YOUNGER)?;
        let mut rows = statement.query([mark])?;
        while let Some(row) = rows.next()? {
            let seq = row.get(0)?;
            let key = lookup_key(row.get(1)?, row.get_ref(2)?.as_str()?, row.get_ref(3)?.as_str()?);
            dedupe.fresh.insert(key, seq);
            dedupe.fresh_through = seq;
        }
        Ok(dedupe)
    }

    /// Every event with this key, this group's own included.
    pub(super) fn events_of(&self, conn: &Connection, delta: &Delta, key: i64) -> rusqlite::Result<Vec<Seq>> {
        let mut found = Vec::new();
        for keys in [&delta.added, &self.fresh, &self.merging] {
            keys.find(key, &mut found);
        }
        found.extend(self.twins.iter().filter(|(twin, _)| *twin == key).map(|(_, seq)| *seq));
        let known = conn.prepare_cached(LOOK_UP)?.query_row([key], |row| row.get(0)).optional()?;
        Ok(each_once(found, known))
    }

    /// Every event whose key lies in `keys`. Looks at all of memory: for people's questions, not for the hot path.
    pub(super) fn events_within(&self, conn: &Connection, keys: Range<i64>) -> rusqlite::Result<Vec<Seq>> {
        let mut found = Vec::new();
        for memory in [&self.fresh, &self.merging] {
            memory.find_within(&keys, &mut found);
        }
        found.extend(self.twins.iter().filter(|(twin, _)| keys.contains(twin)).map(|(_, seq)| *seq));
        let known = conn
            .prepare_cached(LOOK_UP_WITHIN)?
            .query_map([keys.start, keys.end], |row| row.get(0))?
            .collect::<rusqlite::Result<Vec<Seq>>>()?;
        Ok(each_once(found, known))
    }

    /// Writes the next slice of a merge, if one is under way.
    pub(super) fn merge_slice(&self, conn: &Connection, delta: &mut Delta) -> rusqlite::Result<()> {
        let rest = &self.slices[self.merged..];
        let slice = &rest[..rest.len().min(SLICE_KEYS_MIN.max(2 * delta.added.len()))];
        if slice.is_empty() {
            return Ok(());
        }
        let mut insert = conn.prepare_cached("INSERT OR IGNORE INTO dedupe (key, seq) VALUES (?1, ?2)")?;
        for (key, seq) in slice {
            if insert.execute(params![key, seq])? == 0 {
                merge_twin(conn, delta, *key, *seq)?;
            }
        }
        if slice.len() == rest.len() {
            conn.prepare_cached("UPDATE dedupe_mark SET seq = ?1")?.execute([self.merging_through])?;
        }
        delta.merged = slice.len();
        Ok(())
    }

    /// Takes over what was committed.
    pub(super) fn apply(&mut self, delta: &Delta) {
        self.merged += delta.merged;
        self.twins.extend(&delta.twins);
        if delta.merged > 0 && self.merged == self.slices.len() {
            (self.merging, self.slices, self.merged) = (Keys::default(), Vec::new(), 0);
        }
        self.fresh_through = self.fresh_through.max(delta.added_through);
        self.fresh.absorb(&delta.added);
        if self.fresh.len() >= MERGE_KEYS && self.slices.is_empty() {
            self.merging = std::mem::take(&mut self.fresh);
            self.slices = self.merging.sorted();
            self.merging_through = self.fresh_through;
        }
    }
}

/// The table holds this key already: for the same event, if a merge was cut short, or for a twin.
fn merge_twin(conn: &Connection, delta: &mut Delta, key: i64, seq: Seq) -> rusqlite::Result<()> {
    let holder: Seq = conn.prepare_cached(LOOK_UP)?.query_row([key], |row| row.get(0))?;
    let is_new = holder != seq
        && conn
            .prepare_cached("INSERT OR IGNORE INTO dedupe_twins (key, seq) VALUES (?1, ?2)")?
            .execute([key, seq])?
            == 1;
    if is_new {
        delta.twins.push((key, seq));
    }
    Ok(())
}

fn each_once(mut found: Vec<Seq>, known: impl IntoIterator<Item = Seq>) -> Vec<Seq> {
    found.extend(known);
    if found.len() > 1 {
        found.sort_unstable();
        found.dedup();
    }
    found
}

impl Delta {
    /// Adds the key of an event that is part of this commit.
    pub(super) fn add(&mut self, key: i64, seq: Seq) {
        self.added.insert(key, seq);
        self.added_through = self.added_through.max(seq);
    }
}
