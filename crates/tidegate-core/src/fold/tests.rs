//! A million random steps of the book, and the few rules that must hold after each.
//!
//! That of a lane one delivery leaves at a time, the first closed first, is no decision of the book: lanes are rows of the
//! stores (`store/*/lanes.rs`). Here the world only keeps to it; that the stores do is shown on both of them by any history
//! (`tidegate-store/tests/property/folds.rs`) and by the conformance of folds in lanes, and above them by the simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::id::{Lane, Seq, SubscriberNo, WindowNo};
use crate::payload::Payload;
use crate::time::{Span, Timestamp};

const START: Timestamp = Timestamp::from_ms(1_000_000_000);
const PROJECT: i64 = 1;
const LIMIT: usize = 12;
/// The condition that all these folds have.
const RECOVERED: Fingerprint = 7;
const SEEDS: u64 = 250;
const STEPS: u32 = 4_000;

/// Chance that a seed decides.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }
}

fn terms(mode: Mode) -> Terms {
    Terms {
        mode,
        max_events: 10_000,
        max_bytes: 1 << 20,
        leading: false,
        adaptive: false,
        cancel_on: CancelOn::When(RECOVERED),
        payload: Payload::Full,
    }
}

fn window(ms: u64) -> Mode {
    Mode::Window { window: Span::from_ms(ms) }
}

fn quiet(quiet_ms: u64, max_ms: u64) -> Mode {
    Mode::Quiet { quiet: Span::from_ms(quiet_ms), max_wait: Span::from_ms(max_ms) }
}

/// A store of one process, as far as windows are concerned: a book, rows, and deliveries that wait for their turn.
struct World {
    book: Book,
    now: Timestamp,
    next_no: i64,
    /// Every window there ever was, as its row has it.
    windows: BTreeMap<WindowNo, Window>,
    members: BTreeMap<WindowNo, Vec<(Seq, Timestamp)>>,
    /// Closed, in order, and not yet begun.
    ready: Vec<Closing>,
    in_flight: Vec<Closing>,
    /// What was begun, with what it carried then.
    begun: BTreeMap<WindowNo, usize>,
    /// Deliveries that were cancelled before they began.
    cancelled: BTreeSet<WindowNo>,
    terms: Vec<Arc<Terms>>,
    /// By how many percent congestion lengthens quiet periods.
    stretch: BTreeMap<SubscriberNo, u32>,
}

impl World {
    fn new(terms: Vec<Terms>) -> Self {
        Self {
            book: Book::default(),
            now: START,
            next_no: 1,
            windows: BTreeMap::new(),
            members: BTreeMap::new(),
            ready: Vec::new(),
            in_flight: Vec::new(),
            begun: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            terms: terms.into_iter().map(Arc::new).collect(),
            stretch: BTreeMap::new(),
        }
    }

