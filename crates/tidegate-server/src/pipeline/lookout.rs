//! Lookout: what happens in other processes that share the store, and what follows from it here.
//!
//! Others tell that the configuration changed, that work of a subscriber is due in the store, that a job or events came;
//! the heartbeat tells who expired. Everything is a hint to look: what is looked at is the store. So a hint may come
//! twice, late, or never, for now and then the heartbeat has everything looked at.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_core::id::Incarnation;
use tidegate_store::Store;
use tidegate_store::coordination::{Coordination, News};
use tokio::sync::Notify;

use super::desk::Desk;
use super::errands::Errands;
use super::observe::Observe;
use super::persist::Persist;
use super::verify::Verify;
use super::{Parts, STORE_RETRY};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::roster::Rosters;
use crate::standing::Standing;
use crate::watch::Watch;

pub(super) struct Lookout {
    store: Arc<dyn Store>,
    coordination: Arc<dyn Coordination>,
    rosters: Arc<Rosters>,
    standing: Arc<Standing>,
    clock: Clock,
    metrics: Arc<Metrics>,
    watch: Arc<Watch>,
    desk: Arc<Desk>,
    persist: Arc<Persist>,
    errands: Arc<Errands>,
    verify: Arc<Verify>,
    observe: Arc<Observe>,
    sighted: Mutex<Sighted>,
    wake: Notify,
}

/// What was told and not yet looked at.
#[derive(Default)]
struct Sighted {
    news: News,
    expired: BTreeSet<Incarnation>,
}

impl Lookout {
    pub(super) fn new(
        parts: &Parts,
        coordination: Arc<dyn Coordination>,
        (desk, persist): (Arc<Desk>, Arc<Persist>),
        errands: Arc<Errands>,
        (verify, observe): (Arc<Verify>, Arc<Observe>),
    ) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::clone(&parts.store),
            coordination,
            rosters: Arc::clone(&parts.rosters),
            standing: Arc::clone(&parts.standing),
            clock: parts.clock.clone(),
            metrics: Arc::clone(&parts.metrics),
            watch: Arc::clone(&parts.watch),
            desk,
            persist,
            errands,
            verify,
            observe,
            sighted: Mutex::default(),
            wake: Notify::new(),
        })
    }

    /// Something is worth a look, soon.
    pub(super) fn report(&self, news: News) {
        self.lock().news.merge(news);
        self.wake.notify_one();
    }

    /// These have expired.
    pub(super) fn report_expired(&self, expired: &[Incarnation]) {
        if !expired.is_empty() {
            self.lock().expired.extend(expired);
            self.wake.notify_one();
        }
    }

    /// Others should look at everything: something was given back to the store.
    pub(super) fn tell_to_look(&self) {
        self.coordination.tell(News::everything());
    }

    /// Passes on what others tell and tells them what was changed here, for as long as the process lives.
    pub(super) async fn listen(self: Arc<Self>) {
        loop {
            tokio::select! {
                biased;
                () = self.rosters.changed_here() => self.coordination.tell(News::configuration()),
                news = self.coordination.hear() => self.report(news),
            }
        }
    }

    /// Looks at what was told, for as long as the process lives.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            self.wake.notified().await;
            let Sighted { news, expired } = std::mem::take(&mut *self.lock());
            if let Err(error) = self.look(&news, &expired).await {
                tracing::warn!(%error, "what happens elsewhere can not be looked at yet");
                self.report(news);
                self.report_expired(&expired.into_iter().collect::<Vec<_>>());
                self.clock.pause(STORE_RETRY).await;
            }
        }
    }

    async fn look(&self, news: &News, expired: &BTreeSet<Incarnation>) -> tidegate_store::Result<()> {
        // First of all what should have happened already: a pause, a new secret.
        if news.configuration || news.everything {
            self.rosters.catch_up().await?;
        }
        let now = self.clock.now();
        for subscriber in &news.subscribers {
            self.desk.expect(*subscriber, now);
        }
        self.desk.look_at(&news.gates);
        self.desk.lifted(&news.lifted);
        if news.everything {
            self.desk.doubt_penalties();
        }
        if news.events || news.everything {
            self.watch.stir();
        }
        let mut has_taken_over = false;
        for incarnation in expired {
            has_taken_over |= self.take_over(*incarnation).await?;
        }
        if news.everything || has_taken_over {
            self.look_for_work(has_taken_over).await?;
        }
        if (news.jobs || news.everything) && self.standing.leads() {
            self.errands.resume_jobs().await?;
            self.errands.resume_backfills(&self.rosters.current());
            self.verify.resume_all(&self.rosters.current());
            // A backfill that was asked for elsewhere, or what somebody left who is gone.
            self.observe.look_again();
        }
        Ok(())
    }

    async fn take_over(&self, expired: Incarnation) -> tidegate_store::Result<bool> {
        let found = self.store.take_over(expired, self.clock.now()).await?;
        if found.due + found.set_aside == 0 {
            return Ok(false);
        }
        self.metrics.taken_over(&found);
        tracing::warn!(
            incarnation = expired,
            due = found.due,
            set_aside = found.set_aside,
            "a process that shares the store is gone: what it held is due again"
        );
        Ok(true)
    }

    /// Whatever is due in the store is expected here; what was just made due is told to the others too. Windows that
    /// others opened are closed by whoever looks first when their time has come.
    async fn look_for_work(&self, is_new: bool) -> tidegate_store::Result<()> {
        let (due, now) = (self.store.due().await?, self.clock.now());
        if let Some(at) = self.store.close_due().await? {
            self.persist.expect_close(at);
        }
        for (subscriber, at) in &due {
            self.desk.expect(*subscriber, *at);
        }
        if is_new {
            let ready = due.iter().filter(|(_, at)| *at <= now).map(|(subscriber, _)| *subscriber);
            self.coordination.tell(News::work(ready));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Sighted> {
        self.sighted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
