//! What must hold in the rows between any two commits, as questions to the database file.
//!
//! Each question lists the rows that break a rule; a sound store answers all of them with nothing. Conformance, the
//! property test and the simulation ask them after whatever they did. Not part of the product.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};
use tidegate_core::event::lookup_key;

use super::dedupe::MARK;
use super::failed;
use super::run::Run;
use crate::Result;

/// A rule, and the rows that break it as one text each.
const RULES: [(&str, &str); 19] = [
    (
        "of a lane, at most one is due or claimed",
        "SELECT 'subscriber ' || subscriber || ' lane ' || lane || ': ' || group_concat(id) FROM deliveries
         WHERE lane IS NOT NULL AND status < 2 GROUP BY subscriber, lane HAVING count(*) > 1",
    ),
    (
        "of a lane, what is due is the oldest",
        "SELECT d.id FROM deliveries d WHERE d.lane IS NOT NULL AND d.status = 0 AND EXISTS
            (SELECT 1 FROM deliveries o WHERE o.subscriber = d.subscriber AND o.lane = d.lane AND o.status < 3
             AND max(o.event, abs(o.replay)) < max(d.event, abs(d.replay)))",
    ),
    (
        "a lane moves, unless a backfill may still bring something older",
        "SELECT 'subscriber ' || d.subscriber || ' lane ' || d.lane FROM deliveries d
         JOIN subscribers s ON s.no = d.subscriber
         WHERE d.lane IS NOT NULL AND d.status < 3 AND s.deleted_at IS NULL
         GROUP BY d.subscriber, d.lane
         HAVING min(d.status) = 2 AND (s.backfill_after IS NULL OR min(max(d.event, abs(d.replay))) <= s.backfill_after
            OR max(d.fold IS NULL OR d.replay > 0) = 0)",
    ),
    (
        "behind a backfill nothing younger is due or claimed in a lane",
        "SELECT d.id FROM deliveries d JOIN subscribers s ON s.no = d.subscriber
         WHERE d.lane IS NOT NULL AND d.status < 2 AND s.deleted_at IS NULL
             AND max(d.event, abs(d.replay)) > s.backfill_after AND (d.fold IS NULL OR d.replay > 0)",
    ),
    (
        "what is quarantined can be released",
        "SELECT no FROM quarantine WHERE NOT json_valid(CAST(unit AS TEXT)) OR length(fingerprint) <> 16",
    ),
    ("only what has a lane waits in one", "SELECT id FROM deliveries WHERE status = 2 AND lane IS NULL"),
    (
        "a claim names this life and has a token, and nothing else does",
        "SELECT id FROM deliveries WHERE CASE WHEN status = 1
            THEN claims < 1 OR incarnation IS NOT (SELECT value FROM meta WHERE name = 'incarnation')
            ELSE incarnation IS NOT NULL END",
    ),
    (
        "what is finished has an end, and nothing else does",
        "SELECT id FROM deliveries WHERE (status >= 3) <> (finished_at IS NOT NULL)",
    ),
    (
        "what is exhausted, expired or cancelled says why, and nothing else does",
        "SELECT id FROM deliveries WHERE (status IN (4, 5, 6)) <> (reason IS NOT NULL)",
    ),
    (
        "attempts are numbered without gaps and counted",
        "SELECT d.id FROM deliveries d LEFT JOIN attempts a ON a.delivery = d.id GROUP BY d.id
         HAVING count(a.n) <> d.attempts OR coalesce(max(a.n), 0) <> d.attempts OR (d.status = 3 AND d.attempts = 0)
            OR d.tries > d.attempts",
    ),
    (
        "a delivery has its subscriber and, while it may be sent, its event, of one project",
        "SELECT d.id FROM deliveries d LEFT JOIN events e ON e.seq = d.event
         LEFT JOIN subscribers s ON s.no = d.subscriber
         WHERE s.project IS NOT d.project OR e.project IS NOT d.project
            AND (d.status IN (0, 1, 2, 4) OR e.project IS NOT NULL)",
    ),
    (
        "an attempt has its delivery",
        "SELECT delivery FROM attempts WHERE delivery NOT IN (SELECT id FROM deliveries)",
    ),
    (
        "an id is unique in its project and source",
        "SELECT project || '/' || source || '/' || id FROM events GROUP BY project, source, id HAVING count(*) > 1",
    ),
    (
        "an event goes to a subscriber once, replays aside",
        "SELECT event || ' to ' || subscriber FROM deliveries WHERE replay = 0 GROUP BY event, subscriber
         HAVING count(*) > 1",
    ),
    (
        "what was made with an event follows it",
        "SELECT d.id FROM deliveries d WHERE d.late = 0
         AND d.event <> (SELECT max(seq) FROM events WHERE seq < d.id)
         AND EXISTS (SELECT 1 FROM events WHERE seq = d.event)",
    ),
    (
        "a replay is made later and carries its own number",
        "SELECT id FROM deliveries WHERE replay <> 0 AND (abs(replay) <> id OR late = 0)",
    ),
    ("a number is an event or a delivery", "SELECT seq FROM events JOIN deliveries ON deliveries.id = events.seq"),
    (
        "no version is ahead of the configuration's",
        "SELECT version FROM (SELECT version FROM events UNION ALL SELECT version FROM subscribers
            UNION ALL SELECT version FROM subscriber_versions)
         WHERE version > (SELECT value FROM meta WHERE name = 'version')",
    ),
    ("a backfill stays inside its marks", "SELECT no FROM subscribers WHERE backfill_after > backfill_until"),
];

