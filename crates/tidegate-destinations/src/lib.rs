//! Where deliveries go.
//!
//! A kind of destination is a folder of pure functions: `render` makes the request, `classify` says what the
//! answer means. None of them opens a socket. [`transport`] alone does, and every address it dials has passed the
//! [egress policy](tidegate_core::egress::Policy) first. So a new kind is two functions and a table, and the
//! guard can not be forgotten.

pub mod resolve;
pub mod transport;
pub mod webhook;

mod answer;
mod connect;
mod failure;
mod pool;
mod target;

pub use self::resolve::{Resolve, SystemResolver};
pub use self::target::Target;
pub use self::transport::{Answer, Exchange, Failure, Grant, HttpTransport, MayLeave, Outbound, Transport};
