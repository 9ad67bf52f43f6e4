//! Goal: any answer equals a recount of the events, and its pages together are the answer. Method: random events go through
//! slabs and pages as they would through a store, and the same random question is answered plainly beside it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::tests::{METRIC, NOW, Rollups, planned, rise, time};
use super::*;
use crate::observe::Slab;
use crate::time::{Span, Timestamp};

/// Counts and sums by bucket and series.
type Totals = BTreeMap<(i64, Vec<String>), (i64, i64)>;

#[derive(Clone, Debug)]
struct Seen {
    at: i64,
    a: u8,
    b: Option<u8>,
    value: i32,
}

impl Seen {
    fn key(&self) -> String {
        let b = self.b.map_or_else(|| json!("(none)"), |b| json!(b));
        json!([format!("a{}", self.a), b]).to_string()
    }

    fn texts(&self) -> [String; 2] {
        [format!("a{}", self.a), self.b.map_or_else(|| "(none)".to_owned(), |b| b.to_string())]
    }
}

#[derive(Clone, Debug)]
struct Question {
    from: i64,
    length: i64,
    every_s: u64,
    group_by: Vec<usize>,
    only: [Option<BTreeSet<String>>; 2],
    fills: bool,
    limit: usize,
}

const DIMENSIONS: [&str; 2] = ["data.a", "data.b"];

fn seen() -> impl Strategy<Value = Vec<Seen>> {
    let at = prop_oneof![
        3 => (0..7_200_000_i64).prop_map(|ago| NOW - ago),
        1 => (0..40 * 86_400_000_i64).prop_map(|ago| NOW - ago),
    ];
    let one = (at, 0_u8..3, proptest::option::of(0_u8..3), -20..20);
    proptest::collection::vec(one.prop_map(|(at, a, b, value)| Seen { at, a, b, value }), 0..40)
}

fn questions() -> impl Strategy<Value = Question> {
    let only = |texts: &'static [&'static str]| {
        let text = proptest::sample::select(texts).prop_map(str::to_owned);
        proptest::option::weighted(0.3, proptest::collection::btree_set(text, 1..3))
    };
    let every =
        proptest::sample::select(vec![300_u64, 900, 3600, 4500, 86_400, 2 * 86_400, 604_800, 1_209_600]);
    let length = prop_oneof![1..8_000_000_i64, 1..45 * 86_400_000_i64];
    let group_by = proptest::sample::select(vec![vec![], vec![0], vec![1], vec![1, 0], vec![0, 1]]);
    let only = (only(&["a0", "a1", "a9"]), only(&["0", "(none)", "(other)"]));
    (0..45 * 86_400_000_i64, length, every, group_by, only, any::<bool>(), 1_usize..30).prop_map(
        |(ago, length, every_s, group_by, (a, b), fills, limit)| Question {
            from: NOW - ago,
            length,
            every_s,
            group_by,
            only: [a, b],
            fills,
            limit,
        },
    )
}

impl Question {
    /// So that no answer is too large.
    fn every(&self) -> i64 {
        let every = self.every_s as i64 * 1000;
        every * (self.length / every / 200 + 1)
    }

    fn body(&self, kind: Kind) -> Value {
        let time = |ms| Timestamp::from_ms(ms).to_string();
        let filters: BTreeMap<_, _> =
            DIMENSIONS.into_iter().zip(&self.only).filter(|(_, only)| only.is_some()).collect();
        let name = if kind == Kind::Counter { "counter" } else { "histogram" };
        json!({
            "service": "s", "type": "t", name: "m", "from": time(self.from), "to": time(self.from + self.length),
            "every": Span::from_ms(self.every() as u64), "where": filters, "fill": if self.fills { "zero" } else { "none" },
            "group_by": self.group_by.iter().map(|place| DIMENSIONS[*place]).collect::<Vec<_>>(),
        })
    }

