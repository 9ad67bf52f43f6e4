//! Trigger: what waits for a later try is due now, and nothing else changes.

use tidegate_core::delivery::Status;
use tidegate_core::retry::Next;

use super::bench::{Bench, PROJECT, draft};
use super::{Case, named};
use crate::{Change, NewSubscriber};

pub(super) fn cases() -> Vec<Case> {
    named!["trigger":
        what_waits_for_a_later_try_is_due_now,
        what_is_held_or_foreign_stays_as_it_is,
    ]
}

async fn what_waits_for_a_later_try_is_due_now(mut bench: Bench) {
    let (free, laned) = (bench.subscriber("free").await, bench.subscriber("laned").await);
    bench.send([draft("a").to(free), draft("b").lane(laned, 1), draft("c").lane(laned, 1)]).await;
    for subscriber in [free, laned] {
        let job = bench.claim_one(subscriber).await;
        bench.finish(&job, Next::RetryAt(bench.later(60_000))).await;
        assert_eq!(bench.claim_all(subscriber).await.len(), 0);
    }
    bench.pass(10);
    let triggered = bench.store().trigger(PROJECT, bench.now).await.unwrap();
    assert_eq!((triggered.deliveries, triggered.is_complete), (2, true));
    assert_eq!(triggered.subscribers, [free, laned]);
    bench.reopen().await;
    for (subscriber, event) in [(free, "a"), (laned, "b")] {
        let job = bench.claim_one(subscriber).await;
        assert_eq!((job.attempts, job.tries), (1, 1), "its schedule goes on");
        assert_eq!(bench.status(subscriber, event).await, Status::Sending);
    }
    assert_eq!(bench.status(laned, "c").await, Status::Pending, "it waits for its turn");
    let again = bench.store().trigger(PROJECT, bench.now).await.unwrap();
    assert_eq!(again.deliveries, 0, "nothing waits");
}

async fn what_is_held_or_foreign_stays_as_it_is(mut bench: Bench) {
    let held = bench.subscriber("held").await;
    let other =
        bench.change(Change::CreateProject { id: "p".to_owned(), catalog: Default::default() }).await.no;
    let theirs = NewSubscriber { project: other, ..super::bench::new_subscriber("theirs") };
    bench.change(Change::CreateSubscriber(theirs)).await;
    bench.send([draft("a").to(held)]).await;
    let job = bench.claim_one(held).await;
    bench.finish(&job, Next::RetryAt(bench.later(60_000))).await;
    bench.pass(10);
    assert_eq!(bench.store().trigger(other, bench.now).await.unwrap().deliveries, 0);
    bench.pause(held).await;
    assert_eq!(bench.store().trigger(PROJECT, bench.now).await.unwrap().deliveries, 0);
    assert_eq!(bench.status(held, "a").await, Status::Held);
    bench.resume(held).await;
    assert_eq!(bench.claim_all(held).await.len(), 0, "it keeps its time");
}
