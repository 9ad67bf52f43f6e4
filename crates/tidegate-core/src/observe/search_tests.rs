//! Goal: a search finds the events for which its condition is true, and says why it can not where it can not. Method:
//! random conditions and random events, indexed as they are in earnest, against CEL itself.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::delta::Delta;
use super::search::{Leaf, Plan};
use super::slab::Slab;
use super::*;
use crate::catalog::Definition;
use crate::event::{Data, Event, Fields, render};
use crate::id::{MetricNo, Seq};
use crate::route::{Condition, View};
use crate::time::Timestamp;

const PATHS: [&str; 5] = ["data.a", "data.b", "data.list", "subject", "extensions.tenant"];

fn event(type_name: &str, subject: Option<&str>, data: &str) -> Event {
    let time = "2026-11-15T19:34:14.123Z";
    let fields = Fields {
        id: "e",
        source: "shop",
        type_name,
        subject,
        time,
        ended: None,
        parents: &[],
        extensions: Some("{\"tenant\":\"x\"}"),
        data: Data::Json(data),
    };
    Event {
        id: "e".to_owned(),
        source: "shop".to_owned(),
        type_name: type_name.to_owned(),
        subject: subject.map(str::to_owned),
        time: Timestamp::parse(time).unwrap(),
        body: render(&fields),
    }
}

/// What a store keeps of events, and how it answers.
struct Index {
    metrics: BTreeMap<String, MetricNo>,
    delta: Delta,
}

impl Index {
    fn of(events: &[Event]) -> Self {
        let body = json!({ "index": PATHS }).to_string();
        let observing = Definition::parse(body.as_bytes()).unwrap().observing;
        let numbered: Vec<_> =
            observing.specs().into_iter().zip(1..).map(|(spec, no)| (spec.kind, spec.name, no)).collect();
        let extractor = Extractor::compile(&observing, &numbered, Switches::default()).unwrap();
        let mut slab = Slab::new(3);
        for (event, seq) in events.iter().zip(1..) {
            extractor.observe(&Sighting::of(event, seq), &mut slab);
        }
        let metrics = numbered.into_iter().map(|(_, name, no)| (name, no)).collect();
        Self { metrics, delta: slab.into_delta() }
    }

    fn find(&self, leaf: &Leaf) -> Vec<Seq> {
        let metric = self.metrics[&leaf.path];
        let in_leaf = |value: &[u8]| leaf.stretches.iter().any(|stretch| stretch.contains(value));
        let postings = self.delta.postings.iter().filter(|posting| posting.index == metric);
        postings
            .filter(|posting| in_leaf(&posting.value))
            .flat_map(|posting| posting.events.clone())
            .collect()
    }

    fn search(&self, condition: &str) -> Vec<Seq> {
        let plan = Plan::compile(condition, &|path| self.metrics.contains_key(path));
        plan.unwrap_or_else(|invalid| panic!("{condition}: {invalid}")).evaluate(&mut |leaf| self.find(leaf))
    }
}

fn judged(condition: &str, events: &[Event]) -> Vec<Seq> {
    let condition = Condition::compile(condition).unwrap();
    let is_true = |event: &Event| condition.judge(&View::new(event)) == Ok(true);
    events.iter().zip(1..).filter(|(event, _)| is_true(event)).map(|(_, seq)| seq).collect()
}

#[track_caller]
fn check(condition: &str, events: &[Event]) {
    assert_eq!(Index::of(events).search(condition), judged(condition, events), "{condition}");
}

