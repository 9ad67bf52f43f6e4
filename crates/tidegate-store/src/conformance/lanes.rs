//! Lanes: the order of acceptance is the order of delivery, one at a time, and a failing head holds its own lane
//! only (P5).

use tidegate_core::delivery::{Job, Status};
use tidegate_core::id::SubscriberNo;
use tidegate_core::retry::Next;

use super::bench::{Bench, Draft, PROJECT, bodies, draft, finished, room};
use super::{Case, named};
use crate::{Change, Finished, Group, Refill, SubscriberUpdate};

pub(super) fn cases() -> Vec<Case> {
    named!["lanes":
        only_the_head_is_claimed,
        the_next_goes_when_the_head_is_delivered,
        the_next_goes_when_the_head_is_exhausted,
        a_retry_keeps_the_head_at_the_head,
        a_failing_head_holds_its_own_lane_only,
        a_head_that_steps_aside_lets_the_others_pass,
        results_of_two_claims_of_a_head_in_one_group,
        only_the_claim_that_holds_lets_a_head_step_aside,
        heads_that_block_step_aside_when_their_owner_says_so,
        the_next_goes_straight_to_memory_if_there_is_room,
        two_of_a_lane_in_one_group_queue_up,
        a_result_and_a_new_event_of_one_lane_in_one_group,
        a_released_head_stays_the_head,
        a_lane_belongs_to_its_subscriber,
        a_lane_that_ran_empty_opens_again,
        order_holds_through_room_spills_and_restarts,
    ]
}

fn laned(subscriber: SubscriberNo, lane: i64, names: &[&str]) -> Vec<Draft> {
    names.iter().map(|name| draft(*name).saying((*name).to_owned()).lane(subscriber, lane)).collect()
}

async fn only_the_head_is_claimed(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for name in ["a1", "a2", "a3"] {
        bench.send(laned(subscriber, 7, &[name])).await;
    }
    bench.send(laned(subscriber, -8, &["b1", "b2"])).await;
    let jobs = bench.claim_all(subscriber).await;
    assert_eq!(bodies(&jobs), ["a1", "b1"]);
    assert_eq!(jobs.iter().map(|job| job.lane).collect::<Vec<_>>(), [Some(7), Some(-8)]);
    assert_eq!(bench.store().due().await.unwrap(), [], "those behind are not due");
    for (event, first) in
        [("a2", Some(&jobs[0])), ("a3", Some(&jobs[0])), ("b2", Some(&jobs[1])), ("a1", None)]
    {
        let no = bench.row(subscriber, event).await.no;
        let (row, _) = bench.store().delivery(PROJECT, no).await.unwrap().expect("it is there");
        assert_eq!(row.behind, first.map(Job::key), "{event}");
        let event =
            bench.events(PROJECT).await.into_iter().find(|found| found.id == event).expect("it is kept");
        let trace = bench.store().trace(PROJECT, event.seq).await.unwrap();
        assert_eq!(trace.deliveries[0].behind, row.behind, "and in its trace");
    }
}

async fn a_head_that_steps_aside_lets_the_others_pass(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send(laned(subscriber, 7, &["a1", "a2", "a3"])).await;
    let head = bench.claim_all(subscriber).await.remove(0);
    assert!(!head.out_of_order);
    let later = bench.now.plus(std::time::Duration::from_secs(60));
    let aside = Finished { steps_aside: true, ..finished(&head, Next::RetryAt(later), bench.now) };
    bench.commit(Group { results: vec![aside], ..Group::default() }).await;
    assert_eq!(drain(&bench, subscriber).await, ["a2", "a3"], "in order, without waiting for it");
    bench.now = later;
    let late = bench.claim_all(subscriber).await.remove(0);
    assert_eq!(
        (bodies(std::slice::from_ref(&late)), late.lane, late.out_of_order),
        (vec!["a1".to_owned()], None, true)
    );
    let (row, _) = bench.store().delivery(super::bench::PROJECT, late.delivery).await.unwrap().unwrap();
    assert!(row.out_of_order && row.attempts == 1);
    bench.deliver(&late).await;
}

/// The head of a lane, claimed twice.
async fn claimed_twice(bench: &Bench, subscriber: SubscriberNo) -> [Job; 2] {
    let early = bench.claim_one(subscriber).await;
    bench.release(&early).await;
    let held = bench.claim_one(subscriber).await;
    assert_eq!((held.delivery, held.token), (early.delivery, early.token + 1));
    [early, held]
}

async fn results_of_two_claims_of_a_head_in_one_group(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for (lane, names, order) in [(7, ["a1", "a2"], [0, 1]), (8, ["b1", "b2"], [1, 0])] {
        bench.send(laned(subscriber, lane, &names)).await;
        let jobs = claimed_twice(&bench, subscriber).await;
        let results = order.map(|which| finished(&jobs[which], Next::Delivered, bench.now));
        let committed = bench.commit(Group { results: results.into(), ..Group::default() }).await;
        assert_eq!(committed.stale, 1);
        assert_eq!(drain(&bench, subscriber).await, names[1..], "its lane goes on");
    }
}

