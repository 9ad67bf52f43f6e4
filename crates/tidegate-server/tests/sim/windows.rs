//! The windows of folds, as the traces of their events tell of them, and what must hold of each.
//!
//! The rules: an event that is folded is in exactly one window, under its own key, and one that passes a fold by is in none;
//! what a window became is told by the trace of every member (P6). A recovery ends the window it comes to, and nothing else
//! does: one that joins it is its last member, one that passes it by came in the instant in which it ended. A window is never
//! more than full and keeps the terms it was opened with, whatever its owner changes; where nothing went wrong it closes in time.
//! A project never has more windows than it may (P8).
//!
//! What a replay brought is left out. Where a backfill brings events, nobody knows when each came to its window: rules about
//! the time of an arrival are left out there. How many are in a window, and in which, is asked of every event.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::fold::ClosedBy;
use tidegate_core::id::{DeliveryNo, ProjectNo, SubscriberNo, WindowNo};
use tidegate_store::sqlite::SqliteStore;
use tidegate_store::{DeliveryRow, EventFilter, FoldRow};

use super::acts::Site;
use super::dice::Dice;
use super::history::{EventKey, Fact, Histories, History, Truth};
use super::spec::{Lanes, Spec};
use super::terms::Mode;
use super::world::START_MS;

/// A window closes no later than this after its time, where nothing kept it from that: a slow commit before it, and some more.
const LATE_MS: i64 = 200;
/// For how long nothing must have been wrong before.
const CALM_MS: i64 = 2_000;

/// One window and the events in it, as places in the history, in the order of their acceptance.
struct Window {
    row: FoldRow,
    members: Vec<usize>,
}

/// All of them.
pub(crate) struct Windows {
    by_no: BTreeMap<WindowNo, Window>,
    /// Those that hold an event.
    by_event: BTreeMap<(SubscriberNo, usize), Vec<WindowNo>>,
}

/// In some runs a project may have only a few.
pub(crate) fn plan(seed: u64) -> Option<usize> {
    let mut dice = Dice::new(seed, "windows");
    dice.percent(30).then(|| dice.pick(&[2, 3]))
}

/// After every commit, no project has more than it may.
pub(crate) async fn are_few(store: &SqliteStore, histories: &Histories, most: Option<usize>) {
    let Some(most) = most else { return };
    let projects: BTreeSet<ProjectNo> = histories.lock().subs.values().map(|truth| truth.project).collect();
    for project in projects {
        let there = super::endings::windows(store, project, None).await.len();
        if there > most {
            let text = format!("P8 a project has {there} windows that can be joined, {most} are allowed");
            histories.lock().violation(text);
        }
    }
}

/// Asks for the trace of every event: which windows it is in, but for those of replays.
pub(crate) async fn traced(
    site: &Site,
    rows: &BTreeMap<DeliveryNo, DeliveryRow>,
) -> Vec<(EventKey, FoldRow)> {
    let mut traced = Vec::new();
    let is_replay =
        |row: &FoldRow| row.delivery.and_then(|no| rows.get(&no)).is_some_and(|delivery| delivery.replay);
    let folding = {
        let history = site.history.lock();
        let folding = history.subs.values().filter(|truth| super::folds::is_fold(&truth.id));
        folding.map(|truth| truth.project).collect::<BTreeSet<_>>()
    };
    for project in folding {
        let filter = EventFilter { limit: 10_000, ..EventFilter::default() };
        let page = site.parts.store.events(project, filter).await.expect("the store works again");
        for event in page.items {
            let trace = site.parts.store.trace(project, event.seq).await.expect("the store works again");
            let key = (project, event.source.clone(), event.id.clone());
            let windows = trace.windows.into_iter().filter(|row| !is_replay(row));
            traced.extend(windows.map(|row| (key.clone(), row)));
        }
    }
    traced
}

