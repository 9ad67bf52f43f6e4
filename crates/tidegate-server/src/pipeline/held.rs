//! Held: events that were just committed, kept until they are counted.
//!
//! It spares the observer from reading back what was in memory a moment ago; nothing else. What it hands out is a
//! [`Slice`] like the store's, and only the mark in the store says what is counted: whatever is forgotten here, or was
//! never held, is read from the store.
//!
//! Promises: what it hands out is everything that this life has committed behind a mark, without a gap, or nothing. It
//! holds a bounded number of bytes.

use std::collections::VecDeque;

use tidegate_core::event::Event;
use tidegate_core::id::{ProjectNo, Seq};
use tidegate_core::limits::HELD_BYTES_MAX;
use tidegate_store::{Committed, Error, EventRow, Group, Slice, Submission, UnitStatus};

/// What an event takes beside its body.
const EVENT_BYTES: usize = 300;

/// What is held.
#[derive(Default)]
pub(super) struct Held {
    events: VecDeque<(ProjectNo, EventRow)>,
    bytes: usize,
    /// What this life has committed behind this event is here, up to the last one that is.
    behind: Seq,
    /// Nothing came after the last one. If something did, these are used up before others are held.
    is_whole: bool,
    /// How often everything was forgotten.
    generation: u64,
}

/// The events that a group brought, taken from it; nothing if they are not known to the last one.
pub(super) fn brought(group: &mut Group, committed: &Committed) -> Option<Vec<(ProjectNo, EventRow)>> {
    let (version, accepted_at) = (group.version, group.now);
    let count: Option<usize> = group.submissions.iter().zip(&committed.submissions).map(count_new).sum();
    if count? != committed.numbers.len() {
        return None;
    }
    let mut numbers = committed.numbers.iter();
    let mut events = Vec::with_capacity(numbers.len());
    for (submission, answer) in std::mem::take(&mut group.submissions).into_iter().zip(&committed.submissions)
    {
        let units = submission.units.into_iter().zip(answer.iter().flatten());
        let new = units.filter(|(_, status)| is_new(status)).flat_map(|(routed, _)| routed.unit.events);
        events.extend(new.zip(&mut numbers).map(|(event, seq)| {
            let Event { id, source, type_name, subject, time, body } = event;
            let row =
                EventRow { seq: *seq, version, accepted_at, time, id, source, type_name, subject, body };
            (submission.project, row)
        }));
    }
    Some(events)
}

fn count_new((submission, answer): (&Submission, &Result<Vec<UnitStatus>, Error>)) -> Option<usize> {
    let units = submission.units.iter().zip(answer.as_ref().ok()?);
    Some(units.filter(|(_, status)| is_new(status)).map(|(routed, _)| routed.unit.events.len()).sum())
}

fn is_new(status: &UnitStatus) -> bool {
    *status == UnitStatus::Accepted
}

impl Held {
    /// Changes whenever everything was forgotten: a mark that was read before may be another life's.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Forgets everything: something may have been committed that was not told, or another life begins.
    pub(super) fn forget(&mut self) {
        *self = Self { generation: self.generation + 1, ..Self::default() };
    }

    /// Holds what was committed, in order, unless that is too much already.
    pub(super) fn push(&mut self, events: Vec<(ProjectNo, EventRow)>) {
        let Some((_, first)) = events.first() else { return };
        if !self.is_whole && self.events.is_empty() {
            (self.behind, self.is_whole) = (first.seq - 1, true);
        }
        self.is_whole &= self.bytes < HELD_BYTES_MAX;
        if self.is_whole {
            self.bytes += events.iter().map(|(_, event)| bytes_of(event)).sum::<usize>();
            self.events.extend(events);
        }
    }

    /// The events behind a mark that was read in a generation; none if they are not all here. What was handed out is not
    /// held any more.
    pub(super) fn take(&mut self, generation: u64, after: Seq, limit: usize) -> Option<Slice> {
        while self.events.front().is_some_and(|(_, event)| event.seq <= after) {
            self.pop();
        }
        if self.generation != generation || self.behind > after || self.events.is_empty() {
            return None;
        }
        let mut slice = Slice { through: after, ..Slice::default() };
        while slice.events.len() < limit {
            let Some((project, event)) = self.pop() else { break };
            (slice.through, slice.at) = (event.seq, Some(event.accepted_at));
            slice.events.push((project, event));
        }
        slice.is_end = self.is_whole && self.events.is_empty();
        // If this slice comes to nothing it is not here any more.
        self.behind = slice.through;
        Some(slice)
    }

    fn pop(&mut self) -> Option<(ProjectNo, EventRow)> {
        let popped = self.events.pop_front();
        self.bytes -= popped.as_ref().map_or(0, |(_, event)| bytes_of(event));
        popped
    }
}

fn bytes_of(event: &EventRow) -> usize {
    event.body.len() + EVENT_BYTES
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidegate_core::time::Timestamp;

    use super::*;

    fn event(seq: Seq, bytes: usize) -> (ProjectNo, EventRow) {
        let row = EventRow {
            seq,
            version: 1,
            accepted_at: Timestamp::from_ms(seq),
            time: Timestamp::from_ms(seq),
            id: seq.to_string(),
            source: "shop".to_owned(),
            type_name: "order.paid".to_owned(),
            subject: None,
            body: Bytes::from(vec![b' '; bytes]),
        };
        (1, row)
    }

    fn taken(held: &mut Held, after: Seq, limit: usize) -> Option<(Vec<Seq>, bool)> {
        let slice = held.take(held.generation(), after, limit)?;
        assert_eq!(Some(slice.through), slice.events.last().map(|(_, event)| event.seq));
        Some((slice.events.iter().map(|(_, event)| event.seq).collect(), slice.is_end))
    }

    #[test]
    fn what_is_behind_a_mark_is_handed_out_once_and_only_without_a_gap() {
        let mut held = Held::default();
        assert_eq!(taken(&mut held, 0, 9), None);
        held.push(vec![event(5, 1), event(7, 1)]);
        held.push(vec![event(8, 1)]);
        assert_eq!(taken(&mut held, 3, 9), None, "4 may have been committed before this began");
        assert_eq!(taken(&mut held, 4, 2), Some((vec![5, 7], false)));
        assert_eq!(taken(&mut held, 4, 2), None, "that slice came to nothing: the store has it");
        assert_eq!(taken(&mut held, 7, 2), Some((vec![8], true)));
        held.push(vec![event(9, 1), event(12, 1)]);
        assert_eq!(taken(&mut held, 10, 2), Some((vec![12], true)), "others counted up to 10");
        assert_eq!(held.bytes, 0);
    }

    #[test]
    fn what_is_too_much_is_read_from_the_store() {
        let mut held = Held::default();
        held.push(vec![event(1, HELD_BYTES_MAX)]);
        held.push(vec![event(2, 1)]);
        assert_eq!(taken(&mut held, 0, 9), Some((vec![1], false)), "there is more, but not here");
        assert_eq!(taken(&mut held, 1, 9), None);
        held.push(vec![event(3, 1)]);
        assert_eq!(taken(&mut held, 1, 9), None, "2 is missing");
        assert_eq!(taken(&mut held, 2, 9), Some((vec![3], true)));
    }

    #[test]
    fn a_mark_of_another_life_gets_nothing() {
        let mut held = Held::default();
        let before = held.generation();
        held.push(vec![event(5, 1)]);
        held.forget();
        held.push(vec![event(6, 1)]);
        assert!(held.take(before, 5, 9).is_none());
        assert_eq!(taken(&mut held, 5, 9), Some((vec![6], true)));
    }
}
