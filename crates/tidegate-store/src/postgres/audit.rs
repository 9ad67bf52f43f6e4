//! What must hold in the rows between any two commits, as questions to the database; and what tests need beside.
//!
//! Each question lists the rows that break a rule; a sound store answers all of them with nothing. Conformance, the
//! property test and the chaos runs ask them after whatever they did. Not part of the product.

use tidegate_core::id::Incarnation;
use tidegate_core::time::Timestamp;

use super::connect::{Target, failed};
use super::db::{Asked, Conn, Pool};
use super::replicas;
use crate::Result;

/// A rule, and the rows that break it as one text each.
const RULES: [(&str, &str); 21] = [
    (
        "of a lane, at most one is due or claimed",
        "SELECT 'subscriber ' || subscriber || ' lane ' || lane || ': ' || string_agg(id::text, ',') FROM deliveries
         WHERE lane IS NOT NULL AND status < 2 GROUP BY subscriber, lane HAVING count(*) > 1",
    ),
    (
        "of a lane, what is due is the oldest",
        "SELECT d.id::text FROM deliveries d WHERE d.lane IS NOT NULL AND d.status = 0 AND EXISTS
            (SELECT 1 FROM deliveries o WHERE o.subscriber = d.subscriber AND o.lane = d.lane AND o.status < 3
             AND greatest(o.event, abs(o.replay)) < greatest(d.event, abs(d.replay)))",
    ),
    (
        "a lane moves, unless a backfill may still bring something older",
        "SELECT 'subscriber ' || d.subscriber || ' lane ' || d.lane FROM deliveries d
         JOIN subscribers s ON s.no = d.subscriber
         WHERE d.lane IS NOT NULL AND d.status < 3 AND s.deleted_at IS NULL
         GROUP BY d.subscriber, d.lane, s.backfill_after
         HAVING min(d.status) = 2
            AND (s.backfill_after IS NULL OR min(greatest(d.event, abs(d.replay))) <= s.backfill_after
                OR bool_and(d.fold IS NOT NULL AND d.replay <= 0))",
    ),
    (
        "behind a backfill nothing younger is due or claimed in a lane",
        "SELECT d.id::text FROM deliveries d JOIN subscribers s ON s.no = d.subscriber
         WHERE d.lane IS NOT NULL AND d.status < 2 AND s.deleted_at IS NULL
             AND greatest(d.event, abs(d.replay)) > s.backfill_after AND (d.fold IS NULL OR d.replay > 0)",
    ),
    (
        "what is quarantined can be released",
        "SELECT no::text FROM quarantine WHERE octet_length(fingerprint) <> 16 OR substr(unit, 1, 1) <> '['",
    ),
    ("only what has a lane waits in one", "SELECT id::text FROM deliveries WHERE status = 2 AND lane IS NULL"),
    (
        "a claim names a life and has a token, and nothing else does",
        "SELECT id::text FROM deliveries WHERE CASE WHEN status = 1
            THEN claims < 1 OR incarnation IS NULL OR incarnation NOT IN (SELECT incarnation FROM replicas)
            ELSE incarnation IS NOT NULL END",
    ),
    (
        "what is claimed is found when its life ends",
        "SELECT d.id::text FROM deliveries d LEFT JOIN replicas r ON r.incarnation = d.incarnation
         WHERE CASE WHEN d.status <> 1 THEN d.holder IS NOT NULL WHEN d.holder IS NULL
            THEN d.lane IS NOT NULL OR (d.id >> 20 << 20 = ANY(r.held)) IS NOT TRUE ELSE d.holder <> d.incarnation END",
    ),
    (
        "who lives beats",
        "SELECT coalesce(r.incarnation, b.incarnation)::text FROM replicas r FULL JOIN beats b
            ON b.incarnation = r.incarnation WHERE r.incarnation IS NULL OR b.incarnation IS NULL",
    ),
    (
        "what is finished has an end, and nothing else does",
        "SELECT id::text FROM deliveries WHERE (status >= 3) <> (finished_at IS NOT NULL)",
    ),
    (
        "what is exhausted, expired or cancelled says why, and nothing else does",
        "SELECT id::text FROM deliveries WHERE (status IN (4, 5, 6)) <> (reason IS NOT NULL)",
    ),
    (
        "attempts are numbered without gaps and counted",
        "SELECT d.id::text FROM deliveries d LEFT JOIN attempts a ON a.delivery = d.id GROUP BY d.id
         HAVING count(a.n) + (d.record IS NOT NULL)::int <> d.attempts OR coalesce(max(a.n), 0) <> count(a.n)
            OR (d.status = 3) <> (d.record IS NOT NULL) OR (d.status = 3 AND d.attempts = 0) OR d.tries > d.attempts",
    ),
    (
        "a delivery has its subscriber and, while it may be sent, its event, of one project",
        "SELECT d.id::text FROM deliveries d LEFT JOIN events e ON e.seq = d.event
         LEFT JOIN subscribers s ON s.no = d.subscriber
         WHERE s.project IS DISTINCT FROM d.project OR e.project IS DISTINCT FROM d.project
            AND (d.status IN (0, 1, 2, 4) OR e.project IS NOT NULL)",
    ),
    (
        "what outlived its period belongs to a delivery",
        "SELECT 'attempt at ' || delivery FROM attempts_kept WHERE delivery NOT IN (SELECT id FROM deliveries)
         UNION ALL SELECT 'body of ' || delivery FROM delivery_bodies WHERE delivery NOT IN (SELECT id FROM deliveries)",
    ),
    (
        "an id is unique in its project and source",
        "SELECT project || '/' || encode(source, 'escape') || '/' || encode(id, 'escape') FROM events GROUP BY project, source, id HAVING count(*) > 1",
    ),
    (
        "every event is found by its id",
        "SELECT e.seq::text FROM events e LEFT JOIN dedupe d ON d.key_high = e.key_high AND d.key_low = e.key_low
         WHERE d.event IS DISTINCT FROM e.seq",
    ),
    (
        "an id is taken by an event, or by one that is just going",
        "SELECT d.event::text FROM dedupe d WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.seq = d.event)
            AND NOT EXISTS (SELECT 1 FROM pg_class c, installation i
                WHERE c.relnamespace = current_schema()::regnamespace
                    AND c.relname = 'events_' || (d.event >> i.period_bits))",
    ),
    (
        "an event goes to a subscriber once, replays aside, which carry their own number",
        "SELECT event || ' to ' || subscriber FROM deliveries WHERE replay = 0 GROUP BY event, subscriber
         HAVING count(*) > 1
         UNION ALL SELECT id::text FROM deliveries WHERE replay NOT IN (0, id, -id) OR (replay = -id AND fold IS NULL)",
    ),
    (
        "a number is an event or a delivery",
        "SELECT seq::text FROM events JOIN deliveries ON deliveries.id = events.seq",
    ),
    (
        "no version is ahead of the configuration's",
        "SELECT version::text FROM (SELECT version FROM events UNION ALL SELECT version FROM subscribers
            UNION ALL SELECT version FROM subscriber_versions) v
         WHERE version > (SELECT version FROM installation)",
    ),
    (
        "a backfill stays inside its marks",
        "SELECT no::text FROM subscribers WHERE backfill_after > backfill_until",
    ),
];

