//! Rates: tokens for subscribers whose rate all replicas keep together.
//!
//! Whoever has work and no tokens begs at the desk; here each beggar's bucket is asked, once at a time, and the answer brought
//! back. Workers never wait for it. Only runs where there is somebody to share with: a single process keeps its rates itself.

use std::sync::Arc;

use tidegate_core::schedule::Beg;
use tidegate_store::coordination::{BucketKey, Coordination};
use tokio::task::JoinSet;

use super::desk::Desk;

/// Buckets asked at once: enough to keep a slow answer from holding up the others.
const ASKED_AT_ONCE: usize = 64;

/// Brings tokens until it is aborted.
pub(super) async fn run(desk: Arc<Desk>, coordination: Arc<dyn Coordination>) {
    let mut asking = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = asking.join_next() => {}
            begs = desk.begging(), if asking.len() < ASKED_AT_ONCE => {
                for beg in begs {
                    asking.spawn(ask(Arc::clone(&desk), Arc::clone(&coordination), beg));
                }
            }
        }
    }
}

async fn ask(desk: Arc<Desk>, coordination: Arc<dyn Coordination>, beg: Beg) {
    let grant = coordination.take(&BucketKey::subscriber(beg.subscriber), beg.rate, beg.wanted).await;
    desk.grant(beg.subscriber, grant.granted, grant.next_in);
}
