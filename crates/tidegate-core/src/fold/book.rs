//! The windows that can still be joined.
//!
//! Per subscriber and key there is at most one: it gathers, or it is a delivery in a lane that has not begun to leave. A
//! store asks a [`super::Draft`] of the book while its transaction is open and lets the book take over what the draft
//! decided ([`Book::apply`]) when it is on disk: nothing that memory knows changes before that. A store that shares its
//! windows with other processes fills a book for each transaction with the rows it has locked.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hint::black_box;
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};

use super::Appending;
use super::draft::Decided;
use super::spread::Spread;
use super::window::{Stage, Window};
use crate::id::{DeliveryNo, Lane, ProjectNo, Seq, SubscriberNo, WindowNo};
use crate::time::Timestamp;

/// Where a window stands in the book: its subscriber and key.
pub type Slot = (SubscriberNo, u128);

/// A slot that takes no more memory in a map than it must.
pub(super) type Packed = (SubscriberNo, u64, u64);

pub(super) fn packed((subscriber, key): Slot) -> Packed {
    (subscriber, key as u64, (key >> 64) as u64)
}

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
    /// It goes by itself: it may end a window, but joins none.
    pub passes: bool,
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
    /// Where in `windows` the one of a slot stands. Every arrival looks here, in no order that memory likes, so what is
    /// looked through is small and the windows themselves lie elsewhere.
    places: HashMap<Packed, u32, Spread>,
    windows: Vec<Option<Window>>,
    /// Places in `windows` where none stands.
    free: Vec<u32>,
    /// Those that gather, by when they close.
    pub(super) due: BTreeSet<(Timestamp, WindowNo, Slot)>,
    /// All of them by project and age, for the limit.
    pub(super) oldest: BTreeMap<ProjectNo, BTreeMap<WindowNo, Slot>>,
    /// How many more a project has that are not in here.
    pub(super) elsewhere: BTreeMap<ProjectNo, usize>,
    spare: Spare,
}

/// The memory of what was decided last, for what is decided next.
#[derive(Debug, Default)]
struct Spare(Mutex<Decided>);

impl Clone for Spare {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// More than a busy commit touches is not kept for the next one.
const SPARE_WINDOWS_MAX: usize = 8_192;

impl Book {
    /// Puts a window in its slot, as a store does with what it finds.
    pub fn insert(&mut self, window: Window) {
        let slot = (window.subscriber, window.key);
        self.remove(slot);
        if window.stage == Stage::Gathering {
            self.due.insert((window.due_at, window.no, slot));
        }
        self.oldest.entry(window.project).or_default().insert(window.no, slot);
        let place = self.free.pop().unwrap_or_else(|| {
            self.windows.push(None);
            u32::try_from(self.windows.len() - 1).expect("there is not memory for so many windows")
        });
        self.windows[place as usize] = Some(window);
        self.places.insert(packed(slot), place);
    }

    /// A project has so many more windows that can be joined: they count, but this book can not close them.
    pub fn count_elsewhere(&mut self, project: ProjectNo, windows: usize) {
        self.elsewhere.insert(project, windows);
    }

    fn remove(&mut self, slot: Slot) {
        let Some(place) = self.places.remove(&packed(slot)) else { return };
        self.free.push(place);
        let Some(window) = self.windows[place as usize].take() else { return };
        self.due.remove(&(window.due_at, window.no, slot));
        if let Some(oldest) = self.oldest.get_mut(&window.project) {
            oldest.remove(&window.no);
        }
    }

    /// The window in a slot.
    pub fn get(&self, slot: Slot) -> Option<&Window> {
        self.found(slot).map(|(_, window)| window)
    }

    /// The same with its place.
    pub(super) fn found(&self, slot: Slot) -> Option<(u32, &Window)> {
        let place = *self.places.get(&packed(slot))?;
        Some((place, self.windows[place as usize].as_ref()?))
    }

    /// Brings the windows of these slots near, and says how many there are. Looked up one by one, between other work, memory
    /// would be waited for each time; here it is asked for many of them at once, and so nothing else stands in these loops.
    pub(super) fn look_ahead(&self, slots: &[Slot]) -> usize {
        let places: Vec<u32> =
            slots.iter().filter_map(|slot| self.places.get(&packed(*slot)).copied()).collect();
        for window in places.iter().filter_map(|place| self.windows[*place as usize].as_ref()) {
            // From its beginning to its end.
            black_box((window.no, window.bytes, window.count, window.stage));
        }
        places.len()
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
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
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
    pub fn apply(&mut self, mut decided: Decided) {
        for touched in decided.touched_windows() {
            let window = &touched.window;
            if touched.known.is_some_and(|place| self.grow(place, window)) {
                continue;
            }
            let slot = (window.subscriber, window.key);
            if window.takes_more() {
                self.insert(window.clone());
            } else if self.get(slot).is_some_and(|known| known.no == window.no) {
                self.remove(slot);
            }
        }
        decided.clear();
        if decided.room() <= SPARE_WINDOWS_MAX {
            *self.spare.0.lock().unwrap_or_else(PoisonError::into_inner) = decided;
        }
    }

    /// A window that stands at a place has more members and is as it was otherwise: what most arrivals do. Says whether that
    /// is all.
    fn grow(&mut self, place: u32, window: &Window) -> bool {
        let Some(known) = self.windows.get_mut(place as usize).and_then(Option::as_mut) else { return false };
        // No two windows ever have the same number: if this one stands there, nobody has moved it since.
        let is_as_before = (known.no, known.due_at, known.stage) == (window.no, window.due_at, window.stage);
        if is_as_before {
            known.count = window.count;
            known.bytes = window.bytes;
            known.first = window.first;
            known.last = window.last;
        }
        is_as_before
    }

    /// Nothing is decided yet, in memory that was used before.
    pub(super) fn nothing_decided(&self) -> Decided {
        std::mem::take(&mut *self.spare.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