/// The same about folds.
const FOLD_RULES: [(&str, &str); 8] = [
    (
        "an event is in one window of a subscriber, replays aside",
        "SELECT m.event || ' for ' || w.subscriber FROM members m JOIN windows w ON w.no = m.\"window\"
         WHERE NOT w.replay GROUP BY m.event, w.subscriber HAVING count(*) > 1",
    ),
    (
        "a window that gathers or may be sent counts what it holds",
        "SELECT w.no::text FROM windows w LEFT JOIN deliveries d ON d.id = w.delivery
            LEFT JOIN members m ON m.\"window\" = w.no
         WHERE w.stage = 0 OR d.status IN (0, 1, 2, 4)
         GROUP BY w.no HAVING count(m.event) <> w.count OR coalesce(sum(m.bytes), 0) <> w.bytes",
    ),
    (
        "a window that closed is one delivery, and a fold was one window",
        "SELECT no::text FROM windows w WHERE (stage IN (1, 2)) <> (delivery IS NOT NULL) OR delivery IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.id = w.delivery AND d.fold = w.no AND d.event = w.first
                AND d.subscriber = w.subscriber AND (d.out_of_order OR d.lane IS NOT DISTINCT FROM w.lane) AND (d.replay > 0) = w.replay)
         UNION ALL SELECT id::text FROM deliveries d WHERE fold IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM windows w WHERE w.no = d.fold AND w.delivery = d.id)",
    ),
    (
        "what can be joined will be sent",
        "SELECT w.no::text FROM windows w JOIN subscribers s ON s.no = w.subscriber
            LEFT JOIN deliveries d ON d.id = w.delivery
         WHERE w.stage < 2 AND (d.status >= 3 OR s.deleted_at IS NOT NULL)",
    ),
    (
        "what closed says when and why, and nothing else does",
        "SELECT no::text FROM windows
         WHERE (stage > 0) <> (closed_at IS NOT NULL) OR (stage > 0) <> (closed_by IS NOT NULL)",
    ),
    (
        "what is folded and may be sent is there",
        "SELECT m.event::text FROM members m JOIN windows w ON w.no = m.\"window\"
            LEFT JOIN deliveries d ON d.id = w.delivery
         WHERE (w.stage = 0 OR d.status IN (0, 1, 2, 4)) AND m.event NOT IN (SELECT seq FROM events)",
    ),
    (
        "a number is a window or something else",
        "SELECT no::text FROM windows WHERE no IN (SELECT seq FROM events) OR no IN (SELECT id FROM deliveries)",
    ),
    (
        "members go with their events, or with those of their time",
        "SELECT m.event::text FROM members_kept m WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.seq = m.event)
            AND NOT EXISTS (SELECT 1 FROM pg_class c, installation i
                WHERE c.relnamespace = current_schema()::regnamespace
                    AND c.relname = 'events_' || (m.event >> i.period_bits))",
    ),
];

