//! What the store really did, taken over into the history, and what must never be seen there.

use std::collections::BTreeSet;

use tidegate_core::id::DeliveryNo;

use super::*;

impl FaultyStore {
    /// What became of a group.
    pub(super) async fn note_outcome(&self, group: &Group, result: &Result<Committed>) {
        match result {
            Ok(committed) => {
                self.life.note_commit(true);
                self.note_commit(group, committed);
                note_steps(&self.inner, &self.history, self.life.t(), group, committed).await;
                windows::are_few(&self.inner, &self.history, self.windows_max).await;
            }
            Err(Error::Stale { .. }) => self.note_stale(),
            Err(_) => {}
        }
    }

    fn note_commit(&self, group: &Group, committed: &Committed) {
        self.note_progress();
        let t = self.life.t();
        let mut history = self.history.lock();
        let life = self.life.no();
        let mut void = 0;
        for finished in &group.results {
            if history.holds(&finished.claim, life) {
                note_result(&mut history, life, finished);
            } else {
                void += 1;
                history.reach("a result of a former life refused");
            }
        }
        if committed.stale != void {
            history.violation(format!("P3 {} results were refused, {void} should be", committed.stale));
        }
        for claim in &group.released {
            if history.holds(claim, life) {
                history.claims.remove(&claim.delivery);
            }
        }
        for claim in group.begun.iter().filter(|claim| !committed.unsealed.contains(claim)) {
            history.begun.insert(claim.delivery, (t, life));
        }
        let (known, until) = (history.accepted.len(), history.complete_until);
        arrivals::note(&mut history, group, committed, t);
        // A clock that went back may begin a life before what it showed in the last one.
        let has_gone_back = history.moves.iter().any(|ms| *ms < 0);
        if history.accepted.len() > known && group.now.as_ms() < until && !has_gone_back {
            let now = group.now;
            history.violation(format!(
                "P4 all up to {until} was said to be counted, and an event of {now} comes"
            ));
        }
        for job in &committed.jobs {
            let claimed = Claimed {
                nonce: job.nonce,
                token: job.token,
                subscriber: job.subscriber,
                lane: job.lane,
                attempts: job.attempts,
                life,
                made_in: job.life,
                is_suspect: job.is_suspect,
            };
            if history.claims.insert(job.delivery, claimed).is_some() {
                history.violation(format!("P3 delivery {} was claimed twice", job.delivery));
            }
        }
        if !committed.spilled.is_empty() && group.backfills.is_empty() && group.steps.is_empty() {
            history.reach("a queue spilled");
        }
        for subscriber in &committed.backfilled {
            let (version, accepted) = (history.version, history.accepted.len());
            if let Some(truth) = history.subs.get_mut(subscriber) {
                (truth.backfilled, truth.caught_up) = (Some(version), accepted);
            }
            history.reach("a backfill done");
        }
        history.line(
            t,
            format_args!(
                "commits {} results, {} releases, {} requests; claims {:?}",
                group.results.len(),
                group.released.len(),
                group.submissions.len(),
                committed.jobs.iter().map(|job| job.delivery).collect::<Vec<_>>(),
            ),
        );
        self.check_memory(&mut history);
        self.check_spinning(&mut history, t);
    }

    /// Replays an event, and notes for whom.
    pub(super) async fn replay_noted(&self, replay: Replay, now: Timestamp) -> Result<Vec<DeliveryKey>> {
        // Before it is replayed: afterwards it may be removed at any moment.
        let filter = EventFilter { limit: 10_000, ..Default::default() };
        let events = self.inner.events(replay.project, filter).await?.items;
        let event = events.iter().find(|event| event.seq == replay.event);
        let result = self.inner.replay(replay.clone(), now).await;
        if let Ok(made) = &result {
            // It was removed before: nobody gets it.
            let Some(event) = event else { return result };
            let key = (replay.project, event.source.clone(), event.id.clone());
            let t = self.life.t();
            let mut history = self.history.lock();
            history.line(t, format_args!("{} is replayed as {made:?}", event.id));
            history.reach("a replay of one event");
            for route in replay.routes.iter().filter(|route| route.fold.is_none()) {
                *history.replays.entry((route.subscriber, key.clone())).or_default() += 1;
            }
        }
        result
    }

    pub(super) fn note_sweep(&self, swept: &Swept, now: Timestamp) {
        let (t, mut history) = (self.life.t(), self.history.lock());
        far::check_sweep(&mut history, t, now);
        if t >= END_T {
            return;
        }
        if swept.events > 0 {
            history.reach("an event gone under way");
        }
        if swept.expired > 0 {
            history.reach("an undelivered event expired under way");
        }
    }

