//! Which ids are known: the one random index of the product, kept off the hot path.
//!
//! A random key dirties a page of its own: 4 KiB to the log and 4 KiB at the checkpoint for every event, growing
//! with the table. So new keys are gathered in memory; when there are enough of them they are sorted and appended to
//! the table as one run, in slices, inside the ordinary group commits. A run's row, written with its last slice, says
//! up to which event the runs are complete; at start the younger keys are read back from the events. Each run has a
//! filter in memory, so that a new key, as nearly all are, is looked up in hardly any of them.
//!
//! Promises: what is committed is found, from memory or from a run; memory holds the filters (twelve bits a key) and
//! a few runs' worth of keys.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use rusqlite::{Connection, params};
use tidegate_core::event::lookup_key;
use tidegate_core::id::Seq;

use super::filter::Filter;

/// Keys gathered before they become a run: few runs, and a start that reads them back quickly.
const RUN_KEYS: usize = 65_536;
/// Keys written per commit at least; twice the group's events at best, so that writing outruns ingest.
const SLICE_KEYS_MIN: usize = 512;

pub(super) const MARK: &str = "SELECT coalesce(max(through), 0) FROM dedupe_runs";
pub(super) const LOOK_UP: &str = "SELECT seq FROM dedupe WHERE run = ?1 AND key >= ?2 AND key < ?3";
pub(super) const YOUNGER: &str = "SELECT seq, project, source, id FROM events WHERE seq > ?1";

/// The keys in memory, and what is known of those on disk.
#[derive(Default)]
pub(super) struct Dedupe {
    fresh: Keys,
    fresh_through: Seq,
    /// The run that is being written, for as long as it is.
    next: Option<NextRun>,
    runs: Vec<Run>,
}

/// A run on disk.
struct Run {
    no: i64,
    filter: Filter,
}

struct NextRun {
    no: i64,
    keys: Keys,
    sorted: Vec<(i64, Seq)>,
    written: usize,
    through: Seq,
    filter: Filter,
}

/// What one group commit adds and writes; applied to memory only after the commit.
#[derive(Default)]
pub(super) struct Delta {
    added: Keys,
    added_through: Seq,
    written: usize,
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
    /// Reads the filters, and the keys that no run holds yet.
    pub(super) fn load(conn: &Connection) -> rusqlite::Result<Self> {
        let mark: Seq = conn.query_row(MARK, [], |row| row.get(0))?;
        let runs = conn
            .prepare("SELECT run, filter FROM dedupe_runs ORDER BY run")?
            .query_map([], |row| {
                Ok(Run { no: row.get(0)?, filter: Filter::from_bytes(row.get_ref(1)?.as_blob()?) })
            })?
            .collect::<rusqlite::Result<_>>()?;
        let mut dedupe = Self { fresh_through: mark, runs, ..Self::default() };
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
        delta.added.find(key, &mut found);
        self.fresh.find(key, &mut found);
        if let Some(next) = &self.next {
            next.keys.find(key, &mut found);
        }
        for run in self.runs.iter().filter(|run| run.filter.may_hold(key)) {
            look_up(conn, run, &(key..key + 1), &mut found)?;
        }
        Ok(found)
    }

    /// Every event whose key lies in `keys`. Looks at all of memory: for people's questions, not for the hot path.
    pub(super) fn events_within(&self, conn: &Connection, keys: &Range<i64>) -> rusqlite::Result<Vec<Seq>> {
        let mut found = Vec::new();
        self.fresh.find_within(keys, &mut found);
        if let Some(next) = &self.next {
            next.keys.find_within(keys, &mut found);
        }
        for run in &self.runs {
            look_up(conn, run, keys, &mut found)?;
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Writes the next slice of a run, if one is being written. A run that was cut short by the end of a process is
    /// written anew under its number, with at least the same keys.
    pub(super) fn write_slice(&self, conn: &Connection, delta: &mut Delta) -> rusqlite::Result<()> {
        let Some(next) = &self.next else { return Ok(()) };
        let rest = &next.sorted[next.written..];
        let slice = &rest[..rest.len().min(SLICE_KEYS_MIN.max(2 * delta.added.len()))];
        let mut insert =
            conn.prepare_cached("INSERT OR IGNORE INTO dedupe (run, key, seq) VALUES (?1, ?2, ?3)")?;
        for (key, seq) in slice {
            insert.execute(params![next.no, key, seq])?;
        }
        if slice.len() == rest.len() {
            conn.prepare_cached("INSERT INTO dedupe_runs (run, through, filter) VALUES (?1, ?2, ?3)")?
                .execute(params![next.no, next.through, next.filter.to_bytes()])?;
        }
        delta.written = slice.len();
        Ok(())
    }

    /// Takes over what was committed.
    pub(super) fn apply(&mut self, delta: &Delta) {
        if let Some(next) = &mut self.next {
            next.written += delta.written;
        }
        if let Some(done) = self.next.take_if(|next| next.written == next.sorted.len()) {
            self.runs.push(Run { no: done.no, filter: done.filter });
        }
        self.fresh_through = self.fresh_through.max(delta.added_through);
        self.fresh.absorb(&delta.added);
        if self.fresh.len() >= RUN_KEYS && self.next.is_none() {
            self.next = Some(self.next_run());
        }
    }

    fn next_run(&mut self) -> NextRun {
        let keys = std::mem::take(&mut self.fresh);
        let sorted = keys.sorted();
        NextRun {
            no: self.runs.last().map_or(1, |run| run.no + 1),
            filter: Filter::of(sorted.iter().map(|(key, _)| *key)),
            keys,
            sorted,
            written: 0,
            through: self.fresh_through,
        }
    }
}

fn look_up(conn: &Connection, run: &Run, keys: &Range<i64>, found: &mut Vec<Seq>) -> rusqlite::Result<()> {
    let mut statement = conn.prepare_cached(LOOK_UP)?;
    let mut rows = statement.query(params![run.no, keys.start, keys.end])?;
    while let Some(row) = rows.next()? {
        found.push(row.get(0)?);
    }
    Ok(())
}

impl Delta {
    /// Adds the key of an event that is part of this commit.
    pub(super) fn add(&mut self, key: i64, seq: Seq) {
        self.added.insert(key, seq);
        self.added_through = self.added_through.max(seq);
    }
}