/// Looks at the store at `url`, open or not. Tells every violation in words; none is well.
pub async fn audit(url: &str) -> Result<Vec<String>> {
    let target = Target::parse(url)?;
    let session = target.connect_plain().await?;
    let client = &session.client;
    let begin = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL search_path = {}",
        target.schema()
    );
    client.batch_execute(&begin).await.map_err(failed)?;
    let mut told = Vec::new();
    for (rule, sql) in RULES.into_iter().chain(FOLD_RULES) {
        let rows = client.query(sql, &[]).await.map_err(failed)?;
        told.extend(rows.iter().map(|row| format!("{rule}: {}", row.get::<_, &str>(0))));
    }
    client.batch_execute("COMMIT").await.map_err(failed)?;
    Ok(told)
}

/// Ends all lives, as if each had been silent for too long: what they held is void.
pub async fn end_all(url: &str, now: Timestamp) -> Result<()> {
    let target = Target::parse(url)?;
    let space = target.space();
    let pool = Pool::new(target);
    Ok(pool.transact(move |conn| Box::pin(async move { end_lives(conn, space, now).await })).await?)
}

async fn end_lives(conn: &Conn, space: i32, now: Timestamp) -> Asked<()> {
    let lives = conn.rows("DELETE FROM beats RETURNING incarnation", &[]).await?;
    let mut lives: Vec<Incarnation> = lives.iter().map(|row| row.get(0)).collect();
    lives.sort_unstable();
    for incarnation in lives {
        replicas::end(conn, space, incarnation, now, true).await?;
    }
    Ok(())
}

/// Takes the store at `url` away with all that is in it.
pub async fn remove(url: &str) -> Result<()> {
    let target = Target::parse(url)?;
    let session = target.connect_plain().await?;
    let sql = format!("SET client_min_messages = warning; DROP SCHEMA IF EXISTS {} CASCADE", target.schema());
    session.client.batch_execute(&sql).await.map_err(failed)
}
