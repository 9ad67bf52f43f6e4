//! Windows that somebody ends by hand: those that gather and those that are closed and wait for their turn.
//!
//! What was ended is found by looking before and after, in the instant in which the store does it. What was cancelled is never sent;
//! everything else arrives as ever, also what waited behind it (P6).

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::delivery::Status;
use tidegate_core::fold::ClosedBy;
use tidegate_core::id::{DeliveryNo, ProjectNo, SubscriberNo, WindowNo};
use tidegate_core::time::Timestamp;
use tidegate_store::sqlite::SqliteStore;
use tidegate_store::{
    DeliveryRow, EndWindows, Ended, Result, Store as _, WindowFilter, WindowRow, WindowsEnd,
};

use super::acts::Site;
use super::dice::Dice;
use super::history::Histories;
use super::plan::{Act, END_T, Plan};

/// Windows that one call ends: few, so that some need several.
const AT_ONCE: usize = 3;

/// What was cancelled.
#[derive(Default)]
pub(crate) struct Endings {
    /// Events of windows that gathered.
    pub(crate) lost: BTreeMap<SubscriberNo, u32>,
    /// Deliveries of windows that had closed.
    pub(crate) unsent: BTreeSet<DeliveryNo>,
}

/// Lets somebody end windows now and then.
pub(crate) fn plan(seed: u64, plan: &mut Plan) {
    let mut dice = Dice::new(seed, "endings");
    if !dice.percent(60) {
        return;
    }
    for _ in 0..dice.below(6) + 1 {
        let id = dice.pick(&["fold-0", "fold-1"]).to_owned();
        let cancels = dice.percent(75);
        plan.acts.push((dice.between(2_000, END_T - 2_000), Act::EndWindows { id, cancels }));
    }
}

impl Site {
    /// Somebody ends all windows of a subscriber.
    pub(crate) async fn end_windows(&self, id: &str, cancels: bool) {
        let of = {
            let history = self.history.lock();
            history.sub_no(id).map(|no| (no, history.subs[&no].project))
        };
        let Some((no, project)) = of else { return };
        let end = if cancels { WindowsEnd::Cancel } else { WindowsEnd::Close(ClosedBy::Flush) };
        let ask = EndWindows { subscriber: Some(no), key: None, limit: AT_ONCE, end };
        loop {
            let Ok(ended) = self.parts.store.end_windows(project, ask, self.parts.clock.now()).await else {
                return;
            };
            self.pipeline.herald().work_is_due(ended.subscribers);
            if ended.is_complete {
                return;
            }
        }
    }
}

/// Ends windows, and notes which.
pub(crate) async fn end(
    store: &SqliteStore,
    (history, t): (&Histories, i64),
    project: ProjectNo,
    ask: EndWindows,
    now: Timestamp,
) -> Result<Ended> {
    let before = windows(store, project, ask.subscriber).await;
    let result = store.end_windows(project, ask, now).await;
    let Ok(ended) = &result else { return result };
    let mut after = windows(store, project, ask.subscriber).await;
    let mut gone: Vec<WindowRow> = Vec::new();
    for row in before.into_values() {
        let left = after.remove(&row.no);
        // One that is flushed may wait for its turn.
        if left.is_none_or(|left| left.closed.is_some() && row.closed.is_none()) {
            gone.push(row);
        }
    }
    let mut history = history.lock();
    history.line(t, format_args!("{} windows are ended by hand: {:?}", ended.windows, ask.end));
    if gone.len() != ended.windows {
        history.violation(format!(
            "P6 {} windows are said to have ended and {} have",
            ended.windows,
            gone.len()
        ));
    }
    if ask.end != WindowsEnd::Cancel {
        history.reach("a window flushed by hand");
        return result;
    }
    for row in gone {
        if row.closed.is_some() {
            history.reach("a closed window cancelled");
            // Whoever has it in hand and has not begun to send it does not hold it any more.
            history.claims.retain(|delivery, _| Some(*delivery) != row.delivery);
            history.endings.unsent.extend(row.delivery);
        } else {
            history.reach("a window cancelled");
            *history.endings.lost.entry(row.subscriber).or_default() += row.count;
        }
    }
    result
}

/// The windows of a project that can be joined.
pub(crate) async fn windows(
    store: &SqliteStore,
    project: ProjectNo,
    subscriber: Option<SubscriberNo>,
) -> BTreeMap<WindowNo, WindowRow> {
    let filter = WindowFilter { subscriber, after: None, waiting: true, limit: 10_000 };
    let page = store.windows(project, filter).await.expect("the store itself works");
    page.items.into_iter().map(|row| (row.no, row)).collect()
}

impl Endings {
    /// Whether a delivery is one that was cancelled by hand; both must say so.
    pub(crate) fn is_unsent(&self, row: &DeliveryRow, found: &mut Vec<String>) -> bool {
        let (is_told, is_shown) = (self.unsent.contains(&row.no), row.status == Status::Cancelled);
        if is_told != is_shown {
            found.push(format!("P6 delivery {} is {:?}, cancelled by hand: {is_told}", row.no, row.status));
        }
        is_told
    }
}
