//! Tests of definitions, creations and patches.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::limits;
use crate::time::{Span, Timestamp};

const URL: &str = "https://example.com/hook";

fn minimal() -> Value {
    json!({"destination": {"url": URL}})
}

/// The smallest creation with `section` set to `value`.
fn with(section: &str, value: &Value) -> Vec<u8> {
    let mut body = minimal();
    body[section] = value.clone();
    body.to_string().into_bytes()
}

fn definition(section: &str, value: &Value) -> Definition {
    Creation::parse(&with(section, value)).unwrap().definition
}

fn check(definition: &Definition) -> Result<(), Invalid> {
    let check_url = |url: &str| if url == URL { Ok(()) } else { Err("not that one".to_owned()) };
    let check_headers = |headers: &BTreeMap<String, String>| {
        if headers.contains_key("host") { Err("not that header".to_owned()) } else { Ok(()) }
    };
    validate(definition, &check_url, &check_headers)
}

/// `code field`, from parsing or else from validation.
#[track_caller]
fn problem(body: &[u8]) -> String {
    let invalid = Creation::parse(body).and_then(|creation| check(&creation.definition)).unwrap_err();
    format!("{} {}", invalid.code, invalid.field.as_deref().unwrap_or("-"))
}

#[test]
fn defaults_are_filled_in() {
    let creation = Creation::parse(minimal().to_string().as_bytes()).unwrap();
    assert_eq!((creation.from, creation.active, &creation.secret), (Start::Now, true, &None));
    check(&creation.definition).unwrap();
    let printed = serde_json::to_string(&creation.definition).unwrap();
    assert_eq!(
        printed,
        concat!(
            r#"{"name":"","match":{"types":[],"sources":[]},"fold":{"mode":"each"},"#,
            r#""destination":{"kind":"webhook","url":"https://example.com/hook","headers":{},"payload":"full"},"#,
            r#""signing":{"algorithm":"hmac","github":false},"verification":"none","#,
            r#""order":{"by":"none","missing":"skip","on_failure":"block"},"limits":{"concurrency":16,"timeout":"30s"},"#,
            r#""retry":{"schedule":["1m","2m","4m","8m","16m"]},"breaker":{"failures":10,"probe":"1m"},"disable_after":"120h"}"#
        )
    );
    assert_eq!(serde_json::from_str::<Definition>(&printed).unwrap(), creation.definition);
}

#[test]
fn everything_can_be_said() {
    let body = json!({
        "name": "My service",
        "match": {"types": ["NEW_VERSION", "order.*"], "sources": ["*"], "where": "data.component == 'NEOFORGE'"},
        "fold": {"mode": "each"},
        "destination": {"kind": "webhook", "url": URL, "headers": {"x-team": "core"}, "payload": "thin"},
        "signing": {"algorithm": "hmac", "header_prefix": "svix", "github": true},
        "verification": "challenge",
        "order": {"by": "data.plan_id", "missing": "unordered", "on_failure": {"skip_after": 3}},
        "limits": {"concurrency": 8, "rate": "10/s", "timeout": "500ms"},
        "retry": {"schedule": []},
        "breaker": {"failures": 3, "probe": "5s"},
        "disable_after": "never",
        "from": "2026-01-01T00:00:00Z", "active": false,
        "secret": "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"
    });
    let creation = Creation::parse(body.to_string().as_bytes()).unwrap();
    check(&creation.definition).unwrap();
    assert_eq!(creation.from, Start::Time(Timestamp::parse("2026-01-01T00:00:00Z").unwrap()));
    assert!(!creation.active && creation.secret.is_some());
    let printed = serde_json::to_value(&creation.definition).unwrap();
    for section in Section::ALL {
        assert_eq!(printed[section.name()], body[section.name()], "{section:?}");
    }
    assert_eq!(creation.definition.limits.timeout, Span::from_ms(500));
    assert_eq!(Creation::parse(&with("from", &json!("beginning"))).unwrap().from, Start::Beginning);
}

