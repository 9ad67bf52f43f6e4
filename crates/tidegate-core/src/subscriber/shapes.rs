//! What belongs where in a body, told to people: each field of a subscriber with an example, and the reader's own words
//! for types put into those of JSON.
//!
//! Texts that were sent are never repeated, because any of them may be a secret.

use crate::limits;

/// What is expected at each place of a subscriber or a gate. `[]` stands for any item of a list, or any member of an object
/// whose names are the owner's.
const EXPECTED: [(&str, &str); 49] = [
    ("name", r#"a text such as "orders""#),
    ("active", "true or false"),
    ("secret", r#"a text that begins with "whsec_", or nothing for a new one"#),
    ("match", r#"an object such as {"types":["order.*"]}"#),
    ("match.types", r#"a list of patterns such as ["order.*"]"#),
    ("match.types[]", r#"a pattern such as "order.*""#),
    ("match.sources", r#"a list of patterns such as ["shop"]"#),
    ("match.sources[]", r#"a pattern such as "shop""#),
    ("match.where", r#"a condition in a text, such as "data.total > 100""#),
    ("fold", r#"an object such as {"mode":"window","window":"60s"}"#),
    ("fold.mode", r#""each", "window", "quiet" or "batch""#),
    ("fold.window", r#"a duration in a text, such as "60s""#),
    ("fold.quiet", r#"a duration in a text, such as "10s""#),
    ("fold.max_wait", r#"a duration in a text, such as "2m""#),
    ("fold.every", r#"a duration in a text, such as "30s""#),
    ("fold.by", r#"a list of paths such as ["type","data.plan"]"#),
    ("fold.by[]", r#"a path such as "type" or "data.plan""#),
    ("fold.max_events", "a whole number such as 1000"),
    ("fold.max_bytes", "a whole number of bytes such as 1048576"),
    ("fold.leading", "true or false"),
    ("fold.adaptive", "true or false"),
    ("fold.bypass", r#"a condition in a text, such as "data.severity == 'critical'""#),
    ("fold.cancel_on", r#"a condition in a text, such as "data.status == 'recovered'""#),
    ("destination", r#"an object such as {"url":"https://example.com/hook"}"#),
    ("destination.kind", r#""webhook""#),
    ("destination.url", r#"an address in a text, such as "https://example.com/hook""#),
    ("destination.headers", r#"an object such as {"x-team":"billing"}"#),
    ("destination.headers[]", r#"a text such as "billing""#),
    ("destination.payload", r#""full", "thin", "cloudevents" or "events""#),
    ("signing", r#"an object such as {"algorithm":"hmac"}"#),
    ("signing.github", "true or false"),
    ("verification", r#""none", "challenge" or "cloudevents""#),
    ("order", r#"an object such as {"by":"data.customer"}"#),
    ("order.by", r#""none", "subscriber" or a path such as "data.customer""#),
    ("order.missing", r#""skip" or "unordered""#),
    ("order.on_failure", r#""block" or {"skip_after":3}"#),
    ("order.on_failure.skip_after", "a whole number of failures such as 3"),
    ("gate", r#"the name of a gate in a text, such as "notion""#),
    ("limits", r#"an object such as {"concurrency":4,"timeout":"30s"}"#),
    ("limits.concurrency", "a whole number such as 4"),
    ("limits.rate", r#"a rate in a text, such as "10/s""#),
    ("limits.timeout", r#"a duration in a text, such as "30s""#),
    ("retry", r#"an object such as {"schedule":["1m","5m"]}"#),
    ("retry.schedule", r#"a list of durations such as ["1m","5m"]"#),
    ("retry.schedule[]", r#"a duration in a text, such as "5m""#),
    ("breaker", r#"an object such as {"failures":10,"probe":"60s"}, or "off""#),
    ("disable_after", r#"a duration in a text, such as "5d", or "never""#),
    ("rate", r#"a rate in a text, such as "10/s""#),
    ("burst", "a whole number such as 10"),
];

/// Whole numbers and their bounds. A number that no type of ours holds is told these too.
const RANGES: [(&str, u32, u32); 6] = [
    ("burst", 1, limits::GATE_BURST_MAX),
    ("fold.max_events", 1, limits::FOLD_EVENTS_MAX),
    ("fold.max_bytes", limits::FOLD_BYTES_MIN, limits::FOLD_BYTES_MAX),
    ("limits.concurrency", 1, limits::CONCURRENCY_MAX),
    ("order.on_failure.skip_after", 1, limits::RETRIES_MAX as u32),
    ("breaker.failures", 1, limits::BREAKER_FAILURES_MAX),
];

const WHOLE: &str = "a whole number, 0 or more";

/// What to say about something of the wrong shape, given where it stands and the reader's words about it.
pub(super) fn told(path: &str, problem: &str) -> String {
    let (found, wanted) = parts(problem);
    let place = place(path);
    let known = EXPECTED.iter().find(|(known, _)| *known == place).map(|(_, expected)| *expected);
    let expected = known.unwrap_or_else(|| plain(wanted.unwrap_or("something else")));
    match found {
        Some(found) => format!("expected {expected}, found {found}"),
        None => format!("expected {expected}"),
    }
}

/// What to say about a whole number that is too large or too small even for its type.
pub(super) fn out_of_range(path: &str, problem: &str) -> Option<String> {
    let (place, min, max) = RANGES.iter().find(|(place, ..)| *place == path)?;
    let (found, wanted) = parts(problem);
    let number: f64 = found?.parse().ok()?;
    let is_whole = plain(wanted?) == WHOLE && number.fract() == 0.0;
    let is_within = (f64::from(*min)..=f64::from(*max)).contains(&number);
    (is_whole && !is_within)
        .then(|| format!("`{place}` is {min} to {max}, not {}", found.unwrap_or_default()))
}

/// A path with its positions and its owner's own names left out.
fn place(path: &str) -> String {
    if path.starts_with("destination.headers.") {
        return "destination.headers[]".to_owned();
    }
    path.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// What was found and what was wanted, of `invalid type: X, expected Y`.
fn parts(problem: &str) -> (Option<&str>, Option<&str>) {
    let rest = problem.strip_prefix("invalid type: ").or_else(|| problem.strip_prefix("invalid value: "));
    let Some((found, wanted)) = rest.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return (None, None);
    };
    let number = found.strip_prefix("integer `").or_else(|| found.strip_prefix("floating point `"));
    let found = match found.split([' ', ',']).next().unwrap_or_default() {
        "null" | "unit" => "null",
        "boolean" => "a truth value",
        "integer" | "floating" => number.map_or("a number", |number| number.trim_end_matches('`')),
        "string" | "character" => "a text",
        "sequence" => "a list",
        "map" => "an object",
        _ => return (None, Some(wanted)),
    };
    (Some(found), Some(wanted))
}

/// A type of ours in the words of JSON.
fn plain(wanted: &str) -> &str {
    match wanted {
        "u8" | "u16" | "u32" | "u64" | "usize" => WHOLE,
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "a borrowed string" | "a character" => "a text",
        "a sequence" => "a list",
        "a map" => "an object",
        "unit" => "null",
        wanted if wanted.starts_with("struct ") || wanted.starts_with("map ") => "an object",
        wanted if wanted.starts_with("tuple ") => "a list",
        wanted if wanted.starts_with("enum ") || wanted.contains("variant") => "one of its known values",
        wanted => wanted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{EXPECTED, RANGES, place};
    use crate::gate::Gate;
    use crate::subscriber::{Creation, patch};

    /// A creation with a value of the wrong shape at that place.
    fn broken(place: &str, value: &Value) -> Value {
        let mut body =
            json!({ "destination": { "url": "https://example.com/" }, "fold": { "mode": "quiet" } });
        let mut at = &mut body;
        for name in place.trim_end_matches("[]").split('.') {
            at = &mut at[name];
        }
        *at = match place {
            "destination.headers[]" => json!({ "x": value }),
            place if place.ends_with("[]") => json!([value]),
            _ => value.clone(),
        };
        body
    }

    #[test]
    fn every_wrong_shape_is_told_with_its_place_and_what_belongs_there() {
        for (wrong_at, _) in EXPECTED {
            let wrong =
                [json!({}), json!([[]]), json!({ "a": 1, "b": 2 }), json!(5), json!(true), json!("LEAK")];
            for value in wrong.iter().chain([&Value::Null]) {
                let body = broken(wrong_at, value);
                let Err(invalid) = Creation::parse(body.to_string().as_bytes()) else { continue };
                assert!(!invalid.syntax, "{body} is JSON");
                let field = invalid.field.unwrap_or_default();
                assert!(field.starts_with(wrong_at.trim_end_matches("[]")), "{body}: {field}");
                let detail = &invalid.detail;
                for ours in ["struct", "u32", "enum", "Written", "variant of", "sequence", "line "] {
                    assert!(!detail.contains(ours), "{body}: {detail}");
                }
                if invalid.code == "field_type" {
                    let known = EXPECTED.iter().find(|(known, _)| *known == place(&field));
                    let (_, expected) =
                        known.unwrap_or_else(|| panic!("{body}: nothing is known of {field}"));
                    assert!(detail.contains(expected), "{body}: {detail}");
                    assert!(!detail.contains("LEAK"), "{body}: {detail}");
                }
            }
        }
    }

    #[test]
    fn an_object_that_is_none_of_the_known_values_is_not_a_fault_of_the_json() {
        let body = json!({ "destination": { "url": "https://example.com/" }, "order": { "on_failure": {} } });
        let invalid = Creation::parse(body.to_string().as_bytes()).unwrap_err();
        assert_eq!((invalid.code, invalid.syntax), ("field_type", false));
        assert_eq!(invalid.field.as_deref(), Some("order.on_failure"));
        assert!(invalid.detail.contains(r#"expected "block" or {"skip_after":3}"#), "{}", invalid.detail);
        let current =
            Creation::parse(br#"{"destination":{"url":"https://example.com/"}}"#).unwrap().definition;
        let patched = patch(&current, br#"{"order":{"on_failure":{"a":1}}}"#).unwrap_err();
        assert_eq!(patched.field.as_deref(), Some("order.on_failure"));
    }

    #[test]
    fn other_bodies_are_explained_in_the_words_of_json() {
        let told = |body: &str| {
            let invalid = Gate::parse(body.as_bytes()).unwrap_err();
            format!("{} {}", invalid.code, invalid.detail)
        };
        for (burst, found) in
            [(r#""x""#, "a text"), ("1.5", "1.5"), ("5.0", "5.0"), ("true", "a truth value")]
        {
            let body = format!(r#"{{"rate":"3/s","burst":{burst}}}"#);
            let expected = format!("field_type `burst`: expected a whole number such as 10, found {found}");
            assert_eq!(told(&body), expected);
        }
        let rate = r#"field_type `rate`: expected a rate in a text, such as "10/s", found 3"#;
        assert_eq!(told(r#"{"rate":3}"#), rate);
    }

    #[test]
    fn a_number_that_is_too_large_is_told_its_range() {
        for (burst, found) in [("1000000000000", "1000000000000"), ("-1", "-1"), ("1e30", "1e+30")] {
            let body = format!(r#"{{"rate":"3/s","burst":{burst}}}"#);
            let invalid = Gate::parse(body.as_bytes()).unwrap_err();
            assert_eq!((invalid.code, invalid.field.as_deref()), ("field_range", Some("burst")));
            assert_eq!(invalid.detail, format!("`burst` is 1 to 100000, not {found}"));
        }
        for (place, _, max) in RANGES {
            if !place.contains('.') {
                continue;
            }
            for number in ["-1", "1000000000000", "1000000000000000000000000000000"] {
                let body = broken(place, &serde_json::from_str(number).unwrap());
                let invalid = Creation::parse(body.to_string().as_bytes()).unwrap_err();
                assert_eq!(
                    (invalid.code, invalid.field.as_deref()),
                    ("field_range", Some(place)),
                    "{number}"
                );
                assert!(invalid.detail.contains(&format!("to {max}, not ")), "{}", invalid.detail);
            }
        }
    }
}