async fn only_the_claim_that_holds_lets_a_head_step_aside(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send(laned(subscriber, 7, &["a1", "a2"])).await;
    let jobs = claimed_twice(&bench, subscriber).await;
    let later = bench.later(60_000);
    let failed = jobs.each_ref().map(|job| finished(job, Next::RetryAt(later), bench.now));
    let [early, held] = failed;
    let results = vec![Finished { steps_aside: true, ..early }, held];
    assert_eq!(bench.commit(Group { results, ..Group::default() }).await.stale, 1);
    let row = bench.row(subscriber, "a1").await;
    assert!(!row.out_of_order && row.lane.is_some(), "{row:?}");
    assert!(bench.claim_all(subscriber).await.is_empty(), "it holds its lane");
}

/// The head of lane 1 has failed twice, those of lanes 2 and 3 once; that of lane 4 is in flight, and one is in no lane.
async fn heads_that_block_step_aside_when_their_owner_says_so(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for (lane, names) in [(1, ["a1", "a2"]), (2, ["b1", "b2"]), (3, ["c1", "c2"])] {
        bench.send(laned(subscriber, lane, &names)).await;
    }
    bench.send([draft("free").saying("free").to(subscriber)]).await;
    for (failing, then) in [(vec!["a1"], 1_000), (vec!["a1", "b1", "c1", "free"], 3_600_000)] {
        for job in bench.claim_all(subscriber).await {
            if failing.contains(&bodies(std::slice::from_ref(&job))[0].as_str()) {
                bench.finish(&job, Next::RetryAt(bench.later(then))).await;
            } else {
                bench.release(&job).await;
            }
        }
        bench.pass(1_000);
    }
    bench.send(laned(subscriber, 4, &["d1", "d2"])).await;
    let flying = bench.claim_one(subscriber).await;
    let skip = |failures| {
        let update = SubscriberUpdate { skip_after: Some(failures), ..SubscriberUpdate::default() };
        Change::UpdateSubscriber { project: PROJECT, no: subscriber, update }
    };
    bench.change(skip(3)).await;
    assert!(bench.claim_all(subscriber).await.is_empty(), "nobody has failed so often");
    bench.change(skip(2)).await;
    bench.audit().await;
    assert_eq!(drain(&bench, subscriber).await, ["a2"], "at once, although its head is tried in an hour");
    let aside = bench.row(subscriber, "a1").await;
    assert!(aside.out_of_order && aside.lane.is_none() && aside.status == Status::Retrying, "{aside:?}");
    let waiting = bench.row(subscriber, "b1").await;
    assert!(!waiting.out_of_order, "{waiting:?}");
    bench.deliver(&flying).await;
    bench.pass(3_600_000);
    let mut rest = drain(&bench, subscriber).await;
    rest.sort();
    assert_eq!(rest, ["a1", "b1", "b2", "c1", "c2", "d2", "free"]);
}

async fn drain(bench: &Bench, subscriber: SubscriberNo) -> Vec<String> {
    let mut order = Vec::new();
    loop {
        let jobs = bench.claim_all(subscriber).await;
        if jobs.is_empty() {
            return order;
        }
        for job in &jobs {
            bench.deliver(job).await;
        }
        order.extend(bodies(&jobs));
    }
}

async fn the_next_goes_when_the_head_is_delivered(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send(laned(subscriber, 1, &["1", "2", "3"])).await;
    bench.pass(1_000);
    let head = bench.claim_one(subscriber).await;
    let committed = bench.finish(&head, Next::Delivered).await;
    assert_eq!(committed.spilled, [subscriber], "memory hears of it");
    assert_eq!(drain(&bench, subscriber).await, ["2", "3"]);
}

async fn the_next_goes_when_the_head_is_exhausted(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send(laned(subscriber, 1, &["1", "2", "3"])).await;
    bench.exhaust(&bench.claim_one(subscriber).await).await;
    assert_eq!(drain(&bench, subscriber).await, ["2", "3"]);
}

async fn a_retry_keeps_the_head_at_the_head(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send(laned(subscriber, 1, &["1", "2"])).await;
    for next in [Next::RetryAt(bench.later(1_000)), Next::PostponedTo(bench.later(2_000))] {
        let head = bench.claim_one(subscriber).await;
        assert_eq!(bodies(std::slice::from_ref(&head)), ["1"]);
        let committed = bench.finish(&head, next).await;
        assert_eq!((committed.postponed.len(), committed.spilled.len()), (1, 0));
        bench.pass(999);
        assert!(bench.claim_all(subscriber).await.is_empty(), "the lane waits with its head");
        bench.pass(1);
    }
    assert_eq!(drain(&bench, subscriber).await, ["1", "2"]);
}

