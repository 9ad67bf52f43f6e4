//! Following what is accepted: every event once, in order, from wherever one left off.

use tidegate_core::catalog::Mode;
use tidegate_core::delivery::Status;

use super::bench::{Bench, PLENTY, PROJECT, draft};
use super::{Case, named};
use crate::{Change, EventRow};

pub(super) fn cases() -> Vec<Case> {
    named!["follow":
        every_event_is_met_once_and_in_order,
        a_stretch_is_bounded_by_bytes_and_never_stands_still,
        the_newest_event_is_the_mark_of_the_present,
        another_projects_events_are_passed_over,
        deliveries_are_looked_up_by_their_numbers,
    ]
}

/// Goes on until the end; says what was met and the last mark.
async fn follow(bench: &Bench, mut after: i64, limit: usize, bytes: usize) -> (Vec<EventRow>, i64) {
    let mut met = Vec::new();
    loop {
        let stretch = bench.store().events_after(PROJECT, after, limit, bytes).await.unwrap();
        assert!(stretch.events.len() <= limit);
        assert!(stretch.is_end || stretch.through > after, "it goes on");
        met.extend(stretch.events);
        after = stretch.through;
        if stretch.is_end {
            return (met, after);
        }
    }
}

async fn every_event_is_met_once_and_in_order(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    for round in 0..4 {
        bench.send((0..6).map(|n| draft(format!("e{round}-{n}")).to(subscriber))).await;
    }
    let expected = bench.events(PROJECT).await;
    for limit in [1, 5, 24, 25] {
        let (met, end) = follow(&bench, 0, limit, PLENTY).await;
        assert_eq!(met, expected);
        let half = met[11].seq;
        assert_eq!(follow(&bench, half, limit, PLENTY).await.0, expected[12..]);
        assert!(follow(&bench, end, limit, PLENTY).await.0.is_empty());
    }
}

async fn a_stretch_is_bounded_by_bytes_and_never_stands_still(bench: Bench) {
    let large = || "x".repeat(1_000);
    bench.send((0..5).map(|n| draft(format!("e{n}")).saying(format!("\"{n}{}\"", large())))).await;
    let one = bench.store().events_after(PROJECT, 0, 10, 1).await.unwrap();
    assert_eq!((one.events.len(), one.is_end), (1, false), "one that is too large alone is still brought");
    let two = bench.store().events_after(PROJECT, 0, 10, 1_500).await.unwrap();
    assert_eq!(two.events.len(), 2);
    assert_eq!(follow(&bench, 0, 10, 1).await.0.len(), 5);
}

async fn the_newest_event_is_the_mark_of_the_present(mut bench: Bench) {
    assert_eq!(bench.store().newest().await.unwrap(), 0);
    bench.send([draft("before")]).await;
    let mark = bench.store().newest().await.unwrap();
    assert!(follow(&bench, mark, 10, PLENTY).await.0.is_empty());
    bench.send([draft("after")]).await;
    bench.reopen().await;
    let (met, _) = follow(&bench, mark, 10, PLENTY).await;
    assert_eq!(met.iter().map(|event| event.id.as_str()).collect::<Vec<_>>(), ["after"]);
}

async fn another_projects_events_are_passed_over(bench: Bench) {
    let other = bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Mode::Open }).await.no;
    bench.send((0..9).map(|n| draft(format!("e{n}")).of(if n % 3 == 0 { PROJECT } else { other }))).await;
    let (met, end) = follow(&bench, 0, 2, PLENTY).await;
    assert_eq!(met.len(), 3);
    assert_eq!(end, bench.store().newest().await.unwrap(), "the mark passes over what is others'");
}

async fn deliveries_are_looked_up_by_their_numbers(bench: Bench) {
    let other = bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Mode::Open }).await.no;
    let subscriber = bench.subscriber("s").await;
    bench.send((0..3).map(|n| draft(format!("e{n}")).to(subscriber))).await;
    let rows = bench.rows(subscriber).await;
    bench.deliver(&bench.refill(subscriber, 1).await.0[0]).await;
    let numbers = vec![rows[2].no, rows[0].no, i64::MAX, rows[0].no];
    let found = bench.store().deliveries_among(PROJECT, numbers.clone()).await.unwrap();
    assert_eq!(found.iter().map(|row| row.no).collect::<Vec<_>>(), [rows[0].no, rows[2].no]);
    assert_eq!((found[0].status, &found[0].events), (Status::Delivered, &rows[0].events));
    assert!(bench.store().deliveries_among(other, numbers).await.unwrap().is_empty());
}
