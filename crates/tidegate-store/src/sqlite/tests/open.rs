//! Opening: durable or not at all (P1), one process at a time, no schema from the future.

use std::time::Duration;

use rusqlite::Connection;

use super::{NOW, check_golden, open};
use crate::conformance::Scratch;
use crate::schema;
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

/// The first write carries the new time, so the next start finds nothing strange. It must still wait.
#[tokio::test]
async fn a_start_by_a_clock_that_is_far_wrong_is_remembered() {
    let (dir, far) = (Scratch::new(), NOW.plus(Duration::from_hours(40 * 24)));
    let start = |now| SqliteStore::open(dir.path(), b"salt", 1, now, Calls::Inline).unwrap();
    drop(start(NOW));
    for now in [far, far, NOW] {
        let store = start(now);
        assert_eq!(store.sweep_wait(None).await.unwrap(), Duration::from_hours(24));
    }
    start(far).sweep_wait(Some(Duration::ZERO)).await.unwrap();
    assert_eq!(start(far).sweep_wait(None).await.unwrap(), Duration::ZERO, "it is over");
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
fn a_schema_from_the_future_is_refused_unless_it_says_that_this_version_will_do() {
    let dir = Scratch::new();
    drop(open(&dir).unwrap());
    let conn = Connection::open(dir.path().join("tidegate.db")).unwrap();
    let known = schema::known(MIGRATIONS);
    let pretend = |number, needs| {
        let sql = format!(
            "PRAGMA user_version = {number}; UPDATE meta SET value = {needs} WHERE name = 'schema_needs'"
        );
        conn.execute_batch(&sql).unwrap();
    };
    pretend(known + 2, known + 1);
    let text = unusable(open(&dir));
    assert!(text.contains(&format!("schema {}", known + 2)) && text.contains("newer version"), "{text}");
    pretend(known + 2, known);
    drop(open(&dir).unwrap());
    let version: u32 = conn.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, known + 2, "it stays as it is");
}

/// Versions before this one wrote how many migrations there are, which is less than the newest one's number.
#[test]
fn a_file_whose_migrations_were_counted_is_as_far_as_it_was() {
    let dir = Scratch::new();
    drop(open(&dir).unwrap());
    let conn = Connection::open(dir.path().join("tidegate.db")).unwrap();
    let read = || {
        let sql = "SELECT user_version, (SELECT value FROM meta WHERE name = 'schema_needs') FROM pragma_user_version";
        conn.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    };
    let numbered: (u32, u32) = read();
    assert_eq!(numbered.0, schema::known(MIGRATIONS));
    let counted = |count: usize| {
        let sql = format!("PRAGMA user_version = {count}; DELETE FROM meta WHERE name = 'schema_needs'");
        conn.execute_batch(&sql).unwrap();
    };
    counted(MIGRATIONS.len());
    drop(open(&dir).unwrap());
    assert_eq!(read(), numbered);
    counted(MIGRATIONS.len() + 1);
    assert!(unusable(open(&dir)).contains("newer version"));
}

#[test]
fn a_directory_that_can_not_be_made_is_refused() {
    let dir = Scratch::new();
    std::fs::write(dir.path(), b"a file").unwrap();
    let text = unusable(SqliteStore::open(&dir.path().join("data"), b"salt", 7, NOW, Calls::Inline));
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
