//! The word of the dead, and of those who say things twice: whatever they bring, the store must take it for what it is.

use super::*;

impl FaultyStore {
    /// Adds, sometimes, a step of a backfill or a job that was taken before.
    pub(super) fn repeat(&self, group: Arc<Group>) -> Arc<Group> {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if (steps.0.is_empty() && steps.1.is_empty()) || !self.lock_dice().percent(10) {
            steps.0.extend(group.backfills.iter().cloned());
            steps.1.extend(group.steps.iter().cloned());
            return group;
        }
        let mut repeating = Group::clone(&group);
        repeating.backfills.extend(steps.0.pop());
        repeating.steps.extend(steps.1.pop());
        self.history.lock().reach("a step of an errand repeated");
        Arc::new(repeating)
    }

    /// Adds the word of the dead, sometimes.
    pub(super) fn haunt(&self, group: Arc<Group>) -> Arc<Group> {
        let mut zombies = self.zombies.lock().unwrap_or_else(PoisonError::into_inner);
        if zombies.is_empty() || !self.lock_dice().percent(25) {
            return group;
        }
        let (delivery, claimed) = zombies.pop().expect("there is one");
        let mut haunted = Group::clone(&group);
        haunted.results.push(Finished {
            claim: Claim { delivery, nonce: claimed.nonce, token: claimed.token, life: claimed.made_in },
            subscriber: claimed.subscriber,
            lane: claimed.lane,
            n: claimed.attempts + 1,
            attempt: Attempt {
                at: haunted.now,
                status: Some(200),
                error: None,
                detail: String::new(),
                phases: Phases::default(),
                response: None,
            },
            next: Next::Delivered,
            steps_aside: false,
            body: None,
        });
        Arc::new(haunted)
    }
}
