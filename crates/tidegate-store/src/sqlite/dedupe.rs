//! Which ids are known: the one random index of the product, kept off the hot path.
//!
//! A random key dirties a page of its own: 4 KiB to the log and 4 KiB at the checkpoint for every event, growing
//! with the table. So new keys are gathered in memory; when there are enough of them they are sorted and appended to
//! the table as one [`Run`], a few pages with each of the ordinary group commits. A run's row, written with its last
//! page, says up to which event the runs are complete; at start the younger keys are read back from the events. Each
//! run has a filter in memory, so that a new key, as nearly all are, is looked up in hardly any of them.
//!
//! Promises: what is committed is found, from memory or from a run; memory holds the filters (twelve bits a key) and
//! a few runs' worth of keys.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::RangeInclusive;

use rusqlite::Connection;
use tidegate_core::event::lookup_key;
use tidegate_core::id::Seq;

use super::filter::Filter;
use super::run::{self, PAGE_PAIRS, Run};

/// Keys gathered before they become a run: few runs, and a start that reads them back quickly.
const RUN_KEYS: usize = 65_536;
/// Pages written per commit at least; enough for twice the group's events at best, so that writing outruns ingest.
const SLICE_PAGES_MIN: usize = 2;

pub(super) const MARK: &str = "SELECT coalesce(max(through), 0) FROM dedupe_runs";
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

struct NextRun {
    run: Run,
    keys: Keys,
    sorted: Vec<(i64, Seq)>,
    /// Pages.
    written: usize,
    through: Seq,
}

/// What one group commit adds and writes; applied to memory only after the commit.
#[derive(Default)]
pub(super) struct Delta {
    added: Keys,
    added_through: Seq,
    /// Pages.
    written: usize,
}

/// Keys and their events. Keys are nearly unique: the second event of one is an exception, kept apart.
#[derive(Default)]
struct Keys {
    events: HashMap<i64, Seq, Spread>,
    twins: Vec<(i64, Seq)>,
}

/// Hashes keys, which are hashes already. The seed keeps whoever chooses ids from choosing places in the table.
#[derive(Clone, Copy)]
struct Spread {
    seed: u64,
}

impl Default for Spread {
    fn default() -> Self {
        Self { seed: RandomState::new().hash_one(0) }
    }
}

impl BuildHasher for Spread {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}

impl Hasher for Spread {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are integers");
    }

    fn write_i64(&mut self, key: i64) {
        let product = u128::from(self.seed ^ key.cast_unsigned()) * 0x9e37_79b9_7f4a_7c15;
        self.seed = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.seed
    }
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
        self.events.reserve(others.events.len());
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

    fn find_within(&self, keys: &RangeInclusive<i64>, found: &mut Vec<Seq>) {
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
        let mut dedupe = Self { fresh_through: mark, runs: Run::load_all(conn)?, ..Self::default() };
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
            run.look_up(conn, &(key..=key), &mut found)?;
        }
        Ok(found)
    }

    /// Every event whose key lies in `keys`. Looks at all of memory: for people's questions, not for the hot path.
    pub(super) fn events_within(
        &self,
        conn: &Connection,
        keys: &RangeInclusive<i64>,
    ) -> rusqlite::Result<Vec<Seq>> {
        let mut found = Vec::new();
        self.fresh.find_within(keys, &mut found);
        if let Some(next) = &self.next {
            next.keys.find_within(keys, &mut found);
        }
        for run in &self.runs {
            run.look_up(conn, keys, &mut found)?;
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Writes the next pages of a run, if one is being written. A run that was cut short by the end of a process is
    /// written anew under its number, with at least the same keys.
    pub(super) fn write_slice(&self, conn: &Connection, delta: &mut Delta) -> rusqlite::Result<()> {
        let Some(next) = &self.next else { return Ok(()) };
        let slice = SLICE_PAGES_MIN.max((2 * delta.added.len()).div_ceil(PAGE_PAIRS));
        let pages = next.sorted.chunks(PAGE_PAIRS).enumerate().skip(next.written).take(slice);
        for (index, page) in pages {
            run::write_page(conn, next.run.no, index, page)?;
            delta.written += 1;
        }
        if next.written + delta.written == next.run.firsts.len() {
            next.run.complete(conn, next.through)?;
        }
        Ok(())
    }

    /// Takes over what was committed.
    pub(super) fn apply(&mut self, delta: &Delta) {
        if let Some(next) = &mut self.next {
            next.written += delta.written;
        }
        if let Some(done) = self.next.take_if(|next| next.written == next.run.firsts.len()) {
            self.runs.push(done.run);
        }
        self.fresh_through = self.fresh_through.max(delta.added_through);
        self.fresh.absorb(&delta.added);
        if self.fresh.len() >= RUN_KEYS && self.next.is_none() {
            self.next = Some(self.next_run());
        }
    }

    /// A run is gone, because all its events are.
    pub(super) fn forget(&mut self, run: i64) {
        self.runs.retain(|known| known.no != run);
    }

    fn next_run(&mut self) -> NextRun {
        let keys = std::mem::take(&mut self.fresh);
        let sorted = keys.sorted();
        let run = Run {
            no: self.runs.last().map_or(1, |run| run.no + 1),
            filter: Filter::of(sorted.iter().map(|(key, _)| *key)),
            firsts: sorted.chunks(PAGE_PAIRS).map(|page| page[0].0).collect(),
        };
        NextRun { run, keys, sorted, written: 0, through: self.fresh_through }
    }
}

impl Delta {
    /// Adds the key of an event that is part of this commit.
    pub(super) fn add(&mut self, key: i64, seq: Seq) {
        self.added.insert(key, seq);
        self.added_through = self.added_through.max(seq);
    }
}
