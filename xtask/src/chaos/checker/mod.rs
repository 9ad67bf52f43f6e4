//! The checker of every campaign: what clients were told and receivers saw, and what the API says about it.
//!
//! It never looks into the database. It is pure, so that it can be tested with histories that are made up; `api.rs` asks
//! for the traces. What depends on a campaign (how many repeats its faults explain, which lanes are ordered) stays there.

pub(super) mod api;
mod arrivals;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::time::Duration;

pub(super) use arrivals::{Arrival, Journal};

/// How many cases of a broken rule are told.
const EXAMPLES_MAX: usize = 5;

/// An event by its place: the producer's key and the number under that key. Its id is `k<key>-<seq>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Event {
    pub(super) key: usize,
    pub(super) seq: u32,
}

impl Event {
    /// The event with this id.
    pub(super) fn parse(id: &str) -> Option<Self> {
        let (key, seq) = id.strip_prefix('k')?.split_once('-')?;
        Some(Self { key: key.parse().ok()?, seq: seq.parse().ok()? })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "k{}-{}", self.key, self.seq)
    }
}

/// An event that was acknowledged, and to whom it is to be delivered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise<'a> {
    pub(super) event: Event,
    pub(super) wanted: &'a [usize],
    /// Its commit may have been lost with the database: it may be gone, but only as a whole.
    pub(super) may_be_lost: bool,
    /// It was sent again although a commit with it may have been lost: then it has a second delivery.
    pub(super) may_double: bool,
}

impl<'a> Promise<'a> {
    /// One that holds without exception.
    pub(super) fn firm(event: Event, wanted: &'a [usize]) -> Self {
        Self { event, wanted, may_be_lost: false, may_double: false }
    }
}

/// What the API says about an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trace {
    /// It does not know the event.
    Unknown,
    Known(Vec<Line>),
}

/// What it says about one subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) subscriber: usize,
    pub(super) outcome: String,
    /// The `webhook-id`, if there is a delivery.
    pub(super) delivery: Option<String>,
}

/// Everything that is known outside.
pub(super) struct History<'a> {
    pub(super) promises: &'a [Promise<'a>],
    /// In order of arrival.
    pub(super) arrivals: &'a [Arrival],
    /// Of those events that were asked about.
    pub(super) traces: &'a BTreeMap<Event, Trace>,
    /// Outcomes in a trace that may take the place of a delivery.
    pub(super) ends: &'a [&'a str],
}

/// One rule: how often it was broken, and the first cases.
#[derive(Default, Clone, Debug)]
pub(super) struct Rule {
    pub(super) count: u64,
    pub(super) examples: Vec<String>,
}

impl Rule {
    fn broken(&mut self, example: impl FnOnce() -> String) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(example());
        }
    }
}

/// What was found.
#[derive(Default, Clone, Debug)]
pub(super) struct Findings {
    /// Acknowledged, in no body that a subscriber took, and its trace tells no end that is allowed.
    pub(super) missing: Rule,
    /// Acknowledged, and the API does not know it.
    pub(super) forgotten: Rule,
    /// In two deliveries of a subscriber.
    pub(super) doubled: Rule,
    /// A `webhook-id` with two bodies.
    pub(super) changed_bodies: Rule,
    /// A `webhook-id` at two subscribers.
    pub(super) shared_ids: Rule,
    /// Delivered, says the trace, and the receiver never answered it 2xx.
    pub(super) not_taken: Rule,
    /// Came to whom it was not for, or without having been acknowledged.
    pub(super) strangers: Rule,
    /// Taken again: when each was taken the time before. At-least-once allows it; campaigns bound it.
    pub(super) repeats: Vec<Duration>,
    /// Events that may be lost, and are.
    pub(super) lost: u64,
    /// Deliveries whose trace tells another end.
    pub(super) ended: u64,
    /// Events in two deliveries that may be.
    pub(super) doubled_allowed: u64,
    /// Traces that were asked for.
    pub(super) traced: u64,
}

impl Findings {
    /// Every rule by its name.
    pub(super) fn rules(&self) -> [(&'static str, &Rule); 7] {
        [
            ("missing", &self.missing),
            ("unknown to the API", &self.forgotten),
            ("in two deliveries", &self.doubled),
            ("ids of two bodies", &self.changed_bodies),
            ("ids at two subscribers", &self.shared_ids),
            ("delivered, never taken", &self.not_taken),
            ("made-up events", &self.strangers),
        ]
    }

    /// Prints all rules; answers those that were broken.
    pub(super) fn report(&self) -> Vec<String> {
        println!("{:<24} {}", "traces asked for", self.traced);
        let mut broken = Vec::new();
        for (name, rule) in self.rules() {
            let verdict = if rule.count == 0 { "" } else { "  BROKEN" };
            println!("{name:<24} {} (must be 0){verdict}", rule.count);
            for example in &rule.examples {
                println!("    {example}");
            }
            if rule.count > 0 {
                broken.push(format!("{name} {}", rule.count));
            }
        }
        broken
    }
}

/// What became of one event at one subscriber.
#[derive(Default)]
struct Seen<'a> {
    deliveries: Vec<&'a str>,
    /// When the last request came that was answered 2xx.
    taken: Option<Duration>,
}

/// Compares what was promised with what came.
pub(super) fn check(history: &History<'_>) -> Findings {
    let mut findings = Findings { traced: history.traces.len() as u64, ..Findings::default() };
    let seen = see(history, &mut findings);
    check_promises(history, &seen, &mut findings);
    check_ids(history.arrivals, &mut findings);
    check_traces(history, &mut findings);
    findings
}

