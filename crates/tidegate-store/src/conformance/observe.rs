//! Observing: metrics have numbers, an event is counted once, and the mark says what was.

use std::collections::BTreeMap;

use serde_json::Value;
use tidegate_core::id::MetricNo;
use tidegate_core::observe::page::{CellRef, cells};
use tidegate_core::observe::search::Plan;
use tidegate_core::observe::{Delta, Grain, Kind, Sight, Slab, Spec, value};

use super::bench::{Bench, Draft, PROJECT, START, draft};
use super::{Case, named};
use crate::{
    Advance, Buckets, Change, Error, EventFilter, Flush, Mark, Metric, NewBackfill, Search, Slice,
    ValueFilter,
};

pub(super) fn cases() -> Vec<Case> {
    named!("observe":
        a_metric_keeps_its_number_for_as_long_as_it_counts_the_same,
        types_of_a_service_share_what_they_share,
        types_are_known_as_they_were,
        the_first_metric_begins_with_what_comes_next,
        a_slice_is_counted_once,
        the_mark_survives_the_process,
        buckets_of_all_lengths_add_up,
        keys_beyond_the_limit_are_counted_together,
        a_slice_is_bounded,
        a_backfill_goes_through_the_past_once,
        what_was_left_out_later_can_be_backfilled_later,
        backfills_come_in_pages,
        objects_change_once_and_are_counted,
        events_are_found_by_values_newest_first,
        values_are_listed_with_their_counts,
    )
}

pub(super) fn counter(name: &str, shape: &str) -> Spec {
    Spec { kind: Kind::Counter, name: name.to_owned(), shape: shape.to_owned(), keys_max: 100, keep_ms: None }
}

pub(super) fn index(path: &str) -> Spec {
    Spec { kind: Kind::Index, name: path.to_owned(), shape: String::new(), keys_max: 0, keep_ms: None }
}

pub(super) async fn declare(bench: &Bench, type_name: &str, metrics: Vec<Spec>) -> Vec<Metric> {
    declare_kept(bench, type_name, metrics, None).await
}

/// With a term of its own for its events.
pub(super) async fn declare_kept(
    bench: &Bench,
    type_name: &str,
    metrics: Vec<Spec>,
    keep_ms: Option<i64>,
) -> Vec<Metric> {
    declare_as(bench, type_name, metrics, (keep_ms, "{}")).await
}

/// In these words.
pub(super) async fn declare_as(
    bench: &Bench,
    type_name: &str,
    metrics: Vec<Spec>,
    (keep_ms, definition): (Option<i64>, &str),
) -> Vec<Metric> {
    let change = Change::PutType {
        project: PROJECT,
        service: "shop".to_owned(),
        type_name: type_name.to_owned(),
        definition: definition.to_owned(),
        metrics,
        keep_ms,
    };
    bench.change(change).await;
    let types = bench.store().configuration(0).await.expect("the configuration can be read").types;
    types.into_iter().find(|row| row.type_name == type_name).expect("it was declared").metrics
}

pub(super) async fn take_back(bench: &Bench, type_name: &str) {
    let (service, type_name) = ("shop".to_owned(), type_name.to_owned());
    bench.change(Change::DeleteType { project: PROJECT, service, type_name }).await;
}

async fn a_metric_keeps_its_number_for_as_long_as_it_counts_the_same(bench: Bench) {
    let first = declare(&bench, "a", vec![counter("all", "1"), counter("some", "1")]).await;
    let wider = Spec { keys_max: 500, ..counter("all", "1") };
    let again = declare(&bench, "a", vec![wider, counter("some", "2")]).await;
    assert_eq!(first[0], again[0]);
    assert_ne!(first[1].2, again[1].2, "it counts something else");
    take_back(&bench, "a").await;
    let back = declare(&bench, "a", vec![counter("all", "1")]).await;
    assert_ne!(back[0].2, first[0].2, "it begins anew");
}

