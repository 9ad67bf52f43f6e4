//! Folds of what was accepted before: backfills, replays, jobs, dead letters.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidegate_core::fold::{ClosedBy, Terms};
use tidegate_core::id::{DeliveryNo, JobNo, SubscriberNo};
use tidegate_core::limits::STEP_BYTES_MAX;
use tidegate_core::time::Timestamp;

use super::super::bench::{Bench, PROJECT, START, draft, submission};
use super::{Case, carried, close, drain, named, open, quiet, route, seal, told, window};
use crate::{Group, JobStatus, JobStep, Judge, Judged, NewJob, Past, Replay, Selector, What};

pub(super) fn cases() -> Vec<Case> {
    named!["folds":
        a_backfill_folds,
        a_repeated_step_joins_nothing,
        live_events_of_a_lane_queue_behind_a_backfill,
        behind_a_backfill_folds_of_a_lane_go_as_they_close,
        a_backfill_ends_when_nothing_is_left_to_it,
        what_is_left_to_a_backfill_comes_wherever_that_begins,
        a_backfill_holds_up_nothing_that_it_has_passed,
        a_backfill_lets_a_replay_go_that_it_has_passed,
        a_backfill_ends_although_events_keep_coming,
        a_backfill_does_not_end_with_what_nobody_can_judge,
        a_trace_tells_what_is_left_to_a_backfill,
        a_replay_goes_at_once_in_the_form_of_a_fold,
        a_replay_joins_what_waits_in_its_lane,
        a_replay_that_fills_what_waits_is_carried_by_it,
        a_replayed_event_joins_once,
        a_job_folds_what_it_replays,
        jobs_side_by_side_fill_one_window_and_a_restart_finds_it,
        a_job_finds_what_folds_carried,
        a_step_of_a_job_takes_few_folds_at_once,
        a_dead_letter_is_tried_again_as_it_was,
    ]
}

async fn seq(bench: &Bench, id: &str) -> i64 {
    bench.store().event(PROJECT, id.to_owned()).await.unwrap()[0].seq
}

/// Commits one step of a backfill in which everything matches; says whether it was the last.
pub(super) async fn step(
    bench: &Bench,
    subscriber: SubscriberNo,
    limit: usize,
    terms: &Terms,
    lane: i64,
) -> bool {
    let (mut step, events) = bench.store().backfill(subscriber, limit).await.unwrap().expect("a past");
    let into = |event: &crate::EventRow| (event.seq, route(subscriber, terms, "a", lane));
    step.matched = events.iter().map(into).collect();
    let is_last = step.through >= step.until;
    bench.commit(Group { backfills: vec![step], ..Group::default() }).await;
    bench.audit().await;
    is_last
}

async fn a_backfill_folds(mut bench: Bench) {
    bench.send(["1", "2", "3", "4", "5"].map(draft)).await;
    let subscriber = bench.backfilled("s", START).await;
    let terms = Terms { max_events: 4, ..window(1_000) };
    bench.send([draft("live").folded(subscriber, &terms, "a")]).await;
    while !step(&bench, subscriber, 2, &terms, 0).await {}
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::MaxEvents, "1 2 3 live")]));
    bench.pass(1_000);
    close(&bench).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "4 5")]));
}

async fn a_repeated_step_joins_nothing(bench: Bench) {
    bench.send(["1", "2", "3"].map(draft)).await;
    let subscriber = bench.backfilled("s", START).await;
    let (mut step, events) = bench.store().backfill(subscriber, 2).await.unwrap().expect("a past");
    let into = |event: &crate::EventRow| (event.seq, route(subscriber, &window(1_000), "a", 0));
    step.matched = events.iter().map(into).collect();
    bench.commit(Group { backfills: vec![step.clone(), step.clone()], ..Group::default() }).await;
    bench.commit(Group { backfills: vec![step], ..Group::default() }).await;
    assert_eq!(open(&bench).await[0].count, 2);
}

