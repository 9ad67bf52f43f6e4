//! Jobs: everything that was there when they began, each once, whatever happens between two steps.

use tidegate_core::delivery::Status;
use tidegate_core::id::{JobNo, Lane, SubscriberNo};
use tidegate_core::limits::JOBS_RUNNING_PER_PROJECT_MAX;
use tidegate_core::route::Route;
use tidegate_core::time::Timestamp;

use super::bench::{Bench, PROJECT, START, bodies, draft};
use super::{Case, named};
use crate::{
    Change, Committed, Error, Group, JobRow, JobStatus, JobStep, NewJob, Past, Selector, StopOutcome, What,
};

pub(super) fn cases() -> Vec<Case> {
    named!["jobs":
        a_replay_covers_what_was_there,
        a_span_of_time_is_exact,
        a_replay_may_ask_for_what_was_delivered,
        dead_letters_are_tried_again_under_their_ids,
        dead_letters_may_be_named,
        what_fails_again_is_not_picked_up,
        a_dead_letter_goes_first_in_its_lane,
        dead_letters_of_the_deleted_stay,
        a_repeated_step_is_ignored,
        a_step_by_an_old_configuration_is_ignored,
        a_restart_in_the_middle_goes_on,
        a_stopped_job_does_nothing_more,
        a_failed_job_says_why,
        jobs_are_listed_and_their_projects_own,
        only_so_many_run_at_once,
    ]
}

fn replay(subscriber: SubscriberNo, past: Past) -> Selector {
    Selector { what: What::Replay { subscriber, past }, types: Vec::new(), from: None, to: None }
}

fn letters(subscriber: Option<SubscriberNo>, ids: &[i64]) -> Selector {
    let what = What::DeadLetters { subscriber, ids: ids.to_vec(), nonces: Vec::new() };
    Selector { what, types: Vec::new(), from: None, to: None }
}

async fn start(bench: &Bench, id: &str, selector: Selector) -> JobRow {
    let scope = bench.store().scope(PROJECT, selector, bench.now).await.unwrap();
    bench.store().start_job(NewJob { id: id.to_owned(), scope }, bench.now).await.expect("it can begin")
}

/// The next step of a job, in which everything matches.
async fn prepare(bench: &Bench, job: JobNo, limit: usize, lane: Option<Lane>) -> Option<JobStep> {
    let row = bench.store().job_by_no(job).await.unwrap().filter(|row| row.status == JobStatus::Running)?;
    let scan = bench.store().scan(row.scope.clone(), row.after, limit).await.unwrap();
    assert!(scan.events.len() + scan.letters.len() <= limit);
    let subscriber = match &row.scope.selector.what {
        What::Replay { subscriber, .. } => *subscriber,
        What::DeadLetters { .. } => 0,
    };
    Some(JobStep {
        job,
        project: row.scope.project,
        version: bench.version().await,
        after: row.after,
        through: scan.through,
        until: row.scope.until,
        looked: scan.looked,
        replays: scan.events.iter().map(|event| (event.seq, Route::alone(subscriber, lane))).collect(),
        retries: scan.letters.iter().map(|letter| letter.delivery).collect(),
        failure: None,
    })
}

async fn commit(bench: &Bench, step: &JobStep) -> Committed {
    let committed = bench.commit(Group { steps: vec![step.clone()], ..Group::default() }).await;
    bench.audit().await;
    committed
}

async fn finish(bench: &Bench, job: JobNo, limit: usize, lane: Option<Lane>) -> JobRow {
    while let Some(step) = prepare(bench, job, limit, lane).await {
        assert_eq!(commit(bench, &step).await.stepped, [job]);
    }
    bench.store().job_by_no(job).await.unwrap().expect("it is kept")
}

/// The events of all replays of a subscriber, oldest first.
async fn replayed(bench: &Bench, subscriber: SubscriberNo) -> Vec<String> {
    let rows = bench.rows(subscriber).await.into_iter().filter(|row| row.replay);
    rows.map(|row| row.events[0].clone()).collect()
}

/// Sends events and gives them up or delivers them.
async fn sent(bench: &Bench, subscriber: SubscriberNo, names: &[&str], is_taken: bool) {
    for name in names {
        bench.send([draft(*name).saying((*name).to_owned()).to(subscriber)]).await;
        let job = bench.claim_one(subscriber).await;
        if is_taken {
            bench.deliver(&job).await;
        } else {
            bench.exhaust(&job).await;
        }
    }
}

