//! Audit: what was counted, compared with what the events say, to the unit.

use std::collections::BTreeMap;

use super::delta::{Cell, Key, Rise};
use super::grain::Grain;
use super::kept::Kept;
use super::page::{self, Torn};
use crate::id::KeyNo;

/// The key of what has no key of its own.
const OTHER: KeyNo = 0;

/// What was found about one metric.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Cells that were looked at.
    pub cells: u64,
    /// Those that are not as they should be, the first of them.
    pub differences: Vec<Difference>,
    /// How many there are.
    pub count: u64,
}

/// A cell that is not as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// How long its bucket is.
    pub grain: Grain,
    /// When it begins, in milliseconds.
    pub bucket: i64,
    /// Its key; absent for what is counted as `(other)`, and for sums over all keys where there is such.
    pub key: Option<Key>,
    /// How many events it should have counted.
    pub expected: i64,
    /// How many it has.
    pub counted: i64,
}

/// Differences that are told one by one.
const TOLD_MAX: usize = 100;

/// Where a cell stands.
type Place = (Grain, i64, KeyNo);

/// Compares what the events of a metric add up to with what is stored, in buckets that lie within the range and are kept.
///
/// Keys that found no number of their own were counted as `(other)`. Which ones depends on the order in which they came,
/// so where there is such a cell only the sum over all keys of its bucket is compared.
pub fn compare(
    expected: &[Rise],
    keys: &[(KeyNo, Key)],
    pages: &[(Grain, i64, Vec<u8>)],
    range: (i64, i64),
    kept: &Kept,
) -> Result<Comparison, Torn> {
    compare_some(expected, keys, pages, (range, kept), None)
}

/// Which cells are compared: how long their bucket is, when it begins, and their key.
pub type Meant<'a> = &'a dyn Fn(Grain, i64, &str) -> bool;

/// The same of some cells. What is counted as `(other)` may belong to any of them, so buckets with such are left out then.
pub fn compare_some(
    expected: &[Rise],
    keys: &[(KeyNo, Key)],
    pages: &[(Grain, i64, Vec<u8>)],
    ((from, to), kept): ((i64, i64), &Kept),
    is_meant: Option<Meant<'_>>,
) -> Result<Comparison, Torn> {
    let is_some = is_meant.is_some();
    let is_within =
        |grain: Grain, bucket: i64| bucket >= from.max(kept.since(grain)) && bucket + grain.length_ms() <= to;
    let numbers: BTreeMap<&str, KeyNo> = keys.iter().map(|(no, key)| (&**key, *no)).collect();
    let names: BTreeMap<KeyNo, &Key> = keys.iter().map(|(no, key)| (*no, key)).collect();
    let is_meant = |(grain, bucket, key): Place| {
        is_meant.is_none_or(|is_meant| names.get(&key).is_some_and(|key| is_meant(grain, bucket, key)))
    };
    let mut cells: BTreeMap<Place, [Option<Cell>; 2]> = BTreeMap::new();
    for rise in expected.iter().filter(|rise| is_within(rise.grain, rise.bucket)) {
        let key = numbers.get(&*rise.key).copied().unwrap_or(OTHER);
        add(&mut cells.entry((rise.grain, rise.bucket, key)).or_default()[0], &rise.cell)?;
    }
    for (grain, bucket, page) in pages.iter().filter(|(grain, bucket, _)| is_within(*grain, *bucket)) {
        for cell in page::cells(page)? {
            let (key, cell) = cell?;
            add(&mut cells.entry((*grain, *bucket, key)).or_default()[1], &cell.to_cell()?)?;
        }
    }
    let mut found = Comparison::default();
    let all: Vec<(Place, [Option<Cell>; 2])> = cells.into_iter().collect();
    for bucket in all.chunk_by(|a, b| (a.0.0, a.0.1) == (b.0.0, b.0.1)) {
        if bucket[0].0.2 == OTHER {
            if !is_some {
                found.cells += bucket.len() as u64;
                found.look(bucket[0].0, None, &[sum(bucket, 0)?, sum(bucket, 1)?]);
            }
            continue;
        }
        for (place, pair) in bucket.iter().filter(|(place, _)| is_meant(*place)) {
            found.cells += 1;
            found.look(*place, names.get(&place.2).copied().cloned(), pair);
        }
    }
    Ok(found)
}

