//! The paths that older clients know, in their own words, over the same subscribers, events and deliveries.
//!
//! `/v1/webhooks/…` speaks as NeoForge's meta API was designed to: [`registration`] reads and shows its subscribers,
//! [`webhooks`] answers, [`history`] lists deliveries. `/api/events/publish` is `/v1/events` under another name.
//! What is made here is an ordinary subscriber whose `destination.payload` is `events`; only those are seen from here.
//! Does not: fold. Each event goes at once, as a list of one.

pub(super) mod history;
pub(super) mod webhooks;

mod registration;
