//! Manual retry: one attempt now with a fresh schedule, from every state that allows it, and never past one in
//! flight in its lane.

use tidegate_core::catalog::Mode;
use tidegate_core::delivery::{Job, Status};
use tidegate_core::id::SubscriberNo;
use tidegate_core::retry::Next;

use super::bench::{Bench, PROJECT, bodies, draft};
use super::{Case, named};
use crate::{Change, Committed, Group, RetryOutcome};

pub(super) fn cases() -> Vec<Case> {
    named!["retry":
        a_waiting_one_is_due_now,
        an_exhausted_one_begins_anew,
        dead_letters_are_counted_so_far,
        what_is_over_or_in_flight_is_refused,
        what_is_held_stays_held_but_due,
        what_was_deleted_is_refused,
        what_is_unknown_or_foreign_is_not_found,
        what_is_asked_for_comes_before_what_is_due,
        what_is_not_due_is_asked_for_in_vain,
        in_a_lane_the_older_goes_first,
        in_a_lane_nothing_passes_one_in_flight,
        in_a_lane_two_queue_behind_one_in_flight,
        in_a_lane_a_failed_attempt_lets_the_older_go,
        in_a_lane_a_released_claim_lets_the_older_go,
        in_a_lane_a_younger_one_keeps_its_place,
        in_a_lane_who_steps_back_keeps_its_time,
    ]
}

async fn sent(bench: &Bench, names: &[&str], lane: Option<i64>) -> SubscriberNo {
    let subscriber = bench.subscriber("s").await;
    for name in names {
        let event = draft(*name).saying((*name).to_owned());
        let event = match lane {
            None => event.to(subscriber),
            Some(lane) => event.lane(subscriber, lane),
        };
        bench.send([event]).await;
    }
    subscriber
}

async fn again(bench: &Bench, subscriber: SubscriberNo, event: &str) -> RetryOutcome {
    bench.retry(bench.row(subscriber, event).await.no).await
}

async fn claim_named(bench: &Bench, subscriber: SubscriberNo, name: &str) -> Job {
    let job = bench.claim_one(subscriber).await;
    assert_eq!(bodies(std::slice::from_ref(&job)), [name]);
    job
}

async fn a_waiting_one_is_due_now(mut bench: Bench) {
    let subscriber = sent(&bench, &["1"], None).await;
    assert_eq!(again(&bench, subscriber, "1").await, RetryOutcome::Due { subscriber });
    assert_eq!(bench.status(subscriber, "1").await, Status::Pending);
    let job = bench.claim_one(subscriber).await;
    bench.finish(&job, Next::RetryAt(bench.later(60_000))).await;
    bench.pass(10);
    assert_eq!(again(&bench, subscriber, "1").await, RetryOutcome::Due { subscriber });
    assert_eq!(bench.row(subscriber, "1").await.due_at, bench.now);
    let job = bench.claim_one(subscriber).await;
    assert_eq!((job.attempts, job.tries), (1, 0), "the attempts are counted on, the schedule begins anew");
}

async fn ask(bench: &Bench, subscriber: SubscriberNo, event: &str) -> Committed {
    let delivery = bench.row(subscriber, event).await.no;
    bench.commit(Group { asked: vec![(subscriber, delivery)], ..Group::default() }).await
}

async fn what_is_asked_for_comes_before_what_is_due(bench: Bench) {
    let subscriber = sent(&bench, &["1", "2", "3"], None).await;
    let asked = ask(&bench, subscriber, "2").await;
    assert_eq!(bodies(&asked.jobs), ["2"]);
    assert_eq!(bench.status(subscriber, "2").await, Status::Sending);
    assert!(ask(&bench, subscriber, "2").await.jobs.is_empty(), "it is in somebody's hands");
    bench.deliver(&asked.jobs[0]).await;
    assert_eq!(bodies(&bench.claim_all(subscriber).await), ["1", "3"]);
}

async fn what_is_not_due_is_asked_for_in_vain(bench: Bench) {
    let subscriber = sent(&bench, &["1", "2"], Some(7)).await;
    assert!(ask(&bench, subscriber, "2").await.jobs.is_empty(), "it waits in its lane");
    let head = ask(&bench, subscriber, "1").await.jobs.remove(0);
    bench.finish(&head, Next::RetryAt(bench.later(1_000))).await;
    assert!(ask(&bench, subscriber, "1").await.jobs.is_empty(), "it is due later");
}

