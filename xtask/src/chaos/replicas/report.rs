//! What a run came to: the table, what was broken, and whether the faults did anything at all.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::audience::{CONCURRENCY, NAMES, NARROW, RATE, RATED};
use super::cluster::Counts;
use super::nemesis::{Deeds, Fault};
use super::producers::Ledger;
use super::verdict::{Sent, concurrency, overshoot, unexplained};
use crate::chaos::checker::{Arrival, Findings, Rule};

/// Requests of a process that stood between looking at its lease and the first byte when it was stopped: they go out
/// when it goes on, and nobody can know before.
const IN_HAND_MAX: u64 = 2;

/// How long a request may be on its way after its token was given, on a busy machine. The judge sees arrivals: one that
/// was late makes the stretch after it look as much fuller.
const TRAVEL_MAX: Duration = Duration::from_millis(250);

/// Everything that is known after a run.
pub(super) struct Outcome<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) sent: &'a [Sent],
    pub(super) arrivals: &'a [Arrival],
    pub(super) findings: Findings,
    pub(super) out_of_order: Rule,
    pub(super) deeds: &'a Deeds,
    pub(super) counts: Counts,
    pub(super) deadlocks: u64,
    pub(super) unfinished: u64,
    /// The last arrival of something that had not come before.
    pub(super) last: Option<&'a Arrival>,
}

impl Outcome<'_> {
    /// Prints the table; answers the promises that were broken.
    pub(super) fn report(&self) -> Vec<String> {
        let mut lines = Lines::default();
        self.add_load(&mut lines);
        self.add_promises(&mut lines);
        lines.broken
    }

    fn add_load(&self, lines: &mut Lines) {
        let Self { ledger, sent, counts, deeds, .. } = self;
        let faults: Vec<String> =
            deeds.counts.iter().map(|(fault, count)| format!("{count} {fault:?}")).collect();
        lines.tell("faults", if faults.is_empty() { "none".to_owned() } else { faults.join(", ") });
        let events: u64 = sent.iter().map(|sent| u64::from(sent.last)).sum();
        lines.tell("sent, acknowledged", format!("{events} events in {} requests", count(&ledger.requests)));
        let (unanswered, refused) = (count(&ledger.unanswered), count(&ledger.refused));
        lines.tell("failed attempts", format!("{unanswered} without an answer, {refused} refused"));
        lines.tell("mended by a retry", count(&ledger.mended));
        lines.zero("not mended", count(&ledger.unmended));
        lines.zero("refused, no Retry-After", count(&ledger.without_retry_after));
        lines.zero("accepted twice", count(&ledger.accepted).saturating_sub(events));
        lines.tell("answered as duplicate", count(&ledger.duplicates));
        lines.tell("taken over", counts.taken_over);
        lines.tell("lives begun anew", counts.anew);
        lines.tell("stale results refused", counts.stale);
    }

    fn add_promises(&self, lines: &mut Lines) {
        let Self { findings, deeds, .. } = self;
        lines.broken.extend(findings.report());
        lines.tell("duplicates", format!("{} in all", findings.repeats.len()));
        let unexplained = unexplained(&findings.repeats, &deeds.windows);
        lines.at_most("unexplained duplicates", unexplained, IN_HAND_MAX * deeds.count(Fault::Stop));
        lines.zero("order violations", self.out_of_order.count);
        self.out_of_order.examples.iter().for_each(|example| println!("    {example}"));
        lines.zero("unfinished deliveries", self.unfinished);
        lines.zero("deadlocks", self.deadlocks);
        let of = |subscriber| self.arrivals.iter().filter(move |arrival| arrival.subscriber == subscriber);
        let rate = f64::from(RATE);
        let over = overshoot(of(RATED).map(|arrival| arrival.at), rate, rate);
        let most = rate + rate * TRAVEL_MAX.as_secs_f64();
        let told = format!("at most a burst of {RATE}, and {:.0} that were late", most - rate);
        lines.limit("rate overshoot", format!("{over:.1}"), told, over <= most);
        let most = concurrency(of(NARROW).map(|arrival| (arrival.at, arrival.answered)));
        // What a dead process has under way is still under way when others go on.
        let may_exceed = deeds.count(Fault::Kill) + deeds.count(Fault::Stop) > 0;
        let told = format!("where {CONCURRENCY} are allowed");
        lines.limit("most at once", most, told, may_exceed || most <= CONCURRENCY);
        if let Some(last) = self.last {
            let after = last.at.saturating_sub(deeds.ended).as_secs_f64();
            lines.tell("all delivered after", format!("{after:.1} s, to {} last", NAMES[last.subscriber]));
        }
    }

    /// Why the run proves nothing, if so.
    pub(super) fn void(&self) -> Option<&'static str> {
        let Self { ledger, deeds, counts, .. } = self;
        let troubled = count(&ledger.unanswered) + count(&ledger.refused);
        let harmless = |fault| deeds.count(fault) > 0;
        if self.sent.iter().all(|sent| sent.last == 0) {
            Some("nothing was sent")
        } else if harmless(Fault::Stop) && (counts.stale == 0 || counts.anew == 0) {
            Some("no process that was stopped had anything to be refused")
        } else if harmless(Fault::Kill) && counts.taken_over == 0 && self.findings.repeats.is_empty() {
            Some("no kill fell into anything")
        } else if harmless(Fault::Postgres) && troubled == 0 {
            Some("nobody missed PostgreSQL")
        } else {
            None
        }
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// The table as it grows.
#[derive(Default)]
struct Lines {
    broken: Vec<String>,
}

impl Lines {
    fn tell(&self, name: &str, value: impl Display) {
        println!("{name:<24} {value}");
    }

    fn limit(&mut self, name: &str, value: impl Display, limit: impl Display, is_kept: bool) {
        println!("{name:<24} {value} ({limit}){}", if is_kept { "" } else { "  BROKEN" });
        if !is_kept {
            self.broken.push(format!("{name} {value}"));
        }
    }

    fn at_most(&mut self, name: &str, value: u64, limit: u64) {
        let told = if limit == 0 { "must be 0".to_owned() } else { format!("at most {limit}") };
        self.limit(name, value, told, value <= limit);
    }

    fn zero(&mut self, name: &str, value: u64) {
        self.at_most(name, value, 0);
    }
}
