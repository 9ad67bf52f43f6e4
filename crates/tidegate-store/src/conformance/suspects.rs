//! Suspects: what many processes held when they ended is begun by a commit of its own before it is sent, and set aside if the
//! process ends then. What only waits in memory is never set aside (P2).

use tidegate_core::delivery::Status;
use tidegate_core::limits::CLAIMS_LOST_MAX;
use tidegate_core::retry::Next;

use super::bench::{Bench, bodies, claim, draft, finished, submission};
use super::{Case, named};
use crate::{Finished, Group, RetryOutcome};

pub(super) fn cases() -> Vec<Case> {
    named!["suspects":
        what_was_never_begun_is_due_after_any_number_of_ends,
        a_suspect_that_was_begun_is_set_aside_when_its_process_ends,
        its_lane_goes_on_without_it,
        a_result_of_a_suspect_counts_and_clears_it,
        a_suspect_that_was_begun_and_given_back_is_due,
        nothing_is_begun_without_its_claim,
        each_suspect_of_a_group_is_begun_by_itself,
        a_suspect_is_begun_although_something_else_can_not_be_written,
    ]
}

async fn what_was_never_begun_is_due_after_any_number_of_ends(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber), draft("2").lane(subscriber, 1)]).await;
    bench.crash(subscriber, CLAIMS_LOST_MAX + 4).await;
    bench.audit().await;
    for name in ["1", "2"] {
        let row = bench.row(subscriber, name).await;
        assert_eq!((row.status, row.attempts, row.reason), (Status::Pending, 0, None), "{name}");
    }
    let jobs = bench.claim_all(subscriber).await;
    assert!(jobs.len() == 2 && jobs.iter().all(|job| job.is_suspect));
    for job in &jobs {
        bench.deliver(job).await;
    }
}

async fn a_suspect_that_was_begun_is_set_aside_when_its_process_ends(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("poison").to(subscriber), draft("waits").to(subscriber)]).await;
    bench.crash(subscriber, CLAIMS_LOST_MAX - 1).await;
    assert!(bench.claim_all(subscriber).await.iter().all(|job| !job.is_suspect));
    bench.reopen().await;
    let jobs = bench.claim_all(subscriber).await;
    assert!(jobs.len() == 2 && jobs.iter().all(|job| job.is_suspect));
    assert!(bench.begin(&jobs[0]).await);
    assert_eq!(bench.status(subscriber, "poison").await, Status::Sending);
    bench.pass(77);
    bench.reopen().await;
    bench.audit().await;
    let row = bench.row(subscriber, "poison").await;
    assert_eq!((row.status, row.attempts, row.finished_at), (Status::Exhausted, 0, Some(bench.now)));
    let reason = row.reason.unwrap();
    for part in [&CLAIMS_LOST_MAX.to_string()[..], "while sending it", "retry"] {
        assert!(reason.contains(part), "no {part} in {reason}");
    }
    assert_eq!(bench.claim_one(subscriber).await.delivery, jobs[1].delivery, "what only waited is due");
    // A manual retry resets the count.
    assert_eq!(bench.retry(row.no).await, RetryOutcome::Due { subscriber });
    bench.crash(subscriber, 1).await;
    let retried = bench.claim_all(subscriber).await.into_iter().find(|job| job.delivery == row.no).unwrap();
    assert!(!retried.is_suspect);
    bench.deliver(&retried).await;
}

async fn its_lane_goes_on_without_it(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let names = ["poison", "2", "3"];
    bench.send(names.map(|name| draft(name).saying(name).lane(subscriber, 1))).await;
    bench.crash(subscriber, CLAIMS_LOST_MAX).await;
    assert!(bench.begin(&bench.claim_one(subscriber).await).await);
    bench.reopen().await;
    assert_eq!(bench.status(subscriber, "poison").await, Status::Exhausted);
    for name in ["2", "3"] {
        let job = bench.claim_one(subscriber).await;
        assert_eq!(bodies(std::slice::from_ref(&job)), [name]);
        bench.deliver(&job).await;
    }
}

