//! Errands: going through what is already there, a step at a time.
//!
//! Three kinds. A backfill brings a new subscriber the events from before it was created; a replay makes new
//! deliveries of past events; a dead letter job tries again what was given up. Each step looks at a bounded number of
//! rows and leaves what it leads to with persist. The mark moves in the same commit, so a step is never lost or
//! repeated, whatever crashes.
//!
//! Jobs yield to live traffic: the next step waits until its subscribers' queues are short again, so a live event
//! outside the lanes waits for about one step of a job at most. Of processes that share a store only the one that leads
//! goes on errands; should two do so for a moment, the mark lets one of them through.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tidegate_core::id::{JobNo, ProjectNo, Seq, SubscriberNo};
use tidegate_core::route::{Judgement, Pattern, Route, Subscriber, View};
use tidegate_store::coordination::{Coordination, News};
use tidegate_store::{
    BackfillStep, EventRow, JobRow, JobStatus, JobStep, Judge, Judged, NewJob, Scan, Scope, Store, TraceRule,
    What,
};

use super::desk::Desk;
use super::persist::Persist;
use super::{Parts, STORE_RETRY};
use crate::clock::Clock;
use crate::roster::{Endpoint, Roster, Rosters};
use crate::standing::Standing;

/// Rows looked at per step.
const STEP_ROWS: usize = 1_000;
/// A job's next step waits while its subscriber has more than this in its queue.
const QUEUE_CALM: usize = STEP_ROWS / 2;
/// How long a job waits before it looks at the queues again, at first and at most.
const CALM_WAIT: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// Something to go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Errand {
    /// Past events for a new subscriber.
    Backfill(SubscriberNo),
    /// Something to send again.
    Job(JobNo),
}

/// What a step found.
struct Stepped {
    /// There may be another.
    is_more: bool,
    /// Who got something to do.
    busy: BTreeSet<SubscriberNo>,
}

/// Runs errands.
pub struct Errands {
    store: Arc<dyn Store>,
    rosters: Arc<Rosters>,
    persist: Arc<Persist>,
    desk: Arc<Desk>,
    clock: Clock,
    standing: Arc<Standing>,
    coordination: Option<Arc<dyn Coordination>>,
    /// Those that were begun in this life: they end by themselves.
    begun: Mutex<BTreeSet<Errand>>,
}