#[test]
fn every_kind_of_condition_finds_what_it_should() {
    let long = "z".repeat(300);
    let events = [
        event("a.x", None, r#"{"a":1,"b":"DE","list":["x",1,null]}"#),
        event("a.x", Some("s"), r#"{"a":1.5,"b":"AT"}"#),
        event("a.y", Some("t"), r#"{"a":"1","b":null,"list":[]}"#),
        event("b", None, r#"{"b":true,"list":"x"}"#),
        event("b", None, r#"{"a":[1],"b":false,"list":[["x"],2.0]}"#),
        event("b", None, &format!(r#"{{"a":-7,"b":"{long}"}}"#)),
        event("b", None, r#"{"a":{"c":1}}"#),
    ];
    let long = format!("data.b == '{long}'");
    for condition in [
        "data.a == 1",
        "data.a != 1",
        "data.a == 1.0 || data.b == true",
        "!(data.a == 1) && data['b'] != 'DE'",
        "data.a > 1",
        "data.a >= 1 && data.a <= 1.5",
        "1 < data.a",
        "!(data.a < 1)",
        "data.a == -7 || -7.0 == data.a",
        "data.b in ['DE', null, true]",
        "!(data.b in ['DE', 'AT'])",
        "data.b in []",
        "'x' in data.list",
        "!('x' in data.list)",
        "1 in data.list || 2 in data.list || null in data.list",
        "data.b.startsWith('D')",
        "!data.b.startsWith('D')",
        "data.b",
        "!data.b",
        "data.b == null",
        "has(data.a)",
        "!has(data.b)",
        "subject == null",
        "subject != null && subject != 's'",
        "subject in [null, 't']",
        "type == 'a.x' || type.startsWith('a.')",
        "source == 'shop' && extensions.tenant == 'x'",
        "source != 'shop'",
        "true && data.a == 1",
        "false || data.a == 1",
        "!true",
        "data.b > 'B' && data.b <= 'DE'",
        &long,
    ] {
        check(condition, &events);
    }
}

#[test]
fn what_an_index_can_not_answer_is_refused_in_words() {
    for (condition, code, word) in [
        ("data.a ==", "condition_invalid", "line 1"),
        ("data.a + 1", "condition_invalid", "sum"),
        ("data.c == 1", "where_not_searchable", "`data.c` is not indexed: declare it in `index`"),
        ("data['a.b'] == 1", "where_not_searchable", "not answered"),
        ("data.a == data.b", "where_not_searchable", "`data.a` is compared with `data.b`"),
        ("data.a in data.list", "where_not_searchable", "`data.a` is compared with `data.list`"),
        ("data.a + 1 == 2", "where_not_searchable", "arithmetic"),
        ("data.a == 1 + 1", "where_not_searchable", "arithmetic"),
        ("size(data.list) > 1", "where_not_searchable", "`size`"),
        ("data.b.contains('x')", "where_not_searchable", "`contains`"),
        ("data.b.matches('x')", "where_not_searchable", "`matches`"),
        ("data.b.startsWith(data.a)", "where_not_searchable", "not answered"),
        ("data.list.exists(x, x == 'x')", "where_not_searchable", "in data.list"),
        ("data.a == 1 ? true : false", "where_not_searchable", "`?:`"),
        ("data.b < true", "where_not_searchable", "only numbers and texts"),
        ("data.b == [1]", "where_not_searchable", "not answered"),
        ("1 == 1", "where_not_searchable", "without an attribute"),
        ("id == 'x'", "where_not_searchable", "/v1/events/{id}"),
        ("time > '2026'", "where_not_searchable", "`from` and `to`"),
        ("has(data.c)", "where_not_searchable", "`data.c`"),
    ] {
        let is_indexed = |path: &str| PATHS.contains(&path) || IMPLICIT_PATHS.contains(&path);
        let invalid = Plan::compile(condition, &is_indexed).expect_err(condition);
        assert_eq!((invalid.code, invalid.field.as_deref()), (code, Some("where")), "{condition}");
        assert!(invalid.detail.contains(word), "{condition}: {}", invalid.detail);
    }
    let long = format!("data.b < '{}'", "x".repeat(300));
    assert!(Plan::compile(&long, &|_| true).unwrap_err().detail.contains("256"));
}

#[test]
fn leaves_are_listed_and_not_asked_for_in_vain() {
    let plan = Plan::compile("data.a == 1 && !('x' in data.list)", &|_| true).unwrap();
    let paths: Vec<&str> = plan.leaves().iter().map(|leaf| leaf.path.as_str()).collect();
    assert_eq!(paths, ["data.a", "data.list", "data.list"]);
    let mut asked = 0;
    let found = plan.evaluate(&mut |_| {
        asked += 1;
        Vec::new()
    });
    assert_eq!((found.len(), asked), (0, 1), "nothing and something is nothing");
}

const SCALARS: [&str; 14] = [
    "null",
    "true",
    "false",
    "0",
    "1",
    "1.0",
    "-2.5",
    "9007199254740993",
    "\"\"",
    "\"a\"",
    "\"ab\"",
    "\"b\"",
    "\"é\"",
    "1e300",
];

fn json_value() -> impl Strategy<Value = Option<String>> {
    let scalar = || prop::sample::select(SCALARS.to_vec()).prop_map(str::to_owned);
    prop_oneof![
        1 => Just(None),
        5 => scalar().prop_map(Some),
        2 => proptest::collection::vec(scalar(), 0..3).prop_map(|items| Some(format!("[{}]", items.join(",")))),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    let subject = proptest::option::of(prop::sample::select(vec!["a", "b"]));
    (prop::sample::select(vec!["a", "ab", "c"]), subject, json_value(), json_value(), json_value()).prop_map(
        |(type_name, subject, a, b, list)| {
            let members = [("a", a), ("b", b), ("list", list)];
            let members: Vec<String> = members
                .into_iter()
                .filter_map(|(name, value)| value.map(|value| format!("\"{name}\":{value}")))
                .collect();
            event(type_name, subject, &format!("{{{}}}", members.join(",")))
        },
    )
}

fn any_condition() -> impl Strategy<Value = String> {
    let path = || prop::sample::select(vec!["data.a", "data.b", "data['list']", "subject", "type"]);
    let literal = || {
        let literals =
            ["null", "true", "false", "0", "1", "1u", "-2.5", "9007199254740993", "''", "'a'", "'ab'", "'é'"];
        prop::sample::select(literals.to_vec())
    };
    let ordered = prop::sample::select(vec!["0", "1.0", "-2.5", "''", "'a'", "'b'"]);
    let order = prop::sample::select(vec!["<", "<=", ">", ">="]);
    let equality = prop::sample::select(vec!["==", "!="]);
    let leaf = prop_oneof![
        (path(), equality.clone(), literal()).prop_map(|(path, op, value)| format!("{path} {op} {value}")),
        (path(), equality, literal()).prop_map(|(path, op, value)| format!("{value} {op} {path}")),
        (path(), order.clone(), ordered.clone()).prop_map(|(path, op, value)| format!("{path} {op} {value}")),
        (path(), order, ordered).prop_map(|(path, op, value)| format!("{value} {op} {path}")),
        (path(), proptest::collection::vec(literal(), 0..3))
            .prop_map(|(path, values)| format!("{path} in [{}]", values.join(","))),
        (literal(), path()).prop_map(|(value, path)| format!("{value} in {path}")),
        (path(), prop::sample::select(vec!["''", "'a'", "'ab'"]))
            .prop_map(|(path, prefix)| format!("{path}.startsWith({prefix})")),
        prop::sample::select(vec!["has(data.a)", "has(data.b)", "data.a", "data.b", "true", "false"])
            .prop_map(str::to_owned),
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(left, right)| format!("({left} && {right})")),
            (inner.clone(), inner.clone()).prop_map(|(left, right)| format!("({left} || {right})")),
            inner.prop_map(|inner| format!("!({inner})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_search_finds_what_cel_says(
        events in proptest::collection::vec(any_event(), 1..12),
        condition in any_condition(),
    ) {
        prop_assert_eq!(Index::of(&events).search(&condition), judged(&condition, &events), "{}", condition);
    }
}

#[test]
fn what_is_true_by_source_and_type_alone_is_known_without_an_index() {
    let plan = |source: &str| Plan::compile(source, &|_| true).unwrap_or_else(|invalid| panic!("{invalid}"));
    for (condition, may, holds) in [
        ("type == 'h'", true, true),
        ("type == 'g'", true, false),
        ("source == 'shop' && type.startsWith('h')", true, true),
        ("type != 'g'", true, true),
        ("!(type == 'h')", true, false),
        ("type == 'h' && data.a == 1", false, false),
        ("type == 'h' || data.a == 1", true, true),
        ("data.a == 1", false, false),
        ("type in ['g', 'h']", true, true),
        ("true", true, true),
        ("false", false, false),
    ] {
        let plan = plan(condition);
        assert_eq!(plan.may_hold_by_name(), may, "{condition}");
        assert_eq!(plan.holds_by_name("shop", "h"), holds, "{condition}");
    }
    assert_eq!(plan("source == 'shop' && type == 'h'").named("type").as_deref(), Some("h"));
    assert_eq!(plan("type == 'g' || type == 'h'").named("type"), None);
    assert_eq!(plan("type.startsWith('h')").named("type"), None);
}
