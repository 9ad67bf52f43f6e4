//! Looks into the server's database for one thing only: whether SQLite finds it whole.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rusqlite::{Connection, OpenFlags};

const FILE: &str = "tidegate.db";

/// `PRAGMA integrity_check` on a copy, for a server that does not run: looking at the files themselves would bring
/// the log into the database, and the server would not find what the fault left behind.
pub(super) fn check_copy(data: &Path, scratch: &Path) -> Result<()> {
    let copy = scratch.join("copy");
    fs::create_dir_all(&copy)?;
    for suffix in ["", "-wal"] {
        let name = format!("{FILE}{suffix}");
        fs::remove_file(copy.join(&name)).ok();
        if data.join(&name).exists() {
            fs::copy(data.join(&name), copy.join(&name))
                .with_context(|| format!("{name} can not be copied"))?;
        }
    }
    fs::remove_file(copy.join(format!("{FILE}-shm"))).ok();
    check(&copy.join(FILE), OpenFlags::SQLITE_OPEN_READ_WRITE)
}

/// `PRAGMA integrity_check` beside a running server.
pub(super) fn check_live(data: &Path) -> Result<()> {
    check(&data.join(FILE), OpenFlags::SQLITE_OPEN_READ_ONLY)
}

fn check(path: &Path, flags: OpenFlags) -> Result<()> {
    let conn = Connection::open_with_flags(path, flags)?;
    let found: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    ensure!(found == "ok", "the database is damaged: {found}");
    Ok(())
}
