//! Keeping: types and metrics have terms of their own, nothing goes uncounted, and what nobody needs any more goes.

use std::time::Duration;

use tidegate_core::id::MetricNo;
use tidegate_core::observe::{Grain, Kind, Sight, Spec};
use tidegate_core::retention::Retention;
use tidegate_core::retry::Next;
use tidegate_core::time::Timestamp;

use super::bench::{Bench, Draft, PROJECT, START, draft};
use super::observe::{
    counted, counter, declare, declare_kept, drafts, found, index, index_all, observe, search, sum, take_back,
};
use super::retention::{DELIVERIES, EVENTS, round, round_of, terms};
use super::{Case, named};
use crate::{Advance, Buckets, Flush, Metric, NewBackfill, TypeName};

pub(super) fn cases() -> Vec<Case> {
    named!["keeping":
        what_is_not_counted_yet_stays,
        what_a_dead_process_left_uncounted_stays,
        without_a_metric_nobody_waits,
        a_type_may_keep_its_events_longer,
        a_type_may_keep_its_events_for_less,
        a_short_term_takes_nothing_that_is_needed,
        a_type_that_loses_its_term_is_kept_like_all_others,
        types_of_the_same_name_have_terms_of_their_own,
        a_term_is_remembered_and_can_change,
        it_is_known_since_when_all_events_are_there,
        each_type_knows_since_when_its_events_are_there,
        short_buckets_go_first,
        a_metric_may_have_a_term_of_its_own,
        weeks_of_states_stay,
        ended_metrics_go_with_all_they_have,
        an_ended_metric_stays_while_something_may_add_to_it,
        values_go_with_their_events,
        objects_without_news_are_forgotten,
        changes_of_objects_go_in_time,
        old_declarations_go_and_new_ones_stay,
        backfills_are_forgotten_when_they_can_not_be_asked_for_again,
    ]
}

const DAY_MS: u64 = 86_400_000;

async fn ids(bench: &Bench) -> Vec<String> {
    bench.events(PROJECT).await.into_iter().map(|event| event.id).collect()
}

/// Counts everything that waits under one key.
async fn count_all(bench: &Bench, metric: MetricNo) {
    observe(bench, |event, slab| slab.count(metric, Grain::S5, "[]", event.time, 0)).await;
}

fn kept(ms: u64) -> Option<i64> {
    i64::try_from(ms).ok()
}

async fn what_is_not_counted_yet_stays(mut bench: Bench) {
    let metric = declare(&bench, "order.paid", vec![counter("all", "")]).await[0].2;
    bench.send(drafts(&["a", "b"])).await;
    bench.send([draft("c").kind("other")]).await;
    bench.pass(EVENTS * 3);
    let swept = round(&bench, 100).await;
    assert_eq!(swept.events, 0, "however long it takes");
    assert!(swept.due.is_some_and(|due| due <= bench.later(EVENTS)), "it looks again");
    count_all(&bench, metric).await;
    bench.send(drafts(&["d"])).await;
    assert_eq!(round(&bench, 2).await.events, 3);
    assert_eq!(ids(&bench).await, ["d"]);
    assert_eq!(sum(&counted(&bench, metric, Grain::D1).await, "[]"), 3);
}

async fn what_a_dead_process_left_uncounted_stays(mut bench: Bench) {
    let metric = declare(&bench, "order.paid", vec![counter("all", "")]).await[0].2;
    bench.send(drafts(&["a"])).await;
    bench.reopen().await;
    bench.send(drafts(&["b"])).await;
    bench.pass(EVENTS * 3);
    round(&bench, 100).await;
    assert_eq!(ids(&bench).await, ["a", "b"]);
    count_all(&bench, metric).await;
    assert_eq!(round(&bench, 100).await.events, 2);
    assert_eq!(sum(&counted(&bench, metric, Grain::D1).await, "[]"), 2);
}

async fn without_a_metric_nobody_waits(mut bench: Bench) {
    declare(&bench, "order.paid", vec![counter("all", "")]).await;
    bench.send(drafts(&["a"])).await;
    take_back(&bench, "order.paid").await;
    bench.pass(EVENTS);
    assert_eq!(round(&bench, 100).await.events, 1);
}