async fn a_replay_covers_what_was_there(bench: Bench) {
    let other =
        bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Default::default() }).await.no;
    bench.send([draft("1"), draft("2"), draft("3")]).await;
    bench.send([draft("theirs").of(other)]).await;
    let subscriber = bench.subscriber("s").await;
    let job = start(&bench, "job_1", replay(subscriber, Past::Any)).await;
    assert_eq!((job.status, job.looked, job.total()), (JobStatus::Running, 0, None));
    bench.send([draft("later").to(subscriber)]).await;
    let row = finish(&bench, job.no, 2, None).await;
    assert_eq!(replayed(&bench, subscriber).await, ["1", "2", "3"]);
    assert_eq!((row.status, row.looked, row.matched, row.total()), (JobStatus::Done, 3, 3, Some(3)));
    assert_eq!(row.finished_at, Some(bench.now));
    assert_eq!(bench.claim_all(subscriber).await.len(), 4, "they are due");
}

async fn a_span_of_time_is_exact(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let mut times = Vec::new();
    for name in ["0", "1", "2", "3", "4"] {
        times.push(bench.now);
        bench.send([draft(name).to(subscriber)]).await;
        bench.pass(1_000);
    }
    for (from, to, expected) in [
        (times[1], times[3], vec!["1", "2"]),
        (times[1].plus(std::time::Duration::from_millis(1)), times[3], vec!["2"]),
        (Timestamp::from_ms(0), times[1], vec!["0"]),
        (times[4], bench.later(9), vec!["4"]),
        (bench.later(1), bench.later(9), vec![]),
        (Timestamp::from_ms(0), times[0], vec![]),
    ] {
        let selector = Selector { from: Some(from), to: Some(to), ..replay(subscriber, Past::Any) };
        let scope = bench.store().scope(PROJECT, selector, bench.now).await.unwrap();
        let scan = bench.store().scan(scope.clone(), scope.begin, 10).await.unwrap();
        let found: Vec<&str> = scan.events.iter().map(|event| event.id.as_str()).collect();
        assert_eq!(found, expected);
        assert!(scan.through >= scope.until);
    }
}

async fn a_replay_may_ask_for_what_was_delivered(mut bench: Bench) {
    let (subscriber, other) = (bench.subscriber("s").await, bench.subscriber("other").await);
    sent(&bench, subscriber, &["1", "2"], true).await;
    sent(&bench, subscriber, &["3"], false).await;
    sent(&bench, other, &["4"], true).await;
    bench.send([draft("5").to(subscriber)]).await;
    let delivered = start(&bench, "job_1", replay(subscriber, Past::Delivered)).await;
    let exhausted = start(&bench, "job_2", replay(subscriber, Past::Exhausted)).await;
    bench.pass(10);
    let five = bench.claim_one(subscriber).await;
    bench.deliver(&five).await;
    finish(&bench, delivered.no, 1, None).await;
    assert_eq!(replayed(&bench, subscriber).await, ["1", "2"], "5 was on its way when the job began");
    finish(&bench, exhausted.no, 10, None).await;
    assert_eq!(replayed(&bench, subscriber).await, ["1", "2", "3"]);
    let again = start(&bench, "job_3", replay(subscriber, Past::Delivered)).await;
    assert_eq!(finish(&bench, again.no, 10, None).await.matched, 3, "a replay is no past of its own");
    assert_eq!(bench.status(subscriber, "3").await, Status::Exhausted, "what it repeats stays as it is");
}

async fn dead_letters_are_tried_again_under_their_ids(mut bench: Bench) {
    let (subscriber, other) = (bench.subscriber("s").await, bench.subscriber("other").await);
    sent(&bench, subscriber, &["1", "2"], false).await;
    sent(&bench, subscriber, &["3"], true).await;
    sent(&bench, other, &["4"], false).await;
    bench.pass(10);
    let one = start(&bench, "job_1", letters(Some(subscriber), &[])).await;
    let row = finish(&bench, one.no, 1, None).await;
    assert_eq!((row.matched, row.looked), (2, 2));
    let jobs = bench.claim_all(subscriber).await;
    assert_eq!(bodies(&jobs), ["1", "2"]);
    assert!(jobs.iter().all(|job| job.attempts == 1 && job.tries == 0 && !job.replay), "a fresh schedule");
    let all = start(&bench, "job_2", letters(None, &[])).await;
    assert_eq!(finish(&bench, all.no, 10, None).await.matched, 1, "only 4 is left");
    assert_eq!(bench.store().backlog().await.unwrap().exhausted, 0);
}

