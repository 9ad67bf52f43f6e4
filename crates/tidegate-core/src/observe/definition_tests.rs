//! Goal: what can not be observed is refused by its field, and what can is the same metric exactly as long as it counts
//! the same. Method: whole bodies of `PUT`, as text.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::catalog::Definition;

const FULL: &str = r#"{"retention":"30d","index":["data.country","data.tags"],
    "counters":{"all":{},"by_country":{"dimensions":["data.country","type"],"where":"data.total > 1","sum":"data.total",
        "granularity":"1m","keys_max":5,"retention":"7d"}},
    "histograms":{"took":{"value":"duration"},"total":{"value":"data.total","dimensions":[],"accuracy":0.02}},
    "states":[{"object":"order","id":"data.order_id","attributes":["data.status"],"additional":["NEW","*"],"only":["?"]}],
    "observe":{"histograms":true}}"#;

fn definition(body: &Value) -> Definition {
    Definition::parse(body.to_string().as_bytes()).unwrap_or_else(|invalid| panic!("{body}: {invalid}"))
}

/// `code field` of what is refused.
#[track_caller]
fn problem(body: &Value) -> String {
    let invalid = Definition::parse(body.to_string().as_bytes()).expect_err(&body.to_string());
    assert!(!invalid.detail.is_empty());
    format!("{} {}", invalid.code, invalid.field.as_deref().unwrap_or("-"))
}

fn names(body: &Value) -> Vec<(Kind, String)> {
    definition(body).specs().into_iter().map(|spec| (spec.kind, spec.name)).collect()
}

#[test]
fn what_was_put_is_what_is_got() {
    let written: Value = serde_json::from_str(FULL).unwrap();
    let parsed = definition(&written);
    let stored = serde_json::to_string(&parsed).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&stored).unwrap(), written, "defaults are not filled in");
    let again: Definition = serde_json::from_str(&stored).unwrap();
    assert_eq!(again.observing, parsed.observing);
    assert_eq!(again.retention, parsed.retention);
    assert_eq!(serde_json::to_string(&again).unwrap(), stored);
    let empty = json!({"index":[],"counters":{},"histograms":{},"states":[],"observe":{}});
    assert_eq!(serde_json::to_value(definition(&empty)).unwrap(), empty);
}

