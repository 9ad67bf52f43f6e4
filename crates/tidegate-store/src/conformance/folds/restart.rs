//! What a start finds again: every window as it was.

use tidegate_core::fold::{ClosedBy, Terms};
use tidegate_core::limits::CLAIMS_LOST_MAX;

use super::super::bench::{Bench, PROJECT, START, draft};
use super::{Case, carried, close, drain, named, open, past, quiet, route, seal, told, window};
use crate::{Group, Replay, WindowRow};

pub(super) fn cases() -> Vec<Case> {
    named!["folds":
        a_restart_finds_every_window_as_it_was,
        a_restart_finds_what_came_before_its_window,
        a_restart_finds_live_events_that_a_backfill_brought,
        a_restart_finds_what_waits_in_a_lane,
        a_restart_makes_a_claimed_fold_due_again,
        what_ends_too_many_lives_takes_nothing_more,
        windows_outlive_ten_times_their_length,
        numbers_of_windows_are_not_used_again,
    ]
}

/// What is told of the windows before and after.
async fn reopened(bench: &mut Bench) -> Vec<WindowRow> {
    let (before, due) = (open(bench).await, bench.store().close_due().await.unwrap());
    bench.audit().await;
    bench.reopen().await;
    assert_eq!(open(bench).await, before);
    assert_eq!(bench.store().close_due().await.unwrap(), due);
    before
}

async fn a_restart_finds_every_window_as_it_was(mut bench: Bench) {
    let (a, b) = (bench.subscriber("a").await, bench.subscriber("b").await);
    let (plain, calm) = (window(60_000), quiet(10_000, 60_000));
    let leading = Terms { leading: true, ..window(60_000) };
    for round in 0..4 {
        let id = |n: u32| format!("{round}-{n}");
        let both = |n: u32, key: &str| draft(id(n)).folded(a, &plain, key).folded(b, &calm, key);
        bench.send([both(0, "x"), both(1, "y"), both(2, "x")]).await;
        bench.send([draft(id(3)).folded(a, &leading, "z")]).await;
        bench.pass(3_000);
        if round % 2 == 1 {
            let rows = reopened(&mut bench).await;
            assert_eq!(rows.len(), 5);
        }
    }
    bench.pass(60_000);
    close(&bench).await;
    let of_a = drain(&bench, a).await;
    let x = "0-0 0-2 1-0 1-2 2-0 2-2 3-0 3-2";
    assert!(of_a.contains(&(ClosedBy::Window, x.to_owned())), "{of_a:?}");
    assert!(of_a.contains(&(ClosedBy::Leading, "0-3".to_owned())));
    assert!(of_a.contains(&(ClosedBy::Window, "1-3 2-3 3-3".to_owned())));
    assert!(drain(&bench, b).await.contains(&(ClosedBy::Quiet, x.to_owned())));
}

async fn a_restart_finds_what_came_before_its_window(mut bench: Bench) {
    bench.send(["1", "2", "3", "4"].map(draft)).await;
    bench.pass(100_000);
    let subscriber = bench.backfilled("s", START).await;
    let terms = quiet(10_000, 60_000);
    for limit in [1, 2, 10] {
        bench.send([draft(format!("live{limit}")).folded(subscriber, &terms, "a")]).await;
        let (mut step, events) = bench.store().backfill(subscriber, limit).await.unwrap().expect("a past");
        let into = |seq| (seq, route(step.subscriber, &terms, "a", 0));
        step.matched = events.iter().map(|event| into(event.seq)).collect();
        bench.pass(1_000);
        bench.commit(Group { backfills: vec![step], ..Group::default() }).await;
        let [row] = &reopened(&mut bench).await[..] else { panic!("one window gathers") };
        assert_eq!(row.due_at, bench.later(10_000), "the step was its last arrival");
        bench.send([draft(format!("more{limit}")).folded(subscriber, &terms, "a")]).await;
        reopened(&mut bench).await;
    }
    bench.pass(20_000);
    close(&bench).await;
    let expected = "1 2 3 4 live1 more1 live2 more2 live10 more10";
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Quiet, expected)]));
}

/// A live event that queued behind a backfill joins later than it was accepted: however many starts lie between, the
/// window keeps it, and what joined beside it.
async fn a_restart_finds_live_events_that_a_backfill_brought(mut bench: Bench) {
    bench.send(["past1", "past2"].map(draft)).await;
    let subscriber = bench.backfilled("s", START).await;
    let other = bench.subscriber("other").await;
    let terms = window(60_000);
    past::step(&bench, subscriber, 1, &terms, 7).await;
    bench.send([draft("live1").folded_in(subscriber, &terms, "a", 7)]).await;
    bench.send([draft("live2").folded_in(subscriber, &terms, "a", 7)]).await;
    // A start that finds a window to count again makes it known up to the last number.
    for round in 0..3 {
        bench.send([draft(format!("other{round}")).folded(other, &terms, "b")]).await;
        reopened(&mut bench).await;
        past::step(&bench, subscriber, 1, &terms, 7).await;
        reopened(&mut bench).await;
    }
    while bench.store().backfill(subscriber, 1).await.unwrap().is_some() {
        past::step(&bench, subscriber, 1, &terms, 7).await;
    }
    bench.send([draft("live3").folded_in(subscriber, &terms, "a", 7)]).await;
    reopened(&mut bench).await;
    bench.pass(60_000);
    close(&bench).await;
    let expected = told(&[(ClosedBy::Window, "past1 past2 live1 live2 live3")]);
    assert_eq!(drain(&bench, subscriber).await, expected);
}

