//! What is left of a world when time goes on: retention goes through everything that a run left behind.
//!
//! Nothing that could not be delivered is gone before it has ended visibly, and after all terms nothing is left. That the
//! rows hold together all the while is the audit's, which looks at them when the life is over.

use std::time::Duration;

use tidegate_core::delivery::Status;
use tidegate_core::retention::Retention;
use tidegate_store::{DeliveryFilter, DeliveryRow, EventFilter, Sweep};

use super::acts::Site;

const TERMS: Retention = Retention {
    events: Duration::from_secs(10),
    deliveries: Duration::from_secs(30),
    undelivered: Duration::from_secs(20),
    rollups: Duration::from_secs(50),
};

/// Lets the terms pass one after the other, and looks.
pub(crate) async fn age(site: &Site) {
    site.history.lock().is_ageing = true;
    let before = deliveries(site).await;
    site.life.clock.pause(TERMS.undelivered).await;
    sweep(site).await;
    let after = deliveries(site).await;
    for row in &before {
        let now = after.iter().find(|other| other.no == row.no).map(|other| other.status);
        let is_right = match row.status {
            Status::Held | Status::Exhausted => now == Some(Status::Expired),
            Status::Delivered | Status::Cancelled | Status::Expired => {
                now.is_none() || now == Some(row.status)
            }
            _ => false,
        };
        let mut history = site.history.lock();
        if now == Some(Status::Expired) {
            history.reach("an undelivered event expired");
        }
        if !is_right {
            let (no, status) = (row.no, row.status);
            history.violation(format!("retention: delivery {no} was {status:?} and is {now:?}"));
        }
    }
    site.life.clock.pause(TERMS.deliveries).await;
    sweep(site).await;
    let left = deliveries(site).await.len() + events(site).await;
    if left > 0 {
        site.history.lock().violation(format!("retention: {left} events and deliveries are left for ever"));
    }
}

async fn sweep(site: &Site) {
    let mut next = Some(Sweep::BEGIN);
    while let Some(sweep) = next {
        let now = site.parts.clock.now();
        next = site.parts.store.sweep(TERMS, sweep, 1_000, now).await.expect("the store works again").next;
    }
}

async fn deliveries(site: &Site) -> Vec<DeliveryRow> {
    let mut all = Vec::new();
    for project in site.parts.rosters.current().projects.values().map(|row| row.no) {
        let filter = DeliveryFilter { limit: 10_000, ..DeliveryFilter::default() };
        all.extend(site.parts.store.deliveries(project, filter).await.expect("the store works again").items);
    }
    all
}

async fn events(site: &Site) -> usize {
    let mut count = 0;
    for project in site.parts.rosters.current().projects.values().map(|row| row.no) {
        let filter = EventFilter { limit: 10_000, ..EventFilter::default() };
        count += site.parts.store.events(project, filter).await.expect("the store works again").items.len();
    }
    count
}
