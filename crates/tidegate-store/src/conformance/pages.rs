//! Pages: every row once, whatever the size of the page and whatever is written between two of them.

use tidegate_core::catalog::Mode;
use tidegate_core::delivery::Status;

use super::bench::{Bench, PROJECT, draft};
use super::{Case, named};
use crate::{Change, DeliveryFilter, EventFilter, Group};

pub(super) fn cases() -> Vec<Case> {
    named!["pages":
        pages_of_events_show_each_once,
        pages_of_deliveries_show_each_once,
        a_page_is_steady_while_more_is_written,
        the_last_page_says_so,
    ]
}

/// Turns pages until the end. A page may be short, or even empty, only if there is another.
async fn all_events(bench: &Bench, filter: EventFilter) -> Vec<i64> {
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = bench.store().events(PROJECT, EventFilter { before, ..filter.clone() }).await.unwrap();
        assert!(page.items.len() <= filter.limit);
        seen.extend(page.items.iter().map(|row| row.seq));
        let Some(next) = page.next else { return seen };
        assert!(before.is_none_or(|before| next < before), "pages go on");
        before = Some(next);
    }
}

async fn all_deliveries(bench: &Bench, filter: DeliveryFilter) -> Vec<i64> {
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let filter = DeliveryFilter { before, ..filter.clone() };
        let page = bench.store().deliveries(PROJECT, filter).await.unwrap();
        seen.extend(page.items.iter().map(|row| row.no));
        let Some(next) = page.next else { return seen };
        assert!(before.is_none_or(|before| next < before), "pages go on");
        before = Some(next);
    }
}

async fn fill(bench: &Bench) -> i64 {
    let other = bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Mode::Open }).await.no;
    let subscriber = bench.subscriber("s").await;
    for round in 0..5 {
        let mine = (0..10).map(|n| {
            let kind = if n % 3 == 0 { "rare" } else { "usual" };
            draft(format!("e{round}-{n}")).kind(kind).to(subscriber)
        });
        let theirs = (0..10).map(|n| draft(format!("e{round}-{n}")).kind("rare").of(other));
        let unrouted = (0..10).map(|n| draft(format!("u{round}-{n}")));
        bench.send(mine.chain(theirs).chain(unrouted)).await;
    }
    subscriber
}

async fn pages_of_events_show_each_once(bench: Bench) {
    fill(&bench).await;
    let kinds = [(None, 100), (Some("rare".to_owned()), 20), (Some("none".to_owned()), 0)];
    for (type_name, count) in kinds {
        for source in [None, Some("shop".to_owned())] {
            let whole =
                EventFilter { type_name: type_name.clone(), source, limit: 1_000, ..Default::default() };
            let expected = all_events(&bench, whole.clone()).await;
            assert_eq!(expected.len(), count);
            assert!(expected.is_sorted_by(|a, b| a > b), "newest first");
            for limit in [1, 3, 10, 99, 100, 101] {
                assert_eq!(all_events(&bench, EventFilter { limit, ..whole.clone() }).await, expected);
            }
        }
    }
}

async fn pages_of_deliveries_show_each_once(bench: Bench) {
    let subscriber = fill(&bench).await;
    for job in bench.refill(subscriber, 20).await.0 {
        bench.exhaust(&job).await;
    }
    for status in [None, Some(Status::Exhausted), Some(Status::Pending), Some(Status::Held)] {
        for subscriber in [None, Some(subscriber)] {
            let whole = DeliveryFilter { status, subscriber, limit: 1_000, ..DeliveryFilter::default() };
            let expected = all_deliveries(&bench, whole.clone()).await;
            let count = match status {
                None => 50,
                Some(Status::Exhausted) => 20,
                Some(Status::Pending) => 30,
                Some(_) => 0,
            };
            assert_eq!(expected.len(), count);
            assert!(expected.is_sorted_by(|a, b| a > b), "newest first");
            for limit in [1, 7, 20, 50] {
                assert_eq!(all_deliveries(&bench, DeliveryFilter { limit, ..whole.clone() }).await, expected);
            }
        }
    }
}

async fn a_page_is_steady_while_more_is_written(bench: Bench) {
    let subscriber = fill(&bench).await;
    let expected = all_events(&bench, EventFilter { limit: 1_000, ..Default::default() }).await;
    let mut seen = Vec::new();
    let mut before = None;
    for round in 0.. {
        let filter = EventFilter { before, limit: 7, ..Default::default() };
        let page = bench.store().events(PROJECT, filter).await.unwrap();
        seen.extend(page.items.iter().map(|row| row.seq));
        bench.send([draft(format!("later{round}")).to(subscriber)]).await;
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    assert_eq!(seen, expected);
}

async fn the_last_page_says_so(bench: Bench) {
    let filter = |limit| EventFilter { limit, ..Default::default() };
    let empty = bench.store().events(PROJECT, filter(5)).await.unwrap();
    assert_eq!((empty.items.len(), empty.next), (0, None));
    let subscriber = bench.subscriber("s").await;
    let submissions = vec![super::bench::submission((0..5).map(|n| draft(format!("e{n}")).to(subscriber)))];
    bench.commit(Group { submissions, ..Group::default() }).await;
    for (limit, ends) in [(4, false), (5, true), (6, true)] {
        let events = bench.store().events(PROJECT, filter(limit)).await.unwrap();
        assert_eq!((events.items.len(), events.next.is_none()), (limit.min(5), ends));
        let of = DeliveryFilter { limit, ..Default::default() };
        let deliveries = bench.store().deliveries(PROJECT, of).await.unwrap();
        assert_eq!((deliveries.items.len(), deliveries.next.is_none()), (limit.min(5), ends));
    }
}