async fn dead_letters_may_be_named(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    sent(&bench, subscriber, &["1", "2", "3"], false).await;
    sent(&bench, subscriber, &["4"], true).await;
    let rows = bench.rows(subscriber).await;
    let ids = [rows[0].no, rows[2].no, rows[3].no, rows[3].no + 100];
    let job = start(&bench, "job_1", letters(None, &ids)).await;
    let row = finish(&bench, job.no, 1, None).await;
    assert_eq!((row.matched, row.status), (2, JobStatus::Done));
    assert_eq!(bodies(&bench.claim_all(subscriber).await), ["1", "3"]);
}

async fn what_fails_again_is_not_picked_up(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    sent(&bench, subscriber, &["1", "2"], false).await;
    bench.send([draft("3").to(subscriber)]).await;
    let job = start(&bench, "job_1", letters(None, &[])).await;
    bench.pass(10);
    for _ in 0..2 {
        let step = prepare(&bench, job.no, 1, None).await.expect("it runs");
        commit(&bench, &step).await;
        for job in bench.claim_all(subscriber).await {
            bench.exhaust(&job).await;
        }
    }
    let row = finish(&bench, job.no, 1, None).await;
    assert_eq!(row.matched, 2, "neither the failed again nor what was on its way");
    let (_, attempts) =
        bench.store().delivery(PROJECT, bench.row(subscriber, "1").await.no).await.unwrap().unwrap();
    assert_eq!(attempts.len(), 2);
}

async fn a_dead_letter_goes_first_in_its_lane(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for name in ["1", "2"] {
        bench.send([draft(name).saying(name).lane(subscriber, 7)]).await;
    }
    let one = bench.claim_one(subscriber).await;
    bench.exhaust(&one).await;
    let job = start(&bench, "job_1", letters(None, &[])).await;
    finish(&bench, job.no, 1, None).await;
    for name in ["1", "2"] {
        let job = bench.claim_one(subscriber).await;
        assert_eq!(bodies(std::slice::from_ref(&job)), [name]);
        bench.deliver(&job).await;
    }
}

async fn dead_letters_of_the_deleted_stay(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    sent(&bench, subscriber, &["1"], false).await;
    let job = start(&bench, "job_1", letters(None, &[])).await;
    bench.change(Change::DeleteSubscriber { project: PROJECT, no: subscriber }).await;
    let row = finish(&bench, job.no, 10, None).await;
    assert_eq!((row.matched, row.status), (0, JobStatus::Done));
    assert_eq!(bench.status(subscriber, "1").await, Status::Exhausted);
}

async fn a_repeated_step_is_ignored(bench: Bench) {
    bench.send([draft("1"), draft("2"), draft("3")]).await;
    let subscriber = bench.subscriber("s").await;
    let job = start(&bench, "job_1", replay(subscriber, Past::Any)).await;
    let step = prepare(&bench, job.no, 2, None).await.unwrap();
    let committed = bench.commit(Group { steps: vec![step.clone(), step.clone()], ..Group::default() }).await;
    assert_eq!((committed.stepped, committed.spilled), (vec![job.no], vec![subscriber]));
    assert!(commit(&bench, &step).await.stepped.is_empty());
    assert_eq!(replayed(&bench, subscriber).await, ["1", "2"]);
    finish(&bench, job.no, 2, None).await;
    assert!(commit(&bench, &step).await.stepped.is_empty());
    assert_eq!(replayed(&bench, subscriber).await, ["1", "2", "3"]);
}

async fn a_step_by_an_old_configuration_is_ignored(bench: Bench) {
    bench.send([draft("1")]).await;
    let subscriber = bench.subscriber("s").await;
    let job = start(&bench, "job_1", replay(subscriber, Past::Any)).await;
    let step = prepare(&bench, job.no, 2, Some(1)).await.unwrap();
    bench.pause(subscriber).await;
    assert!(commit(&bench, &step).await.stepped.is_empty());
    assert!(replayed(&bench, subscriber).await.is_empty());
    finish(&bench, job.no, 2, Some(2)).await;
    assert_eq!(replayed(&bench, subscriber).await, ["1"]);
}