async fn a_type_may_keep_its_events_longer(mut bench: Bench) {
    declare_kept(&bench, "order.paid", Vec::new(), kept(EVENTS * 5)).await;
    bench.send((0..20).map(|n| draft(format!("long{n}")))).await;
    bench.send([draft("usual").kind("other"), draft("too").from("elsewhere")]).await;
    bench.pass(EVENTS);
    assert_eq!(round(&bench, 3).await.events, 2);
    assert_eq!(ids(&bench).await.len(), 20);
    bench.reopen().await;
    bench.pass(EVENTS * 4 - 1);
    let swept = round(&bench, 3).await;
    assert_eq!((swept.events, swept.due), (0, Some(bench.later(1))), "it says when");
    bench.pass(1);
    assert_eq!(round(&bench, 3).await.events, 20);
    assert!(ids(&bench).await.is_empty());
    let again = bench.send(drafts(&["long1"])).await;
    assert_eq!(super::bench::statuses(&again), [crate::UnitStatus::Accepted], "its id is new again");
}

async fn a_type_may_keep_its_events_for_less(mut bench: Bench) {
    declare_kept(&bench, "order.paid", Vec::new(), kept(1_000)).await;
    bench.send((0..7).map(|n| draft(format!("short{n}"))).chain([draft("usual").kind("other")])).await;
    bench.pass(999);
    let swept = round(&bench, 100).await;
    assert_eq!((swept.events, swept.due), (0, Some(bench.later(1))));
    bench.send(drafts(&["young"])).await;
    bench.pass(1);
    assert_eq!(round(&bench, 3).await.events, 7);
    assert_eq!(ids(&bench).await, ["usual", "young"]);
    bench.pass(1_000);
    assert_eq!(round(&bench, 3).await.events, 1);
    bench.pass(EVENTS);
    assert_eq!(round(&bench, 3).await.events, 1);
}

async fn a_short_term_takes_nothing_that_is_needed(mut bench: Bench) {
    let metric = declare_kept(&bench, "order.paid", vec![counter("all", "")], kept(1_000)).await[0].2;
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("sent").to(subscriber), draft("free")]).await;
    bench.pass(1_000);
    assert_eq!(round(&bench, 100).await.events, 0, "they are not counted");
    count_all(&bench, metric).await;
    let job = bench.claim_one(subscriber).await;
    assert_eq!(round(&bench, 100).await.events, 1);
    assert_eq!(ids(&bench).await, ["sent"]);
    bench.finish(&job, Next::RetryAt(bench.later(90_000))).await;
    bench.pass(90_000);
    assert_eq!(round(&bench, 100).await.events, 0, "however long it takes");
    let job = bench.claim_one(subscriber).await;
    bench.deliver(&job).await;
    assert_eq!(round(&bench, 100).await.events, 1);
}

async fn a_type_that_loses_its_term_is_kept_like_all_others(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    declare_kept(&bench, "order.paid", Vec::new(), kept(EVENTS * 100)).await;
    declare_kept(&bench, "order.sent", Vec::new(), kept(EVENTS * 100)).await;
    bench.send((0..5).map(|n| draft(format!("paid{n}")))).await;
    bench
        .send([draft("needed").to(subscriber), draft("sent").kind("order.sent"), draft("x").kind("other")])
        .await;
    bench.pass(EVENTS * 2);
    assert_eq!(round(&bench, 2).await.events, 1);
    take_back(&bench, "order.paid").await;
    assert_eq!(round(&bench, 2).await.events, 5, "wherever they were");
    assert_eq!(ids(&bench).await, ["needed", "sent"]);
    let job = bench.claim_one(subscriber).await;
    bench.deliver(&job).await;
    assert_eq!(round(&bench, 2).await.events, 1);
    declare(&bench, "order.sent", Vec::new()).await;
    assert_eq!(round(&bench, 2).await.events, 1);
}

async fn types_of_the_same_name_have_terms_of_their_own(mut bench: Bench) {
    declare_kept(&bench, "order.paid", Vec::new(), kept(1_000)).await;
    let mixed = |n: i32| [draft(format!("short{n}")), draft(format!("usual{n}")).from("elsewhere")];
    bench.send((0..6).flat_map(mixed)).await;
    bench.pass(1_000);
    assert_eq!(round(&bench, 2).await.events, 6);
    bench.send(mixed(9)).await;
    bench.pass(EVENTS - 1_000);
    assert_eq!(round(&bench, 2).await.events, 7);
    assert_eq!(ids(&bench).await, ["usual9"]);
}

