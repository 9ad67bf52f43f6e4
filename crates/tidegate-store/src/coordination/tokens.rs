//! Buckets in PostgreSQL: a row each, changed by one statement, on PostgreSQL's own clock.
//!
//! The tables are not logged: a crash of the database empties them, which costs a burst and saves a disk write per taking.
//! They are no part of the schema that migrations know, since nothing is lost with them; whoever comes first makes them.

use std::time::Duration;

use tidegate_core::gate::{
    ASTRAY_US, Basin, Caller, Flow, Front, Given, PENALTY_MAX_US, Reservoir, STEP_US, TOKEN,
};
use tidegate_core::time::Timestamp;
use tokio_postgres::Statement;

use super::home::{self, Mark};
use super::timer;
use super::{BucketKey, Grant};
use crate::postgres::connect::{Session, Target, failed, in_time};
use crate::{Error, Result};

/// A statement here touches one row; it waits for another replica's at most.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// A session that takes tokens.
pub(super) struct Tokens {
    session: Session,
    ask: Statement,
    begin: Statement,
    look: Statement,
    mark: Statement,
    basins: Statement,
}

/// Instead of a penalty: the one that there is ends now.
pub(super) const LIFTED: i64 = -1;

/// What is wanted of a bucket.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    /// So many tokens.
    pub(super) wanted: u32,
    /// That it gives nothing for so long, or that it is [`LIFTED`].
    pub(super) penalty_us: i64,
    /// For a line, if there is one.
    pub(super) caller: Option<Caller>,
}

impl Wish {
    pub(super) fn tokens(wanted: u32, since: Option<Timestamp>, who: i64) -> Self {
        Self { wanted, penalty_us: 0, caller: since.map(|since| Caller { who, since }) }
    }

    pub(super) fn penalty(lasts: Duration) -> Self {
        Self { wanted: 0, penalty_us: timer::us(lasts).min(PENALTY_MAX_US), caller: None }
    }

    pub(super) fn lift() -> Self {
        Self { wanted: 0, penalty_us: LIFTED, caller: None }
    }

    /// Which replica asks, 0 for none, and when the first in its line became ready.
    pub(super) fn who(&self) -> (i64, i64) {
        self.caller.map_or((0, 0), |caller| (caller.who, caller.since.as_ms()))
    }
}

/// For the advisory lock under which tables are made.
const MAKING: i32 = 7_001;

const TABLES: &str = "
    CREATE UNLOGGED TABLE IF NOT EXISTS basins (
        name     TEXT PRIMARY KEY,
        level    BIGINT NOT NULL,             -- what it held when it was last asked
        at_us    BIGINT NOT NULL,             -- when that was
        until_us BIGINT NOT NULL,             -- the end of its last penalty
        full_us  BIGINT NOT NULL,             -- when it is as good as new, at the latest
        granted  BIGINT NOT NULL,             -- to whoever asked last; -1 if he stepped back
        front_who  BIGINT NOT NULL,           -- the replica that is next, 0 for none
        front_ms   BIGINT NOT NULL,           -- when the first in its line became ready
        awaited_us BIGINT NOT NULL            -- since when others step back for it
    ) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
    CREATE UNLOGGED TABLE IF NOT EXISTS rate_home (
        one      BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (one),
        since_us BIGINT NOT NULL,
        until_us BIGINT NOT NULL,
        redis    BIGINT NOT NULL DEFAULT 0    -- which one, 0 for none
    );
    ALTER TABLE rate_home ADD COLUMN IF NOT EXISTS redis BIGINT NOT NULL DEFAULT 0;";

/// A full bucket is as good as none.
const FORGET: &str =
    "DELETE FROM basins WHERE full_us < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// The twin of `Basin`: brings a bucket up to now, takes what there is unless somebody else is next, and closes it for a while