async fn a_failing_head_holds_its_own_lane_only(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send(laned(subscriber, 1, &["a1", "a2"])).await;
    bench.send(laned(subscriber, 2, &["b1", "b2", "b3"])).await;
    bench.send([draft("free").saying("free").to(subscriber)]).await;
    let jobs = bench.claim_all(subscriber).await;
    assert_eq!(bodies(&jobs), ["a1", "b1", "free"]);
    bench.finish(&jobs[0], Next::RetryAt(bench.later(60_000))).await;
    bench.deliver(&jobs[1]).await;
    bench.deliver(&jobs[2]).await;
    assert_eq!(drain(&bench, subscriber).await, ["b2", "b3"]);
    bench.pass(60_000);
    assert_eq!(drain(&bench, subscriber).await, ["a1", "a2"]);
}

async fn the_next_goes_straight_to_memory_if_there_is_room(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let committed = bench.send_into(room(9, &[subscriber]), laned(subscriber, 1, &["1", "2", "3"])).await;
    assert_eq!(bodies(&committed.jobs), ["1"], "room or not, only the head goes");
    assert!(committed.spilled.is_empty(), "those that wait in a lane are not due");
    let results = vec![finished(&committed.jobs[0], Next::Delivered, bench.now)];
    let group = Group { results, room: room(9, &[subscriber]), ..Group::default() };
    let committed = bench.commit(group).await;
    assert_eq!(bodies(&committed.jobs), ["2"]);
    assert_eq!((committed.jobs[0].token, committed.jobs[0].attempts), (1, 0));
    bench.deliver(&committed.jobs[0]).await;
    assert_eq!(drain(&bench, subscriber).await, ["3"]);
}

async fn two_of_a_lane_in_one_group_queue_up(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let submissions = vec![
        super::bench::submission(laned(subscriber, 1, &["1", "2"])),
        super::bench::submission(laned(subscriber, 1, &["3"])),
    ];
    let refills = vec![Refill { subscriber, jobs: 10 }];
    let group = Group { submissions, refills, room: room(10, &[]), ..Group::default() };
    let committed = bench.commit(group).await;
    assert_eq!(bodies(&committed.jobs), ["1"]);
    bench.deliver(&committed.jobs[0]).await;
    assert_eq!(drain(&bench, subscriber).await, ["2", "3"]);
}

async fn a_result_and_a_new_event_of_one_lane_in_one_group(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send(laned(subscriber, 1, &["1"])).await;
    let head = bench.claim_one(subscriber).await;
    let group = Group {
        results: vec![finished(&head, Next::Delivered, bench.now)],
        submissions: vec![super::bench::submission(laned(subscriber, 1, &["2", "3"]))],
        room: room(9, &[subscriber]),
        ..Group::default()
    };
    let committed = bench.commit(group).await;
    assert_eq!(bodies(&committed.jobs), ["2"], "results come first: the lane is free");
}

async fn a_released_head_stays_the_head(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send(laned(subscriber, 1, &["1", "2"])).await;
    bench.release(&bench.claim_one(subscriber).await).await;
    assert_eq!(drain(&bench, subscriber).await, ["1", "2"]);
}

async fn a_lane_belongs_to_its_subscriber(bench: Bench) {
    let (a, b) = (bench.subscriber("a").await, bench.subscriber("b").await);
    bench.send([draft("1").lane(a, 1).lane(b, 1), draft("2").lane(a, 1).lane(b, 1)]).await;
    let held: Job = bench.claim_one(a).await;
    assert_eq!(drain(&bench, b).await.len(), 2, "a's head in flight is nothing to b");
    bench.deliver(&held).await;
    bench.change(Change::DeleteSubscriber { project: 1, no: b }).await;
    assert_eq!(drain(&bench, a).await.len(), 1);
}

async fn a_lane_that_ran_empty_opens_again(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for round in 0..3 {
        let name = format!("r{round}");
        bench.send(laned(subscriber, 1, &[&name])).await;
        assert_eq!(drain(&bench, subscriber).await, [name]);
    }
}

async fn order_holds_through_room_spills_and_restarts(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let names: Vec<String> = (0..40).map(|n| format!("e{n:02}")).collect();
    let mut order: Vec<String> = Vec::new();
    for (round, chunk) in names.chunks(4).enumerate() {
        let drafts = chunk.iter().flat_map(|name| laned(subscriber, 1, &[name]));
        let mut jobs = bench.send_into(room(round % 3, &[subscriber]), drafts).await.jobs;
        if round % 4 == 3 {
            bench.reopen().await;
            jobs.clear();
        }
        jobs.extend(bench.claim_all(subscriber).await);
        assert!(jobs.len() <= 1, "one in flight");
        for job in &jobs {
            bench.deliver(job).await;
        }
        order.extend(bodies(&jobs));
        bench.audit().await;
    }
    order.extend(drain(&bench, subscriber).await);
    assert_eq!(order, names);
}
