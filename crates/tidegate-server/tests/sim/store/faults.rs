//! What happens around a call of the store: it takes a while, fails, or is the last thing that the process ever did.

use super::*;

impl FaultyStore {
    /// One that nobody else shares and nobody haunts.
    pub(crate) fn new(inner: Arc<SqliteStore>, plan: &Plan, life: &Arc<Life>, history: &Histories) -> Self {
        plan.windows_max.into_iter().for_each(|most| inner.limit_windows(most));
        Self {
            inner,
            windows_max: plan.windows_max,
            membership: None,
            life: Arc::clone(life),
            history: history.clone(),
            dice: Mutex::new(Dice::new(plan.seed, &format!("store/{}", life.no()))),
            bounds: plan.bounds,
            zombies: Mutex::default(),
            steps: Mutex::default(),
            flushes: Flushes::new(plan.seed, life.no()),
            restless: Restless::new(plan.seed),
            is_fragile: plan.is_fragile,
            is_slow: plan.is_slow,
        }
    }

    /// Before a call: it may take a while, fail, or never happen.
    pub(super) async fn enter(&self) -> Result<()> {
        self.life.point().await;
        self.dawdle().await;
        self.life.point().await;
        if let Some(lasts) = self.life.cut_for() {
            self.life.clock.pause(lasts).await;
            return Err(Error::Unavailable("nobody answers".to_owned()));
        }
        let t = self.life.t();
        let mut history = self.history.lock();
        if history.outages.iter().any(|(from, to)| (*from..*to).contains(&t)) {
            history.reach("a store outage");
            return Err(Error::Unavailable("the plan says so".to_owned()));
        }
        Ok(())
    }

    /// The worst moment to fail is when everybody has just learned of a change and is about to act on it.
    pub(super) fn break_down(&self) {
        let (is_now, ms) = {
            let mut dice = self.lock_dice();
            (self.is_fragile && dice.percent(15), dice.between(200, 1_500))
        };
        let t = self.life.t();
        if is_now && (1_000..END_T - 2_000).contains(&t) {
            self.history.lock().outages.push((t, t + ms));
        }
    }

    /// After a call: it happened, and nobody may ever learn of it.
    pub(super) async fn exit(&self) {
        self.life.point().await;
        self.dawdle().await;
        if let Some(lasts) = self.life.cut_for() {
            self.life.clock.pause(lasts).await;
        }
        self.life.point().await;
    }

    pub(super) fn member(&self) -> &Membership {
        self.membership.as_ref().expect("only those who share a store ask")
    }

    async fn dawdle(&self) {
        if !self.is_slow {
            return;
        }
        let (kind, ms) = {
            let mut dice = self.lock_dice();
            (dice.below(10), dice.between(1, 30))
        };
        match kind {
            0..5 => {}
            5..8 => tokio::task::yield_now().await,
            _ => self.life.clock.pause(Duration::from_millis(ms.unsigned_abs())).await,
        }
    }

    pub(super) fn lock_dice(&self) -> std::sync::MutexGuard<'_, Dice> {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
