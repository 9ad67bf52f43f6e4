//! A group whose configuration moves again and again: one request in it may take so long to be routed that another change
//! always comes first. It is divided, so that the others do not wait for that one, and that one is refused in the end.

use std::collections::VecDeque;

use tidegate_core::limits::{STALE_PARTS_MAX, STALE_ROUNDS_MAX};

use super::pending::Batch;
use super::{Persist, Unavailable, Written};

impl Persist {
    /// Writes a group that was stale in every round: first what no configuration is asked about, then the requests in parts.
    /// A part that is stale goes behind the others, smaller; a request that is stale alone too often is refused.
    pub(super) async fn write_apart(&self, mut batch: Batch) -> Written {
        let parts = batch.take_apart();
        let rest = self.write(batch, 1).await;
        if !matches!(rest, Written::Done) {
            return rest;
        }
        let mut waiting: VecDeque<(Batch, u32)> = parts.into_iter().map(|part| (part, 0)).collect();
        let mut refused = 0;
        while let Some((part, rounds)) = waiting.pop_front() {
            match self.write(part, 1).await {
                Written::Done => {}
                Written::Stale(mut part) if part.group.submissions.len() > 1 => {
                    waiting.extend(part.take_apart().into_iter().map(|part| (part, 0)));
                }
                Written::Stale(part) if rounds + 1 < STALE_ROUNDS_MAX => {
                    waiting.push_back((*part, rounds + 1));
                }
                Written::Stale(part) => {
                    for submitter in part.submitters {
                        let _ = submitter.send(Err(Unavailable::Configuration));
                    }
                    refused += 1;
                }
                failed => return failed,
            }
        }
        if refused > 0 {
            tracing::warn!(
                refused,
                "the configuration changes faster than requests can be routed: they are refused"
            );
        }
        Written::Done
    }
}

impl Batch {
    /// Takes the requests out, in parts.
    fn take_apart(&mut self) -> Vec<Self> {
        let size = self.group.submissions.len().div_ceil(STALE_PARTS_MAX).max(1);
        let mut parts: Vec<Self> = Vec::new();
        let (submissions, rosters) = (self.group.submissions.drain(..), self.rosters.drain(..));
        // Whoever has waited too long is gone already.
        let mut submitters = self.submitters.drain(..);
        for (submission, roster) in submissions.zip(rosters) {
            if parts.last().is_none_or(|part| part.group.submissions.len() == size) {
                parts.push(Self::default());
            }
            if let Some(part) = parts.last_mut() {
                part.group.submissions.push(submission);
                part.rosters.push(roster);
                part.submitters.extend(submitters.next());
            }
        }
        parts
    }
}
