//! Coming to rest: when faults are over, everybody who was paused goes on, and everything must come to its end.

use tidegate_store::Store;

use super::acts::Site;
use super::history::{Histories, Truth};
use super::plan::Plan;

impl Site {
    /// Everyone who is not meant to stay paused goes on, whether it was paused or its receiver was gone.
    pub(crate) async fn resume_all(&self, plan: &Plan) {
        for (id, is_wanted) in inactive(&self.history, plan) {
            if is_wanted {
                self.ask_again(&id).await;
            } else {
                self.set_active(&id, true).await;
            }
        }
    }
}

/// Who is not sent to and should be; and whether only its endpoint's consent is missing.
pub(crate) fn inactive(history: &Histories, plan: &Plan) -> Vec<(String, bool)> {
    let history = history.lock();
    let inactive = history.subs.values().filter(|truth| !truth.active && truth.deleted.is_none());
    // Whoever is to stay paused may have come too late to be paused.
    let is_left = |truth: &&Truth| !truth.is_wanted && Some(&truth.id) == plan.left_paused.as_ref();
    let meant = inactive.filter(|truth| !is_left(truth));
    meant.map(|truth| (truth.id.clone(), truth.is_wanted)).collect()
}

/// What has not come to its end yet, in words; nothing when everything has.
pub(crate) async fn unrest(store: &dyn Store, histories: &Histories, plan: &Plan) -> Option<String> {
    // Asked first: what was held until now is not counted as waiting.
    let is_awaited = !inactive(histories, plan).is_empty();
    let waiting = store.backlog().await.map_or(1, |backlog| backlog.waiting);
    let is_gathering = !matches!(store.close_due().await, Ok(None));
    let pasts = store.backfills_running().await.map_or(1, |pasts| pasts.len());
    let jobs = store.jobs_running().await.map_or(1, |jobs| jobs.len());
    let history = histories.lock();
    let is_backfilling = history
        .subs
        .values()
        .any(|truth| truth.backfill.is_some() && truth.backfilled.is_none() && truth.deleted.is_none());
    let is_still = waiting == 0 && jobs == 0 && pasts == 0 && !is_gathering && !is_awaited && !is_backfilling;
    if is_still && history.claims.is_empty() && history.posts_open == 0 {
        return None;
    }
    let claims: Vec<i64> = history.claims.keys().copied().collect();
    Some(format!(
        "claimed {claims:?}, waiting {waiting}, gathering {is_gathering}, jobs {jobs}, pasts {pasts}, \
         backfilling {is_backfilling}, awaited {is_awaited}"
    ))
}