impl Windows {
    /// Puts together what the traces said.
    pub(crate) fn of(history: &History, traced: Vec<(EventKey, FoldRow)>) -> Self {
        let mut all = Self { by_no: BTreeMap::new(), by_event: BTreeMap::new() };
        for (key, row) in traced {
            let Some(place) = history.index.get(&key).copied() else { continue };
            all.by_event.entry((row.subscriber, place)).or_default().push(row.no);
            let window = all.by_no.entry(row.no).or_insert_with(|| Window { row, members: Vec::new() });
            window.members.push(place);
        }
        all.by_no.values_mut().for_each(|window| window.members.sort_unstable());
        all
    }

    /// An event that a subscriber wants, and the folded delivery it is in, if it is in one.
    pub(crate) fn check_event(
        &self,
        history: &History,
        (subscriber, place): (SubscriberNo, usize),
        kept: Option<DeliveryNo>,
        found: &mut Vec<String>,
    ) {
        let (truth, fact) = (&history.subs[&subscriber], &history.accepted[place]);
        let nos = self.by_event.get(&(subscriber, place)).map_or(&[][..], Vec::as_slice);
        let (id, event) = (&truth.id, &fact.key.2);
        let Some(fold) = truth.fold_of(fact) else { return };
        let owed = usize::from(!fold.passes(&fact.content));
        if nos.len() != owed {
            found.push(format!("P6 event {event} is in {} windows of {id} and belongs in {owed}", nos.len()));
        }
        let window = nos.first().map(|no| &self.by_no[no].row);
        if kept != window.and_then(|row| row.delivery) {
            found.push(format!(
                "P6 event {event} is in delivery {kept:?} to {id}, its trace tells of {window:?}"
            ));
        }
        let is_told = |row: &FoldRow| row.delivery.is_some() || has_ended(row);
        if !window.is_none_or(is_told) {
            found.push(format!("P6 event {event} is neither sent to {id} nor cancelled: {window:?}"));
        }
    }

    /// Every window, and what was cancelled by hand; says which rare paths were taken.
    pub(crate) fn check(&self, history: &History, found: &mut Vec<String>) -> BTreeSet<&'static str> {
        let mut met = BTreeSet::new();
        let mut by_hand: BTreeMap<SubscriberNo, u32> = BTreeMap::new();
        for window in self.by_no.values() {
            if window.row.delivery.is_none() && window.is_closed_by(ClosedBy::Cancelled) {
                *by_hand.entry(window.row.subscriber).or_default() += window.members.len() as u32;
            }
            window.keeps_apart(history, found);
            window.ends_as_said(history, found, &mut met);
            window.holds_what_fits(history, found, &mut met);
            window.keeps_its_terms(history, found, &mut met);
        }
        // A window that nothing followed its first event into ends with nobody to tell of it.
        let ended = history.endings.lost.iter().filter(|(_, count)| **count > 0);
        let ended: BTreeMap<SubscriberNo, u32> = ended.map(|(no, count)| (*no, *count)).collect();
        if by_hand != ended {
            found.push(format!(
                "P6 traces tell of {by_hand:?} events cancelled by hand, which were {ended:?}"
            ));
        }
        for (no, truth) in &history.subs {
            for fact in &history.accepted {
                let is_wanted =
                    truth.spec_at(fact.version).is_some_and(|spec| spec.wants(&fact.content).is_some());
                let passes = truth.fold_of(fact).is_some_and(|fold| fold.passes(&fact.content));
                if is_wanted && passes && truth.is_new(fact) {
                    met.insert("an event that passed a fold by");
                    self.nothing_outlives(history, (*no, truth), fact, found);
                }
            }
        }
        met
    }

    /// An event that passes by and is a recovery leaves nothing of its key that gathered when it came.
    fn nothing_outlives(
        &self,
        history: &History,
        (no, truth): (SubscriberNo, &Truth),
        fact: &Fact,
        found: &mut Vec<String>,
    ) {
        if is_moved(history) {
            return;
        }
        let came = fact.now + history.apart_ms;
        for window in self.by_no.values().filter(|window| window.row.subscriber == no) {
            let Some(spec) = window.opened_with(history) else { continue };
            let is_its_own = truth.key_of(fact).as_ref() == Some(&window.row.key);
            let is_older = window.members.first().is_some_and(|first| *first < fact.place);
            let is_open = window.closed_at().is_some_and(|at| at > came)
                && window.due_before(history, spec, fact.place) > came;
            let is_met = spec.fold.as_ref().is_some_and(|fold| fold.ends(&fact.content));
            if is_its_own && is_older && is_open && is_met && !window.is_closed_by(ClosedBy::CancelOn) {
                let (event, row) = (&fact.key.2, &window.row);
                found.push(format!("P6 {event} passed {} by and did not end its window: {row:?}", truth.id));
            }
        }
    }
}