    /// Counts and sums by bucket and series, of what is not nothing.
    fn recount(&self, events: &[Seen], base: Grain) -> Totals {
        let (from, to) = (base.start_ms(self.from), self.from + self.length);
        let every = self.every();
        let monday = if every % (7 * 86_400_000) == 0 { -3 * 86_400_000 } else { 0 };
        let mut totals = BTreeMap::new();
        for event in events {
            let texts = event.texts();
            let is_in = event.at >= from && base.start_ms(event.at) < to;
            let is_wanted = texts
                .iter()
                .zip(&self.only)
                .all(|(text, only)| only.as_ref().is_none_or(|only| only.contains(text)));
            if is_in && is_wanted {
                let bucket = (event.at - (event.at - monday).rem_euclid(every)).max(from);
                let series = self.group_by.iter().map(|place| texts[*place].clone()).collect();
                let total: &mut (i64, i64) = totals.entry((bucket, series)).or_default();
                *total = (total.0 + 1, total.1 + i64::from(event.value));
            }
        }
        totals
    }
}

/// The points of an answer in rows, the same way; and how many there are, with nothing in them or not.
fn points_of(question: &Question, answer: &Value) -> (Totals, usize) {
    let mut points = BTreeMap::new();
    let mut all = 0;
    for bucket in answer["buckets"].as_array().unwrap() {
        for series in bucket["series"].as_array().unwrap() {
            all += 1;
            let texts =
                question.group_by.iter().map(|place| ask::text_of(&series["key"][DIMENSIONS[*place]]));
            let sum = series["sum"].as_f64().unwrap().round() as i64;
            let total = (series["count"].as_i64().unwrap(), sum);
            if total.0 != 0 {
                let place = (time(bucket["from"].as_str().unwrap()), texts.collect());
                assert_eq!(points.insert(place, total), None, "a point stands once");
            }
        }
    }
    (points, all)
}

fn rollups_of(kind: Kind, base: Grain, events: &[Seen], flushes: usize) -> Rollups {
    let mut rollups = Rollups::of(kind);
    for slice in events.chunks(events.len() / flushes + 1) {
        let mut slab = Slab::new(5);
        for event in slice {
            let at = Timestamp::from_ms(event.at);
            if kind == Kind::Counter {
                slab.count(METRIC, base, &event.key(), at, i128::from(event.value) * 1_000_000_000);
            } else {
                slab.sample(METRIC, base, &event.key(), at, Accuracy::new(0.01).unwrap(), event.value.into());
            }
        }
        rollups.flush(&slab.into_delta().rises(), 100);
    }
    rollups
}