async fn a_term_is_remembered_and_can_change(mut bench: Bench) {
    declare_kept(&bench, "order.paid", Vec::new(), kept(EVENTS * 3)).await;
    bench.send(drafts(&["a"])).await;
    bench.pass(EVENTS * 2);
    bench.reopen().await;
    assert_eq!(round(&bench, 100).await.events, 0);
    declare_kept(&bench, "order.paid", Vec::new(), kept(EVENTS * 4)).await;
    bench.pass(EVENTS);
    assert_eq!(round(&bench, 100).await.events, 0, "it is kept longer now");
    declare_kept(&bench, "order.paid", Vec::new(), kept(EVENTS)).await;
    assert_eq!(round(&bench, 100).await.events, 1, "and now for less");
}

async fn kept_since(bench: &Bench, type_name: &str) -> Option<Timestamp> {
    let of = TypeName { project: PROJECT, service: "shop".to_owned(), type_name: type_name.to_owned() };
    bench.store().kept_since(of).await.expect("the store works")
}

async fn it_is_known_since_when_all_events_are_there(mut bench: Bench) {
    assert_eq!(kept_since(&bench, "order.paid").await, None, "nothing is gone");
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("a").to(subscriber)]).await;
    bench.pass(1_500);
    let second = bench.now;
    bench.send(drafts(&["b"])).await;
    bench.pass(1_500);
    bench.send(drafts(&["c"])).await;
    bench.pass(EVENTS - 1_500);
    assert_eq!(round(&bench, 100).await.events, 1, "one is needed, and one is young");
    assert_eq!(kept_since(&bench, "order.paid").await, Some(second));
    let job = bench.claim_one(subscriber).await;
    bench.deliver(&job).await;
    assert_eq!(round(&bench, 100).await.events, 1);
    bench.reopen().await;
    assert_eq!(kept_since(&bench, "order.paid").await, Some(second), "an older one changes nothing");
}

async fn each_type_knows_since_when_its_events_are_there(mut bench: Bench) {
    declare_kept(&bench, "long", Vec::new(), kept(EVENTS * 9)).await;
    declare_kept(&bench, "short", Vec::new(), kept(1_000)).await;
    let first = bench.now;
    bench.send([draft("a").kind("long"), draft("b").kind("short"), draft("c")]).await;
    bench.pass(EVENTS);
    let second = bench.now;
    bench.send([draft("d").kind("short")]).await;
    bench.pass(1_000);
    assert_eq!(round(&bench, 100).await.events, 3);
    assert_eq!(kept_since(&bench, "long").await, None);
    assert_eq!(kept_since(&bench, "short").await, Some(second));
    assert_eq!(kept_since(&bench, "order.paid").await, Some(first));
    declare(&bench, "short", Vec::new()).await;
    assert_eq!(kept_since(&bench, "short").await, Some(second), "what is gone is gone");
    declare_kept(&bench, "new", Vec::new(), kept(EVENTS * 9)).await;
    assert!(kept_since(&bench, "new").await.is_some(), "it was like all others before");
}

fn for_days(days: u32) -> Retention {
    Retention { rollups: days * Duration::from_hours(24), ..terms() }
}

/// How many buckets of each length a metric has.
async fn buckets(bench: &Bench, metric: MetricNo) -> [usize; 6] {
    let mut found = [0; 6];
    for (place, grain) in Grain::ALL.into_iter().enumerate() {
        let all = vec![Buckets { grain, from: i64::MIN, to: i64::MAX }];
        let rollups = bench.store().rollups(metric, all).await.expect("the store works");
        found[place] = rollups.pages.len();
    }
    found
}

/// Ten events, some seconds apart, counted.
async fn ten(bench: &Bench, metric: MetricNo, name: &str) {
    let events = (0..10)
        .map(|n| Draft { time: bench.now.plus(Duration::from_secs(n * 7)), ..draft(format!("{name}{n}")) });
    bench.send(events).await;
    count_all(bench, metric).await;
}

