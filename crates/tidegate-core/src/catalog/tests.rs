//! Goal: every reason is found where it belongs and nowhere else. Method: small catalogs, decoded units, one clock.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::event::Unit;
use crate::ingest::{Request, decode};

const NOW: Timestamp = Timestamp::from_ms(1_800_000_000_000);

fn unit(text: &str) -> Unit {
    let body = Bytes::from(text.to_owned());
    let request = Request { content_type: None, headers: &[], body: &body };
    decode(&request, NOW, &mut || 7).expect("it is an event").remove(0)
}

fn catalog(mode: Mode, types: &[(&str, &str)]) -> Catalog {
    let mut catalog = Catalog { mode, ..Catalog::default() };
    for (name, definition) in types {
        let definition = Definition::parse(definition.as_bytes()).expect("it is a definition");
        catalog.put("shop", name, Arc::new(EventType::compile(definition, NOW, NOW).expect("it compiles")));
    }
    catalog
}

#[track_caller]
fn check(catalog: &Catalog, text: &str, expected: Option<(Reason, &str)>) {
    let found = judge(Some(catalog), &unit(text), NOW);
    let found = found.as_ref().map(|finding| (finding.reason, finding.detail.as_str()));
    match (found, expected) {
        (Some((reason, detail)), Some((wanted, part))) => {
            assert!(reason == wanted && detail.contains(part), "{text}: {reason:?} {detail}");
        }
        (found, expected) => assert_eq!(found, expected, "{text}"),
    }
}

const PAID: &str = r#"{"schema":{"required":["total"],"properties":{"total":{"type":"number"}}}}"#;