/// or opens it if that is the wish.
fn ask_sql() -> String {
    let (token, step, longest, astray) = (TOKEN, STEP_US, PENALTY_MAX_US, ASTRAY_US);
    let filled = |since: &str| {
        format!(
            "greatest(0, {since}, 2 * ({since}) - {step}, 4 * ({since}) - 5 * {step}, 8 * ({since}) - 17 * {step})"
        )
    };
    let gained = format!("({} - {})", filled("since_us + now_us - at_us"), filled("since_us"));
    format!(
        "UPDATE basins AS bucket SET (level, at_us, until_us, full_us, granted, front_who, front_ms, awaited_us) = (
            SELECT rest, now_us, shut_us,
                   greatest(now_us, shut_us + 3 * {step}) + (depth - rest) / (drops * 8) + 1,
                   CASE WHEN is_later THEN -1 ELSE taken END,
                   CASE WHEN is_kept THEN bucket.front_who WHEN taken = wanted THEN 0 ELSE who END,
                   CASE WHEN is_kept THEN bucket.front_ms ELSE ready_ms END,
                   CASE WHEN is_later AND waited_us = 0 THEN now_us WHEN is_kept THEN waited_us WHEN taken > 0 THEN now_us ELSE 0 END
            FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock_us, $2::bigint AS drops,
                         $3::bigint AS depth, $4::bigint AS wanted, $5::bigint AS penalty_us, $6::bigint AS empty_us,
                         $7::bigint AS who, $8::bigint AS ready_ms, $9::bigint AS patience_us) AS given,
            LATERAL (SELECT CASE WHEN bucket.at_us - clock_us > {astray} THEN bucket.at_us - clock_us ELSE 0 END AS ahead_us) AS other,
            LATERAL (SELECT bucket.at_us - ahead_us AS at_us) AS known,
            LATERAL (SELECT greatest(clock_us, at_us) AS now_us) AS clock,
            LATERAL (SELECT least(bucket.until_us - ahead_us, now_us + {longest}) AS until_us) AS penalty,
            LATERAL (SELECT least(at_us - until_us, 3 * {step}) AS since_us,
                            CASE WHEN least(now_us, until_us) <= at_us THEN bucket.level
                                 ELSE least(bucket.level + (least(now_us, until_us) - at_us)::numeric * drops * 8, {token})
                            END AS held) AS before,
            LATERAL (SELECT least(held + {gained}::numeric * drops, depth,
                                  greatest(now_us - empty_us, 0)::numeric * drops * 8)::bigint AS level) AS present,
            LATERAL (SELECT CASE WHEN now_us < until_us THEN 0 ELSE least(wanted, level / {token}) END AS there,
                            least(bucket.awaited_us, now_us) AS waited_us, bucket.front_who NOT IN (0, who) AS is_other,
                            (ready_ms, who) < (bucket.front_ms, bucket.front_who) AS is_before) AS line,
            LATERAL (SELECT is_other AND NOT is_before AND NOT (waited_us > 0 AND now_us - waited_us >= patience_us) AS is_behind) AS place,
            LATERAL (SELECT who <> 0 AND is_behind AND there > 0 AS is_later) AS turn,
            LATERAL (SELECT CASE WHEN is_later THEN 0 ELSE there END AS taken) AS share,
            LATERAL (SELECT CASE WHEN who = 0 OR is_later THEN TRUE
                                 WHEN wanted = 0 THEN is_other
                                 WHEN taken = 0 THEN is_behind AND bucket.awaited_us = 0
                                 ELSE taken = wanted AND is_other AND is_before END AS is_kept) AS next,
            LATERAL (SELECT CASE WHEN penalty_us > 0 THEN greatest(until_us, now_us + penalty_us)
                                 WHEN penalty_us < 0 THEN least(until_us, now_us) ELSE until_us END AS shut_us,
                            level - taken * {token} AS rest) AS after
        )
        WHERE name = $1
        RETURNING granted, level, at_us, until_us, front_who, front_ms"
    )
}

const BEGIN: &str =
    "INSERT INTO basins (name, level, at_us, until_us, full_us, granted, front_who, front_ms, awaited_us)
    VALUES ($1, 0, 0, 0, 0, 0, 0, 0, 0) ON CONFLICT DO NOTHING";

const LOOK: &str = "
    SELECT now_us, coalesce(since_us, 0), coalesce(until_us, 0), coalesce(redis, 0)
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) AS clock
    LEFT JOIN rate_home ON one";

/// Moves the buckets here, or lets them stay for longer; and says which Redis they go back to, 0 to leave that as it is. Where
/// nobody had one they have always been here, and those who still have none only need time to look. A mark that lies further
/// ahead than one can ($4) is from before the clock went back: they move as if there were none.
const MARK: &str = "
    INSERT INTO rate_home AS home (since_us, until_us, redis)
    SELECT 0, now_us + CASE WHEN $3::bigint = 0 THEN $1::bigint ELSE $2::bigint END, $3
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) AS clock
    ON CONFLICT (one) DO UPDATE SET (since_us, until_us, redis) = (
        SELECT CASE WHEN is_astray THEN now_us WHEN home.redis = 0 OR home.until_us >= now_us THEN home.since_us ELSE now_us END,
               greatest(CASE WHEN NOT is_astray THEN home.until_us END,
                        now_us + CASE WHEN home.redis = 0 AND $3 <> 0 THEN $2 ELSE $1 END),
               CASE WHEN $3 = 0 THEN home.redis ELSE $3 END
        FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) AS clock,
        LATERAL (SELECT greatest(home.since_us, home.until_us) - now_us > $4::bigint AS is_astray) AS known)
    RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, since_us, until_us, redis";

