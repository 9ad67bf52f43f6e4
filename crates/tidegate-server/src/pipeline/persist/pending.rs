//! What waits for the next group, and when it has waited long enough.
//!
//! A result is not waited for by anybody, so it may wait for company. But an event that comes meanwhile would carry it and come
//! later to its receiver, and what is not written is sent again after a crash. So the result of a quiet moment is written
//! almost at once; where many come, they wait longer and share a commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::id::{GateNo, SubscriberNo};
use tidegate_core::limits::GROUP_EVENTS_MAX;
use tidegate_core::span::SpanContext;
use tidegate_core::time::Timestamp;
use tidegate_store::{BackfillStep, Claim, Finished, Group, JobStep, Seal, Submission, UnitStatus};
use tokio::sync::oneshot;

use super::Unavailable;
use crate::roster::Roster;

/// Results that are written alone when no event comes along.
const RESULTS_MAX: usize = 512;
/// How long a result waits for an event to ride with.
const RESULTS_SOON: Duration = Duration::from_millis(2);
/// So many have come together in that time: more will.
const RESULTS_FEW: usize = 8;
/// How long they wait then.
const RESULTS_WAIT: Duration = Duration::from_millis(10);
/// Deliveries given back in one commit. When a process joins, others give back what they have gathered, and the events of that
/// moment shall not wait for all of it.
const RELEASED_MAX: usize = 1_024;

/// What waits for the next group.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) submissions: Vec<Waiting>,
    pub(super) results: Vec<Finished>,
    pub(super) results_due: Option<Timestamp>,
    /// The newest word about each subscriber.
    pub(super) streaks: BTreeMap<SubscriberNo, Option<Timestamp>>,
    /// The newest word about each gate.
    pub(super) penalties: BTreeMap<GateNo, Timestamp>,
    pub(super) released: Vec<Claim>,
    pub(super) backfills: Vec<(BackfillStep, oneshot::Sender<()>)>,
    pub(super) steps: Vec<(JobStep, oneshot::Sender<bool>)>,
    pub(super) seals: Vec<(Seal, oneshot::Sender<()>)>,
    pub(super) begun: Vec<(Claim, oneshot::Sender<()>)>,
    /// When the next window closes, as far as is known.
    pub(super) close_due: Option<Timestamp>,
    pub(super) is_urgent: bool,
    pub(super) is_stopping: bool,
    /// Until when, on the steady clock, a stopping loop tries to write what it holds.
    pub(super) stop_until: Duration,
    /// The store has not answered for long: nobody shall wait for it.
    pub(super) is_stuck: bool,
}

pub(super) struct Waiting {
    pub(super) submission: Submission,
    pub(super) roster: Arc<Roster>,
    pub(super) span: Option<SpanContext>,
    pub(super) reply: oneshot::Sender<Result<Vec<UnitStatus>, Unavailable>>,
}

/// A group, and everything about it that the store need not know.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) group: Group,
    /// Per submission, the configuration it was routed by.
    pub(super) rosters: Vec<Arc<Roster>>,
    pub(super) submitters: Vec<oneshot::Sender<Result<Vec<UnitStatus>, Unavailable>>>,
    /// Spans of recorded requests.
    pub(super) spans: Vec<SpanContext>,
    pub(super) backfillers: Vec<oneshot::Sender<()>>,
    pub(super) steppers: Vec<oneshot::Sender<bool>>,
    pub(super) sealers: Vec<oneshot::Sender<()>>,
    pub(super) beginners: Vec<oneshot::Sender<()>>,
}

impl Pending {
    /// Adds the result of an attempt. Says whether the loop must know of it.
    pub(super) fn push_result(&mut self, finished: Finished, now: Timestamp) -> bool {
        self.is_urgent |= finished.lane.is_some();
        self.results.push(finished);
        let count = self.results.len();
        if count == 1 {
            self.results_due = Some(now.plus(RESULTS_SOON));
        } else if count == RESULTS_FEW {
            self.results_due = self.results_due.map(|due| due.plus(RESULTS_WAIT - RESULTS_SOON));
        }
        self.is_urgent |= count >= RESULTS_MAX;
        count == 1 || self.is_urgent
    }

