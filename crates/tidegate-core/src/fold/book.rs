//! The windows that can still be joined.
//!
//! Per subscriber and key there is at most one: it gathers, or it is a delivery in a lane that has not begun to leave. A
//! store asks a [`super::Draft`] of the book while its transaction is open and lets the book take over what the draft
//! decided ([`Book::apply`]) when it is on disk: nothing that memory knows changes before that. A store that shares its
//! windows with other processes fills a book for each transaction with the rows it has locked.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use super::Appending;
use super::draft::Decided;
use super::window::{Stage, Window};
use crate::id::{DeliveryNo, Lane, ProjectNo, Seq, SubscriberNo, WindowNo};
use crate::time::Timestamp;

/// Where a window stands in the book: its subscriber and key.
pub type Slot = (SubscriberNo, u128);

/// An event that a subscriber's fold lets in.
#[derive(Clone, Debug)]
pub struct Arrival<'a> {
    /// Whose.
    pub project: ProjectNo,
    /// For whom.
    pub subscriber: SubscriberNo,
    /// Its lane.
    pub lane: Option<Lane>,
    /// Which event.
    pub event: Seq,
    /// How large it is.
    pub bytes: u32,
    /// It is sent again.
    pub replay: bool,
    /// Under which key and on which terms.
    pub appending: &'a Appending,
}

impl Arrival<'_> {
    /// Where it belongs.
    pub fn slot(&self) -> Slot {
        let hash = self.appending.key.hash;
        (self.subscriber, if self.replay { !hash } else { hash })
    }
}

/// An event that joined a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which event.
    pub event: Seq,
    /// Which window.
    pub window: WindowNo,
    /// The one that joined before it.
    pub prev: Option<Seq>,
    /// How large it is.
    pub bytes: u32,
}

/// A window that becomes a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closing {
    /// Which window.
    pub window: WindowNo,
    /// The delivery's number, drawn for it.
    pub delivery: DeliveryNo,
    /// Whose.
    pub project: ProjectNo,
    /// For whom.
    pub subscriber: SubscriberNo,
    /// The first event that joined.
    pub first: Seq,
    /// Its lane.
    pub lane: Option<Lane>,
    /// It is sent again.
    pub replay: bool,
}

/// The windows that can be joined.
#[derive(Clone, Debug, Default)]
pub struct Book {
    pub(super) windows: HashMap<Slot, Window>,
    /// Those that gather, by when they close.
    pub(super) due: BTreeSet<(Timestamp, WindowNo, Slot)>,
    /// All of them by project and age, for the limit.
    pub(super) oldest: BTreeMap<ProjectNo, BTreeMap<WindowNo, Slot>>,
    /// How many more a project has that are not in here.
    pub(super) elsewhere: BTreeMap<ProjectNo, usize>,
}

impl Book {
    /// Puts a window in its slot, as a store does with what it finds.
    pub fn insert(&mut self, window: Window) {
        let slot = (window.subscriber, window.key);
        if let Some(known) = self.windows.get_mut(&slot)
            && (known.no, known.due_at, known.stage) == (window.no, window.due_at, window.stage)
        {
            *known = window;
            return;
        }
        self.remove(slot);
        if window.stage == Stage::Gathering {
            self.due.insert((window.due_at, window.no, slot));
        }
        self.oldest.entry(window.project).or_default().insert(window.no, slot);
        self.windows.insert(slot, window);
    }

    /// A project has so many more windows that can be joined: they count, but this book can not close them.
    pub fn count_elsewhere(&mut self, project: ProjectNo, windows: usize) {
        self.elsewhere.insert(project, windows);
    }

    fn remove(&mut self, slot: Slot) {
        let Some(window) = self.windows.remove(&slot) else { return };
        self.due.remove(&(window.due_at, window.no, slot));
        if let Some(oldest) = self.oldest.get_mut(&window.project) {
            oldest.remove(&window.no);
        }
    }

    /// The window in a slot.
    pub fn get(&self, slot: Slot) -> Option<&Window> {
        self.windows.get(&slot)
    }

    /// When the next window closes by itself.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, ..)| *at)
    }

    /// How many of them gather.
    pub fn gathering(&self) -> usize {
        self.due.len()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.windows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// The windows of a project, oldest first.
    pub fn of_project(&self, project: ProjectNo) -> impl Iterator<Item = &Window> {
        let slots = self.oldest.get(&project).into_iter().flat_map(BTreeMap::values);
        slots.filter_map(|slot| self.get(*slot))
    }

    /// The windows behind one, by project and age.
    pub fn behind(&self, (project, no): (ProjectNo, WindowNo)) -> impl Iterator<Item = &Window> {
        let windows = self.oldest.range(project..).flat_map(move |(of, windows)| {
            let from = if *of == project { Bound::Excluded(no) } else { Bound::Unbounded };
            windows.range((from, Bound::Unbounded))
        });
        windows.filter_map(|(_, slot)| self.get(*slot))
    }

    /// What a draft decided is on disk.
    pub fn apply(&mut self, decided: Decided) {
        for window in decided.into_windows() {
            let slot = (window.subscriber, window.key);
            if window.takes_more() {
                self.insert(window);
            } else if self.get(slot).is_some_and(|known| known.no == window.no) {
                self.remove(slot);
            }
        }
    }
}
