//! Goal: each rule of questions and answers that has words in it. Method: what is counted goes through slabs and pages as it
//! would through a store; each rule is asked about by hand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::id::KeyNo;
use crate::observe::{Cell, Kept, Key, Rise, Slab, page};
use crate::subscriber::Invalid;
use crate::time::Timestamp;

/// A Wednesday, 22 seconds after ten.
pub(super) const NOW: i64 = 1_794_996_022_000;
pub(super) const METRIC: i64 = 1;

/// What a store keeps of one metric.
#[derive(Default)]
pub(super) struct Rollups {
    kind: Option<Kind>,
    keys: Vec<(KeyNo, Key)>,
    pub(super) pages: BTreeMap<(Grain, i64, u32), Vec<u8>>,
}

impl Rollups {
    pub(super) fn of(kind: Kind) -> Self {
        Self { kind: Some(kind), ..Self::default() }
    }

    pub(super) fn flush(&mut self, rises: &[Rise], keys_max: usize) {
        let kind = self.kind.unwrap();
        for Rise { grain, bucket, key, cell, .. } in rises {
            let known = self.keys.iter().find(|(_, known)| known == key).map(|(number, _)| *number);
            let number = known.unwrap_or_else(|| {
                let number = if self.keys.len() < keys_max { self.keys.len() as KeyNo + 1 } else { 0 };
                if number > 0 {
                    self.keys.push((number, key.clone()));
                }
                number
            });
            let place = (*grain, *bucket, page::of(kind, number));
            let merged = page::merge(self.pages.get(&place).map(Vec::as_slice), &[(number, cell)]).unwrap();
            self.pages.insert(place, merged);
        }
    }

    pub(super) fn answer(&self, plan: &Plan) -> Result<(Value, Option<Resume>), Unanswered> {
        let mut fold = plan.fold(&self.keys).unwrap();
        for stretch in &plan.stretches {
            let bounds = (stretch.grain, stretch.from, 0)..(stretch.grain, stretch.to, 0);
            for ((_, bucket, _), page) in self.pages.range(bounds) {
                fold.add(*bucket, page).unwrap();
            }
        }
        let answer = fold.finish()?;
        let text = answer.json(Some(Timestamp::from_ms(NOW)), answer.next().map(|_| "more"));
        Ok((serde_json::from_str(&text).unwrap(), answer.next()))
    }
}

pub(super) fn subject(kind: Kind, base: Grain) -> Subject {
    match kind {
        Kind::Counter | Kind::Histogram => Subject {
            kind,
            base,
            dimensions: vec!["data.a".to_owned(), "data.b".to_owned()],
            accuracy: Accuracy::new(0.01),
            has_sum: true,
        },
        _ => Subject::of_objects(kind),
    }
}

pub(super) fn planned(
    kind: Kind,
    base: Grain,
    body: &Value,
    resume: Option<Resume>,
) -> Result<Plan, Invalid> {
    let ask = Ask::parse(kind, body.to_string().as_bytes())?;
    Plan::new(ask, subject(kind, base), Kept::everything(Timestamp::from_ms(NOW)), resume)
}

#[track_caller]
fn refused(kind: Kind, body: &Value) -> (&'static str, String, String) {
    let invalid = planned(kind, Grain::S5, body, None).unwrap_err();
    (invalid.code, invalid.field.unwrap_or_default(), invalid.detail)
}