/// A jump reaches processes that share a store one after the other: until then their times can not be compared.
fn is_moved(history: &History) -> bool {
    history.apart_ms > 0 && !history.jumps.is_empty()
}

/// It ended without a delivery, and says so.
fn has_ended(row: &FoldRow) -> bool {
    row.closed.is_some_and(|(_, by)| by.is_cancelled())
}

impl Window {
    fn is_closed_by(&self, by: ClosedBy) -> bool {
        self.row.closed.is_some_and(|(_, closed_by)| closed_by == by)
    }

    /// When it took its last event but for those that join what waits. One that was cancelled while it waited for its turn does
    /// not tell any more.
    fn closed_at(&self) -> Option<i64> {
        let is_told = self.row.delivery.is_none() || !self.is_closed_by(ClosedBy::Cancelled);
        self.row.closed.filter(|_| is_told).map(|(at, _)| at.as_ms())
    }

    fn facts<'a>(&'a self, history: &'a History) -> impl Iterator<Item = &'a Fact> {
        self.members.iter().map(|place| &history.accepted[*place])
    }

    /// The definition that it was opened with, where all its events came in the days of its subscriber.
    fn opened_with<'a>(&self, history: &'a History) -> Option<&'a Spec> {
        let truth = &history.subs[&self.row.subscriber];
        let is_known = self.facts(history).all(|fact| truth.is_new(fact));
        let first = self.facts(history).next().filter(|_| is_known)?;
        // Behind an event that went ahead it opened before its own first event came.
        if truth.specs.len() > 1 && first.now != self.row.opened_at.as_ms() {
            return None;
        }
        truth.spec_at(first.version)
    }

    /// When it closes by itself, as it stood when the event at this place came.
    fn due_before(&self, history: &History, spec: &Spec, place: usize) -> i64 {
        let opened = self.row.opened_at.as_ms();
        match spec.fold.as_ref().map(|fold| fold.mode) {
            Some(Mode::Window(ms)) => opened + ms,
            Some(Mode::Quiet(ms, most)) => {
                let joined = self.members.iter().filter(|member| **member < place);
                let last = joined.map(|member| history.accepted[*member].now).max();
                last.map_or(opened, |last| last + ms).min(opened + most)
            }
            // Regular times do not depend on what joins.
            _ => self.row.due_at.as_ms(),
        }
    }

    /// What is in it has its key.
    fn keeps_apart(&self, history: &History, found: &mut Vec<String>) {
        let truth = &history.subs[&self.row.subscriber];
        for fact in self.facts(history) {
            if truth.key_of(fact).is_some_and(|key| key != self.row.key) {
                found.push(format!("P6 event {} is in a window of another key: {:?}", fact.key.2, self.row));
            }
        }
        if self.members.len() != self.row.count as usize {
            let told = self.members.len();
            found.push(format!("P6 {told} events tell that they are in a window: {:?}", self.row));
        }
    }

    /// It is never more than full, closes when it is, and says so of nothing that is not.
    fn holds_what_fits(&self, history: &History, found: &mut Vec<String>, met: &mut BTreeSet<&'static str>) {
        if self.is_closed_by(ClosedBy::Limit) {
            met.insert("a window closed to make room for others");
        }
        if self.is_closed_by(ClosedBy::CancelOn) {
            // Nobody is sent what a recovery was one too many for.
            return;
        }
        let Some(fold) = self.opened_with(history).and_then(|spec| spec.fold.as_ref()) else { return };
        let (count, bytes) =
            (self.members.len(), self.facts(history).map(|fact| fact.body.len()).sum::<usize>());
        let is_over = count > fold.max_events as usize || bytes > fold.max_bytes && count > 1;
        let is_full = count >= fold.max_events as usize || bytes >= fold.max_bytes;
        let last = self.facts(history).last().map_or(0, |fact| fact.now);
        let is_late =
            is_full && !is_moved(history) && self.closed_at().is_some_and(|at| at > last + history.apart_ms);
        let next = || self.next(history).map_or(0, |fact| fact.body.len());
        let is_right = match self.row.closed {
            Some((_, ClosedBy::MaxEvents)) => count == fold.max_events as usize,
            Some((_, ClosedBy::MaxBytes)) => bytes >= fold.max_bytes || bytes + next() > fold.max_bytes,
            _ => true,
        };
        if is_over || is_late || !is_right {
            found.push(format!("P6 a window of {bytes} bytes is not closed as it should be: {:?}", self.row));
        }
        if self.is_closed_by(ClosedBy::MaxBytes) {
            met.insert("a window closed by its bytes");
        }
    }

    /// It closes for a reason that the terms have which it was opened with; and in time, where nothing kept it from that.
    fn keeps_its_terms(&self, history: &History, found: &mut Vec<String>, met: &mut BTreeSet<&'static str>) {
        let Some(spec) = self.opened_with(history) else { return };
        let (Some(fold), Some((_, by))) = (&spec.fold, self.row.closed) else { return };
        let is_own = match by {
            ClosedBy::Window => matches!(fold.mode, Mode::Window(_)),
            ClosedBy::Quiet | ClosedBy::MaxWait => matches!(fold.mode, Mode::Quiet(..)),
            ClosedBy::Every => matches!(fold.mode, Mode::Batch(_)),
            ClosedBy::Leading => fold.leading,
            _ => true,
        };
        if !is_own {
            found.push(format!("P6 a window closed by other terms than {fold:?}: {:?}", self.row));
        }
        let truth = &history.subs[&self.row.subscriber];
        if self.facts(history).last().and_then(|last| truth.fold_of(last)).is_some_and(|last| last != fold) {
            met.insert("a window that kept its former terms");
        }
        let is_by_time =
            matches!(by, ClosedBy::Window | ClosedBy::Quiet | ClosedBy::MaxWait | ClosedBy::Every);
        if let Some(closed_at) = self.closed_at().filter(|_| is_by_time && is_own) {
            self.closes_in_time(history, (spec, closed_at), found, met);
        }
    }

    /// It does not close late. Only where the clock never jumped does it tell true time, and only of the living can haste be
    /// expected.
    fn closes_in_time(
        &self,
        history: &History,
        (spec, closed_at): (&Spec, i64),
        found: &mut Vec<String>,
        met: &mut BTreeSet<&'static str>,
    ) {
        // What joined it when it had closed did not move its end.
        let behind = self.members.iter().find(|place| history.accepted[**place].now >= closed_at);
        let due = self.due_before(history, spec, behind.copied().unwrap_or(usize::MAX));
        let (due_t, closed_t) = (due - START_MS, closed_at - START_MS);
        let is_alone = history.apart_ms == 0 && history.jumps.is_empty();
        if !is_alone
            || history.is_disturbed(due_t - CALM_MS, closed_t)
            || history.is_store_away(due_t, closed_t)
        {
            return;
        }
        met.insert("a window judged by its end");
        if closed_t > due_t + LATE_MS {
            found.push(format!("P6 a window closed {} ms late: {:?}", closed_t - due_t, self.row));
        }
    }

    /// The first event behind it that its key would have brought into it.
    fn next<'a>(&self, history: &'a History) -> Option<&'a Fact> {
        let truth = &history.subs[&self.row.subscriber];
        let behind = history.accepted.iter().skip(self.members.last()? + 1);
        behind.into_iter().find(|fact| {
            let is_wanted =
                truth.spec_at(fact.version).is_some_and(|spec| spec.wants(&fact.content).is_some());
            let is_folded = truth.fold_of(fact).is_some_and(|fold| !fold.passes(&fact.content));
            is_wanted
                && is_folded
                && truth.is_owed(fact)
                && truth.key_of(fact).as_ref() == Some(&self.row.key)
        })
    }

    /// A recovery ends it, and nothing else ends it so.
    fn ends_as_said(&self, history: &History, found: &mut Vec<String>, met: &mut BTreeSet<&'static str>) {
        let Some(spec) = self.opened_with(history) else { return };
        let (Some(fold), Some(closed_at)) = (&spec.fold, self.closed_at()) else { return };
        let is_cancelled = self.is_closed_by(ClosedBy::CancelOn);
        let may_wait = spec.lanes != Lanes::None && !is_cancelled;
        // What comes to a window that has closed and waits for its turn ends nothing.
        let is_early = |fact: &Fact| !is_moved(history) && fact.now + history.apart_ms < closed_at;
        let gathered = |fact: &&Fact| !may_wait || is_early(fact);
        let is_recovery = |fact: &Fact| fold.ends(&fact.content);
        // The first finds no window, and the last of a window that ended is the one that did it.
        let others = self.members.len().saturating_sub(1 + usize::from(is_cancelled));
        if self.facts(history).skip(1).take(others).filter(gathered).any(is_recovery) {
            found.push(format!("P6 a window outlived a recovery in it: {:?}", self.row));
        }
        if !is_cancelled {
            return;
        }
        let last = self.facts(history).skip(1).last();
        let ender = self.members.last().filter(|_| last.is_some_and(is_recovery)).copied();
        if self.due_before(history, spec, ender.unwrap_or(usize::MAX)) <= closed_at {
            found.push(format!("P6 a recovery ended a window whose time was over: {:?}", self.row));
        }
        if ender.is_some() {
            met.insert("a window ended by a recovery");
        } else if self.is_passed_by(history) {
            met.insert("a window ended by what passed it by");
        } else {
            found.push(format!("P6 a window ended without a recovery: {:?}", self.row));
        }
        if let Some(delivery) = self.row.delivery {
            found.push(format!("P6 a window that a recovery ended is delivery {delivery}"));
        }
    }

    /// Whether a recovery passed it by when it ended.
    fn is_passed_by(&self, history: &History) -> bool {
        let truth = &history.subs[&self.row.subscriber];
        let Some(fold) = self.opened_with(history).and_then(|spec| spec.fold.as_ref()) else { return false };
        let Some(closed_at) = self.closed_at() else { return false };
        history.accepted.iter().any(|fact| {
            let is_its_own = truth.is_new(fact) && truth.key_of(fact).as_ref() == Some(&self.row.key);
            let passes = truth.fold_of(fact).is_some_and(|fold| fold.passes(&fact.content));
            is_its_own && passes && fact.now == closed_at && fold.ends(&fact.content)
        })
    }
}

impl Truth {
    /// The key of the window that an event belongs to.
    fn key_of(&self, fact: &Fact) -> Option<String> {
        let spec = self.folding_spec(fact)?;
        Some(spec.fold.as_ref()?.key(spec.lanes, &fact.content))
    }
}
