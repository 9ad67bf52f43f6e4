//! What an arrival does to the windows of a book, and what else one transaction decides about them.
//!
//! The window's number is the generation of its key: what comes after a window was sealed opens the next one, so no
//! arrival can be taken for one that was served already.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::book::{Arrival, Book, Closing, Member, Packed, Slot, packed};
use super::spread::Spread;
use super::window::{ClosedBy, Stage, Window};
use crate::id::{DeliveryNo, ProjectNo, SubscriberNo, WindowNo};
use crate::time::Timestamp;

/// What one transaction decides, on top of a book that stays as it is.
#[derive(Debug)]
pub struct Draft<'a> {
    book: &'a Book,
    decided: Decided,
    now: Timestamp,
    /// How many windows a project may have.
    limit: usize,
    /// Per project: up to this window of the book, all have gone from their slots.
    passed: BTreeMap<ProjectNo, WindowNo>,
    /// By how many percent congestion lengthens quiet periods.
    stretch: &'a BTreeMap<SubscriberNo, u32>,
}

/// What a transaction decided.
#[derive(Debug, Default)]
pub struct Decided {
    /// When.
    pub at: Timestamp,
    /// Where in `windows` the one stands that is in a slot now, if one is. Looked up for every arrival, never gone through.
    touched: HashMap<Packed, Option<u32>, Spread>,
    /// More or fewer windows per project.
    grown: BTreeMap<ProjectNo, isize>,
    /// What became of each window that was touched, opened ones included; of one slot, the older first.
    windows: Vec<Touched>,
    /// Events that joined, in order, but for those that were taken out.
    pub members: Vec<Member>,
    /// Places of windows that closed or ended, in order.
    closed: Vec<usize>,
}

/// A window as it stands now.
#[derive(Debug)]
pub(super) struct Touched {
    pub(super) window: Window,
    /// Where it stands in the book, if it does.
    pub(super) known: Option<u32>,
    /// The text of its key, if it opened just now.
    opened: Option<Arc<str>>,
}

impl Decided {
    /// Nothing was decided.
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Every window that was touched, as it is now.
    pub fn windows(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter().map(|touched| &touched.window)
    }

    /// Those that opened, in the order of their numbers, with the texts of their keys.
    pub fn opened(&self) -> impl Iterator<Item = (&Window, &str)> {
        self.windows.iter().filter_map(|touched| Some((&touched.window, touched.opened.as_deref()?)))
    }

    /// Those that were there before.
    pub fn changed(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter().filter(|touched| touched.opened.is_none()).map(|touched| &touched.window)
    }

    /// Those that closed or ended, in order.
    pub fn closed(&self) -> impl Iterator<Item = &Window> {
        self.closed.iter().map(|place| &self.windows[*place].window)
    }

    pub(super) fn touched_windows(&self) -> &[Touched] {
        &self.windows
    }

    /// Nothing was decided, and the memory can be used again.
    pub(super) fn clear(&mut self) {
        self.touched.clear();
        self.grown.clear();
        self.windows.clear();
        self.members.clear();
        self.closed.clear();
    }

    /// How many windows there is memory for.
    pub(super) fn room(&self) -> usize {
        self.windows.capacity().max(self.members.capacity())
    }
}

impl<'a> Draft<'a> {
    /// A draft at this instant.
    pub fn new(
        book: &'a Book,
        now: Timestamp,
        limit: usize,
        stretch: &'a BTreeMap<SubscriberNo, u32>,
    ) -> Self {
        let decided = Decided { at: now, ..book.nothing_decided() };
        Self { book, decided, now, limit, passed: BTreeMap::new(), stretch }
    }

    /// Arrivals in these slots may come: the windows they join are brought near, and room is made for all of them at once.
    pub fn expect(&mut self, slots: &[Slot]) {
        let windows = self.book.look_ahead(slots).min(self.book.len());
        self.decided.touched.reserve(windows);
        self.decided.windows.reserve(windows);
    }

    /// What was decided, to be written and then applied.
    pub fn decided(self) -> Decided {
        self.decided
    }

    /// The window in a slot, as things are in this draft.
    pub fn get(&self, slot: Slot) -> Option<&Window> {
        match self.decided.touched.get(&packed(slot)) {
            Some(place) => place.map(|place| self.at(place as usize)),
            None => self.book.get(slot),
        }
    }

