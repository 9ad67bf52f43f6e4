//! Stub.
#![allow(unused_imports, dead_code, clippy::all)]
use super::Shared;
use super::write::Context;
use super::db::{Asked, Conn, Pool};
use crate::*;
use std::sync::Arc;
use tidegate_core::id::*;
use tidegate_core::time::Timestamp;
pub(super) async fn insert(
    _context: &mut Context<'_>,
    _project: ProjectNo,
    _unit: &tidegate_core::event::Unit,
    _finding: &tidegate_core::catalog::Finding,
) -> Asked<UnitStatus> {
    todo!()
}
pub(super) async fn release(
    _context: &mut Context<'_>,
    _project: ProjectNo,
    _no: QuarantineNo,
    _known: Option<UnitStatus>,
) -> Asked<Option<UnitStatus>> {
    todo!()
}
pub(super) async fn list(
    _conn: &Conn,
    _project: ProjectNo,
    _filter: &QuarantineFilter,
) -> Asked<Page<QuarantineRow>> {
    todo!()
}
pub(super) async fn pick(_conn: &Conn, _project: ProjectNo, _filter: &QuarantineFilter) -> Asked<Picked> {
    todo!()
}
pub(super) async fn discard(_conn: &Conn, _project: ProjectNo, _filter: &QuarantineFilter) -> Asked<Picked> {
    todo!()
}
