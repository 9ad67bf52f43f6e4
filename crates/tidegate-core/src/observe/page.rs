//! Cells of many keys in one bucket, packed.

use super::slab::Cell;
use crate::id::KeyNo;

/// The page that has a key's cell.
pub fn of(key: KeyNo) -> u32 {
    key >> 10
}

/// The page with more added to it; `more` is sorted by key.
pub fn merge(_page: Option<&[u8]>, _more: &[(KeyNo, &Cell)]) -> Result<Vec<u8>, Torn> {
    Err(Torn)
}

/// A page that can not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a page of rollups can not be read")]
pub struct Torn;
