//! Opening the store: what the server must be and do, the schema, the periods, and a life for this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize};
use std::time::Duration;

use tidegate_core::limits::WINDOWS_PER_PROJECT_MAX;
use tidegate_core::time::Timestamp;
use tokio::sync::Mutex;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::commit::Writer;
use super::connect::{KEEPALIVES, Target, failed, in_time, root_cause};
use super::db::{Asked, Conn, Pool};
use super::{Periods, PostgresStore, Shared, Terms, replicas};
use crate::coordination::timer::pause;
use crate::rewind::Seen;
use crate::schema::{Migration, Recorded, by_count, migrations, missing};
use crate::{Error, Result};

/// The oldest server this is written for and tested with.
pub(crate) const VERSION_MIN: i32 = 150_000;

/// Texts are kept as they come, in any script.
pub(crate) const ENCODING: &str = "UTF8";
pub(crate) const ENCODING_REMEDY: &str =
    "make one for this with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and name it in store.url";

/// A store whose newest time lies further ahead than this was written by a wrong clock. Within it a new process goes on where
/// the others were and runs slowly until the database's clock has come so far: in twice this time.
const AHEAD_MAX: Duration = Duration::from_hours(1);

/// How long whoever makes partitions ahead of time stands in the way of others, and when it tries again.
const AHEAD_WAIT_MS: u32 = 100;
const AHEAD_AGAIN: Duration = Duration::from_secs(15);

/// The same for whoever changes the schema. It must be shorter than a heartbeat lasts.
const MIGRATE_WAIT_MS: u32 = 1_000;
const MIGRATE_AGAIN: Duration = Duration::from_secs(3);

/// A group's numbers are one block of the sequence: two to the power of this many.
pub(super) const BLOCK_BITS: u32 = 20;

/// What advisory locks are about; each is taken in the installation's space.
pub(super) const CONFIGURATION: i32 = 1;
pub(super) const MIGRATIONS_LOCK: i32 = 2;
pub(super) const PERIODS: i32 = 3;
pub(super) const LINEAGE: i32 = 6;

pub(crate) const MIGRATIONS: &[Migration] = migrations![
    "postgres",
    "0001_init" needs 1,
    "0002_catalog" needs 2,
    "0003_sending" needs 3,
    "0004_breaker" needs 4,
    "0005_replay" needs 5,
    "0007_locking" needs 7,
    "0008_ids" needs 8,
    "0009_folds" needs 9,
    "0010_gates" needs 10,
    "0013_observe" needs 13,
    "0014_claims" needs 14,
    "0015_history" needs 15,
    "0016_rebuilds" needs 16,
    "0018_clocks" needs 16,
    "0019_switches" needs 16,
    "0020_rewinds" needs 16,
    "0021_shares" needs 16,
];

impl PostgresStore {
    /// Opens or creates the store. Time begins with the database's clock, as it goes on: this machine's may be wrong, and what
    /// it wrote would stay. Only tests bring a time of their own.
    pub async fn open(url: &str, terms: Terms, time: Option<Timestamp>) -> Result<Self> {
        let target = Target::parse(url)?;
        let pool = Pool::new(target.clone());
        check_version(&target).await?;
        migrate(&target).await?;
        let conn = pool.lend().await?;
        let now = match time {
            Some(now) => now,
            None => replicas::now(&conn).await?,
        };
        create(&conn, &terms, now).await?;
        let row = conn.only("SELECT salt, greatest(at, (SELECT max(at) FROM replicas)), period_ms, period_bits FROM installation", &[]).await?;
        let periods = Periods {
            length: Duration::from_millis(row.get::<_, i64>(2).unsigned_abs()),
            bits: row.get::<_, i32>(3).unsigned_abs(),
        };
        drop(conn);
        let name = terms.name.clone();
        let incarnation = pool
            .transact(move |conn| Box::pin(async move { replicas::join(conn, &name, now).await }))
            .await?;
        let shared = Arc::new(Shared {
            space: target.space(),
            target,
            periods,
            incarnation: AtomicI64::new(incarnation),
            name: terms.name,
            salt: row.get(0),
            latest: believable(Timestamp::from_ms(row.get(1)), now),
            seen: Seen::default(),
            windows_max: AtomicUsize::new(WINDOWS_PER_PROJECT_MAX),
        });
        shared.seen.begin(incarnation);
        let writer = Writer::new(Arc::clone(&shared), incarnation);
        Ok(Self { pool, writer: Arc::new(Mutex::new(writer)), shared, pulse: Mutex::default() })
    }
}

