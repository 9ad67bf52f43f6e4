//! Rebuilds that end before their time: by hand, or since they can never be finished.

use tidegate_core::observe::Switches;

use super::super::bench::{Bench, PROJECT};
use super::super::observe::{counter, declare};
use super::super::retention::{EVENTS, round};
use super::super::{Case, named};
use super::{Model, all, declared, finish_again, observe_all, run, specs, start, step, told};
use crate::{Change, Error};

pub(super) fn cases() -> Vec<Case> {
    named!("rebuilds":
        nothing_is_kept_for_what_can_never_be_finished,
        one_can_be_stopped,
        what_is_counted_beside_a_state_that_is_stopped_goes_on,
    )
}

/// A rebuild that nobody can take another step of would keep every event of the installation (P8).
async fn nothing_is_kept_for_what_can_never_be_finished(mut bench: Bench) {
    bench.send([told(1, "a", "NEW", 1)]).await;
    let before = declare(&bench, "order.paid", specs()).await;
    start(&bench, "order.paid", &before).await.expect("there is a past");
    observe_all(&bench).await;
    let off = Switches { states: Some(false), ..Switches::default() };
    bench.change(Change::SwitchObserving(off)).await;
    let [row] = &all(&bench).await[..] else { panic!("one was asked for") };
    assert_eq!(row.finished_at, Some(bench.now));
    assert_eq!(row.stopped.as_deref(), Some("what it counts was switched off"));
    bench.pass(EVENTS + 1_000);
    assert_eq!(round(&bench, 10).await.events, 1);
    bench.change(Change::SwitchObserving(Switches::default())).await;
    assert_eq!(declared(&bench, "order.paid").await, before, "it counts on under its number");
}

async fn one_can_be_stopped(mut bench: Bench) {
    bench.send([told(1, "a", "NEW", 1), told(2, "a", "PAID", 2)]).await;
    let before = declare(&bench, "order.paid", specs()).await;
    let row = start(&bench, "order.paid", &before).await.expect("there is a past");
    observe_all(&bench).await;
    let (halfway, _) = step(&bench, 1, &mut Model::default()).await;
    let unknown = bench.store().stop_backfill(PROJECT + 1, row.no, bench.now).await;
    assert!(matches!(unknown, Err(Error::NotFound)), "{unknown:?}");
    let stopped = bench.store().stop_backfill(PROJECT, row.no, bench.now).await.expect("it runs");
    assert_eq!(
        (stopped.stopped.as_deref(), stopped.finished_at),
        (Some("somebody stopped it"), Some(bench.now))
    );
    let twice = bench.store().stop_backfill(PROJECT, row.no, bench.now).await;
    assert!(matches!(twice, Err(Error::Conflict(_))), "{twice:?}");
    let late = finish_again(&bench, &halfway).await;
    assert!(matches!(late, Err(Error::Conflict(_))), "{late:?}");
    assert_eq!(declared(&bench, "order.paid").await, before);
    bench.reopen().await;
    start(&bench, "order.paid", &before).await.expect("nothing of it was counted");
    let mut model = Model::default();
    run(&bench, 1, &mut model).await;
    model.check(&bench, &declared(&bench, "order.paid").await).await;
    bench.pass(EVENTS + 1_000);
    round(&bench, 10).await;
    assert!(bench.events(PROJECT).await.is_empty());
}

/// What was added to a counter cannot be undone, so the rest is added too.
async fn what_is_counted_beside_a_state_that_is_stopped_goes_on(mut bench: Bench) {
    bench.send([told(1, "a", "NEW", 1), told(2, "a", "PAID", 2)]).await;
    let mut both = specs();
    both.push(counter("all", ""));
    let before = declare(&bench, "order.paid", both).await;
    let row = start(&bench, "order.paid", &before).await.expect("there is a past");
    assert_eq!(row.metrics.len(), 3);
    let (halfway, _) = step(&bench, 1, &mut Model::default()).await;
    let left = bench.store().stop_backfill(PROJECT, row.no, bench.now).await.expect("it runs");
    assert!(left.rebuild.is_empty() && left.finished_at.is_none() && left.stopped.is_none(), "{left:?}");
    let names: Vec<&str> = left.metrics.iter().map(|(_, name, _)| name.as_str()).collect();
    assert_eq!((names, left.after, left.version), (vec!["all"], halfway.after, row.version));
    let late = finish_again(&bench, &halfway).await;
    assert!(matches!(late, Err(Error::Conflict(_))), "{late:?}");
    observe_all(&bench).await;
    bench.pass(EVENTS + 1_000);
    round(&bench, 10).await;
    assert!(bench.events(PROJECT).await.is_empty(), "nothing is kept for it");
}