fn counter(more: &Value) -> Value {
    let mut body = json!({ "service": "s", "type": "t", "counter": "c" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

pub(super) fn time(text: &str) -> i64 {
    Timestamp::parse(text).unwrap().as_ms()
}

fn shown(stretches: &[Stretch]) -> Vec<String> {
    let show = |ms: i64| if ms == i64::MIN { "ever".to_owned() } else { Timestamp::from_ms(ms).to_string() };
    stretches.iter().map(|s| format!("{} {} {}", s.grain, show(s.from), show(s.to))).collect()
}

#[test]
fn edges_are_read_finely_and_the_inside_coarsely() {
    let (from, to) = (time("2026-11-15T22:58:55Z"), time("2026-11-17T01:00:05Z"));
    let hourly = plan(from, to, 3_600_000, Grain::S5);
    assert_eq!(
        shown(&hourly),
        [
            "5s 2026-11-15T22:58:55.000Z 2026-11-15T22:59:00.000Z",
            "1m 2026-11-15T22:59:00.000Z 2026-11-15T23:00:00.000Z",
            "1h 2026-11-15T23:00:00.000Z 2026-11-17T01:00:00.000Z",
            "5s 2026-11-17T01:00:00.000Z 2026-11-17T01:00:05.000Z",
        ]
    );
    let weekly = plan(time("2026-11-08T00:00:00Z"), time("2026-11-24T00:00:00Z"), 7 * 86_400_000, Grain::M5);
    assert_eq!(
        shown(&weekly),
        [
            "1d 2026-11-08T00:00:00.000Z 2026-11-09T00:00:00.000Z",
            "7d 2026-11-09T00:00:00.000Z 2026-11-23T00:00:00.000Z",
            "1d 2026-11-23T00:00:00.000Z 2026-11-24T00:00:00.000Z",
        ]
    );
    let odd = plan(from, from + 1_000_000, 25_000, Grain::S5);
    assert_eq!(odd.len(), 1, "nothing longer than five seconds divides 25 s");
}

#[test]
fn what_is_not_said_is_the_last_hour_by_minutes() {
    let plan = planned(Kind::Counter, Grain::S5, &counter(&json!({})), None).unwrap();
    let (answer, _) = Rollups::of(Kind::Counter).answer(&plan).unwrap();
    assert_eq!((&answer["every"], &answer["points"]), (&json!("1m"), &json!(61)));
    assert_eq!(
        (&answer["from"], &answer["to"]),
        (&json!("2026-11-18T09:00:20.000Z"), &json!("2026-11-18T10:00:25.000Z"))
    );
    let last = &answer["buckets"][60];
    assert_eq!(last["from"], "2026-11-18T10:00:00.000Z");
    assert_eq!(last["to"], "2026-11-18T10:00:25.000Z");
    assert_eq!(last["series"], json!([{ "key": {}, "count": 0, "sum": 0 }]));
    let every = |body| planned(Kind::Counter, Grain::M5, &counter(&body), None).unwrap().range.unwrap().every;
    assert_eq!(every(json!({})), 300_000);
    assert_eq!(every(json!({ "from": "2026-11-11T00:00:00Z" })), 2 * 3_600_000);
    assert_eq!(every(json!({ "from": "1990-01-01T00:00:00Z" })), 31_449_600_000);
}

#[test]
fn weeks_of_an_answer_begin_on_monday_and_are_cut() {
    let body =
        counter(&json!({ "from": "2026-11-01T12:00:00Z", "to": "2026-11-10T00:00:00Z", "every": "7d" }));
    let (answer, _) =
        Rollups::of(Kind::Counter).answer(&planned(Kind::Counter, Grain::S5, &body, None).unwrap()).unwrap();
    let froms: Vec<_> = answer["buckets"].as_array().unwrap().iter().map(|bucket| &bucket["from"]).collect();
    assert_eq!(answer["every"], "7d");
    assert_eq!(froms, ["2026-11-01T12:00:00.000Z", "2026-11-02T00:00:00.000Z", "2026-11-09T00:00:00.000Z"]);
}

#[test]
fn questions_that_make_no_sense_are_refused_by_their_field() {
    for (body, code, field) in [
        (json!({ "every": "7s" }), "field_value", "every"),
        (json!({ "every": "0s" }), "field_value", "every"),
        (json!({ "from": "2027-01-01T00:00:00Z" }), "field_range", "from"),
        (json!({ "group_by": ["data.c"] }), "field_value", "group_by[0]"),
        (json!({ "group_by": ["data.a", "data.a"] }), "field_repeated", "group_by[1]"),
        (json!({ "where": { "data.c": ["x"] } }), "field_value", "where.data.c"),
        (json!({ "where": { "data.a": [] } }), "field_value", "where.data.a"),
        (json!({ "where": { "data.a": [[1]] } }), "field_value", "where.data.a"),
        (json!({ "percentiles": [0.5] }), "field_unknown", "percentiles"),
        (json!({ "evry": "5s" }), "field_unknown", "evry"),
        (json!({ "limit": 0 }), "field_range", "limit"),
        (json!({ "cursor": "x" }), "field_missing", "limit"),
        (json!({ "fill": "null" }), "field_value", "fill"),
        (json!({ "every": "5s", "from": "2026-11-14T00:00:00Z" }), "query_too_large", "every"),
    ] {
        let (found, at, detail) = refused(Kind::Counter, &counter(&body));
        assert_eq!((found, at.as_str()), (code, field), "{body}: {detail}");
    }
    assert_eq!(refused(Kind::Counter, &json!({ "service": "s", "counter": "c" })).1, "type");
    assert_eq!(refused(Kind::State, &json!({ "service": "s", "object": "o" })).1, "attribute");
    let both = json!({ "service": "s", "object": "o", "attribute": "a", "at": "2026-01-01T00:00:00Z", "every": "1m" });
    assert_eq!(refused(Kind::State, &both).0, "field_conflict");
    let (_, _, detail) =
        refused(Kind::Counter, &counter(&json!({ "every": "5s", "from": "2026-11-14T00:00:00Z" })));
    assert!(detail.contains("`every` 10s or coarser"), "{detail}");
}

#[test]
fn a_percentile_is_asked_for_once() {
    let ask = |percentiles: Value| json!({ "service": "s", "type": "t", "histogram": "h", "percentiles": percentiles });
    let (code, field, detail) = refused(Kind::Histogram, &ask(json!([0.5, 0.99, 0.50])));
    assert_eq!((code, field.as_str()), ("field_repeated", "percentiles[2]"), "{detail}");
    assert!(planned(Kind::Histogram, Grain::S5, &ask(json!([0.5, 0.99])), None).is_ok());
}

#[test]
fn what_stands_for_something_else_may_be_written_in_any_case() {
    let filter = |kind, body: &Value, name: &str| {
        let ask = Ask::parse(kind, body.to_string().as_bytes()).unwrap();
        ask.filters[name].iter().cloned().collect::<Vec<_>>()
    };
    let asked = counter(&json!({ "where": { "data.a": ["(NONE)", "(Other)", "DE"] } }));
    assert_eq!(filter(Kind::Counter, &asked, "data.a"), ["(none)", "(other)", "DE"]);
    let asked = json!({ "service": "s", "object": "o", "attribute": "a", "from_states": ["(None)", "NEW"] });
    assert_eq!(filter(Kind::Transition, &asked, Subject::FROM_STATE), ["(none)", "NEW"]);
}

#[test]
fn too_many_series_are_refused_with_an_interval_that_works() {
    let mut slab = Slab::new(0);
    for key in 0..900 {
        slab.count(METRIC, Grain::S5, &format!("[{key},1]"), Timestamp::from_ms(NOW - 60_000), 0);
    }
    let mut rollups = Rollups::of(Kind::Counter);
    rollups.flush(&slab.into_delta().rises(), 1000);
    let ask = |every: &str| {
        let body = counter(&json!({ "every": every, "group_by": ["data.a"] }));
        rollups.answer(&planned(Kind::Counter, Grain::S5, &body, None).unwrap())
    };
    let Err(Unanswered::TooLarge(invalid)) = ask("1m") else { panic!("61 times 900 is too much") };
    assert!(invalid.detail.contains("`every` 2m or coarser"), "{}", invalid.detail);
    assert_eq!(ask("2m").unwrap().0["points"], 27_900);
}

pub(super) fn rise(grain: Grain, bucket: &str, key: &str, count: i64) -> Rise {
    let bucket = grain.start_ms(time(bucket));
    Rise { metric: METRIC, grain, bucket, key: Arc::from(key), cell: Cell::Count { count, sum: 0 } }
}

#[test]
fn states_stand_until_they_change() {
    let mut rollups = Rollups::of(Kind::State);
    let changes = [
        ("2026-11-01T00:00:00Z", "[\"NEW\"]", 3),
        ("2026-11-18T09:30:00Z", "[\"NEW\"]", -1),
        ("2026-11-18T09:30:00Z", "[\"PAID\"]", 1),
        ("2026-11-18T09:59:00Z", "[\"NEW\"]", -2),
        ("2026-11-18T09:59:00Z", "[\"PAID\"]", 2),
    ];
    let rises = Grain::ALL.iter().flat_map(|grain| changes.map(|(at, key, n)| rise(*grain, at, key, n)));
    rollups.flush(&rises.collect::<Vec<_>>(), 100);
    let ask = |more: Value| {
        let mut body = json!({ "service": "s", "object": "o", "attribute": "a" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rollups.answer(&planned(Kind::State, Grain::S5, &body, None).unwrap()).unwrap().0
    };
    assert_eq!(ask(json!({}))["states"], json!([{ "state": "PAID", "count": 3 }]));
    let then = ask(json!({ "at": "2026-11-18T09:45:00Z" }));
    assert_eq!(then["states"], json!([{ "state": "NEW", "count": 2 }, { "state": "PAID", "count": 1 }]));
    let named = ask(json!({ "states": ["PAID", "LOST"] }));
    assert_eq!(named["states"], json!([{ "state": "LOST", "count": 0 }, { "state": "PAID", "count": 3 }]));
    let body = json!({ "from": "2026-11-18T09:00:00Z", "to": "2026-11-18T10:00:00Z", "every": "20m", "format": "columns" });
    let over = ask(body);
    assert_eq!(over["columns"]["state"], json!(["NEW", "PAID", "NEW", "PAID", "NEW", "PAID"]));
    assert_eq!(over["columns"]["count"], json!([3, 0, 2, 1, 0, 3]));
}

#[test]
fn transitions_are_counted_by_where_they_come_from_and_lead() {
    let mut rollups = Rollups::of(Kind::Transition);
    let keys = ["[\"(none)\",\"NEW\"]", "[\"NEW\",\"PAID\"]"];
    let rises =
        Grain::ALL.iter().flat_map(|grain| keys.map(|key| rise(*grain, "2026-11-18T09:30:00Z", key, 2)));
    rollups.flush(&rises.collect::<Vec<_>>(), 100);
    let body = json!({ "service": "s", "object": "o", "attribute": "a", "every": "1h", "fill": "none",
        "from_states": ["*"], "to_states": ["PAID"] });
    let (answer, _) = rollups.answer(&planned(Kind::Transition, Grain::S5, &body, None).unwrap()).unwrap();
    let expected = json!([{ "from": "2026-11-18T09:00:20.000Z", "to": "2026-11-18T10:00:00.000Z",
        "transitions": [{ "from_state": "NEW", "to_state": "PAID", "count": 2 }] }]);
    assert_eq!(answer["buckets"], expected);
}

#[test]
fn sums_are_written_to_the_last_digit() {
    let mut slab = Slab::new(0);
    for sum in [41_500_000_000_i128, -1, 1 << 90] {
        slab.count(METRIC, Grain::S5, "[1,2]", Timestamp::from_ms(NOW), sum);
    }
    let mut rollups = Rollups::of(Kind::Counter);
    rollups.flush(&slab.into_delta().rises(), 10);
    let plan =
        planned(Kind::Counter, Grain::S5, &counter(&json!({ "every": "2h", "fill": "none" })), None).unwrap();
    let mut fold = plan.fold(&rollups.keys).unwrap();
    rollups.pages.iter().filter(|(place, _)| place.0 == Grain::S5).for_each(|((_, bucket, _), page)| {
        fold.add(*bucket, page).unwrap();
    });
    let text = fold.finish().unwrap().json(None, None);
    assert!(text.contains("\"count\":3,\"sum\":1237940039285380316.399124223"), "{text}");
}

#[test]
fn what_is_left_to_read_is_taken_in_portions() {
    let everything = Stretch { grain: Grain::D7, from: i64::MIN, to: 0 };
    let minutes = Stretch { grain: Grain::M1, from: 0, to: 300_000 };
    let mut left =
        VecDeque::from([everything, minutes, Stretch { grain: Grain::S5, from: 300_000, to: 305_000 }]);
    assert_eq!(take(&mut left, 3), [everything, Stretch { to: 120_000, ..minutes }]);
    assert_eq!(take(&mut left, 1), [Stretch { from: 120_000, to: 180_000, ..minutes }]);
    assert_eq!(take(&mut left, 99).len(), 2);
    assert!(left.is_empty() && take(&mut left, 5).is_empty());
}

#[test]
fn odd_intervals_over_long_times_are_refused() {
    let body = counter(&json!({ "from": "2025-11-18T00:00:00Z", "every": "86405s" }));
    let (code, field, detail) = refused(Kind::Counter, &body);
    assert_eq!((code, field.as_str()), ("query_too_large", "every"));
    assert!(detail.contains("a multiple of 1h"), "{detail}");
    let year = counter(&json!({ "from": "2025-11-18T00:00:00Z", "every": "1h" }));
    assert!(planned(Kind::Counter, Grain::S5, &year, None).is_ok());
}