/// Buckets that are not full, those that take longest first; and all that were closed, for Redis may remember that they were.
const BASINS: &str = "
    SELECT name, level, now_us - at_us, until_us - now_us, full_us - now_us
    FROM basins, (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) AS clock
    WHERE full_us > now_us OR until_us > 0 ORDER BY full_us DESC LIMIT $1";

/// How many buckets move with what they hold; the others are full where they arrive, which costs a burst of each.
const MOVING_MAX: i64 = 20_000;

/// A bucket on its way to Redis. Times are microseconds: since its level was that, until it opens, until it is full.
pub(super) struct Moving {
    pub(super) name: String,
    pub(super) level: i64,
    pub(super) age_us: i64,
    pub(super) closed_us: i64,
    pub(super) lasts_us: i64,
}

impl Tokens {
    pub(super) async fn open(target: &Target) -> Result<Self> {
        let session = target.connect().await?;
        in_time(Self::prepare(session, target)).await?
    }

    async fn prepare(session: Session, target: &Target) -> Result<Self> {
        let client = &session.client;
        // Nothing here is worth waiting for a disk.
        client
            .batch_execute("SET synchronous_commit = off; SET statement_timeout = '1s'")
            .await
            .map_err(failed)?;
        make(&session, target).await?;
        let ask = client.prepare(&ask_sql()).await.map_err(failed)?;
        let begin = client.prepare(BEGIN).await.map_err(failed)?;
        let look = client.prepare(LOOK).await.map_err(failed)?;
        let mark = client.prepare(MARK).await.map_err(failed)?;
        let basins = client.prepare(BASINS).await.map_err(failed)?;
        Ok(Self { session, ask, begin, look, mark, basins })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.session.client.is_closed()
    }

    /// Asks a bucket that was empty at `empty_us`, by PostgreSQL's clock, or fuller.
    pub(super) async fn ask(
        &self,
        bucket: &BucketKey,
        flow: Flow,
        wish: Wish,
        empty_us: i64,
    ) -> Result<Grant> {
        let client = &self.session.client;
        let (wanted, patience_us) = (i64::from(wish.wanted), flow.patience_us());
        let (who, since_ms) = wish.who();
        loop {
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 9] = [
                &bucket.as_str(),
                &flow.drops,
                &flow.depth,
                &wanted,
                &wish.penalty_us,
                &empty_us,
                &who,
                &since_ms,
                &patience_us,
            ];
            let row = within(client.query_opt(&self.ask, &values)).await?;
            if let Some(row) = row {
                let given = u32::try_from(row.get::<_, i64>(0)).map_or(Given::Later, Given::Tokens);
                let reservoir = Reservoir { level: row.get(1), at_us: row.get(2), until_us: row.get(3) };
                let front = Front { who: row.get(4), since_ms: row.get(5), awaited_us: 0 };
                return Ok(Grant::of(given, Basin { reservoir, front }, flow));
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

    /// Says that they are here, and which Redis is theirs otherwise; 0 to leave that as it is.
    pub(super) async fn mark(&self, redis: i64) -> Result<Mark> {
        let asked = timer::now();
        let [holds_us, quiet_us, ahead_us] = [home::HOLDS, home::QUIET, home::AHEAD_MAX].map(timer::us);
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&holds_us, &quiet_us, &redis, &ahead_us];
        let row = within(self.session.client.query_one(&self.mark, &values)).await?;
        Ok(seen(asked, &row))
    }

    /// The buckets that are not as new.
    pub(super) async fn basins(&self) -> Result<Vec<Moving>> {
        let rows = within(self.session.client.query(&self.basins, &[&MOVING_MAX])).await?;
        let moving = |row: &tokio_postgres::Row| Moving {
            name: row.get(0),
            level: row.get(1),
            age_us: row.get::<_, i64>(2).max(0),
            closed_us: row.get(3),
            lasts_us: row.get::<_, i64>(4).max(0),
        };
        Ok(rows.iter().map(moving).collect())
    }
}

/// Its own clock is read when the question was asked: what is known is rather older than younger.
fn seen(asked: tokio::time::Instant, row: &tokio_postgres::Row) -> Mark {
    Mark { seen: asked, seen_us: row.get(0), since_us: row.get(1), until_us: row.get(2), redis: row.get(3) }
}

async fn make(session: &Session, target: &Target) -> Result<()> {
    let client = &session.client;
    let there = "SELECT to_regnamespace($1) IS NOT NULL, EXISTS (SELECT 1 FROM pg_attribute
        WHERE attrelid = to_regclass($1 || '.rate_home') AND attname = 'redis')";
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
