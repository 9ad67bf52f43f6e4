//! Breakers, judged from outside: the count of failures in a row is kept here a second time, in the plainest way.
//!
//! From the failure on that opens a breaker, until something arrives, attempts must come one at a time and far apart,
//! and none of them may use up a schedule: an outage exhausts nothing. What people retry by hand is left out, and so is
//! everything close to a change, which may begin the count anew a little later than it was made.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::id::{DeliveryNo, SubscriberNo};
use tidegate_core::retry::Next;

use super::history::{History, Sent, Truth};

/// How long after a change nothing is said.
const CHANGE_MS: i64 = 3_000;
/// The product's own first delay; a longer bound changes nothing.
const FIRST_MS: i64 = 10_000;

/// What is known of one breaker.
#[derive(Default)]
struct Count {
    life: usize,
    /// When something last happened.
    t: i64,
    failures: u32,
    /// When it must have opened.
    opened: Option<i64>,
    /// When the last probe was sent, in the product's time.
    probed: Option<i64>,
    under_way: BTreeSet<usize>,
    probes: BTreeSet<usize>,
}

/// Checks every breaker; says which rare paths were taken.
pub(crate) fn check(history: &History, found: &mut Vec<String>) -> BTreeSet<&'static str> {
    let mut met = BTreeSet::new();
    let by_hand: BTreeSet<DeliveryNo> = history.retries.iter().map(|(_, delivery)| *delivery).collect();
    let mut counts = BTreeMap::<SubscriberNo, Count>::new();
    for (index, is_begin) in &history.beats {
        let sent = &history.sends[*index];
        let truth = &history.subs[&sent.subscriber];
        if super::folds::is_fold(&truth.id) {
            // Its folds count as well, and only what passes them by is known here.
            continue;
        }
        let count = counts.entry(sent.subscriber).or_default();
        let t = if *is_begin { sent.t } else { sent.told.map_or(sent.t, |(t, _)| t) };
        if count.life != sent.life {
            *count = Count { life: sent.life, ..Count::default() };
        }
        if is_unsettled(history, truth, count.t.min(t - CHANGE_MS), t) {
            (count.failures, count.opened, count.probed) = (0, None, None);
        }
        count.t = t;
        if *is_begin {
            begin(count, *index, sent, truth, by_hand.contains(&sent.delivery), found);
        } else {
            end(history, count, *index, &mut met);
        }
    }
    met
}

fn is_unsettled(history: &History, truth: &Truth, from: i64, t: i64) -> bool {
    truth.touched.iter().any(|touched| (from..=t).contains(touched)) || history.is_store_away(from, t)
}

fn begin(
    count: &mut Count,
    index: usize,
    sent: &Sent,
    truth: &Truth,
    is_by_hand: bool,
    found: &mut Vec<String>,
) {
    let probe_ms = truth.latest_before(sent.t).breaker.map_or(0, |(_, probe_ms)| probe_ms);
    let probe_ms = i64::try_from(probe_ms).expect("bounds are short");
    if count.opened.is_some_and(|opened| sent.t > opened) && !is_by_hand {
        if !count.under_way.is_empty() {
            found.push(format!("P8 {} is left alone and gets two at once, at {}", truth.id, sent.t));
        }
        if count.probed.is_some_and(|probed| sent.now < probed + probe_ms.min(FIRST_MS) / 2) {
            found.push(format!("P8 {} is left alone and probed too soon, at {}", truth.id, sent.t));
        }
        if matches!(sent.recorded, Some(Next::RetryAt(_) | Next::Exhausted(_))) {
            found.push(format!("P2 delivery {} used up its schedule on a probe", sent.delivery));
        }
        count.probed = Some(sent.now);
        count.probes.insert(index);
    }
    count.under_way.insert(index);
}

fn end(history: &History, count: &mut Count, index: usize, met: &mut BTreeSet<&'static str>) {
    let sent = &history.sends[index];
    let truth = &history.subs[&sent.subscriber];
    count.under_way.remove(&index);
    let Some((t, heard)) = sent.told else { return };
    let was_probe = count.probes.remove(&index);
    if heard.is_success() {
        if was_probe {
            met.insert("a breaker closed by a probe");
        }
        (count.failures, count.opened, count.probed) = (0, None, None);
        return;
    }
    if was_probe {
        met.insert("a probe that failed");
    } else if super::gates::is_mild(history, sent, heard) {
        return;
    }
    count.failures += 1;
    let failures = truth.latest_before(t).breaker.map_or(u32::MAX, |(failures, _)| failures);
    if count.failures >= failures && count.opened.is_none() {
        met.insert("a breaker opened");
        count.opened = Some(t);
    }
}