impl Errands {
    pub(super) fn new(parts: &Parts, desk: Arc<Desk>, persist: Arc<Persist>) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(&parts.store),
            rosters: Arc::clone(&parts.rosters),
            persist,
            desk,
            clock: parts.clock.clone(),
            standing: Arc::clone(&parts.standing),
            coordination: parts.coordination.clone(),
            begun: Mutex::default(),
        })
    }

    /// Goes on with every job that was running when the last process ended.
    pub(super) async fn resume_jobs(self: &Arc<Self>) -> tidegate_store::Result<()> {
        for job in self.store.jobs_running().await? {
            self.start(Errand::Job(job));
        }
        Ok(())
    }

    /// Goes on with every backfill that was under way.
    pub(super) fn resume_backfills(self: &Arc<Self>, roster: &Roster) {
        for endpoint in roster.endpoints().filter(|endpoint| endpoint.backfilling) {
            self.start(Errand::Backfill(endpoint.rule.no));
        }
    }

    /// Begins a job. It is begun even if the caller goes away.
    pub async fn begin(self: &Arc<Self>, new: NewJob) -> tidegate_store::Result<JobRow> {
        let errands = Arc::clone(self);
        let beginning = tokio::spawn(async move {
            let row = errands.store.start_job(new, errands.clock.now()).await?;
            errands.start(Errand::Job(row.no));
            if let Some(coordination) = &errands.coordination {
                coordination.tell(News { jobs: true, ..News::default() });
            }
            Ok(row)
        });
        beginning.await.unwrap_or_else(|error| {
            Err(tidegate_store::Error::Unavailable(format!("the job ended early: {error}")))
        })
    }

    /// Begins, or goes on with, an errand, once. Ends by itself, also with the pipeline.
    pub fn start(self: &Arc<Self>, errand: Errand) {
        if !self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert(errand) {
            return;
        }
        let (errands, standing) = (Arc::downgrade(self), Arc::clone(&self.standing));
        tokio::spawn(async move {
            standing.lead().await;
            let mut wait = CALM_WAIT.0;
            let mut busy = BTreeSet::new();
            while let Some(errands) = Weak::upgrade(&errands) {
                if errands.is_busy(&busy).await {
                    errands.clock.pause(wait).await;
                    wait = (wait * 2).min(CALM_WAIT.1);
                    continue;
                }
                wait = CALM_WAIT.0;
                if !standing.leads() {
                    drop(errands);
                    standing.lead().await;
                    continue;
                }
                match errands.step(errand).await {
                    Ok(stepped) if stepped.is_more => busy = stepped.busy,
                    Ok(_) => return,
                    Err(error) => {
                        tracing::warn!(%error, "an errand waits for the store");
                        errands.clock.pause(STORE_RETRY).await;
                    }
                }
            }
        });
    }

    /// Whether a new delivery of any of these would wait for many others. What others alone send is in the store until they
    /// take it.
    async fn is_busy(&self, subscribers: &BTreeSet<SubscriberNo>) -> bool {
        if self.desk.is_busy(subscribers, QUEUE_CALM) {
            return true;
        }
        let elsewhere = self.desk.left_to_others(subscribers);
        if elsewhere.is_empty() {
            return false;
        }
        let (due, now) = (self.store.due().await, self.clock.now());
        due.is_ok_and(|due| due.iter().any(|(subscriber, at)| *at <= now && elsewhere.contains(subscriber)))
    }

    async fn step(&self, errand: Errand) -> tidegate_store::Result<Stepped> {
        match errand {
            Errand::Backfill(subscriber) => self.step_backfill(subscriber).await,
            Errand::Job(no) => self.step_job(no).await,
        }
    }

    async fn step_backfill(&self, subscriber: SubscriberNo) -> tidegate_store::Result<Stepped> {
        let none = Stepped { is_more: false, busy: BTreeSet::new() };
        let Some((mut step, events)) = self.store.backfill(subscriber, STEP_ROWS).await? else {
            return Ok(none);
        };
        let roster = self.rosters.current();
        let Some(endpoint) = roster.endpoint(subscriber) else { return Ok(none) };
        step.version = roster.version;
        // Live events may be left to it at any time: only the store knows when it is over.
        let more = Stepped { is_more: true, ..none };
        if step.through == step.after && step.after < step.until {
            // Something with a lower number is being written elsewhere.
            self.clock.pause(CALM_WAIT.0).await;
        }
        self.fill(&mut step, (&roster, endpoint), events).await?;
        step.judge = Some(judge_live(&roster, &step));
        self.persist.backfill(step).await.map_err(|_| unwritten())?;
        Ok(more)
    }

    /// Past events go by the rules of today. Those that came while the backfill ran go by the rules they were accepted by, and
    /// only if they were left to it.
    async fn fill(
        &self,
        step: &mut BackfillStep,
        (roster, endpoint): (&Roster, &Endpoint),
        events: Vec<EventRow>,
    ) -> tidegate_store::Result<()> {
        for row in events {
            let (seq, version) = (row.seq, row.version);
            let is_past = version < step.since;
            let earlier = if is_past || (endpoint.version..=roster.version).contains(&version) {
                None
            } else {
                self.rule_then(step, endpoint, seq).await?
            };
            step.add(seq, place(earlier.as_ref().unwrap_or(&endpoint.rule), row, is_past));
        }
        Ok(())
    }

    /// What a subscriber wanted when an event was accepted.
    async fn rule_then(
        &self,
        step: &BackfillStep,
        endpoint: &Endpoint,
        event: Seq,
    ) -> tidegate_store::Result<Option<Subscriber>> {
        let rules = self.store.trace(step.project, event).await?.rules;
        let rule = rules.into_iter().find(|rule| rule.subscriber == step.subscriber);
        Ok(rule.and_then(|rule| compiled(step.project, rule, &endpoint.former_conditions)))
    }

    async fn step_job(&self, no: JobNo) -> tidegate_store::Result<Stepped> {
        let running = self.store.job_by_no(no).await?.filter(|job| job.status == JobStatus::Running);
        let Some(job) = running else { return Ok(Stepped { is_more: false, busy: BTreeSet::new() }) };
        let roster = self.rosters.current();
        let scan = self.store.scan(job.scope.clone(), job.after, STEP_ROWS).await?;
        let (through, looked) = (scan.through, scan.looked);
        let chosen = choose(&roster, &job.scope, scan);
        let is_last = through >= job.scope.until || chosen.failure.is_some();
        let step = JobStep {
            job: no,
            project: job.scope.project,
            version: roster.version,
            after: job.after,
            through,
            until: job.scope.until,
            looked,
            replays: chosen.replays,
            retries: chosen.letters.iter().map(|(delivery, _)| *delivery).collect(),
            failure: chosen.failure,
        };
        let replayed = step.replays.iter().map(|(_, route)| route.subscriber);
        let busy = replayed.chain(chosen.letters.iter().map(|(_, subscriber)| *subscriber)).collect();
        let is_written = self.persist.step(step).await.map_err(|_| unwritten())?;
        if !is_written {
            // The job was stopped, or the configuration moved on under it: look again.
            self.rosters.refresh().await?;
        }
        Ok(Stepped { is_more: !is_written || !is_last, busy })
    }

    /// How many a job would send again, without sending anything. Looks at `rows` at most; says at how many it did.
    pub async fn count(&self, scope: &Scope, rows: u64) -> tidegate_store::Result<Counted> {
        let roster = self.rosters.current();
        let (mut after, mut counted) = (scope.begin, Counted::default());
        while after < scope.until && counted.looked < rows {
            let scan = self.store.scan(scope.clone(), after, STEP_ROWS).await?;
            after = scan.through;
            counted.looked += scan.looked;
            let chosen = choose(&roster, scope, scan);
            counted.matched += (chosen.replays.len() + chosen.letters.len()) as u64;
        }
        counted.share = (after - scope.begin, scope.until - scope.begin);
        Ok(counted)
    }
}