/// Looks whether every bucket has what the shorter ones within it have, as far as these are kept.
pub fn compare_lengths(
    keys: &[(KeyNo, Key)],
    pages: &[(Grain, i64, Vec<u8>)],
    (from, to): (i64, i64),
    kept: &Kept,
) -> Result<Comparison, Torn> {
    let mut cells: BTreeMap<Place, [Option<Cell>; 2]> = BTreeMap::new();
    for (grain, bucket, page) in pages {
        let around = grain.longer().map(|longer| (longer, longer.start_ms(*bucket)));
        for cell in page::cells(page)? {
            let (key, cell) = cell?;
            let cell = cell.to_cell()?;
            if let Some((longer, start)) = around {
                add(&mut cells.entry((longer, start, key)).or_default()[0], &cell)?;
            }
            add(&mut cells.entry((*grain, *bucket, key)).or_default()[1], &cell)?;
        }
    }
    let shorter = |grain: Grain| Grain::ALL.into_iter().find(|shorter| shorter.longer() == Some(grain));
    let mut found = Comparison::default();
    let names: BTreeMap<KeyNo, &Key> = keys.iter().map(|(no, key)| (*no, key)).collect();
    for (place, pair) in &cells {
        let (grain, bucket, key) = *place;
        let Some(shorter) = shorter(grain) else { continue };
        if bucket >= from.max(kept.since(shorter)) && bucket.saturating_add(grain.length_ms()) <= to {
            found.cells += 1;
            found.look(*place, names.get(&key).copied().cloned(), pair);
        }
    }
    Ok(found)
}

fn add(sum: &mut Option<Cell>, cell: &Cell) -> Result<(), Torn> {
    match sum {
        Some(sum) => sum.try_add(cell),
        None => {
            *sum = Some(cell.clone());
            Ok(())
        }
    }
}

fn sum(bucket: &[(Place, [Option<Cell>; 2])], side: usize) -> Result<Option<Cell>, Torn> {
    let mut total = None;
    for cell in bucket.iter().filter_map(|(_, pair)| pair[side].as_ref()) {
        add(&mut total, cell)?;
    }
    Ok(total)
}

impl Comparison {
    /// Adds what was found in another way.
    pub fn and(mut self, other: Self) -> Self {
        self.cells += other.cells;
        self.count += other.count;
        self.differences.extend(other.differences);
        self.differences.truncate(TOLD_MAX);
        self
    }

    fn look(&mut self, (grain, bucket, _): Place, key: Option<Key>, pair: &[Option<Cell>; 2]) {
        let is_nothing = |cell: &Option<Cell>| matches!(cell, None | Some(Cell::Count { count: 0, sum: 0 }));
        if pair[0] == pair[1] || pair.iter().all(is_nothing) {
            return;
        }
        self.count += 1;
        if self.differences.len() < TOLD_MAX {
            let [expected, counted] = pair.each_ref().map(|cell| cell.as_ref().map_or(0, events));
            self.differences.push(Difference { grain, bucket, key, expected, counted });
        }
    }
}

