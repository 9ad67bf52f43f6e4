//! Asks the API what became of events.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Arrival, Event, Line, Promise, Trace};
use crate::server::Server;

/// The `source` of every event of a campaign.
pub(in crate::chaos) const SOURCE: &str = "chaos";

/// How many traces are asked for at equal distances: each costs a request.
const SAMPLE: usize = 500;

/// Where the traces of a project are.
pub(in crate::chaos) struct Asked<'a> {
    pub(in crate::chaos) server: &'a Server,
    pub(in crate::chaos) project: &'a str,
    /// The subscribers' ids by place; those of other projects are among them.
    pub(in crate::chaos) subscribers: &'a [String],
}

impl Asked<'_> {
    /// The traces of these events.
    pub(in crate::chaos) fn traces(
        &self,
        events: impl Iterator<Item = Event>,
    ) -> Result<BTreeMap<Event, Trace>> {
        events.map(|event| Ok((event, self.trace(event)?))).collect()
    }

    fn trace(&self, event: Event) -> Result<Trace> {
        let path = format!("/v1/events/{event}/trace?source={SOURCE}");
        let response = self.server.call(self.project, "GET", &path, &Value::Null)?;
        match response.status {
            200 => self.lines(&serde_json::from_slice(&response.body)?).map(Trace::Known),
            404 => Ok(Trace::Unknown),
            status => bail!("GET {path}: {status} {}", String::from_utf8_lossy(&response.body)),
        }
    }

    /// Subscribers that the campaign does not watch are left out.
    fn lines(&self, answer: &Value) -> Result<Vec<Line>> {
        let lines = answer["subscribers"].as_array().context("a trace without subscribers")?;
        let place = |id: &Value| self.subscribers.iter().position(|known| id == known.as_str());
        let line = |line: &Value| {
            Some(Line {
                subscriber: place(&line["subscriber"])?,
                outcome: line["outcome"].as_str().unwrap_or_default().to_owned(),
                delivery: line["delivery"].as_str().map(str::to_owned),
            })
        };
        Ok(lines.iter().filter_map(line).collect())
    }
}

/// The traces of some events at equal distances, and of all that were not taken by everybody, up to a limit.
pub(in crate::chaos) fn traces(
    asked: &Asked<'_>,
    promises: &[Promise<'_>],
    arrivals: &[Arrival],
) -> Result<BTreeMap<Event, Trace>> {
    let taken: HashSet<(usize, Event)> =
        arrivals.iter().filter(|arrival| arrival.is_taken()).flat_map(Arrival::places).collect();
    let is_missed =
        |promise: &&Promise<'_>| promise.wanted.iter().any(|place| !taken.contains(&(*place, promise.event)));
    let some = promises.iter().step_by(promises.len().div_ceil(SAMPLE).max(1));
    let missed = promises.iter().filter(is_missed).take(SAMPLE);
    let events: BTreeSet<Event> = some.chain(missed).map(|promise| promise.event).collect();
    asked.traces(events.into_iter())
}