async fn live_events_of_a_lane_queue_behind_a_backfill(mut bench: Bench) {
    bench.send(["1", "2", "3"].map(draft)).await;
    let subscriber = bench.backfilled("s", START).await;
    let terms = Terms { max_events: 2, ..window(1_000) };
    bench.send(["4", "5"].map(|id| draft(id).folded_in(subscriber, &terms, "a", 7))).await;
    assert!(open(&bench).await.is_empty(), "they would be full, and overtake");
    assert!(!step(&bench, subscriber, 2, &terms, 7).await);
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::MaxEvents, "1 2")]), "it goes on");
    bench.send([draft("6").folded_in(subscriber, &terms, "a", 7)]).await;
    while !step(&bench, subscriber, 2, &terms, 7).await {
        bench.reopen().await;
    }
    assert!(bench.store().backfill(subscriber, 9).await.unwrap().is_none(), "it is over");
    bench.send([draft("7").folded_in(subscriber, &terms, "a", 7)]).await;
    let expected = told(&[(ClosedBy::MaxEvents, "3 4"), (ClosedBy::MaxEvents, "5 6")]);
    assert_eq!(drain(&bench, subscriber).await, expected);
    bench.pass(1_000);
    close(&bench).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "7")]));
}

/// Two keys share a lane: what closes goes, and what comes later closes later.
async fn behind_a_backfill_folds_of_a_lane_go_as_they_close(mut bench: Bench) {
    bench.send(["1", "2", "3"].map(draft)).await;
    let subscriber = bench.backfilled("s", START).await;
    let terms = window(1_000);
    bench.send([draft("live").folded_in(subscriber, &terms, "a", 7)]).await;
    assert!(!step(&bench, subscriber, 2, &terms, 7).await);
    bench.pass(1_000);
    close(&bench).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "1 2")]));
    while !step(&bench, subscriber, 2, &terms, 7).await {}
    bench.pass(1_000);
    close(&bench).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "3 live")]));
}

/// A step that was prepared before more was left to the backfill is not its last.
async fn a_backfill_ends_when_nothing_is_left_to_it(bench: Bench) {
    bench.send(["1"].map(draft)).await;
    let subscriber = bench.backfilled("s", START).await;
    let terms = Terms { max_events: 1, ..window(1_000) };
    let (mut last, events) = bench.store().backfill(subscriber, 9).await.unwrap().expect("a past");
    last.matched = vec![(events[0].seq, route(subscriber, &terms, "a", 7))];
    assert!(last.through >= last.until);
    bench.send([draft("2").folded_in(subscriber, &terms, "a", 7)]).await;
    let committed = bench.commit(Group { backfills: vec![last], ..Group::default() }).await;
    assert!(committed.backfilled.is_empty());
    assert!(step(&bench, subscriber, 9, &terms, 7).await);
    let expected = told(&[(ClosedBy::MaxEvents, "1"), (ClosedBy::MaxEvents, "2")]);
    assert_eq!(drain(&bench, subscriber).await, expected);
}

async fn what_is_left_to_a_backfill_comes_wherever_that_begins(bench: Bench) {
    bench.send(["1"].map(draft)).await;
    let subscriber = bench.backfilled("s", START.plus(Duration::from_secs(3_600))).await;
    let terms = Terms { max_events: 1, ..window(1_000) };
    bench.send([draft("2").folded_in(subscriber, &terms, "a", 7)]).await;
    let (next, events) =
        bench.store().backfill(subscriber, 9).await.unwrap().expect("something was left to it");
    assert_eq!(events.iter().map(|event| event.id.as_str()).collect::<Vec<_>>(), ["2"]);
    assert!(events[0].version >= next.since);
    while !step(&bench, subscriber, 9, &terms, 7).await {}
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::MaxEvents, "2")]));
}

async fn again(bench: &Bench, subscriber: SubscriberNo, terms: &Terms, id: &str, lane: i64) -> DeliveryNo {
    let routes = vec![route(subscriber, terms, "a", lane)];
    let replay =
        Replay { project: PROJECT, event: seq(bench, id).await, routes, version: bench.version().await };
    let made = bench.store().replay(replay, bench.now).await.expect("it can be replayed");
    bench.audit().await;
    made[0].no
}