/// What the store has seen, unless it lies so far ahead that a clock was wrong then: one that would begin there would be
/// wrong as well, for as long again. Nothing depends on it but what is due, which then waits for the right time to come; the order
/// of events is that of their numbers, whatever a clock showed.
fn believable(latest: Timestamp, now: Timestamp) -> Timestamp {
    let ahead = latest.since(now);
    if ahead <= AHEAD_MAX {
        return latest;
    }
    tracing::warn!(
        ahead_s = ahead.as_secs(),
        "the store has seen a time that lies far ahead of the database's clock: going by that clock"
    );
    now
}

/// Refuses a server that is too old, takes no writes, or could not keep every text; before anything is made there.
async fn check_version(target: &Target) -> Result<()> {
    let session = target.connect().await?;
    let sql = "SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),
        current_setting('transaction_read_only') = 'on', current_setting('server_encoding')";
    let row = in_time(session.client.query_one(sql, &[])).await?.map_err(failed)?;
    if row.get::<_, i32>(0) < VERSION_MIN {
        let told: &str = row.get(1);
        return Err(Error::Unusable(format!("PostgreSQL {told} is too old: use version 15 or newer")));
    }
    let (is_standby, is_read_only): (bool, bool) = (row.get(2), row.get(3));
    if let Some((what, remedy)) = takes_no_writes(is_standby, is_read_only) {
        return Err(Error::Unusable(format!("PostgreSQL at {} {what}: {remedy}", target.place())));
    }
    let encoding: &str = row.get(4);
    if encoding != ENCODING {
        let place = target.place();
        return Err(Error::Unusable(format!(
            "the database at {place} is encoded in {encoding}: {ENCODING_REMEDY}"
        )));
    }
    Ok(())
}

/// Why nothing can be written, and what to do about it.
pub(crate) fn takes_no_writes(is_standby: bool, is_read_only: bool) -> Option<(&'static str, &'static str)> {
    if is_standby {
        let remedy = "name the primary in store.url, or all servers, of which the primary is found: \
                      postgres://…@one:5432,two:5432/…";
        return Some(("is a standby", remedy));
    }
    let remedy = "end it where it was set: ALTER ROLE … RESET default_transaction_read_only (or ALTER DATABASE, or \
                  postgresql.conf)";
    is_read_only.then_some(("is read only (default_transaction_read_only is on)", remedy))
}

/// Brings the schema up to date; one process at a time. Whoever waits for a table keeps everybody from it who comes later, those
/// that go on meanwhile too: so it is not waited for long.
async fn migrate(target: &Target) -> Result<()> {
    while !migrate_at_once(target).await? {
        tracing::warn!(
            "somebody is in the way of a change of the schema, such as a dump that reads for long: it is tried again"
        );
        pause(MIGRATE_AGAIN).await;
    }
    Ok(())
}

/// Says whether nobody stood in its way. What a role is told about timeouts is meant for questions.
async fn migrate_at_once(target: &Target) -> Result<bool> {
    let session = target.connect_plain().await?;
    let client = &session.client;
    let schema = target.schema();
    let lock = format!(
        "{KEEPALIVES} SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET lock_timeout = {MIGRATE_WAIT_MS};
         BEGIN; SELECT pg_advisory_xact_lock({}, {MIGRATIONS_LOCK})",
        target.space()
    );
    if is_in_the_way(client.batch_execute(&lock).await)? {
        return Ok(false);
    }
    let sql = "SELECT to_regnamespace($1) IS NULL, current_user::text, current_database()::text,
        EXISTS (SELECT FROM pg_get_keywords() WHERE word = $1 AND catcode IN ('R', 'T'))";
    let row = client.query_one(sql, &[&schema]).await.map_err(failed)?;
    if row.get(3) {
        return Err(Error::Unusable(format!(
            "the schema {schema} is a word of SQL: name another one in store.url"
        )));
    }
    // Only if it is not there: a role that was given one need not be allowed to make any.
    let make = if row.get(0) { format!("CREATE SCHEMA {schema};") } else { String::new() };
    let begin = format!(
        "{make} SET LOCAL search_path = {schema}; SET LOCAL client_min_messages = warning;
         CREATE TABLE IF NOT EXISTS migrations (number INTEGER PRIMARY KEY, needs INTEGER NOT NULL DEFAULT 0);"
    );
    let refused =
        |error| not_allowed(error, &rights_remedy(schema, !row.get::<_, bool>(0), row.get(1), row.get(2)));
    client.batch_execute(&begin).await.map_err(refused)?;
    number_anew(client).await?;
    let sql = "SELECT coalesce(max(number), 0), coalesce(max(needs), 0) FROM migrations";
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    let [number, needs] = [0, 1].map(|column| row.get::<_, i32>(column).unsigned_abs());
    for migration in missing(MIGRATIONS, Recorded { number, needs })? {
        let step = format!("{}; {}", migration.sql, record(migration));
        if is_in_the_way(client.batch_execute(&step).await)? {
            return Ok(false);
        }
    }
    client.batch_execute("COMMIT").await.map_err(failed)?;
    Ok(true)
}

