//! Rates: tokens for subscribers and gates whose rate all replicas keep together.
//!
//! Whoever has work and no tokens begs at the desk; here each beggar's bucket is asked, once at a time, and the answer brought
//! back. Workers never wait for it. Only runs where there is somebody to share with: a single process keeps its rates itself.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::limits::GRANT_ANSWER_MAX_MS;
use tidegate_core::schedule::{Beg, Penalty, Slot};
use tidegate_store::coordination::{BucketKey, Coordination, News};
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
            (begs, penalties) = desk.begging(), if asking.len() < ASKED_AT_ONCE => {
                for penalty in penalties {
                    asking.spawn(close(Arc::clone(&coordination), penalty));
                }
                for beg in begs {
                    asking.spawn(ask(Arc::clone(&desk), Arc::clone(&coordination), beg));
                }
            }
        }
    }
}

async fn ask(desk: Arc<Desk>, coordination: Arc<dyn Coordination>, beg: Beg) {
    let bucket = match beg.who {
        Slot::Subscriber(subscriber) => BucketKey::subscriber(subscriber),
        Slot::Gate(gate) => BucketKey::gate(gate),
    };
    let (asked, asked_at) = (desk.clock.steady(), desk.clock.now());
    let mut grant = coordination.take_in_line(&bucket, beg.flow, beg.wanted, beg.since).await;
    if beg.wanted == 0 {
        return desk.hear(beg.who, &grant, asked_at);
    }
    // A process that stood still meanwhile would use old tokens with new ones.
    if desk.clock.steady().saturating_sub(asked) > Duration::from_millis(GRANT_ANSWER_MAX_MS) {
        grant.granted = 0;
    }
    desk.grant(beg.who, grant, asked_at);
}

async fn close(coordination: Arc<dyn Coordination>, penalty: Penalty) {
    coordination.penalize(&BucketKey::gate(penalty.gate), penalty.flow, penalty.lasts).await;
    coordination.tell(News::penalty(penalty.gate));
}