/// The same about folds. A window that gathers is known better by memory than by its own row.
const FOLD_RULES: [(&str, &str); 10] = [
    (
        "an event is in one window of a subscriber, replays aside",
        "SELECT m.event || ' for ' || w.subscriber FROM members m JOIN windows w ON w.no = m.window
         WHERE NOT w.replay GROUP BY m.event, w.subscriber HAVING count(*) > 1",
    ),
    (
        "of a subscriber and key, one window can be joined",
        "SELECT group_concat(no) FROM windows WHERE stage < 2 GROUP BY subscriber, key HAVING count(*) > 1",
    ),
    (
        "a window that may be sent counts what it holds",
        "SELECT w.no FROM windows w JOIN deliveries d ON d.id = w.delivery LEFT JOIN members m ON m.window = w.no
         WHERE w.stage > 0 AND d.status IN (0, 1, 2, 4)
         GROUP BY w.no HAVING count(m.event) <> w.count OR coalesce(sum(m.bytes), 0) <> w.bytes",
    ),
    (
        "from its last event a window that may be sent is followed back to its first",
        "WITH RECURSIVE chain (window, event, n) AS
            (SELECT w.no, w.last, 1 FROM windows w JOIN deliveries d ON d.id = w.delivery
                WHERE w.stage > 0 AND d.status IN (0, 1, 2, 4)
             UNION ALL SELECT c.window, m.prev, c.n + 1 FROM chain c
                JOIN members m ON m.window = c.window AND m.event = c.event WHERE m.prev IS NOT NULL)
         SELECT w.no FROM windows w JOIN chain c ON c.window = w.no GROUP BY w.no HAVING max(c.n) <> w.count",
    ),
    (
        "each member of a window follows another one",
        "SELECT window || ' after ' || coalesce(prev, 'nothing') FROM members GROUP BY window, prev HAVING count(*) > 1
         UNION ALL SELECT m.event FROM members m JOIN events e ON e.seq = m.prev
            WHERE NOT EXISTS (SELECT 1 FROM members p WHERE p.event = m.prev AND p.window = m.window)",
    ),
    (
        "a window that closed is one delivery, and a fold was one window",
        "SELECT no FROM windows w WHERE (stage IN (1, 2)) <> (delivery IS NOT NULL) OR delivery IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.id = w.delivery AND d.fold = w.no
                AND d.subscriber = w.subscriber AND (d.out_of_order OR d.lane IS w.lane) AND (d.replay > 0) = w.replay AND d.event = w.first)
         UNION ALL SELECT id FROM deliveries d WHERE fold IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM windows w WHERE w.no = d.fold AND w.delivery = d.id)",
    ),
    (
        "what can be joined will be sent",
        "SELECT w.no FROM windows w JOIN subscribers s ON s.no = w.subscriber LEFT JOIN deliveries d ON d.id = w.delivery
         WHERE w.stage < 2 AND (d.status >= 3 OR s.deleted_at IS NOT NULL)",
    ),
    (
        "what closed says when and why, and nothing else does",
        "SELECT no FROM windows WHERE (stage > 0) <> (closed_at IS NOT NULL) OR (stage > 0) <> (closed_by IS NOT NULL)",
    ),
    (
        "what is folded and may be sent is there",
        "SELECT m.event FROM members m JOIN windows w ON w.no = m.window LEFT JOIN deliveries d ON d.id = w.delivery
         WHERE (w.stage = 0 OR d.status IN (0, 1, 2, 4)) AND m.event NOT IN (SELECT seq FROM events)",
    ),
    (
        "a number is a window or something else",
        "SELECT no FROM windows WHERE no IN (SELECT seq FROM events) OR no IN (SELECT id FROM deliveries)",
    ),
];

/// Looks at the store in `dir`, open or not. Tells every violation in words; none is well.
pub fn audit(dir: &Path) -> Result<Vec<String>> {
    let conn = Connection::open_with_flags(dir.join("tidegate.db"), OpenFlags::SQLITE_OPEN_READ_ONLY)
        .map_err(failed)?;
    violations(&conn).map_err(failed)
}

fn violations(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let tx = conn.unchecked_transaction()?;
    let mut told = Vec::new();
    for (rule, sql) in RULES.into_iter().chain(FOLD_RULES) {
        let mut statement = tx.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let value: rusqlite::types::Value = row.get(0)?;
            told.push(format!("{rule}: {value:?}"));
        }
    }
    told.extend(forgotten_ids(&tx)?);
    let sound: String = tx.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if sound != "ok" {
        told.push(sound);
    }
    Ok(told)
}

/// Up to the mark, every event is found by its look-up key.
fn forgotten_ids(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut events =
        conn.prepare(&format!("SELECT seq, project, source, id FROM events WHERE seq <= ({MARK})"))?;
    let runs = Run::load_all(conn)?;
    let mut forgotten = Vec::new();
    let mut rows = events.query([])?;
    while let Some(row) = rows.next()? {
        let seq: i64 = row.get(0)?;
        let key = lookup_key(row.get(1)?, row.get_ref(2)?.as_str()?, row.get_ref(3)?.as_str()?);
        let mut found = Vec::new();
        for run in &runs {
            run.look_up(conn, &(key..=key), &mut found)?;
        }
        if !found.contains(&seq) {
            forgotten.push(format!("the runs of ids are complete up to their mark: event {seq} is missing"));
        }
    }
    Ok(forgotten)
}
