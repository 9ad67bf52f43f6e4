//! States that are counted anew: each event once, in order, whatever comes or ends in between.

mod stopping;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::id::MetricNo;
use tidegate_core::observe::{Delta, Grain, Kind, Sight, Slab, Spec};

use super::bench::{Bench, Draft, PROJECT, START, draft};
use super::observe::{counted, counter, declare, declare_as, declare_kept, observe, take_back};
use super::retention::{EVENTS, round};
use super::{Case, named};
use crate::{
    Advance, BackfillRow, Error, EventRow, Flush, LastStep, Metric, NewBackfill, Slice, TypeVersion,
};

pub(super) fn cases() -> Vec<Case> {
    let own = named!("rebuilds":
        the_past_of_a_state_is_counted_in_order,
        what_is_not_observed_at_the_end_is_counted_once,
        the_last_step_is_bounded_and_may_be_refused,
        types_that_share_a_state_are_counted_together,
        what_is_told_in_another_way_can_be_counted_anew,
        what_can_not_be_counted_anew_is_refused,
        what_nobody_declares_any_more_takes_no_place,
        nothing_goes_before_it_is_looked_at,
        any_order_of_things_comes_to_the_same,
    );
    own.into_iter().chain(stopping::cases()).collect()
}

fn specs() -> Vec<Spec> {
    let spec = |kind| Spec {
        kind,
        name: "order data.status".to_owned(),
        shape: String::new(),
        keys_max: 50,
        keep_ms: None,
    };
    vec![spec(Kind::State), spec(Kind::Transition)]
}

/// An event that says which object is in which state, so many seconds after the start.
fn told(n: usize, object: &str, state: &str, second: u64) -> Draft {
    Draft { time: START.plus(Duration::from_secs(second)), ..draft(format!("{object}:{state}:{n}")) }
}

/// The numbers of the state and of its transitions, if a type has them.
fn numbers(metrics: &[Metric]) -> Option<(MetricNo, MetricNo)> {
    let of = |kind| metrics.iter().find(|metric| metric.0 == kind).map(|metric| metric.2);
    of(Kind::State).zip(of(Kind::Transition))
}

/// What the events say under these numbers.
fn delta<'e>(events: impl Iterator<Item = (&'e EventRow, (MetricNo, MetricNo))>) -> Delta {
    let mut slab = Slab::new(1);
    events.for_each(|(event, numbers)| sight(event, numbers, &mut slab));
    slab.into_delta()
}

fn sight(event: &EventRow, (state, transition): (MetricNo, MetricNo), slab: &mut Slab) {
    let (object, rest) = event.id.split_once(':').expect("made here");
    let (value, _) = rest.split_once(':').expect("made here");
    slab.sight(Sight {
        state,
        transition,
        object: object.into(),
        value: value.into(),
        time: event.time,
        event: event.seq,
        policy: Arc::default(),
    });
}

async fn versions(bench: &Bench) -> Vec<TypeVersion> {
    bench.store().type_versions(0).await.expect("the store works")
}

/// What the type of an event was in its day.
fn then<'v>(versions: &'v [TypeVersion], event: &EventRow) -> &'v [Metric] {
    let of = versions.iter().filter(|of| of.type_name == event.type_name && of.version <= event.version);
    of.last().map_or(&[], |of| &of.metrics)
}

/// Observes everything that waits, by the numbers of its day.
async fn observe_all(bench: &Bench) {
    let versions = versions(bench).await;
    observe(bench, |event, slab| {
        if let Some(numbers) = numbers(then(&versions, event)) {
            sight(event, numbers, slab);
        }
    })
    .await;
}

async fn start(bench: &Bench, type_name: &str, metrics: &[Metric]) -> crate::Result<BackfillRow> {
    let new = NewBackfill {
        project: PROJECT,
        service: "shop".to_owned(),
        type_name: type_name.to_owned(),
        metrics: metrics.to_vec(),
        definition: "{}".to_owned(),
    };
    bench.store().start_backfill(new, bench.now).await
}

/// The events that a rebuild counts, of those that it looks at.
fn meant<'s>(
    row: &'s BackfillRow,
    versions: &'s [TypeVersion],
    slice: &'s Slice,
) -> impl Iterator<Item = &'s EventRow> {
    slice.events.iter().map(|(_, event)| event).filter(|event| {
        let told = then(versions, event).iter().any(|(.., no)| row.rebuild.instead_of(*no).is_some());
        told || row.rebuild.types.iter().any(|(name, _)| *name == event.type_name)
    })
}

