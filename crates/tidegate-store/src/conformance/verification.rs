//! Verification: whoever has not agreed is inactive, and only the answer to the question that was asked counts.

use tidegate_core::delivery::Status;
use tidegate_core::retention::Retention;
use tidegate_core::verification::{Consent, VerificationStatus};

use super::bench::{Bench, PROJECT, draft, new_subscriber};
use super::{Case, named};
use crate::{
    Change, Error, NewSubscriber, SubscriberRow, SubscriberUpdate, Sweep, VerificationRow, VerificationUpdate,
};

pub(super) fn cases() -> Vec<Case> {
    named!["verification":
        whoever_has_not_agreed_is_inactive,
        tries_are_counted_until_the_last,
        an_answer_counts_for_its_round_only,
        a_pause_outlives_the_consent,
        nobody_asks_any_more,
        what_waits_for_a_consent_expires_like_everything_held,
        a_consent_ends_the_waiting,
    ]
}

async fn unverified(bench: &Bench, active: bool) -> i64 {
    let new = NewSubscriber { unverified: true, active, ..new_subscriber("s") };
    bench.change(Change::CreateSubscriber(new)).await.no
}

async fn read(bench: &Bench) -> SubscriberRow {
    bench.store().configuration(0).await.unwrap().subscribers.remove(0)
}

async fn state(bench: &Bench) -> (bool, Option<String>, Option<VerificationStatus>) {
    let row = read(bench).await;
    (row.active, row.inactive_reason, row.verification.map(|row| row.status))
}

fn waiting(reason: &str, status: VerificationStatus) -> (bool, Option<String>, Option<VerificationStatus>) {
    (false, Some(reason.to_owned()), Some(status))
}

fn change(verification: VerificationUpdate) -> SubscriberUpdate {
    SubscriberUpdate { verification: Some(verification), ..Default::default() }
}

fn agreed(round: i64) -> SubscriberUpdate {
    let outcome = Ok(Consent { per_minute: Some(120) });
    change(VerificationUpdate::Tried { round, outcome, is_last: false })
}

fn refused(round: i64, is_last: bool) -> SubscriberUpdate {
    change(VerificationUpdate::Tried { round, outcome: Err("no".to_owned()), is_last })
}

async fn round(bench: &Bench) -> i64 {
    read(bench).await.verification.expect("it is verified").round
}

async fn whoever_has_not_agreed_is_inactive(mut bench: Bench) {
    let no = unverified(&bench, true).await;
    assert_eq!(state(&bench).await, waiting("unverified", VerificationStatus::Pending));
    bench.send([draft("e").to(no)]).await;
    assert_eq!(bench.status(no, "e").await, Status::Held);
    let filter = crate::DeliveryFilter { limit: 1, ..Default::default() };
    let held = bench.store().deliveries(PROJECT, filter).await.unwrap().items.remove(0);
    assert_eq!(held.reason.as_deref(), Some("unverified"));
    bench.resume(no).await;
    assert_eq!(
        state(&bench).await,
        waiting("unverified", VerificationStatus::Pending),
        "resuming is no consent"
    );
    let round = round(&bench).await;
    bench.update(no, agreed(round)).await;
    assert_eq!(state(&bench).await, (true, None, Some(VerificationStatus::Verified)));
    bench.reopen().await;
    let row = read(&bench).await.verification.unwrap();
    assert_eq!(row.consent, Consent { per_minute: Some(120) });
    assert_eq!(bench.status(no, "e").await, Status::Pending);
    bench.update(no, change(VerificationUpdate::Begin)).await;
    assert_eq!(state(&bench).await, waiting("unverified", VerificationStatus::Pending), "asked anew");
    assert_eq!(read(&bench).await.verification.unwrap().consent, Consent::default());
}

async fn tries_are_counted_until_the_last(bench: Bench) {
    let no = unverified(&bench, true).await;
    let round = round(&bench).await;
    bench.update(no, refused(round, false)).await;
    bench.update(no, refused(round, true)).await;
    let expected = VerificationRow {
        status: VerificationStatus::Failed,
        round,
        tries: 2,
        detail: Some("no".to_owned()),
        consent: Consent::default(),
    };
    assert_eq!(read(&bench).await.verification, Some(expected));
    conflicts(&bench, no, agreed(round)).await;
    bench.update(no, change(VerificationUpdate::Begin)).await;
    let row = read(&bench).await.verification.unwrap();
    assert_eq!((row.status, row.tries, row.detail), (VerificationStatus::Pending, 0, None));
}

