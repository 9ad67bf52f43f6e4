//! Several lives on one file at once, for the simulation of processes that share a store.
//!
//! The claims are the real ones: each names its life, and whatever another life says of it is refused by the same
//! statements as in the product. Who lives, and who may be declared dead, is known elsewhere. The product itself never runs
//! like this: there is one process on one file, and that is what opening the file makes sure of.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use rusqlite::Connection;
use tidegate_core::id::{Incarnation, Nonce, Version};
use tidegate_core::time::Timestamp;

use super::recent::Recent;
use super::telling::Telling;
use super::writer::{CLAIMED, Writer};
use super::{Calls, Dedupe, LAST_NO, SqliteStore, commit, failed, folds};
use crate::{Committed, Group, Result, TakenOver};

impl SqliteStore {
    /// One more life.
    pub async fn begin_life(&self) -> Result<Incarnation> {
        self.write(Calls::Inline, |writer| {
            let sql = "UPDATE meta SET value = value + 1 WHERE name = 'incarnation' RETURNING value";
            writer.conn.query_row(sql, [], |row| row.get(0)).map_err(failed)
        })
        .await
    }

    /// A group of that life.
    pub async fn commit_in(&self, life: Incarnation, group: Arc<Group>) -> Result<Committed> {
        self.write(Calls::Inline, move |writer| {
            writer.incarnation = life;
            commit::commit(writer, &group)
        })
        .await
    }

    /// Nothing that this life held is its own any more. Unless it left in good order, what it held may have been sent.
    pub async fn end_life(&self, life: Incarnation, is_lost: bool, now: Timestamp) -> Result<TakenOver> {
        self.write(Calls::Inline, move |writer| {
            let sql = format!("{CLAIMED} AND incarnation = {life}");
            if is_lost {
                rename(writer, &format!("status = 1 AND incarnation = {life}")).map_err(failed)?;
            }
            writer.void(&sql, is_lost, now).map_err(failed)
        })
        .await
    }

    /// Copies everything that is there to a new file.
    pub async fn copy_to(&self, path: PathBuf) -> Result<()> {
        self.write(Calls::Inline, move |writer| {
            let path = path.to_string_lossy();
            writer.conn.execute("VACUUM INTO ?1", [path]).map(drop).map_err(failed)
        })
        .await
    }

    /// Everything is again as it was when it was copied, but for the numbers of lives: a shared database draws them by
    /// chance. So are nonces, and whatever is made from here on has this one.
    pub async fn go_back_to(&self, path: PathBuf, nonce: Nonce) -> Result<()> {
        self.write(Calls::Inline, move |writer| {
            writer.conn.execute("ATTACH ?1 AS kept", [path.to_string_lossy()]).map_err(failed)?;
            put_back(&mut writer.conn).map_err(failed)?;
            writer.nonce = nonce;
            read_again(writer)?;
            rename(writer, "status <> 1").map_err(failed)
        })
        .await
    }

    /// The version of the configuration steps over those that may be known by what is lost.
    pub async fn raise_version(&self, least: Version) -> Result<()> {
        self.write(Calls::Inline, move |writer| {
            let sql = "UPDATE meta SET value = max(value, ?1) WHERE name = 'version'";
            writer.conn.execute(sql, [least]).map_err(failed)?;
            writer.version = writer.version.max(least);
            Ok(())
        })
        .await
    }
}

/// Gives folds that may still be joined another id, as `postgres/lineage.rs` and `postgres/replicas.rs` do.
fn rename(writer: &Writer, which: &str) -> rusqlite::Result<()> {
    let sql = format!(
        "UPDATE deliveries SET nonce = ?1 WHERE {which} AND fold IN (SELECT no FROM windows WHERE stage = 1)"
    );
    writer.conn.execute(&sql, [writer.nonce]).map(drop)
}

/// What the writer remembers is what is there.
fn read_again(writer: &mut Writer) -> Result<()> {
    writer.reopen()?;
    let (book, joined) = folds::load(&writer.conn).map_err(failed)?;
    let last_no = writer.conn.query_row(LAST_NO, [], |row| row.get(0)).map_err(failed)?;
    writer.telling = Telling::start(&writer.conn, &book, &joined, last_no).map_err(failed)?;
    *writer.book.lock().unwrap_or_else(PoisonError::into_inner) = book;
    let dedupe = Dedupe::load(&writer.conn).map_err(failed)?;
    *writer.dedupe.lock().unwrap_or_else(PoisonError::into_inner) = dedupe;
    *writer.recent.lock().unwrap_or_else(PoisonError::into_inner) = Recent::default();
    Ok(())
}

fn put_back(conn: &mut Connection) -> rusqlite::Result<()> {
    let tx = conn.transaction()?;
    tx.execute_batch("PRAGMA defer_foreign_keys = ON")?;
    let tables = "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name <> 'sqlite_stat1'";
    let tables =
        tx.prepare(tables)?.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    let lives: i64 =
        tx.query_row("SELECT value FROM meta WHERE name = 'incarnation'", [], |row| row.get(0))?;
    for table in tables {
        tx.execute_batch(&format!(
            "DELETE FROM main.{table}; INSERT INTO main.{table} SELECT * FROM kept.{table}"
        ))?;
    }
    tx.execute("UPDATE main.meta SET value = ?1 WHERE name = 'incarnation'", [lives])?;
    tx.commit()
}
