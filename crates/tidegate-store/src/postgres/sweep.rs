//! Stub.
#![allow(unused_imports, dead_code, clippy::all)]
use super::Shared;
use super::write::Context;
use super::db::{Asked, Conn, Pool};
use crate::*;
use std::sync::Arc;
use tidegate_core::id::*;
use tidegate_core::time::Timestamp;
pub(super) async fn sweep(
    _pool: &Arc<Pool>,
    _shared: &Shared,
    _terms: tidegate_core::retention::Retention,
    _sweep: Sweep,
    _limit: usize,
    _now: Timestamp,
) -> Asked<Swept> {
    todo!()
}
