//! Jobs: sending again many events or dead letters, a step at a time.
//!
//! A job covers what was there when it was asked for, between two numbers that are fixed then. A step looks at some of
//! it and moves the job's mark in the transaction that writes what the step led to: whatever crashes, nothing is sent
//! again twice or passed over.

use serde::{Deserialize, Serialize};
use tidegate_core::id::{DeliveryNo, JobNo, Nonce, ProjectNo, Seq, SubscriberNo, Version};
use tidegate_core::route::{Pattern, Route};
use tidegate_core::time::Timestamp;

use crate::EventRow;

/// What shall be sent again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selector {
    /// Past events, or dead letters.
    pub what: What,
    /// Only events of these types; of any, if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<Pattern>,
    /// Made at or after this time: events when they were accepted, deliveries when they were created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// Made before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
}

/// The two kinds of jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// New deliveries of past events.
    Replay {
        /// For whom.
        subscriber: SubscriberNo,
        /// Which of the events.
        past: Past,
    },
    /// Another try for deliveries that are exhausted, under their own ids.
    DeadLetters {
        /// Only those of one subscriber.
        subscriber: Option<SubscriberNo>,
        /// Only these, in order; all, if empty.
        ids: Vec<DeliveryNo>,
        /// The random part of each.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        nonces: Vec<Nonce>,
    },
}

/// Which events a replay is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Past {
    /// All that the subscriber wants, whatever became of them.
    Any,
    /// Those it was given.
    Delivered,
    /// Those it could not be given.
    Exhausted,
}

/// A selector, made definite at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Whose.
    pub project: ProjectNo,
    /// What.
    pub selector: Selector,
    /// Nothing at or before this number.
    pub begin: i64,
    /// Nothing after this number.
    pub until: i64,
    /// What ended later than this is not meant.
    pub asked_at: Timestamp,
}

/// A part of a scope: what is there between a mark and the next.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Everything up to here has been looked at.
    pub through: i64,
    /// How many events or dead letters.
    pub looked: u64,
    /// Past events, oldest first.
    pub events: Vec<EventRow>,
    /// Dead letters, oldest first.
    pub letters: Vec<DeadLetter>,
}

/// An exhausted delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Which.
    pub delivery: DeliveryNo,
    /// For whom.
    pub subscriber: SubscriberNo,
    /// The type of its event.
    pub type_name: String,
}

/// A new job.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Outside.
    pub id: String,
    /// What it covers.
    pub scope: Scope,
}

/// A job as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRow {
    /// Inside.
    pub no: JobNo,
    /// Outside.
    pub id: String,
    /// What it covers.
    pub scope: Scope,
    /// Everything up to here has been looked at.
    pub after: i64,
    /// Where it stands.
    pub status: JobStatus,
    /// Events or dead letters looked at.
    pub looked: u64,
    /// Of these, sent again.
    pub matched: u64,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Why it failed.
    pub reason: Option<String>,
}

impl JobRow {
    /// How many it will have looked at, judged by how far it has come. Nothing is said before it has begun.
    pub fn total(&self) -> Option<u64> {
        if self.status == JobStatus::Done {
            return Some(self.looked);
        }
        let (come, whole) = (self.after - self.scope.begin, self.scope.until - self.scope.begin);
        let share = u128::from(self.looked) * u128::from(whole.unsigned_abs());
        (come > 0).then(|| u64::try_from(share / u128::from(come.unsigned_abs())).unwrap_or(u64::MAX))
    }
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// It goes on, also after a restart.
    Running,
    /// It has looked at everything.
    Done,
    /// Somebody stopped it; what it sent again stays.
    Stopped,
    /// It could not go on; the reason says why.
    Failed,
}

/// One step of a job: what to send again of what lies between two marks.
#[derive(Clone, Debug)]
pub struct JobStep {
    /// Which job.
    pub job: JobNo,
    /// Whose.
    pub project: ProjectNo,
    /// The configuration version that the replays were routed by; a step routed by another is ignored.
    pub version: Version,
    /// Where the step begins; one that does not begin where the last one ended is ignored.
    pub after: i64,
    /// Where it ends.
    pub through: i64,
    /// Where the job ends.
    pub until: i64,
    /// How many it looked at.
    pub looked: u64,
    /// New deliveries to make, in this order.
    pub replays: Vec<(Seq, Route)>,
    /// Dead letters to try again.
    pub retries: Vec<DeliveryNo>,
    /// The job can not go on.
    pub failure: Option<String>,
}

/// What stopping a job found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopOutcome {
    /// It has stopped.
    Stopped(JobRow),
    /// It had ended before.
    Ended(JobRow),
    /// There is no such job.
    NotFound,
}