proptest! {
    #[test]
    fn stretches_cover_a_range_end_to_end(from in -1_000_000_i64..1_000_000, n in 1_i64..5_000_000, steps in 1_i64..300_000, base in 0_usize..3) {
        let base = Grain::ALL[base];
        let (from, to) = (from * base.length_ms(), (from + n) * base.length_ms());
        let every = steps * base.length_ms();
        let stretches = plan(from, to, every, base);
        let mut at = from;
        for Stretch { grain, from, to } in &stretches {
            prop_assert!(*from == at && from < to && *grain >= base && every % grain.length_ms() == 0 || *grain == base);
            prop_assert_eq!((grain.start_ms(*from), grain.start_ms(*to)), (*from, *to));
            at = *to;
        }
        prop_assert_eq!(at, to);
        prop_assert!(stretches.len() <= 11);
    }

    #[test]
    fn answers_equal_a_recount(
        events in seen(), question in questions(), flushes in 1_usize..4, base in 0_usize..3, is_histogram in any::<bool>(),
    ) {
        let kind = if is_histogram { Kind::Histogram } else { Kind::Counter };
        let base = Grain::ALL[base];
        let rollups = rollups_of(kind, base, &events, flushes);
        let plan = planned(kind, base, &question.body(kind), None).unwrap();
        let (answer, _) = rollups.answer(&plan).unwrap();
        let (points, all) = points_of(&question, &answer);
        prop_assert_eq!(&points, &question.recount(&events, base));
        prop_assert_eq!(&answer["points"], all);
        if !question.fills {
            prop_assert_eq!(all, points.len());
        }
    }

    #[test]
    fn pages_together_are_the_answer(events in seen(), question in questions()) {
        let rollups = rollups_of(Kind::Counter, Grain::S5, &events, 2);
        let mut body = question.body(Kind::Counter);
        let (whole, _) = rollups.answer(&planned(Kind::Counter, Grain::S5, &body, None).unwrap()).unwrap();
        body["limit"] = question.limit.into();
        let (mut points, mut resume, mut all) = (BTreeMap::new(), None, 0);
        loop {
            let (page, next) = rollups.answer(&planned(Kind::Counter, Grain::S5, &body, resume).unwrap()).unwrap();
            let (mut more, count) = points_of(&question, &page);
            prop_assert_eq!(&page["points"], &whole["points"]);
            prop_assert_eq!(page["next"].is_null(), next.is_none());
            points.append(&mut more);
            all += count;
            let Some(next) = next else { break };
            prop_assert_eq!(count, question.limit);
            resume = Resume::parse(&next.text());
            prop_assert_eq!(resume.as_ref(), Some(&next));
        }
        prop_assert_eq!((points, all), points_of(&question, &whole));
    }

    #[test]
    fn states_equal_the_sum_of_everything_before(
        changes in proptest::collection::vec((0..40 * 86_400_000_i64, 0_u8..3, -3_i64..4), 0..20),
        ago in 0..45 * 86_400_000_i64,
        length in 1..20 * 86_400_000_i64,
        every_s in proptest::sample::select(vec![3600_i64, 5 * 3600, 86_400, 604_800]),
    ) {
        let mut rollups = Rollups::of(Kind::State);
        let at = |ago: i64| Timestamp::from_ms(NOW - ago).to_string();
        for (ago, state, n) in &changes {
            let key = format!("[\"s{state}\"]");
            let rises = Grain::ALL.into_iter().map(|grain| rise(grain, &at(*ago), &key, *n)).collect::<Vec<_>>();
            rollups.flush(&rises, 100);
        }
        let body = json!({ "service": "s", "object": "o", "attribute": "a", "from": at(ago), "to": at(ago - length),
            "every": Span::from_ms(every_s as u64 * 1000), "fill": "none" });
        let (answer, _) = rollups.answer(&planned(Kind::State, Grain::S5, &body, None).unwrap()).unwrap();
        for bucket in answer["buckets"].as_array().unwrap() {
            let end = time(bucket["to"].as_str().unwrap());
            let mut standing: BTreeMap<String, i64> = BTreeMap::new();
            for (_, state, n) in changes.iter().filter(|(ago, ..)| NOW - ago < end) {
                *standing.entry(format!("s{state}")).or_default() += n;
            }
            standing.retain(|_, count| *count != 0);
            let told: BTreeMap<String, i64> = bucket["states"].as_array().unwrap().iter()
                .map(|state| (state["state"].as_str().unwrap().to_owned(), state["count"].as_i64().unwrap()))
                .collect();
            prop_assert_eq!(told, standing);
        }
        let moment = json!({ "service": "s", "object": "o", "attribute": "a", "at": at(ago) });
        let (answer, _) = rollups.answer(&planned(Kind::State, Grain::S5, &moment, None).unwrap()).unwrap();
        let told: i64 = answer["states"].as_array().unwrap().iter().map(|state| state["count"].as_i64().unwrap()).sum();
        let end = (NOW - ago + 4_999).div_euclid(5_000) * 5_000;
        prop_assert_eq!(told, changes.iter().filter(|(ago, ..)| NOW - ago < end).map(|(_, _, n)| n).sum::<i64>());
    }
}