async fn short_buckets_go_first(mut bench: Bench) {
    let metric = declare(&bench, "order.paid", vec![counter("all", "")]).await[0].2;
    ten(&bench, metric, "a").await;
    let [seconds, rest @ ..] = buckets(&bench, metric).await;
    assert!(seconds == 10 && rest.iter().all(|count| (1..3).contains(count)));
    bench.pass(8 * DAY_MS);
    let swept = round_of(&bench, for_days(400), 3).await;
    assert_eq!((swept.rollups, buckets(&bench, metric).await[0]), (0, 10), "not before its time");
    assert!(swept.due.is_some_and(|due| due <= bench.later(3_600_000)), "{:?}", swept.due);
    for (days, left) in [(9, 5), (36, 4), (101, 3), (408, 0)] {
        bench.now = START.plus(Duration::from_millis(days * DAY_MS));
        assert!(round_of(&bench, for_days(400), 3).await.rollups > 0);
        let found = buckets(&bench, metric).await.iter().filter(|count| **count > 0).count();
        assert_eq!(found, left, "after {days} days");
    }
}

async fn a_metric_may_have_a_term_of_its_own(mut bench: Bench) {
    let short = |keep_ms| Spec { keep_ms, ..counter("short", "") };
    let metrics = declare(&bench, "order.paid", vec![short(kept(DAY_MS)), counter("usual", "")]).await;
    for (_, name, metric) in &metrics {
        bench.send([draft(format!("{name}1")).kind("other")]).await;
        count_all(&bench, *metric).await;
    }
    let of = |name: &str| metrics.iter().find(|(_, known, _)| known == name).expect("it was declared").2;
    bench.pass(9 * DAY_MS);
    let swept = round_of(&bench, for_days(400), 100).await;
    assert_eq!((buckets(&bench, of("short")).await[3], buckets(&bench, of("usual")).await[3]), (0, 1));
    assert!(swept.due.is_some_and(|due| due <= bench.later(DAY_MS)), "what comes next is due by then");
    let again = declare(&bench, "order.paid", vec![short(None), counter("usual", "")]).await;
    assert_eq!(again, metrics, "it counts the same");
    ten(&bench, of("short"), "b").await;
    bench.pass(9 * DAY_MS);
    round_of(&bench, for_days(400), 100).await;
    assert_eq!(buckets(&bench, of("short")).await[3], 1);
}

fn states() -> Vec<Spec> {
    let spec = |kind| {
        let (name, shape) = ("order data.status".to_owned(), String::new());
        Spec { kind, name, shape, keys_max: 10, keep_ms: None }
    };
    vec![spec(Kind::State), spec(Kind::Transition)]
}

/// An event that says in which state an object is, counted.
async fn see(bench: &Bench, metrics: &[Metric], object: &str, value: &str) {
    let id = format!("{object}-{value}-{}", bench.now.as_ms());
    bench.send([Draft { time: bench.now, ..draft(id) }]).await;
    let (state, transition) = (metrics[0].2, metrics[1].2);
    observe(bench, |event, slab| {
        let (object, value, policy) = (object.into(), value.into(), std::sync::Arc::default());
        slab.sight(Sight { state, transition, object, value, time: event.time, event: event.seq, policy });
    })
    .await;
}

async fn weeks_of_states_stay(mut bench: Bench) {
    let metrics = declare(&bench, "order.paid", states()).await;
    see(&bench, &metrics, "a", "NEW").await;
    bench.pass(50 * DAY_MS);
    see(&bench, &metrics, "a", "PAID").await;
    bench.pass(20 * DAY_MS);
    round_of(&bench, for_days(30), 100).await;
    let states = buckets(&bench, metrics[0].2).await;
    assert_eq!((states[4], states[5]), (1, 2), "of days the last, of weeks all");
    assert_eq!(buckets(&bench, metrics[1].2).await[5], 1);
    let weeks = counted(&bench, metrics[0].2, Grain::D7).await;
    assert_eq!((sum(&weeks, "[\"NEW\"]"), sum(&weeks, "[\"PAID\"]")), (0, 1));
}

