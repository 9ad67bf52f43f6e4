//! Stub.
#![allow(unused_imports, dead_code, clippy::all)]
use super::Shared;
use super::write::Context;
use super::db::{Asked, Conn, Pool};
use crate::*;
use std::sync::Arc;
use tidegate_core::id::*;
use tidegate_core::time::Timestamp;
pub(super) async fn scope(
    _conn: &Conn,
    _shared: &Shared,
    _project: ProjectNo,
    _selector: Selector,
    _now: Timestamp,
) -> Asked<Scope> {
    todo!()
}
pub(super) async fn scan(_conn: &Conn, _scope: &Scope, _after: i64, _limit: usize) -> Asked<Scan> {
    todo!()
}
pub(super) async fn start(_conn: &Conn, _job: &NewJob, _now: Timestamp) -> Asked<JobRow> {
    todo!()
}
pub(super) async fn stop(
    _conn: &Conn,
    _project: ProjectNo,
    _id: &str,
    _now: Timestamp,
) -> Asked<StopOutcome> {
    todo!()
}
pub(super) async fn by_id(_conn: &Conn, _project: ProjectNo, _id: &str) -> Asked<Option<JobRow>> {
    todo!()
}
pub(super) async fn by_no(_conn: &Conn, _no: JobNo) -> Asked<Option<JobRow>> {
    todo!()
}
pub(super) async fn list(
    _conn: &Conn,
    _project: ProjectNo,
    _before: Option<JobNo>,
    _limit: usize,
) -> Asked<Page<JobRow>> {
    todo!()
}
pub(super) async fn running(_conn: &Conn) -> Asked<Vec<JobNo>> {
    todo!()
}
pub(super) async fn step(_context: &mut Context<'_>, _step: &JobStep) -> Asked<()> {
    todo!()
}
pub(super) async fn lanes_of(_conn: &Conn, _steps: &[JobStep]) -> Asked<super::lanes::Lanes> {
    if _steps.is_empty() { Ok(Default::default()) } else { todo!() }
}
