//! Looking at windows, and ending them because somebody asks.

use tidegate_core::catalog::Mode;
use tidegate_core::delivery::Status;
use tidegate_core::fold::ClosedBy;
use tidegate_core::id::SubscriberNo;

use super::super::bench::{Bench, PROJECT, START, draft, new_subscriber};
use super::{Case, close, drain, key_of, named, open, quiet, seal, told, window};
use crate::{Change, EndWindows, Ended, NewSubscriber, RetryOutcome, WindowFilter, WindowsEnd};

pub(super) fn cases() -> Vec<Case> {
    named!["folds":
        windows_are_listed_page_by_page,
        windows_are_flushed_by_subscriber_and_key,
        windows_are_ended_a_few_at_a_time,
        a_cancelled_window_leads_to_nothing,
        what_waits_in_a_lane_can_be_cancelled_until_it_leaves,
        what_is_flushed_waits_in_its_lane,
        an_inactive_subscriber_folds_and_its_folds_are_held,
        deleting_a_subscriber_ends_its_windows,
        a_trace_tells_of_windows_and_deliveries,
        an_order_is_not_changed_while_windows_gather,
        an_order_is_not_changed_while_events_are_left_to_a_backfill,
    ]
}

async fn windows_are_listed_page_by_page(bench: Bench) {
    let (a, b) = (bench.subscriber("a").await, bench.subscriber("b").await);
    let other = bench.change(Change::CreateProject { id: "other".to_owned(), catalog: Mode::Open }).await.no;
    let new = NewSubscriber { project: other, ..new_subscriber("theirs") };
    let theirs = bench.change(Change::CreateSubscriber(new)).await.no;
    bench.send([draft("x").of(other).folded(theirs, &window(9_000), "k")]).await;
    for n in 0..5 {
        let id = format!("{n}");
        bench.send([draft(&*id).folded(a, &window(9_000), &id).folded(b, &quiet(500, 900), "k")]).await;
    }
    let mut filter = WindowFilter { limit: 4, ..Default::default() };
    let first = bench.store().windows(PROJECT, filter.clone()).await.unwrap();
    assert_eq!((first.items.len(), first.next), (4, first.items.last().map(|row| row.no)));
    filter.after = first.next;
    let rest = bench.store().windows(PROJECT, filter).await.unwrap();
    assert_eq!((rest.items.len(), rest.next), (2, None));
    let all: Vec<i64> = first.items.iter().chain(&rest.items).map(|row| row.no).collect();
    assert!(all.is_sorted_by(|a, b| a < b));
    let of_b = WindowFilter { subscriber: Some(b), limit: 9, ..Default::default() };
    let [row] = &bench.store().windows(PROJECT, of_b).await.unwrap().items[..] else { panic!("b has one") };
    assert_eq!((row.subscriber, row.subscriber_id.as_str(), row.mode), (b, "b", "quiet"));
    assert_eq!((row.key.as_str(), row.count, row.opened_at), ("{\"key\":\"k\"}", 5, START));
    assert_eq!(row.bytes, 5 * draft("0").body.len() as u64);
}

async fn end(bench: &Bench, subscriber: Option<SubscriberNo>, key: Option<&str>, end: WindowsEnd) -> Ended {
    let ask = EndWindows { subscriber, key: key.map(|key| key_of(key).hash), limit: 100, end };
    let ended = bench.store().end_windows(PROJECT, ask, bench.now).await.expect("the store works");
    bench.audit().await;
    ended
}

async fn windows_are_flushed_by_subscriber_and_key(mut bench: Bench) {
    let (a, b) = (bench.subscriber("a").await, bench.subscriber("b").await);
    let terms = window(9_000);
    let both = |id: &str, key: &str| draft(id).folded(a, &terms, key).folded(b, &terms, key);
    bench.send([both("1", "x"), both("2", "y"), both("3", "z")]).await;
    bench.pass(10);
    let flush = WindowsEnd::Close(ClosedBy::Flush);
    let ended = end(&bench, Some(a), Some("y"), flush).await;
    assert_eq!(
        (ended.windows, ended.closed.len(), ended.subscribers, ended.is_complete),
        (1, 1, vec![a], true)
    );
    assert_eq!(drain(&bench, a).await, told(&[(ClosedBy::Flush, "2")]));
    assert_eq!(end(&bench, None, Some("x"), flush).await.subscribers, [a, b]);
    let ended = end(&bench, None, None, WindowsEnd::Close(ClosedBy::Trigger)).await;
    assert_eq!((ended.windows, ended.subscribers), (3, vec![a, b]));
    assert_eq!(drain(&bench, a).await, told(&[(ClosedBy::Flush, "1"), (ClosedBy::Trigger, "3")]));
    assert_eq!(end(&bench, None, None, flush).await, Ended { is_complete: true, ..Ended::default() });
    bench.send([both("4", "x")]).await;
    assert_eq!(open(&bench).await.len(), 2, "what comes next gathers anew");
}