async fn types_of_a_service_share_what_they_share(bench: Bench) {
    let a = declare(&bench, "a", vec![index("data.x"), counter("n", "")]).await;
    let b = declare(&bench, "b", vec![index("data.x"), counter("n", "")]).await;
    assert_eq!(a[0], b[0]);
    assert_ne!(a[1].2, b[1].2);
    take_back(&bench, "a").await;
    assert_eq!(declare(&bench, "a", vec![index("data.x")]).await[0], b[0], "the other one kept it");
    declare(&bench, "a", Vec::new()).await;
    declare(&bench, "b", Vec::new()).await;
    assert_ne!(declare(&bench, "a", vec![index("data.x")]).await[0], b[0]);
}

async fn types_are_known_as_they_were(bench: Bench) {
    let first = declare(&bench, "a", vec![counter("all", "1")]).await;
    let since = bench.version().await;
    let second = declare(&bench, "a", vec![counter("all", "2")]).await;
    take_back(&bench, "a").await;
    let all = bench.store().type_versions(0).await.expect("the store works");
    let told: Vec<_> =
        all.iter().map(|version| (version.definition.is_some(), version.metrics.clone())).collect();
    assert_eq!(told, [(true, first), (true, second), (false, Vec::new())]);
    assert!(all.is_sorted_by_key(|version| version.version));
    let later = bench.store().type_versions(since).await.expect("the store works");
    assert_eq!(later, all[1..]);
}

pub(super) async fn marks(bench: &Bench) -> Vec<Mark> {
    bench.store().marks().await.expect("the store works")
}

/// The mark of the process that runs.
pub(super) async fn mark(bench: &Bench) -> Mark {
    let own = marks(bench).await.into_iter().find(|mark| !mark.is_orphan);
    own.expect("a process that runs has a mark")
}

async fn slice(bench: &Bench, mark: Mark, limit: usize) -> Slice {
    bench.store().unobserved(mark.of, mark.seq, limit, usize::MAX).await.expect("the store works")
}

/// What the slice adds to a counter whose only key is the event's id.
fn by_id(metric: MetricNo, slice: &Slice) -> Delta {
    let mut slab = Slab::new(1);
    for (_, event) in &slice.events {
        slab.count(metric, Grain::S5, &event.id, event.time, 2);
    }
    slab.into_delta()
}

async fn flush(bench: &Bench, mark: Mark, slice: &Slice, delta: Delta) -> crate::Result<()> {
    let at = slice.at.unwrap_or(mark.at);
    let advance = Advance::Mark { of: mark.of, after: mark.seq, through: slice.through, at };
    bench.store().observe(Flush { advance, delta }, bench.now).await
}

/// Everything a metric has in buckets of one length: by bucket and key, count and sum.
pub(super) async fn counted(
    bench: &Bench,
    metric: MetricNo,
    grain: Grain,
) -> BTreeMap<(i64, String), (i64, i128)> {
    let all = vec![Buckets { grain, from: i64::MIN, to: i64::MAX }];
    let rollups = bench.store().rollups(metric, all).await.expect("the store works");
    let keys: BTreeMap<_, _> = rollups.keys.into_iter().collect();
    let mut found = BTreeMap::new();
    for (_, bucket, page) in &rollups.pages {
        for cell in cells(page).expect("it was just written") {
            let (key, cell) = cell.expect("it was just written");
            let CellRef::Count { count, sum } = cell else { panic!("it is a counter") };
            let key = keys.get(&key).map_or("(other)", |key| key);
            found.insert((*bucket, key.to_owned()), (count, sum));
        }
    }
    found
}

pub(super) fn drafts(ids: &[&str]) -> Vec<Draft> {
    ids.iter().map(|id| draft(*id)).collect()
}

async fn the_first_metric_begins_with_what_comes_next(bench: Bench) {
    bench.send(drafts(&["old", "older"])).await;
    declare(&bench, "order.paid", vec![counter("all", "")]).await;
    assert!(slice(&bench, mark(&bench).await, 10).await.events.is_empty(), "nobody asked about these");
    bench.send(drafts(&["new"])).await;
    let ids: Vec<String> =
        slice(&bench, mark(&bench).await, 10).await.events.into_iter().map(|(_, event)| event.id).collect();
    assert_eq!(ids, ["new"]);
    declare(&bench, "order.sent", vec![counter("all", "")]).await;
    assert_eq!(
        slice(&bench, mark(&bench).await, 10).await.events.len(),
        1,
        "the first one still waits for it"
    );
}

