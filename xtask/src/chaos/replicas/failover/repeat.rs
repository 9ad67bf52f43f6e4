//! What operating.md advises after a failover: a sender repeats what it sent shortly before, with the same ids.
//!
//! One tenant does, the other does not. What is still there must be answered `duplicate`, what was lost `accepted`: anything else
//! loses it for good, or delivers it twice.

use std::collections::{BTreeMap, HashSet};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{KEYS, TENANTS, senders};
use crate::chaos::checker::{Event, Promise, Trace};
use crate::server::Server;

/// The tenant who repeats its events.
const TENANT: usize = 0;
/// Events of one request.
const BATCH: usize = 50;

/// What became of them.
#[derive(Default)]
pub(super) struct Repeated {
    pub(super) events: HashSet<Event>,
    /// Those that were lost, and are accepted again.
    pub(super) accepted: HashSet<Event>,
    /// Those whose answer is not what the trace said before.
    pub(super) wrong: Vec<String>,
}

impl Repeated {
    /// Sends everything of the tenant that may be lost again. `traces` are those from before.
    pub(super) fn send(
        servers: &[Server],
        promises: &[Promise<'_>],
        traces: &BTreeMap<Event, Trace>,
    ) -> Result<Self> {
        let is_sent = |promise: &&Promise<'_>| promise.may_be_lost && promise.event.key / KEYS == TENANT;
        let events: Vec<Event> = promises.iter().filter(is_sent).map(|promise| promise.event).collect();
        let mut repeated = Self::default();
        for (batch, server) in events.chunks(BATCH).zip(servers.iter().cycle()) {
            let body = Value::Array(batch.iter().map(|event| senders::event(*event)).collect());
            let answer = server.api_in(TENANTS[TENANT], "POST", "/v1/events", &body)?;
            let results = answer["results"].as_array().context("no results")?;
            for (event, result) in batch.iter().zip(results) {
                let status = result["status"].as_str().unwrap_or_default();
                repeated.note(*event, status, traces.get(event) == Some(&Trace::Unknown));
            }
        }
        Ok(repeated)
    }

    fn note(&mut self, event: Event, status: &str, was_lost: bool) {
        self.events.insert(event);
        match (status, was_lost) {
            ("accepted", true) => drop(self.accepted.insert(event)),
            ("duplicate", false) => {}
            (_, true) => self.wrong.push(format!("{event} was lost and is answered {status}")),
            (_, false) => self.wrong.push(format!("{event} is there and is answered {status}")),
        }
    }

    /// What was sent again is promised again; what was lost may have been delivered before that.
    pub(super) fn renew<'a>(&self, promise: &Promise<'a>) -> Promise<'a> {
        let is_repeated = self.events.contains(&promise.event);
        Promise {
            may_be_lost: promise.may_be_lost && !is_repeated,
            may_double: promise.may_double || self.accepted.contains(&promise.event),
            ..*promise
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Repeated;
    use crate::chaos::checker::{Event, Promise};

    #[test]
    fn what_is_there_is_a_duplicate_and_what_was_lost_is_accepted() {
        let event = |seq| Event { key: 0, seq };
        let mut repeated = Repeated::default();
        repeated.note(event(1), "duplicate", false);
        repeated.note(event(2), "accepted", true);
        assert!(repeated.wrong.is_empty());
        let lossy = |seq| Promise { may_be_lost: true, ..Promise::firm(event(seq), &[0]) };
        let renewed = |seq| {
            let promise = repeated.renew(&lossy(seq));
            (promise.may_be_lost, promise.may_double)
        };
        assert_eq!((renewed(1), renewed(2), renewed(3)), ((false, false), (false, true), (true, false)));
        repeated.note(event(4), "duplicate", true);
        repeated.note(event(5), "accepted", false);
        repeated.note(event(6), "conflict", true);
        assert_eq!(repeated.wrong.len(), 3);
    }
}