async fn windows_are_ended_a_few_at_a_time(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = window(9_000);
    bench.send((0..5).map(|n| draft(format!("{n}")).folded(subscriber, &terms, &format!("{n}")))).await;
    let ask = EndWindows { subscriber: None, key: None, limit: 2, end: WindowsEnd::Close(ClosedBy::Flush) };
    for (windows, is_complete) in [(2, false), (2, false), (1, true)] {
        let ended = bench.store().end_windows(PROJECT, ask, bench.now).await.unwrap();
        assert_eq!((ended.windows, ended.is_complete), (windows, is_complete));
    }
    let order: Vec<String> = drain(&bench, subscriber).await.into_iter().map(|(_, ids)| ids).collect();
    assert_eq!(order, ["0", "1", "2", "3", "4"], "the oldest first");
}

async fn a_cancelled_window_leads_to_nothing(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").folded(subscriber, &window(1_000), "a")]).await;
    let ended = end(&bench, Some(subscriber), None, WindowsEnd::Cancel).await;
    assert_eq!(
        (ended.windows, ended.closed.len(), ended.subscribers, ended.is_complete),
        (1, 1, vec![], true)
    );
    bench.reopen().await;
    bench.pass(5_000);
    assert!(close(&bench).await.closed.is_empty() && open(&bench).await.is_empty());
    assert!(bench.rows(subscriber).await.is_empty());
    let event = bench.events(PROJECT).await[0].seq;
    let trace = bench.store().trace(PROJECT, event).await.unwrap();
    let [row] = &trace.windows[..] else { panic!("it is told") };
    assert_eq!((row.closed.map(|(_, by)| by), row.delivery), (Some(ClosedBy::Cancelled), None));
    bench.send([draft("2").folded(subscriber, &window(1_000), "a")]).await;
    assert_eq!(open(&bench).await[0].count, 1);
}

/// In lane 7 one is claimed, one waits behind it and a third follows, unfolded; that of lane 8 has begun to leave.
async fn what_waits_in_a_lane_can_be_cancelled_until_it_leaves(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = window(1_000);
    let folded = |id: &str, key: &str, lane| draft(id).folded_in(subscriber, &terms, key, lane);
    bench.send([folded("1", "a", 7), folded("2", "b", 7), folded("3", "c", 8)]).await;
    bench.pass(1_000);
    close(&bench).await;
    bench.send([draft("4").saying("4").lane(subscriber, 7)]).await;
    let jobs = bench.claim_all(subscriber).await;
    let [claimed, leaving] = &jobs[..] else { panic!("two lanes have a head each") };
    assert!(seal(&bench, leaving).await);
    let flush = WindowsEnd::Close(ClosedBy::Flush);
    assert_eq!(end(&bench, None, None, flush).await.windows, 0, "they are closed already");
    let ended = end(&bench, Some(subscriber), None, WindowsEnd::Cancel).await;
    assert_eq!(
        (ended.windows, ended.closed.len(), ended.unsent.len(), ended.subscribers, ended.is_complete),
        (2, 0, 2, vec![subscriber], true)
    );
    let waiting = WindowFilter { limit: 9, waiting: true, ..Default::default() };
    assert!(bench.store().windows(PROJECT, waiting).await.unwrap().items.is_empty());
    assert!(!seal(&bench, claimed).await, "whoever holds it can not send it any more");
    bench.release(claimed).await;
    for event in ["1", "2"] {
        let row = bench.row(subscriber, event).await;
        assert_eq!((row.status, row.attempts), (Status::Cancelled, 0));
        assert!(row.reason.is_some_and(|reason| reason.contains("by request")));
        assert_eq!(row.fold.and_then(|fold| fold.closed).map(|(_, by)| by), Some(ClosedBy::Cancelled));
        let refused = bench.store().retry(PROJECT, row.no, bench.now).await.unwrap();
        assert_eq!(refused, RetryOutcome::Refused(Status::Cancelled));
    }
    let next = bench.claim_one(subscriber).await;
    assert_eq!((next.fold, next.lane), (None, Some(7)), "those behind them go");
    bench.deliver(&next).await;
    bench.deliver(leaving).await;
    bench.send([folded("5", "a", 7)]).await;
    bench.reopen().await;
    bench.pass(1_000);
    close(&bench).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "5")]), "what comes next is new");
    bench.audit().await;
}

async fn what_is_flushed_waits_in_its_lane(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let folded = |id: &str| draft(id).folded_in(subscriber, &window(9_000), "a", 7);
    bench.send([draft("before").lane(subscriber, 7), folded("1")]).await;
    end(&bench, None, None, WindowsEnd::Close(ClosedBy::Flush)).await;
    bench.send([folded("2")]).await;
    let before = bench.claim_one(subscriber).await;
    assert!(before.fold.is_none());
    bench.deliver(&before).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Flush, "1 2")]));
}

