//! What an operator must know, as an ordinary event of the project it happened in.
//!
//! These events have a source of their own that nobody else may use. They reach only subscribers that name them, and
//! never the one they are about: a failing receiver must not be told, by a delivery, that it fails.

use serde_json::{Value, json};

use crate::event::{self, Data, Event, Fields, Fingerprinter, Unit};
use crate::route::pattern::Pattern;
use crate::subscriber::Match;
use crate::time::Timestamp;

/// The source of these events.
pub const SOURCE: &str = "tidegate";
/// How their types begin.
const TYPES: &str = "tidegate.";

/// Something an operator must know about a subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It is not sent to any more.
    Disabled {
        /// `gone` or `failing`.
        reason: &'static str,
        /// Since when it only failed.
        since: Timestamp,
    },
    /// It is left alone for a while.
    BreakerOpened {
        /// In a row.
        failures: u32,
        /// When.
        since: Timestamp,
    },
    /// It is back.
    BreakerClosed {
        /// When it had opened.
        since: Timestamp,
    },
    /// Every attempt at one of its deliveries failed.
    Exhausted {
        /// Its public id.
        delivery: String,
        /// Why.
        reason: String,
        /// When.
        since: Timestamp,
    },
}

impl Notice {
    /// The type of its event.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Disabled { .. } => "tidegate.subscriber.disabled",
            Self::BreakerOpened { .. } => "tidegate.subscriber.breaker_opened",
            Self::BreakerClosed { .. } => "tidegate.subscriber.breaker_closed",
            Self::Exhausted { .. } => "tidegate.delivery.exhausted",
        }
    }

    fn data(&self, subscriber: &str, name: &str) -> Value {
        let mut data = json!({ "subscriber": subscriber, "name": name });
        let since = match self {
            Self::Disabled { reason, since } => {
                data["reason"] = json!(reason);
                since
            }
            Self::BreakerOpened { failures, since } => {
                data["reason"] = json!(format!("{failures} failures in a row"));
                data["failures"] = json!(failures);
                since
            }
            Self::BreakerClosed { since } => {
                data["reason"] = json!("a delivery arrived");
                since
            }
            Self::Exhausted { delivery, reason, since } => {
                data["reason"] = json!(reason);
                data["delivery"] = json!(delivery);
                since
            }
        };
        data["since"] = json!(since);
        data
    }

    /// Its event.
    pub fn unit(&self, subscriber: &str, name: &str, now: Timestamp, id: String) -> Unit {
        let time = now.to_string();
        let data = self.data(subscriber, name).to_string();
        let body = event::render(&Fields {
            id: &id,
            source: SOURCE,
            type_name: self.type_name(),
            subject: Some(subscriber),
            time: &time,
            ended: None,
            parents: &[],
            extensions: None,
            data: Data::Json(&data),
        });
        let mut print = Fingerprinter::default();
        print.field(Some(&body));
        let event = Event {
            id,
            source: SOURCE.to_owned(),
            type_name: self.type_name().to_owned(),
            subject: Some(subscriber.to_owned()),
            time: now,
            body,
        };
        Unit { events: vec![event], fingerprint: print.finish() }
    }
}

/// Whether a subscriber asks for these events by name. Wanting everything is not asking for them.
pub fn is_named_by(matching: &Match) -> bool {
    let by_type = matching.types.iter().any(|pattern| match pattern {
        Pattern::Exact(text) | Pattern::Below(text) => text.starts_with(TYPES),
        Pattern::Any => false,
    });
    by_type || matching.sources.contains(&Pattern::Exact(SOURCE.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{Judgement, Subscriber, View};
    use crate::subscriber::Creation;

    fn subscriber(id: &str, matching: &Value) -> Subscriber {
        let body = json!({"destination": {"url": "https://example.com/"}, "match": matching}).to_string();
        let definition = Creation::parse(body.as_bytes()).unwrap().definition;
        Subscriber::compile(1, 1, id.to_owned(), definition).unwrap()
    }

    #[test]
    fn only_those_who_name_them_get_them_and_never_about_themselves() {
        let notice = Notice::Disabled { reason: "gone", since: Timestamp::from_ms(0) };
        let unit = notice.unit("sub_1", "billing", Timestamp::from_ms(5), "evt_7".to_owned());
        for (matching, expected) in [
            (json!({}), false),
            (json!({"types": ["*"]}), false),
            (json!({"types": ["*"], "sources": ["*"]}), false),
            (json!({"types": ["tidegate.*"]}), true),
            (json!({"types": ["tidegate.subscriber.*"]}), true),
            (json!({"types": ["tidegate.subscriber.disabled"]}), true),
            (json!({"types": ["tidegate.delivery.*"]}), false),
            (json!({"sources": ["tidegate"]}), true),
            (json!({"types": ["*"], "sources": ["tidegate"]}), true),
            (json!({"types": ["order.*"], "sources": ["tidegate"]}), false),
        ] {
            for (id, may_get) in [("sub_2", true), ("sub_1", false)] {
                let (subscriber, view) = (subscriber(id, &matching), View::new(&unit.events[0]));
                let is_matched = matches!(subscriber.judge(&view), Judgement::Matched { .. });
                assert_eq!(is_matched, expected && may_get, "{matching} {id}");
                assert_eq!(subscriber.matches(&view).is_some(), is_matched, "{matching} {id}");
            }
        }
    }

    #[test]
    fn they_tell_who_why_and_since_when() {
        let since = Timestamp::from_ms(0);
        let notices = [
            Notice::Disabled { reason: "failing", since },
            Notice::BreakerOpened { failures: 10, since },
            Notice::BreakerClosed { since },
            Notice::Exhausted { delivery: "dlv_1".into(), reason: "all 6 attempts failed".into(), since },
        ];
        for notice in notices {
            let unit = notice.unit("sub_1", "billing", Timestamp::from_ms(5), "evt_7".to_owned());
            let event: Value = serde_json::from_slice(&unit.events[0].body).unwrap();
            assert_eq!((&event["source"], &event["subject"]), (&SOURCE.into(), &"sub_1".into()));
            assert!(event["type"].as_str().unwrap().starts_with(TYPES), "{event}");
            for name in ["subscriber", "name", "reason", "since"] {
                assert!(event["data"][name].is_string(), "{event}");
            }
        }
    }
}