async fn ended_metrics_go_with_all_they_have(mut bench: Bench) {
    let metrics = declare(&bench, "order.paid", [states(), vec![counter("all", "")]].concat()).await;
    let other = declare(&bench, "order.sent", vec![counter("all", "")]).await[0].2;
    let metrics: Vec<Metric> = [Kind::State, Kind::Transition, Kind::Counter]
        .map(|kind| metrics.iter().find(|metric| metric.0 == kind).expect("it was declared").clone())
        .to_vec();
    for n in 0..7 {
        see(&bench, &metrics, &format!("o{n}"), "NEW").await;
    }
    ten(&bench, metrics[2].2, "x").await;
    ten(&bench, other, "y").await;
    take_back(&bench, "order.paid").await;
    observe(&bench, |_, _| ()).await;
    bench.pass(1_000);
    round_of(&bench, for_days(400), 3).await;
    assert!(buckets(&bench, metrics[2].2).await[0] > 0, "not at once");
    bench.pass(60_000);
    let swept = round_of(&bench, for_days(400), 3).await;
    assert_eq!(swept.objects, 7);
    for (.., metric) in &metrics {
        assert_eq!(buckets(&bench, *metric).await, [0; 6]);
        let all = bench.store().rollups(*metric, Vec::new()).await.expect("the store works");
        assert!(all.keys.is_empty());
    }
    assert_eq!(buckets(&bench, other).await[0], 10);
    let swept = round_of(&bench, for_days(400), 3).await;
    assert_eq!((swept.rollups, swept.objects), (0, 0), "nothing is left of them");
    let anew = declare(&bench, "order.paid", states()).await;
    assert!(anew[0].2 > metrics.iter().map(|metric| metric.2).max().unwrap_or(0), "no number is used again");
}

async fn an_ended_metric_stays_while_something_may_add_to_it(mut bench: Bench) {
    let metric = declare(&bench, "order.paid", vec![counter("all", "")]).await[0].2;
    declare(&bench, "order.sent", vec![counter("all", "")]).await;
    ten(&bench, metric, "a").await;
    bench.send(drafts(&["late"])).await;
    take_back(&bench, "order.paid").await;
    bench.send(drafts(&["later"])).await;
    bench.pass(3_600_000);
    let swept = round_of(&bench, for_days(400), 100).await;
    assert_eq!((swept.rollups, swept.events), (0, 10), "the last one is not counted");
    assert!(swept.due.is_some_and(|due| due <= bench.later(3_600_000)), "it looks again");
    count_all(&bench, metric).await;
    assert!(round_of(&bench, for_days(400), 100).await.rollups > 0);
    assert_eq!(buckets(&bench, metric).await, [0; 6]);
}

async fn values_go_with_their_events(mut bench: Bench) {
    let metrics =
        declare_kept(&bench, "order.paid", vec![index("data.n"), index("type")], kept(EVENTS * 2)).await;
    bench.send(drafts(&["a", "bb"])).await;
    index_all(&bench, &metrics).await;
    bench.pass(EVENTS);
    assert_eq!(round(&bench, 2).await.postings, 0);
    assert_eq!(found(&bench, search(&metrics, "data.n == 1", None, 10)).await.0, ["a"]);
    bench.pass(EVENTS);
    assert_eq!(round(&bench, 2).await.postings, 3, "two numbers and one type");
    bench.send(drafts(&["c"])).await;
    index_all(&bench, &metrics).await;
    assert_eq!(round(&bench, 2).await.postings, 0);
    assert_eq!(found(&bench, search(&metrics, "data.n == 1", None, 10)).await.0, ["c"]);
}

async fn objects_without_news_are_forgotten(mut bench: Bench) {
    let metrics = declare(&bench, "order.paid", states()).await;
    for n in 0..5 {
        see(&bench, &metrics, &format!("old{n}"), "NEW").await;
    }
    see(&bench, &metrics, "busy", "NEW").await;
    bench.pass(20 * DAY_MS);
    see(&bench, &metrics, "busy", "PAID").await;
    round_of(&bench, for_days(30), 2).await;
    bench.pass(10 * DAY_MS + 1_000);
    let swept = round_of(&bench, for_days(30), 2).await;
    assert_eq!(swept.objects, 5);
    let now = async |bench: &Bench| {
        let weeks = counted(bench, metrics[0].2, Grain::D7).await;
        (sum(&weeks, "[\"NEW\"]"), sum(&weeks, "[\"PAID\"]"))
    };
    assert_eq!(now(&bench).await, (0, 1), "they are in no state any more");
    assert_eq!(round_of(&bench, for_days(30), 2).await.objects, 0);
    see(&bench, &metrics, "old1", "PAID").await;
    assert_eq!(now(&bench).await, (0, 2), "one is seen as if for the first time");
    bench.pass(20 * DAY_MS);
    assert_eq!(round_of(&bench, for_days(30), 2).await.objects, 1, "the busy one's turn has come");
    assert_eq!(now(&bench).await, (0, 1));
}