/// What a rebuild should have made: a model that knows nothing of the store.
#[derive(Default)]
struct Model {
    objects: BTreeMap<String, (i64, i64, String)>,
    states: BTreeMap<(i64, String), i64>,
    changes: BTreeMap<(i64, String), i64>,
}

impl Model {
    fn step<'e>(&mut self, events: impl Iterator<Item = &'e EventRow>) {
        let mut events: Vec<&EventRow> = events.collect();
        events.sort_by_key(|event| (event.time, event.seq));
        for event in events {
            let mut parts = event.id.split(':').map(str::to_owned);
            let (object, state) = (parts.next().expect("made here"), parts.next().expect("made here"));
            let (now, hour) = ((event.time.as_ms(), event.seq), Grain::H1.start(event.time));
            let from = match self.objects.get(&object) {
                Some((time, seq, _)) if (*time, *seq) > now => continue,
                Some((.., before)) if *before == state => None,
                Some((.., before)) => {
                    *self.states.entry((hour, format!("[\"{before}\"]"))).or_default() -= 1;
                    Some(before.clone())
                }
                None => Some("(none)".to_owned()),
            };
            if let Some(from) = from {
                *self.states.entry((hour, format!("[\"{state}\"]"))).or_default() += 1;
                *self.changes.entry((hour, format!("[\"{from}\",\"{state}\"]"))).or_default() += 1;
            }
            self.objects.insert(object, (now.0, now.1, state));
        }
        self.states.retain(|_, count| *count != 0);
    }

    /// Compares it with what the store has under a type's numbers.
    async fn check(&self, bench: &Bench, metrics: &[Metric]) {
        let (state, transition) = numbers(metrics).expect("it is declared");
        for (no, expected) in [(state, &self.states), (transition, &self.changes)] {
            let found = counted(bench, no, Grain::H1).await;
            let found = found.into_iter().map(|(place, (count, _))| (place, count));
            let found: BTreeMap<_, _> = found.filter(|(_, count)| *count != 0).collect();
            assert_eq!(&found, expected);
        }
    }
}

/// One step of the only rebuild; says what it looked at, and whether that was all there is.
async fn step(bench: &Bench, limit: usize, model: &mut Model) -> (BackfillRow, bool) {
    let running = bench.store().backfills_running().await.expect("the store works");
    let [row] = &running[..] else { panic!("one runs: {running:?}") };
    let slice = bench.store().unbackfilled(row.clone(), limit, usize::MAX).await.expect("the store works");
    let versions = versions(bench).await;
    let new = numbers(&row.metrics).expect("it counts states");
    let (no, after, through, looked) = (row.no, row.after, slice.through, slice.events.len() as u64);
    let advance = Advance::Backfill { no, after, through, looked, is_last: false };
    let flush = Flush { advance, delta: delta(meant(row, &versions, &slice).map(|event| (event, new))) };
    if through > after {
        bench.store().observe(flush.clone(), bench.now).await.expect("it is the next step");
        let again = bench.store().observe(flush, bench.now).await;
        assert!(matches!(again, Err(Error::Conflict(_))), "{again:?}");
        model.step(meant(row, &versions, &slice));
    }
    (BackfillRow { after: through, ..row.clone() }, slice.is_end)
}

/// The last step; says whether it was taken.
async fn finish(bench: &Bench, row: &BackfillRow, model: &mut Model) -> bool {
    let (versions, of) = (versions(bench).await, row.clone());
    let looked = Arc::new(std::sync::Mutex::new(Slice::default()));
    let seen = Arc::clone(&looked);
    let last: LastStep = Box::new(move |slice| {
        *seen.lock().expect("nobody panics") = slice.clone();
        let new = numbers(&of.metrics).expect("it counts states");
        Some(delta(meant(&of, &versions, slice).map(|event| (event, new))))
    });
    let done = bench.store().finish_rebuild(row.clone(), last, bench.now).await.expect("the store works");
    let versions = self::versions(bench).await;
    let slice = looked.lock().expect("nobody panics").clone();
    if done {
        model.step(meant(row, &versions, &slice));
    }
    done
}

/// Steps until it is at its end, and the last one.
async fn run(bench: &Bench, limit: usize, model: &mut Model) {
    for _ in 0..1_000 {
        let (row, is_end) = step(bench, limit, model).await;
        if is_end && finish(bench, &row, model).await {
            return;
        }
    }
    panic!("it ends");
}

