//! How a rate is kept: by a bucket of this process, or by tokens of one that all replicas share.

use std::time::Duration;

use super::Bucket;
use crate::gate::Flow;
use crate::limits::GRANT_VALID_MS;
use crate::time::Timestamp;

/// What says whether one more may go.
#[derive(Debug)]
pub(super) enum Meter {
    /// Nobody counts.
    Free,
    /// This process alone.
    Own(Bucket),
    /// All replicas together.
    Shared(Purse),
}

/// Tokens that were granted and not used yet.
#[derive(Debug)]
pub(super) struct Purse {
    pub(super) flow: Flow,
    tokens: u32,
    /// From then on they are worth nothing: tokens that are held back and used together would be a second burst.
    void_at: Timestamp,
    /// It was asked for more, and there was no answer yet.
    is_begging: bool,
}

/// Why one may not go yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Its rate lets it go then.
    Until(Timestamp),
    /// There are no tokens.
    Tokens,
}

impl Meter {
    pub(super) fn new(flow: Option<Flow>, is_shared: bool, now: Timestamp) -> Self {
        match flow {
            None => Self::Free,
            Some(flow) if is_shared => {
                Self::Shared(Purse { flow, tokens: 0, void_at: now, is_begging: false })
            }
            Some(flow) => Self::Own(Bucket::new(flow, now)),
        }
    }

    /// Keeps another rate from now on, with what it has. Where nobody counted before, that is nothing.
    pub(super) fn change(&mut self, flow: Option<Flow>, is_shared: bool, now: Timestamp) {
        match (self, flow) {
            (Self::Own(bucket), Some(flow)) => bucket.change(flow, now),
            (meter, flow) => {
                *meter = Self::new(flow, is_shared, now);
                meter.empty(now);
            }
        }
    }

    /// What went before is not known: as much as could. The bucket of all replicas knows.
    pub(super) fn empty(&mut self, now: Timestamp) {
        if let Self::Own(bucket) = self {
            bucket.empty(now);
        }
    }

    /// Whether one may go, or what it has to wait for.
    pub(super) fn peek(&mut self, now: Timestamp) -> Result<(), Wait> {
        match self {
            Self::Free => Ok(()),
            Self::Own(bucket) => match bucket.next_at(now) {
                at if at > now => Err(Wait::Until(at)),
                _ => Ok(()),
            },
            Self::Shared(purse) => purse.peek(now),
        }
    }

    /// How many may go.
    pub(super) fn left(&mut self, now: Timestamp) -> u32 {
        match self {
            Self::Free => u32::MAX,
            Self::Own(bucket) => bucket.left(now),
            Self::Shared(purse) if now < purse.void_at => purse.tokens,
            Self::Shared(_) => 0,
        }
    }

    /// Lets one go, or says what it has to wait for.
    pub(super) fn take(&mut self, now: Timestamp) -> Result<(), Wait> {
        match self {
            Self::Free => Ok(()),
            Self::Own(bucket) => bucket.take(now).map_err(Wait::Until),
            Self::Shared(purse) => purse.take(now),
        }
    }

    /// What was asked for is not wanted any more.
    pub(super) fn forget(&mut self) {
        if let Self::Shared(purse) = self {
            (purse.tokens, purse.is_begging) = (0, false);
        }
    }
}

impl Purse {
    fn peek(&mut self, now: Timestamp) -> Result<(), Wait> {
        if self.tokens == 0 || now >= self.void_at {
            (self.tokens, self.is_begging) = (0, true);
            return Err(Wait::Tokens);
        }
        Ok(())
    }

    fn take(&mut self, now: Timestamp) -> Result<(), Wait> {
        self.peek(now)?;
        self.tokens -= 1;
        Ok(())
    }

    /// What it has is worth nothing.
    pub(super) fn spend_all(&mut self) {
        self.tokens = 0;
    }

    /// The answer to its begging; whether it still waited for one.
    pub(super) fn put(&mut self, tokens: u32, now: Timestamp) -> bool {
        if !std::mem::take(&mut self.is_begging) {
            return false;
        }
        self.tokens = tokens;
        self.void_at = now.plus(Duration::from_millis(GRANT_VALID_MS));
        true
    }
}