    /// The same to be changed: its place.
    fn hold(&mut self, slot: Slot) -> Option<usize> {
        match self.decided.touched.entry(packed(slot)) {
            Entry::Occupied(touched) => touched.get().map(|place| place as usize),
            Entry::Vacant(untouched) => {
                let (known, window) = self.book.found(slot)?;
                let place = self.decided.windows.len();
                self.decided.windows.push(Touched {
                    window: window.clone(),
                    known: Some(known),
                    opened: None,
                });
                untouched.insert(Some(place_no(place)));
                Some(place)
            }
        }
    }

    fn at(&self, place: usize) -> &Window {
        &self.decided.windows[place].window
    }

    /// An event comes. Answers the windows that become deliveries because of it.
    pub fn arrive(&mut self, arrival: &Arrival<'_>, draw: &mut dyn FnMut() -> i64) -> Vec<Closing> {
        let mut closings = Vec::new();
        let slot = arrival.slot();
        if arrival.passes {
            self.pass(arrival);
            return closings;
        }
        let mut held = self.hold(slot);
        // What comes after a window's time is not of it, whether somebody has closed it by then or not.
        if let Some(late) = held.filter(|place| self.at(*place).is_over(self.now)) {
            closings.extend(self.close_at(late, self.at(late).due_by(), draw));
            held = self.hold(slot);
        }
        if let Some(place) = held.filter(|place| is_cancelled(self.at(*place), arrival)) {
            self.join(place, arrival);
            self.end_at(place, ClosedBy::CancelOn);
            return closings;
        }
        let place = match held.filter(|place| self.at(*place).fits(arrival.bytes)) {
            Some(place) => place,
            None => {
                closings.extend(held.and_then(|full| self.close_at(full, ClosedBy::MaxBytes, draw)));
                self.make_room(arrival.project, &mut closings, draw);
                if let Some(ahead) = self.lead(arrival, draw) {
                    closings.push(ahead);
                    return closings;
                }
                self.open_in_slot(arrival, draw())
            }
        };
        if let Some(why) = self.join(place, arrival) {
            closings.extend(self.close_at(place, why, draw));
        }
        closings
    }

    /// An event that goes by itself ends what gathers in its slot, if it is a recovery. What was over before it came stays as
    /// it is, whether somebody has closed it by then or not.
    fn pass(&mut self, arrival: &Arrival<'_>) {
        let is_ended = |window: &Window| !window.is_over(self.now) && is_cancelled(window, arrival);
        if self.get(arrival.slot()).is_some_and(is_ended) {
            self.end(arrival.slot(), ClosedBy::CancelOn);
        }
    }

    /// The event that joined last, to be kept elsewhere than among the members.
    pub fn take_member(&mut self) -> Option<Member> {
        self.decided.members.pop()
    }

    /// Windows whose time has come, `limit` of them at most, in the order of their times.
    pub fn close_due(&mut self, limit: usize, draw: &mut dyn FnMut() -> i64) -> Vec<Closing> {
        let book = self.book;
        let due = book.due.iter().take_while(|(at, ..)| *at <= self.now).take(limit);
        let slots: Vec<Slot> = due.map(|(.., slot)| *slot).collect();
        let close = |slot: Slot| {
            let place = self.hold(slot)?;
            self.close_at(place, self.at(place).due_by(), draw)
        };
        slots.into_iter().filter_map(close).collect()
    }

    /// Closes a window that gathers, or seals one that waits. A window nothing joined ends without a delivery.
    pub fn close(
        &mut self,
        window: &Window,
        why: ClosedBy,
        draw: &mut dyn FnMut() -> i64,
    ) -> Option<Closing> {
        let place = self.hold((window.subscriber, window.key))?;
        if self.at(place).no == window.no { self.close_at(place, why, draw) } else { None }
    }

    fn close_at(&mut self, place: usize, why: ClosedBy, draw: &mut dyn FnMut() -> i64) -> Option<Closing> {
        let now = self.now;
        let window = &mut self.decided.windows[place].window;
        if window.count == 0 {
            self.end_at(place, why);
            return None;
        }
        let was_gathering = window.stage == Stage::Gathering;
        if was_gathering {
            window.closed = Some((now, why));
            window.delivery = Some(draw());
            self.decided.closed.push(place);
        }
        // Only a lane makes a delivery wait for others of its kind, and only there more may join it; but one that closed
        // to make room makes room.
        let makes_room = matches!(why, ClosedBy::MaxBytes | ClosedBy::MaxEvents | ClosedBy::Limit);
        let takes_more = was_gathering && window.lane.is_some() && !makes_room;
        window.stage = if takes_more { Stage::Ready } else { Stage::Sealed };
        let closing = was_gathering.then(|| closing(window)).flatten();
        if !takes_more {
            self.vacate(place);
        }
        closing
    }

