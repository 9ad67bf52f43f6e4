//! Keys of a metric are limited, and given back when nothing is counted under them any more.

use std::time::Duration;

use tidegate_core::id::MetricNo;
use tidegate_core::observe::{Accuracy, Grain, Kind, Spec};
use tidegate_core::retention::Retention;

use super::bench::{Bench, Draft, draft};
use super::observe::{counted, counter, declare, observe, sum};
use super::retention::{round_of, terms};
use super::{Case, named};
use crate::Buckets;

pub(super) fn cases() -> Vec<Case> {
    named!("keys":
        keys_without_anything_counted_are_given_back,
        many_keys_are_given_back_step_by_step,
        keys_of_histograms_are_given_back_page_by_page,
    )
}

const DAY_MS: u64 = 86_400_000;

fn for_days(days: u64) -> Retention {
    Retention { rollups: Duration::from_millis(days * DAY_MS), ..terms() }
}

/// Counts events that happen now, each under its id.
async fn count(bench: &Bench, metric: MetricNo, ids: impl IntoIterator<Item = String>) {
    let now = bench.now.as_ms();
    bench.send(ids.into_iter().map(|id| Draft { time: bench.now, ..draft(format!("{id} {now}")) })).await;
    observe(bench, |event, slab| {
        let (key, _) = event.id.split_once(' ').expect("made here");
        slab.count(metric, Grain::S5, key, event.time, 0);
    })
    .await;
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The keys that a metric has, in order of their numbers.
async fn keys(bench: &Bench, metric: MetricNo) -> Vec<(u32, String)> {
    let none = vec![Buckets { grain: Grain::D7, from: 0, to: 0 }];
    let mut keys = bench.store().rollups(metric, none).await.expect("the store works").keys;
    keys.sort();
    keys.into_iter().map(|(no, key)| (no, key.to_string())).collect()
}

async fn keys_without_anything_counted_are_given_back(mut bench: Bench) {
    let few = Spec { keys_max: 3, ..counter("few", "") };
    let metric = declare(&bench, "order.paid", vec![few, counter("many", "")]).await[0].2;
    count(&bench, metric, names(&["a", "b", "c", "d"])).await;
    bench.pass(20 * DAY_MS);
    count(&bench, metric, names(&["b", "d"])).await;
    assert_eq!(sum(&counted(&bench, metric, Grain::D7).await, "(other)"), 2, "d has no number");
    round_of(&bench, for_days(30), 100).await;
    assert_eq!(keys(&bench, metric).await.len(), 3, "all of them were counted not long ago");
    bench.pass(20 * DAY_MS);
    round_of(&bench, for_days(30), 100).await;
    assert_eq!(keys(&bench, metric).await, [(2, "b".to_owned())], "of a and c nothing is left");
    count(&bench, metric, names(&["d", "b", "e", "f", "a"])).await;
    let there = keys(&bench, metric).await;
    assert_eq!(there, [(2, "b".to_owned()), (4, "d".to_owned()), (5, "e".to_owned())], "three at a time");
    bench.reopen().await;
    bench.pass(1);
    count(&bench, metric, names(&["e", "g"])).await;
    let found = counted(&bench, metric, Grain::D7).await;
    assert_eq!(["b", "d", "e", "(other)"].map(|key| sum(&found, key)), [2, 1, 2, 4], "{found:?}");
    bench.pass(40 * DAY_MS);
    round_of(&bench, for_days(30), 100).await;
    assert!(keys(&bench, metric).await.is_empty());
    count(&bench, metric, names(&["x", "b"])).await;
    assert_eq!(keys(&bench, metric).await, [(6, "x".to_owned()), (7, "b".to_owned())]);
}

async fn many_keys_are_given_back_step_by_step(mut bench: Bench) {
    let metric = declare(&bench, "order.paid", vec![counter("all", "")]).await[0].2;
    count(&bench, metric, (0..25).map(|n| format!("k{n}"))).await;
    bench.pass(40 * DAY_MS);
    count(&bench, metric, names(&["k3", "k7"])).await;
    round_of(&bench, for_days(30), 10).await;
    let there: Vec<String> = keys(&bench, metric).await.into_iter().map(|(_, key)| key).collect();
    assert_eq!(there, ["k3", "k7"]);
}

async fn keys_of_histograms_are_given_back_page_by_page(mut bench: Bench) {
    let spec = Spec { kind: Kind::Histogram, keys_max: 200, ..counter("all", "") };
    let metric = declare(&bench, "order.paid", vec![spec]).await[0].2;
    let accuracy = Accuracy::new(0.01).expect("it is allowed");
    for (round, ids) in [(0..150), (70..71)].into_iter().enumerate() {
        bench.send(ids.map(|n| Draft { time: bench.now, ..draft(format!("{n} {round}")) })).await;
        observe(&bench, |event, slab| {
            let (key, _) = event.id.split_once(' ').expect("made here");
            slab.sample(metric, Grain::S5, key, event.time, accuracy, 1.0);
        })
        .await;
        bench.pass(25 * DAY_MS);
    }
    round_of(&bench, for_days(30), 100).await;
    let there: Vec<String> = keys(&bench, metric).await.into_iter().map(|(_, key)| key).collect();
    assert_eq!(there, ["70"]);
}
