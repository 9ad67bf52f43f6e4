//! One window: what it holds, until when, and how it ends.

use std::sync::Arc;
use std::time::Duration;

use ring::digest;
use serde::{Deserialize, Serialize};

use super::definition::Mode;
use crate::id::{DeliveryNo, Lane, ProjectNo, Seq, SubscriberNo, WindowNo};
use crate::limits::FOLD_STRETCH_MAX_PERCENT;
use crate::payload::Payload;
use crate::time::{Span, Timestamp};

/// Why a window closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClosedBy {
    /// So long after its first event.
    Window,
    /// Nothing came for a while.
    Quiet,
    /// Something came all the time.
    MaxWait,
    /// A regular time.
    Every,
    /// It holds as many events as it may.
    MaxEvents,
    /// One more event would have made it too large.
    MaxBytes,
    /// Its first event goes ahead, alone.
    Leading,
    /// Somebody asked for it.
    Flush,
    /// Somebody asked for everything.
    Trigger,
    /// There were too many windows.
    Limit,
    /// An event ended it without a delivery, see `fold.cancel_on`.
    CancelOn,
    /// Somebody ended it without a delivery.
    Cancelled,
    /// Its subscriber was deleted; there is no delivery.
    Deleted,
}

impl ClosedBy {
    const ALL: [Self; 13] = [
        Self::Window,
        Self::Quiet,
        Self::MaxWait,
        Self::Every,
        Self::MaxEvents,
        Self::MaxBytes,
        Self::Leading,
        Self::Flush,
        Self::Trigger,
        Self::Limit,
        Self::CancelOn,
        Self::Cancelled,
        Self::Deleted,
    ];

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Quiet => "quiet",
            Self::MaxWait => "max_wait",
            Self::Every => "every",
            Self::MaxEvents => "max_events",
            Self::MaxBytes => "max_bytes",
            Self::Leading => "leading",
            Self::Flush => "flush",
            Self::Trigger => "trigger",
            Self::Limit => "limit",
            Self::CancelOn => "cancel_on",
            Self::Cancelled => "cancelled",
            Self::Deleted => "deleted",
        }
    }

    /// It ended without a delivery.
    pub fn is_cancelled(self) -> bool {
        matches!(self, Self::CancelOn | Self::Cancelled | Self::Deleted)
    }

    /// The one with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|closed_by| closed_by.name() == name)
    }
}

/// Stands for the text of a condition.
pub type Fingerprint = u64;

/// What ends a window without a delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CancelOn {
    /// Nothing.
    #[default]
    Never,
    /// An event that fulfils this condition.
    When(Fingerprint),
    /// Its row is older than this term: what its subscriber says when the event comes.
    Unsaid,
}

impl CancelOn {
    /// What a fold says.
    pub fn of(condition: Option<&str>) -> Self {
        condition.map_or(Self::Never, |text| Self::When(fingerprint(text)))
    }

    /// Whether an event that fulfils these conditions ends it.
    pub(super) fn is_met(self, fulfilled: &[Fingerprint]) -> bool {
        match self {
            Self::Never => false,
            Self::When(condition) => fulfilled.contains(&condition),
            Self::Unsaid => !fulfilled.is_empty(),
        }
    }

    fn to_text(self) -> Option<String> {
        match self {
            Self::Never => Some(String::new()),
            Self::When(condition) => Some(format!("{condition:016x}")),
            Self::Unsaid => None,
        }
    }

    fn from_text(text: Option<&str>) -> Option<Self> {
        match text {
            None => Some(Self::Unsaid),
            Some("") => Some(Self::Never),
            Some(text) => Fingerprint::from_str_radix(text, 16).ok().map(Self::When),
        }
    }
}

/// The fingerprint of a condition, of the same length however long that is.
pub fn fingerprint(condition: &str) -> Fingerprint {
    let hash = digest::digest(&digest::SHA256, condition.as_bytes());
    Fingerprint::from_be_bytes(hash.as_ref()[..8].try_into().expect("SHA-256 has 32 bytes"))
}

