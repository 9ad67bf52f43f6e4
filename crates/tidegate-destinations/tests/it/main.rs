//! The transport against real sockets: what it must never reach (`guard`, `rebind`), what receivers do to it
//! (`receivers`), and whom it trusts (`tls`).
//!
//! Real time with short deadlines, no sleeps: every wait is for a socket or for the deadline under test.

mod guard;
mod name_server;
mod rebind;
mod receivers;
mod reuse;
mod support;
mod tls;