/// A live event that passes the fold by waits behind the backfill, but only until that has gone past it.
async fn a_backfill_holds_up_nothing_that_it_has_passed(bench: Bench) {
    bench.send([draft("past")]).await;
    let subscriber = bench.backfilled("s", START).await;
    let terms = window(1_000);
    bench.send([draft("alone").folded_in(subscriber, &terms, "a", 7).passing()]).await;
    bench.send([draft("folded").folded_in(subscriber, &terms, "b", 8)]).await;
    assert!(!step(&bench, subscriber, 1, &terms, 9).await);
    assert!(bench.claim_all(subscriber).await.is_empty(), "the backfill has not come to it");
    let (mut passing, _) = bench.store().backfill(subscriber, 1).await.unwrap().expect("a past");
    passing.passed.insert(7);
    assert!(passing.through < passing.until);
    bench.commit(Group { backfills: vec![passing], ..Group::default() }).await;
    bench.audit().await;
    assert_eq!(bench.claim_one(subscriber).await.event, seq(&bench, "alone").await);
}

/// A replay stands behind what was accepted before it, which the backfill may have to bring; no longer than that.
async fn a_backfill_lets_a_replay_go_that_it_has_passed(mut bench: Bench) {
    bench.send(["1", "2"].map(draft)).await;
    let subscriber = bench.backfilled("s", START).await;
    let terms = window(1_000);
    again(&bench, subscriber, &terms, "1", 7).await;
    for id in ["3", "4"] {
        bench.send([draft(id).folded_in(subscriber, &terms, "b", 8)]).await;
    }
    assert!(bench.claim_all(subscriber).await.is_empty(), "the backfill has not come to it");
    for _ in 0..3 {
        assert!(!step(&bench, subscriber, 1, &terms, 7).await);
    }
    bench.pass(1_000);
    close(&bench).await;
    assert!(bench.store().backfill(subscriber, 1).await.unwrap().is_some(), "it goes on");
    let replay = bench.claim_one(subscriber).await;
    assert_eq!((replay.lane, carried(&bench, &replay).await.1.as_str()), (Some(7), "1"));
    assert!(seal(&bench, &replay).await);
    bench.deliver(&replay).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "1 2 3")]), "its lane goes on");
}

/// Everything goes into the window of one key and lane.
fn into_lane(subscriber: SubscriberNo, terms: &Terms, lane: i64) -> Judge {
    let terms = terms.clone();
    Judge(Arc::new(move |_| Judged::Matched(route(subscriber, &terms, "a", lane))))
}

/// Events come between the preparation of each step and its commit, and with it.
async fn a_backfill_ends_although_events_keep_coming(bench: Bench) {
    bench.send(["1"].map(draft)).await;
    let subscriber = bench.backfilled("s", START).await;
    let terms = Terms { max_events: 1, ..window(1_000) };
    let folded = |id: &str| draft(id).folded_in(subscriber, &terms, "a", 7);
    bench.send([folded("2")]).await;
    let (mut step, events) = bench.store().backfill(subscriber, 9).await.unwrap().expect("a past");
    step.matched = events.iter().map(|event| (event.seq, route(subscriber, &terms, "a", 7))).collect();
    step.judge = Some(into_lane(subscriber, &terms, 7));
    bench.send([folded("3")]).await;
    let submissions = vec![submission([folded("4")])];
    let committed = bench.commit(Group { backfills: vec![step], submissions, ..Group::default() }).await;
    assert_eq!(committed.backfilled, [subscriber]);
    assert!(bench.store().backfill(subscriber, 9).await.unwrap().is_none());
    let order: Vec<String> = drain(&bench, subscriber).await.into_iter().map(|(_, ids)| ids).collect();
    assert_eq!(order, ["1", "2", "3", "4"]);
}

async fn a_backfill_does_not_end_with_what_nobody_can_judge(bench: Bench) {
    bench.send(["1"].map(draft)).await;
    let subscriber = bench.backfilled("s", START).await;
    let terms = Terms { max_events: 1, ..window(1_000) };
    let (mut next, events) = bench.store().backfill(subscriber, 9).await.unwrap().expect("a past");
    next.matched = vec![(events[0].seq, route(subscriber, &terms, "a", 7))];
    next.judge = Some(Judge(Arc::new(|_| Judged::Unknown)));
    bench.send([draft("2").folded_in(subscriber, &terms, "a", 7)]).await;
    assert!(bench.commit(Group { backfills: vec![next], ..Group::default() }).await.backfilled.is_empty());
    assert!(step(&bench, subscriber, 9, &terms, 7).await);
    let expected = told(&[(ClosedBy::MaxEvents, "1"), (ClosedBy::MaxEvents, "2")]);
    assert_eq!(drain(&bench, subscriber).await, expected);
}