async fn an_exhausted_one_begins_anew(mut bench: Bench) {
    let subscriber = sent(&bench, &["1"], None).await;
    let first = bench.claim_one(subscriber).await;
    bench.exhaust(&first).await;
    bench.pass(1_000);
    assert_eq!(again(&bench, subscriber, "1").await, RetryOutcome::Due { subscriber });
    let row = bench.row(subscriber, "1").await;
    assert_eq!((row.status, row.finished_at, row.reason), (Status::Retrying, None, None));
    bench.reopen().await;
    let job = bench.claim_one(subscriber).await;
    assert_eq!((job.delivery, job.attempts, job.tries), (first.delivery, 1, 0), "it keeps its id");
    bench.deliver(&job).await;
    let (_, attempts) = bench.store().delivery(PROJECT, job.delivery).await.unwrap().unwrap();
    assert_eq!(attempts.iter().map(|row| row.n).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(bench.store().backlog().await.unwrap().exhausted, 0);
}

async fn dead_letters_are_counted_so_far(bench: Bench) {
    let subscriber = sent(&bench, &["1", "2", "3"], None).await;
    assert_eq!(bench.store().dead_letters(10).await.unwrap(), 0);
    for job in bench.claim_all(subscriber).await {
        bench.exhaust(&job).await;
    }
    assert_eq!(bench.store().dead_letters(10).await.unwrap(), 3);
    assert_eq!(bench.store().dead_letters(2).await.unwrap(), 2);
}

async fn what_is_over_or_in_flight_is_refused(bench: Bench) {
    let subscriber = sent(&bench, &["1"], None).await;
    let job = bench.claim_one(subscriber).await;
    assert_eq!(bench.retry(job.delivery).await, RetryOutcome::Refused(Status::Sending));
    bench.deliver(&job).await;
    assert_eq!(bench.retry(job.delivery).await, RetryOutcome::Refused(Status::Delivered));
    assert!(bench.claim_all(subscriber).await.is_empty());
}

async fn what_is_held_stays_held_but_due(mut bench: Bench) {
    let subscriber = sent(&bench, &["1"], None).await;
    let job = bench.claim_one(subscriber).await;
    bench.finish(&job, Next::RetryAt(bench.later(60_000))).await;
    bench.pause(subscriber).await;
    bench.pass(5);
    assert_eq!(again(&bench, subscriber, "1").await, RetryOutcome::Due { subscriber });
    let row = bench.row(subscriber, "1").await;
    assert_eq!((row.status, row.due_at), (Status::Held, bench.now));
}

async fn what_was_deleted_is_refused(bench: Bench) {
    let subscriber = sent(&bench, &["1", "2"], None).await;
    let (jobs, _) = bench.refill(subscriber, 1).await;
    bench.exhaust(&jobs[0]).await;
    bench.change(Change::DeleteSubscriber { project: PROJECT, no: subscriber }).await;
    assert_eq!(again(&bench, subscriber, "2").await, RetryOutcome::Refused(Status::Cancelled));
    assert_eq!(again(&bench, subscriber, "1").await, RetryOutcome::Refused(Status::Exhausted));
    assert_eq!(bench.status(subscriber, "1").await, Status::Exhausted, "its history stays");
}

async fn what_is_unknown_or_foreign_is_not_found(bench: Bench) {
    let subscriber = sent(&bench, &["1"], None).await;
    let other = bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Mode::Open }).await.no;
    let row = bench.row(subscriber, "1").await;
    assert_eq!(bench.retry(row.no + 100).await, RetryOutcome::NotFound);
    assert_eq!(bench.store().retry(other, row.no, bench.now).await.unwrap(), RetryOutcome::NotFound);
    assert!(bench.store().delivery(other, row.no).await.unwrap().is_none());
}

async fn in_a_lane_the_older_goes_first(bench: Bench) {
    let subscriber = sent(&bench, &["1", "2", "3"], Some(5)).await;
    let one = claim_named(&bench, subscriber, "1").await;
    bench.exhaust(&one).await;
    assert_eq!(again(&bench, subscriber, "1").await, RetryOutcome::Due { subscriber });
    bench.audit().await;
    for name in ["1", "2", "3"] {
        bench.deliver(&claim_named(&bench, subscriber, name).await).await;
    }
}

