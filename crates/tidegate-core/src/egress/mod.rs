//! Egress: where deliveries may go.
//!
//! Two questions, both answered without a network. [`check_url`] is asked when a subscriber is saved and refuses
//! what can never be sent, with the remedy. [`Policy`] is asked by the transport for every address it is about to
//! dial, and its answer is the one that protects.
//! Promises: an address is refused unless it is public unicast or inside a range the operator listed; an IPv4
//! address is judged the same whatever IPv6 form it hides in.
//! Does not: resolve names. A name that resolves to a refused address is refused when it is dialled.

mod policy;
mod url;

pub use self::policy::Policy;
pub use self::url::{UrlProblem, check_url};
pub use ::url::Url;
pub use ipnet::IpNet;

#[cfg(test)]
mod tests;