fn is_in_the_way(done: std::result::Result<(), tokio_postgres::Error>) -> Result<bool> {
    match done {
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(true),
        done => done.map(|()| false).map_err(failed),
    }
}

/// How a role gets what it needs.
pub(crate) fn rights_remedy(schema: &str, is_there: bool, role: &str, database: &str) -> String {
    if is_there {
        return format!("GRANT USAGE, CREATE ON SCHEMA {schema} TO \"{role}\"");
    }
    format!(
        "GRANT CREATE ON DATABASE \"{database}\" TO \"{role}\", or make the schema for it with \
         CREATE SCHEMA {schema} AUTHORIZATION \"{role}\""
    )
}

/// What is missing is named, where it is a right.
fn not_allowed(error: tokio_postgres::Error, remedy: &str) -> Error {
    match error.code() {
        // A schema that a role may not look into is none to it.
        Some(&(SqlState::INSUFFICIENT_PRIVILEGE | SqlState::INVALID_SCHEMA_NAME)) => {
            Error::Unusable(format!("{}: {remedy}", root_cause(&error)))
        }
        _ => failed(error),
    }
}

fn record(migration: &Migration) -> String {
    format!("INSERT INTO migrations (number, needs) VALUES ({}, {});", migration.number, migration.needs)
}

/// Versions before this one numbered what they had done without looking at the names of the files. They only count the rows,
/// which stay as many, so that they go on beside this one.
async fn number_anew(client: &Client) -> Result<()> {
    let sql = "SELECT (SELECT count(*) FROM migrations), EXISTS (SELECT FROM pg_attribute
        WHERE attrelid = 'migrations'::regclass AND attname = 'needs')";
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    if row.get(1) {
        return Ok(());
    }
    let there = by_count(MIGRATIONS, usize::try_from(row.get::<_, i64>(0)).unwrap_or(usize::MAX))?;
    let rows: String = there.iter().map(record).collect();
    let anew = format!(
        "ALTER TABLE migrations ADD COLUMN needs INTEGER NOT NULL DEFAULT 0; DELETE FROM migrations; {rows}"
    );
    client.batch_execute(&anew).await.map_err(failed)
}

/// Makes a new store's first rows; whoever comes second changes nothing.
async fn create(conn: &Conn, terms: &Terms, now: Timestamp) -> Asked<()> {
    let period_ms = i64::try_from(terms.periods.length.as_millis()).unwrap_or(i64::MAX);
    let bits = i32::try_from(terms.periods.bits).unwrap_or(i32::MAX);
    conn.execute(
        "INSERT INTO installation (salt, version, at, period_ms, period_bits, period) VALUES ($1, 1, $2, $3, $4, -1)
         ON CONFLICT DO NOTHING",
        &[&terms.salt, &now.as_ms(), &period_ms, &bits],
    )
    .await?;
    // Only by whoever makes the first project, before anybody sees it: set back later, the sequence would give a number twice.
    conn.execute(
        "WITH made AS (INSERT INTO projects (no, id, created_at) OVERRIDING SYSTEM VALUE VALUES (1, 'default', $1)
            ON CONFLICT DO NOTHING RETURNING no)
         SELECT setval('projects_no_seq', no) FROM made",
        &[&now.as_ms()],
    )
    .await?;
    Ok(())
}