async fn in_a_lane_nothing_passes_one_in_flight(bench: Bench) {
    let subscriber = sent(&bench, &["1", "2", "3"], Some(5)).await;
    bench.exhaust(&claim_named(&bench, subscriber, "1").await).await;
    let two = claim_named(&bench, subscriber, "2").await;
    assert_eq!(again(&bench, subscriber, "1").await, RetryOutcome::Queued);
    assert!(bench.claim_all(subscriber).await.is_empty());
    bench.audit().await;
    bench.deliver(&two).await;
    for name in ["1", "3"] {
        bench.deliver(&claim_named(&bench, subscriber, name).await).await;
    }
}

async fn in_a_lane_two_queue_behind_one_in_flight(bench: Bench) {
    let subscriber = sent(&bench, &["1", "2", "3"], Some(5)).await;
    bench.exhaust(&claim_named(&bench, subscriber, "1").await).await;
    bench.exhaust(&claim_named(&bench, subscriber, "2").await).await;
    let three = claim_named(&bench, subscriber, "3").await;
    assert_eq!(again(&bench, subscriber, "2").await, RetryOutcome::Queued);
    assert_eq!(again(&bench, subscriber, "1").await, RetryOutcome::Queued);
    assert!(bench.claim_all(subscriber).await.is_empty(), "one of a lane is in flight already");
    bench.audit().await;
    bench.deliver(&three).await;
    for name in ["1", "2"] {
        bench.deliver(&claim_named(&bench, subscriber, name).await).await;
    }
}

async fn in_a_lane_a_failed_attempt_lets_the_older_go(mut bench: Bench) {
    let subscriber = sent(&bench, &["1", "2", "3"], Some(5)).await;
    bench.exhaust(&claim_named(&bench, subscriber, "1").await).await;
    let two = claim_named(&bench, subscriber, "2").await;
    assert_eq!(again(&bench, subscriber, "1").await, RetryOutcome::Queued);
    let committed = bench.finish(&two, Next::RetryAt(bench.later(60_000))).await;
    assert_eq!(committed.spilled, [subscriber], "memory hears of it");
    bench.audit().await;
    bench.deliver(&claim_named(&bench, subscriber, "1").await).await;
    assert!(bench.claim_all(subscriber).await.is_empty(), "the other waits for its time");
    bench.pass(60_000);
    for name in ["2", "3"] {
        bench.deliver(&claim_named(&bench, subscriber, name).await).await;
    }
}

async fn in_a_lane_a_released_claim_lets_the_older_go(bench: Bench) {
    let subscriber = sent(&bench, &["1", "2"], Some(5)).await;
    bench.exhaust(&claim_named(&bench, subscriber, "1").await).await;
    let two = claim_named(&bench, subscriber, "2").await;
    assert_eq!(again(&bench, subscriber, "1").await, RetryOutcome::Queued);
    bench.release(&two).await;
    bench.audit().await;
    for name in ["1", "2"] {
        bench.deliver(&claim_named(&bench, subscriber, name).await).await;
    }
}

async fn in_a_lane_a_younger_one_keeps_its_place(mut bench: Bench) {
    let subscriber = sent(&bench, &["1", "2", "3"], Some(5)).await;
    let one = claim_named(&bench, subscriber, "1").await;
    assert_eq!(again(&bench, subscriber, "3").await, RetryOutcome::Queued);
    bench.finish(&one, Next::RetryAt(bench.later(1_000))).await;
    assert_eq!(again(&bench, subscriber, "2").await, RetryOutcome::Queued);
    assert!(bench.claim_all(subscriber).await.is_empty(), "its lane waits with its head");
    assert_eq!(
        again(&bench, subscriber, "1").await,
        RetryOutcome::Due { subscriber },
        "which may be retried"
    );
    bench.pass(1);
    for name in ["1", "2", "3"] {
        bench.deliver(&claim_named(&bench, subscriber, name).await).await;
    }
}

async fn in_a_lane_who_steps_back_keeps_its_time(mut bench: Bench) {
    let subscriber = sent(&bench, &["1", "2"], Some(5)).await;
    bench.exhaust(&claim_named(&bench, subscriber, "1").await).await;
    let two = claim_named(&bench, subscriber, "2").await;
    let at = bench.later(60_000);
    bench.finish(&two, Next::RetryAt(at)).await;
    assert_eq!(again(&bench, subscriber, "1").await, RetryOutcome::Due { subscriber });
    let one = claim_named(&bench, subscriber, "1").await;
    let committed = bench.finish(&one, Next::Delivered).await;
    assert_eq!(committed.postponed, [(subscriber, at)], "memory hears when");
    assert!(bench.claim_all(subscriber).await.is_empty());
    bench.pass(60_000);
    bench.deliver(&claim_named(&bench, subscriber, "2").await).await;
}