async fn a_slice_is_counted_once(bench: Bench) {
    let metric = declare(&bench, "order.paid", vec![counter("all", "")]).await[0].2;
    bench.send(drafts(&["a", "b", "a"])).await;
    let (mark, now) = (mark(&bench).await, bench.now);
    let slice = slice(&bench, mark, 10).await;
    assert!(slice.is_end && slice.events.len() == 2, "a duplicate is no event");
    assert!(bench.store().observed_until(now).await.expect("the store works") <= now);
    flush(&bench, mark, &slice, by_id(metric, &slice)).await.expect("it is the next one");
    let once = counted(&bench, metric, Grain::D1).await;
    assert_eq!(once.values().copied().collect::<Vec<_>>(), [(1, 2), (1, 2)]);
    let again = flush(&bench, mark, &slice, by_id(metric, &slice)).await;
    assert!(matches!(again, Err(Error::Conflict(_))), "{again:?}");
    assert_eq!(counted(&bench, metric, Grain::D1).await, once);
    bench.send(drafts(&["c"])).await;
    let until = bench.store().observed_until(bench.later(60_000)).await.expect("the store works");
    assert!(until <= now, "what comes at the very time of the mark is not counted yet");
}

async fn the_mark_survives_the_process(mut bench: Bench) {
    let metric = declare(&bench, "order.paid", vec![counter("all", "")]).await[0].2;
    bench.send(drafts(&["a"])).await;
    let first = mark(&bench).await;
    let seen = slice(&bench, first, 10).await;
    flush(&bench, first, &seen, by_id(metric, &seen)).await.expect("it is the next one");
    bench.send(drafts(&["b", "c"])).await;
    bench.reopen().await;
    bench.send(drafts(&["d"])).await;
    for mark in marks(&bench).await {
        let seen = slice(&bench, mark, 10).await;
        flush(&bench, mark, &seen, by_id(metric, &seen)).await.expect("nobody else is here");
    }
    let counted = counted(&bench, metric, Grain::S5).await;
    let keys: Vec<&str> = counted.keys().map(|(_, key)| key.as_str()).collect();
    assert_eq!(keys, ["a", "b", "c", "d"]);
    assert!(counted.values().all(|cell| *cell == (1, 2)), "{counted:?}");
}

async fn buckets_of_all_lengths_add_up(bench: Bench) {
    let metric = declare(&bench, "order.paid", vec![counter("all", "")]).await[0].2;
    for round in 0..3 {
        let minutes = [0, 1, 61, 60 * 25, 60 * 24 * 9];
        let times = minutes.map(|minutes| START.plus(std::time::Duration::from_mins(minutes + round)));
        let events =
            times.iter().enumerate().map(|(n, time)| Draft { time: *time, ..draft(format!("{round}-{n}")) });
        bench.send(events).await;
        let mark = mark(&bench).await;
        let slice = slice(&bench, mark, 10).await;
        let mut slab = Slab::new(1);
        slice.events.iter().for_each(|(_, event)| slab.count(metric, Grain::S5, "[]", event.time, 0));
        flush(&bench, mark, &slice, slab.into_delta()).await.expect("it is the next one");
    }
    for grain in Grain::ALL {
        let counted = counted(&bench, metric, grain).await;
        assert_eq!(counted.values().map(|(count, _)| count).sum::<i64>(), 15, "{grain:?}");
    }
    assert_eq!(counted(&bench, metric, Grain::D1).await.len(), 3);
}

async fn keys_beyond_the_limit_are_counted_together(bench: Bench) {
    let few = Spec { keys_max: 2, ..counter("all", "") };
    let metric = declare(&bench, "order.paid", vec![few]).await[0].2;
    for ids in [&["a", "b", "c"][..], &["d", "a2", "e"]] {
        bench.send(drafts(ids)).await;
        let mark = mark(&bench).await;
        let seen = slice(&bench, mark, 10).await;
        flush(&bench, mark, &seen, by_id(metric, &seen)).await.expect("it is the next one");
    }
    let counted = counted(&bench, metric, Grain::D7).await;
    let told: Vec<_> = counted.iter().map(|((_, key), (count, sum))| (key.as_str(), *count, *sum)).collect();
    assert_eq!(told, [("(other)", 4, 8), ("a", 1, 2), ("b", 1, 2)]);
}

