//! Results of attempts: each says what comes next, and only the holder of the claim is heard (P2, P3: fencing).

use tidegate_core::attempt::{ErrorClass, Phases, ResponseHead};
use tidegate_core::delivery::{Job, Status};
use tidegate_core::retry::Next;

use super::bench::{Bench, PROJECT, claim, draft, finished};
use super::{Case, named};
use crate::Group;

pub(super) fn cases() -> Vec<Case> {
    named!["results":
        delivered_ends_it,
        a_failure_is_due_again_and_counts,
        a_postponement_does_not_count_as_a_failure,
        exhausted_ends_it_visibly,
        attempts_are_kept_as_they_were,
        a_result_is_heard_once,
        a_result_of_an_earlier_claim_is_refused,
        results_of_two_claims_in_one_group,
        a_failure_of_an_earlier_claim_beside_a_later_one,
        a_result_of_an_earlier_life_is_refused,
        nothing_that_an_earlier_life_says_of_a_claim_counts,
        a_result_for_nothing_is_refused,
        a_stale_result_does_not_hide_its_neighbours,
        a_released_claim_is_due_as_before,
        a_release_by_an_earlier_claim_is_ignored,
    ]
}

async fn delivered_ends_it(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let job = bench.claim_one(subscriber).await;
    bench.pass(40);
    let committed = bench.finish(&job, Next::Delivered).await;
    assert!(committed.postponed.is_empty());
    let row = bench.row(subscriber, "1").await;
    assert_eq!((row.status, row.attempts), (Status::Delivered, 1));
    assert_eq!((row.finished_at, row.reason), (Some(bench.now), None));
    bench.pass(86_400_000);
    assert!(bench.claim_all(subscriber).await.is_empty());
    bench.reopen().await;
    assert!(bench.claim_all(subscriber).await.is_empty());
}

async fn a_failure_is_due_again_and_counts(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let mut job = bench.claim_one(subscriber).await;
    for n in 1..=3 {
        let at = bench.later(1_000);
        assert_eq!(bench.finish(&job, Next::RetryAt(at)).await.postponed, [(subscriber, at)]);
        let row = bench.row(subscriber, "1").await;
        assert_eq!((row.status, row.attempts, row.due_at), (Status::Retrying, n, at));
        assert_eq!(row.finished_at, None);
        bench.pass(1_000);
        let again = bench.claim_one(subscriber).await;
        assert_eq!((again.delivery, again.attempts, again.tries, again.token), (job.delivery, n, n, n + 1));
        assert_eq!(again.body, job.body, "the same bytes");
        job = again;
    }
}

async fn a_postponement_does_not_count_as_a_failure(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let job = bench.claim_one(subscriber).await;
    let at = bench.later(500);
    assert_eq!(bench.finish(&job, Next::PostponedTo(at)).await.postponed, [(subscriber, at)]);
    bench.pass(500);
    let again = bench.claim_one(subscriber).await;
    assert_eq!((again.attempts, again.tries), (1, 0));
}

async fn exhausted_ends_it_visibly(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let job = bench.claim_one(subscriber).await;
    bench.pass(7);
    bench.finish(&job, Next::Exhausted("all 6 attempts failed".to_owned())).await;
    let row = bench.row(subscriber, "1").await;
    assert_eq!((row.status, row.finished_at), (Status::Exhausted, Some(bench.now)));
    assert_eq!(row.reason.as_deref(), Some("all 6 attempts failed"));
    bench.pass(86_400_000);
    bench.reopen().await;
    assert!(bench.claim_all(subscriber).await.is_empty());
    assert_eq!(bench.store().backlog().await.unwrap().exhausted, 1);
}

async fn attempts_are_kept_as_they_were(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let mut written = Vec::new();
    for class in ErrorClass::ALL {
        let job = bench.claim_one(subscriber).await;
        let mut result = finished(&job, Next::RetryAt(bench.later(10)), bench.now);
        result.attempt.error = Some(class);
        result.attempt.status = (class == ErrorClass::Status).then_some(503);
        result.attempt.phases = Phases {
            dns_us: Some(1),
            connect_us: None,
            tls_us: Some(0),
            wait_us: Some(u32::MAX),
            total_us: u32::MAX,
        };
        let body = "über \0 quote\" ".to_owned();
        result.attempt.response =
            Some(ResponseHead { content_type: Some("text/plain".to_owned()), body, truncated: true });
        written.push((result.n, result.attempt.clone()));
        bench.commit(Group { results: vec![result], ..Group::default() }).await;
        bench.pass(10);
    }
    let no = bench.row(subscriber, "1").await.no;
    let (row, attempts) = bench.store().delivery(PROJECT, no).await.unwrap().unwrap();
    assert_eq!(row.attempts as usize, ErrorClass::ALL.len());
    let read: Vec<_> = attempts.into_iter().map(|row| (row.n, row.attempt)).collect();
    assert_eq!(read, written);
}

async fn a_result_is_heard_once(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let job = bench.claim_one(subscriber).await;
    let twice = vec![
        finished(&job, Next::Delivered, bench.now),
        finished(&job, Next::Exhausted("no".to_owned()), bench.now),
    ];
    let committed = bench.commit(Group { results: twice, ..Group::default() }).await;
    assert_eq!(committed.stale, 1);
    assert_eq!(bench.finish(&job, Next::RetryAt(bench.now)).await.stale, 1);
    assert_eq!(bench.status(subscriber, "1").await, Status::Delivered);
}

