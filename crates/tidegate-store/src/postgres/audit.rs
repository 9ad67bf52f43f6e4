//! Stub.
#![allow(unused_imports, dead_code, clippy::all)]
use super::Shared;
use super::write::Context;
use super::db::{Asked, Conn, Pool};
use crate::*;
use std::sync::Arc;
use tidegate_core::id::*;
use tidegate_core::time::Timestamp;
/// Looks at the store.
pub async fn audit(_url: &str) -> crate::Result<Vec<String>> {
    todo!()
}