#[test]
fn metrics_of_a_type_are_listed_once_each() {
    let body: Value = serde_json::from_str(FULL).unwrap();
    let expected = [
        (Kind::Counter, "all"),
        (Kind::Counter, "by_country"),
        (Kind::Histogram, "took"),
        (Kind::Histogram, "total"),
        (Kind::State, "order data.status"),
        (Kind::Transition, "order data.status"),
        (Kind::Index, "data.country"),
        (Kind::Index, "data.tags"),
        (Kind::Index, "source"),
        (Kind::Index, "type"),
    ];
    assert_eq!(names(&body), expected.map(|(kind, name)| (kind, name.to_owned())));
    assert_eq!(names(&json!({"index": []})), []);
    assert_eq!(names(&json!({"index": ["type"]})).len(), 2);
    let two = json!({"states": [
        {"object": "order", "id": "data.from", "attributes": ["data.status"]},
        {"object": "order", "id": "data.to", "attributes": ["data.status"]}]});
    assert_eq!(names(&two).len(), 2, "two ids of one kind of object share a metric");
    let specs = definition(&body).specs();
    assert_eq!(specs[0].shape, r#"{"dimensions":[],"granularity":"5s"}"#);
    assert_eq!(
        specs[1].shape,
        r#"{"dimensions":["data.country","type"],"granularity":"1m","sum":"data.total","where":"data.total > 1"}"#
    );
    assert_eq!((specs[0].keys_max, specs[1].keys_max), (10_000, 5));
    assert_eq!(specs[2].shape, r#"{"accuracy":0.01,"dimensions":[],"granularity":"5s","value":"duration"}"#);
    assert!(specs[4..].iter().all(|spec| spec.shape.is_empty()));
    let observing = definition(&body).observing;
    let week = std::time::Duration::from_hours(7 * 24);
    assert_eq!(observing.retention(Kind::Counter, "by_country"), Some(week));
    assert_eq!(observing.retention(Kind::Counter, "all"), None);
}

#[test]
fn what_is_switched_off_is_the_same_metric() {
    let mut body: Value = serde_json::from_str(FULL).unwrap();
    let all = names(&body);
    let kinds = [
        ("index", Kind::Index),
        ("counters", Kind::Counter),
        ("histograms", Kind::Histogram),
        ("states", Kind::State),
        ("states", Kind::Transition),
    ];
    for (switch, off) in kinds {
        body["observe"] = json!({ switch: false });
        assert_eq!(names(&body), all, "{switch}");
        let observing = definition(&body).observing;
        let on = kinds.iter().filter(|(_, kind)| observing.is_on(*kind)).count();
        assert_eq!((observing.is_on(off), on), (false, if switch == "states" { 3 } else { 4 }));
    }
}

#[test]
fn what_can_not_be_observed_is_refused_by_its_field() {
    let counter = |counter: Value| json!({"counters": {"n": counter}});
    let histogram = |histogram: Value| json!({"histograms": {"n": histogram}});
    let state = |more: Value| {
        let mut state = json!({"object": "order", "id": "data.id", "attributes": ["data.s"]});
        state.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"states": [state]})
    };
    let many = |count: usize| (0..count).map(|n| format!("data.a{n}")).collect::<Vec<_>>();
    let named = |count: usize| (0..count).map(|n| (format!("n{n}"), json!({}))).collect::<Value>();
    for (body, expected) in [
        (json!({"index": "data.a"}), "field_type index"),
        (json!({"index": ["data.a", "time"]}), "path_invalid index[1]"),
        (json!({"index": ["data.a", "data.b[0]"]}), "path_invalid index[1]"),
        (counter(json!({"dimensions": ["data.b[0]"]})), "path_invalid counters.n.dimensions[0]"),
        (counter(json!({"sum": "data.b[0]"})), "path_invalid counters.n.sum"),
        (histogram(json!({"value": "data.b[0]"})), "path_invalid histograms.n.value"),
        (state(json!({"id": "data.b[0]"})), "path_invalid states[0].id"),
        (state(json!({"attributes": ["data.b[0]"]})), "path_invalid states[0].attributes[0]"),
        (json!({"index": many(17)}), "field_too_many index"),
        (json!({"counters": {"": {}}}), "id_invalid counters."),
        (json!({"counters": {"a b": {}}}), "id_invalid counters.a b"),
        (json!({"counters": named(17)}), "field_too_many counters"),
        (json!({"counters": {"n": [["data.a"]]}}), "field_type counters.n"),
        (counter(json!({"dimension": []})), "field_unknown counters.n.dimension"),
        (counter(json!({"dimensions": ["data.a", "data.a"]})), "field_repeated counters.n.dimensions[1]"),
        (counter(json!({"dimensions": ["x"]})), "path_invalid counters.n.dimensions[0]"),
        (counter(json!({"dimensions": many(9)})), "field_too_many counters.n.dimensions"),
        (counter(json!({"where": "data.a =="})), "condition_invalid counters.n.where"),
        (counter(json!({"where": "data.a + 1"})), "condition_invalid counters.n.where"),
        (counter(json!({"sum": "total"})), "path_invalid counters.n.sum"),
        (counter(json!({"granularity": "10s"})), "field_value counters.n.granularity"),
        (counter(json!({"keys_max": 0})), "field_range counters.n.keys_max"),
        (counter(json!({"keys_max": 100_001})), "field_range counters.n.keys_max"),
        (counter(json!({"keys_max": -1})), "field_type counters.n.keys_max"),
        (counter(json!({"retention": "1 week"})), "duration_invalid counters.n.retention"),
        (counter(json!({"retention": "0s"})), "field_range counters.n.retention"),
        (json!({"histograms": named(9)}), "field_too_many histograms"),
        (histogram(json!({"value": "length"})), "path_invalid histograms.n.value"),
        (histogram(json!({"accuracy": 0.3})), "field_range histograms.n.accuracy"),
        (histogram(json!({"accuracy": 0})), "field_range histograms.n.accuracy"),
        (json!({"states": {}}), "field_type states"),
        (json!({"states": [["order", "data.id", ["data.s"]]]}), "field_type states[0]"),
        (json!({"states": [{"object": "o", "id": "data.id"}]}), "field_missing states[0].attributes"),
        (state(json!({"object": "an order"})), "id_invalid states[0].object"),
        (state(json!({"attributes": []})), "field_empty states[0].attributes"),
        (state(json!({"attributes": many(9)})), "field_too_many states[0].attributes"),
        (state(json!({"id": "id"})), "path_invalid states[0].id"),
        (state(json!({"only": []})), "field_empty states[0].only"),
        (state(json!({"additional": ["A", ""]})), "field_empty states[0].additional[1]"),
        (state(json!({"additional": ["A", "A"]})), "field_repeated states[0].additional[1]"),
        (json!({"observe": {"counter": false}}), "field_unknown observe.counter"),
        (json!({"observe": [false]}), "field_type observe"),
        (json!({"retention": "forever"}), "duration_invalid retention"),
        (json!({"retention": "9999d"}), "field_range retention"),
    ] {
        assert_eq!(problem(&body), expected, "{body}");
    }
    let mut twice = state(json!({}));
    let first = twice["states"][0].clone();
    twice["states"].as_array_mut().unwrap().push(first);
    assert_eq!(problem(&twice), "field_repeated states[1].attributes[0]");
}

