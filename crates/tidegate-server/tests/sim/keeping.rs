//! Retention at work while everything else happens: in some runs terms are so short that events and deliveries go
//! under the eyes of clients, backfills, jobs and crashes. In some of these, types get and lose terms of their own.
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

use super::catalog::Edit;
use super::dice::Dice;
use super::history::{EventKey, Fact, History};
use super::plan::{Act, END_T, TYPES};

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

/// Plans terms of types in a run whose terms are short. They are over when the run's remains have aged.
pub(crate) fn plan_types(seed: u64, projects: &[&'static str], acts: &mut Vec<(i64, Act)>) {
    let mut dice = Dice::new(seed, "keeping types");
    if !dice.percent(60) {
        return;
    }
    for _ in 0..dice.below(8) + 2 {
        let keep_ms = dice.pick(&[None, Some(1_000), Some(4_000), Some(25_000)]);
        let edit = Edit::Keep(dice.pick(&TYPES), keep_ms);
        let project = dice.pick(projects);
        acts.push((dice.between(100, END_T - 1_000), Act::Catalog { project, edit }));
    }
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
    let own = history.catalogs.values().filter_map(|catalog| catalog.shortest_keep).min();
    let term = i64::try_from(terms.events.as_millis()).expect("terms are short").min(own.unwrap_or(i64::MAX));
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
