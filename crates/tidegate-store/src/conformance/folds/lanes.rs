//! Folds in lanes: what waits for its turn takes what comes, until it leaves.

use tidegate_core::delivery::Job;
use tidegate_core::fold::{ClosedBy, Terms};
use tidegate_core::id::SubscriberNo;
use tidegate_core::retry::Next;

use super::super::bench::{Bench, PROJECT, claim, draft, finished, room, submission};
use super::{Case, carried, close, drain, named, open, quiet, seal, told, window};
use crate::{Change, Claim, Finished, Group, RetryOutcome, Seal, SubscriberUpdate, WindowFilter};

pub(super) fn cases() -> Vec<Case> {
    named!["folds":
        what_waits_in_a_lane_takes_what_comes,
        what_has_begun_to_leave_takes_nothing,
        a_full_one_waits_and_the_next_queues_behind_it,
        only_who_holds_a_delivery_can_seal_it,
        two_claims_of_a_delivery_ask_to_seal_it_at_once,
        what_is_given_back_takes_what_comes,
        the_first_that_goes_ahead_stays_ahead_in_its_lane,
        lanes_are_served_in_the_order_their_windows_closed,
        a_failing_fold_holds_its_lane,
        a_failing_fold_that_steps_aside_lets_the_others_pass,
        folds_that_block_step_aside_when_their_owner_says_so,
        a_dead_letter_takes_nothing,
        the_limit_makes_room_in_lanes_too,
        several_windows_of_a_lane_go_one_by_one,
    ]
}

async fn what_waits_in_a_lane_takes_what_comes(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = window(1_000);
    let folded = |id: &str| draft(id).folded_in(subscriber, &terms, "a", 7);
    bench.send([folded("1")]).await;
    bench.pass(1_000);
    close(&bench).await;
    let head = bench.claim_one(subscriber).await;
    assert!(seal(&bench, &head).await);
    bench.send([folded("2")]).await;
    bench.pass(1_000);
    assert_eq!(close(&bench).await.closed.len(), 1);
    assert!(bench.claim_all(subscriber).await.is_empty(), "the first is in flight");
    for id in ["3", "4"] {
        let committed = bench.send([folded(id)]).await;
        assert!(committed.closed.is_empty());
        bench.pass(700);
    }
    assert!(open(&bench).await.is_empty(), "they join what is about to leave");
    let filter = WindowFilter { limit: 9, waiting: true, ..Default::default() };
    let [waiting] = &bench.store().windows(PROJECT, filter).await.unwrap().items[..] else {
        panic!("one waits")
    };
    let second = bench.rows(subscriber).await.iter().map(|row| row.no).find(|no| *no != head.delivery);
    assert_eq!((waiting.count, waiting.closed.map(|(_, by)| by)), (3, Some(ClosedBy::Window)));
    assert_eq!(waiting.delivery, second);
    assert_eq!(bench.rows(subscriber).await.len(), 2, "never two queued");
    bench.audit().await;
    bench.deliver(&head).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "2 3 4")]));
}

async fn what_has_begun_to_leave_takes_nothing(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let folded = |id: &str| draft(id).folded_in(subscriber, &quiet(1_000, 9_000), "a", 7);
    bench.send([folded("1")]).await;
    bench.pass(1_000);
    close(&bench).await;
    let job = bench.claim_one(subscriber).await;
    bench.send([folded("2")]).await;
    assert!(open(&bench).await.is_empty(), "claimed is not yet on its way");
    assert!(seal(&bench, &job).await);
    bench.send([folded("3")]).await;
    assert_eq!(carried(&bench, &job).await.1, "1 2");
    assert!(seal(&bench, &job).await, "again, after a crash of the one who asked");
    let [row] = &open(&bench).await[..] else { panic!("a quiet period begins anew") };
    assert_eq!((row.count, row.due_at), (1, bench.later(1_000)));
    bench.pass(1_000);
    close(&bench).await;
    assert!(bench.claim_all(subscriber).await.is_empty(), "it waits for the one that runs");
    bench.deliver(&job).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Quiet, "3")]));
}

