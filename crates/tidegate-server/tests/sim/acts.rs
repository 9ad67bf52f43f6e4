//! The people of the simulation: clients that post, owners that change their subscribers. They do what the HTTP API
//! does with their requests, and some hang up before they are answered.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tidegate_core::delivery::Status;
use tidegate_core::id::{ProjectNo, SubscriberNo};
use tidegate_core::ingest::Request;
use tidegate_core::time::Timestamp;
use tidegate_server::pipeline::errands::Errand;
use tidegate_server::pipeline::persist::Unavailable;
use tidegate_server::pipeline::{Parts, Pipeline};
use tidegate_store::{
    Change, DeliveryFilter, Error, EventFilter, NewJob, NewSubscriber, Past, Replay, RetryOutcome, Selector,
    StopOutcome, SubscriberUpdate, UnitStatus, VerificationUpdate, What,
};

use super::consent::{self, Asked};
use super::history::{EventKey, Histories, Told};
use super::life::Life;
use super::plan::Act;
use super::spec::{Content, Spec};
use super::store::restless::is_any_slow;

/// A running product, as people meet it.
pub(crate) struct Site {
    pub(crate) pipeline: Pipeline,
    pub(crate) parts: Parts,
    pub(crate) life: Arc<Life>,
    pub(crate) history: Histories,
}

/// A request that waits for its answer; nobody does any more when its process has ended.
struct Open(Histories);

impl Open {
    fn new(history: &Histories) -> Self {
        history.lock().posts_open += 1;
        Self(history.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut history = self.0.lock();
        history.posts_open = history.posts_open.saturating_sub(1);
    }
}

impl Site {
    /// Does one thing, to its end or to the end of somebody's patience.
    pub(crate) async fn perform(&self, act: Act) {
        match act {
            Act::Post { project, body, patience_ms } => {
                let Some(project) = self.project(project) else { return };
                let _open = Open::new(&self.history);
                self.patiently(patience_ms, self.post(project, body)).await;
            }
            Act::Create { project, spec, from_ms, active, patience_ms } => {
                let Some(project) = self.project(project) else { return };
                self.patiently(patience_ms, self.create(project, spec, from_ms, active)).await;
            }
            Act::Patch { spec, patience_ms } => {
                let (reorders, verification) = self.moves(&spec);
                let definition = Some(self.register(&spec));
                let update =
                    SubscriberUpdate { definition, reorders, verification, ..SubscriberUpdate::default() };
                self.patiently(patience_ms, self.update(&spec.id, update)).await;
            }
            Act::SetActive { id, active, patience_ms } => {
                self.patiently(patience_ms, self.set_active(&id, active)).await;
            }
            Act::Delete { id } => {
                if let Some((project, no)) = self.living(&id) {
                    self.change(Change::DeleteSubscriber { project, no }).await;
                }
            }
            Act::Catalog { project, edit } => {
                if let Some(project) = self.project(project) {
                    self.edit(project, edit).await;
                }
            }
            Act::Gate { project, deed } => {
                if let Some(project) = self.project(project) {
                    self.at_gate(project, deed).await;
                }
            }
            Act::EndWindows { id, cancels } => self.end_windows(&id, cancels).await,
            Act::Ask => self.ask().await,
            Act::Retry { roll } => self.retry(roll).await,
            Act::Replay { roll } => self.replay(roll).await,
            Act::Job { roll } => self.job(roll).await,
            Act::Jump { .. } | Act::Stop { .. } | Act::Crash { .. } => {}
        }
    }

    async fn patiently(&self, patience_ms: Option<i64>, work: impl Future<Output = ()>) {
        match patience_ms {
            None => work.await,
            Some(ms) => {
                let patience = Duration::from_millis(ms.unsigned_abs());
                if tokio::time::timeout(patience, work).await.is_err() {
                    self.history.lock().reach("a client that hung up");
                }
            }
        }
    }

    fn project(&self, id: &str) -> Option<ProjectNo> {
        self.parts.rosters.current().projects.get(id).map(|row| row.no)
    }

    /// A subscriber that has been created and not been deleted.
    fn living(&self, id: &str) -> Option<(ProjectNo, SubscriberNo)> {
        let history = self.history.lock();
        let no = history.sub_no(id)?;
        let truth = &history.subs[&no];
        truth.deleted.is_none().then_some((truth.project, no))
    }

