//! What only the embedded store promises: durable settings, one process, its schema and plans, and what it does when
//! the disk fails; and its large quotas. Semantics are tested by the conformance suite.

mod faults;
mod flushes;
mod gathered;
mod open;
mod penalties;
mod plans;
mod quotas;
mod remembering;
mod telling;
mod upgrade;

use std::path::PathBuf;

use super::{Calls, SqliteStore};
use crate::Result;
use crate::conformance::Scratch;
use tidegate_core::time::Timestamp;

const NOW: Timestamp = Timestamp::from_ms(1_800_000_000_000);

fn open(dir: &Scratch) -> Result<SqliteStore> {
    SqliteStore::open(dir.path(), b"salt", 7, NOW, Calls::Inline)
}

/// Compares with the file of that name under `tests/golden`; with `BLESS=1` in the environment it is rewritten.
fn check_golden(name: &str, actual: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, actual).expect("the golden file can be written");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        golden == actual,
        "{} differs; if that is meant, run the test again with BLESS=1\n--- golden\n{golden}\n--- now\n{actual}",
        path.display()
    );
}