async fn a_restart_in_the_middle_goes_on(mut bench: Bench) {
    bench.send([draft("1"), draft("2"), draft("3")]).await;
    let subscriber = bench.subscriber("s").await;
    let job = start(&bench, "job_1", replay(subscriber, Past::Any)).await;
    assert!(prepare(&bench, job.no, 1, None).await.is_some(), "a step that is never written");
    bench.reopen().await;
    assert_eq!(bench.store().jobs_running().await.unwrap(), [job.no]);
    commit(&bench, &prepare(&bench, job.no, 1, None).await.unwrap()).await;
    bench.reopen().await;
    let row = finish(&bench, job.no, 1, None).await;
    assert_eq!((row.matched, replayed(&bench, subscriber).await.len()), (3, 3));
    bench.reopen().await;
    assert!(bench.store().jobs_running().await.unwrap().is_empty());
}

async fn a_stopped_job_does_nothing_more(mut bench: Bench) {
    bench.send([draft("1"), draft("2"), draft("3")]).await;
    let subscriber = bench.subscriber("s").await;
    let job = start(&bench, "job_1", replay(subscriber, Past::Any)).await;
    commit(&bench, &prepare(&bench, job.no, 1, None).await.unwrap()).await;
    let step = prepare(&bench, job.no, 1, None).await.unwrap();
    bench.pass(5);
    let stopped = bench.store().stop_job(PROJECT, "job_1".to_owned(), bench.now).await.unwrap();
    let StopOutcome::Stopped(row) = stopped else { panic!("{stopped:?}") };
    assert_eq!((row.status, row.matched, row.finished_at), (JobStatus::Stopped, 1, Some(bench.now)));
    assert!(commit(&bench, &step).await.stepped.is_empty());
    assert_eq!(replayed(&bench, subscriber).await, ["1"], "what it sent again stays");
    let again = bench.store().stop_job(PROJECT, "job_1".to_owned(), bench.now).await.unwrap();
    assert_eq!(again, StopOutcome::Ended(row));
    let none = bench.store().stop_job(PROJECT, "job_2".to_owned(), bench.now).await.unwrap();
    assert_eq!(none, StopOutcome::NotFound);
}

async fn a_failed_job_says_why(bench: Bench) {
    bench.send([draft("1")]).await;
    let subscriber = bench.subscriber("s").await;
    let job = start(&bench, "job_1", replay(subscriber, Past::Any)).await;
    let mut step = prepare(&bench, job.no, 1, None).await.unwrap();
    step.replays.clear();
    step.failure = Some("its subscriber was deleted".to_owned());
    commit(&bench, &step).await;
    let row = bench.store().job_by_no(job.no).await.unwrap().unwrap();
    assert_eq!((row.status, row.reason), (JobStatus::Failed, step.failure));
}

async fn jobs_are_listed_and_their_projects_own(bench: Bench) {
    let other =
        bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Default::default() }).await.no;
    let subscriber = bench.subscriber("s").await;
    for id in ["job_1", "job_2", "job_3"] {
        start(&bench, id, Selector { from: Some(START), ..replay(subscriber, Past::Any) }).await;
    }
    let page = bench.store().jobs(PROJECT, None, 2).await.unwrap();
    let ids: Vec<&str> = page.items.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids, ["job_3", "job_2"]);
    let rest = bench.store().jobs(PROJECT, page.next, 2).await.unwrap();
    assert_eq!((rest.items.len(), rest.next), (1, None));
    assert_eq!(rest.items[0].scope.selector.from, Some(START), "what was asked for is kept");
    assert!(bench.store().jobs(other, None, 9).await.unwrap().items.is_empty());
    assert!(bench.store().job(other, "job_1".to_owned()).await.unwrap().is_none());
    assert!(bench.store().job(PROJECT, "job_1".to_owned()).await.unwrap().is_some());
    let stopped = bench.store().stop_job(other, "job_1".to_owned(), bench.now).await.unwrap();
    assert_eq!(stopped, StopOutcome::NotFound);
}

async fn only_so_many_run_at_once(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for n in 0..JOBS_RUNNING_PER_PROJECT_MAX {
        start(&bench, &format!("job_{n}"), replay(subscriber, Past::Any)).await;
    }
    let scope = bench.store().scope(PROJECT, replay(subscriber, Past::Any), bench.now).await.unwrap();
    let new = NewJob { id: "job_more".to_owned(), scope };
    let refused = bench.store().start_job(new.clone(), bench.now).await;
    assert!(matches!(refused, Err(Error::Conflict(_))), "{refused:?}");
    bench.store().stop_job(PROJECT, "job_0".to_owned(), bench.now).await.unwrap();
    bench.store().start_job(new, bench.now).await.expect("there is a place again");
}