/// What a window was opened with; a change of its subscriber does not change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// When it closes by itself.
    pub mode: Mode,
    /// It closes when it holds so many events.
    pub max_events: u32,
    /// It closes before it holds more bytes.
    pub max_bytes: u32,
    /// Its first event goes ahead.
    pub leading: bool,
    /// Its quiet period grows while there is congestion.
    pub adaptive: bool,
    /// What ends it without a delivery.
    pub cancel_on: CancelOn,
    /// What its delivery looks like.
    pub payload: Payload,
}

/// Terms as they are kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    mode: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    span: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_wait: Option<Span>,
    max_events: u32,
    max_bytes: u32,
    #[serde(default)]
    leading: bool,
    #[serde(default)]
    adaptive: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancel_on: Option<String>,
    #[serde(default)]
    payload: Payload,
}

impl Terms {
    /// By how many percent a quiet period grows while a delivery would have to wait so long anyway.
    pub fn stretch(&self, wait: Duration) -> u32 {
        let Mode::Quiet { quiet, .. } = self.mode else { return 0 };
        let percent = wait.as_millis() * 100 / quiet.0.as_millis().max(1);
        u32::try_from(percent).unwrap_or(u32::MAX).min(FOLD_STRETCH_MAX_PERCENT)
    }

    /// As they are kept.
    pub fn to_text(&self) -> String {
        let (span, max_wait) = match self.mode {
            Mode::Window { window } => (window, None),
            Mode::Quiet { quiet, max_wait } => (quiet, Some(max_wait)),
            Mode::Batch { every } => (every, None),
        };
        let kept = Kept {
            mode: self.mode.name().to_owned(),
            span: Some(span),
            max_wait,
            max_events: self.max_events,
            max_bytes: self.max_bytes,
            leading: self.leading,
            adaptive: self.adaptive,
            cancel_on: self.cancel_on.to_text(),
            payload: self.payload,
        };
        serde_json::to_string(&kept).expect("terms are always JSON")
    }

    /// As they were kept.
    pub fn from_text(text: &str) -> Option<Self> {
        let kept: Kept = serde_json::from_str(text).ok()?;
        let span = kept.span?;
        let mode = match kept.mode.as_str() {
            "window" => Mode::Window { window: span },
            "quiet" => Mode::Quiet { quiet: span, max_wait: kept.max_wait? },
            "batch" => Mode::Batch { every: span },
            _ => return None,
        };
        Some(Self {
            mode,
            max_events: kept.max_events,
            max_bytes: kept.max_bytes,
            leading: kept.leading,
            adaptive: kept.adaptive,
            cancel_on: CancelOn::from_text(kept.cancel_on.as_deref())?,
            payload: kept.payload,
        })
    }
}

/// Where a window stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It takes what comes.
    Gathering,
    /// It is a delivery that waits for its turn in its lane, and takes what comes until then.
    Ready,
    /// It is a delivery that is on its way, or full: nothing is added any more.
    Sealed,
    /// It ended without a delivery: by its subscriber's own rule, by request, or because nothing came.
    Ended,
}

/// The events that a subscriber's fold holds under one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its number; no two windows ever have the same.
    pub no: WindowNo,
    /// Whose.
    pub project: ProjectNo,
    /// For whom.
    pub subscriber: SubscriberNo,
    /// Its key's hash.
    pub key: u128,
    /// The lane of its delivery.
    pub lane: Option<Lane>,
    /// It holds events that are sent again.
    pub replay: bool,
    /// What it was opened with.
    pub terms: Arc<Terms>,
    /// When its first event came.
    pub opened_at: Timestamp,
    /// When it closes, as things are.
    pub due_at: Timestamp,
    /// How many events it holds.
    pub count: u32,
    /// How many bytes they have.
    pub bytes: u64,
    /// The first that joined.
    pub first: Option<Seq>,
    /// The last that joined.
    pub last: Option<Seq>,
    /// Where it stands.
    pub stage: Stage,
    /// When and why it closed.
    pub closed: Option<(Timestamp, ClosedBy)>,
    /// The delivery it became.
    pub delivery: Option<DeliveryNo>,
}

