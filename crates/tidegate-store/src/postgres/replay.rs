//! Stub.
#![allow(unused_imports, dead_code, clippy::all)]
use super::Shared;
use super::write::Context;
use super::db::{Asked, Conn, Pool};
use crate::*;
use std::sync::Arc;
use tidegate_core::id::*;
use tidegate_core::time::Timestamp;
pub(super) async fn replay(
    _conn: &Conn,
    _space: i32,
    _replay: &Replay,
    _now: Timestamp,
) -> Asked<Vec<DeliveryNo>> {
    todo!()
}