async fn a_trace_tells_what_is_left_to_a_backfill(bench: Bench) {
    bench.send(["1"].map(draft)).await;
    let subscriber = bench.backfilled("s", START).await;
    let terms = window(1_000);
    bench.send([draft("2").folded_in(subscriber, &terms, "a", 7)]).await;
    let event = seq(&bench, "2").await;
    for is_behind in [true, true, false] {
        let trace = bench.store().trace(PROJECT, event).await.unwrap();
        let [rule] = &trace.rules[..] else { panic!("one subscriber") };
        assert_eq!((rule.is_behind, trace.windows.len()), (is_behind, usize::from(!is_behind)));
        if is_behind {
            step(&bench, subscriber, 1, &terms, 7).await;
        }
    }
}

async fn a_replay_goes_at_once_in_the_form_of_a_fold(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = Terms { leading: true, ..window(60_000) };
    bench.send([draft("1").folded(subscriber, &window(60_000), "a")]).await;
    bench.pass(1_000);
    let no = again(&bench, subscriber, &terms, "1", 0).await;
    let job = bench.claim_one(subscriber).await;
    assert_eq!((job.delivery, job.replay, job.accepted_at), (no, true, bench.now));
    assert_eq!(carried(&bench, &job).await, (ClosedBy::Flush, "1".to_owned()));
    bench.deliver(&job).await;
    let [row] = &open(&bench).await[..] else { panic!("what gathers is left alone") };
    assert_eq!(row.count, 1);
    let missing = Replay {
        project: PROJECT,
        event: seq(&bench, "1").await + 100,
        routes: vec![route(subscriber, &terms, "a", 0)],
        version: bench.version().await,
    };
    let refused = bench.store().replay(missing, bench.now).await;
    assert!(matches!(refused, Err(crate::Error::NotFound)), "{refused:?}");
}

async fn a_replay_joins_what_waits_in_its_lane(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = window(60_000);
    bench.send(["1", "2"].map(draft)).await;
    bench.send([draft("before").lane(subscriber, 7)]).await;
    let first = again(&bench, subscriber, &terms, "2", 7).await;
    assert_eq!(again(&bench, subscriber, &terms, "1", 7).await, first, "it has not left yet");
    let before = bench.claim_one(subscriber).await;
    assert!(before.fold.is_none(), "a replay stands behind what waits");
    bench.deliver(&before).await;
    let job = bench.claim_one(subscriber).await;
    assert!(seal(&bench, &job).await);
    assert_eq!(
        carried(&bench, &job).await,
        (ClosedBy::Flush, "1 2".to_owned()),
        "in the order of acceptance"
    );
    assert_ne!(again(&bench, subscriber, &terms, "1", 7).await, first, "now it has");
}

async fn a_replay_that_fills_what_waits_is_carried_by_it(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = Terms { max_events: 2, ..window(60_000) };
    bench.send(["1", "2", "3"].map(draft)).await;
    let first = again(&bench, subscriber, &terms, "1", 7).await;
    assert_eq!(again(&bench, subscriber, &terms, "2", 7).await, first);
    assert_ne!(again(&bench, subscriber, &terms, "3", 7).await, first);
    assert_eq!(drain(&bench, subscriber).await.len(), 2);
}

async fn a_replayed_event_joins_once(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = window(1_000);
    bench.send(["1", "2"].map(draft)).await;
    let first = again(&bench, subscriber, &terms, "1", 7).await;
    assert_eq!(again(&bench, subscriber, &terms, "1", 7).await, first, "it waits already");
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Flush, "1")]));
    for name in ["job_1", "job_2"] {
        let job = start(&bench, name, replays(subscriber, Past::Any)).await;
        run(&bench, job, &terms, 0).await;
    }
    assert_eq!(open(&bench).await[0].count, 2, "both jobs, one window");
    let flushed = again(&bench, subscriber, &terms, "2", 0).await;
    let job = bench.claim_one(subscriber).await;
    assert_eq!((job.delivery, carried(&bench, &job).await.1), (flushed, "1 2".to_owned()));
    bench.pass(5_000);
    assert!(close(&bench).await.closed.is_empty());
}