async fn a_full_one_waits_and_the_next_queues_behind_it(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = Terms { max_events: 3, ..window(1_000) };
    let folded = |id: &str| draft(id).folded_in(subscriber, &terms, "a", 7);
    bench.send([folded("1")]).await;
    bench.pass(1_000);
    close(&bench).await;
    // Two join what waits and fill it; the rest gathers anew, fills up and queues.
    bench.send(["2", "3", "4", "5", "6", "7"].map(folded)).await;
    bench.audit().await;
    let rows = bench.rows(subscriber).await;
    assert_eq!(rows.iter().map(|row| row.events.len()).collect::<Vec<_>>(), [3, 3]);
    assert_eq!(open(&bench).await[0].count, 1);
    let expected = told(&[(ClosedBy::Window, "1 2 3"), (ClosedBy::MaxEvents, "4 5 6")]);
    assert_eq!(drain(&bench, subscriber).await, expected);
}

async fn only_who_holds_a_delivery_can_seal_it(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let folded = |id: &str| draft(id).folded_in(subscriber, &window(1_000), "a", 7);
    bench.send([folded("1")]).await;
    bench.pass(1_000);
    close(&bench).await;
    let job = bench.claim_one(subscriber).await;
    let window = job.fold.expect("it is a fold");
    for claim in [
        Claim { token: job.token + 1, ..Claim::of(&job) },
        Claim { delivery: job.delivery + 1, ..Claim::of(&job) },
        Claim { nonce: job.nonce ^ 1, ..Claim::of(&job) },
    ] {
        let seals = vec![Seal { project: job.project, window, claim }];
        let committed = bench.commit(Group { seals, ..Group::default() }).await;
        assert_eq!(committed.unsealed, [claim]);
    }
    bench.reopen().await;
    assert!(!seal(&bench, &job).await, "the life that claimed it is over");
    bench.send([folded("2")]).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "1 2")]));
}

async fn two_claims_of_a_delivery_ask_to_seal_it_at_once(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for (id, order) in [("1", [0, 1]), ("2", [1, 0])] {
        bench.send([draft(id).folded_in(subscriber, &window(1_000), id, 7)]).await;
        bench.pass(1_000);
        close(&bench).await;
        let early = bench.claim_one(subscriber).await;
        bench.release(&early).await;
        let jobs = [early, bench.claim_one(subscriber).await];
        let claims = jobs.each_ref().map(claim);
        let seal = |which: usize| Seal {
            project: PROJECT,
            window: jobs[which].fold.expect("it is a fold"),
            claim: claims[which],
        };
        let committed = bench.commit(Group { seals: order.map(seal).into(), ..Group::default() }).await;
        assert_eq!(committed.unsealed, [claims[0]], "{id}");
        bench.deliver(&jobs[1]).await;
    }
}

async fn what_is_given_back_takes_what_comes(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let folded = |id: &str| draft(id).folded_in(subscriber, &window(1_000), "a", 7);
    bench.send([folded("1")]).await;
    bench.pass(1_000);
    close(&bench).await;
    let job = bench.claim_one(subscriber).await;
    bench.release(&job).await;
    bench.send([folded("2")]).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "1 2")]));
}

async fn the_first_that_goes_ahead_stays_ahead_in_its_lane(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = Terms { leading: true, ..window(1_000) };
    let folded = |id: &str| draft(id).folded_in(subscriber, &terms, "a", 7);
    bench.send([folded("1"), folded("2")]).await;
    bench.pass(1_000);
    close(&bench).await;
    let ahead = bench.claim_one(subscriber).await;
    assert_eq!(carried(&bench, &ahead).await, (ClosedBy::Leading, "1".to_owned()));
    bench.send([folded("3")]).await;
    bench.deliver(&ahead).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "2 3")]));
}