/// What a dry run found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Events or dead letters looked at.
    pub looked: u64,
    /// Of these, would be sent again.
    pub matched: u64,
    /// How far it came, and how far the scope reaches.
    pub share: (i64, i64),
}

impl Counted {
    /// Everything was looked at.
    pub fn is_complete(&self) -> bool {
        self.share.0 >= self.share.1
    }

    /// How many would be sent again in all, judged by the part that was looked at.
    pub fn estimate(&self) -> u64 {
        if self.is_complete() || self.share.0 <= 0 {
            return self.matched;
        }
        let (come, whole) = (self.share.0.unsigned_abs(), self.share.1.unsigned_abs());
        u64::try_from(u128::from(self.matched) * u128::from(whole) / u128::from(come)).unwrap_or(u64::MAX)
    }
}

/// What of a scan shall be sent again.
#[derive(Default)]
struct Chosen {
    replays: Vec<(i64, Route)>,
    letters: Vec<(i64, SubscriberNo)>,
    failure: Option<String>,
}

fn choose(roster: &Roster, scope: &Scope, scan: Scan) -> Chosen {
    let mut chosen = Chosen::default();
    let types = &scope.selector.types;
    match &scope.selector.what {
        What::DeadLetters { .. } => {
            let living = scan.letters.into_iter().filter(|letter| {
                is_of(types, &letter.type_name) && roster.endpoint(letter.subscriber).is_some()
            });
            chosen.letters = living.map(|letter| (letter.delivery, letter.subscriber)).collect();
        }
        What::Replay { subscriber, .. } => match roster.endpoint(*subscriber) {
            None => chosen.failure = Some("its subscriber was deleted".to_owned()),
            Some(endpoint) => {
                let typed = scan.events.into_iter().filter(|row| is_of(types, &row.type_name));
                let routed = typed.filter_map(|row| Some((row.seq, judge(&endpoint.rule, row)?)));
                chosen.replays = routed.collect();
            }
        },
    }
    chosen
}