async fn a_result_of_a_suspect_counts_and_clears_it(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    for attempts in 1..=3 {
        bench.crash(subscriber, CLAIMS_LOST_MAX).await;
        let job = bench.claim_one(subscriber).await;
        assert!(job.is_suspect && bench.begin(&job).await);
        assert_eq!(bench.finish(&job, Next::RetryAt(bench.now)).await.stale, 0);
        let row = bench.row(subscriber, "1").await;
        assert_eq!((row.status, row.attempts), (Status::Retrying, attempts));
        assert!(!bench.claim_one(subscriber).await.is_suspect);
        bench.reopen().await;
    }
    let job = bench.claim_one(subscriber).await;
    bench.deliver(&job).await;
    assert_eq!(bench.status(subscriber, "1").await, Status::Delivered);
}

async fn a_suspect_that_was_begun_and_given_back_is_due(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    bench.crash(subscriber, CLAIMS_LOST_MAX).await;
    let job = bench.claim_one(subscriber).await;
    assert!(bench.begin(&job).await);
    bench.release(&job).await;
    let again = bench.claim_one(subscriber).await;
    assert!(again.is_suspect, "to give it back clears nothing");
    bench.reopen().await;
    let row = bench.row(subscriber, "1").await;
    assert_eq!((row.status, row.attempts), (Status::Pending, 0), "and it was not begun since");
}

async fn nothing_is_begun_without_its_claim(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    bench.crash(subscriber, CLAIMS_LOST_MAX).await;
    let former = bench.claim_one(subscriber).await;
    bench.reopen().await;
    assert!(!bench.begin(&former).await, "its process is no more");
    let job = bench.claim_one(subscriber).await;
    assert!(!bench.begin(&former).await, "it was claimed again");
    let mut other = job.clone();
    other.nonce = job.nonce.wrapping_add(1);
    assert!(!bench.begin(&other).await, "it is another delivery");
    bench.reopen().await;
    assert_eq!(bench.status(subscriber, "1").await, Status::Pending);
    let job = bench.claim_one(subscriber).await;
    bench.release(&job).await;
    assert!(!bench.begin(&job).await, "it was given back");
    bench.reopen().await;
    assert_eq!(bench.status(subscriber, "1").await, Status::Pending);
}

async fn each_suspect_of_a_group_is_begun_by_itself(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let names = ["1", "2", "3", "4"];
    bench.send(names.map(|name| draft(name).saying(name).to(subscriber))).await;
    bench.crash(subscriber, CLAIMS_LOST_MAX).await;
    let jobs = bench.claim_all(subscriber).await;
    bench.release(&jobs[1]).await;
    let begun = [3, 1, 0].map(|which: usize| claim(&jobs[which])).to_vec();
    let committed = bench.commit(Group { begun, ..Group::default() }).await;
    assert_eq!(committed.unsealed, [claim(&jobs[1])]);
    bench.reopen().await;
    let mut left = bodies(&bench.claim_all(subscriber).await);
    left.sort_unstable();
    assert_eq!(left, ["2", "3"]);
}

/// Such a group is written piece by piece.
async fn a_suspect_is_begun_although_something_else_can_not_be_written(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for is_result_bad in [false, true] {
        let name = format!("suspect{is_result_bad}");
        bench.send([draft(&name).to(subscriber)]).await;
        bench.crash(subscriber, CLAIMS_LOST_MAX).await;
        let suspect = bench.claim_one(subscriber).await;
        let mut group = Group { begun: vec![claim(&suspect)], ..Group::default() };
        if is_result_bad {
            bench.send([draft("failed").to(subscriber)]).await;
            let first = bench.claim_one(subscriber).await;
            bench.finish(&first, Next::RetryAt(bench.now)).await;
            let again = bench.claim_one(subscriber).await;
            group.results = vec![Finished { n: 1, ..finished(&again, Next::RetryAt(bench.now), bench.now) }];
        } else {
            group.submissions = vec![submission([draft("bad").to(subscriber).to(subscriber)])];
        }
        let committed = bench.commit(group).await;
        assert_eq!((committed.unsealed, committed.refused), (vec![], u64::from(is_result_bad)));
        bench.reopen().await;
        assert_eq!(bench.status(subscriber, &name).await, Status::Exhausted, "it was written");
    }
}