    fn transact<T>(&mut self, work: impl FnOnce(&mut Draft<'_>, &mut dyn FnMut() -> i64) -> T) -> T {
        let mut draft = Draft::new(&self.book, self.now, LIMIT, &self.stretch);
        let next_no = &mut self.next_no;
        let result = work(&mut draft, &mut || {
            *next_no += 1;
            *next_no - 1
        });
        let decided = draft.decided();
        for member in &decided.members {
            self.members.entry(member.window).or_default().push((member.event, self.now));
        }
        for window in decided.windows() {
            self.windows.insert(window.no, window.clone());
        }
        self.book.apply(decided);
        result
    }

    fn arrive(&mut self, subscriber: usize, key: &str, bytes: u32, cancels: bool) -> Seq {
        let cancels = if cancels { vec![RECOVERED] } else { Vec::new() };
        self.arrive_fulfilling(subscriber, key, bytes, cancels, false)
    }

    /// A recovery that goes by itself. It ends what gathers under its key, and that alone.
    fn pass_by(&mut self, subscriber: usize, key: &str) {
        let slot = (subscriber as SubscriberNo, Key::from_text(key).hash);
        let gathers = |window: &&Window| window.stage == Stage::Gathering && !window.terms.leading;
        let ended = self.book.get(slot).filter(gathers).filter(|window| window.due_at > self.now).cloned();
        let open = self.book.len();
        self.arrive_fulfilling(subscriber, key, 1, vec![RECOVERED], true);
        assert_eq!(self.book.len() + usize::from(ended.is_some()), open, "it touches no other");
        if let Some(before) = ended {
            let Window { stage, count, closed, delivery, .. } = self.windows[&before.no];
            assert_eq!((stage, count, delivery), (Stage::Ended, before.count, None));
            assert_eq!(closed, Some((self.now, ClosedBy::CancelOn)));
        }
    }

    fn arrive_fulfilling(
        &mut self,
        subscriber: usize,
        key: &str,
        bytes: u32,
        cancels: Vec<Fingerprint>,
        passes: bool,
    ) -> Seq {
        let event = self.next_no;
        self.next_no += 1;
        let terms = Arc::clone(&self.terms[subscriber]);
        let appending = Appending { key: Key::from_text(key), terms, cancels };
        // Every second subscriber has lanes.
        let lane = (subscriber % 2 == 1).then(|| Lane::from(key.len() as i32));
        let arrival = Arrival {
            project: PROJECT,
            subscriber: subscriber as SubscriberNo,
            lane,
            event,
            bytes,
            replay: false,
            passes,
            appending: &appending,
        };
        let closings = self.transact(|draft, draw| draft.arrive(&arrival, draw));
        self.ready.extend(closings);
        event
    }

    /// Time passes. What is due closes in the order of its times, by which its deliveries are numbered.
    fn pass(&mut self, ms: u64) -> Vec<Closing> {
        self.now = self.now.plus(Duration::from_millis(ms));
        let due: BTreeMap<WindowNo, Timestamp> =
            self.book.of_project(PROJECT).map(|window| (window.no, window.due_at)).collect();
        let closings = self.transact(|draft, draw| draft.close_due(usize::MAX, draw));
        assert!(closings.is_sorted_by_key(|closing| due[&closing.window]), "first due, first closed");
        assert!(closings.is_sorted_by_key(|closing| closing.delivery), "first closed, first in its lane");
        self.ready.extend(closings.clone());
        closings
    }

    /// The next delivery that no other of its lane is ahead of begins to leave: what a store would hand over.
    fn begin(&mut self) {
        let is_free = |closing: &Closing| {
            closing.lane.is_none()
                || !self
                    .in_flight
                    .iter()
                    .any(|other| (other.subscriber, other.lane) == (closing.subscriber, closing.lane))
        };
        let Some(place) = self.ready.iter().position(is_free) else { return };
        let closing = self.ready.remove(place);
        self.transact(|draft, _| draft.seal(PROJECT, closing.window));
        self.begun.insert(closing.window, self.members[&closing.window].len());
        self.in_flight.push(closing);
    }

    /// Somebody cancels one of the windows that can be joined.
    fn cancel(&mut self, roll: u64) {
        let slots: Vec<Slot> =
            self.book.of_project(PROJECT).map(|window| (window.subscriber, window.key)).collect();
        let Some(slot) = slots.get(roll as usize % slots.len().max(1)).copied() else { return };
        let unsent = self.transact(|draft, _| draft.cancel(slot).map(|window| window.no));
        self.ready.retain(|closing| Some(closing.window) != unsent);
        self.cancelled.extend(unsent);
    }

    fn restart(&mut self) {
        let mut book = Book::default();
        let live =
            self.windows.values().filter(|window| matches!(window.stage, Stage::Gathering | Stage::Ready));
        for window in live {
            let mut window = window.clone();
            let last_at = self.members.get(&window.no).and_then(|members| members.last()).map(|(_, at)| *at);
            window.recall(last_at.unwrap_or(window.opened_at));
            book.insert(window);
        }
        assert_eq!(book.len(), self.book.len());
        for window in book.of_project(PROJECT) {
            let before = self.book.get((window.subscriber, window.key)).expect("it was there");
            // How congested a gate was when its last event came, a start does not know: then it closes no later.
            let is_same =
                window.due_at == before.due_at || (window.terms.adaptive && window.due_at < before.due_at);
            assert!(is_same, "a start finds the same deadlines");
        }
        self.book = book;
    }

    fn check(&self, accepted: Seq) {
        let mut seen = BTreeSet::new();
        for (event, _) in self.members.values().flatten() {
            assert!(seen.insert(*event), "event {event} is in two windows");
        }
        assert!(seen.len() as i64 == accepted, "{} of {accepted} events are in a window", seen.len());
        let mut slots = BTreeSet::new();
        for window in self.windows.values() {
            self.check_window(window);
            if matches!(window.stage, Stage::Gathering | Stage::Ready) {
                assert!(
                    slots.insert((window.subscriber, window.key)),
                    "two windows of one key can be joined"
                );
            }
        }
        assert!(self.book.len() <= LIMIT, "no more windows than allowed");
    }

    fn check_window(&self, window: &Window) {
        let members = self.members.get(&window.no).map_or(0, Vec::len);
        assert_eq!(window.count as usize, members, "a window counts its members");
        if let Some(begun) = self.begun.get(&window.no) {
            assert_eq!(*begun, members, "nothing joined what had begun to leave");
        }
        if let Mode::Quiet { max_wait, .. } = window.terms.mode {
            assert!(window.due_at <= window.opened_at.plus(max_wait.0), "never later than its longest wait");
        }
        let Some((closed_at, closed_by)) = window.closed else { return };
        let last = self.members.get(&window.no).into_iter().flatten().rfind(|(_, at)| *at < closed_at);
        let last_at = last.map_or(window.opened_at, |(_, at)| *at);
        match (closed_by, window.terms.mode) {
            (ClosedBy::Window, Mode::Window { window: span }) => {
                assert!(closed_at >= window.opened_at.plus(span.0), "never before its time");
            }
            (ClosedBy::Quiet, Mode::Quiet { quiet, .. }) => {
                assert!(closed_at >= last_at.plus(quiet.0), "it was quiet for long enough");
            }
            (ClosedBy::MaxWait, Mode::Quiet { max_wait, .. }) => {
                assert!(closed_at >= window.opened_at.plus(max_wait.0));
            }
            _ => {}
        }
        if window.stage == Stage::Ended {
            return;
        }
        assert!(window.count <= window.terms.max_events);
        assert!(
            window.count == 1 || window.bytes <= u64::from(window.terms.max_bytes),
            "small enough, or alone"
        );
    }
}

fn kinds() -> Vec<Terms> {
    vec![
        terms(window(1_000)),
        terms(quiet(300, 2_000)),
        Terms { max_events: 5, ..terms(Mode::Batch { every: Span::from_ms(700) }) },
        Terms { max_bytes: 1_024, ..terms(quiet(500, 900)) },
        Terms { leading: true, ..terms(window(800)) },
        Terms { leading: true, max_events: 3, ..terms(quiet(200, 600)) },
        Terms { adaptive: true, ..terms(quiet(150, 1_500)) },
        Terms { adaptive: true, max_events: 7, ..terms(quiet(250, 800)) },
    ]
}

/// One history. No event gets lost or counted twice, nothing closes early or takes too long, whatever happens.
fn play(seed: u64) -> u32 {
    let mut dice = Dice(seed);
    let mut world = World::new(kinds());
    let mut accepted = 0;
    for step in 0..STEPS {
        match dice.below(20) {
            0..=9 => {
                let subscriber = dice.below(world.terms.len() as u64) as usize;
                // Their gates are congested now and then.
                let stretch = if dice.below(2) == 0 { 0 } else { dice.below(501) as u32 };
                world.stretch.insert(subscriber as SubscriberNo, stretch);
                let key = ["{}", "[1]", "[2,2]", "[3,3,3]"][dice.below(4) as usize];
                world.arrive(subscriber, key, 1 + dice.below(400) as u32, dice.below(12) == 0);
                accepted += 1;
            }
            10..=14 => {
                world.pass(dice.below(120));
                assert!(
                    world.book.next_due().is_none_or(|due| due > world.now),
                    "nothing stays open after its time"
                );
            }
            15 => world.begin(),
            16 if dice.below(8) == 0 => world.cancel(dice.below(64)),
            16 => world.begin(),
            17 | 18 if !world.in_flight.is_empty() => {
                let place = dice.below(world.in_flight.len() as u64) as usize;
                world.in_flight.swap_remove(place);
            }
            19 if dice.below(8) == 0 => {
                let key = ["{}", "[1]", "[2,2]", "[3,3,3]"][dice.below(4) as usize];
                world.pass_by(dice.below(8) as usize, key);
            }
            19 => world.restart(),
            _ => {}
        }
        if step % 1_024 == 0 {
            world.check(accepted);
        }
    }
    world.pass(10_000);
    assert!(world.windows.values().all(|window| window.stage != Stage::Gathering), "everything closes");
    world.check(accepted);
    let delivered: usize = world.windows.values().filter(|window| window.delivery.is_some()).count();
    let known = world.ready.len() + world.begun.len() + world.cancelled.len();
    assert_eq!(delivered, known, "a window that closed is one delivery");
    assert!(world.cancelled.iter().all(|no| !world.begun.contains_key(no)), "what is cancelled never leaves");
    STEPS
}

#[test]
fn a_million_steps_lose_nothing() {
    let steps: u32 = (0..SEEDS).map(play).sum();
    assert!(steps >= 1_000_000);
}

#[test]
fn a_window_counts_from_its_first_event() {
    let mut world = World::new(vec![terms(window(60_000))]);
    world.arrive(0, "{}", 1, false);
    for _ in 0..59 {
        assert!(world.pass(1_000).is_empty());
        world.arrive(0, "{}", 1, false);
    }
    assert!(world.pass(999).is_empty());
    assert_eq!(world.pass(1).len(), 1);
    assert_eq!(world.windows[&2].count, 60);
    assert_eq!(world.windows[&2].closed.unwrap().1, ClosedBy::Window);
}

#[test]
fn a_quiet_period_begins_anew_until_the_longest_wait() {
    let mut world = World::new(vec![terms(quiet(10_000, 25_000))]);
    world.arrive(0, "{}", 1, false);
    assert!(world.pass(9_000).is_empty());
    world.arrive(0, "{}", 1, false);
    assert!(world.pass(9_000).is_empty());
    world.arrive(0, "{}", 1, false);
    assert!(world.pass(6_999).is_empty());
    assert_eq!(world.pass(1).len(), 1);
    assert_eq!(world.windows[&2].closed.unwrap().1, ClosedBy::MaxWait);
    world.arrive(0, "{}", 1, false);
    world.pass(10_000);
    assert_eq!(world.windows.values().next_back().unwrap().closed.unwrap().1, ClosedBy::Quiet);
}

#[test]
fn congestion_stretches_a_quiet_period_that_may_adapt() {
    for (adaptive, expected_ms) in [(true, 25_000), (false, 10_000)] {
        let terms = Terms { adaptive, ..terms(quiet(10_000, 60_000)) };
        let appending = Appending { key: Key::from_text("{}"), terms: Arc::new(terms), cancels: Vec::new() };
        let arrival = Arrival {
            project: PROJECT,
            subscriber: 7,
            lane: None,
            event: 1,
            bytes: 1,
            replay: false,
            passes: false,
            appending: &appending,
        };
        let (book, stretch) = (Book::default(), BTreeMap::from([(7, 150)]));
        let mut draft = Draft::new(&book, START, LIMIT, &stretch);
        draft.arrive(&arrival, &mut || 2);
        let due_at = draft.decided().windows().next().map(|window| window.due_at);
        assert_eq!(due_at, Some(START.plus(Duration::from_millis(expected_ms))));
    }
}

#[test]
fn a_quiet_period_grows_by_what_a_delivery_would_wait_anyway() {
    let terms = Terms { adaptive: true, ..terms(quiet(10_000, 600_000)) };
    let stretch = |ms| terms.stretch(Duration::from_millis(ms));
    assert_eq!([0, 5_000, 20_000, 10_000_000].map(stretch), [0, 50, 200, 500]);
    assert_eq!(super::tests::terms(window(1_000)).stretch(Duration::from_secs(9)), 0);
}

#[test]
fn what_waits_in_a_lane_takes_more_until_it_leaves() {
    let mut world = World::new(vec![terms(window(1)), terms(quiet(1_000, 9_000))]);
    world.arrive(1, "{}", 1, false);
    world.pass(1_000);
    assert_eq!(world.ready.len(), 1);
    world.arrive(1, "{}", 1, false);
    assert_eq!((world.ready.len(), world.windows[&2].count), (1, 2), "it joins what is about to leave");
    world.begin();
    world.arrive(1, "{}", 1, false);
    assert_eq!(world.windows[&2].count, 2, "what has begun is left alone");
    assert!(world.pass(999).is_empty(), "and a quiet period begins anew");
    assert_eq!(world.pass(1).len(), 1);
    assert_eq!(world.in_flight.len(), 1, "it waits for the one that runs");
}

#[test]
fn a_recovery_ends_what_nobody_was_told_of() {
    let mut world = World::new(vec![terms(window(1_000)), Terms { leading: true, ..terms(window(1_000)) }]);
    world.arrive(0, "{}", 1, false);
    world.arrive(0, "{}", 1, true);
    assert!(world.pass(5_000).is_empty());
    assert_eq!((world.windows[&2].stage, world.windows[&2].count), (Stage::Ended, 2));
    world.arrive(0, "{}", 1, true);
    assert_eq!(world.pass(5_000).len(), 1, "alone, it is news");
    world.arrive(1, "{}", 1, false);
    assert_eq!(world.ready.len(), 2, "the first goes ahead");
    world.arrive(1, "{}", 1, true);
    assert_eq!(world.pass(5_000).len(), 1, "whoever heard of the failure hears of the recovery");
}

#[test]
fn a_recovery_that_goes_by_itself_ends_what_nobody_was_told_of() {
    let mut world = World::new(vec![terms(window(1_000)), terms(window(1_000))]);
    for subscriber in [0, 1] {
        world.arrive(subscriber, "{}", 1, false);
        world.pass_by(subscriber, "[1]");
        world.pass_by(subscriber, "{}");
        assert!(world.pass(5_000).is_empty());
        world.arrive(subscriber, "{}", 1, false);
        world.now = world.now.plus(Duration::from_secs(1));
        world.pass_by(subscriber, "{}");
        assert_eq!(world.pass(0).len(), 1, "what was over before it came goes");
    }
}

#[test]
fn a_window_is_ended_by_the_condition_it_opened_with_and_no_other() {
    let (before, since) = (RECOVERED, RECOVERED + 1);
    for (opened_with, fulfilled, is_ended) in [
        (CancelOn::Never, vec![since], false),
        (CancelOn::When(before), vec![since], false),
        (CancelOn::When(before), vec![since, before], true),
        (CancelOn::When(before), vec![before], true),
        (CancelOn::When(since), vec![before], false),
        (CancelOn::Unsaid, vec![since], true),
        (CancelOn::Unsaid, vec![], false),
    ] {
        let mut world = World::new(vec![Terms { cancel_on: opened_with, ..terms(window(1_000)) }]);
        world.arrive(0, "{}", 1, false);
        world.terms[0] = Arc::new(Terms { cancel_on: CancelOn::When(since), ..terms(window(1_000)) });
        world.arrive_fulfilling(0, "{}", 1, fulfilled.clone(), false);
        let stage = world.windows[&2].stage;
        assert_eq!(stage == Stage::Ended, is_ended, "{opened_with:?} {fulfilled:?}");
    }
}

#[test]
fn terms_are_read_as_they_were_kept_those_of_before_too() {
    for cancel_on in [CancelOn::Never, CancelOn::of(Some("type == 'up'")), CancelOn::Unsaid] {
        let terms = Terms { cancel_on, adaptive: true, ..terms(quiet(10, 20)) };
        assert_eq!(Terms::from_text(&terms.to_text()), Some(terms));
    }
    kinds().into_iter().for_each(|terms| assert_eq!(Terms::from_text(&terms.to_text()), Some(terms)));
    assert_eq!(Terms::from_text("{}"), None);
    let before = r#"{"mode":"window","span":"60s","max_events":9,"max_bytes":1024,"leading":false,"adaptive":false,"payload":"full"}"#;
    assert_eq!(Terms::from_text(before).map(|terms| terms.cancel_on), Some(CancelOn::Unsaid));
    assert_ne!(CancelOn::of(Some("type == 'up'")), CancelOn::of(Some("type == 'down'")));
}

#[test]
fn regular_times_are_the_same_for_all_windows_of_a_subscriber() {
    let every = Span::from_ms(30_000);
    let mut world = World::new(vec![terms(Mode::Batch { every })]);
    world.arrive(0, "{}", 1, false);
    world.now = world.now.plus(Duration::from_millis(1_234));
    world.arrive(0, "[]", 1, false);
    let due: BTreeSet<Timestamp> = world.windows.values().map(|window| window.due_at).collect();
    assert_eq!(due.len(), 1);
    assert!(due.first().unwrap().since(START) <= every.0);
}