fn is_of(types: &[Pattern], name: &str) -> bool {
    types.is_empty() || types.iter().any(|pattern| pattern.matches(name))
}

/// The rule of a trace. Windows that opened with a former condition keep to it, whichever rule an event goes by.
fn compiled(project: ProjectNo, rule: TraceRule, former: &[String]) -> Option<Subscriber> {
    let definition = serde_json::from_str(&rule.definition?).ok()?;
    let then = Subscriber::compile(rule.subscriber, project, rule.subscriber_id, definition).ok()?;
    Some(then.remembering(former))
}

/// What a backfill does with an event.
fn place(rule: &Subscriber, row: EventRow, is_past: bool) -> Judged {
    match judge(rule, row) {
        None => Judged::Unwanted,
        Some(route) => match (is_past, route.lane, &route.fold) {
            (true, ..) | (false, Some(_), Some(_)) => Judged::Matched(route),
            (false, Some(lane), None) => Judged::Passed(lane),
            (false, None, _) => Judged::Unwanted,
        },
    }
}

/// What a backfill does with events that come while one of its steps is on its way. Those of rules that are not at hand are left
/// to the next step.
fn judge_live(roster: &Arc<Roster>, step: &BackfillStep) -> Judge {
    let (roster, subscriber, since) = (Arc::clone(roster), step.subscriber, step.since);
    Judge(Arc::new(move |row| {
        let Some(endpoint) = roster.endpoint(subscriber) else { return Judged::Unknown };
        let is_past = row.version < since;
        if !is_past && !(endpoint.version..=roster.version).contains(&row.version) {
            return Judged::Unknown;
        }
        place(&endpoint.rule, row, is_past)
    }))
}

/// Where a past event goes by these rules, if this subscriber wants it.
fn judge(rule: &Subscriber, row: EventRow) -> Option<Route> {
    match rule.judge(&View::new(&row.into_event())) {
        Judgement::Matched(route) => Some(route),
        _ => None,
    }
}

fn unwritten() -> tidegate_store::Error {
    tidegate_store::Error::Unavailable("the step was not written".to_owned())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;
    use tidegate_core::time::Timestamp;

    use super::*;

    /// A recovery that came while its subscriber caught up ends what opened with a former condition, as it would for anybody.
    #[test]
    fn an_event_that_goes_by_the_rules_of_then_fulfils_former_conditions() {
        let definition = json!({
            "name": "s", "destination": {"url": "https://hooks.example/s"}, "order": {"by": "subscriber"},
            "fold": {"mode": "window", "cancel_on": "type == 'host.gone'"},
        });
        let row = EventRow {
            seq: 1,
            version: 1,
            accepted_at: Timestamp::from_ms(0),
            time: Timestamp::from_ms(0),
            id: "e".to_owned(),
            source: "shop".to_owned(),
            type_name: "host.up".to_owned(),
            subject: None,
            body: Bytes::from_static(br#"{"type":"host.up","data":{}}"#),
        };
        let rule = TraceRule {
            subscriber: 1,
            subscriber_id: "s".to_owned(),
            definition: Some(definition.to_string()),
            is_behind: true,
        };
        let former = ["type == 'host.up'".to_owned(), "type == 'host.removed'".to_owned()];
        let then = compiled(1, rule, &former).expect("it can be read");
        let Judged::Matched(route) = place(&then, row, false) else { panic!("it is left to the backfill") };
        assert_eq!(route.fold.expect("it is folded").cancels.len(), 1, "the one that it fulfils");
    }
}
