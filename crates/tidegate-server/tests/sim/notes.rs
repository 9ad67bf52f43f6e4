//! What a commit really wrote, noted in the history: results, and the steps of jobs.

use tidegate_core::id::{DeliveryNo, Seq};
use tidegate_core::retry::Next;
use tidegate_store::sqlite::SqliteStore;
use tidegate_store::{Committed, EventFilter, Finished, Group, Store};

use super::history::{Histories, History};

/// Notes the steps of jobs that were really taken: those that begin where the last one ended.
pub(crate) async fn note_steps(
    store: &SqliteStore,
    histories: &Histories,
    t: i64,
    group: &Group,
    committed: &Committed,
) {
    for step in &group.steps {
        let is_taken = committed.stepped.contains(&step.job)
            && histories.lock().jobs.get(&step.job).is_some_and(|truth| truth.mark == step.after);
        if !is_taken {
            continue;
        }
        let filter = EventFilter { limit: 10_000, ..Default::default() };
        let events = store.events(step.project, filter).await.expect("it was written").items;
        // What has gone since it was found is not sent again.
        let key_of = |seq: Seq| {
            let row = events.iter().find(|row| row.seq == seq)?;
            Some((step.project, row.source.clone(), row.id.clone()))
        };
        let mut history = histories.lock();
        let version = history.version;
        let alone = step.replays.iter().filter(|(_, route)| route.fold.is_none());
        for (key, route) in alone.filter_map(|(seq, route)| Some((key_of(*seq)?, route))) {
            *history.replays.entry((route.subscriber, key)).or_default() += 1;
            history.reach("a job that replays");
        }
        for delivery in &step.retries {
            history.retries.push((t, *delivery));
            history.reach("a job that retries");
        }
        let truth = history.jobs.get_mut(&step.job).expect("it was begun");
        truth.covered.extend(step.replays.iter().map(|(seq, _)| *seq).chain(step.retries.clone()));
        truth.mark = step.through;
        truth.versions.1 = version;
        history.line(t, format_args!("job {} steps to {}", step.job, step.through));
    }
}

fn is_fold_recorded(history: &mut History, life: usize, delivery: DeliveryNo) -> bool {
    let mut own = history.folds.iter_mut().filter(|sent| sent.life == life && sent.delivery == delivery);
    own.find(|sent| !sent.is_recorded).is_some_and(|sent| {
        sent.is_recorded = true;
        true
    })
}

/// Notes what the store was told of an attempt.
pub(crate) fn note_result(history: &mut History, life: usize, finished: &Finished) {
    let delivery = finished.claim.delivery;
    let was_suspect = history.claims.remove(&delivery).is_some_and(|claimed| claimed.is_suspect);
    if was_suspect && finished.next == Next::Delivered {
        history.reach("a suspect delivered");
    }
    if matches!(finished.next, Next::Exhausted(_)) {
        history.reach("a delivery exhausted");
    }
    if is_fold_recorded(history, life, delivery) {
        return;
    }
    let sent = history.sends.iter_mut().rev().filter(|sent| sent.life == life);
    match sent.into_iter().find(|sent| sent.delivery == delivery && sent.recorded.is_none()) {
        Some(sent) => sent.recorded = Some(finished.next.clone()),
        None => history.violation(format!("a result of delivery {delivery} that was not attempted")),
    }
}
