//! One body for one destination, and where it stands.

use bytes::Bytes;
use serde::Serialize;

use crate::id::{DeliveryKey, DeliveryNo, Lane, Nonce, ProjectNo, Seq, SubscriberNo, WindowNo};
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
    /// When its event was accepted.
    pub accepted_at: Timestamp,
    /// Somebody asked for it to be sent again.
    pub replay: bool,
    /// It stepped aside for others of its lane, and comes out of order.
    pub out_of_order: bool,
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
