//! One try at one delivery, and what it means.
//!
//! A failed delivery is data, not an error: the transport reports what happened, a destination turns that into a
//! [`Verdict`], and [`crate::retry`] turns the verdict into what comes next.

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// What a try means for its delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The receiver has it.
    Delivered,
    /// Not now; try again, and never before `not_before` when the receiver named a time.
    RetryLater {
        /// The earliest time the receiver allows, already clamped.
        not_before: Option<Timestamp>,
    },
    /// The receiver says it is gone for good (410): stop sending to it.
    Gone,
}

/// Why a try failed, in words that never depend on the address that was blocked or probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The receiver answered, but not with 2xx.
    Status,
    /// The address may not be dialled.
    Blocked,
    /// The name did not resolve.
    Dns,
    /// No connection.
    Connect,
    /// The TLS handshake or the certificate failed.
    Tls,
    /// The total deadline passed.
    Timeout,
    /// The connection broke before an answer was complete.
    Reset,
    /// The answer was not HTTP.
    Protocol,
    /// The process stopped while the request was under way; its outcome is unknown.
    Interrupted,
}

impl ErrorClass {
    /// Every class, for metrics and for reading the store.
    pub const ALL: [Self; 9] = [
        Self::Status,
        Self::Blocked,
        Self::Dns,
        Self::Connect,
        Self::Tls,
        Self::Timeout,
        Self::Reset,
        Self::Protocol,
        Self::Interrupted,
    ];

    /// The stable name in the API, the store and the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Blocked => "blocked",
            Self::Dns => "dns",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
            Self::Protocol => "protocol",
            Self::Interrupted => "interrupted",
        }
    }

    /// The class with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }
}

/// How long each part of a try took, in microseconds. A part that did not happen is absent; a reused
/// connection has neither `dns` nor `connect` nor `tls`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// Looking the name up.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dns_us: Option<u32>,
    /// TCP handshake.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connect_us: Option<u32>,
    /// TLS handshake.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tls_us: Option<u32>,
    /// From the request's first byte to the answer's head.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub wait_us: Option<u32>,
    /// The whole try.
    pub total_us: u32,
}

/// What is remembered of one try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// When it began.
    pub at: Timestamp,
    /// The receiver's status code, when there was an answer.
    pub status: Option<u16>,
    /// Why it failed; absent for a delivered one.
    pub error: Option<ErrorClass>,
    /// One sentence for people, free of secrets and of blocked addresses.
    pub detail: String,
    /// How long each part took.
    pub phases: Phases,
    /// The answer's head and the beginning of its body, capped.
    pub response: Option<ResponseHead>,
}

/// The visible beginning of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseHead {
    /// `content-type`, when given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub content_type: Option<String>,
    /// The beginning of the body, as text; bytes that are not UTF-8 are replaced.
    pub body: String,
    /// The body went on beyond what is kept.
    pub truncated: bool,
}