impl Periods {
    /// Which period a time is in.
    pub(super) fn at(self, time: Timestamp) -> i64 {
        let length = i64::try_from(self.length.as_millis()).unwrap_or(i64::MAX).max(1);
        time.as_ms().div_euclid(length)
    }

    /// Whether a period and the one behind it have numbers. With the usual periods those end in September 2059.
    fn have_numbers(self, period: i64) -> bool {
        period < (i64::MAX >> self.bits) - 1
    }

    /// The first number of a period.
    pub(super) fn first_no(self, period: i64) -> i64 {
        period << self.bits
    }
}

/// Makes sure that a period has its partitions and that numbers are drawn from it; the next one gets its own beside that.
pub(super) async fn enter_period(pool: &Arc<Pool>, shared: &Shared, period: i64) -> Asked<()> {
    let (space, periods) = (shared.space, shared.periods);
    if !periods.have_numbers(period) {
        let why = "the clock is so far ahead that there are no numbers for events of that time: nothing is written until it \
            is right; set the clock of the database's server, then start this process again";
        return Err(Error::Unavailable(why.to_owned()).into());
    }
    pool.transact(move |conn| Box::pin(async move { make_partitions(conn, space, periods, period).await }))
        .await?;
    // Only now, when the partitions are there for everybody: drawing is not part of any transaction.
    let first_block = periods.first_no(period) >> BLOCK_BITS;
    pool.transact(move |conn| Box::pin(async move { draw_from(conn, space, first_block).await })).await?;
    tokio::spawn(make_ahead(Arc::clone(pool), space, periods, period + 1));
    Ok(())
}

/// One at a time: whoever looked before another has set it would turn it back.
pub(super) async fn draw_from(conn: &Conn, space: i32, first_block: i64) -> Asked<()> {
    conn.execute("SELECT pg_advisory_xact_lock($1, $2)", &[&space, &PERIODS]).await?;
    conn.execute("SELECT setval('numbers', $1) FROM numbers WHERE last_value < $1", &[&first_block]).await?;
    Ok(())
}

/// Makes a period's partitions in good time. Somebody who reads for long, such as a dump, keeps them from being made, and
/// whoever waited for that would keep everybody else from writing: so it waits for a moment only, and tries again.
pub(super) async fn make_ahead(pool: Arc<Pool>, space: i32, periods: Periods, period: i64) {
    let attempt = || {
        pool.transact(move |conn| {
            Box::pin(async move {
                conn.tell(&format!("SET LOCAL lock_timeout = {AHEAD_WAIT_MS}")).await?;
                make_partitions(conn, space, periods, period).await
            })
        })
    };
    while let Err(fault) = attempt().await {
        let problem = Error::from(fault);
        tracing::debug!(%problem, "the next period can not have its partitions yet: it is tried again");
        pause(AHEAD_AGAIN).await;
    }
}

async fn make_partitions(conn: &Conn, space: i32, periods: Periods, period: i64) -> Asked<()> {
    conn.execute("SELECT pg_advisory_xact_lock($1, $2)", &[&space, &PERIODS]).await?;
    let have: i64 = conn.only("SELECT period FROM installation", &[]).await?.get(0);
    if have >= period {
        return Ok(());
    }
    // In the order in which a group writes to them.
    for table in ["attempts", "events", "members"] {
        let (from, to) = (periods.first_no(period), periods.first_no(period + 1));
        let make = format!(
            "CREATE TABLE IF NOT EXISTS {table}_{period} PARTITION OF {table} FOR VALUES FROM ({from}) TO ({to})"
        );
        conn.tell(&make).await?;
    }
    conn.execute("UPDATE installation SET period = $1", &[&period]).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_period_has_numbers_beyond_the_last() {
        for periods in [Periods::default(), Periods { length: Duration::from_secs(1), bits: 22 }] {
            let last = (0..63).rev().fold(0, |period, bit| {
                let higher = period | 1 << bit;
                if periods.have_numbers(higher) { higher } else { period }
            });
            let firsts = [last, last + 1, last + 2].map(|period| periods.first_no(period));
            assert!(
                firsts.is_sorted() && firsts[0] > 0,
                "the partitions of it and of the next end where they should"
            );
            assert!(last + 3 > i64::MAX >> periods.bits, "and hardly any is left out");
        }
        let last_day = Timestamp::parse("2059-09-15T00:00:00Z").expect("a time");
        assert!(Periods::default().have_numbers(Periods::default().at(last_day)));
    }
}
