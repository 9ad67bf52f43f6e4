//! Many at once: tasks commit groups, finish attempts, change the configuration and read, all at the same time.
//! Each waits only for the store. What they were told must be what is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate_core::delivery::Status;
use tidegate_core::id::SubscriberNo;
use tidegate_core::retry::Next;
use tidegate_core::time::Timestamp;

use super::bench::{Bench, PROJECT, START, draft, finished, new_subscriber, room, submission};
use super::{Case, named};
use crate::{
    Change, Committed, DeliveryFilter, Error, EventFilter, Group, Refill, Store, SubscriberUpdate, UnitStatus,
};

/// Enough to meet each other, few enough to be quick on a slow disk.
const SENDERS: u64 = 4;
const REQUESTS: u64 = 40;
const LANES: i64 = 5;

pub(super) fn cases() -> Vec<Case> {
    named!["stress": many_at_once_agree_in_the_end]
}

/// Commits as the pipeline does: routed by the configuration read before, and again if that moved.
async fn commit(store: &Arc<dyn Store>, mut group: Group) -> Committed {
    loop {
        group.version = store.configuration(i64::MAX).await.unwrap().version;
        match store.commit(Arc::new(group.clone())).await {
            Ok(committed) => return committed,
            Err(Error::Stale { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn sender(store: Arc<dyn Store>, me: u64, to: [SubscriberNo; 2], accepted: Arc<AtomicU64>) {
    for n in 0..REQUESTS {
        // Neighbouring senders send the same ids: one of them is told that it was first.
        let id = format!("e{}-{n}", me / 2);
        let lane = (n as i64) % LANES;
        let event = draft(id).to(to[0]).lane(to[1], lane);
        let group = Group {
            now: START,
            submissions: vec![submission([event])],
            room: room((n % 3) as usize, &to),
            ..Group::default()
        };
        let mut committed = commit(&store, group).await;
        let statuses = committed.submissions.remove(0).unwrap();
        assert_ne!(statuses, [UnitStatus::Conflict]);
        accepted.fetch_add(u64::from(statuses == [UnitStatus::Accepted]), Ordering::Relaxed);
        deliver(&store, committed).await;
    }
}

/// Delivers what a commit handed over, and what that hands over in turn.
async fn deliver(store: &Arc<dyn Store>, mut committed: Committed) {
    while !committed.jobs.is_empty() {
        let results = committed.jobs.iter().map(|job| finished(job, Next::Delivered, START)).collect();
        committed = commit(store, Group { now: START, results, ..Group::default() }).await;
        assert_eq!(committed.stale, 0, "nobody else holds these claims");
    }
}

async fn refiller(store: Arc<dyn Store>, subscriber: SubscriberNo, stop: Arc<AtomicBool>) {
    loop {
        let last = stop.load(Ordering::Acquire);
        let refills = vec![Refill { subscriber, jobs: 3 }];
        let group = Group { now: START, refills, room: room(0, &[]), ..Group::default() };
        let committed = commit(&store, group).await;
        if committed.jobs.is_empty() && last {
            return;
        }
        deliver(&store, committed).await;
        tokio::task::yield_now().await;
    }
}

async fn changer(store: Arc<dyn Store>, subscriber: SubscriberNo) {
    for round in 0..10 {
        let update = SubscriberUpdate { definition: Some(format!("v{round}")), ..Default::default() };
        let change = Change::UpdateSubscriber { project: PROJECT, no: subscriber, update };
        let before = store.change(change, START).await.unwrap();
        let created = Change::CreateSubscriber(new_subscriber(&format!("new{round}")));
        let after = store.change(created, START).await.unwrap();
        assert!(after.version > before.version);
    }
}

/// Every read sees one instant: an event never without its deliveries.
async fn reader(store: Arc<dyn Store>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Acquire) {
        let page = store.events(PROJECT, EventFilter { limit: 5, ..Default::default() }).await.unwrap();
        for event in page.items {
            let trace = store.trace(PROJECT, event.seq).await.unwrap();
            assert_eq!(trace.deliveries.len(), 2);
            assert_eq!(store.event(PROJECT, event.id).await.unwrap().len(), 1);
        }
        store.backlog().await.unwrap();
        store.due().await.unwrap();
        tokio::task::yield_now().await;
    }
}

async fn many_at_once_agree_in_the_end(bench: Bench) {
    let to = [bench.subscriber("free").await, bench.subscriber("ordered").await];
    let (accepted, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let store = || Arc::clone(bench.store());
    let mut writers: Vec<_> =
        (0..SENDERS).map(|me| tokio::spawn(sender(store(), me, to, Arc::clone(&accepted)))).collect();
    writers.push(tokio::spawn(changer(store(), to[0])));
    let mut others: Vec<_> =
        to.into_iter().map(|no| tokio::spawn(refiller(store(), no, Arc::clone(&stop)))).collect();
    others.push(tokio::spawn(reader(store(), Arc::clone(&stop))));
    for writer in writers {
        writer.await.unwrap();
    }
    stop.store(true, Ordering::Release);
    for other in others {
        other.await.unwrap();
    }
    let expected = SENDERS / 2 * REQUESTS;
    assert_eq!(accepted.load(Ordering::Relaxed), expected, "each id was accepted exactly once");
    assert_eq!(bench.events(PROJECT).await.len() as u64, expected);
    for subscriber in to {
        let filter = DeliveryFilter { subscriber: Some(subscriber), limit: 10_000, ..Default::default() };
        let rows = bench.store().deliveries(PROJECT, filter).await.unwrap().items;
        assert_eq!(rows.len() as u64, expected);
        let unsent = rows.iter().filter(|row| row.status != Status::Delivered).count();
        assert_eq!(unsent, 0, "everything was delivered");
        assert!(rows.iter().all(|row| row.attempts == 1 && row.finished_at == Some(START)));
    }
    assert!(bench.store().latest() <= Timestamp::from_ms(START.as_ms()));
}