#[test]
fn a_strict_catalog_takes_declared_types_only() {
    let strict = catalog(Mode::Strict, &[("order.paid", PAID), ("step", "{}")]);
    check(&strict, r#"{"source":"shop","type":"order.paid","data":{"total":1}}"#, None);
    check(&strict, r#"{"source":"bar","type":"order.paid"}"#, Some((Reason::UnconfiguredService, "bar")));
    check(&strict, r#"{"source":"shop","type":"order"}"#, Some((Reason::UnconfiguredEventType, "order")));
    let nested = |inner: &str| {
        format!(
            r#"{{"id":"e","source":"shop","type":"step","events":[{{"type":"step","events":[{inner}]}}]}}"#
        )
    };
    check(&strict, &nested(r#"{"type":"step"}"#), None);
    check(
        &strict,
        &nested(r#"{"type":"none"}"#),
        Some((Reason::UnconfiguredNestedEventType, "no type none")),
    );
    check(
        &strict,
        &nested(r#"{"type":"order.paid","data":{}}"#),
        Some((Reason::SchemaViolation, "in the sub-event e~1~1: data: `total` is missing")),
    );
}

#[test]
fn what_the_server_says_about_itself_needs_no_declaration() {
    let strict = catalog(Mode::Strict, &[]);
    let mut unit = unit(r#"{"source":"shop","type":"tidegate.subscriber.disabled"}"#);
    assert!(judge(Some(&strict), &unit, NOW).is_some());
    unit.events[0].source = crate::operator::SOURCE.to_owned();
    assert_eq!(judge(Some(&strict), &unit, NOW), None);
    assert_eq!(check_names("tidegate", "x").unwrap_err().code, "source_reserved");
}

#[test]
fn an_open_catalog_still_keeps_its_schemas() {
    let open = catalog(Mode::Open, &[("order.paid", PAID)]);
    check(&open, r#"{"source":"bar","type":"x"}"#, None);
    check(&open, r#"{"source":"shop","type":"x"}"#, None);
    check(
        &open,
        r#"{"source":"shop","type":"order.paid","data":{"total":"1"}}"#,
        Some((Reason::SchemaViolation, "data.total: expected number")),
    );
    check(&open, r#"{"source":"shop","type":"order.paid"}"#, None);
    check(
        &open,
        r#"{"source":"shop","type":"order.paid","data_base64":"AA=="}"#,
        Some((Reason::SchemaViolation, "data_base64")),
    );
    check(
        &open,
        r#"{"source":"shop","type":"order.paid","data":{"total":1e999}}"#,
        Some((Reason::SchemaViolation, "number")),
    );
}

#[test]
fn a_time_far_ahead_is_found_without_any_catalog() {
    let at = |ms: u64| {
        let time = NOW.plus(std::time::Duration::from_millis(ms));
        unit(&format!(r#"{{"source":"s","type":"t","events":[{{"type":"u","time":"{time}"}}]}}"#))
    };
    assert_eq!(judge(None, &at(24 * 3_600_000), NOW), None);
    let found = judge(None, &at(24 * 3_600_000 + 1_000), NOW).expect("it is found");
    assert_eq!(found.reason, Reason::FutureTime);
}

#[test]
fn definitions_are_read_whole_or_not_at_all() {
    for (text, code, field) in [
        ("[", "json_syntax", None),
        ("[]", "field_type", None),
        (r#"{"shema":{}}"#, "field_unknown", Some("shema")),
        (r#"{"counters":[]}"#, "field_type", Some("counters")),
        (r#"{"index":["data.a","data.a"]}"#, "field_repeated", Some("index[1]")),
        (r#"{"retention":"0s"}"#, "field_range", Some("retention")),
        (r#"{"schema":1}"#, "schema_invalid", Some("schema")),
        (r#"{"schema":{"$ref":"http://x"}}"#, "schema_reference", Some("schema.$ref")),
        (r#"{"schema":{"items":{"type":"x"}}}"#, "schema_invalid", Some("schema.items.type")),
        (r#"{"deprecated":1}"#, "field_type", Some("deprecated")),
        (r#"{"deprecated":{"replaced_by":""}}"#, "field_empty", Some("deprecated.replaced_by")),
    ] {
        let invalid = Definition::parse(text.as_bytes()).expect_err(text);
        assert_eq!((invalid.code, invalid.field.as_deref()), (code, field), "{text}: {}", invalid.detail);
    }
    let large = format!(r#"{{"schema":{{"title":"{}"}}}}"#, "x".repeat(70_000));
    assert_eq!(Definition::parse(large.as_bytes()).unwrap_err().code, "schema_too_large");
    let deep = format!(r#"{{"schema":{}{}}}"#, r#"{"not":"#.repeat(70), "true".to_owned() + &"}".repeat(70));
    assert_eq!(Definition::parse(deep.as_bytes()).unwrap_err().code, "json_too_deep");
}

#[test]
fn a_definition_comes_back_as_it_was_stored() {
    let text = r#"{"schema":{"b":1,  "a":1.10},"deprecated":{"replaced_by":"x"},"description":"d"}"#;
    let stored = serde_json::to_string(&Definition::parse(text.as_bytes()).unwrap()).unwrap();
    assert_eq!(stored, text);
    let again: Definition = serde_json::from_str(&stored).unwrap();
    assert_eq!(serde_json::to_string(&again).unwrap(), text);
}

#[test]
fn a_packed_unit_comes_back_byte_for_byte() {
    let text = r#"{"id":"e","source":"shop","type":"t","subject":"s","time":"2027-01-01T00:00:00.5Z","data":{ "b" : [1.10,
        "]" ] },"events":[{"type":"u"},{"type":"v","events":[{"type":"w","data_base64":"AA=="}]}]}"#;
    let unit = unit(text);
    assert_eq!(unit.events.len(), 4);
    assert_eq!(unpack(&pack(&unit), unit.fingerprint), Some(unit));
    for damaged in ["", "[]", "[{}]", "{}", "[1"] {
        assert_eq!(unpack(damaged.as_bytes(), [0; 16]), None, "{damaged}");
    }
}

#[test]
fn deprecated_types_are_counted_and_named() {
    let mut open = catalog(Mode::Open, &[("a", r#"{"deprecated":{"replaced_by":"b"}}"#), ("b", "{}")]);
    assert!(open.has_deprecated());
    assert_eq!(open.warning("shop", "a").as_deref(), Some("the type a is deprecated: send b instead"));
    assert_eq!(open.warning("shop", "b"), None);
    open.remove("shop", "a");
    assert!(!open.has_deprecated() && !open.is_trivial());
    open.remove("shop", "b");
    assert!(open.is_trivial());
}

#[test]
fn the_catalog_describes_itself() {
    let types = [
        (
            "order/paid",
            r##"{"schema":{"properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"string"}}},"description":"d"}"##,
        ),
        ("order_paid", r#"{"deprecated":{"replaced_by":"order/paid"}}"#),
    ];
    let document = describe("p1", 7, &catalog(Mode::Open, &types));
    assert_eq!((&document["asyncapi"], &document["info"]["version"]), (&"3.0.0".into(), &"7".into()));
    let channels = document["channels"].as_object().expect("channels");
    assert_eq!(channels.keys().collect::<Vec<_>>(), ["shop.order_paid", "shop.order_paid-2"]);
    let message = &document["channels"]["shop.order_paid"]["messages"]["event"];
    assert_eq!(message["payload"]["properties"]["type"]["const"], "order/paid");
    let reference = message["payload"]["properties"]["data"]["properties"]["a"]["$ref"].as_str().unwrap();
    let found = document.pointer(reference.strip_prefix('#').unwrap()).expect("it leads somewhere");
    assert_eq!(found["type"], "string");
    let other = &document["channels"]["shop.order_paid-2"]["messages"]["event"];
    assert_eq!(other["summary"], "Deprecated: use order/paid");
    for operation in document["operations"].as_object().expect("operations").values() {
        let channel = operation["channel"]["$ref"].as_str().unwrap();
        assert!(document.pointer(channel.strip_prefix('#').unwrap()).is_some(), "{channel}");
    }
}

#[test]
fn references_lead_to_their_place_in_the_description() {
    let schema = json!({
        "$id": "https://example.com/tree", "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {
            "a": { "$ref": "#colour" }, "b": { "$ref": "https://example.com/tree#/$defs/c" }, "c": { "$ref": "#" },
            "d": { "const": { "$ref": "#colour" } },
        },
        "$defs": { "c": { "$anchor": "colour", "enum": ["red"] } },
    });
    let types = [("t", json!({ "schema": schema }).to_string())];
    let types: Vec<(&str, &str)> = types.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let document = describe("p1", 1, &catalog(Mode::Open, &types));
    let data = &document["channels"]["shop.t"]["messages"]["event"]["payload"]["properties"]["data"];
    let found = |name: &str| {
        let reference = data["properties"][name]["$ref"].as_str().expect("a reference");
        document.pointer(reference.strip_prefix('#').expect("in this document")).expect("it leads somewhere")
    };
    assert_eq!((&found("a")["enum"], &found("b")["enum"]), (&json!(["red"]), &json!(["red"])));
    assert_eq!(found("c"), data);
    assert_eq!(data["properties"]["d"]["const"]["$ref"], "#colour", "a value is no reference");
    assert!(data.get("$id").is_none() && data.get("$schema").is_none(), "it is no document of its own");
}

proptest! {
    #[test]
    fn judging_is_total_and_deterministic(
        strict: bool,
        source in "(shop|bar)",
        name in "(order[.]paid|step|x)",
        data in prop::sample::select(vec!["null", "{}", r#"{"total":1}"#, "[1e400]", r#""x""#]),
        ahead in 0_i64..200_000_000,
    ) {
        let mode = if strict { Mode::Strict } else { Mode::Open };
        let catalog = catalog(mode, &[("order.paid", PAID), ("step", "{}")]);
        let unit = unit(&format!(r#"{{"source":"{source}","type":"{name}","data":{data}}}"#));
        let now = Timestamp::from_ms(NOW.as_ms() - ahead);
        prop_assert_eq!(judge(Some(&catalog), &unit, now), judge(Some(&catalog), &unit, now));
    }
}

/// Types with few definitions, of two services.
fn any_types() -> impl Strategy<Value = Vec<(&'static str, &'static str, &'static str)>> {
    let service = prop_oneof![Just("shop"), Just("bar")];
    let name = prop_oneof![Just("order.paid"), Just("step")];
    let definition = prop_oneof![Just(PAID), Just("{}"), Just(r#"{"schema":{"type":"object"}}"#)];
    proptest::collection::vec((service, name, definition), 0..4)
}

fn any_mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Open), Just(Mode::Strict)]
}

fn declare(catalog: &mut Catalog, types: &[(&str, &str, &str)]) {
    for (service, name, definition) in types {
        let definition = Definition::parse(definition.as_bytes()).expect("it is a definition");
        let compiled = EventType::compile(definition, NOW, NOW).expect("it compiles");
        catalog.put(service, name, Arc::new(compiled));
    }
}

proptest! {
    #[test]
    fn judging_what_changed_agrees_with_judging_all(
        (before, after, gone) in (any_types(), any_types(), any_types()),
        (old_mode, new_mode) in (any_mode(), any_mode()),
        (has_old, has_new) in (any::<bool>(), any::<bool>()),
        (ahead_s, passed_s) in (0_u64..180_000, 0_u64..180_000),
        data in prop_oneof![Just("1"), Just("{}"), Just(r#"{"total":1}"#)],
    ) {
        let mut old = Catalog { mode: old_mode, ..Catalog::default() };
        declare(&mut old, &before);
        // What is not touched is the same in memory.
        let mut new = if has_old { old.clone() } else { Catalog::default() };
        new.mode = new_mode;
        declare(&mut new, &after);
        gone.iter().for_each(|(service, name, _)| new.remove(service, name));
        let (old, new) = (has_old.then_some(&old), has_new.then_some(&new));
        let at = NOW.plus(std::time::Duration::from_secs(ahead_s));
        let unit = unit(&format!(
            r#"{{"id":"e","source":"shop","type":"order.paid","time":"{at}","data":{data},"events":[{{"type":"step"}}]}}"#
        ));
        let later = NOW.plus(std::time::Duration::from_secs(passed_s));
        let found = judge_again((old, new), &unit, judge(old, &unit, NOW), later);
        prop_assert_eq!(found, judge(new, &unit, later));
    }
}

#[test]
fn a_type_that_has_not_changed_is_not_asked_again() {
    let old = catalog(Mode::Open, &[("order.paid", PAID)]);
    let mut new = old.clone();
    declare(&mut new, &[("shop", "step", "{}"), ("bar", "order.paid", "{}")]);
    let unit = unit(r#"{"source":"shop","type":"order.paid","data":{"total":1}}"#);
    // It would say otherwise if it were asked.
    let before = Some(Finding { reason: Reason::SchemaViolation, detail: "before".to_owned() });
    assert_eq!(judge_again((Some(&old), Some(&new)), &unit, before.clone(), NOW), before);
    declare(&mut new, &[("shop", "order.paid", PAID)]);
    assert_eq!(judge_again((Some(&old), Some(&new)), &unit, before, NOW), None);
}
