//! Stub.
#![allow(unused_imports, dead_code, clippy::all)]
use super::Shared;
use super::commit::Context;
use super::db::{Asked, Conn, Pool};
use crate::*;
use std::sync::Arc;
use tidegate_core::id::*;
use tidegate_core::time::Timestamp;
pub(super) async fn change(_conn: &Conn, _space: i32, _change: &Change, _now: Timestamp) -> Asked<Changed> {
    todo!()
}
pub(super) async fn load(_pool: &Arc<Pool>, _since: Version) -> Asked<Configuration> {
    todo!()
}
pub(super) async fn keep_streak(
    _conn: &Conn,
    _subscriber: SubscriberNo,
    _since: Option<Timestamp>,
) -> Asked<()> {
    todo!()
}