async fn lanes_are_served_in_the_order_their_windows_closed(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for (id, ms) in [("late", 3_000), ("first", 1_000), ("second", 2_000)] {
        let lane = i64::try_from(ms).unwrap_or(1);
        bench.send([draft(id).folded_in(subscriber, &window(ms), id, lane)]).await;
    }
    bench.pass(5_000);
    close(&bench).await;
    let order: Vec<String> = drain(&bench, subscriber).await.into_iter().map(|(_, ids)| ids).collect();
    assert_eq!(order, ["first", "second", "late"]);
}

async fn a_failing_fold_holds_its_lane(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let folded = |id: &str, key: &str, lane| draft(id).folded_in(subscriber, &window(1_000), key, lane);
    bench.send([folded("1", "a", 1), folded("x", "b", 2)]).await;
    bench.pass(1_000);
    close(&bench).await;
    let jobs = bench.claim_all(subscriber).await;
    assert_eq!(jobs.len(), 2);
    for job in &jobs {
        assert!(seal(&bench, job).await);
    }
    bench.finish(&jobs[0], Next::RetryAt(bench.later(60_000))).await;
    bench.deliver(&jobs[1]).await;
    bench.send([folded("2", "a", 1), folded("y", "b", 2)]).await;
    bench.pass(1_000);
    close(&bench).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "y")]));
    bench.pass(60_000);
    let again = bench.claim_one(subscriber).await;
    assert_eq!((again.delivery, again.attempts, again.fold), (jobs[0].delivery, 1, jobs[0].fold));
    assert_eq!(carried(&bench, &again).await.1, "1", "what was sent is sent again");
    bench.deliver(&again).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "2")]));
}

/// A head has left and failed too often, one gathered behind it and waits, and another one gathers.
async fn a_failing_fold_that_steps_aside_lets_the_others_pass(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let folded = |id: &str| draft(id).folded_in(subscriber, &window(1_000), "a", 7);
    let head = failing_head(&mut bench, subscriber).await;
    let later = bench.later(60_000);
    let aside = Finished { steps_aside: true, ..finished(&head, Next::RetryAt(later), bench.now) };
    let submissions = vec![submission([folded("3")])];
    let committed = bench.commit(Group { results: vec![aside], submissions, ..Group::default() }).await;
    assert_eq!(committed.spilled, [subscriber], "the next is due");
    bench.audit().await;
    assert_eq!(
        drain(&bench, subscriber).await,
        told(&[(ClosedBy::Window, "2 3")]),
        "with what came till it left"
    );
    bench.send([folded("4")]).await;
    bench.pass(1_000);
    close(&bench).await;
    assert_eq!(
        drain(&bench, subscriber).await,
        told(&[(ClosedBy::Window, "4")]),
        "it never joins the one aside"
    );
    bench.now = later;
    let late = bench.claim_one(subscriber).await;
    assert_eq!((late.delivery, late.fold, late.lane), (head.delivery, head.fold, None));
    assert!(late.out_of_order && bench.row(subscriber, "1").await.out_of_order);
    bench.send([folded("5")]).await;
    assert!(seal(&bench, &late).await, "it has left before");
    assert_eq!(
        carried(&bench, &late).await,
        (ClosedBy::Window, "1".to_owned()),
        "what was sent is sent again"
    );
    bench.pass(1_000);
    close(&bench).await;
    let next = bench.claim_one(subscriber).await;
    assert!(seal(&bench, &next).await, "outside its lane the late one holds nobody up");
    assert_eq!(carried(&bench, &next).await.1, "5");
    bench.deliver(&late).await;
    bench.deliver(&next).await;
}