impl Window {
    /// When it closes by itself if nothing more comes, and why. `stretch` is by how much congestion lengthens its quiet
    /// period, in percent.
    pub(super) fn deadline(&self, last_at: Timestamp, stretch: u32) -> (Timestamp, ClosedBy) {
        match self.terms.mode {
            Mode::Window { window } => (self.opened_at.plus(window.0), ClosedBy::Window),
            Mode::Batch { every } => (tick(self.opened_at, every, self.subscriber), ClosedBy::Every),
            Mode::Quiet { quiet, max_wait } => {
                let quiet = if self.terms.adaptive { quiet.0 * (100 + stretch) / 100 } else { quiet.0 };
                let (calm, end) = (last_at.plus(quiet), self.opened_at.plus(max_wait.0));
                if calm <= end { (calm, ClosedBy::Quiet) } else { (end, ClosedBy::MaxWait) }
            }
        }
    }

    /// Why it closes at its time.
    pub fn due_by(&self) -> ClosedBy {
        match self.terms.mode {
            Mode::Window { .. } => ClosedBy::Window,
            Mode::Batch { .. } => ClosedBy::Every,
            Mode::Quiet { max_wait, .. } if self.due_at >= self.opened_at.plus(max_wait.0) => {
                ClosedBy::MaxWait
            }
            Mode::Quiet { .. } => ClosedBy::Quiet,
        }
    }

    /// Its time has come, and nobody has closed it yet.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.stage == Stage::Gathering && self.due_at <= now
    }

    /// It can be joined.
    pub fn takes_more(&self) -> bool {
        matches!(self.stage, Stage::Gathering | Stage::Ready)
    }

    /// It takes one more event.
    pub(super) fn add(&mut self, event: Seq, bytes: u32, now: Timestamp, stretch: u32) {
        self.count_member(event, bytes);
        if self.stage == Stage::Gathering {
            self.due_at = self.deadline(now, stretch).0;
        }
    }

    /// It holds one more event, whenever that came.
    pub fn count_member(&mut self, event: Seq, bytes: u32) {
        self.count += 1;
        self.bytes += u64::from(bytes);
        self.first = self.first.or(Some(event));
        self.last = Some(event);
    }

    /// It was put together from what is kept; its last event came then.
    pub fn recall(&mut self, last_at: Timestamp) {
        if self.stage == Stage::Gathering {
            self.due_at = self.deadline(last_at, 0).0;
        }
    }

    /// Whether so many more bytes have room in it. A single event always has.
    pub(super) fn fits(&self, bytes: u32) -> bool {
        self.count < self.terms.max_events
            && (self.count == 0 || self.bytes + u64::from(bytes) <= u64::from(self.terms.max_bytes))
    }

    /// Why it takes no more.
    pub(super) fn is_full(&self) -> Option<ClosedBy> {
        if self.count >= self.terms.max_events {
            Some(ClosedBy::MaxEvents)
        } else if self.bytes >= u64::from(self.terms.max_bytes) {
            Some(ClosedBy::MaxBytes)
        } else {
            None
        }
    }
}

/// The first of the regular times after `now`. Those of different subscribers lie apart.
fn tick(now: Timestamp, every: Span, subscriber: SubscriberNo) -> Timestamp {
    let every_ms = i64::try_from(every.0.as_millis()).unwrap_or(i64::MAX).max(1);
    let apart = subscriber.wrapping_mul(7_919_311).rem_euclid(every_ms);
    let since = (now.as_ms() - apart).rem_euclid(every_ms);
    now.plus(Duration::from_millis(u64::try_from(every_ms - since).unwrap_or(0)))
}