    /// Whether a new definition changes what puts events in one lane, and what it means for its endpoint's consent.
    fn moves(&self, spec: &Spec) -> (bool, Option<VerificationUpdate>) {
        let history = self.history.lock();
        let known = history.sub_no(&spec.id).and_then(|no| history.subs[&no].specs.last());
        let known = known.map(|(_, known)| known);
        (known.is_some_and(|known| known.lanes != spec.lanes), consent::update(known, spec))
    }

    async fn post(&self, project: ProjectNo, body: String) {
        let sent: Value = serde_json::from_str(&body).expect("plans are JSON");
        let body = Bytes::from(body);
        let request = Request { content_type: None, headers: &[], body: &body };
        let Ok(units) = self.pipeline.ingest.decode(&request) else {
            return self.history.lock().reach("a request refused");
        };
        let is_slow = is_any_slow(project, &units);
        let receipt = self.pipeline.ingest.accept(project, units).await;
        let mut history = self.history.lock();
        match receipt {
            Ok(receipt) => {
                let sent = sent.as_array().cloned().unwrap_or_else(|| vec![sent]);
                for (event, (id, status)) in sent.iter().zip(receipt) {
                    let key: EventKey = (project, "shop".to_owned(), id);
                    check_answer(&mut history, &key, &Content::of(event), status);
                    history.told.push(Told { key, status });
                }
            }
            Err(why) => {
                if why == Unavailable::Configuration && !is_slow {
                    history.violation("P8 a request is refused because another one was stale".to_owned());
                }
                history.reach(match why {
                    Unavailable::Store => "a request turned away",
                    Unavailable::Configuration => "a request that was stale too often",
                });
                let t = self.life.t();
                history.line(t, format_args!("a request is turned away"));
            }
        }
    }

    /// Makes a definition known to the history and gives it as the store keeps it.
    fn register(&self, spec: &Spec) -> String {
        let definition = spec.definition();
        self.history.lock().specs.insert(definition.clone(), spec.clone());
        definition
    }

    async fn create(&self, project: ProjectNo, spec: Spec, from_ms: Option<i64>, active: bool) {
        let now = self.parts.clock.now();
        let nonce = self.parts.entropy.bytes();
        let new = NewSubscriber {
            project,
            id: spec.id.clone(),
            definition: self.register(&spec),
            secret: self.parts.rosters.seal(
                project,
                &spec.id,
                "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                nonce,
            ),
            destination: None,
            active,
            unverified: spec.asked != Asked::Never,
            backfill_from: from_ms.map(|ms| Timestamp::from_ms(now.as_ms().saturating_sub(ms).max(0))),
        };
        let wants_past = new.backfill_from.is_some();
        if let Some(no) = self.change(Change::CreateSubscriber(new)).await
            && wants_past
        {
            self.pipeline.errands.start(Errand::Backfill(no));
        }
    }

    /// Resumes or pauses a subscriber, as its owner.
    pub(crate) async fn set_active(&self, id: &str, active: bool) {
        let active = Some(if active { Ok(()) } else { Err("paused".to_owned()) });
        self.update(id, SubscriberUpdate { active, ..SubscriberUpdate::default() }).await;
    }

    pub(crate) async fn update(&self, id: &str, update: SubscriberUpdate) {
        if let Some((project, no)) = self.living(id) {
            self.change(Change::UpdateSubscriber { project, no, update }).await;
        }
    }

    /// What the API does with every change.
    pub(crate) async fn change(&self, change: Change) -> Option<SubscriberNo> {
        let is_end = match &change {
            Change::UpdateSubscriber { update, .. } => matches!(update.active, Some(Err(_))),
            Change::DeleteSubscriber { .. } => true,
            _ => false,
        };
        let changed = self.parts.rosters.change(change, self.parts.clock.now()).await;
        match changed {
            Ok(changed) => {
                self.pipeline.reconfigured(&self.parts.rosters);
                // Other processes hear of it a little later.
                let is_known = self.parts.standing.is_alone();
                if let Some(truth) = self.history.lock().subs.get_mut(&changed.no) {
                    truth.is_silenced |= is_known && is_end && truth.active_since == changed.version;
                }
                Some(changed.no)
            }
            Err(error) => {
                let t = self.life.t();
                self.history.lock().line(t, format_args!("a change is turned away: {error}"));
                None
            }
        }
    }