async fn a_result_of_an_earlier_claim_is_refused(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let early = bench.claim_one(subscriber).await;
    bench.release(&early).await;
    let held = bench.claim_one(subscriber).await;
    assert_eq!(held.token, early.token + 1, "every claim has a token of its own");
    let committed = bench.finish(&early, Next::Delivered).await;
    assert_eq!((committed.stale, committed.postponed.len()), (1, 0));
    let (row, attempts) = bench.store().delivery(PROJECT, held.delivery).await.unwrap().unwrap();
    assert_eq!((row.status, attempts.len()), (Status::Sending, 0), "nothing of it is written");
    bench.deliver(&held).await;
}

/// A delivery, claimed twice: both claims.
async fn claimed_twice(bench: &Bench, subscriber: i64) -> [Job; 2] {
    let early = bench.claim_one(subscriber).await;
    bench.release(&early).await;
    let held = bench.claim_one(subscriber).await;
    assert_eq!((held.delivery, held.token), (early.delivery, early.token + 1));
    [early, held]
}

/// A process that comes back from a long pause may have an attempt of its former life under way beside one of its new
/// life, and both may end at once.
async fn results_of_two_claims_in_one_group(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for (id, next, order) in [
        ("1", Next::Delivered, [0, 1]),
        ("2", Next::Delivered, [1, 0]),
        ("3", Next::Exhausted("no".to_owned()), [0, 1]),
        ("4", Next::Exhausted("no".to_owned()), [1, 0]),
    ] {
        bench.send([draft(id).to(subscriber)]).await;
        let jobs = claimed_twice(&bench, subscriber).await;
        let nexts = [next, Next::Delivered];
        let results = order.map(|which| finished(&jobs[which], nexts[which].clone(), bench.now));
        let committed = bench.commit(Group { results: results.into(), ..Group::default() }).await;
        assert_eq!((committed.stale, committed.postponed.len()), (1, 0), "{id}");
        assert_eq!(bench.status(subscriber, id).await, Status::Delivered, "{id}");
    }
}

/// What comes next is said by the later claim alone.
async fn a_failure_of_an_earlier_claim_beside_a_later_one(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for (id, order) in [("1", [0, 1]), ("2", [1, 0])] {
        bench.send([draft(id).to(subscriber)]).await;
        let jobs = claimed_twice(&bench, subscriber).await;
        let at = [bench.later(1_000), bench.later(60_000)];
        let results = order.map(|which| finished(&jobs[which], Next::RetryAt(at[which]), bench.now));
        let committed = bench.commit(Group { results: results.into(), ..Group::default() }).await;
        assert_eq!((committed.stale, committed.postponed), (1, vec![(subscriber, at[1])]), "{id}");
        let row = bench.row(subscriber, id).await;
        assert_eq!((row.status, row.attempts, row.due_at), (Status::Retrying, 1, at[1]), "{id}");
    }
}

async fn a_result_of_an_earlier_life_is_refused(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let before = bench.claim_one(subscriber).await;
    let incarnation = bench.store().incarnation();
    bench.reopen().await;
    assert_ne!(bench.store().incarnation(), incarnation);
    assert_eq!(bench.finish(&before, Next::Delivered).await.stale, 1, "its claim was voided");
    let after = bench.claim_one(subscriber).await;
    assert_eq!(bench.finish(&before, Next::Delivered).await.stale, 1, "another holds the claim");
    assert_eq!(bench.status(subscriber, "1").await, Status::Sending);
    bench.deliver(&after).await;
}

/// In a database that went back in time a claim may have the token of one that was lost.
async fn nothing_that_an_earlier_life_says_of_a_claim_counts(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let job = bench.claim_one(subscriber).await;
    let lost = Job { life: job.life ^ 1, ..job.clone() };
    assert_eq!(bench.finish(&lost, Next::Delivered).await.stale, 1);
    bench.commit(Group { released: vec![claim(&lost)], ..Group::default() }).await;
    let begun = bench.commit(Group { begun: vec![claim(&lost)], ..Group::default() }).await;
    assert_eq!(begun.unsealed, [claim(&lost)]);
    assert_eq!(bench.status(subscriber, "1").await, Status::Sending);
    bench.deliver(&job).await;
}

async fn a_result_for_nothing_is_refused(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let mut job = bench.claim_one(subscriber).await;
    job.delivery += 1_000;
    assert_eq!(bench.finish(&job, Next::Delivered).await.stale, 1);
    bench.release(&job).await;
}

async fn a_stale_result_does_not_hide_its_neighbours(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber), draft("2").to(subscriber)]).await;
    let jobs = bench.claim_all(subscriber).await;
    bench.deliver(&jobs[0]).await;
    let results = jobs.iter().map(|job| finished(job, Next::Delivered, bench.now)).collect();
    let committed = bench.commit(Group { results, ..Group::default() }).await;
    assert_eq!(committed.stale, 1);
    assert_eq!(bench.status(subscriber, "2").await, Status::Delivered);
}

async fn a_released_claim_is_due_as_before(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let due_at = bench.now;
    bench.pass(60_000);
    let job = bench.claim_one(subscriber).await;
    bench.release(&job).await;
    let row = bench.row(subscriber, "1").await;
    assert_eq!((row.status, row.due_at, row.attempts), (Status::Pending, due_at, 0));
    let again = bench.claim_one(subscriber).await;
    assert_eq!((again.attempts, again.tries), (0, 0), "it was not sent, so nothing counts");
}

async fn a_release_by_an_earlier_claim_is_ignored(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let early = bench.claim_one(subscriber).await;
    bench.release(&early).await;
    let held = bench.claim_one(subscriber).await;
    bench.commit(Group { released: vec![claim(&early)], ..Group::default() }).await;
    assert!(bench.claim_all(subscriber).await.is_empty(), "the later claim holds");
    bench.deliver(&held).await;
}