async fn a_slice_is_bounded(bench: Bench) {
    declare(&bench, "order.paid", vec![counter("all", "")]).await;
    bench.send(drafts(&["a", "b", "c"])).await;
    let mark = mark(&bench).await;
    let first = slice(&bench, mark, 2).await;
    assert!(!first.is_end && first.events.len() == 2);
    let rest = slice(&bench, Mark { seq: first.through, ..mark }, 2).await;
    assert!(rest.is_end && rest.events.len() == 1);
    let bytes = bench.store().unobserved(mark.of, mark.seq, 10, 1).await.expect("the store works");
    assert_eq!(bytes.events.len(), 1, "one goes, whatever its size");
}

async fn a_backfill_goes_through_the_past_once(mut bench: Bench) {
    bench.send(drafts(&["a", "b"])).await;
    bench.send([draft("c").kind("other"), draft("d").from("elsewhere"), draft("e")]).await;
    let metrics = declare(&bench, "order.paid", vec![counter("all", "")]).await;
    bench.send(drafts(&["f"])).await;
    let new = NewBackfill {
        project: PROJECT,
        service: "shop".to_owned(),
        type_name: "order.paid".to_owned(),
        metrics: metrics.clone(),
        definition: "{}".to_owned(),
    };
    let started = bench.store().start_backfill(new.clone(), bench.now).await.expect("it is the first");
    assert!(matches!(bench.store().start_backfill(new, bench.now).await, Err(Error::Conflict(_))));
    bench.send(drafts(&["g"])).await;
    let mut seen = Vec::new();
    for round in 0..10 {
        let [row] = &bench.store().backfills_running().await.expect("the store works")[..] else { break };
        let slice = bench.store().unbackfilled(row.clone(), 2, usize::MAX).await.expect("the store works");
        seen.extend(slice.events.iter().map(|(_, event)| event.id.clone()));
        let (after, through) = (row.after, if slice.is_end { row.until } else { slice.through });
        let looked = slice.events.len() as u64;
        let advance = Advance::Backfill { no: row.no, after, through, looked, is_last: slice.is_end };
        let flush = Flush { advance, delta: by_id(metrics[0].2, &slice) };
        bench.store().observe(flush.clone(), bench.now).await.expect("it is the next step");
        assert!(matches!(bench.store().observe(flush, bench.now).await, Err(Error::Conflict(_))));
        if round == 0 {
            bench.reopen().await;
        }
    }
    assert_eq!(seen, ["a", "b", "e", "f"], "up to when it was asked for");
    let page = bench.store().backfills(PROJECT, None, 10).await.expect("the store works");
    let [row] = &page.items[..] else { panic!("it is remembered") };
    assert_eq!((row.no, row.looked, row.after), (started.no, 4, started.until));
    assert_eq!(row.finished_at, Some(bench.now));
    assert_eq!(counted(&bench, metrics[0].2, Grain::D1).await.len(), 4);
}