#[test]
fn what_is_wrong_about_failing_is_named() {
    for (section, value, expected) in [
        ("disable_after", json!("0s"), "field_range disable_after"),
        ("disable_after", json!("91d"), "field_range disable_after"),
        ("disable_after", json!("soon"), "duration_invalid disable_after"),
        ("disable_after", json!(5), "field_type disable_after"),
        ("breaker", json!("on"), "field_value breaker"),
        ("breaker", json!(7), "field_type breaker"),
        ("breaker", json!({"opens": 7}), "field_unknown breaker.opens"),
        ("breaker", json!({"failures": 0}), "field_range breaker.failures"),
        ("breaker", json!({"failures": 10_001}), "field_range breaker.failures"),
        ("breaker", json!({"probe": "0s"}), "field_range breaker.probe"),
        ("breaker", json!({"probe": "61m"}), "field_range breaker.probe"),
        ("breaker", json!({"probe": "soon"}), "duration_invalid breaker.probe"),
    ] {
        assert_eq!(problem(&with(section, &value)), expected, "{section} {value}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (section, value, expected) in [
        ("foo", json!(1), "field_unknown foo"),
        ("gate", json!("a b"), "id_invalid gate"),
        ("gates", json!("notion"), "field_unknown gates"),
        ("name", json!(1), "field_type name"),
        ("name", json!("x".repeat(257)), "field_too_long name"),
        ("name", json!("a\u{0}"), "field_characters name"),
        ("match", json!({"type": []}), "field_unknown match.type"),
        ("match", json!([["a"]]), "field_type match"),
        ("match", json!({"types": ["a*"]}), "pattern_invalid match.types[0]"),
        ("match", json!({"types": "a"}), "field_type match.types"),
        ("match", json!({"types": vec!["a"; 101]}), "field_too_many match.types"),
        ("match", json!({"sources": vec!["a"; 101]}), "field_too_many match.sources"),
        ("match", json!({"where": "data ="}), "condition_invalid match.where"),
        ("match", json!({"where": "foo"}), "condition_invalid match.where"),
        ("match", json!({"where": 1}), "field_type match.where"),
        ("destination", json!({}), "field_missing destination.url"),
        ("destination", json!({"kind": "slack", "url": URL}), "field_value destination.kind"),
        ("destination", json!({"url": "http://10.0.0.1"}), "url_refused destination.url"),
        ("destination", json!({"url": "x".repeat(2049)}), "field_too_long destination.url"),
        ("destination", json!({"url": URL, "headers": {"host": "x"}}), "header_refused destination.headers"),
        ("destination", json!({"url": URL, "headers": {"a": 1}}), "field_type destination.headers.a"),
        (
            "destination",
            json!({"url": URL, "headers": {"a": "x".repeat(9000)}}),
            "field_too_many destination.headers",
        ),
        ("order", json!({"by": "plan_id"}), "path_invalid order.by"),
        ("order", json!({"by": "data.a", "missing": "drop"}), "field_value order.missing"),
        ("order", json!({"on_failure": "drop"}), "field_value order.on_failure"),
        ("order", json!({"by": "data.a[0]"}), "path_invalid order.by"),
        ("fold", json!({"mode": "window", "by": ["type", "data.a[0]"]}), "path_invalid fold.by[1]"),
        ("order", json!({"on_failure": {"skip_after": 3}}), "field_conflict order.on_failure"),
        ("order", json!({"on_failure": {"skip_after": 0}}), "field_range order.on_failure.skip_after"),
        ("order", json!({"on_failure": {"skip_after": 1_000}}), "field_range order.on_failure.skip_after"),
        ("limits", json!({"concurrency": 0}), "field_range limits.concurrency"),
        ("limits", json!({"concurrency": 257}), "field_range limits.concurrency"),
        ("limits", json!({"concurrency": -1}), "field_range limits.concurrency"),
        ("limits", json!({"rate": "0/s"}), "rate_invalid limits.rate"),
        ("limits", json!({"rate": "100001/s"}), "field_range limits.rate"),
        ("limits", json!({"timeout": "99ms"}), "field_range limits.timeout"),
        ("limits", json!({"timeout": "3m"}), "field_range limits.timeout"),
        ("limits", json!({"timeout": "soon"}), "duration_invalid limits.timeout"),
        ("retry", json!({"schedule": ["1m", "x"]}), "duration_invalid retry.schedule[1]"),
        ("retry", json!({"schedule": ["1m", "8d"]}), "field_range retry.schedule[1]"),
        ("retry", json!({"schedule": vec!["1m"; limits::RETRIES_MAX + 1]}), "field_too_many retry.schedule"),
        ("from", json!("yesterday"), "field_value from"),
        ("active", json!("yes"), "field_type active"),
        ("secret", json!("whsec_c2hvcnQ="), "secret_invalid secret"),
        ("secret", json!("MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"), "secret_invalid secret"),
    ] {
        assert_eq!(problem(&with(section, &value)), expected, "{section} {value}");
    }
    for (body, expected) in [
        ("", "field_missing destination"),
        ("{}", "field_missing destination"),
        ("[]", "field_type -"),
        ("{", "json_syntax -"),
        (r#"{"name":"a","name":"b"}"#, "field_repeated name"),
    ] {
        assert_eq!(problem(body.as_bytes()), expected, "{body}");
    }
    assert!(Creation::parse(b"{").unwrap_err().syntax);
    assert!(!Creation::parse(b"{}").unwrap_err().syntax);
}

#[test]
fn what_is_wrong_with_a_fold_is_named() {
    for (fold, expected) in [
        (json!({}), "field_missing fold.mode"),
        (json!({"mode": 1}), "field_type fold.mode"),
        (json!({"mode": "debounce"}), "fold_unsupported fold.mode"),
        (json!({"mode": "debounce", "window": "5s"}), "fold_unsupported fold.mode"),
        (json!({"mode": "window", "span": "5s"}), "field_unknown fold.span"),
        (json!({"mode": "each", "max_events": 1}), "fold_term fold.max_events"),
        (json!({"mode": "window", "quiet": "5s"}), "fold_term fold.quiet"),
        (json!({"mode": "batch", "every": "5s", "adaptive": true}), "fold_term fold.adaptive"),
        (json!({"mode": "window", "window": "soon"}), "duration_invalid fold.window"),
        (json!({"mode": "quiet", "quiet": 5}), "field_type fold.quiet"),
        (json!({"mode": "window", "window": "0s"}), "field_range fold.window"),
        (json!({"mode": "batch", "every": "25h"}), "field_range fold.every"),
        (json!({"mode": "quiet", "quiet": "1m", "max_wait": "59s"}), "field_range fold.max_wait"),
        (json!({"mode": "window", "max_events": 0}), "field_range fold.max_events"),
        (json!({"mode": "window", "max_events": 10_001}), "field_range fold.max_events"),
        (json!({"mode": "window", "max_events": -1}), "field_range fold.max_events"),
        (json!({"mode": "window", "max_bytes": 0}), "field_range fold.max_bytes"),
        (json!({"mode": "window", "by": ["plan"]}), "path_invalid fold.by[0]"),
        (json!({"mode": "window", "by": vec!["type"; 9]}), "field_range fold.by"),
        (json!({"mode": "window", "by": ["type", "data.a", "type"]}), "field_repeated fold.by[2]"),
        (json!({"mode": "window", "leading": true, "cancel_on": "true"}), "field_conflict fold.cancel_on"),
        (json!({"mode": "quiet", "adaptive": true}), "fold_term fold.adaptive"),
        (json!({"mode": "window", "bypass": "data ="}), "condition_invalid fold.bypass"),
        (json!({"mode": "window", "cancel_on": "data.n + 1"}), "condition_invalid fold.cancel_on"),
    ] {
        assert_eq!(problem(&with("fold", &fold)), expected, "{fold}");
    }
    let mut body = minimal();
    body["fold"] = json!({"mode": "quiet"});
    body["order"] = json!({"by": "data.user"});
    assert_eq!(problem(body.to_string().as_bytes()), "order_not_folded order.by");
    body["fold"]["by"] = json!(["data.user"]);
    check(&Creation::parse(body.to_string().as_bytes()).unwrap().definition).unwrap();
    for (fold, remedy) in [
        (json!({"mode": "windw"}), "use `each`, `window`, `quiet` or `batch`"),
        (json!({"mode": "each", "window": "5s"}), "set `fold.mode` to `window`"),
        (json!({"mode": "quiet", "every": "5s"}), "remove it or set `fold.mode` to `batch`"),
    ] {
        let told = Creation::parse(&with("fold", &fold)).unwrap_err().detail;
        assert!(told.contains(remedy), "{told}");
    }
}

#[test]
fn a_fold_prints_as_it_is_and_of_another_mode_it_is_a_new_one() {
    let every = json!({"mode": "quiet", "quiet": "5s", "max_wait": "1m", "by": ["type", "data.plan"],
        "max_events": 7, "max_bytes": 2048, "leading": true, "bypass": "data.n > 1", "cancel_on": "data.n < 1",
        "adaptive": true});
    let current = Definition { gate: Some("notion".to_owned()), ..definition("fold", &every) };
    assert_eq!(serde_json::to_value(&current).unwrap()["fold"], every);
    assert_eq!(
        current.conditions().map(|(field, _)| field).collect::<Vec<_>>(),
        ["fold.bypass", "fold.cancel_on"]
    );

    let fold = |body: &str| {
        let patched = patch(&current, body.as_bytes()).unwrap();
        check(&patched.definition).unwrap();
        serde_json::to_value(&patched.definition).unwrap()["fold"].clone()
    };
    let within = fold(r#"{"fold":{"quiet":"6s","bypass":null,"cancel_on":null,"by":null}}"#);
    let parts = [&within["quiet"], &within["max_wait"], &within["by"], &within["bypass"], &within["leading"]];
    assert_eq!(parts, [&json!("6s"), &json!("1m"), &json!(["type"]), &Value::Null, &json!(true)]);
    let same = r#"{"fold":{"mode":"quiet","quiet":"6s","leading":false}}"#;
    assert_eq!(fold(same)["max_events"], 7, "the same mode");

    let defaults = |fold: Value| serde_json::to_value(definition("fold", &fold)).unwrap()["fold"].clone();
    assert_eq!(fold(r#"{"fold":{"mode":"window"}}"#), defaults(json!({"mode": "window"})));
    let batch = json!({"mode": "batch", "every": "10s"});
    assert_eq!(fold(&json!({ "fold": batch }).to_string()), defaults(batch));
    assert_eq!(fold(r#"{"fold":{"mode":"each"}}"#), json!({"mode": "each"}));
    assert_eq!(fold(r#"{"fold":null}"#), json!({"mode": "each"}));
    let stray = patch(&current, br#"{"fold":{"mode":"window","quiet":"5s"}}"#).unwrap_err();
    assert_eq!((stray.code, stray.field.as_deref()), ("fold_term", Some("fold.quiet")));

    let declared = json!({"destination": {"url": URL}, "fold": {"mode": "window", "window": "2s"}});
    let put = replace(&current, declared.as_object().unwrap()).unwrap();
    assert_eq!(put.definition.fold, definition("fold", &declared["fold"]).fold);
    assert_eq!(replace(&put.definition, declared.as_object().unwrap()).unwrap().changed, []);
}

#[test]
fn rates_print_as_they_parse() {
    for (text, interval, burst) in [
        ("10/s", Duration::from_millis(100), 10),
        ("120/m", Duration::from_millis(500), 2),
        ("5/h", Duration::from_secs(720), 1),
    ] {
        let rate = Rate::parse(text).unwrap();
        assert_eq!((rate.to_string().as_str(), rate.interval(), rate.burst()), (text, interval, burst));
    }
    for bad in ["", "10", "10/", "/s", "0/s", "-1/s", "+1/s", "1.5/s", "10/d", "10 /s", "99999999999/s"] {
        assert_eq!(Rate::parse(bad), None, "{bad}");
    }
}

#[test]
fn a_patch_changes_what_it_names() {
    let current = definition("limits", &json!({"concurrency": 4, "rate": "10/s", "timeout": "5s"}));
    let patched =
        patch(&current, br#"{"limits":{"rate":null,"timeout":null},"name":"n","active":false}"#).unwrap();
    assert_eq!(patched.active, Some(false));
    assert_eq!(patched.changed, [Section::Name, Section::Limits]);
    assert_eq!(patched.definition.limits, Limits { concurrency: 4, ..Limits::default() });
    assert_eq!(patched.definition.name, "n");

    let same = patch(&current, br#"{"limits":{"concurrency":4},"retry":null}"#).unwrap();
    assert_eq!((same.changed.as_slice(), same.active), (&[][..], None));
    assert_eq!(same.definition, current);
    assert_eq!(patch(&current, b"").unwrap().definition, current);

    let headers = definition("destination", &json!({"url": URL, "headers": {"a": "1", "b": "2"}}));
    let patched = patch(&headers, br#"{"destination":{"headers":{"a":null,"c":"3"}}}"#).unwrap();
    let names: Vec<_> = patched.definition.destination.headers.keys().map(String::as_str).collect();
    assert_eq!(names, ["b", "c"]);
    assert_eq!(patched.definition.destination.url, URL);
}

#[test]
fn a_masked_url_that_comes_back_is_the_stored_one() {
    let current = definition("destination", &json!({"url": "https://example.com/hook?token=s3cret"}));
    let sent = br#"{"destination":{"url":"https://example.com/hook?token=***","headers":{"a":"b"}}}"#;
    let patched = patch(&current, sent).unwrap();
    assert_eq!(patched.definition.destination.url, current.destination.url);
    assert_eq!(patched.changed, [Section::Destination]);
    let moved = patch(&current, br#"{"destination":{"url":"https://example.com/other?token=***"}}"#).unwrap();
    assert_eq!(moved.definition.destination.url, "https://example.com/other?token=***");
}

#[test]
fn a_patch_is_checked_only_where_it_changes_something() {
    let mut old = definition("name", &json!("old"));
    old.destination.url = "http://10.0.0.1".to_owned();
    let refuse = |_: &str| Err("not allowed any more".to_owned());
    let renamed = patch(&old, br#"{"name":"new"}"#).unwrap();
    renamed.validate(&refuse, &|_| Ok(())).unwrap();
    let dressed = patch(&old, br#"{"destination":{"headers":{"a":"b"}}}"#).unwrap();
    dressed.validate(&refuse, &|_| Ok(())).unwrap();
    let moved = patch(&old, br#"{"destination":{"url":"http://10.0.0.2"}}"#).unwrap();
    assert_eq!(moved.validate(&refuse, &|_| Ok(())).unwrap_err().code, "url_refused");
    let broken = patch(&old, br#"{"match":{"where":"nonsense("}}"#).unwrap();
    assert_eq!(broken.validate(&|_| Ok(()), &|_| Ok(())).unwrap_err().field.as_deref(), Some("match.where"));
}

#[test]
fn a_patch_says_what_it_cannot_change() {
    let current = definition("name", &json!(""));
    for (body, expected) in [
        (r#"{"id":"x"}"#, "field_fixed id"),
        (r#"{"from":"now"}"#, "field_fixed from"),
        (r#"{"secret":"x"}"#, "field_fixed secret"),
        (r#"{"gates":"x"}"#, "field_unknown gates"),
        (r#"{"signing":{"algorithm":"ed25519"}}"#, "field_fixed signing.algorithm"),
        (r#"{"active":"x"}"#, "field_type active"),
        (r#"{"destination":null}"#, "field_missing destination"),
        (r#"{"destination":{"url":null}}"#, "field_missing destination.url"),
        (r#"{"match":{"types":[""]}}"#, "pattern_invalid match.types[0]"),
        (r#"{"match":[]}"#, "field_type match"),
        (r#"{"limits":"fast"}"#, "field_type limits"),
        (r#"{"fold":{"mode":"debounce"}}"#, "fold_unsupported fold.mode"),
        (r#"{"fold":{"window":"5s"}}"#, "fold_term fold.window"),
        ("[]", "field_type -"),
        ("{", "json_syntax -"),
    ] {
        let invalid = patch(&current, body.as_bytes()).unwrap_err();
        assert_eq!(
            format!("{} {}", invalid.code, invalid.field.as_deref().unwrap_or("-")),
            expected,
            "{body}"
        );
    }
}

#[test]
fn what_would_have_no_effect_is_refused_by_whichever_change_makes_it_so() {
    let mut body = minimal();
    body["fold"] = json!({"mode": "quiet", "adaptive": true, "leading": true});
    body["order"] = json!({"by": "subscriber", "on_failure": {"skip_after": 3}});
    body["gate"] = json!("notion");
    let current = Creation::parse(body.to_string().as_bytes()).unwrap().definition;
    check(&current).unwrap();
    for (change, expected) in [
        (json!({"gate": null}), "fold.adaptive"),
        (json!({"fold": {"cancel_on": "true"}}), "fold.cancel_on"),
        (json!({"order": {"by": "none"}}), "order.on_failure"),
        (json!({"order": {"missing": "unordered"}}), "order.missing"),
        (json!({"order": {"by": "none", "on_failure": null, "missing": "unordered"}}), "order.missing"),
    ] {
        let patched = patch(&current, change.to_string().as_bytes()).unwrap();
        let invalid = patched.validate(&|_| Ok(()), &|_| Ok(())).unwrap_err();
        assert_eq!(invalid.field.as_deref(), Some(expected), "{change}");
        assert!(invalid.detail.contains("set `"), "the remedy: {}", invalid.detail);
    }
}

#[test]
fn what_is_wrong_with_signing_is_named() {
    for (value, expected) in [
        (json!({"algorithm": "rsa"}), "field_value signing.algorithm"),
        (json!({"prefix": "svix"}), "field_unknown signing.prefix"),
        (json!({"header_prefix": "webhook"}), "header_refused signing.header_prefix"),
        (json!({"algorithm": "ed25519", "github": true}), "signing_conflict signing.github"),
    ] {
        assert_eq!(problem(&with("signing", &value)), expected, "{value}");
    }
    let mut body = minimal();
    body["signing"] = json!({"algorithm": "ed25519"});
    body["secret"] = json!("whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz");
    assert_eq!(problem(body.to_string().as_bytes()), "secret_invalid secret");
}

#[test]
fn a_rotation_names_its_grace_its_secret_and_its_algorithm() {
    let hmac = definition("signing", &json!({"header_prefix": "svix"}));
    let rotation = Rotation::parse(&hmac, b" ").unwrap();
    assert_eq!((rotation.secret, rotation.definition), (None, None));
    assert_eq!((rotation.grace, rotation.algorithm), (Span::from_ms(24 * 3_600_000), Algorithm::Hmac));
    let switch = Rotation::parse(&hmac, br#"{"signing":{"algorithm":"ed25519"},"grace":"0s"}"#).unwrap();
    assert_eq!((switch.grace, switch.algorithm), (Span::from_ms(0), Algorithm::Ed25519));
    let switched = switch.definition.unwrap().signing;
    assert_eq!((switched.algorithm, switched.header_prefix.as_deref()), (Algorithm::Ed25519, Some("svix")));
    let github = definition("signing", &json!({"github": true}));
    for (current, body, expected) in [
        (&hmac, r#"{"grace":"8d"}"#, "field_range grace"),
        (&hmac, r#"{"grace":"soon"}"#, "duration_invalid grace"),
        (&hmac, r#"{"secret":"short"}"#, "secret_invalid secret"),
        (&hmac, r#"{"signing":{"github":true}}"#, "field_unknown signing.github"),
        (&github, r#"{"signing":{"algorithm":"ed25519"}}"#, "signing_conflict signing.github"),
        (&hmac, "[]", "field_type -"),
    ] {
        let invalid = Rotation::parse(current, body.as_bytes()).unwrap_err();
        let named = format!("{} {}", invalid.code, invalid.field.as_deref().unwrap_or("-"));
        assert_eq!(named, expected, "{body}");
    }
}

#[test]
fn conditions_that_are_never_true_or_false_are_refused() {
    for source in [
        "1 + 1",
        "'a'",
        "null",
        "[1]",
        "{'a': 1}",
        "id",
        "type",
        "parents",
        "size(data.list)",
        "-data.n",
        "int",
        "data.a ? 1 : 'x'",
        "dyn(3)",
        "data.list.map(x, x)",
        "data.list.filter(x, x > 1)",
    ] {
        let problem = Creation::parse(&with("match", &json!({"where": source})))
            .and_then(|creation| check(&creation.definition))
            .expect_err(source);
        assert_eq!((problem.code, problem.field.as_deref()), ("condition_invalid", Some("match.where")));
        assert!(
            problem.detail.contains("never true or false") && problem.detail.contains("(line 1, column "),
            "{source}: {}",
            problem.detail
        );
    }
    for source in [
        "true",
        "data.flag",
        "dyn(data.flag)",
        "data.a ? data.flag : 1",
        "data.list.exists(x, x > 1)",
        "subject != null",
        "bool(data.text)",
        "'a' in parents",
        "!data.flag",
        "has(data.a)",
    ] {
        check(&definition("match", &json!({"where": source}))).expect(source);
    }
}
