//! What a scrape looks up: the process, the store, the streams, and how each subscriber stands.
//!
//! A subscriber is named by its id, which is ours. Those with the most work have a line of their own, up to a bound;
//! the rest are one line, `other`: the size of a scrape does not grow with what users create.

use std::sync::atomic::Ordering;

use tidegate_core::id::SubscriberNo;
use tidegate_core::limits::METRICS_SUBSCRIBERS_MAX;
use tidegate_store::{Backlog, StorePart, Vital};

use super::text::{Kind, Text};
use super::{process, sharing};
use crate::roster::Roster;
use crate::standing::Standing;

/// What was found out for one scrape.
pub struct Scrape<'a> {
    /// Who is who.
    pub roster: &'a Roster,
    /// How much waits for each subscriber that exists.
    pub backlogs: &'a [(SubscriberNo, Backlog)],
    /// How large the store is.
    pub sizes: &'a [StorePart],
    /// Open streams.
    pub streams: usize,
    /// Open windows, where the store knows.
    pub windows: Option<u64>,
    /// Whether the store answered.
    pub is_store_up: bool,
    /// Subscribers and clients that wait at gates.
    pub at_gates: (usize, usize),
    /// Who shares it.
    pub standing: &'a Standing,
    /// Whether Redis answers, where there is one.
    pub is_redis_up: Option<bool>,
    /// How it is doing.
    pub vitals: &'a [Vital],
    /// Spans that were sent and that were dropped, where they are recorded.
    pub spans: Option<(u64, u64)>,
}

impl Scrape<'_> {
    /// Adds it all.
    pub fn add(&self, text: &mut Text) {
        let version = [(env!("CARGO_PKG_VERSION").to_owned(), 1)];
        text.labelled(Kind::Gauge, "tidegate_build_info", "The version that runs", "version", version);
        text.one(Kind::Gauge, "tidegate_streams_open", "Open streams of events", self.streams);
        if let Some(windows) = self.windows {
            text.one(Kind::Gauge, "tidegate_windows_open", "Windows that gather events", windows);
        }
        let help = "1 when the store answers, 0 when it does not and what is told of it is old or absent";
        text.one(Kind::Gauge, "tidegate_store_up", help, u8::from(self.is_store_up));
        let sizes = self.sizes.iter().map(|part| (part.name.to_owned(), part.bytes));
        text.labelled(Kind::Gauge, "tidegate_store_size_bytes", "Size of the store on disk", "part", sizes);
        if let Some((exported, dropped)) = self.spans {
            text.one(Kind::Counter, "tidegate_spans_exported", "Spans that a collector took", exported);
            text.one(Kind::Counter, "tidegate_spans_dropped", "Spans that no collector took", dropped);
        }
        let (subscribers, clients) = self.at_gates;
        let waiting = [("subscribers".to_owned(), subscribers), ("clients".to_owned(), clients)];
        text.labelled(Kind::Gauge, "tidegate_gate_waiting", "Who waits at gates", "who", waiting);
        self.add_subscribers(text);
        if let Some(is_up) = self.is_redis_up {
            let help = "1 while Redis is used, 0 while PostgreSQL does its part";
            text.one(Kind::Gauge, "tidegate_redis_up", help, u8::from(is_up));
        }
        sharing::add(text, self.standing, self.vitals);
        process::add(text);
    }

    fn add_subscribers(&self, text: &mut Text) {
        let mut lines: Vec<Line> =
            self.backlogs.iter().filter_map(|(no, backlog)| self.line(*no, *backlog)).collect();
        lines.sort_by_key(|line| (std::cmp::Reverse(line.work()), line.no));
        let others: Vec<Line> = lines.split_off(lines.len().min(METRICS_SUBSCRIBERS_MAX));
        let rest = others.iter().fold(Backlog::default(), |sum, line| sum.plus(line.backlog));
        let families: [Family; 3] = [
            ("tidegate_subscriber_waiting", "Deliveries of a subscriber that wait", |backlog| {
                backlog.waiting
            }),
            ("tidegate_subscriber_held", "Deliveries held while a subscriber is inactive", |backlog| {
                backlog.held
            }),
            (
                "tidegate_subscriber_exhausted",
                "Deliveries of a subscriber whose every attempt failed",
                |backlog| backlog.exhausted,
            ),
        ];
        for (name, help, value) in families {
            let own = lines.iter().map(|line| (line.id.to_owned(), value(&line.backlog)));
            let other = (!others.is_empty()).then(|| ("other".to_owned(), value(&rest)));
            text.labelled(Kind::Gauge, name, help, "subscriber", own.chain(other));
        }
        let name = "tidegate_subscriber_last_success_timestamp_seconds";
        let help = "When a subscriber last took a delivery, since 1970; absent until it does";
        let times = lines.iter().filter(|line| line.delivered_at_ms > 0);
        let times = times.map(|line| (line.id.to_owned(), line.delivered_at_ms as f64 / 1e3));
        text.labelled(Kind::Gauge, name, help, "subscriber", times);
    }

    fn line(&self, no: SubscriberNo, backlog: Backlog) -> Option<Line<'_>> {
        let endpoint = self.roster.endpoint(no)?;
        let delivered_at_ms = endpoint.delivered_at_ms.load(Ordering::Relaxed);
        Some(Line { no, id: &endpoint.rule.id, backlog, delivered_at_ms })
    }
}

/// A name, its help, and which number of a backlog it shows.
type Family = (&'static str, &'static str, fn(&Backlog) -> u64);

/// One subscriber's line.
struct Line<'a> {
    no: SubscriberNo,
    id: &'a str,
    backlog: Backlog,
    delivered_at_ms: i64,
}

impl Line<'_> {
    fn work(&self) -> u64 {
        self.backlog.waiting + self.backlog.held + self.backlog.exhausted
    }
}