/// The owner says so while the head waits for its next try.
async fn folds_that_block_step_aside_when_their_owner_says_so(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let head = failing_head(&mut bench, subscriber).await;
    bench.finish(&head, Next::RetryAt(bench.later(60_000))).await;
    let skip = |failures| {
        let update = SubscriberUpdate { skip_after: Some(failures), ..SubscriberUpdate::default() };
        Change::UpdateSubscriber { project: PROJECT, no: subscriber, update }
    };
    bench.change(skip(2)).await;
    assert!(drain(&bench, subscriber).await.is_empty(), "it has failed once");
    bench.change(skip(1)).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "2")]));
    bench.pass(60_000);
    let late = bench.claim_one(subscriber).await;
    assert_eq!((late.delivery, late.lane, late.out_of_order), (head.delivery, None, true));
    assert_eq!(carried(&bench, &late).await.1, "1");
    bench.deliver(&late).await;
}

/// A fold that has left and is in hand, with another one that waits behind it.
async fn failing_head(bench: &mut Bench, subscriber: SubscriberNo) -> Job {
    let folded = |id: &str| draft(id).folded_in(subscriber, &window(1_000), "a", 7);
    bench.send([folded("1")]).await;
    bench.pass(1_000);
    close(bench).await;
    let head = bench.claim_one(subscriber).await;
    assert!(seal(bench, &head).await && !head.out_of_order);
    bench.send([folded("2")]).await;
    bench.pass(1_000);
    close(bench).await;
    assert!(bench.claim_all(subscriber).await.is_empty(), "the next waits for it");
    head
}

async fn a_dead_letter_takes_nothing(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let folded = |id: &str| draft(id).folded_in(subscriber, &window(1_000), "a", 7);
    bench.send([folded("1")]).await;
    bench.pass(1_000);
    close(&bench).await;
    let job = bench.claim_one(subscriber).await;
    assert!(seal(&bench, &job).await);
    bench.exhaust(&job).await;
    bench.send([folded("2")]).await;
    assert_eq!(open(&bench).await.len(), 1);
    bench.pass(1_000);
    close(&bench).await;
    assert_eq!(bench.retry(job.delivery).await, RetryOutcome::Due { subscriber }, "it is the older one");
    bench.audit().await;
    let expected = told(&[(ClosedBy::Window, "1"), (ClosedBy::Window, "2")]);
    assert_eq!(drain(&bench, subscriber).await, expected);
}

async fn the_limit_makes_room_in_lanes_too(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.store().limit_windows(2);
    let folded = |id: &str, key: &str, lane| draft(id).folded_in(subscriber, &window(1_000), key, lane);
    bench.send([folded("1", "a", 1)]).await;
    bench.pass(1_000);
    close(&bench).await;
    bench.send([folded("2", "b", 2)]).await;
    bench.send([folded("3", "c", 3)]).await;
    assert_eq!(open(&bench).await.len(), 2, "the one that waits makes room: it takes nothing more");
    bench.send([folded("4", "a", 1)]).await;
    assert_eq!(open(&bench).await.len(), 2);
    bench.pass(1_000);
    close(&bench).await;
    let mut all: Vec<String> = drain(&bench, subscriber).await.into_iter().map(|(_, ids)| ids).collect();
    all.sort_unstable();
    assert_eq!(all, ["1", "2", "3", "4"]);
}

async fn several_windows_of_a_lane_go_one_by_one(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let folded = |id: &str, key: &str, ms| draft(id).folded_in(subscriber, &window(ms), key, 7);
    bench.send([folded("b", "b", 2_000), folded("a", "a", 1_000), draft("alone").lane(subscriber, 7)]).await;
    bench.pass(2_000);
    let alone = bench.claim_one(subscriber).await;
    let results = vec![finished(&alone, Next::Delivered, bench.now)];
    let group = Group { results, close: 9, room: room(9, &[subscriber]), ..Group::default() };
    let committed = bench.commit(group).await;
    bench.audit().await;
    let [job] = &committed.jobs[..] else { panic!("one of a lane goes, not {:?}", committed.jobs) };
    assert_eq!(carried(&bench, job).await.1, "a", "what closed first");
    assert!(seal(&bench, job).await);
    bench.deliver(job).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "b")]));
}