    /// Whoever commits again and again at one instant keeps time from passing: on a real machine, a core that burns.
    fn check_spinning(&self, history: &mut History, t: i64) {
        history.spins = if history.spins.0 == t { (t, history.spins.1 + 1) } else { (t, 0) };
        if history.spins.1 == SPINS_MAX {
            history.violation(format!("liveness: {SPINS_MAX} commits in one instant"));
            self.life.end();
        }
    }

    /// Memory is bounded: no subscriber has more in hand than its queue and its places hold, and what people asked for by hand.
    fn check_memory(&self, history: &mut History) {
        let Bounds { queue_jobs, refill_jobs, .. } = self.bounds;
        let (mut held, life) = (std::collections::BTreeMap::<SubscriberNo, usize>::new(), self.life.no());
        let by_hand: BTreeSet<DeliveryNo> = history.retries.iter().map(|(_, delivery)| *delivery).collect();
        let claims = history.claims.iter().filter(|(delivery, _)| !by_hand.contains(delivery));
        for (_, claimed) in claims.filter(|(_, claimed)| claimed.life == life) {
            *held.entry(claimed.subscriber).or_default() += 1;
        }
        for (subscriber, held) in held {
            let places = history.subs[&subscriber].specs.iter().map(|(_, spec)| spec.concurrency).max();
            let most = queue_jobs + refill_jobs + places.unwrap_or(0) as usize;
            if held > most {
                let text =
                    format!("P8 {held} deliveries of subscriber {subscriber} in memory, {most} allowed");
                history.violation(text);
            }
        }
    }

    /// Whoever is given up has not taken anything for as long as its owner said. (The change is written a little after
    /// it was decided; what arrived meanwhile came too late.)
    fn check_given_up(&self, history: &mut History, subscriber: SubscriberNo, after_ms: Option<u64>) {
        let Some(after_ms) = after_ms else { return };
        history.reach("a subscriber given up");
        let (now, t) = (self.life.clock.now().as_ms(), self.life.t());
        let since = now - i64::try_from(after_ms).expect("spans are short");
        let is_early = history.sends.iter().any(|sent| {
            let taken = sent.told.filter(|(_, heard)| heard.is_success());
            sent.subscriber == subscriber
                && sent.now > since
                && taken.is_some_and(|(told, _)| told + 3_000 < t)
        });
        if is_early && !history.is_store_away(t - 3_000, t) {
            history.violation(format!("P8 subscriber {subscriber} is given up, though it took something"));
        }
    }

    pub(super) fn note_change(&self, change: &Change, changed: Changed) {
        let t = self.life.t();
        let mut history = self.history.lock();
        history.version = changed.version;
        history.line(t, format_args!("configuration {} by {}", changed.version, name(change)));
        catalog::note_change(&mut history.catalogs, change);
        gates::note_change(&mut history.gates, change, t);
        match change {
            Change::CreateSubscriber(new) => {
                let spec = history.specs[&new.definition].clone();
                let truth = Truth {
                    id: new.id.clone(),
                    project: new.project,
                    specs: vec![(changed.version, spec)],
                    specs_t: vec![t],
                    deleted: None,
                    active: new.active && !new.unverified,
                    is_wanted: new.active,
                    is_unverified: new.unverified,
                    active_since: changed.version,
                    is_silenced: false,
                    backfill: new.backfill_from.map(Timestamp::as_ms),
                    backfilled: None,
                    caught_up: 0,
                    touched: vec![t],
                    pauses: if new.active && !new.unverified { Vec::new() } else { vec![(t, i64::MAX)] },
                };
                history.subs.insert(changed.no, truth);
            }
            Change::UpdateSubscriber { no, update, .. } => {
                let spec = update.definition.as_ref().map(|text| history.specs[text].clone());
                let mut failing = None;
                let truth = history.subs.get_mut(no).expect("only existing ones are changed");
                if let Some(spec) = spec {
                    truth.specs.push((changed.version, spec));
                    truth.specs_t.push(t);
                }
                if update.active == Some(Err("failing".to_owned())) {
                    failing = truth.specs.last().and_then(|(_, spec)| spec.disable_after_ms);
                }
                consent::note_change(truth, update, changed.version, t);
                truth.touched.push(t);
                self.check_given_up(&mut history, *no, failing);
            }
            Change::DeleteSubscriber { no, .. } => {
                let truth = history.subs.get_mut(no).expect("only existing ones are deleted");
                truth.deleted = Some(changed.version);
                truth.active_since = changed.version;
                truth.touched.push(t);
            }
            _ => {}
        }
    }
}

fn name(change: &Change) -> String {
    match change {
        Change::CreateSubscriber(new) => format!("creating {}", new.id),
        Change::UpdateSubscriber { no, update, .. } => {
            format!("changing {no}: active {:?}, definition {}", update.active, update.definition.is_some())
        }
        Change::DeleteSubscriber { no, .. } => format!("deleting {no}"),
        _ => "another change".to_owned(),
    }
}
