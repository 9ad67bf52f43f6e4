//! What receivers note: every request as it came, and which events were taken.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Event;
use crate::bench::wire;

/// One request at a receiver.
#[derive(Clone, Debug)]
pub(in crate::chaos) struct Arrival {
    /// Which subscriber it was for.
    pub(in crate::chaos) subscriber: usize,
    /// The `webhook-id`.
    pub(in crate::chaos) delivery: String,
    /// A fingerprint of the body's bytes.
    pub(in crate::chaos) body: u64,
    /// What the body carries.
    pub(in crate::chaos) events: Vec<Event>,
    /// What it was, or is going to be, answered; 0 if nothing.
    pub(in crate::chaos) status: u16,
    pub(in crate::chaos) at: Duration,
    /// When the answer was begun; absent while the request is under way.
    pub(in crate::chaos) answered: Option<Duration>,
}

impl Arrival {
    /// Reads a request whose body begins at `body`. It has no answer yet.
    pub(in crate::chaos) fn read(
        request: &[u8],
        body: usize,
        subscriber: usize,
        at: Duration,
    ) -> Result<Self> {
        let (head, body) = request.split_at(body);
        let delivery = wire::header(head, "webhook-id").context("no webhook-id")?.to_owned();
        let parsed: Value = serde_json::from_slice(body)?;
        let event = |value: &Value| Event::parse(value["id"].as_str()?);
        let events = match parsed["events"].as_array() {
            None => vec![event(&parsed).context("no event")?],
            Some(members) => {
                ensure!(parsed["delivery"] == delivery.as_str(), "the body names another delivery");
                members.iter().map(event).collect::<Option<Vec<Event>>>().context("no events")?
            }
        };
        let mut fingerprint = DefaultHasher::new();
        body.hash(&mut fingerprint);
        Ok(Self { subscriber, delivery, body: fingerprint.finish(), events, status: 0, at, answered: None })
    }

    /// Whether the receiver took it.
    pub(in crate::chaos) fn is_taken(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Every event that it brought to its subscriber.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, Event)> {
        self.events.iter().map(|event| (self.subscriber, *event))
    }

    /// What it carried and where it came, in words.
    pub(super) fn told(&self) -> String {
        let events: Vec<String> = self.events.iter().map(Event::to_string).collect();
        format!("{} at subscriber {}", events.join(" "), self.subscriber)
    }
}

/// Everything that came, in order.
#[derive(Default)]
pub(in crate::chaos) struct Journal {
    arrivals: Vec<Arrival>,
    taken: HashSet<(usize, Event)>,
}

impl Journal {
    /// Notes a request; answers its place.
    pub(in crate::chaos) fn note(&mut self, arrival: Arrival) -> usize {
        if arrival.is_taken() {
            self.taken.extend(arrival.places());
        }
        self.arrivals.push(arrival);
        self.arrivals.len() - 1
    }

    /// The answer to a request is begun now.
    pub(in crate::chaos) fn answered(&mut self, place: usize, at: Duration) {
        self.arrivals[place].answered = Some(at);
    }

    /// How many events were taken, each once for every subscriber.
    pub(in crate::chaos) fn taken(&self) -> usize {
        self.taken.len()
    }

    pub(in crate::chaos) fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }
}