    async fn retry(&self, roll: u64) {
        let roster = self.parts.rosters.current();
        let projects: Vec<ProjectNo> = roster.projects.values().map(|row| row.no).collect();
        let pick = |count: usize| usize::try_from(roll % count.max(1) as u64).expect("small");
        let project = projects[pick(projects.len())];
        let filter = DeliveryFilter { limit: 500, ..DeliveryFilter::default() };
        let Ok(page) = self.parts.store.deliveries(project, filter).await else { return };
        let (mut stopped, mut others) = (Vec::new(), Vec::new());
        for row in page.items {
            match row.status {
                Status::Exhausted => stopped.push(row.no),
                Status::Retrying | Status::Held | Status::Pending => others.push(row.no),
                _ => {}
            }
        }
        let choices = if stopped.is_empty() || roll.is_multiple_of(5) { others } else { stopped };
        let Some(delivery) = choices.get(pick(choices.len())) else { return };
        let now = self.parts.clock.now();
        if let Ok(RetryOutcome::Due { subscriber }) = self.parts.store.retry(project, *delivery, now).await {
            self.pipeline.desk.ask(subscriber, *delivery);
        }
    }
}

impl Site {
    /// Sends an event again, to everybody who wants it today or to one of them.
    async fn replay(&self, roll: u64) {
        let pick = |count: usize| usize::try_from(roll / 7 % count.max(1) as u64).expect("small");
        for _ in 0..3 {
            let roster = self.parts.rosters.current();
            let projects: Vec<ProjectNo> = roster.projects.values().map(|row| row.no).collect();
            let project = projects[pick(projects.len())];
            let filter = EventFilter { limit: 500, ..EventFilter::default() };
            let Ok(mut page) = self.parts.store.events(project, filter).await else { return };
            if page.items.is_empty() {
                return;
            }
            let row = page.items.swap_remove(pick(page.items.len()));
            let (seq, event) = (row.seq, row.into_event());
            let mut routes = roster.router(project).map_or_else(Vec::new, |router| router.route(&event));
            if !routes.is_empty() && roll.is_multiple_of(2) {
                routes = vec![routes[pick(routes.len())].clone()];
            }
            let replay = Replay { project, event: seq, routes, version: roster.version };
            match self.pipeline.replay(replay).await {
                Err(Error::Stale { .. }) if self.parts.rosters.refresh().await.is_ok() => {}
                _ => return,
            }
        }
    }
}

impl Site {
    /// Begins a job; every fourth time, and then stops it.
    async fn job(&self, roll: u64) {
        let roster = self.parts.rosters.current();
        let pick = |count: usize| usize::try_from(roll / 11 % count.max(1) as u64).expect("small");
        let endpoints: Vec<_> =
            roster.endpoints().filter(|endpoint| !super::folds::is_fold(&endpoint.rule.id)).collect();
        let Some(endpoint) = endpoints.get(pick(endpoints.len())) else { return };
        let (project, subscriber) = (endpoint.rule.project, endpoint.rule.no);
        let what = match roll % 6 {
            0 | 1 => What::Replay { subscriber, past: Past::Any },
            2 => What::Replay { subscriber, past: Past::Delivered },
            3 => What::Replay { subscriber, past: Past::Exhausted },
            4 => What::DeadLetters { subscriber: None, ids: Vec::new(), nonces: Vec::new() },
            _ => What::DeadLetters { subscriber: Some(subscriber), ids: Vec::new(), nonces: Vec::new() },
        };
        let selector = Selector { what, types: Vec::new(), from: None, to: None };
        let Ok(scope) = self.parts.store.scope(project, selector, self.parts.clock.now()).await else {
            return;
        };
        let id = format!("job_{roll}");
        if self.pipeline.errands.begin(NewJob { id: id.clone(), scope }).await.is_err()
            || !roll.is_multiple_of(4)
        {
            return;
        }
        self.parts.clock.pause(Duration::from_millis(roll / 13 % 40)).await;
        if let Ok(StopOutcome::Stopped(_)) =
            self.parts.store.stop_job(project, id, self.parts.clock.now()).await
        {
            self.history.lock().reach("a job stopped");
        }
    }
}

/// What a client is told must already be true.
fn check_answer(
    history: &mut super::history::History,
    key: &EventKey,
    content: &Content,
    status: UnitStatus,
) {
    let stored = history.index.get(key).map(|index| history.accepted[*index].content.clone());
    let is_true = match (&stored, status) {
        (_, UnitStatus::Quarantined(_)) => return,
        (_, UnitStatus::Gone) => false,
        (None, _) => false,
        (Some(stored), UnitStatus::Accepted | UnitStatus::Duplicate) => stored == content,
        (Some(stored), UnitStatus::Conflict) => stored != content,
    };
    if !is_true {
        history.violation(format!("P1 a client was told {status:?} about {}, but {stored:?} is kept", key.2));
    }
}
