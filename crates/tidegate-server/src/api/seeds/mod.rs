//! The paths that older clients know, in their own words, over the same subscribers, events and deliveries.
//!
//! `/v1/webhooks/…` speaks as NeoForge's meta API was designed to: [`registration`] reads and shows its subscribers,
//! [`webhooks`] answers, [`history`] lists deliveries. `/api/events/publish` is `/v1/events` under another name.
//! What is made here is an ordinary subscriber whose `destination.payload` is `events`, and which folds: every 30 seconds
//! one list of what came, up to a thousand. Only those are seen from here.

pub(super) mod history;
pub(super) mod webhooks;

mod registration;