async fn conflicts(bench: &Bench, no: i64, update: SubscriberUpdate) {
    let before = bench.version().await;
    let change = Change::UpdateSubscriber { project: PROJECT, no, update };
    assert!(matches!(bench.try_change(change).await, Err(Error::Conflict(_))));
    assert_eq!(bench.version().await, before, "a refused change is none");
}

async fn an_answer_counts_for_its_round_only(bench: Bench) {
    let no = unverified(&bench, true).await;
    let old = round(&bench).await;
    bench.update(no, change(VerificationUpdate::Begin)).await;
    conflicts(&bench, no, agreed(old)).await;
    conflicts(&bench, no, refused(old, true)).await;
    assert_eq!(state(&bench).await, waiting("unverified", VerificationStatus::Pending));
    let new = round(&bench).await;
    bench.update(no, agreed(new)).await;
    assert!(read(&bench).await.active);
}

async fn a_pause_outlives_the_consent(bench: Bench) {
    let no = unverified(&bench, false).await;
    assert_eq!(state(&bench).await, waiting("paused", VerificationStatus::Pending));
    let round = round(&bench).await;
    bench.update(no, agreed(round)).await;
    assert_eq!(state(&bench).await, waiting("paused", VerificationStatus::Verified));
    bench.resume(no).await;
    assert!(read(&bench).await.active);
}

async fn nobody_asks_any_more(bench: Bench) {
    let no = unverified(&bench, true).await;
    let round = round(&bench).await;
    bench.update(no, change(VerificationUpdate::End)).await;
    assert_eq!(state(&bench).await, (true, None, None));
    conflicts(&bench, no, refused(round, true)).await;
    bench.pause(no).await;
    bench.update(no, change(VerificationUpdate::Begin)).await;
    bench.update(no, change(VerificationUpdate::End)).await;
    assert_eq!(state(&bench).await, (false, Some("paused".to_owned()), None));
}

/// Terms that let nothing but undelivered things go.
const UNDELIVERED_MS: u64 = 20_000;

async fn expired(bench: &Bench) -> u64 {
    let undelivered = std::time::Duration::from_millis(UNDELIVERED_MS);
    let terms = Retention { undelivered, ..Retention::default() };
    let (mut next, mut expired) = (Some(Sweep::BEGIN), 0);
    while let Some(sweep) = next {
        let swept = bench.store().sweep(terms, sweep, 100, bench.now).await.expect("the store works");
        expired += swept.expired;
        next = swept.next;
    }
    expired
}

async fn what_waits_for_a_consent_expires_like_everything_held(mut bench: Bench) {
    let created = unverified(&bench, true).await;
    let moved = bench.subscriber("moved").await;
    let resumed = bench.subscriber("resumed").await;
    bench.update(moved, change(VerificationUpdate::Begin)).await;
    bench.pause(resumed).await;
    bench.update(resumed, change(VerificationUpdate::Begin)).await;
    bench.resume(resumed).await;
    bench.send([draft("e").to(created).to(moved).to(resumed)]).await;
    bench.pass(UNDELIVERED_MS - 1);
    assert_eq!(expired(&bench).await, 0);
    bench.pass(1);
    assert_eq!(expired(&bench).await, 3);
    assert_eq!(bench.status(moved, "e").await, Status::Expired);
}

async fn a_consent_ends_the_waiting(mut bench: Bench) {
    let (asked, unasked) = (bench.subscriber("asked").await, bench.subscriber("unasked").await);
    for no in [asked, unasked] {
        bench.update(no, change(VerificationUpdate::Begin)).await;
    }
    bench.send([draft("e").to(asked).to(unasked)]).await;
    bench.pass(UNDELIVERED_MS - 1);
    let round = bench.store().configuration(0).await.unwrap().subscribers[0].verification.clone();
    bench.update(asked, agreed(round.expect("it is verified").round)).await;
    bench.update(unasked, change(VerificationUpdate::End)).await;
    for no in [asked, unasked] {
        bench.pause(no).await;
    }
    bench.pass(UNDELIVERED_MS - 1);
    assert_eq!(expired(&bench).await, 0, "the pause is younger than the term");
    bench.pass(1);
    assert_eq!(expired(&bench).await, 2);
}
