//! The lengths of buckets that are stored.

/// The length of a bucket. Weeks begin on Monday, everything in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grain {
    /// Five seconds.
    S5,
    /// A minute.
    M1,
    /// Five minutes.
    M5,
    /// An hour.
    H1,
    /// A day.
    D1,
    /// A week.
    D7,
}
