//! One body for one destination, and where it stands.

use bytes::Bytes;
use serde::Serialize;

use crate::id::{DeliveryKey, DeliveryNo, Incarnation, Lane, Nonce, ProjectNo, Seq, SubscriberNo, WindowNo};
use crate::limits::CLAIMS_LOST_MAX;
use crate::time::Timestamp;

/// Where a delivery stands, as users see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Waiting for its first attempt.
    Pending,
    /// In the hands of a worker.
    Sending,
    /// Failed at least once; due again later.
    Retrying,
    /// The receiver has it.
    Delivered,
    /// Every attempt failed. Listed, and retried by hand.
    Exhausted,
    /// Its subscriber is inactive; released in order when it resumes.
    Held,
    /// Its subscriber was deleted, or its window was cancelled before it left.
    Cancelled,
    /// Kept undelivered for as long as retention allows.
    Expired,
}

impl Status {
    /// Every status, in the order of a delivery's life.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Sending,
        Self::Retrying,
        Self::Delivered,
        Self::Exhausted,
        Self::Held,
        Self::Cancelled,
        Self::Expired,
    ];

    /// The stable name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Sending => "sending",
            Self::Retrying => "retrying",
            Self::Delivered => "delivered",
            Self::Exhausted => "exhausted",
            Self::Held => "held",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }

    /// The status with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// A claimed delivery in memory, on its way to a worker.
#[derive(Clone, Debug)]
pub struct Job {
    /// Which delivery.
    pub delivery: DeliveryNo,
    /// Its random part.
    pub nonce: Nonce,
    /// Its project.
    pub project: ProjectNo,
    /// Who gets it.
    pub subscriber: SubscriberNo,
    /// The first event it carries.
    pub event: Seq,
    /// Its lane; `None` outside the lanes.
    pub lane: Option<Lane>,
    /// Attempts that have a result.
    pub attempts: u32,
    /// Failures since the schedule began; a manual retry starts it anew.
    pub tries: u32,
    /// Times it was claimed: the fencing token of this claim.
    pub token: u32,
    /// The life of the process that claimed it.
    pub life: Incarnation,
    /// When its event was accepted.
    pub accepted_at: Timestamp,
    /// Somebody asked for it to be sent again.
    pub replay: bool,
    /// It stepped aside for others of its lane, and comes out of order.
    pub out_of_order: bool,
    /// Too many processes ended while they held it: it is begun by a commit of its own before it is sent.
    pub is_suspect: bool,
    /// The window it was, whose events are read when they are sent.
    pub fold: Option<WindowNo>,
    /// The frozen bytes to send; empty for a fold.
    pub body: Bytes,
}

impl Job {
    /// Its delivery, and no other.
    pub fn key(&self) -> DeliveryKey {
        DeliveryKey { no: self.delivery, nonce: self.nonce }
    }
}

/// What a delivery's count of lost claims is while a suspect is being sent.
pub const LOST_BEGUN: u32 = CLAIMS_LOST_MAX + 1;

/// Whether a delivery with so many lost claims is a suspect.
pub fn is_suspect(lost: u32) -> bool {
    lost >= CLAIMS_LOST_MAX
}

/// The count of lost claims after the process that held one crashed or stopped; `None` if the delivery must be set aside.
/// A claim alone accuses nobody: much of what a process holds only waits. So a suspect is set aside only if it was begun.
pub fn after_end(lost: u32, is_hard: bool) -> Option<u32> {
    match is_hard {
        true if lost >= LOST_BEGUN => None,
        true => Some((lost + 1).min(CLAIMS_LOST_MAX)),
        false => Some(lost.min(CLAIMS_LOST_MAX)),
    }
}

/// Why a suspect was set aside, and what to do about it.
pub fn set_aside_reason() -> String {
    format!(
        "the process ended {CLAIMS_LOST_MAX} times while it held this delivery and once more while sending it: find out from \
         its log why, then retry the delivery"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_suspect_that_was_begun_is_set_aside() {
        let mut lost = 0;
        for end in 1..=3 * CLAIMS_LOST_MAX {
            lost = after_end(lost, true).expect("it was never begun");
            assert_eq!(is_suspect(lost), end >= CLAIMS_LOST_MAX, "after {end} ends");
        }
        assert_eq!(after_end(LOST_BEGUN, true), None);
    }

    #[test]
    fn an_end_in_good_order_accuses_nobody() {
        for lost in 0..=LOST_BEGUN {
            assert_eq!(after_end(lost, false), Some(lost.min(CLAIMS_LOST_MAX)));
        }
    }
}
