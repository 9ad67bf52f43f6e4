//! The bodies of events that joined a window just now.
//!
//! A busy fold closes its windows while their events have hardly been written: what it sends would be read back at once.
//! So the last few megabytes of what joined are kept, of windows whose members follow each other closely; what gathers for
//! long is read from the file when its time comes.
//!
//! Small bodies are copied together page by page. Kept as they came, each of them would be a piece of memory that is given back
//! long after its neighbours, cold, and read from all over the place when it is sent.
//!
//! Promises: what is found here is what the file holds. It is only added to after a commit, and forgotten when retention
//! removes events.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use tidegate_core::fold::Member;
use tidegate_core::id::{Seq, WindowNo};

use super::windows::{Extent, NUMBERS_PER_MEMBER_MAX};

/// Bytes of bodies that are kept.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// What is added for each event, to be found by.
const ENTRY_BYTES: usize = size_of::<Joined<Bytes>>();

/// Bytes that are copied together.
const PAGE_BYTES: usize = 64 * 1024;
/// A body of more bytes is kept as it came.
const COPIED_BYTES_MAX: usize = PAGE_BYTES / 8;

/// An event that joined a window, and stands in its row for it.
#[derive(Debug)]
pub(super) struct Joined<B> {
    event: Seq,
    window: WindowNo,
    body: B,
}

impl<'a> Joined<&'a Bytes> {
    /// Worth keeping: the window's last event came just before, or this is its first.
    pub(super) fn closely(member: &Member, body: &'a Bytes) -> Option<Self> {
        let is_close = member.prev.is_none_or(|prev| member.event - prev <= NUMBERS_PER_MEMBER_MAX);
        is_close.then_some(Self { event: member.event, window: member.window, body })
    }
}

impl Joined<Bytes> {
    fn bytes(&self) -> usize {
        self.body.len() + ENTRY_BYTES
    }
}

/// What joined last, in the order of the events' numbers.
#[derive(Debug, Default)]
pub(super) struct Recent {
    joined: VecDeque<Joined<Bytes>>,
    bytes: usize,
    /// What is left of the page that is being filled.
    page: BytesMut,
}

impl Recent {
    /// What would be kept of these, once they are on disk.
    pub(super) fn copies(&mut self, joined: Vec<Joined<&Bytes>>) -> Vec<Joined<Bytes>> {
        let copied = |Joined { event, window, body }| Joined { event, window, body: self.copy(body) };
        joined.into_iter().map(copied).collect()
    }

    fn copy(&mut self, body: &Bytes) -> Bytes {
        if body.len() > COPIED_BYTES_MAX {
            return body.clone();
        }
        if self.page.capacity() < body.len() {
            self.page = BytesMut::with_capacity(PAGE_BYTES);
        }
        self.page.extend_from_slice(body);
        self.page.split().freeze()
    }

    /// These are on disk.
    pub(super) fn add(&mut self, joined: Vec<Joined<Bytes>>) {
        self.bytes += joined.iter().map(Joined::bytes).sum::<usize>();
        self.joined.extend(joined);
        while self.bytes > BYTES_MAX
            && let Some(oldest) = self.joined.pop_front()
        {
            self.bytes -= oldest.bytes();
        }
    }

    /// Some events may be gone from the file.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// The bodies of a window's members in order, if all of them are here.
    pub(super) fn bodies(&self, extent: &Extent) -> Option<Vec<Bytes>> {
        let (first, last) = (extent.first?, extent.last?);
        let from = self.joined.binary_search_by_key(&first, |joined| joined.event).ok()?;
        let members = self.joined.range(from..).take_while(|joined| joined.event <= last);
        let mut bodies = Vec::with_capacity(extent.count);
        bodies.extend(members.filter(|joined| joined.window == extent.no).map(|joined| joined.body.clone()));
        (bodies.len() == extent.count).then_some(bodies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(event: Seq, window: WindowNo, prev: Option<Seq>) -> Member {
        Member { event, window, prev, bytes: 3 }
    }

    fn extent(no: WindowNo, count: usize, first: Seq, last: Seq) -> Extent {
        Extent { no, count, bytes: 3 * count, first: Some(first), last: Some(last) }
    }

    /// These join, each with a body of its number, so many times.
    fn add<const N: usize>(recent: &mut Recent, joined: [(Seq, WindowNo, usize); N]) {
        let bodies = joined.map(|(event, _, size)| Bytes::from(vec![event as u8; size]));
        let joined = joined.iter().zip(&bodies).map(|((event, window, _), body)| {
            Joined::closely(&member(*event, *window, Some(event - 1)), body).unwrap()
        });
        let copies = recent.copies(joined.collect());
        recent.add(copies);
    }

    #[test]
    fn a_window_is_found_when_all_its_members_are_here() {
        let mut recent = Recent::default();
        add(&mut recent, [(3, 1, 3), (4, 2, 3), (5, 1, 3)]);
        add(&mut recent, [(9, 1, 3)]);
        let bodies: Vec<Bytes> = [3, 5, 9].map(|event| Bytes::from(vec![event; 3])).into();
        assert_eq!(recent.bodies(&extent(1, 3, 3, 9)), Some(bodies));
        assert_eq!(recent.bodies(&extent(2, 1, 4, 4)).map(|bodies| bodies.len()), Some(1));
        for missing in [extent(1, 4, 3, 9), extent(1, 4, 2, 9), extent(3, 1, 4, 4)] {
            assert_eq!(recent.bodies(&missing), None, "{}", missing.no);
        }
        recent.forget();
        assert_eq!(recent.bodies(&extent(2, 1, 4, 4)), None);
    }

    #[test]
    fn the_oldest_make_room() {
        let mut recent = Recent::default();
        let half = BYTES_MAX / 2 - ENTRY_BYTES;
        add(&mut recent, [(1, 1, half), (2, 2, half)]);
        assert!(recent.bodies(&extent(1, 1, 1, 1)).is_some());
        add(&mut recent, [(3, 3, 1)]);
        assert!(recent.bodies(&extent(1, 1, 1, 1)).is_none());
        assert!(recent.bodies(&extent(2, 1, 2, 2)).is_some());
        add(&mut recent, [(4, 4, BYTES_MAX)]);
        assert!(recent.joined.is_empty() && recent.bytes == 0, "one that has no room is not kept");
    }

    #[test]
    fn bodies_of_any_size_come_back_as_they_were() {
        let mut recent = Recent::default();
        for event in 1..=200 {
            let size = (event as usize * 137) % (COPIED_BYTES_MAX + 500);
            add(&mut recent, [(event, 1, size)]);
        }
        let bodies = recent.bodies(&extent(1, 200, 1, 200)).unwrap();
        for (event, body) in (1..).zip(bodies) {
            assert_eq!(body, vec![event as u8; (event * 137) % (COPIED_BYTES_MAX + 500)], "{event}");
        }
    }

    #[test]
    fn what_comes_rarely_is_not_kept() {
        let body = Bytes::from_static(b"abc");
        assert!(Joined::closely(&member(100, 1, Some(90)), &body).is_none());
        assert!(Joined::closely(&member(100, 1, None), &body).is_some());
    }
}
