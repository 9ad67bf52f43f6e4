//! Windows as people look at them, and what they ask of them.

use tidegate_core::fold::ClosedBy;
use tidegate_core::id::{DeliveryNo, SubscriberNo, WindowNo};
use tidegate_core::time::Timestamp;

use crate::ClosedWindow;

/// Which windows.
#[derive(Clone, Debug, Default)]
pub struct WindowFilter {
    /// Only of this subscriber.
    pub subscriber: Option<SubscriberNo>,
    /// Opened after this one.
    pub after: Option<WindowNo>,
    /// Those as well that are closed and wait for their turn in their lanes.
    pub waiting: bool,
    /// How many at most.
    pub limit: usize,
}

/// A window that gathers, or waits for its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowRow {
    /// Inside.
    pub no: WindowNo,
    /// For whom, inside.
    pub subscriber: SubscriberNo,
    /// For whom, outside.
    pub subscriber_id: String,
    /// What keeps it apart, as JSON.
    pub key: String,
    /// How it folds.
    pub mode: &'static str,
    /// When its first event came.
    pub opened_at: Timestamp,
    /// When it closes, as things are.
    pub due_at: Timestamp,
    /// How many events it holds.
    pub count: u32,
    /// How many bytes they have.
    pub bytes: u64,
    /// When and why it closed, if it is a delivery that waits for its turn in its lane.
    pub closed: Option<(Timestamp, ClosedBy)>,
    /// That delivery.
    pub delivery: Option<DeliveryNo>,
}

/// A window as it stands beside what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldRow {
    /// Inside.
    pub no: WindowNo,
    /// For whom.
    pub subscriber: SubscriberNo,
    /// How it folds.
    pub mode: &'static str,
    /// What keeps it apart, as JSON.
    pub key: String,
    /// When its first event came.
    pub opened_at: Timestamp,
    /// When it closes, or was to close by itself; that of an open window may have moved since.
    pub due_at: Timestamp,
    /// When and why it closed.
    pub closed: Option<(Timestamp, ClosedBy)>,
    /// The delivery it became.
    pub delivery: Option<DeliveryNo>,
    /// How many events it holds; an open one may hold more by now.
    pub count: u32,
}

/// A wish to end windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndWindows {
    /// Only of this subscriber.
    pub subscriber: Option<SubscriberNo>,
    /// Only with this key.
    pub key: Option<u128>,
    /// How many at most.
    pub limit: usize,
    /// How.
    pub end: WindowsEnd,
}

/// How windows end that somebody asks to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowsEnd {
    /// Those that gather become deliveries.
    Close(ClosedBy),
    /// They do not; and those that are deliveries already, but wait for their turn in their lanes, are not sent.
    Cancel,
}

/// Why a delivery is not sent whose window was cancelled when it had closed. It has a status of its own in both stores, 6.
pub(crate) const CANCELLED: &str = "its window was cancelled by request";

/// What was ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// How many windows.
    pub windows: usize,
    /// Whose deliveries are due now.
    pub subscribers: Vec<SubscriberNo>,
    /// Those of them that gathered, for those who count them.
    pub closed: Vec<ClosedWindow>,
    /// Those that had closed before, and whose deliveries are cancelled.
    pub unsent: Vec<ClosedWindow>,
    /// There were no more of them than one call takes.
    pub is_complete: bool,
}
