//! Buckets in PostgreSQL: a row each, changed by one statement, on PostgreSQL's own clock.
//!
//! The tables are not logged: a crash of the database empties them, which costs a burst and saves a disk write per taking.
//! They are no part of the schema that migrations know, since nothing is lost with them; whoever comes first makes them.

use std::time::Duration;

use tidegate_core::schedule::Pace;
use tokio_postgres::Statement;

use super::home::{self, Mark};
use super::timer;
use super::{BucketKey, Grant};
use crate::postgres::connect::{Session, Target, failed};
use crate::{Error, Result};

/// A statement here touches one row; it waits for another replica's at most.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// A session that takes tokens.
pub(super) struct Tokens {
    session: Session,
    take: Statement,
    begin: Statement,
    look: Statement,
    mark: Statement,
}

/// For the advisory lock under which tables are made.
const MAKING: i32 = 7_001;

const TABLES: &str = "
    CREATE UNLOGGED TABLE IF NOT EXISTS rate_buckets (
        name    TEXT PRIMARY KEY,
        at_us   BIGINT NOT NULL,              -- when it was last asked
        due_us  BIGINT NOT NULL,              -- when it is full again
        granted BIGINT NOT NULL               -- to whoever asked last
    ) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
    CREATE UNLOGGED TABLE IF NOT EXISTS rate_home (
        one      BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (one),
        since_us BIGINT NOT NULL,
        until_us BIGINT NOT NULL
    );";

/// A full bucket is as good as none.
const FORGET: &str =
    "DELETE FROM rate_buckets WHERE due_us < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// The twin of [`Pace::take`].
const TAKE: &str = "
    UPDATE rate_buckets AS bucket SET (at_us, due_us, granted) = (
        SELECT now_us, now_us + ahead_us + taken * interval_us, taken
        FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us, $2::bigint AS interval_us,
                     $3::bigint AS depth_us, $4::bigint AS wanted, $5::bigint AS empty_us) AS given,
        LATERAL (SELECT least(greatest(bucket.due_us - now_us, empty_us + depth_us - now_us, 0), depth_us) AS ahead_us) AS state,
        LATERAL (SELECT least(wanted, (depth_us - ahead_us) / interval_us) AS taken) AS share
    )
    WHERE name = $1
    RETURNING granted, due_us - at_us";

const BEGIN: &str =
    "INSERT INTO rate_buckets (name, at_us, due_us, granted) VALUES ($1, 0, 0, 0) ON CONFLICT DO NOTHING";

const LOOK: &str = "
    SELECT now_us, coalesce(since_us, 0), coalesce(until_us, 0)
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) AS clock
    LEFT JOIN rate_home ON one";

/// Moves the buckets here, or lets them stay for longer.
const MARK: &str = "
    INSERT INTO rate_home AS home (since_us, until_us)
    SELECT now_us, now_us + $1 FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) AS clock
    ON CONFLICT (one) DO UPDATE SET
        since_us = CASE WHEN home.until_us < EXCLUDED.since_us THEN EXCLUDED.since_us ELSE home.since_us END,
        until_us = greatest(home.until_us, EXCLUDED.until_us)
    RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, since_us, until_us";

impl Tokens {
    pub(super) async fn open(target: &Target) -> Result<Self> {
        let session = target.connect().await?;
        let client = &session.client;
        // Nothing here is worth waiting for a disk.
        client
            .batch_execute("SET synchronous_commit = off; SET statement_timeout = '1s'")
            .await
            .map_err(failed)?;
        make(&session, target).await?;
        let take = client.prepare(TAKE).await.map_err(failed)?;
        let begin = client.prepare(BEGIN).await.map_err(failed)?;
        let look = client.prepare(LOOK).await.map_err(failed)?;
        let mark = client.prepare(MARK).await.map_err(failed)?;
        Ok(Self { session, take, begin, look, mark })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.session.client.is_closed()
    }

    /// Takes from a bucket that was empty at `empty_us`, by PostgreSQL's clock, or fuller.
    pub(super) async fn take(
        &self,
        bucket: &BucketKey,
        pace: Pace,
        wanted: u32,
        empty_us: i64,
    ) -> Result<Grant> {
        let Pace { interval_us, depth_us } = pace;
        let client = &self.session.client;
        let wanted = i64::from(wanted);
        // A bucket that was never empty is as full as one that was so long ago.
        let empty_us = empty_us.max(-depth_us);
        loop {
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
                [&bucket.as_str(), &interval_us, &depth_us, &wanted, &empty_us];
            let row = within(client.query_opt(&self.take, &values)).await?;
            if let Some(row) = row {
                let granted = u32::try_from(row.get::<_, i64>(0)).unwrap_or(0);
                let next_us = row.get::<_, i64>(1) - (depth_us - interval_us);
                return Ok(Grant { granted, next_in: timer::duration(next_us) });
            }
            within(client.execute(&self.begin, &[&bucket.as_str()])).await?;
        }
    }

    /// Looks where the buckets are.
    pub(super) async fn look(&self) -> Result<Mark> {
        let asked = timer::now();
        let row = within(self.session.client.query_one(&self.look, &[])).await?;
        Ok(seen(asked, &row))
    }

    /// Says that they are here.
    pub(super) async fn mark(&self) -> Result<Mark> {
        let asked = timer::now();
        let holds_us = timer::us(home::HOLDS);
        let row = within(self.session.client.query_one(&self.mark, &[&holds_us])).await?;
        Ok(seen(asked, &row))
    }
}

/// Its own clock is read when the question was asked: what is known is rather older than younger.
fn seen(asked: tokio::time::Instant, row: &tokio_postgres::Row) -> Mark {
    Mark { seen: asked, seen_us: row.get(0), since_us: row.get(1), until_us: row.get(2) }
}

async fn make(session: &Session, target: &Target) -> Result<()> {
    let client = &session.client;
    let there = "SELECT to_regnamespace($1) IS NOT NULL, to_regclass($1 || '.rate_home') IS NOT NULL";
    let row = client.query_one(there, &[&target.schema()]).await.map_err(failed)?;
    let (has_schema, has_tables): (bool, bool) = (row.get(0), row.get(1));
    if has_tables {
        return client.batch_execute(FORGET).await.map_err(failed);
    }
    let schema =
        if has_schema { String::new() } else { format!("CREATE SCHEMA IF NOT EXISTS {};", target.schema()) };
    let (space, tables) = (target.space(), TABLES);
    let make = format!("BEGIN; SELECT pg_advisory_xact_lock({space}, {MAKING}); {schema} {tables} COMMIT");
    client.batch_execute(&make).await.map_err(failed)
}

/// No longer than anybody waits for tokens.
async fn within<T>(asking: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>) -> Result<T> {
    match tokio::time::timeout(ANSWER_TIMEOUT, asking).await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(Error::Unavailable("PostgreSQL does not answer in time".to_owned())),
    }
}