type SeenBy<'a> = HashMap<(usize, Event), Seen<'a>>;

/// Sorts arrivals by subscriber and event, and leaves out those that nobody was promised.
fn see<'a>(history: &History<'a>, findings: &mut Findings) -> SeenBy<'a> {
    let promises: HashMap<Event, &Promise<'_>> =
        history.promises.iter().map(|promise| (promise.event, promise)).collect();
    let mut seen = SeenBy::new();
    for arrival in history.arrivals {
        for event in &arrival.events {
            let place = arrival.subscriber;
            if !promises.get(event).is_some_and(|promise| promise.wanted.contains(&place)) {
                findings.strangers.broken(|| format!("{event} at subscriber {place}"));
                continue;
            }
            let seen = seen.entry((place, *event)).or_default();
            if !seen.deliveries.contains(&arrival.delivery.as_str()) {
                seen.deliveries.push(&arrival.delivery);
            }
            if arrival.is_taken() {
                findings.repeats.extend(seen.taken.replace(arrival.at));
            }
        }
    }
    seen
}

fn check_promises(history: &History<'_>, seen: &SeenBy<'_>, findings: &mut Findings) {
    for promise in history.promises {
        let event = promise.event;
        let trace = history.traces.get(&event);
        if trace == Some(&Trace::Unknown) {
            if promise.may_be_lost {
                findings.lost += 1;
                continue;
            }
            findings.forgotten.broken(|| event.to_string());
        }
        for place in promise.wanted {
            let seen = seen.get(&(*place, event));
            let deliveries = seen.map_or(&[][..], |seen| &seen.deliveries);
            if deliveries.len() > 1 && promise.may_double {
                findings.doubled_allowed += 1;
            } else if deliveries.len() > 1 {
                findings
                    .doubled
                    .broken(|| format!("{event} at subscriber {place}: {}", deliveries.join(", ")));
            }
            if seen.is_some_and(|seen| seen.taken.is_some()) {
                continue;
            }
            let outcome = outcome(trace, *place);
            if outcome.is_some_and(|outcome| history.ends.contains(&outcome)) {
                findings.ended += 1;
            } else {
                let told = outcome.unwrap_or("nothing");
                findings.missing.broken(|| format!("{event} at subscriber {place}; the trace says {told}"));
            }
        }
    }
}

fn outcome(trace: Option<&Trace>, subscriber: usize) -> Option<&str> {
    let Some(Trace::Known(lines)) = trace else { return None };
    lines.iter().find(|line| line.subscriber == subscriber).map(|line| line.outcome.as_str())
}

/// An id stands for one body at one subscriber, whatever it carries and whoever may know of it.
fn check_ids(arrivals: &[Arrival], findings: &mut Findings) {
    let mut first: HashMap<&str, &Arrival> = HashMap::new();
    let (mut changed, mut shared) = (HashSet::new(), HashSet::new());
    for arrival in arrivals {
        let id = arrival.delivery.as_str();
        let before = *first.entry(id).or_insert(arrival);
        let told = || format!("{id}: {} and {}", before.told(), arrival.told());
        if before.body != arrival.body && changed.insert(id) {
            findings.changed_bodies.broken(told);
        }
        if before.subscriber != arrival.subscriber && shared.insert(id) {
            findings.shared_ids.broken(told);
        }
    }
}

/// What is called delivered was answered 2xx, under that id, by that subscriber, with that event in it.
fn check_traces(history: &History<'_>, findings: &mut Findings) {
    let mut taken: HashSet<(usize, &str, Event)> = HashSet::new();
    for arrival in history.arrivals.iter().filter(|arrival| arrival.is_taken()) {
        let of = |event: &Event| (arrival.subscriber, arrival.delivery.as_str(), *event);
        taken.extend(arrival.events.iter().map(of));
    }
    for (event, trace) in history.traces {
        let Trace::Known(lines) = trace else { continue };
        for line in lines.iter().filter(|line| line.outcome == "delivered") {
            let Line { subscriber, delivery, .. } = line;
            let id = delivery.as_deref().unwrap_or("");
            if !taken.contains(&(*subscriber, id, *event)) {
                findings.not_taken.broken(|| format!("{event} at subscriber {subscriber} as {id}"));
            }
        }
    }
}

/// Arrivals at an ordered subscriber that came before their predecessor was answered 2xx. The predecessor of an event is the
/// one before it among those that `is_expected`; in a body with several events it may stand before it.
pub(super) fn out_of_order(
    arrivals: &[Arrival],
    subscriber: usize,
    is_expected: impl Fn(Event) -> bool,
) -> Rule {
    let mut rule = Rule::default();
    let mut met = HashSet::new();
    let mut answered: HashMap<Event, Duration> = HashMap::new();
    for arrival in arrivals.iter().filter(|arrival| arrival.subscriber == subscriber) {
        for (place, event) in arrival.events.iter().enumerate() {
            if !met.insert(*event) {
                continue;
            }
            let earlier = (0..event.seq).rev().map(|seq| Event { seq, ..*event });
            let Some(before) = earlier.take_while(|event| event.seq > 0).find(|event| is_expected(*event))
            else {
                continue;
            };
            let is_answered = answered.get(&before).is_some_and(|at| *at <= arrival.at);
            if !is_answered && !arrival.events[..place].contains(&before) {
                rule.broken(|| format!("{event} at subscriber {subscriber} before {before}"));
            }
        }
        if let (true, Some(at)) = (arrival.is_taken(), arrival.answered) {
            for event in &arrival.events {
                let first = answered.entry(*event).or_insert(at);
                *first = (*first).min(at);
            }
        }
    }
    rule
}