    /// A delivery begins to leave: nothing joins its window any more.
    pub fn seal(&mut self, project: ProjectNo, no: WindowNo) {
        let Some(slot) = self.book.oldest.get(&project).and_then(|windows| windows.get(&no)).copied() else {
            return;
        };
        if self.get(slot).is_some_and(|window| window.no == no && window.stage == Stage::Ready)
            && let Some(place) = self.hold(slot)
        {
            self.decided.windows[place].window.stage = Stage::Sealed;
            self.vacate(place);
        }
    }

    /// A window that gathers ends without a delivery.
    pub fn end(&mut self, slot: Slot, why: ClosedBy) {
        if let Some(place) = self.hold(slot) {
            self.end_at(place, why);
        }
    }

    /// A window that can be joined is not sent, because somebody asked. One that is a delivery already, which waits for its
    /// turn, is answered: that ends as well.
    pub fn cancel(&mut self, slot: Slot) -> Option<&Window> {
        let place = self.hold(slot)?;
        self.end_at(place, ClosedBy::Cancelled);
        let window = &mut self.decided.windows[place].window;
        if window.stage != Stage::Ready {
            return None;
        }
        window.stage = Stage::Sealed;
        window.closed = Some((self.now, ClosedBy::Cancelled));
        self.vacate(place);
        Some(self.at(place))
    }

    fn end_at(&mut self, place: usize, why: ClosedBy) {
        let window = &mut self.decided.windows[place].window;
        if window.stage == Stage::Gathering {
            window.stage = Stage::Ended;
            window.closed = Some((self.now, why));
            self.decided.closed.push(place);
            self.vacate(place);
        }
    }

    /// A window that takes nothing more leaves its slot.
    fn vacate(&mut self, place: usize) {
        let Window { project, subscriber, key, .. } = *self.at(place);
        *self.decided.grown.entry(project).or_default() -= 1;
        self.decided.touched.insert(packed((subscriber, key)), None);
    }

    /// A subscriber is gone: nothing joins its windows any more, and what gathers is not sent.
    pub fn leave(&mut self, project: ProjectNo, subscriber: SubscriberNo) {
        let book = self.book;
        for window in book.of_project(project).filter(|window| window.subscriber == subscriber) {
            self.end((subscriber, window.key), ClosedBy::Deleted);
            self.seal(project, window.no);
        }
    }

    /// The book it is on top of.
    pub fn book(&self) -> &Book {
        self.book
    }

    /// How many events have joined in this draft.
    pub fn joined(&self) -> usize {
        self.decided.members.len()
    }

    /// Whether the time of a window of the book has come.
    pub fn is_due(&self) -> bool {
        self.book.next_due().is_some_and(|at| at <= self.now)
    }

    /// Whether an event has joined the window in its slot in this draft.
    pub fn has_joined(&self, arrival: &Arrival<'_>) -> bool {
        let window = self.get(arrival.slot()).map(|window| window.no);
        let mut members = self.decided.members.iter();
        members.any(|member| member.event == arrival.event && Some(member.window) == window)
    }

    /// An event goes at once, in the form of a fold, with whatever gathers in its slot; unless it is there already, it
    /// joins first. Answers the windows that become deliveries, and the delivery that carries it.
    pub fn send_now(
        &mut self,
        arrival: &Arrival<'_>,
        is_there: bool,
        draw: &mut dyn FnMut() -> i64,
    ) -> (Vec<Closing>, Option<DeliveryNo>) {
        let mut closings = if is_there { Vec::new() } else { self.arrive(arrival, draw) };
        let is_open = |window: &Window| window.stage == Stage::Gathering;
        if self.get(arrival.slot()).is_some_and(is_open) {
            let place = self.hold(arrival.slot());
            closings.extend(place.and_then(|place| self.close_at(place, ClosedBy::Flush, draw)));
            let carrier = closings.last().map(|closing| closing.delivery);
            return (closings, carrier);
        }
        let carrier = match self.decided.members.last() {
            Some(member) if !is_there => {
                let mut windows = self.decided.windows().filter(|window| window.no == member.window);
                windows.next().and_then(|window| window.delivery)
            }
            _ => self.get(arrival.slot()).and_then(|window| window.delivery),
        };
        (closings, carrier)
    }

    /// Opens a window that is in no slot yet.
    fn open(&mut self, arrival: &Arrival<'_>, no: WindowNo) -> usize {
        let (subscriber, key) = arrival.slot();
        let mut window = Window {
            no,
            project: arrival.project,
            subscriber,
            key,
            lane: arrival.lane,
            replay: arrival.replay,
            terms: Arc::clone(&arrival.appending.terms),
            opened_at: self.now,
            due_at: self.now,
            count: 0,
            bytes: 0,
            first: None,
            last: None,
            stage: Stage::Gathering,
            closed: None,
            delivery: None,
        };
        window.due_at = window.deadline(self.now, self.stretch_of(subscriber)).0;
        let opened = Some(Arc::from(&*arrival.appending.key.text));
        self.decided.windows.push(Touched { window, known: None, opened });
        self.decided.windows.len() - 1
    }

