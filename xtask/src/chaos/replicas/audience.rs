//! Who subscribes, and to what.
//!
//! Two take events in any order, one in the order of their keys, one at a rate, one two at a time. Each kind of event goes to
//! some of them, so that a slow subscriber does not hold up the load of the others.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::chaos::checker::Event;
use crate::chaos::checker::api::SOURCE;
use crate::chaos::receiver::Manner;
use crate::server::Server;

pub(super) const PLAIN: usize = 0;
pub(super) const OTHER: usize = 1;
pub(super) const ORDERED: usize = 2;
pub(super) const RATED: usize = 3;
pub(super) const NARROW: usize = 4;
pub(super) const NAMES: [&str; 5] = ["plain", "other", "ordered", "rated", "narrow"];

/// Requests per second to the rated one; a burst is a second's worth.
pub(super) const RATE: u32 = 20;
/// Requests under way to the narrow one.
pub(super) const CONCURRENCY: u64 = 2;

/// What an event is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// In the lane of its key.
    Keyed,
    /// In no lane.
    Loose,
    Rated,
    Narrow,
    /// Nobody wants it; it is kept.
    Kept,
}

impl Kind {
    /// Whom it goes to.
    pub(super) fn audience(self) -> &'static [usize] {
        match self {
            Self::Keyed => &[PLAIN, OTHER, ORDERED],
            Self::Loose => &[PLAIN, OTHER],
            Self::Rated => &[RATED],
            Self::Narrow => &[NARROW],
            Self::Kept => &[],
        }
    }

    pub(super) fn goes_to(self, subscriber: usize) -> bool {
        self.audience().contains(&subscriber)
    }

    /// The type of its events.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Keyed => "chaos.keyed",
            Self::Loose => "chaos.loose",
            Self::Rated => "chaos.rated",
            Self::Narrow => "chaos.narrow",
            Self::Kept => "chaos.kept",
        }
    }
}

/// Now and then a receiver fails.
pub(super) const MANNER: Manner = Manner { fail_one_in: 50, slowness };

/// How long a subscriber takes to answer, at most.
fn slowness(subscriber: usize) -> Duration {
    Duration::from_millis(if subscriber == NARROW { 40 } else { 5 })
}

/// Creates them all; answers their ids.
pub(super) fn subscribe(server: &Server, receiver: SocketAddr) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    for (index, name) in NAMES.into_iter().enumerate() {
        let kinds = [Kind::Keyed, Kind::Loose, Kind::Rated, Kind::Narrow];
        let types: Vec<&str> = kinds.into_iter().filter(|kind| kind.goes_to(index)).map(Kind::name).collect();
        let mut rest = json!({"match": {"types": types}, "retry": {"schedule": vec!["200ms"; 20]}});
        match index {
            ORDERED => rest["order"] = json!({"by": "data.key"}),
            RATED => rest["limits"] = json!({"rate": format!("{RATE}/s")}),
            NARROW => rest["limits"] = json!({"concurrency": CONCURRENCY}),
            _ => rest["limits"] = json!({"concurrency": 16}),
        }
        ids.push(server.subscribe(name, &format!("http://{receiver}/{index}"), &rest)?.id);
    }
    Ok(ids)
}

/// An event: its key and its place under it.
pub(super) fn event(kind: Kind, key: usize, seq: u32) -> Value {
    json!({
        "id": Event { key, seq }.to_string(),
        "source": SOURCE,
        "type": kind.name(),
        "data": {"key": key.to_string(), "seq": seq.to_string()},
    })
}