fn replays(subscriber: SubscriberNo, past: Past) -> Selector {
    Selector { what: What::Replay { subscriber, past }, types: Vec::new(), from: None, to: None }
}

async fn start(bench: &Bench, id: &str, selector: Selector) -> JobNo {
    let scope = bench.store().scope(PROJECT, selector, bench.now).await.unwrap();
    bench.store().start_job(NewJob { id: id.to_owned(), scope }, bench.now).await.expect("it can begin").no
}

/// Runs a job to its end; everything matches and goes under one key.
async fn run(bench: &Bench, job: JobNo, terms: &Terms, lane: i64) -> u64 {
    loop {
        let row = bench.store().job_by_no(job).await.unwrap().expect("it is kept");
        if row.status != JobStatus::Running {
            return row.matched;
        }
        let subscriber = match row.scope.selector.what {
            What::Replay { subscriber, .. } => subscriber,
            What::DeadLetters { .. } => 0,
        };
        let scan = bench.store().scan(row.scope.clone(), row.after, 2).await.unwrap();
        let into = |event: &crate::EventRow| (event.seq, route(subscriber, terms, "a", lane));
        let step = JobStep {
            job,
            project: PROJECT,
            version: bench.version().await,
            after: row.after,
            through: scan.through,
            until: row.scope.until,
            looked: scan.looked,
            replays: scan.events.iter().map(into).collect(),
            retries: scan.letters.iter().map(|letter| letter.delivery).collect(),
            failure: None,
        };
        bench.commit(Group { steps: vec![step], ..Group::default() }).await;
        bench.audit().await;
    }
}

async fn a_job_folds_what_it_replays(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = Terms { max_events: 3, ..quiet(1_000, 60_000) };
    bench.send(["1", "2", "3", "4", "5"].map(draft)).await;
    bench.pass(100_000);
    bench.send([draft("live").folded(subscriber, &terms, "a")]).await;
    let job = start(&bench, "job_1", replays(subscriber, Past::Any)).await;
    assert_eq!(run(&bench, job, &terms, 0).await, 6);
    let rows = bench.rows(subscriber).await;
    assert!(rows.iter().all(|row| row.replay) && rows.len() == 2);
    let gathering = open(&bench).await;
    assert_eq!(gathering.iter().map(|row| row.count).collect::<Vec<_>>(), [1], "replays gather apart");
    bench.reopen().await;
    assert_eq!(open(&bench).await, gathering);
    bench.pass(1_000);
    close(&bench).await;
    let expected =
        told(&[(ClosedBy::MaxEvents, "1 2 3"), (ClosedBy::MaxEvents, "4 5 live"), (ClosedBy::Quiet, "live")]);
    assert_eq!(drain(&bench, subscriber).await, expected);
}

/// A window may be older than what is replayed into it, and what comes first is not what was accepted first.
async fn jobs_side_by_side_fill_one_window_and_a_restart_finds_it(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = window(60_000);
    let names = ["1", "2", "3", "4"];
    for (n, name) in names.iter().enumerate() {
        bench.send([draft(*name)]).await;
        if n == 0 {
            let job = start(&bench, "job_0", replays(subscriber, Past::Any)).await;
            run(&bench, job, &terms, 0).await;
        }
    }
    for (n, name) in ["3", "2", "4"].into_iter().enumerate() {
        let job = start(&bench, &format!("job_{}", n + 1), replays(subscriber, Past::Any)).await;
        let row = bench.store().job_by_no(job).await.unwrap().expect("it runs");
        let step = JobStep {
            job,
            project: PROJECT,
            version: bench.version().await,
            after: row.after,
            through: row.scope.until,
            until: row.scope.until,
            looked: 1,
            replays: vec![(seq(&bench, name).await, route(subscriber, &terms, "a", 0))],
            retries: Vec::new(),
            failure: None,
        };
        bench.commit(Group { steps: vec![step], ..Group::default() }).await;
    }
    let gathering = open(&bench).await;
    assert_eq!(gathering[0].count, 4);
    bench.reopen().await;
    assert_eq!(open(&bench).await, gathering);
    bench.pass(60_000);
    close(&bench).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "1 2 3 4")]));
}