async fn an_inactive_subscriber_folds_and_its_folds_are_held(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let terms = window(1_000);
    bench.send([draft("1").folded(subscriber, &terms, "a")]).await;
    bench.pause(subscriber).await;
    bench.send([draft("2").folded(subscriber, &terms, "a")]).await;
    bench.pass(1_000);
    assert_eq!(close(&bench).await.closed.len(), 1, "windows open and close as usual");
    let [row] = &bench.rows(subscriber).await[..] else { panic!("one fold") };
    assert_eq!((row.status, row.events.len()), (Status::Held, 2));
    bench.resume(subscriber).await;
    assert_eq!(drain(&bench, subscriber).await, told(&[(ClosedBy::Window, "1 2")]));
}

async fn deleting_a_subscriber_ends_its_windows(mut bench: Bench) {
    let (gone, stays) = (bench.subscriber("gone").await, bench.subscriber("stays").await);
    let terms = window(1_000);
    bench.send([draft("0").folded_in(gone, &terms, "b", 7)]).await;
    bench.pass(1_000);
    close(&bench).await;
    bench.send([draft("1").folded(gone, &terms, "a").folded(stays, &terms, "a")]).await;
    bench.change(Change::DeleteSubscriber { project: PROJECT, no: gone }).await;
    bench.audit().await;
    assert_eq!(open(&bench).await.iter().map(|row| row.subscriber).collect::<Vec<_>>(), [stays]);
    bench.reopen().await;
    bench.pass(1_000);
    assert_eq!(close(&bench).await.closed.len(), 1);
    assert_eq!(drain(&bench, stays).await, told(&[(ClosedBy::Window, "1")]));
    let event = bench.events(PROJECT).await[1].seq;
    let trace = bench.store().trace(PROJECT, event).await.unwrap();
    let ended: Vec<_> =
        trace.windows.iter().map(|row| (row.subscriber, row.closed.map(|(_, by)| by))).collect();
    assert!(ended.contains(&(gone, Some(ClosedBy::Deleted))), "{ended:?}");
    let [row] = &bench.rows(gone).await[..] else { panic!("what had closed stays") };
    assert_eq!(row.status, Status::Cancelled);
}

async fn a_trace_tells_of_windows_and_deliveries(mut bench: Bench) {
    let (a, b) = (bench.subscriber("a").await, bench.subscriber("b").await);
    let terms = window(1_000);
    let both = |id: &str| draft(id).folded(a, &terms, "x").folded(b, &window(5_000), "y");
    bench.send([both("1"), both("2")]).await;
    bench.pass(1_000);
    close(&bench).await;
    let job = bench.claim_one(a).await;
    assert!(seal(&bench, &job).await);
    bench.deliver(&job).await;
    for event in bench.events(PROJECT).await {
        let trace = bench.store().trace(PROJECT, event.seq).await.unwrap();
        let told: Vec<_> =
            trace.deliveries.iter().map(|row| (row.no, row.status, row.events.len())).collect();
        assert_eq!(told, [(job.delivery, Status::Delivered, 2)], "every member tells of it, once");
        let told: Vec<_> = trace.windows.iter().map(|row| (row.subscriber, row.delivery)).collect();
        assert_eq!(told, [(a, Some(job.delivery)), (b, None)]);
        assert_eq!(trace.windows[1].closed, None);
    }
}

async fn an_order_is_not_changed_while_windows_gather(bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("1").folded_in(subscriber, &window(1_000), "a", 7)]).await;
    let update = crate::SubscriberUpdate { reorders: true, ..Default::default() };
    let change = Change::UpdateSubscriber { project: PROJECT, no: subscriber, update };
    let refused = bench.try_change(change.clone()).await;
    assert!(matches!(refused, Err(crate::Error::Unfinished)), "{refused:?}");
    end(&bench, None, None, WindowsEnd::Cancel).await;
    bench.change(change).await;
}

async fn an_order_is_not_changed_while_events_are_left_to_a_backfill(bench: Bench) {
    bench.send([draft("1")]).await;
    let subscriber = bench.backfilled("s", START).await;
    bench.send([draft("2").folded_in(subscriber, &window(1_000), "a", 7)]).await;
    let update = crate::SubscriberUpdate { reorders: true, ..Default::default() };
    let change = Change::UpdateSubscriber { project: PROJECT, no: subscriber, update };
    let refused = bench.try_change(change.clone()).await;
    assert!(matches!(refused, Err(crate::Error::Unfinished)), "{refused:?}");
    let (step, _) = bench.store().backfill(subscriber, 9).await.unwrap().expect("a past");
    bench.commit(crate::Group { backfills: vec![step], ..Default::default() }).await;
    bench.change(change).await;
}