/// The event that came last.
async fn newest(bench: &Bench) -> Option<EventRow> {
    bench.events(PROJECT).await.into_iter().max_by_key(|event| event.seq)
}

/// What a type declares now.
async fn declared(bench: &Bench, type_name: &str) -> Vec<Metric> {
    let types = bench.store().configuration(0).await.expect("the store works").types;
    types.into_iter().find(|row| row.type_name == type_name).expect("it is declared").metrics
}

async fn the_past_of_a_state_is_counted_in_order(mut bench: Bench) {
    bench.send([told(1, "a", "NEW", 1), told(2, "b", "NEW", 2), told(3, "a", "PAID", 30)]).await;
    let before = declare(&bench, "order.paid", specs()).await;
    bench.send([told(4, "a", "SENT", 40), told(5, "b", "LOST", 20)]).await;
    observe_all(&bench).await;
    let started = start(&bench, "order.paid", &before).await.expect("there is a past");
    assert!(!started.rebuild.is_empty() && started.metrics.len() == 2, "{started:?}");
    let again = start(&bench, "order.paid", &before).await;
    assert!(matches!(again, Err(Error::Conflict(_))), "it is under way: {again:?}");
    let mut model = Model::default();
    let (_, is_end) = step(&bench, 2, &mut model).await;
    assert!(!is_end);
    bench.reopen().await;
    assert_eq!(declared(&bench, "order.paid").await, before, "the old numbers are shown until the end");
    bench.send([told(6, "b", "PAID", 15), told(7, "c", "NEW", 50)]).await;
    observe_all(&bench).await;
    let version = bench.version().await;
    run(&bench, 1, &mut model).await;
    assert!(bench.version().await > version);
    let after = declared(&bench, "order.paid").await;
    assert!(after.iter().zip(&before).all(|(new, old)| new.2 > old.2 && new.1 == old.1), "{after:?}");
    model.check(&bench, &after).await;
    assert_eq!(model.changes.values().sum::<i64>(), 6, "what came too late changed nothing");
    bench.send([told(8, "c", "PAID", 60)]).await;
    observe_all(&bench).await;
    model.step(newest(&bench).await.iter());
    model.check(&bench, &after).await;
    let page = bench.store().backfills(PROJECT, None, 9).await.expect("the store works");
    assert_eq!((page.items[0].looked, page.items[0].finished_at), (7, Some(bench.now)));
    let more = start(&bench, "order.paid", &after).await;
    assert!(matches!(more, Err(Error::Conflict(_))), "everything is counted: {more:?}");
}

async fn what_is_not_observed_at_the_end_is_counted_once(bench: Bench) {
    bench.send([told(1, "a", "NEW", 1)]).await;
    let before = declare(&bench, "order.paid", specs()).await;
    start(&bench, "order.paid", &before).await.expect("there is a past");
    bench.send([told(2, "a", "PAID", 2)]).await;
    let mut model = Model::default();
    let (row, is_end) = step(&bench, 9, &mut model).await;
    assert!(is_end);
    bench.send([told(3, "a", "SENT", 3), told(4, "b", "NEW", 4)]).await;
    assert!(finish(&bench, &row, &mut model).await, "few are left");
    let late = finish_again(&bench, &row).await;
    assert!(matches!(late, Err(Error::Conflict(_))), "{late:?}");
    observe_all(&bench).await;
    let after = declared(&bench, "order.paid").await;
    model.check(&bench, &after).await;
    assert_eq!(model.changes.values().sum::<i64>(), 4);
    bench.send([told(5, "b", "PAID", 5)]).await;
    observe_all(&bench).await;
    model.step(newest(&bench).await.iter());
    model.check(&bench, &after).await;
}

async fn finish_again(bench: &Bench, row: &BackfillRow) -> crate::Result<bool> {
    let last: LastStep = Box::new(|_| Some(Delta::default()));
    bench.store().finish_rebuild(row.clone(), last, bench.now).await
}

async fn the_last_step_is_bounded_and_may_be_refused(bench: Bench) {
    bench.send([told(1, "a", "NEW", 1)]).await;
    let before = declare(&bench, "order.paid", specs()).await;
    start(&bench, "order.paid", &before).await.expect("there is a past");
    let mut model = Model::default();
    let (row, _) = step(&bench, 9, &mut model).await;
    for some in 0..3 {
        bench.send((0..700).map(|n| told(some * 1_000 + n, &format!("{n}"), "NEW", 2))).await;
    }
    assert!(!finish(&bench, &row, &mut model).await, "too many are left");
    let (row, _) = step(&bench, 5_000, &mut model).await;
    let cannot: LastStep = Box::new(|_| None);
    assert!(!bench.store().finish_rebuild(row.clone(), cannot, bench.now).await.expect("the store works"));
    assert_eq!(declared(&bench, "order.paid").await, before);
    assert!(finish(&bench, &row, &mut model).await);
    model.check(&bench, &declared(&bench, "order.paid").await).await;
}

