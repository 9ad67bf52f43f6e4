//! Opening: durable or not at all (P1), one process at a time, no schema from the future.

use rusqlite::Connection;

use super::{NOW, check_golden, open};
use crate::conformance::Scratch;
use crate::sqlite::open::MIGRATIONS;
use crate::sqlite::{Calls, SqliteStore, db};
use crate::{Error, Store};

fn unusable(result: crate::Result<impl Sized>) -> String {
    match result {
        Err(Error::Unusable(text)) => text,
        Err(error) => panic!("refused for another reason: {error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

#[test]
fn a_commit_is_on_disk_when_it_returns() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    let writer = store.writer.lock().unwrap();
    let read = |sql| writer.conn.query_row(sql, [], |row| row.get::<_, rusqlite::types::Value>(0)).unwrap();
    assert_eq!(read("PRAGMA synchronous"), 2.into());
    assert_eq!(read("PRAGMA journal_mode"), "wal".to_owned().into());
}

#[test]
fn settings_that_could_lose_a_commit_are_refused() {
    let dir = Scratch::new();
    drop(open(&dir).unwrap());
    let conn = Connection::open(dir.path().join("tidegate.db")).unwrap();
    for (level, durable) in [("OFF", false), ("NORMAL", false), ("FULL", true), ("EXTRA", true)] {
        conn.execute_batch(&format!("PRAGMA synchronous = {level}")).unwrap();
        assert_eq!(db::check_durable(&conn).is_ok(), durable, "{level}");
    }
    conn.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())).unwrap();
    let text = unusable(db::check_durable(&conn));
    assert!(text.contains("journal_mode=delete") && text.contains("local disk"), "{text}");
}

#[test]
fn one_process_at_a_time() {
    let dir = Scratch::new();
    let first = open(&dir).unwrap();
    let text = unusable(open(&dir));
    assert!(text.contains("another process") && text.contains("--data-dir"), "it names the remedy: {text}");
    let incarnation = first.incarnation();
    drop(first);
    assert_eq!(open(&dir).unwrap().incarnation(), incarnation + 1, "the refused one changed nothing");
}

#[test]
fn what_a_crash_left_in_the_log_is_in_the_database_before_anything_is_served() {
    let (dir, crashed, alone) = (Scratch::new(), Scratch::new(), Scratch::new());
    let store = open(&dir).unwrap();
    std::fs::create_dir_all(crashed.path()).unwrap();
    for name in ["tidegate.db", "tidegate.db-wal"] {
        std::fs::copy(dir.path().join(name), crashed.path().join(name)).unwrap();
    }
    let next = open(&crashed).unwrap();
    assert_eq!(next.incarnation(), store.incarnation() + 1);
    std::fs::create_dir_all(alone.path()).unwrap();
    let without_log = alone.path().join("tidegate.db");
    std::fs::copy(crashed.path().join("tidegate.db"), &without_log).unwrap();
    let kept: i64 = Connection::open(without_log)
        .unwrap()
        .query_row("SELECT value FROM meta WHERE name = 'incarnation'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(kept, store.incarnation(), "whatever becomes of the log");
}

#[test]
fn a_schema_from_the_future_is_refused() {
    let dir = Scratch::new();
    drop(open(&dir).unwrap());
    let conn = Connection::open(dir.path().join("tidegate.db")).unwrap();
    let future = MIGRATIONS.len() + 1;
    conn.execute_batch(&format!("PRAGMA user_version = {future}")).unwrap();
    let text = unusable(open(&dir));
    assert!(text.contains(&future.to_string()) && text.contains("newer version"), "{text}");
    conn.execute_batch(&format!("PRAGMA user_version = {}", MIGRATIONS.len())).unwrap();
    open(&dir).unwrap();
}

#[test]
fn a_directory_that_can_not_be_made_is_refused() {
    let dir = Scratch::new();
    std::fs::write(dir.path(), b"a file").unwrap();
    let text = unusable(SqliteStore::open(&dir.path().join("data"), b"salt", NOW, Calls::Inline));
    assert!(text.contains("cannot create"), "{text}");
    std::fs::remove_file(dir.path()).unwrap();
}

#[test]
fn the_schema_is_as_it_was_seen_last() {
    let dir = Scratch::new();
    let store = open(&dir).unwrap();
    let writer = store.writer.lock().unwrap();
    let mut statement = writer
        .conn
        .prepare("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, tbl_name, name")
        .unwrap();
    let parts: Vec<String> =
        statement.query_map([], |row| row.get(0)).unwrap().collect::<rusqlite::Result<_>>().unwrap();
    let version: i64 = writer.conn.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    let text = format!("-- version {version}\n{};\n", parts.join(";\n"));
    check_golden("schema.sql", &text);
}