    fn open_in_slot(&mut self, arrival: &Arrival<'_>, no: WindowNo) -> usize {
        let place = self.open(arrival, no);
        self.decided.touched.insert(packed(arrival.slot()), Some(place_no(place)));
        *self.decided.grown.entry(arrival.project).or_default() += 1;
        place
    }

    /// Sends the first event ahead, alone, and opens the window that gathers the rest.
    fn lead(&mut self, arrival: &Arrival<'_>, draw: &mut dyn FnMut() -> i64) -> Option<Closing> {
        if !arrival.appending.terms.leading || arrival.replay {
            return None;
        }
        let place = self.open(arrival, draw());
        let now = self.now;
        let ahead = &mut self.decided.windows[place].window;
        ahead.add(arrival.event, arrival.bytes, now, 0);
        ahead.stage = Stage::Sealed;
        ahead.closed = Some((now, ClosedBy::Leading));
        ahead.delivery = Some(draw());
        let member = Member { event: arrival.event, window: ahead.no, prev: None, bytes: arrival.bytes };
        let closing = closing(ahead);
        self.decided.closed.push(place);
        self.decided.members.push(member);
        self.open_in_slot(arrival, draw());
        closing
    }

    /// An event joins a window. Says why that is full now, if it is.
    fn join(&mut self, place: usize, arrival: &Arrival<'_>) -> Option<ClosedBy> {
        let (now, stretch) = (self.now, self.stretch_of(arrival.subscriber));
        let window = &mut self.decided.windows[place].window;
        let (no, prev) = (window.no, window.last);
        window.add(arrival.event, arrival.bytes, now, stretch);
        let full = window.is_full();
        let member = Member { event: arrival.event, window: no, prev, bytes: arrival.bytes };
        self.decided.members.push(member);
        full
    }

    /// The oldest windows of a project that has too many close early.
    fn make_room(&mut self, project: ProjectNo, closings: &mut Vec<Closing>, draw: &mut dyn FnMut() -> i64) {
        while self.count(project) >= self.limit {
            let Some(window) = self.oldest(project) else { return };
            closings.extend(self.close(&window, ClosedBy::Limit, draw));
        }
    }

    /// How many windows a project has, as things are in this draft.
    fn count(&self, project: ProjectNo) -> usize {
        let known = self.book.oldest.get(&project).map_or(0, BTreeMap::len);
        let elsewhere = self.book.elsewhere.get(&project).copied().unwrap_or(0);
        let grown = self.decided.grown.get(&project).copied().unwrap_or(0);
        (known + elsewhere).saturating_add_signed(grown)
    }

    /// The oldest that can be joined, those that opened in this draft included.
    fn oldest(&mut self, project: ProjectNo) -> Option<Window> {
        let book = self.book;
        let after = self.passed.get(&project).map_or(Bound::Unbounded, |passed| Bound::Excluded(*passed));
        let known = book.oldest.get(&project).into_iter();
        for (no, slot) in known.flat_map(|windows| windows.range((after, Bound::Unbounded))) {
            if let Some(window) = self.get(*slot).filter(|window| window.no == *no) {
                return Some(window.clone());
            }
            self.passed.insert(project, *no);
        }
        let mut opened = self.decided.opened().map(|(window, _)| window);
        opened.find(|window| window.project == project && window.takes_more()).cloned()
    }

    fn stretch_of(&self, subscriber: SubscriberNo) -> u32 {
        self.stretch.get(&subscriber).copied().unwrap_or(0)
    }
}

/// A place as it is kept.
fn place_no(place: usize) -> u32 {
    u32::try_from(place).expect("no transaction touches so many windows")
}

/// A recovery ends what nobody was told of yet, by the condition that the window was opened with.
fn is_cancelled(window: &Window, arrival: &Arrival<'_>) -> bool {
    window.terms.cancel_on.is_met(&arrival.appending.cancels)
        && !arrival.replay
        && window.stage == Stage::Gathering
        && !window.terms.leading
}

fn closing(window: &Window) -> Option<Closing> {
    let Window { no, project, subscriber, lane, replay, .. } = *window;
    let (delivery, first) = (window.delivery?, window.first?);
    Some(Closing { window: no, delivery, project, subscriber, first, lane, replay })
}