async fn a_job_finds_what_folds_carried(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = window(1_000);
    bench.send(["1", "2", "3"].map(|id| draft(id).folded(subscriber, &terms, id))).await;
    bench.send([draft("4").folded(subscriber, &terms, "1")]).await;
    bench.pass(1_000);
    close(&bench).await;
    let jobs = bench.claim_all(subscriber).await;
    bench.deliver(&jobs[0]).await;
    bench.exhaust(&jobs[1]).await;
    bench.deliver(&jobs[2]).await;
    bench.pass(1_000);
    let job = start(&bench, "job_1", replays(subscriber, Past::Delivered)).await;
    assert_eq!(run(&bench, job, &terms, 0).await, 3);
    let job = start(&bench, "job_2", replays(subscriber, Past::Exhausted)).await;
    assert_eq!(run(&bench, job, &terms, 0).await, 1);
    bench.pass(1_000);
    close(&bench).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "1 2 3 4")]));
    let job = start(&bench, "job_3", replays(subscriber, Past::Delivered)).await;
    assert_eq!(run(&bench, job, &terms, 0).await, 3, "a replay is nobody's own delivery");
}

/// P8: however many deliveries there are, and however much each carries.
async fn a_step_of_a_job_takes_few_folds_at_once(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = Terms { max_events: 3, ..window(1_000) };
    let names: Vec<String> = (0..15).map(|n| format!("{n:02}")).collect();
    bench.send(names.iter().map(|id| draft(id.as_str()).folded(subscriber, &terms, "a"))).await;
    let jobs = bench.claim_all(subscriber).await;
    for job in &jobs {
        bench.deliver(job).await;
    }
    let scope = bench.store().scope(PROJECT, replays(subscriber, Past::Delivered), bench.now).await.unwrap();
    let (mut after, mut found) = (scope.begin, Vec::new());
    for job in &jobs {
        let scan = bench.store().scan(scope.clone(), after, 3).await.unwrap();
        assert_eq!((scan.events.len(), scan.looked), (3, 3));
        assert!(scan.through == job.delivery || scan.through == scope.until);
        after = scan.through;
        found.extend(scan.events.into_iter().map(|event| event.id));
    }
    assert_eq!((found, jobs.len()), (names, 5));
    bench.pass(1_000);
    let large = Bytes::from(vec![b' '; STEP_BYTES_MAX / 2]);
    let terms = Terms { max_events: 1, ..terms };
    bench
        .send(["x", "y", "z"].map(|id| draft(id).saying(large.clone()).folded(subscriber, &terms, id)))
        .await;
    for job in &bench.claim_all(subscriber).await {
        bench.deliver(job).await;
    }
    for past in [Past::Delivered, Past::Any] {
        let scope = bench.store().scope(PROJECT, replays(subscriber, past), bench.now).await.unwrap();
        let scan = bench.store().scan(scope, after, 9).await.unwrap();
        let ids: Vec<String> = scan.events.into_iter().map(|event| event.id).collect();
        assert_eq!(ids, ["x", "y"], "bytes count as well");
    }
}

async fn a_dead_letter_is_tried_again_as_it_was(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = window(1_000);
    bench.send(["1", "2"].map(|id| draft(id).folded(subscriber, &terms, "a"))).await;
    bench.pass(1_000);
    close(&bench).await;
    let dead = bench.claim_one(subscriber).await;
    bench.exhaust(&dead).await;
    let what = What::DeadLetters { subscriber: Some(subscriber), ids: Vec::new(), nonces: Vec::new() };
    let selector = Selector { what, types: Vec::new(), from: Some(Timestamp::from_ms(0)), to: None };
    let job = start(&bench, "job_1", selector).await;
    assert_eq!(run(&bench, job, &terms, 0).await, 1);
    let again = bench.claim_one(subscriber).await;
    assert_eq!((again.delivery, again.fold), (dead.delivery, dead.fold));
    assert_eq!(carried(&bench, &again).await, (ClosedBy::Window, "1 2".to_owned()));
    bench.deliver(&again).await;
}
