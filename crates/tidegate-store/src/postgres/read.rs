//! Stub.
#![allow(unused_imports, dead_code, clippy::all)]
use super::Shared;
use super::write::Context;
use super::db::{Asked, Conn, Pool};
use crate::*;
use std::sync::Arc;
use tidegate_core::id::*;
use tidegate_core::time::Timestamp;
pub(super) async fn trace(_conn: &Conn, _project: ProjectNo, _event: Seq) -> Asked<Trace> {
    todo!()
}
pub(super) async fn list(
    _conn: &Conn,
    _project: ProjectNo,
    _filter: &DeliveryFilter,
) -> Asked<Page<DeliveryRow>> {
    todo!()
}
pub(super) async fn one(
    _conn: &Conn,
    _project: ProjectNo,
    _no: DeliveryNo,
) -> Asked<Option<(DeliveryRow, Vec<AttemptRow>)>> {
    todo!()
}
pub(super) async fn among(
    _conn: &Conn,
    _project: ProjectNo,
    _numbers: Vec<DeliveryNo>,
) -> Asked<Vec<DeliveryRow>> {
    todo!()
}
pub(super) async fn dead_letters(_conn: &Conn, _at_most: u64) -> Asked<u64> {
    todo!()
}
pub(super) async fn backlog(_conn: &Conn) -> Asked<Backlog> {
    todo!()
}
pub(super) async fn backlogs(_conn: &Conn) -> Asked<Vec<(SubscriberNo, Backlog)>> {
    todo!()
}
pub(super) async fn sizes(_conn: &Conn) -> Asked<Vec<StorePart>> {
    todo!()
}
