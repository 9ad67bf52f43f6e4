//! Retention at work while everything else happens: in some runs terms are so short that events and deliveries go
//! under the eyes of clients, backfills, jobs and crashes.
//!
//! What is gone can not be looked at, so it is justified from outside: an event only goes when it is old and every
//! delivery of it has ended, and a delivery only when its end was seen.

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_core::delivery::Status;
use tidegate_core::id::SubscriberNo;
use tidegate_core::retention::Retention;
use tidegate_core::retry::Next;
use tidegate_store::DeliveryRow;

use super::dice::Dice;
use super::history::{EventKey, Fact, History};

/// The terms of a run, if they are short.
pub(crate) fn plan(seed: u64) -> Option<Retention> {
    let mut dice = Dice::new(seed, "keeping");
    if !dice.percent(20) {
        return None;
    }
    let mut pick = |seconds: &[u64]| Duration::from_secs(dice.pick(seconds));
    let events = pick(&[3, 8, 15]);
    let (deliveries, undelivered) = (events + pick(&[1, 10, 30]), pick(&[5, 12, 40]));
    Some(Retention { events, deliveries, undelivered, ..Retention::default() })
}

/// The store keeps what is young, in order, and nothing that was never accepted.
pub(crate) fn events_are_kept(
    history: &History,
    kept: &[&EventKey],
    (terms, now): (&Retention, i64),
    found: &mut Vec<String>,
) {
    let left: BTreeSet<&EventKey> = kept.iter().copied().collect();
    let (gone, stay): (Vec<&Fact>, Vec<&Fact>) =
        history.accepted.iter().partition(|fact| !left.contains(&fact.key));
    if stay.iter().map(|fact| &fact.key).ne(kept.iter().copied()) {
        found.push("P1 events are kept that were not accepted like this".to_owned());
    }
    let term = i64::try_from(terms.events.as_millis()).expect("terms are short");
    for fact in gone.iter().filter(|fact| fact.now + term > now) {
        found.push(format!("P2 event {} is gone before its time", fact.key.2));
    }
}

/// Whether a delivery that is gone had ended: somebody saw it end, or its subscriber was away for a while.
pub(crate) fn is_over(history: &History, subscriber: SubscriberNo, event: &EventKey) -> bool {
    let truth = &history.subs[&subscriber];
    let own = history.sends.iter().filter(|sent| sent.subscriber == subscriber && sent.event == *event);
    let has_ended =
        own.into_iter().any(|sent| matches!(sent.recorded, Some(Next::Delivered | Next::Exhausted(_))));
    has_ended || truth.deleted.is_some() || !truth.pauses.is_empty()
}

/// A delivery that may still be sent has its event.
pub(crate) fn is_whole(row: &DeliveryRow) -> bool {
    let is_over = matches!(row.status, Status::Delivered | Status::Expired | Status::Cancelled);
    is_over || !row.events.is_empty()
}
