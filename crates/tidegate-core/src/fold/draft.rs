//! What an arrival does to the windows of a book, and what else one transaction decides about them.
//!
//! The window's number is the generation of its key: what comes after a window was sealed opens the next one, so no
//! arrival can be taken for one that was served already.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::book::{Arrival, Book, Closing, Member, Slot};
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
    /// Which window stands in each slot now, if one does.
    pub(super) touched: BTreeMap<Slot, Option<WindowNo>>,
    /// More or fewer windows per project.
    grown: BTreeMap<ProjectNo, isize>,
    /// Windows that opened, with the text of their keys, in order.
    pub opened: Vec<(WindowNo, Arc<str>)>,
    /// What became of each window that was touched, opened ones included.
    pub windows: BTreeMap<WindowNo, Box<Window>>,
    /// Events that joined, in order.
    pub members: Vec<Member>,
    /// Windows that closed or ended, in order.
    pub closed: Vec<WindowNo>,
}

impl Decided {
    /// Nothing was decided.
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
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
        let decided = Decided { at: now, ..Decided::default() };
        Self { book, decided, now, limit, passed: BTreeMap::new(), stretch }
    }

    /// What was decided, to be written and then applied.
    pub fn decided(self) -> Decided {
        self.decided
    }

    /// The window in a slot, as things are in this draft.
    pub fn get(&self, slot: Slot) -> Option<&Window> {
        match self.decided.touched.get(&slot) {
            Some(touched) => touched.and_then(|no| self.decided.windows.get(&no)).map(Box::as_ref),
            None => self.book.get(slot),
        }
    }

    /// The same to be changed; it stays in its slot.
    fn hold(&mut self, slot: Slot) -> Option<&mut Window> {
        match self.decided.touched.get(&slot) {
            Some(touched) => self.decided.windows.get_mut(&(*touched)?).map(Box::as_mut),
            None => {
                let window = self.book.windows.get(&slot)?.clone();
                let no = window.no;
                self.decided.touched.insert(slot, Some(no));
                Some(self.decided.windows.entry(no).or_insert(window))
            }
        }
    }

    /// An event comes. Answers the windows that become deliveries because of it.
    pub fn arrive(&mut self, arrival: &Arrival<'_>, draw: &mut dyn FnMut() -> i64) -> Vec<Closing> {
        let mut closings = Vec::new();
        let slot = arrival.slot();
        // What comes after a window's time is not of it, whether somebody has closed it by then or not.
        if let Some(late) = self.get(slot).filter(|window| window.is_over(self.now)).cloned() {
            closings.extend(self.close(&late, late.due_by(), draw));
        }
        if self.get(slot).is_some_and(|window| is_cancelled(window, arrival)) {
            self.join(slot, arrival);
            self.end(slot, ClosedBy::Cancelled);
            return closings;
        }
        if !self.get(slot).is_some_and(|window| window.fits(arrival.bytes)) {
            if let Some(full) = self.get(slot).cloned() {
                closings.extend(self.close(&full, ClosedBy::MaxBytes, draw));
            }
            self.make_room(arrival.project, &mut closings, draw);
            if let Some(ahead) = self.lead(arrival, draw) {
                closings.push(ahead);
                return closings;
            }
            let window = self.open(arrival, draw());
            self.put(slot, window);
        }
        if let Some(why) = self.join(slot, arrival)
            && let Some(full) = self.get(slot).cloned()
        {
            closings.extend(self.close(&full, why, draw));
        }
        closings
    }

    /// Windows whose time has come, `limit` of them at most, in the order of their times.
    pub fn close_due(&mut self, limit: usize, draw: &mut dyn FnMut() -> i64) -> Vec<Closing> {
        let due = self.book.due.iter().take_while(|(at, ..)| *at <= self.now).take(limit);
        let windows: Vec<Window> = due.filter_map(|(.., slot)| self.get(*slot).cloned()).collect();
        let close = |window: &Window| self.close(window, window.due_by(), draw);
        windows.iter().filter_map(close).collect()
    }

    /// Closes a window that gathers, or seals one that waits. A window nothing joined ends without a delivery.
    pub fn close(
        &mut self,
        window: &Window,
        why: ClosedBy,
        draw: &mut dyn FnMut() -> i64,
    ) -> Option<Closing> {
        let slot = (window.subscriber, window.key);
        if window.count == 0 {
            self.end(slot, why);
            return None;
        }
        let mut window = window.clone();
        let was_gathering = window.stage == Stage::Gathering;
        if was_gathering {
            window.closed = Some((self.now, why));
            window.delivery = Some(draw());
            self.decided.closed.push(window.no);
        }
        // Only a lane makes a delivery wait for others of its kind, and only there more may join it; but one that closed
        // to make room makes room.
        let makes_room = matches!(why, ClosedBy::MaxBytes | ClosedBy::MaxEvents | ClosedBy::Limit);
        let takes_more = was_gathering && window.lane.is_some() && !makes_room;
        window.stage = if takes_more { Stage::Ready } else { Stage::Sealed };
        let closing = was_gathering.then(|| closing(&window)).flatten();
        self.put(slot, window);
        closing
    }

    /// A delivery begins to leave: nothing joins its window any more.
    pub fn seal(&mut self, project: ProjectNo, no: WindowNo) {
        let Some(slot) = self.book.oldest.get(&project).and_then(|windows| windows.get(&no)).copied() else {
            return;
        };
        let found = self.get(slot).filter(|window| window.no == no && window.stage == Stage::Ready);
        if let Some(window) = found.cloned() {
            self.put(slot, Window { stage: Stage::Sealed, ..window });
        }
    }

    /// A window that gathers ends without a delivery.
    pub fn end(&mut self, slot: Slot, why: ClosedBy) {
        if let Some(window) = self.get(slot).filter(|window| window.stage == Stage::Gathering).cloned() {
            self.decided.closed.push(window.no);
            self.put(slot, Window { stage: Stage::Ended, closed: Some((self.now, why)), ..window });
        }
    }

    /// A subscriber is gone: nothing joins its windows any more, and what gathers is not sent.
    pub fn leave(&mut self, project: ProjectNo, subscriber: SubscriberNo) {
        let book = self.book;
        for window in book.of_project(project).filter(|window| window.subscriber == subscriber) {
            self.end((subscriber, window.key), ClosedBy::Cancelled);
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
        let open = self.get(arrival.slot()).filter(|window| window.stage == Stage::Gathering).cloned();
        let is_open = open.is_some();
        closings.extend(open.and_then(|window| self.close(&window, ClosedBy::Flush, draw)));
        let carrier = match self.decided.members.last() {
            _ if is_open => closings.last().map(|closing| closing.delivery),
            Some(member) if !is_there => {
                self.decided.windows.get(&member.window).and_then(|window| window.delivery)
            }
            _ => self.get(arrival.slot()).and_then(|window| window.delivery),
        };
        (closings, carrier)
    }

    fn open(&mut self, arrival: &Arrival<'_>, no: WindowNo) -> Window {
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
        self.decided.opened.push((no, Arc::clone(&arrival.appending.key.text)));
        window
    }

    /// Sends the first event ahead, alone, and opens the window that gathers the rest.
    fn lead(&mut self, arrival: &Arrival<'_>, draw: &mut dyn FnMut() -> i64) -> Option<Closing> {
        if !arrival.appending.terms.leading || arrival.replay {
            return None;
        }
        let mut ahead = self.open(arrival, draw());
        ahead.add(arrival.event, arrival.bytes, self.now, 0);
        ahead.stage = Stage::Sealed;
        ahead.closed = Some((self.now, ClosedBy::Leading));
        ahead.delivery = Some(draw());
        self.decided.closed.push(ahead.no);
        let member = Member { event: arrival.event, window: ahead.no, prev: None, bytes: arrival.bytes };
        self.decided.members.push(member);
        let closing = closing(&ahead);
        self.decided.windows.insert(ahead.no, Box::new(ahead));
        let rest = self.open(arrival, draw());
        self.put(arrival.slot(), rest);
        closing
    }

    /// An event joins the window in its slot. Says why that is full now, if it is.
    fn join(&mut self, slot: Slot, arrival: &Arrival<'_>) -> Option<ClosedBy> {
        let (now, stretch) = (self.now, self.stretch_of(arrival.subscriber));
        let window = self.hold(slot)?;
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
        let opened = self.decided.opened.iter().filter_map(|(no, _)| self.decided.windows.get(no));
        let mut opened = opened.filter(|window| window.project == project && window.takes_more());
        opened.next().map(|window| Window::clone(window))
    }

    /// Writes down where a window stands; what takes nothing more leaves its slot.
    fn put(&mut self, slot: Slot, window: Window) {
        let was_there = self.get(slot).is_some();
        let stays = window.takes_more();
        *self.decided.grown.entry(window.project).or_default() += isize::from(stays) - isize::from(was_there);
        self.decided.touched.insert(slot, stays.then_some(window.no));
        self.decided.windows.insert(window.no, Box::new(window));
    }

    fn stretch_of(&self, subscriber: SubscriberNo) -> u32 {
        self.stretch.get(&subscriber).copied().unwrap_or(0)
    }
}

/// A recovery ends what nobody was told of yet.
fn is_cancelled(window: &Window, arrival: &Arrival<'_>) -> bool {
    arrival.appending.cancels && !arrival.replay && window.stage == Stage::Gathering && !window.terms.leading
}

fn closing(window: &Window) -> Option<Closing> {
    let Window { no, project, subscriber, lane, replay, .. } = *window;
    let (delivery, first) = (window.delivery?, window.first?);
    Some(Closing { window: no, delivery, project, subscriber, first, lane, replay })
}