async fn types_that_share_a_state_are_counted_together(bench: Bench) {
    bench.send([told(1, "a", "NEW", 1).kind("made"), told(2, "a", "PAID", 2)]).await;
    let made = declare(&bench, "made", specs()).await;
    bench.send([told(3, "b", "NEW", 3).kind("made"), told(4, "b", "PAID", 4)]).await;
    let paid = declare(&bench, "order.paid", specs()).await;
    assert_eq!(made, paid);
    bench.send([told(5, "c", "NEW", 5).kind("made"), told(6, "x", "NEW", 6).kind("other")]).await;
    observe_all(&bench).await;
    let row = start(&bench, "order.paid", &paid).await.expect("there is a past");
    let types: Vec<&str> = row.rebuild.types.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(types, ["made", "order.paid"]);
    // Whoever comes later tells of it as well, and whoever goes has told.
    declare(&bench, "later", specs()).await;
    bench.send([told(7, "c", "PAID", 7).kind("later"), told(8, "a", "SENT", 8).kind("made")]).await;
    take_back(&bench, "made").await;
    bench.send([told(9, "a", "LOST", 9).kind("nothing")]).await;
    let mut model = Model::default();
    run(&bench, 2, &mut model).await;
    let after = declared(&bench, "order.paid").await;
    assert_eq!(declared(&bench, "later").await, after);
    assert_eq!(model.changes.values().sum::<i64>(), 7);
    model.check(&bench, &after).await;
}