async fn what_was_left_out_later_can_be_backfilled_later(bench: Bench) {
    let kinds = || vec![counter("all", "")];
    let declare =
        async |definition: &str| declare_as(&bench, "order.paid", kinds(), (None, definition)).await;
    let metrics = declare("{}").await;
    let new = NewBackfill {
        project: PROJECT,
        service: "shop".to_owned(),
        type_name: "order.paid".to_owned(),
        metrics: metrics.clone(),
        definition: "{}".to_owned(),
    };
    let first = bench.store().start_backfill(new.clone(), bench.now).await.expect("it is the first");
    assert_eq!((first.version, &first.behind[..]), (bench.version().await, &[][..]));
    for _ in 0..2 {
        let none = bench.store().start_backfill(new.clone(), bench.now).await;
        assert!(matches!(none, Err(Error::Conflict(_))), "nothing came that was not counted: {none:?}");
        let before = bench.version().await;
        assert_eq!(declare(r#"{"observe":{"counters":false}}"#).await, metrics);
        assert_eq!(declare("{}").await, metrics);
        let next = bench.store().start_backfill(new.clone(), bench.now).await.expect("it was off");
        assert_eq!(next.version, bench.version().await);
        assert_eq!(next.behind, [(metrics[0].2, before)], "the first one covers the rest");
        let listed = bench.store().backfills_running().await.expect("the store works");
        assert!(listed.contains(&next), "it is read back as it was written");
    }
}

async fn backfills_come_in_pages(bench: Bench) {
    let specs = vec![counter("one", ""), counter("two", ""), counter("three", "")];
    let metrics = declare(&bench, "order.paid", specs).await;
    for metric in metrics {
        let new = NewBackfill {
            project: PROJECT,
            service: "shop".to_owned(),
            type_name: "order.paid".to_owned(),
            metrics: vec![metric],
            definition: "{}".to_owned(),
        };
        bench.store().start_backfill(new, bench.now).await.expect("it is the first");
    }
    let page = async |before, limit| {
        let page = bench.store().backfills(PROJECT, before, limit).await.expect("the store works");
        (page.items.iter().map(|row| row.no).collect::<Vec<_>>(), page.next)
    };
    let (all, next) = page(None, 3).await;
    assert!(next.is_none() && all.is_sorted_by(|newer, older| newer > older));
    assert_eq!(page(None, 2).await, (all[..2].to_vec(), Some(all[1])));
    assert_eq!(page(Some(all[1]), 2).await, (all[2..].to_vec(), None));
    let others = bench.store().backfills(PROJECT + 1, None, 3).await.expect("the store works");
    assert!(others.items.is_empty());
}

/// Flushes what a closure makes of everything that waits.
pub(super) async fn observe(bench: &Bench, mut each: impl FnMut(&crate::EventRow, &mut Slab)) {
    for mark in marks(bench).await {
        let seen = slice(bench, mark, 1_000).await;
        let mut slab = Slab::new(1);
        seen.events.iter().for_each(|(_, event)| each(event, &mut slab));
        if seen.through > mark.seq {
            flush(bench, mark, &seen, slab.into_delta()).await.expect("nobody else is here");
        }
    }
}

pub(super) fn sum(counted: &BTreeMap<(i64, String), (i64, i128)>, key: &str) -> i64 {
    counted.iter().filter(|((_, found), _)| found == key).map(|(_, (count, _))| count).sum()
}

async fn objects_change_once_and_are_counted(mut bench: Bench) {
    let spec = |kind| Spec {
        kind,
        name: "order data.status".to_owned(),
        shape: String::new(),
        keys_max: 10,
        keep_ms: None,
    };
    let metrics = declare(&bench, "order.paid", vec![spec(Kind::State), spec(Kind::Transition)]).await;
    let (state, transition) = (metrics[0].2, metrics[1].2);
    let policy = std::sync::Arc::default();
    // Each is: object, state, seconds after the start. The last but one comes too late, the last says nothing new.
    let rounds = [
        &[("a", "NEW", 1), ("b", "NEW", 2)][..],
        &[("a", "PAID", 10), ("b", "PAID", 11)],
        &[("a", "SENT", 5), ("b", "PAID", 12)],
    ];
    for (no, round) in rounds.into_iter().enumerate() {
        let events = round.iter().enumerate().map(|(n, (.., seconds))| Draft {
            time: START.plus(std::time::Duration::from_secs(*seconds)),
            ..draft(format!("{no}-{n}"))
        });
        bench.send(events).await;
        let mut next = round.iter();
        observe(&bench, |event, slab| {
            let (object, value, _) = next.next().expect("one for each event");
            let (object, value) = ((*object).into(), (*value).into());
            let policy = std::sync::Arc::clone(&policy);
            let (time, event) = (event.time, event.seq);
            slab.sight(Sight { state, transition, object, value, time, event, policy });
        })
        .await;
        if no == 1 {
            bench.reopen().await;
        }
    }
    let states = counted(&bench, state, Grain::D1).await;
    assert_eq!(["[\"NEW\"]", "[\"PAID\"]", "[\"SENT\"]"].map(|key| sum(&states, key)), [0, 2, 0]);
    let changes = counted(&bench, transition, Grain::D1).await;
    assert_eq!(sum(&changes, "[\"(none)\",\"NEW\"]"), 2);
    assert_eq!(sum(&changes, "[\"NEW\",\"PAID\"]"), 2);
    assert_eq!(changes.len(), 2, "{changes:?}");
}

/// Every event under its type and under the number of letters of its id.
pub(super) async fn index_all(bench: &Bench, metrics: &[Metric]) {
    let (letters, kind) = (metrics[0].2, metrics[1].2);
    observe(bench, |event, slab| {
        for (index, found) in [(letters, event.id.len().into()), (kind, Value::from(event.type_name.clone()))]
        {
            value::each(Some(&found.to_string()), &mut Vec::new(), |bytes| {
                slab.post(index, bytes, event.seq);
            });
        }
    })
    .await;
}

pub(super) fn search(metrics: &[Metric], source: &str, before: Option<i64>, limit: usize) -> Search {
    let plan = Plan::compile(source, &|path| metrics.iter().any(|(_, name, _)| name == path));
    let indexes = metrics.iter().map(|(_, name, no)| (name.clone(), vec![*no])).collect();
    let filter = EventFilter { before, limit, ..EventFilter::default() };
    Search { plan: plan.expect("it can be searched by"), indexes, filter }
}

pub(super) async fn found(bench: &Bench, search: Search) -> (Vec<String>, Option<i64>) {
    let page = bench.store().search(PROJECT, search).await.expect("the store works");
    (page.items.into_iter().map(|event| event.id).collect(), page.next)
}

async fn events_are_found_by_values_newest_first(mut bench: Bench) {
    let metrics = declare(&bench, "order.paid", vec![index("data.n"), index("type")]).await;
    bench.send(drafts(&["a", "bb", "c"])).await;
    index_all(&bench, &metrics).await;
    bench.send(drafts(&["dd", "eee"]).into_iter().chain([draft("f").kind("other")])).await;
    index_all(&bench, &metrics).await;
    bench.reopen().await;
    let all = |source: &str| search(&metrics, source, None, 10);
    assert_eq!(found(&bench, all("data.n == 1")).await.0, ["f", "c", "a"]);
    assert_eq!(found(&bench, all("data.n >= 2 && type == 'order.paid'")).await.0, ["eee", "dd", "bb"]);
    assert_eq!(found(&bench, all("data.n != 1 || type == 'other'")).await.0, ["f", "eee", "dd", "bb"]);
    assert_eq!(found(&bench, all("data.n == 9")).await, (Vec::new(), None));
    let (first, next) = found(&bench, search(&metrics, "data.n == 1", None, 2)).await;
    assert_eq!(first, ["f", "c"]);
    assert_eq!(found(&bench, search(&metrics, "data.n == 1", next, 2)).await.0, ["a"]);
    let mut narrow = all("data.n == 1");
    narrow.filter.type_name = Some("other".to_owned());
    assert_eq!(found(&bench, narrow).await.0, ["f"]);
    let other = bench.store().search(PROJECT + 1, all("data.n == 1")).await.expect("the store works");
    assert!(other.items.is_empty(), "they are another project's");
}

async fn values_are_listed_with_their_counts(bench: Bench) {
    let metrics = declare(&bench, "order.paid", vec![index("data.n"), index("type")]).await;
    bench.send(drafts(&["a", "bb", "c"])).await;
    index_all(&bench, &metrics).await;
    bench.send(drafts(&["dd", "eee"])).await;
    index_all(&bench, &metrics).await;
    let list = async |after, limit| {
        let (indexes, stretches) = (vec![metrics[0].2], value::listed().to_vec());
        let filter = ValueFilter { indexes, stretches, after, limit };
        let values = bench.store().values(filter).await.expect("the store works");
        let last = values.last().map(|(value, _)| value.clone());
        let told: Vec<(Value, u64)> =
            values.iter().map(|(value, count)| (value::decode(value).expect("a number"), *count)).collect();
        (told, last)
    };
    let (first, last) = list(None, 2).await;
    assert_eq!(first, [(Value::from(1), 2), (Value::from(2), 2)]);
    assert_eq!(list(last, 2).await.0, [(Value::from(3), 1)]);
}