fn events(cell: &Cell) -> i64 {
    match cell {
        Cell::Count { count, .. } => *count,
        Cell::Sketch(sketch) => i64::try_from(sketch.count()).unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::super::metric::Kind;
    use super::super::slab::Slab;
    use super::*;
    use crate::time::Timestamp;

    const ALL: (i64, i64) = (i64::MIN, i64::MAX);

    fn all() -> Kept {
        Kept::everything(Timestamp::from_ms(0))
    }

    fn rises(keys: &[&str]) -> Vec<Rise> {
        let mut slab = Slab::new(7);
        for (second, key) in keys.iter().enumerate() {
            slab.count(1, Grain::S5, key, Timestamp::from_ms(second as i64 * 7_000), 3);
        }
        slab.into_delta().rises()
    }

    /// The rows that a store would have, where only `keys` have numbers.
    fn stored(rises: &[Rise], keys: &[(KeyNo, Key)]) -> Vec<(Grain, i64, Vec<u8>)> {
        let of = |rise: &Rise| keys.iter().find(|(_, key)| *key == rise.key).map_or(OTHER, |(no, _)| *no);
        let mut pages: BTreeMap<(Grain, i64), Vec<(KeyNo, &Cell)>> = BTreeMap::new();
        for rise in rises {
            pages.entry((rise.grain, rise.bucket)).or_default().push((of(rise), &rise.cell));
        }
        let pack = |((grain, bucket), mut cells): ((Grain, i64), Vec<(KeyNo, &Cell)>)| {
            cells.sort_by_key(|(no, _)| *no);
            (grain, bucket, page::merge(None, &cells).expect("it is new"))
        };
        pages.into_iter().map(pack).collect()
    }

    fn keys(names: &[&str]) -> Vec<(KeyNo, Key)> {
        names.iter().enumerate().map(|(no, name)| (no as KeyNo + 1, Key::from(*name))).collect()
    }

    #[test]
    fn a_bucket_is_the_sum_of_the_shorter_ones_within_it() {
        let (events, keys) = (rises(&["a", "b", "a"]), keys(&["a", "b"]));
        let pages = stored(&events, &keys);
        let right = compare_lengths(&keys, &pages, ALL, &all()).unwrap();
        assert!(right.cells > 0 && right.count == 0, "{right:?}");
        for gone in [Grain::S5, Grain::M5, Grain::D7] {
            let mut pages = pages.clone();
            pages.retain(|(grain, ..)| *grain != gone);
            assert!(compare_lengths(&keys, &pages, ALL, &all()).unwrap().count > 0, "{gone:?}");
        }
        assert_eq!(
            compare_lengths(&keys, &pages, (5_000, 60_000), &all()).unwrap().cells,
            0,
            "none is within"
        );
    }

    #[test]
    fn keys_are_compared_that_begin_alike() {
        let (events, keys) = (rises(&["ab", "b", "ac"]), keys(&["ab", "b", "ac"]));
        let pages = stored(&events, &keys);
        let some: Vec<Rise> = events.iter().filter(|rise| rise.key.starts_with('a')).cloned().collect();
        let is_meant: Meant<'_> = &|_, _, key| key.starts_with('a');
        let compare = |some: &[Rise], keys: &[(KeyNo, Key)], pages: &[(Grain, i64, Vec<u8>)]| {
            compare_some(some, keys, pages, (ALL, &all()), Some(is_meant)).unwrap()
        };
        let found = compare(&some, &keys, &pages);
        assert!(found.cells > 0 && found.count == 0, "{found:?}");
        assert!(compare(&some[1..], &keys, &pages).count > 0);
        let found = compare(&some[1..], &keys[..1], &stored(&events, &keys[..1]));
        assert!(found.count < 6, "where something has no number it may be any of them: {found:?}");
    }

    #[test]
    fn what_is_right_agrees_and_what_is_not_is_told() {
        let (events, keys) = (rises(&["a", "b", "a"]), keys(&["a", "b"]));
        let right = compare(&events, &keys, &stored(&events, &keys), ALL, &all()).expect("fine");
        assert_eq!((right.count, right.cells), (0, 3 + 5 * 2));
        let twice = rises(&["a", "b", "a", "b"]);
        let wrong = compare(&events, &keys, &stored(&twice, &keys), ALL, &all()).expect("fine");
        assert_eq!(wrong.count, 6, "one in each length of bucket: {:?}", wrong.differences);
        let week = wrong.differences.last().expect("some");
        assert_eq!((week.expected, week.counted, week.key.as_deref()), (1, 2, Some("b")));
        let missing = compare(&events, &keys, &[], ALL, &all()).expect("fine");
        assert_eq!(missing.count, missing.cells);
    }

    #[test]
    fn buckets_that_reach_out_of_the_range_are_left_out() {
        let (events, keys) = (rises(&["a"]), keys(&["a"]));
        let found = compare(&events, &keys, &[], (0, 60_000), &all()).expect("fine");
        assert_eq!(found.differences.iter().map(|d| d.grain).collect::<Vec<_>>(), [Grain::S5, Grain::M1]);
    }

    #[test]
    fn where_keys_had_no_room_the_sum_counts() {
        let (events, keys) = (rises(&["a", "b", "c"]), keys(&["a"]));
        let right = compare(&events, &keys, &stored(&events, &keys), ALL, &all()).expect("fine");
        assert_eq!(right.count, 0);
        let short = rises(&["a", "b"]);
        let wrong = compare(&events, &keys, &stored(&short, &keys), ALL, &all()).expect("fine");
        assert_eq!(wrong.count, 6);
        assert!(wrong.differences.iter().all(|difference| difference.key.is_none()));
    }

    #[test]
    fn buckets_that_are_no_longer_kept_are_not_missed() {
        let events = rises(&["a", "b"]);
        let now = Timestamp::from_ms(9 * Grain::D1.length_ms());
        let kept = Kept::new(Kind::Counter, std::time::Duration::from_hours(24 * 400), now);
        let longer: Vec<Rise> = events.iter().filter(|rise| rise.grain != Grain::S5).cloned().collect();
        let keys = [(1, Key::from("a")), (2, Key::from("b"))];
        let found = compare(&events, &keys, &stored(&longer, &keys), ALL, &kept).expect("fine");
        assert_eq!(found.count, 0, "{found:?}");
        assert!(compare(&events, &keys, &stored(&longer, &keys), ALL, &all()).expect("fine").count > 0);
    }
}
