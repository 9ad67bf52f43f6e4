//! Nonces: the random part of a delivery. A database that goes back in time gives its number to another one, and what is
//! said about the first must not be taken for the second (P2, P3: fencing).

use tidegate_core::delivery::{Job, Status};
use tidegate_core::fold::ClosedBy;
use tidegate_core::id::{DeliveryKey, Mint, SubscriberNo};
use tidegate_core::retry::Next;
use tidegate_core::route::Route;

use super::bench::{Bench, PROJECT, START, draft, finished, room};
use super::folds::window;
use super::{Case, named};
use crate::{Claim, EndWindows, Group, Replay, WindowsEnd};

pub(super) fn cases() -> Vec<Case> {
    named!["nonces":
        a_result_for_a_lost_delivery_is_refused,
        a_release_of_a_lost_delivery_is_ignored,
        whatever_makes_a_delivery_gives_it_a_nonce,
        every_session_has_another_nonce,
    ]
}

/// What was there before the database went back: the same number, claim and life.
fn lost(job: &Job) -> Job {
    Job { nonce: job.nonce ^ 1, ..job.clone() }
}

async fn a_result_for_a_lost_delivery_is_refused(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber), draft("2").to(subscriber)]).await;
    let jobs = bench.claim_all(subscriber).await;
    for next in [Next::Delivered, Next::RetryAt(bench.now), Next::Exhausted("no".to_owned())] {
        let committed = bench.finish(&lost(&jobs[0]), next).await;
        assert_eq!((committed.stale, committed.postponed.len()), (1, 0));
    }
    let mut frozen = finished(&lost(&jobs[0]), Next::RetryAt(bench.now), bench.now);
    frozen.body = Some("of another delivery".into());
    let results = vec![frozen, finished(&jobs[1], Next::Delivered, bench.now)];
    assert_eq!(bench.commit(Group { results, ..Group::default() }).await.stale, 1);
    assert_eq!(bench.status(subscriber, "2").await, Status::Delivered);
    let (row, attempts) = bench.store().delivery(PROJECT, jobs[0].delivery).await.unwrap().unwrap();
    assert_eq!((row.status, attempts.len()), (Status::Sending, 0), "nothing of it is written");
    bench.release(&jobs[0]).await;
    let again = bench.claim_one(subscriber).await;
    assert_eq!((&again.body, again.key()), (&jobs[0].body, jobs[0].key()), "its own bytes");
    bench.deliver(&again).await;
}

async fn a_release_of_a_lost_delivery_is_ignored(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    let job = bench.claim_one(subscriber).await;
    bench.commit(Group { released: vec![Claim::of(&lost(&job))], ..Group::default() }).await;
    assert!(bench.claim_all(subscriber).await.is_empty(), "it is still held");
    bench.deliver(&job).await;
}

/// The rows of a subscriber have a nonce each; says how many there are.
async fn with_nonces(bench: &Bench, subscriber: SubscriberNo) -> usize {
    let rows = bench.rows(subscriber).await;
    assert!(rows.iter().all(|row| row.nonce != 0), "{rows:?}");
    rows.len()
}

async fn whatever_makes_a_delivery_gives_it_a_nonce(mut bench: Bench) {
    let live = bench.subscriber("live").await;
    bench.send([draft("1").to(live), draft("2").lane(live, 7), draft("3").lane(live, 7)]).await;
    let jobs = bench.send_into(room(2, &[live]), [draft("4").to(live), draft("5").lane(live, 8)]).await.jobs;
    for job in &jobs {
        let (row, _) = bench.store().delivery(PROJECT, job.delivery).await.unwrap().expect("it is there");
        assert_eq!(row.key(), job.key(), "memory knows it as the store does");
    }
    assert_eq!((jobs.len(), with_nonces(&bench, live).await), (2, 5));
    let late = bench.backfilled("late", START).await;
    let (mut step, events) = bench.store().backfill(late, 10).await.unwrap().expect("it is under way");
    step.matched = events.iter().map(|event| (event.seq, Route::alone(late, None))).collect();
    bench.commit(Group { backfills: vec![step], ..Group::default() }).await;
    assert_eq!(with_nonces(&bench, late).await, 5);
    let (event, version) = (bench.events(PROJECT).await[0].seq, bench.version().await);
    let replay = Replay { project: PROJECT, event, routes: vec![Route::alone(late, None)], version };
    let made = bench.store().replay(replay, bench.now).await.unwrap();
    assert_eq!(with_nonces(&bench, late).await, 6);
    assert_eq!(made, [bench.rows(late).await[5].key()]);
    let folds = bench.subscriber("folds").await;
    let folded = |id: &str, key: &str| draft(id).folded(folds, &window(1_000), key);
    bench.send([folded("6", "a"), folded("7", "b")]).await;
    bench.pass(1_000);
    let close = Group { close: 1_000, room: room(1, &[folds]), ..Group::default() };
    let jobs = bench.commit(close).await.jobs;
    assert_eq!((jobs.len(), jobs[0].nonce != 0), (1, true));
    bench.send([folded("8", "c")]).await;
    let ask = EndWindows { subscriber: None, key: None, limit: 9, end: WindowsEnd::Close(ClosedBy::Flush) };
    bench.store().end_windows(PROJECT, ask, bench.now).await.unwrap();
    assert_eq!(with_nonces(&bench, folds).await, 3);
}

async fn every_session_has_another_nonce(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").to(subscriber)]).await;
    bench.reopen().await;
    bench.send([draft("2").to(subscriber)]).await;
    let [one, two] = &bench.rows(subscriber).await[..] else { panic!("two deliveries") };
    assert_ne!(one.nonce, two.nonce);
    let mint = Mint::new(bench.store().salt());
    let again = DeliveryKey { nonce: two.nonce, ..one.key() };
    assert_ne!(mint.delivery(one.key()), mint.delivery(again), "one number, two ids");
    for job in bench.claim_all(subscriber).await {
        let rows = [one, two];
        assert!(rows.iter().any(|row| row.key() == job.key()), "it keeps the one it was made with");
        bench.deliver(&job).await;
    }
}