async fn changes_of_objects_go_in_time(mut bench: Bench) {
    let metrics = declare(&bench, "order.paid", states()).await;
    for n in 0..30 {
        see(&bench, &metrics, "busy", &format!("S{}", n % 7)).await;
        bench.pass(2 * DAY_MS);
    }
    round_of(&bench, for_days(30), 4).await;
    round_of(&bench, for_days(30), 4).await;
    let weeks = counted(&bench, metrics[0].2, Grain::D7).await;
    assert_eq!((0..7).map(|n| sum(&weeks, &format!("[\"S{n}\"]"))).sum::<i64>(), 1, "it is in one state");
    see(&bench, &metrics, "busy", "END").await;
    let weeks = counted(&bench, metrics[0].2, Grain::D7).await;
    assert_eq!(sum(&weeks, "[\"END\"]"), 1);
    bench.pass(100 * DAY_MS);
    assert_eq!(round_of(&bench, for_days(30), 4).await.objects, 1);
}

async fn old_declarations_go_and_new_ones_stay(mut bench: Bench) {
    let versions = async |bench: &Bench| {
        let all = bench.store().type_versions(0).await.expect("the store works");
        all.into_iter()
            .map(|row| (row.type_name, row.definition.is_some(), row.metrics.len()))
            .collect::<Vec<_>>()
    };
    declare(&bench, "order.paid", Vec::new()).await;
    declare(&bench, "gone", Vec::new()).await;
    let metric = declare(&bench, "order.paid", vec![counter("all", "")]).await[0].2;
    bench.send(drafts(&["a"])).await;
    take_back(&bench, "gone").await;
    declare(&bench, "order.paid", vec![counter("all", ""), counter("more", "")]).await;
    round(&bench, 100).await;
    let needed = [("gone", true, 0), ("order.paid", true, 1), ("gone", false, 0), ("order.paid", true, 2)];
    let needed = needed.map(|(name, is_there, metrics)| (name.to_owned(), is_there, metrics));
    assert_eq!(versions(&bench).await, needed, "an event was judged by them");
    count_all(&bench, metric).await;
    bench.pass(EVENTS);
    round(&bench, 100).await;
    assert_eq!(versions(&bench).await, [needed[3].clone()]);
}

async fn backfills_are_forgotten_when_they_can_not_be_asked_for_again(mut bench: Bench) {
    bench.send(drafts(&["a"])).await;
    let metrics = declare_kept(&bench, "order.paid", vec![counter("all", "")], kept(DELIVERIES * 3)).await;
    let new = NewBackfill {
        project: PROJECT,
        service: "shop".to_owned(),
        type_name: "order.paid".to_owned(),
        metrics,
        definition: "{}".to_owned(),
    };
    let row = bench.store().start_backfill(new.clone(), bench.now).await.expect("it is the first");
    let step = |is_last| {
        let (no, after, through, looked) = (row.no, row.after, row.until, 1);
        Flush {
            advance: Advance::Backfill { no, after, through, looked, is_last },
            delta: Default::default(),
        }
    };
    bench.store().observe(step(true), bench.now).await.expect("it is the next step");
    bench.pass(DELIVERIES);
    observe(&bench, |_, _| ()).await;
    round(&bench, 100).await;
    assert!(bench.store().start_backfill(new.clone(), bench.now).await.is_err(), "it would count twice");
    bench.pass(DELIVERIES * 2);
    assert_eq!(round(&bench, 100).await.events, 1);
    round(&bench, 100).await;
    let left = bench.store().backfills(PROJECT, None, 10).await.expect("the store works");
    assert!(left.items.is_empty());
    assert!(bench.store().start_backfill(new, bench.now).await.is_ok());
}