async fn what_is_told_in_another_way_can_be_counted_anew(bench: Bench) {
    let by = async |id: &str, more: &str| {
        let definition =
            format!(r#"{{"states":[{{"object":"order","id":"{id}","attributes":["data.status"]{more}}}]}}"#);
        declare_as(&bench, "order.paid", specs(), (None, &definition)).await
    };
    let mut declared_now = by("data.a", "").await;
    bench.send([told(1, "a", "NEW", 1), told(2, "b", "NEW", 2)]).await;
    observe_all(&bench).await;
    for (id, more) in [("data.b", ""), ("data.b", r#","only":["NEW"]"#), ("data.a", "")] {
        let again = start(&bench, "order.paid", &declared_now).await;
        assert!(matches!(&again, Err(Error::Conflict(why)) if why.contains("nothing is left")), "{again:?}");
        assert_eq!(by(id, more).await, declared_now, "it counts on under its number");
        start(&bench, "order.paid", &declared_now).await.expect("the past was told in another way");
        let mut model = Model::default();
        run(&bench, 1, &mut model).await;
        declared_now = declared(&bench, "order.paid").await;
        model.check(&bench, &declared_now).await;
    }
    let last = start(&bench, "order.paid", &declared_now).await;
    assert!(matches!(last, Err(Error::Conflict(_))), "{last:?}");
}

async fn what_can_not_be_counted_anew_is_refused(mut bench: Bench) {
    let conflict = async |bench: &Bench, type_name: &str, metrics: &[Metric]| {
        let Err(Error::Conflict(why)) = start(bench, type_name, metrics).await else { panic!("it began") };
        why
    };
    let mut all = specs();
    all.push(counter("all", ""));
    let made = declare(&bench, "made", all).await;
    bench.send([told(1, "a", "NEW", 1).kind("made"), told(2, "a", "PAID", 2)]).await;
    observe_all(&bench).await;
    let states: Vec<Metric> = made.iter().filter(|metric| metric.0 != Kind::Counter).cloned().collect();
    assert!(
        conflict(&bench, "made", &states).await.contains("nothing is left to count"),
        "all of it was counted"
    );
    let row = start(&bench, "made", &made).await.expect("a counter is left");
    assert!(row.rebuild.is_empty() && row.metrics.len() == 1, "{row:?}");
    let paid = declare_kept(&bench, "order.paid", specs(), Some(1_000_000_000)).await;
    bench.pass(EVENTS + 1_000);
    round(&bench, 10).await;
    assert_eq!(bench.events(PROJECT).await.len(), 1, "what the state has counted is gone");
    assert!(conflict(&bench, "order.paid", &paid).await.contains("no longer kept"));
}

async fn what_nobody_declares_any_more_takes_no_place(bench: Bench) {
    bench.send([told(1, "a", "NEW", 1)]).await;
    let before = declare(&bench, "order.paid", specs()).await;
    let row = start(&bench, "order.paid", &before).await.expect("there is a past");
    let (at_end, _) = step(&bench, 9, &mut Model::default()).await;
    take_back(&bench, "order.paid").await;
    let [stopped] = &all(&bench).await[..] else { panic!("one was asked for") };
    assert_eq!(stopped.stopped.as_deref(), Some("no type declares the state any more"));
    let again = declare(&bench, "order.paid", specs()).await;
    let version = bench.version().await;
    let late = finish_again(&bench, &at_end).await;
    assert!(matches!(late, Err(Error::Conflict(_))), "{late:?}");
    assert_eq!(declared(&bench, "order.paid").await, again, "it is another one by now");
    assert!(!again.iter().any(|metric| row.metrics.contains(metric)));
    assert_eq!(bench.version().await, version);
    let second = start(&bench, "order.paid", &again).await.expect("this one has a past too");
    let mut model = Model::default();
    run(&bench, 9, &mut model).await;
    assert_eq!(declared(&bench, "order.paid").await, second.metrics);
    model.check(&bench, &second.metrics).await;
}

async fn nothing_goes_before_it_is_looked_at(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([told(1, "a", "NEW", 1).to(subscriber)]).await;
    let job = bench.claim_one(subscriber).await;
    bench.pass(EVENTS + 1_000);
    round(&bench, 10).await;
    bench.send([told(2, "a", "PAID", 2)]).await;
    let before = declare(&bench, "order.paid", specs()).await;
    start(&bench, "order.paid", &before).await.expect("there is a past");
    bench.send([told(3, "b", "NEW", 3)]).await;
    observe_all(&bench).await;
    bench.deliver(&job).await;
    bench.pass(EVENTS + 1_000);
    round(&bench, 10).await;
    assert_eq!(bench.events(PROJECT).await.len(), 3, "also what only a delivery had kept");
    let mut model = Model::default();
    run(&bench, 1, &mut model).await;
    model.check(&bench, &declared(&bench, "order.paid").await).await;
    assert_eq!(model.changes.values().sum::<i64>(), 3);
    bench.pass(EVENTS);
    round(&bench, 10).await;
    assert!(bench.events(PROJECT).await.is_empty());
}

async fn all(bench: &Bench) -> Vec<BackfillRow> {
    bench.store().backfills(PROJECT, None, 9).await.expect("the store works").items
}

/// Chance that is the same every time.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

async fn any_order_of_things_comes_to_the_same(mut bench: Bench) {
    for seed in 0..8 {
        let (mut chance, kind) = (Chance(seed), format!("type{seed}"));
        let mut n = 0;
        let mut some = |chance: &mut Chance| -> Vec<Draft> {
            let many = chance.below(6);
            let events = (0..many).map(|_| {
                // One in five was sent before, with another type's or its own id.
                n += usize::from(chance.below(5) > 0);
                let (object, state) = (format!("o{}", chance.below(4)), format!("S{}", chance.below(3)));
                told(n, &object, &state, chance.below(20_000)).kind(&kind)
            });
            events.collect()
        };
        for _ in 0..3 {
            bench.send(some(&mut chance)).await;
        }
        let metrics = declare(&bench, &kind, specs()).await;
        bench.send(some(&mut chance)).await;
        if start(&bench, &kind, &metrics).await.is_err() {
            continue;
        }
        let mut model = Model::default();
        let (mut rounds, mut is_done) = (0, false);
        while !is_done {
            rounds += 1;
            assert!(rounds < 1_000, "it ends when less comes than is counted");
            match chance.below(4) {
                0 => bench.reopen().await,
                1 => observe_all(&bench).await,
                2 if rounds < 40 => {
                    bench.send(some(&mut chance)).await;
                }
                _ => {
                    let limit = chance.below(20) as usize + 1;
                    let (row, is_end) = step(&bench, limit, &mut model).await;
                    if rounds < 40 {
                        bench.send(some(&mut chance)).await;
                    }
                    is_done = is_end && finish(&bench, &row, &mut model).await;
                }
            }
        }
        observe_all(&bench).await;
        model.check(&bench, &declared(&bench, &kind).await).await;
    }
}