proptest! {
    /// Another shape is another metric; how many keys it may have and how long it is kept do not matter.
    #[test]
    fn a_metric_is_another_one_when_it_counts_something_else(
        (one, other) in (counters(), counters()),
        keys in 1_u32..9,
        days in 1_u32..9,
    ) {
        let spec = |counter: &Value| definition(&json!({"counters": {"n": counter}})).specs().remove(0);
        let mut kept = one.clone();
        kept["keys_max"] = keys.into();
        kept["retention"] = format!("{days}d").into();
        prop_assert_eq!(spec(&kept).shape, spec(&one).shape);
        let granularity = |counter: &Value| counter.get("granularity").cloned().unwrap_or("5s".into());
        let dimensions = |counter: &Value| counter.get("dimensions").cloned().unwrap_or(json!([]));
        let is_same = granularity(&one) == granularity(&other)
            && dimensions(&one) == dimensions(&other)
            && one.get("sum") == other.get("sum")
            && one.get("where") == other.get("where");
        prop_assert_eq!(spec(&one).shape == spec(&other).shape, is_same);
    }
}

fn counters() -> impl Strategy<Value = Value> {
    let dimensions = prop::sample::select(vec![
        json!([]),
        json!(["data.a"]),
        json!(["data.a", "type"]),
        json!(["type", "data.a"]),
    ]);
    let member = |values: Vec<&'static str>| proptest::option::of(prop::sample::select(values));
    (
        proptest::option::of(dimensions),
        member(vec!["5s", "1m"]),
        member(vec!["data.a", "data.b"]),
        member(vec!["data.a > 1", "data.b > 1"]),
    )
        .prop_map(|(dimensions, granularity, sum, condition)| {
            let mut counter = json!({});
            let given = [
                ("dimensions", dimensions),
                ("granularity", granularity.map(Value::from)),
                ("sum", sum.map(Value::from)),
                ("where", condition.map(Value::from)),
            ];
            for (name, value) in given {
                if let Some(value) = value {
                    counter[name] = value;
                }
            }
            counter
        })
}

#[test]
fn states_have_a_term_and_a_number_of_keys_of_their_own() {
    let entry = |more: &Value| {
        let mut entry = json!({"object": "order", "id": "data.id", "attributes": ["data.status"]});
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        entry
    };
    let of = |more: Value| definition(&json!({"states": [entry(&more)]}));
    let kept = of(json!({"keys_max": 7, "retention": "7d"}));
    let specs = kept.specs();
    assert_eq!(specs.len(), 2);
    assert!(specs.iter().all(|spec| (spec.keys_max, spec.keep_ms) == (7, Some(7 * 86_400_000))), "{specs:?}");
    let week = std::time::Duration::from_hours(7 * 24);
    assert_eq!(kept.observing.retention(Kind::State, "order data.status"), Some(week));
    assert_eq!(kept.observing.retention(Kind::Transition, "order data.status"), Some(week));
    assert_eq!(kept.observing.retention(Kind::State, "order data.other"), None);
    let plain = of(json!({})).specs();
    assert!(
        specs.iter().zip(&plain).all(|(a, b)| (a.kind, &a.name, &a.shape) == (b.kind, &b.name, &b.shape))
    );
    assert_eq!(
        problem(&json!({"states": [entry(&json!({"keys_max": 0}))]})),
        "field_range states[0].keys_max"
    );
    assert_eq!(
        problem(&json!({"states": [entry(&json!({"retention": "0s"}))]})),
        "field_range states[0].retention"
    );
    let other = entry(&json!({"id": "data.other", "retention": "1d"}));
    assert_eq!(problem(&json!({"states": [entry(&json!({})), other]})), "field_conflict states[1]");
}
