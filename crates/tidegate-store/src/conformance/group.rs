//! The group commit: wholly or not at all, and nobody pays for a neighbour (P8).

use std::sync::Arc;

use tidegate_core::catalog::Mode;
use tidegate_core::delivery::Status;
use tidegate_core::retry::Next;

use super::bench::{Bench, PLENTY, PROJECT, claim, draft, finished, room, statuses, submission};
use super::{Case, named};
use crate::UnitStatus::{Accepted, Duplicate};
use crate::{Change, Error, Finished, Group, Refill, Room};

pub(super) fn cases() -> Vec<Case> {
    named!["group":
        an_event_and_its_deliveries_commit_together,
        a_bad_submission_fails_alone,
        a_bad_unit_fails_its_whole_submission,
        a_bad_submission_does_not_strand_spilled_work,
        a_bad_submission_does_not_widen_the_room,
        a_result_that_can_not_be_written_is_left_out_alone,
        a_stale_configuration_refuses_everything,
        a_group_without_events_needs_no_version,
        an_empty_group_is_fine,
    ]
}

async fn an_event_and_its_deliveries_commit_together(mut bench: Bench) {
    let (a, b) = (bench.subscriber("a").await, bench.subscriber("b").await);
    bench.send([draft("1").to(a).to(b), draft("2").to(b), draft("3")]).await;
    bench.reopen().await;
    let version = bench.version().await;
    let events = bench.events(PROJECT).await;
    assert!(events.iter().all(|event| event.version == version && event.accepted_at == bench.now));
    for (subscriber, expected) in [(a, vec!["1"]), (b, vec!["1", "2"])] {
        let rows = bench.rows(subscriber).await;
        assert_eq!(rows.iter().map(|row| row.events[0].as_str()).collect::<Vec<_>>(), expected);
        assert!(rows.iter().all(|row| row.status == Status::Pending && row.created_at == bench.now));
    }
}

/// The same subscriber twice for one event breaks the rule that an event reaches a subscriber in one delivery.
async fn a_bad_submission_fails_alone(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let bad = draft("bad").to(subscriber).to(subscriber);
    let results = {
        bench.send([draft("0").to(subscriber)]).await;
        let job = bench.claim_one(subscriber).await;
        vec![finished(&job, Next::Delivered, bench.now)]
    };
    let drafts = [draft("1").to(subscriber), bad, draft("1").to(subscriber), draft("2").to(subscriber)];
    let submissions = drafts.into_iter().map(|draft| submission([draft])).collect();
    let committed = bench.commit(Group { results, submissions, ..Group::default() }).await;
    let answers: Vec<_> = committed.submissions.iter().map(|answer| answer.as_ref().ok()).collect();
    assert_eq!(answers, [Some(&vec![Accepted]), None, Some(&vec![Duplicate]), Some(&vec![Accepted])]);
    let ids: Vec<String> = bench.events(PROJECT).await.into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["0", "1", "2"]);
    assert_eq!(bench.status(subscriber, "0").await, Status::Delivered, "the result was written once");
    assert_eq!(committed.stale, 0);
    assert_eq!(committed.spilled, [subscriber]);
}

async fn a_bad_unit_fails_its_whole_submission(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let bad = submission([draft("1"), draft("bad").to(subscriber).to(subscriber), draft("2")]);
    let group = Group { submissions: vec![bad, submission([draft("3")])], ..Group::default() };
    let committed = bench.commit(group).await;
    assert!(matches!(committed.submissions[0], Err(Error::Unavailable(_))));
    assert!(matches!(&committed.submissions[1], Ok(statuses) if statuses[..] == [Accepted]));
    let ids: Vec<String> = bench.events(PROJECT).await.into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["3"]);
    let again = bench.send([draft("1"), draft("2"), draft("bad")]).await;
    assert_eq!(statuses(&again), [Accepted; 3], "their ids are still free");
}

/// "Drained" speaks of the store after the whole group, however the group had to be written.
async fn a_bad_submission_does_not_strand_spilled_work(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let drafts = [draft("1").to(subscriber), draft("bad").to(subscriber).to(subscriber)];
    let group = Group {
        submissions: drafts.into_iter().map(|draft| submission([draft])).collect(),
        refills: vec![Refill { subscriber, jobs: 10 }],
        room: Room::new(PLENTY),
        ..Group::default()
    };
    let committed = bench.commit(group).await;
    let [refilled] = committed.refilled[..] else { panic!("one answer per refill") };
    assert!(refilled.drained);
    assert_eq!(committed.jobs.len(), 1, "what the group spilled, its refill brought");
    assert_eq!(refilled.next_due, None);
}

async fn a_bad_submission_does_not_widen_the_room(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let good = (0..5).map(|n| draft(format!("e{n}")).to(subscriber));
    let bad = draft("bad").to(subscriber).to(subscriber);
    let committed = bench.send_into(room(2, &[subscriber]), good.chain([bad])).await;
    assert_eq!(committed.jobs.len(), 2, "memory said it can take two");
    assert_eq!(committed.spilled, [subscriber]);
}

