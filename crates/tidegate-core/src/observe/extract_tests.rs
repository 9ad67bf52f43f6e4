//! Goal: an event adds what its type declares, whatever it holds. Method: definitions and bodies as text, and the delta
//! that comes out; against slow readings of the same event where values are random.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::delta::{Cell, Delta, Sight};
use super::slab::Slab;
use super::*;
use crate::catalog::Definition;
use crate::event::{Data, Event, Fields, render};
use crate::id::MetricNo;
use crate::route::{Path, View, value_of};
use crate::time::Timestamp;

const TIME: &str = "2026-11-15T19:34:14.123Z";

fn definition(body: &Value) -> Observing {
    Definition::parse(body.to_string().as_bytes()).expect("it is a definition").observing
}

/// Numbers from 1 in order of the specs.
fn extractor(body: &Value) -> Extractor {
    let observing = definition(body);
    let numbered = observing.specs().into_iter().zip(1..).map(|(spec, no)| (spec.kind, spec.name, no));
    Extractor::compile(&observing, &numbered.collect::<Vec<_>>(), Switches::default()).expect("it compiles")
}

fn event(ended: Option<&str>, data: &str) -> Event {
    let fields = Fields {
        id: "e1",
        source: "shop",
        type_name: "order.paid",
        subject: Some("o/1"),
        time: TIME,
        ended,
        parents: &[],
        extensions: Some(r#"{"tenant":"x"}"#),
        data: Data::Json(data),
    };
    Event {
        id: "e1".to_owned(),
        source: "shop".to_owned(),
        type_name: "order.paid".to_owned(),
        subject: Some("o/1".to_owned()),
        time: Timestamp::parse(TIME).unwrap(),
        body: render(&fields),
    }
}

fn observed(body: &Value, event: &Event) -> Delta {
    let mut slab = Slab::new(7);
    extractor(body).observe(&Sighting::of(event, 9), &mut slab);
    slab.into_delta()
}

/// Keys, counts and sums of a metric in its shortest buckets.
fn counts(delta: &Delta, metric: MetricNo) -> Vec<(String, i64, i128)> {
    let shortest = delta.rises().iter().filter(|rise| rise.metric == metric).map(|rise| rise.grain).min();
    let rises =
        delta.rises().into_iter().filter(|rise| rise.metric == metric && Some(rise.grain) == shortest);
    rises
        .map(|rise| match &rise.cell {
            Cell::Count { count, sum } => (rise.key.to_string(), *count, *sum),
            Cell::Sketch(_) => panic!("a counter has no values"),
        })
        .collect()
}

/// The key, and the sum in units of 10⁻⁹, of a counter of one event.
fn counted(counter: &Value, data: &str) -> Option<(String, i128)> {
    let delta = observed(&json!({"counters": {"n": counter}}), &event(None, data));
    counts(&delta, 1).into_iter().next().map(|(key, _, sum)| (key, sum))
}

fn sampled(histogram: &Value, ended: Option<&str>, data: &str) -> Option<f64> {
    let delta = observed(&json!({"histograms": {"n": histogram}}), &event(ended, data));
    delta.rises().first().and_then(|rise| match &rise.cell {
        Cell::Sketch(sketch) => sketch.max(),
        Cell::Count { .. } => panic!("a histogram has values"),
    })
}

#[test]
fn everything_declared_is_observed() {
    let body = json!({
        "index": ["data.country", "data.tags"],
        "counters": {"all": {}, "by": {"dimensions": ["data.country", "type"], "sum": "data.total", "granularity": "5m"}},
        "histograms": {"total": {"value": "data.total", "dimensions": ["extensions.tenant"]}},
        "states": [{"object": "order", "id": "data.order", "attributes": ["data.status", "data.absent"]}],
    });
    let data = r#"{"country":"DE","tags":["a","b","a"],"total":41.50,"order":7,"status":"PAID"}"#;
    let delta = observed(&body, &event(None, data));
    assert_eq!(counts(&delta, 1), [("[]".to_owned(), 1, 0)]);
    assert_eq!(counts(&delta, 2), [(r#"["DE","order.paid"]"#.to_owned(), 1, 41_500_000_000)]);
    assert!(delta.rises().iter().any(|rise| rise.metric == 3 && &*rise.key == r#"["x"]"#));
    let base =
        |metric| delta.rises().iter().filter(|rise| rise.metric == metric).map(|rise| rise.grain).min();
    assert_eq!((base(1), base(2)), (Some(Grain::S5), Some(Grain::M5)));
    let [Sight { state: 5, transition: 7, object, value, event: 9, .. }] = &delta.sights[..] else {
        panic!("{:?}", delta.sights)
    };
    assert_eq!((&**object, &**value), ("7", "PAID"));
    let values: Vec<_> = delta.postings.iter().map(|it| (it.index, value::decode(&it.value))).collect();
    let text = |text: &str| Some(Value::from(text));
    let expected = [
        (8, text("DE")),
        (9, None),
        (9, text("a")),
        (9, text("b")),
        (10, text("shop")),
        (11, text("order.paid")),
    ];
    assert_eq!(values, expected);
    assert!(delta.postings.iter().all(|posting| posting.events == [9]));
}

#[test]
fn what_is_switched_off_or_has_no_number_is_not_observed() {
    let body = json!({"index": ["data.a"], "counters": {"all": {}, "more": {}}});
    let observing = definition(&body);
    let metrics = [(Kind::Counter, "more".to_owned(), 5), (Kind::Index, "data.a".to_owned(), 6)];
    for (switches, expected) in [
        (Switches::default(), (true, true)),
        (Switches { index: Some(false), ..Switches::default() }, (true, false)),
        (Switches { counters: Some(false), ..Switches::default() }, (false, true)),
    ] {
        let extractor = Extractor::compile(&observing, &metrics, switches).unwrap();
        let mut slab = Slab::new(1);
        extractor.observe(&Sighting::of(&event(None, "{}"), 1), &mut slab);
        let delta = slab.into_delta();
        assert!(delta.rises().iter().all(|rise| rise.metric == 5));
        assert_eq!((!delta.rises().is_empty(), !delta.postings.is_empty()), expected);
    }
}

#[test]
fn dimensions_are_read_alike_however_they_are_written() {
    let long = "x".repeat(300);
    let key = |value: &str| {
        let counter = json!({"dimensions": ["data.a"]});
        counted(&counter, &format!("{{\"a\":{value}}}")).expect("it is counted").0
    };
    for (value, expected) in [
        ("\"DE\"", r#"["DE"]"#),
        ("\"\\u0044E\"", r#"["DE"]"#),
        ("\"\\\"\"", r#"["\""]"#),
        ("null", r#"["(none)"]"#),
        ("7", "[7]"),
        ("7.0", "[7]"),
        ("\"7\"", r#"["7"]"#),
        ("-0.0", "[0]"),
        ("1e999", r#"["1e999"]"#),
        ("true", "[true]"),
        ("[1, 2]", "[[1,2]]"),
        ("{\"b\":1, \"a\":2}", r#"[{"a":2,"b":1}]"#),
        ("\"\\ud800\"", r#"["\"\\ud800\""]"#),
    ] {
        assert_eq!(key(value), expected, "{value}");
    }
    assert_eq!(
        counted(&json!({"dimensions": ["data.a", "data.b.c"]}), "[]").unwrap().0,
        r#"["(none)","(none)"]"#
    );
    let hash = key(&format!("\"{long}\""));
    assert!(hash.starts_with(r#"["sha256:"#) && hash.len() < 60, "{hash}");
    assert_ne!(hash, key(&format!("\"{long}y\"")));
    assert_eq!(hash, key(&format!("\"\\u0078{}\"", &long[1..])));
    assert!(key(&format!("[\"{long}\"]")).starts_with(r#"["sha256:"#));
}

#[test]
fn sums_take_numbers_and_texts_that_are_numbers() {
    for (value, expected) in [
        ("0.1", 100_000_000),
        ("\"12.50\"", 12_500_000_000),
        ("-1e-9", -1),
        ("\"twelve\"", 0),
        ("true", 0),
        ("null", 0),
        ("[1]", 0),
    ] {
        let found = counted(&json!({"sum": "data.a"}), &format!("{{\"a\":{value}}}"));
        assert_eq!(found, Some(("[]".to_owned(), expected)), "{value}");
    }
    assert_eq!(counted(&json!({"sum": "data.a"}), "{}"), Some(("[]".to_owned(), 0)));
}

#[test]
fn conditions_decide_and_errors_do_not_count() {
    for (condition, data, is_counted) in [
        ("data.a > 1", "{\"a\":2}", true),
        ("data.a > 1", "{\"a\":1}", false),
        ("data.a > 1", "{}", false),
        ("source == 'shop' && subject == 'o/1' && id == 'e1' && extensions.tenant == 'x'", "1", true),
    ] {
        let found = counted(&json!({"where": condition}), data);
        assert_eq!(found.is_some(), is_counted, "{condition} on {data}");
    }
}

#[test]
fn histograms_take_values_or_durations() {
    let value = json!({"value": "data.a"});
    for (data, expected) in [
        ("{\"a\":-2.5}", Some(-2.5)),
        ("{\"a\":\"3\"}", Some(3.0)),
        ("{\"a\":0}", Some(0.0)),
        ("{\"a\":\"x\"}", None),
        ("{}", None),
    ] {
        assert_eq!(sampled(&value, None, data), expected, "{data}");
    }
    for histogram in [json!({}), json!({"value": "duration"})] {
        assert_eq!(sampled(&histogram, Some("2026-11-15T19:34:15.623Z"), "1"), Some(1_500.0));
        assert_eq!(sampled(&histogram, Some("2026-11-15T20:34:14.123500+01:00"), "1"), Some(0.5));
        assert_eq!(sampled(&histogram, Some("2026-11-15T19:34:13.123Z"), "1"), Some(-1_000.0));
        assert_eq!(sampled(&histogram, None, "1"), None);
    }
}

#[test]
fn an_object_without_an_id_or_a_state_is_not_seen() {
    let body = json!({"states": [{"object": "order", "id": "data.id", "attributes": ["data.s"]}]});
    for (data, expected) in [
        (r#"{"id":"a","s":"NEW"}"#, Some(("a", "NEW"))),
        (r#"{"id":7.0,"s":true}"#, Some(("7", "true"))),
        (r#"{"id":"\u0061","s":""}"#, Some(("a", ""))),
        (r#"{"id":"","s":"NEW"}"#, None),
        (r#"{"id":null,"s":"NEW"}"#, None),
        (r#"{"id":"a","s":null}"#, None),
        (r#"{"id":"a","s":["NEW"]}"#, None),
        (r#"{"id":{},"s":"NEW"}"#, None),
        ("{}", None),
    ] {
        let delta = observed(&body, &event(None, data));
        let found = delta.sights.first().map(|sight| (&*sight.object, &*sight.value));
        assert_eq!(found, expected, "{data}");
    }
    let long = format!(r#"{{"id":"{}","s":"{}"}}"#, "i".repeat(300), "s".repeat(300));
    let delta = observed(&body, &event(None, &long));
    assert!(delta.sights[0].object.len() < 60 && delta.sights[0].value.starts_with("sha256:"));
}

proptest! {
    /// Keys are what the paths of folds and lanes find, value by value.
    #[test]
    fn dimensions_agree_with_paths_everywhere_else(
        a in prop::sample::select(vec!["1", "1.0", "-2.5", "null", "true", "\"x\"", "\"\\u0078\"", "[1,{\"b\":2}]", "{\"c\":\"\"}", "{\"c\":[\"y\"]}"]),
        b in proptest::option::of(prop::sample::select(vec!["\"é\"", "1e2", "{\"c\":1}"])),
    ) {
        let data = match b {
            Some(b) => format!("{{\"a\":{a}, \"b\" : {b}}}"),
            None => format!("{{\"a\":{a}}}"),
        };
        let paths = ["data.a", "data.b", "data.b.c", "data.a.0", "data.a.1.b", "data.a.c.0", "subject", "extensions.tenant"];
        let event = event(None, &data);
        let delta = observed(&json!({"counters": {"n": {"dimensions": paths}}}), &event);
        let view = View::new(&event);
        let expected = paths.map(|path| match value_of(&view, &Path::parse(path).unwrap()) {
            Value::Null => Value::from(NONE),
            value => value,
        });
        let key: Value = serde_json::from_str(&counts(&delta, 1)[0].0).unwrap();
        prop_assert_eq!(key, Value::from(expected.to_vec()));
    }

    #[test]
    fn any_body_is_observed_without_a_panic(data in "[\\[\\]{}\",:a0\\\\ ]{0,30}") {
        let body = json!({
            "index": ["data.a", "data"], "counters": {"n": {"dimensions": ["data.a.0"], "sum": "data.a"}},
            "histograms": {"n": {}, "m": {"value": "data.a"}},
            "states": [{"object": "o", "id": "data.a", "attributes": ["data"]}],
        });
        observed(&body, &event(Some("never"), &data));
    }
}

#[test]
fn the_sum_of_a_histogram_is_that_of_the_numbers_as_they_are_written() {
    let declared = json!({"histograms": {"v": {"value": "data.v"}}});
    let sum = |data: &str, ended: Option<&str>| {
        let delta = observed(&declared, &event(ended, data));
        match delta.rises().into_iter().next().map(|rise| rise.cell) {
            Some(Cell::Sketch(sketch)) => sketch.sum(),
            other => panic!("{data}: {other:?}"),
        }
    };
    assert_eq!(sum(r#"{"v":12345678901.123456789}"#, None), 12_345_678_901_123_456_789);
    assert_eq!(sum(r#"{"v":"-12345678901.123456789"}"#, None), -12_345_678_901_123_456_789);
    assert_eq!(sum(r#"{"v":0.1}"#, None), 100_000_000);
    assert_eq!(sum(r#"{"v":4e-10}"#, None), 0, "it counts as zero");
    assert_eq!(sum(r#"{"v":1e20}"#, None), 1_000_000_000_000_000_000_000_000_000, "it counts as 10¹⁸");
}

#[test]
fn a_text_that_stands_for_something_else_is_told_apart_from_it() {
    let declared = json!({
        "counters": {"by": {"dimensions": ["data.v"]}},
        "states": [{"object": "o", "id": "subject", "attributes": ["data.v"]}],
    });
    for (data, key, state) in [
        (r"{}", r#"["(none)"]"#, None),
        (r#"{"v":"(none)"}"#, r#"["\\(none)"]"#, Some(r"\(none)")),
        (r#"{"v":"(n\u006fne)"}"#, r#"["\\(none)"]"#, Some(r"\(none)")),
        (r#"{"v":"(other)"}"#, r#"["\\(other)"]"#, Some(r"\(other)")),
        (r#"{"v":"\\(none)"}"#, r#"["\\\\(none)"]"#, Some(r"\\(none)")),
        (r#"{"v":"(None)"}"#, r#"["(None)"]"#, Some("(None)")),
    ] {
        let delta = observed(&declared, &event(None, data));
        assert_eq!(counts(&delta, 1)[0].0, key, "{data}");
        assert_eq!(delta.sights.first().map(|sight| &*sight.value), state, "{data}");
    }
}