async fn a_restart_finds_what_waits_in_a_lane(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = window(1_000);
    let folded = |id: &str| draft(id).folded_in(subscriber, &terms, "a", 7);
    bench.send([folded("1"), folded("2")]).await;
    bench.pass(1_000);
    close(&bench).await;
    bench.reopen().await;
    bench.send([folded("3")]).await;
    bench.reopen().await;
    bench.send([folded("4")]).await;
    assert!(open(&bench).await.is_empty());
    // A replay of one of them waits in the lane as well, in a fold of its own that takes other replays.
    let event = bench.events(PROJECT).await[0].seq;
    let routes = vec![route(subscriber, &terms, "a", 7)];
    let replay = Replay { project: PROJECT, event, routes, version: bench.version().await };
    let made = bench.store().replay(replay.clone(), bench.now).await.unwrap();
    bench.reopen().await;
    let event = bench.events(PROJECT).await[1].seq;
    let again = bench.store().replay(Replay { event, ..replay }, bench.now).await.unwrap();
    assert_eq!(made, again);
    let expected = told(&[(ClosedBy::Window, "1 2 3 4"), (ClosedBy::Flush, "1 2")]);
    assert_eq!(drain(&bench, subscriber).await, expected);
}

async fn a_restart_makes_a_claimed_fold_due_again(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let folded = |id: &str| draft(id).folded_in(subscriber, &window(1_000), "a", 7);
    bench.send([folded("1")]).await;
    bench.pass(1_000);
    close(&bench).await;
    let unsealed = bench.claim_one(subscriber).await;
    bench.reopen().await;
    bench.send([folded("2")]).await;
    let sealed = bench.claim_one(subscriber).await;
    assert_eq!((sealed.delivery, sealed.fold, sealed.token), (unsealed.delivery, unsealed.fold, 2));
    assert!(seal(&bench, &sealed).await);
    bench.reopen().await;
    bench.send([folded("3")]).await;
    let again = bench.claim_one(subscriber).await;
    assert_eq!(again.delivery, sealed.delivery);
    assert_eq!(carried(&bench, &again).await.1, "1 2", "it may have been sent");
    bench.deliver(&again).await;
    bench.pass(1_000);
    close(&bench).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "3")]));
}

async fn what_ends_too_many_lives_takes_nothing_more(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let folded = |id: &str| draft(id).folded_in(subscriber, &window(1_000), "a", 7);
    bench.send([folded("poison")]).await;
    bench.pass(1_000);
    close(&bench).await;
    bench.crash(subscriber, CLAIMS_LOST_MAX + 1).await;
    let suspect = bench.claim_one(subscriber).await;
    bench.send([folded("joins")]).await;
    assert!(suspect.is_suspect && bench.begin(&suspect).await);
    assert_eq!(carried(&bench, &suspect).await.1, "poison joins", "it had not begun to leave");
    bench.reopen().await;
    bench.audit().await;
    bench.send([folded("next")]).await;
    assert_eq!(open(&bench).await.len(), 1, "what was set aside is not joined");
    bench.pass(1_000);
    close(&bench).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "next")]));
}

async fn windows_outlive_ten_times_their_length(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send(["1", "2"].map(|id| draft(id).folded(subscriber, &quiet(1_000, 5_000), "a"))).await;
    bench.pass(50_000);
    bench.reopen().await;
    assert_eq!(bench.store().close_due().await.unwrap(), Some(START.plus(std::time::Duration::from_secs(1))));
    assert_eq!(close(&bench).await.closed[0].closed_by, ClosedBy::Quiet, "late rather than never");
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Quiet, "1 2")]));
}

async fn numbers_of_windows_are_not_used_again(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").folded(subscriber, &window(1_000), "a")]).await;
    let first = open(&bench).await[0].no;
    bench.reopen().await;
    bench.send([draft("2").folded(subscriber, &window(1_000), "b")]).await;
    let second = open(&bench).await[1].no;
    let events: Vec<i64> = bench.events(PROJECT).await.iter().map(|event| event.seq).collect();
    assert!(second > first && !events.contains(&first) && !events.contains(&second));
    assert!(events[1] > first);
}
