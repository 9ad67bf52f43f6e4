//! Fold: many events become one delivery, and none is lost on the way.
//!
//! A subscriber's [`Fold`] says when. Its events gather in a [`Window`] under a key ([`Key`]): until a time after the
//! first (`window`), until nothing more came for a while (`quiet`), or until the next of regular times (`batch`); earlier
//! when it is full or somebody asks. Then it closes and is a delivery. [`Book`] knows the windows that can still be joined
//! and a [`Draft`] of it decides what an arrival does; the stores do what it says, in the transaction that accepts the event.
//!
//! Promises: every event that was let in is a member of exactly one window; a window closes once, never before its time
//! and never later than its longest wait allows; what has begun to leave is never added to.
//! Does not: read clocks, keep anything, or send.

mod book;
mod definition;
mod draft;
mod key;
mod render;
mod spread;
#[cfg(test)]
mod tests;
mod window;

pub use book::{Arrival, Book, Closing, Member, Slot};
pub use definition::{Fold, Folded, Mode};
pub use draft::{Decided, Draft};
pub(crate) use key::hashed;
pub use key::{Key, KeyText};
pub(crate) use render::join;
pub use render::{Bundle, render};
pub use window::{CancelOn, ClosedBy, Fingerprint, Stage, Terms, Window, fingerprint};

use std::sync::Arc;

/// What a subscriber's fold does with an event that it lets in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appending {
    /// Under which key.
    pub key: Key,
    /// The terms on which a window opens now.
    pub terms: Arc<Terms>,
    /// The conditions it fulfils that make what was gathered irrelevant: a window that was opened with one of them, and
    /// that nothing was sent of, ends without a delivery.
    pub cancels: Vec<Fingerprint>,
}