/// A second attempt that claims to be the first breaks the rule that each is kept once.
async fn a_result_that_can_not_be_written_is_left_out_alone(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for round in 0..2 {
        let names = ["bad", "good", "free", "head", "next"].map(|name| format!("{name}{round}"));
        let [bad, good, free, head, next] = &names;
        let lane = |name: &String| draft(name).lane(subscriber, round);
        bench.send([draft(bad).to(subscriber)]).await;
        let first = bench.claim_one(subscriber).await;
        bench.finish(&first, Next::RetryAt(bench.later(10))).await;
        bench.send([draft(good).to(subscriber), draft(free).to(subscriber), lane(head), lane(next)]).await;
        bench.pass(10);
        let mut jobs = bench.claim_all(subscriber).await;
        jobs.sort_by_key(|job| job.delivery);
        let [again, well, back, ahead] = &jobs[..] else { panic!("four are due, not {jobs:?}") };
        let retry = Next::RetryAt(bench.later(1_000));
        let bad_result = Finished { n: 1, ..finished(again, retry, bench.now) };
        let results = vec![
            finished(well, Next::Delivered, bench.now),
            bad_result,
            finished(ahead, Next::Delivered, bench.now),
        ];
        // The same with events in the group and without.
        let submissions = (round == 0).then(|| submission([draft("new")])).into_iter().collect();
        let group = Group {
            results,
            submissions,
            released: vec![claim(back)],
            streaks: vec![(subscriber, Some(bench.now))],
            room: room(1, &[subscriber]),
            ..Group::default()
        };
        let committed = bench.commit(group).await;
        assert_eq!((committed.refused, committed.stale), (1, 0));
        assert!(committed.submissions.iter().all(|answer| matches!(answer.as_deref(), Ok([Accepted]))));
        let in_hand: Vec<i64> = committed.jobs.iter().map(|job| job.delivery).collect();
        assert_eq!(in_hand, [bench.row(subscriber, next).await.no], "the lane goes on, in memory");
        let expected = [
            (bad, Status::Sending),
            (good, Status::Delivered),
            (free, Status::Pending),
            (head, Status::Delivered),
        ];
        for (name, status) in expected {
            assert_eq!(bench.status(subscriber, name).await, status, "{name}");
        }
        bench.deliver(&committed.jobs[0]).await;
        bench.deliver(&bench.claim_one(subscriber).await).await;
    }
    // It is due again with the end of the process.
    bench.reopen().await;
    assert_eq!(bench.claim_all(subscriber).await.len(), 2);
}

async fn a_stale_configuration_refuses_everything(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("0").to(subscriber)]).await;
    let job = bench.claim_one(subscriber).await;
    let routed = bench.version().await;
    let changed =
        bench.change(Change::CreateProject { id: "p".to_owned(), catalog: Mode::Open }).await.version;
    // A group that only has results and events may go another way than one that closes windows too.
    let group = |version, close| Group {
        now: bench.now,
        version,
        close,
        results: vec![finished(&job, Next::Delivered, bench.now)],
        submissions: vec![submission([draft("1").to(subscriber)])],
        ..Group::default()
    };
    for (wrong, close) in [routed, routed - 1, changed + 1, 0].into_iter().flat_map(|no| [(no, 0), (no, 1)]) {
        let error = bench.store().commit(Arc::new(group(wrong, close))).await.unwrap_err();
        let Error::Stale { routed: told, current } = error else { panic!("{error}") };
        assert_eq!((told, current), (wrong, changed));
    }
    assert_eq!(bench.events(PROJECT).await.len(), 1, "nothing was written");
    assert_eq!(bench.status(subscriber, "0").await, Status::Sending, "not even the result");
    bench.store().commit(Arc::new(group(changed, 0))).await.expect("routed again, it is fine");
    assert_eq!(bench.status(subscriber, "0").await, Status::Delivered);
}

async fn a_group_without_events_needs_no_version(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("0").to(subscriber)]).await;
    let job = bench.claim_one(subscriber).await;
    let results = vec![finished(&job, Next::Delivered, bench.now)];
    let group = Group { now: bench.now, version: 0, results, ..Group::default() };
    let committed = bench.store().commit(Arc::new(group)).await.expect("results are not routed");
    assert_eq!(committed.stale, 0);
}

async fn an_empty_group_is_fine(bench: Bench) {
    let committed = bench.commit(Group::default()).await;
    assert!(committed.jobs.is_empty() && committed.spilled.is_empty() && committed.refilled.is_empty());
    let empty = bench.commit(Group { submissions: vec![submission([])], ..Group::default() }).await;
    assert!(matches!(&empty.submissions[..], [Ok(statuses)] if statuses.is_empty()));
}