    /// Something that nobody waits for is to be written, soon. Says whether the loop must know of it.
    pub(super) fn expect_soon(&mut self, now: Timestamp) -> bool {
        let is_news = self.results_due.is_none();
        self.results_due.get_or_insert(now.plus(RESULTS_WAIT));
        is_news
    }

    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        !self.submissions.is_empty()
            || !self.backfills.is_empty()
            || !self.steps.is_empty()
            || !self.seals.is_empty()
            || !self.begun.is_empty()
            || self.is_urgent
            || (!(self.results.is_empty() && self.streaks.is_empty() && self.penalties.is_empty())
                && (self.is_stopping || self.results_due.is_none_or(|due| due <= now)))
    }

    /// Takes everything, but no more events than one commit should carry.
    pub(super) fn take(&mut self) -> Batch {
        let mut batch = Batch::default();
        let mut events = 0;
        let fit = self.submissions.iter().take_while(|waiting| {
            let before = events;
            events += waiting.submission.units.iter().map(|unit| unit.unit.events.len()).sum::<usize>();
            before == 0 || events <= GROUP_EVENTS_MAX
        });
        let fit = fit.count();
        for waiting in self.submissions.drain(..fit) {
            batch.group.submissions.push(waiting.submission);
            batch.rosters.push(waiting.roster);
            batch.spans.extend(waiting.span);
            batch.submitters.push(waiting.reply);
        }
        batch.group.results = std::mem::take(&mut self.results);
        let released = self.released.len().min(RELEASED_MAX);
        batch.group.released = self.released.drain(..released).collect();
        batch.group.streaks = std::mem::take(&mut self.streaks).into_iter().collect();
        batch.group.penalties = std::mem::take(&mut self.penalties).into_iter().collect();
        for (step, reply) in self.backfills.drain(..) {
            batch.group.backfills.push(step);
            batch.backfillers.push(reply);
        }
        for (step, reply) in self.steps.drain(..) {
            batch.group.steps.push(step);
            batch.steppers.push(reply);
        }
        for (seal, reply) in self.seals.drain(..) {
            batch.group.seals.push(seal);
            batch.sealers.push(reply);
        }
        for (claim, reply) in self.begun.drain(..) {
            batch.group.begun.push(claim);
            batch.beginners.push(reply);
        }
        self.results_due = None;
        self.is_urgent = !self.released.is_empty();
        batch
    }
}

impl Batch {
    /// Tells waiting senders to go on. A sender whose claim no longer holds gets no message.
    pub(super) fn answer_senders(&mut self, void: &[Claim]) {
        let sealed = self.group.seals.iter().map(|seal| seal.claim).zip(self.sealers.drain(..));
        let begun = self.group.begun.iter().copied().zip(self.beginners.drain(..));
        for (_, sender) in sealed.chain(begun).filter(|(claim, _)| !void.contains(claim)) {
            let _ = sender.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::attempt::{Attempt, Phases};
    use tidegate_core::retry::Next;

    use super::*;

    const NOW: Timestamp = Timestamp::from_ms(1_000);

    fn result(lane: Option<i64>) -> Finished {
        let attempt = Attempt {
            at: NOW,
            status: Some(200),
            error: None,
            detail: String::new(),
            phases: Phases::default(),
            response: None,
        };
        let claim = Claim { delivery: 1, nonce: 0, token: 1, life: 0 };
        Finished {
            claim,
            subscriber: 1,
            lane,
            n: 1,
            attempt,
            next: Next::Delivered,
            steps_aside: false,
            body: None,
        }
    }

    /// When the results of one moment are due, in milliseconds from it.
    fn wait_of(count: usize) -> u64 {
        let mut pending = Pending::default();
        for which in 0..count {
            let wakes = pending.push_result(result(None), NOW);
            assert_eq!(wakes, which == 0 || which + 1 >= RESULTS_MAX, "result {which}");
        }
        (0..).find(|ms| pending.is_due(NOW.plus(Duration::from_millis(*ms)))).expect("it is due some day")
    }

    #[test]
    fn a_result_of_a_quiet_moment_is_written_almost_at_once_and_many_share_a_commit() {
        assert_eq!([1, RESULTS_FEW - 1].map(wait_of), [2, 2]);
        assert_eq!([RESULTS_FEW, RESULTS_MAX - 1].map(wait_of), [10, 10]);
        assert_eq!(wait_of(RESULTS_MAX), 0);
    }

    #[test]
    fn a_sender_without_a_valid_claim_is_not_told_to_send() {
        let mut pending = Pending::default();
        let claim = |delivery| Claim { delivery, nonce: 0, token: 1, life: 0 };
        let mut answers = Vec::new();
        for delivery in 1..=4 {
            let (reply, answer) = oneshot::channel();
            match delivery {
                1 | 2 => pending.begun.push((claim(delivery), reply)),
                _ => {
                    let seal = Seal { project: 1, window: delivery, claim: claim(delivery) };
                    pending.seals.push((seal, reply));
                }
            }
            answers.push(answer);
        }
        assert!(pending.is_due(NOW), "somebody waits for it");
        pending.take().answer_senders(&[claim(2), claim(3)]);
        let heard = answers.into_iter().map(|answer| answer.blocking_recv().is_ok());
        assert_eq!(heard.collect::<Vec<_>>(), [true, false, false, true]);
    }

    #[test]
    fn what_is_given_back_is_written_in_parts() {
        let mut pending = Pending::default();
        let claim = |delivery| Claim { delivery, nonce: 0, token: 1, life: 0 };
        pending.released = (0..2 * RELEASED_MAX as i64 + 1).map(claim).collect();
        pending.is_urgent = true;
        let parts = std::iter::from_fn(|| pending.is_due(NOW).then(|| pending.take().group.released.len()));
        assert_eq!(parts.collect::<Vec<_>>(), [RELEASED_MAX, RELEASED_MAX, 1]);
    }

    #[test]
    fn the_next_of_a_lane_does_not_wait_for_company() {
        let mut pending = Pending::default();
        assert!(pending.push_result(result(Some(7)), NOW) && pending.is_due(NOW));
        assert!(
            pending.push_result(result(None), NOW),
            "whoever comes next may be the one that wakes the loop"
        );
    }
}
