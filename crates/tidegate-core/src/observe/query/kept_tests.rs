//! Goal: what is no longer kept is refused, with a question that works, and never answered with zeros. Method: questions about
//! times more and more ago, of metrics that are kept for 400 days unless they say otherwise.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::tests::{NOW, subject};
use super::*;
use crate::observe::Kept;
use crate::subscriber::Invalid;
use crate::time::Timestamp;

const DAY_MS: i64 = 86_400_000;

fn asked(kind: Kind, term_days: u64, more: &Value) -> Result<Plan, Invalid> {
    let mut body = match kind {
        Kind::State => json!({ "service": "s", "object": "o", "attribute": "a" }),
        _ => json!({ "service": "s", "type": "t", "counter": "c" }),
    };
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let ask = Ask::parse(kind, body.to_string().as_bytes())?;
    let kept = Kept::new(kind, Duration::from_hours(24 * term_days), Timestamp::from_ms(NOW));
    Plan::new(ask, subject(kind, Grain::S5), kept, None)
}

fn ago(days: i64) -> String {
    Timestamp::from_ms(NOW - days * DAY_MS).to_string()
}

#[track_caller]
fn refusal(plan: Result<Plan, Invalid>) -> (String, String) {
    let invalid = plan.unwrap_err();
    assert_eq!(invalid.code, "not_kept");
    (invalid.field.unwrap(), invalid.detail)
}

#[test]
fn an_interval_must_be_made_of_buckets_that_are_there() {
    for (days, every, kept) in [(9, "30s", "1m"), (9, "90s", "1m"), (36, "1m", "5m"), (101, "30m", "1h")] {
        let body = |every: &str| json!({ "from": ago(days), "to": ago(days - 1), "every": every });
        let (field, detail) = refusal(asked(Kind::Counter, 400, &body(every)));
        assert_eq!(field, "every");
        assert!(detail.contains(&format!("`every` {kept} or a multiple")), "{detail}");
        assert!(asked(Kind::Counter, 400, &body(kept)).is_ok(), "what it says works");
    }
    let recent = json!({ "from": ago(7), "to": ago(6), "every": "30s" });
    assert!(asked(Kind::Counter, 400, &recent).is_ok());
}

#[test]
fn what_is_older_than_everything_kept_is_refused() {
    let (field, detail) = refusal(asked(Kind::Counter, 400, &json!({ "from": ago(500), "every": "7d" })));
    assert_eq!(field, "from");
    assert!(detail.contains("kept for 400d"), "{detail}");
    let since = ago(400);
    assert!(detail.contains(&since), "{detail}");
    assert!(asked(Kind::Counter, 400, &json!({ "from": since, "every": "7d" })).is_ok());
    assert_eq!(refusal(asked(Kind::Counter, 2, &json!({ "from": ago(12) }))).0, "from");
}

#[test]
fn edges_are_rounded_to_what_is_there_and_an_interval_is_chosen_from_it() {
    for days in [1, 8, 9, 34, 36, 99, 101, 399] {
        let plan = asked(Kind::Counter, 400, &json!({ "from": ago(days) })).unwrap();
        let from = plan.stretches[0].from;
        let off = NOW - days * DAY_MS - from;
        assert!((0..=3_600_000).contains(&off), "{days} days: {off} ms");
        let plan = asked(Kind::Counter, 400, &json!({ "from": ago(days), "to": ago(days - 1) })).unwrap();
        assert!(plan.stretches.last().unwrap().to >= NOW - (days - 1) * DAY_MS);
    }
}

#[test]
fn a_short_term_shortens_what_is_asked_for_by_default() {
    let ask = Ask::parse(Kind::Counter, br#"{"service":"s","type":"t","counter":"c"}"#).unwrap();
    let kept = Kept::new(Kind::Counter, Duration::from_mins(10), Timestamp::from_ms(NOW));
    let plan = Plan::new(ask, subject(Kind::Counter, Grain::S5), kept, None).unwrap();
    assert_eq!(plan.stretches[0].from, Grain::S5.start_ms(NOW - 600_000));
}

#[test]
fn states_of_long_ago_are_known_by_the_week() {
    let monday = Timestamp::from_ms(Grain::D7.start_ms(NOW - 500 * DAY_MS)).to_string();
    assert!(asked(Kind::State, 400, &json!({ "at": monday })).is_ok());
    let (field, detail) = refusal(asked(Kind::State, 400, &json!({ "at": ago(500) })));
    assert!(field == "at" && detail.contains("7d"), "{detail}");
    for days in [0, 5, 9, 36, 101, 399, 400] {
        assert!(asked(Kind::State, 400, &json!({ "at": ago(days) })).is_ok(), "{days} days");
        assert!(asked(Kind::State, 2, &json!({ "at": ago(days.min(2)) })).is_ok(), "{days} days");
    }
    assert!(asked(Kind::State, 400, &json!({ "from": ago(500), "every": "7d" })).is_ok());
    let daily = json!({ "from": ago(500), "to": ago(420), "every": "1d" });
    assert!(refusal(asked(Kind::State, 400, &daily)).1.contains("`every` 7d"));
}

proptest! {
    /// Whoever asks for weeks, or leaves the interval open, is answered for as long as anything is kept.
    #[test]
    fn what_is_kept_can_be_asked_for(ago in 1_i64..400 * DAY_MS, length in 1_i64..400 * DAY_MS, is_state in any::<bool>()) {
        let kind = if is_state { Kind::State } else { Kind::Counter };
        let time = |ms| Timestamp::from_ms(ms).to_string();
        let (from, to) = (time(NOW - ago), time((NOW - ago + length).min(NOW)));
        for body in [json!({ "from": from, "to": to, "every": "7d" }), json!({ "from": from, "to": to })] {
            let plan = asked(kind, 400, &body);
            prop_assert!(plan.is_ok(), "{} {:?}", body, plan.err());
        }
    }
}
