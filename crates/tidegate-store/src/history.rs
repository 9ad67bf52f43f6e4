//! What the store is asked about objects: what is known of one, and what happened to them.
//!
//! Changes are kept packed, those of one flush together. A [`Reading`] goes through such rows, the one with the latest
//! change first, and picks what is asked for. It looks through a bounded number of them and then says where to go on, so
//! a page may have few changes, or none, and still be followed by others.

use std::cmp::Reverse;

use tidegate_core::id::MetricNo;
use tidegate_core::limits::{HISTORY_CHANGES_READ_MAX, HISTORY_ROWS_READ_MAX};
use tidegate_core::observe::history;
use tidegate_core::observe::page::Torn;
use tidegate_core::observe::state;
use tidegate_core::time::Timestamp;

/// Something that an event told, and the event's id for as long as it is kept.
pub type Told<T> = (T, Option<String>);

/// Which changes of objects.
#[derive(Clone, Debug, Default)]
pub struct ChangeFilter {
    /// Of which state.
    pub state: MetricNo,
    /// Only of this object.
    pub object: Option<String>,
    /// By the time of their events, from here.
    pub from: Option<Timestamp>,
    /// And before here.
    pub to: Option<Timestamp>,
    /// Only those that came too late, or only those that did not.
    pub is_late: Option<bool>,
    /// Those behind this place.
    pub after: Option<ChangePlace>,
    /// How many at most.
    pub limit: usize,
}

/// A place in the history of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangePlace {
    /// The time of the row's latest change, in milliseconds.
    pub until: i64,
    /// The row.
    pub no: i64,
    /// Behind so many of its changes.
    pub behind: usize,
}

/// Some changes of objects. Those that were counted together stand together, the latest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// They, each with its event.
    pub items: Vec<Told<state::Change>>,
    /// Where to go on; absent at the end.
    pub next: Option<ChangePlace>,
}

impl ChangeFilter {
    /// Rows whose latest change is older have nothing that is asked for.
    pub(crate) fn until_min(&self) -> i64 {
        self.from.map_or(i64::MIN, Timestamp::as_ms)
    }

    fn admits(&self, change: &state::Change) -> bool {
        self.object.as_deref().is_none_or(|object| *change.object == *object)
            && self.from.is_none_or(|from| change.time >= from)
            && self.to.is_none_or(|to| change.time < to)
            && self.is_late.is_none_or(|is_late| change.is_late == is_late)
    }
}

/// Reads rows until it has enough, or has looked through enough of them.
pub(crate) struct Reading<'f> {
    filter: &'f ChangeFilter,
    rows: usize,
    looked: usize,
    next: Option<ChangePlace>,
    items: Vec<state::Change>,
}

impl<'f> Reading<'f> {
    pub(crate) fn new(filter: &'f ChangeFilter) -> Self {
        Self { filter, rows: 0, looked: 0, next: None, items: Vec::new() }
    }

    /// The first row that is to be read: its time and number; those that follow have lower ones.
    pub(crate) fn begin(&self) -> (i64, i64) {
        self.filter.after.map_or((i64::MAX, i64::MAX), |place| (place.until, place.no))
    }

    /// Reads one row; says whether the next one is wanted.
    pub(crate) fn row(&mut self, until: i64, no: i64, packed: &[u8]) -> Result<bool, Torn> {
        let mut changes = history::unpack(self.filter.state, packed)?;
        changes.sort_by_key(|change| Reverse((change.time, change.event)));
        let many = changes.len();
        let behind = self.filter.after.filter(|place| place.no == no).map_or(0, |place| place.behind);
        for (place, change) in changes.into_iter().enumerate().skip(behind) {
            if !self.filter.admits(&change) {
                continue;
            }
            if self.items.len() == self.filter.limit {
                self.next = Some(ChangePlace { until, no, behind: place });
                return Ok(false);
            }
            self.items.push(change);
        }
        self.rows += 1;
        self.looked += many;
        let is_enough = self.rows >= HISTORY_ROWS_READ_MAX || self.looked >= HISTORY_CHANGES_READ_MAX;
        self.next = is_enough.then_some(ChangePlace { until, no, behind: many });
        Ok(!is_enough)
    }

    /// What was found, and where to go on.
    pub(crate) fn end(self) -> (Vec<state::Change>, Option<ChangePlace>) {
        (self.items, self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(object: &str, time: i64) -> Vec<u8> {
        let (object, from, to) = (object.into(), None, "NEW".into());
        let time = Timestamp::from_ms(time);
        history::pack(&[state::Change { state: 1, object, from, to, time, event: 5, is_late: false }])
    }

    #[test]
    fn a_page_ends_where_enough_was_looked_through() {
        let mut filter =
            ChangeFilter { state: 1, object: Some("rare".to_owned()), limit: 5, ..Default::default() };
        let row = |no: i64| packed(if no == 1 { "rare" } else { "common" }, no);
        let (mut found, mut pages) = (0, 0);
        let last = 2 * HISTORY_ROWS_READ_MAX as i64 + 3;
        loop {
            let mut reading = Reading::new(&filter);
            let (_, begin) = reading.begin();
            let mut looked = 0;
            for no in (1..=begin.min(last)).rev() {
                looked += 1;
                if !reading.row(no, no, &row(no)).unwrap() {
                    break;
                }
            }
            assert!(looked <= HISTORY_ROWS_READ_MAX);
            let (items, next) = reading.end();
            (found, pages) = (found + items.len(), pages + 1);
            filter.after = next;
            if next.is_none() {
                break;
            }
        }
        assert_eq!((found, pages), (1, 3));
    }
}
