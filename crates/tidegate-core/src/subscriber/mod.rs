//! A subscriber as its owner describes it: what it wants, where it goes, how carefully.
//!
//! Bytes of the API become a checked [`Definition`], at creation ([`Creation`]) or by a merge patch ([`patch`]); the
//! definition prints back as JSON with its defaults filled in. It is stored likewise, but for defaults that follow from
//! what was said: those are left out, so that they can follow.
//! Promises: what is not supported is refused, never parsed and forgotten; a patch is checked only where it
//! changes something, so that a stricter installation does not lock its older subscribers.
//! Does not: know addresses or header rules (checks of those are handed in), nor match anything ([`crate::route`]).

mod breaker;
mod creation;
mod definition;
mod disable;
mod hidden;
mod invalid;
mod mask;
mod patch;
mod rate;
mod shapes;
mod signing;
mod validate;

#[cfg(test)]
mod tests;

pub use self::breaker::{Breaker, BreakerOn};
pub use self::creation::{Creation, Start};
pub use self::definition::{
    Definition, Destination, DestinationKind, Limits, Match, Missing, OnFailure, Order, OrderBy, Retry,
};
pub use self::disable::DisableAfter;
pub use self::hidden::{MASK, join, masked_headers, part};
pub use self::invalid::{Invalid, read};
pub use self::mask::mask_url;
pub use self::patch::{Patched, Section, differences, patch, replace};
pub use self::rate::Rate;
pub use self::signing::{Algorithm, Rotation, Signing};
pub(crate) use self::validate::check_condition;
pub use self::validate::{CheckHeaders, CheckUrl, check_secret, validate};
