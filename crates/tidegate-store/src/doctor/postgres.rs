//! PostgreSQL: whether it keeps what it says it keeps, has room for all who share it, and what a failover would lose.

use std::time::Duration;

use tidegate_core::time::Timestamp;
use tokio_postgres::Client;

use super::Symptom;
use crate::postgres::connect::{Target, failed};
use crate::postgres::holding::{self, Holding};
use crate::postgres::{
    ENCODING, ENCODING_REMEDY, MIGRATIONS, Refusal, SESSIONS_OF_A_PROCESS, VERSION_MIN, rights_remedy,
    takes_no_writes,
};
use crate::schema::{Recorded, known};
use crate::{Error, Result};

/// Deliveries are signed with this machine's wall clock, which receivers compare with their own.
const SKEW_MAX: Duration = Duration::from_secs(2);
/// A transaction this old keeps the database from cleaning up after us.
const TRANSACTION_OLD: Duration = Duration::from_secs(300);
/// From this share of dead rows on, cleaning up does not keep pace.
const DEAD_SHARE_MAX: f64 = 0.5;
/// Fewer dead rows than this are nothing to talk of.
const DEAD_ROWS_MANY: f64 = 100_000.0;

/// Looks at the server of a store. `wall` tells this machine's time.
pub async fn examine(url: &str, wall: impl Fn() -> Timestamp + Sync) -> Vec<Symptom> {
    let target = match Target::parse(url) {
        Ok(target) => target,
        Err(error) => {
            return vec![Symptom::failing("database", error.to_string(), "correct store.url")];
        }
    };
    let session = match target.reach(|_| {}).await {
        Ok(session) => session,
        Err(Refusal { detail, remedy }) => {
            let detail = format!("{}: {detail}", target.place());
            return vec![Symptom::failing("database", detail, remedy)];
        }
    };
    let client = &session.client;
    let mut symptoms = Vec::new();
    for looked in [
        server(client, &target).await,
        durability(client).await,
        clock(client, &wall).await,
        connections(client).await,
        upkeep(client).await,
        replication(client).await,
        rights(client, &target).await,
        schema(client, &target).await,
        tables(client, &target).await,
    ] {
        match looked {
            Ok(found) => symptoms.extend(found),
            Err(error) => {
                let remedy = "grant the role what its message says is missing";
                symptoms.push(Symptom::warning("database", error.to_string(), remedy));
            }
        }
    }
    symptoms
}

async fn setting(client: &Client, name: &str) -> Result<String> {
    let row = client.query_one("SELECT current_setting($1)", &[&name]).await.map_err(failed)?;
    Ok(row.get(0))
}

async fn number(client: &Client, sql: &str) -> Result<f64> {
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    Ok(row.get::<_, Option<f64>>(0).unwrap_or(0.0))
}

async fn server(client: &Client, target: &Target) -> Result<Vec<Symptom>> {
    let told = setting(client, "server_version").await?;
    let version: i32 = setting(client, "server_version_num").await?.parse().unwrap_or(0);
    let place = format!("PostgreSQL {told} at {}", target.place());
    if version < VERSION_MIN {
        return Ok(vec![Symptom::failing("database", place, "use PostgreSQL 15 or newer")]);
    }
    let sql = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on'";
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    if let Some((what, remedy)) = takes_no_writes(row.get(0), row.get(1)) {
        return Ok(vec![Symptom::failing("database", format!("{place} {what}"), remedy)]);
    }
    let encoding = setting(client, "server_encoding").await?;
    if encoding != ENCODING {
        return Ok(vec![Symptom::failing(
            "database",
            format!("{place} is encoded in {encoding}"),
            ENCODING_REMEDY,
        )]);
    }
    let row = client
        .query_opt("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[])
        .await
        .map_err(failed)?;
    let is_encrypted = row.is_some_and(|row| row.get(0));
    let row = client.query_one("SELECT inet_server_addr() IS NULL OR inet_server_addr() <<= '127.0.0.0/8' OR inet_server_addr() = '::1'", &[]);
    let is_near: bool = row.await.map_err(failed)?.get(0);
    if !is_encrypted && !is_near {
        let remedy = "add sslmode=verify-full (and sslrootcert for an authority of your own) to store.url";
        return Ok(vec![Symptom::warning("database", format!("{place}, without TLS"), remedy)]);
    }
    Ok(vec![Symptom::fine("database", place)])
}

async fn durability(client: &Client) -> Result<Vec<Symptom>> {
    let mut symptoms = Vec::new();
    let mut said = Vec::new();
    for (name, remedy) in [
        ("fsync", "set fsync = on in postgresql.conf: without it a crash of the machine ruins the database"),
        (
            "synchronous_commit",
            "ALTER ROLE … SET synchronous_commit = on: without it an accepted event can be lost in a crash",
        ),
    ] {
        let value = setting(client, name).await?;
        if value == "off" {
            symptoms.push(Symptom::failing("durability", format!("{name} is off"), remedy));
        } else {
            said.push(format!("{name} {value}"));
        }
    }
    // Some file systems never leave a page half written, so it may be meant.
    if setting(client, "full_page_writes").await? == "off" {
        let remedy = "set full_page_writes = on, unless the file system never leaves a page half written (ZFS): on any other \
                      one a crash of the machine can ruin the database";
        symptoms.push(Symptom::warning("durability", "full_page_writes is off", remedy));
    }
    if symptoms.is_empty() {
        symptoms.push(Symptom::fine("durability", said.join(", ")));
    }
    Ok(symptoms)
}

async fn clock(client: &Client, wall: &(impl Fn() -> Timestamp + Sync)) -> Result<Vec<Symptom>> {
    let before = wall();
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let theirs = Timestamp::from_ms(client.query_one(sql, &[]).await.map_err(failed)?.get(0));
    Ok(vec![skew(before, theirs, wall())])
}

/// The database's time was read between two looks at our own clock.
fn skew(before: Timestamp, theirs: Timestamp, after: Timestamp) -> Symptom {
    let off = before.since(theirs).max(theirs.since(after));
    if off <= SKEW_MAX {
        return Symptom::fine("clock", "this machine and the database agree");
    }
    let detail = format!("this machine and the database are {:.1} s apart", off.as_secs_f64());
    let remedy = "let both follow NTP: schedules use the database's clock, but signatures carry this machine's, and \
                  receivers refuse what is too old";
    Symptom::warning("clock", detail, remedy)
}

async fn connections(client: &Client) -> Result<Vec<Symptom>> {
    let max: f64 = setting(client, "max_connections").await?.parse().unwrap_or(0.0);
    let reserved: f64 = setting(client, "superuser_reserved_connections").await?.parse().unwrap_or(0.0);
    // What kind of session another role has is told only to those who may see all; only sessions of people and programs have a
    // database and a user.
    let sql = "SELECT count(*)::float8 FROM pg_stat_activity
        WHERE coalesce(backend_type, 'client backend') = 'client backend' AND datid IS NOT NULL AND usesysid IS NOT NULL";
    let used = number(client, sql).await?;
    Ok(vec![room(max - reserved, used)])
}

fn room(max: f64, used: f64) -> Symptom {
    let each = SESSIONS_OF_A_PROCESS as f64;
    let detail = format!("{used:.0} of {max:.0} connections are in use; a process takes up to {each:.0}");
    if max - used < each {
        let remedy = "raise max_connections, or let fewer others connect";
        return Symptom::warning("connections", detail, remedy);
    }
    Symptom::fine("connections", detail)
}

async fn upkeep(client: &Client) -> Result<Vec<Symptom>> {
    let mut symptoms = Vec::new();
    for name in ["autovacuum", "track_counts"] {
        if setting(client, name).await? == "off" {
            let remedy = format!("set {name} = on: the tables of deliveries grow without end otherwise");
            symptoms.push(Symptom::failing("upkeep", format!("{name} is off"), remedy));
        }
    }
    let holding = holding::look(client).await.map_err(failed)?;
    symptoms.extend(judge_holding(&holding));
    symptoms.extend(idle_slots(client).await?);
    if symptoms.is_empty() {
        symptoms.push(Symptom::fine("upkeep", "autovacuum is on, and no transaction is old"));
    }
    Ok(symptoms)
}

/// What keeps the database from cleaning up. What can not be seen is not taken for nothing.
fn judge_holding(holding: &Holding) -> Vec<Symptom> {
    let mut symptoms = Vec::new();
    for (age, detail, remedy) in [
        (
            holding.transaction,
            "a transaction has been open",
            "find it in pg_stat_activity (order by xact_start) and end it",
        ),
        (
            holding.prepared,
            "a transaction has been prepared and left",
            "find it in pg_prepared_xacts, and COMMIT PREPARED or ROLLBACK PREPARED it",
        ),
    ] {
        if age > TRANSACTION_OLD.as_secs_f64() {
            let detail = format!("{detail} for {age:.0} s: nothing is cleaned up behind it");
            symptoms.push(Symptom::warning("upkeep", detail, remedy));
        }
    }
    if holding.hidden > 0 {
        let detail = format!(
            "{} transactions of other roles are open, and this role may not see since when: nothing is cleaned up behind \
             an old one",
            holding.hidden
        );
        symptoms.push(Symptom::warning("upkeep", detail, see_all(&holding.role)));
    }
    symptoms
}

/// Which right lets a role see what others do.
fn see_all(role: &str) -> String {
    format!("GRANT pg_read_all_stats TO \"{role}\"")
}

/// A slot that nobody reads keeps all WAL since then, and dead rows with it.
async fn idle_slots(client: &Client) -> Result<Option<Symptom>> {
    let sql =
        "SELECT slot_name::text FROM pg_replication_slots WHERE NOT active AND NOT temporary ORDER BY 1";
    let rows = client.query(sql, &[]).await.map_err(failed)?;
    let names: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    if names.is_empty() {
        return Ok(None);
    }
    let detail =
        format!("nobody reads the replication slot {}: what it keeps fills the disk", names.join(", "));
    let remedy = "start what reads it, or SELECT pg_drop_replication_slot('…')";
    Ok(Some(Symptom::warning("upkeep", detail, remedy)))
}

async fn replication(client: &Client) -> Result<Vec<Symptom>> {
    let sql = "SELECT pg_is_in_recovery(), current_user::text";
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    if row.get(0) {
        // It is a standby itself; what follows it says nothing about the primary.
        return Ok(Vec::new());
    }
    let role: &str = row.get(1);
    let sql = "SELECT application_name, coalesce(sync_state, ''), pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn)::float8
        FROM pg_stat_replication ORDER BY 1";
    let rows = client.query(sql, &[]).await.map_err(failed)?;
    let standbys: Vec<Standby> = rows
        .iter()
        .map(|row| Standby { name: row.get(0), sync_state: row.get(1), behind: row.get(2) })
        .collect();
    let waits = setting(client, "synchronous_commit").await?;
    let names = setting(client, "synchronous_standby_names").await?;
    Ok(vec![judge_standbys(&standbys, &waits, &names, role)])
}

/// A copy of the database elsewhere.
struct Standby {
    name: Option<String>,
    sync_state: String,
    /// Bytes; unknown to those who may not see it.
    behind: Option<f64>,
}

fn judge_standbys(standbys: &[Standby], waits: &str, names: &str, role: &str) -> Symptom {
    let is_waited_for = |standby: &&Standby| matches!(standby.sync_state.as_str(), "sync" | "quorum");
    if standbys.iter().any(|standby| standby.sync_state.is_empty()) {
        let detail = "there are standbys, and this role may not see whether commits wait for them";
        return Symptom::warning("replication", detail, see_all(role));
    }
    if !names.trim().is_empty() && waits != "local" && !standbys.iter().any(|standby| is_waited_for(&standby))
    {
        let detail = format!(
            "every commit waits for a standby (synchronous_standby_names is {names:?}) and none is connected: nothing \
             can be accepted"
        );
        let remedy = "start the standby, or let commits go on without it: ALTER SYSTEM SET synchronous_standby_names = '' \
                      and SELECT pg_reload_conf()";
        return Symptom::failing("replication", detail, remedy);
    }
    if standbys.is_empty() {
        let detail = "no standby is connected: what backups do not have is lost with this machine's disk";
        return Symptom::fine("replication", detail);
    }
    let synchronous: Vec<&Standby> = standbys.iter().filter(is_waited_for).collect();
    if synchronous.is_empty() || waits == "local" {
        let behind = standbys.iter().filter_map(|standby| standby.behind).fold(0.0, f64::max);
        let detail = format!(
            "{} standby, none of them waited for: a failover loses what it has not received ({behind:.0} bytes now)",
            standbys.len()
        );
        let remedy = "set synchronous_standby_names (ANY 1 of two or more), or accept that a failover can lose the last \
                      moments although they were answered 202";
        return Symptom::warning("replication", detail, remedy);
    }
    let names: Vec<&str> = synchronous.iter().filter_map(|standby| standby.name.as_deref()).collect();
    Symptom::fine("replication", format!("every commit waits for a standby ({})", names.join(", ")))
}

/// Partitions are made day by day, so tables must be allowed in the schema for good.
async fn rights(client: &Client, target: &Target) -> Result<Vec<Symptom>> {
    let sql = "SELECT current_user::text, current_database()::text, CASE WHEN to_regnamespace($1) IS NULL
        THEN has_database_privilege(current_database(), 'CREATE')
        ELSE has_schema_privilege($1::text, 'CREATE') AND has_schema_privilege($1::text, 'USAGE') END,
        to_regnamespace($1) IS NOT NULL";
    let schema = target.schema();
    let row = client.query_one(sql, &[&schema]).await.map_err(failed)?;
    let (role, database): (&str, &str) = (row.get(0), row.get(1));
    if row.get(2) {
        return Ok(vec![Symptom::fine("rights", format!("{role} may make tables in the schema {schema}"))]);
    }
    let detail = format!("{role} may not make tables in the schema {schema}");
    Ok(vec![Symptom::failing("rights", detail, rights_remedy(schema, row.get(3), role, database))])
}

/// Which versions may run on what is there.
async fn schema(client: &Client, target: &Target) -> Result<Vec<Symptom>> {
    let table = format!("{}.migrations", target.schema());
    let sql = "SELECT count(*) > 0 FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = 'needs'";
    if !client.query_one(sql, &[&table]).await.map_err(failed)?.get::<_, bool>(0) {
        return Ok(Vec::new());
    }
    let sql = format!("SELECT coalesce(max(number), 0), coalesce(max(needs), 0) FROM {table}");
    let row = client.query_one(&sql, &[]).await.map_err(failed)?;
    let [number, needs] = [0, 1].map(|column| row.get::<_, i32>(column).unsigned_abs());
    Ok(vec![judge_schema(Recorded { number, needs }, known(MIGRATIONS))])
}

fn judge_schema(recorded: Recorded, known: u32) -> Symptom {
    let Recorded { number, needs } = recorded;
    let detail =
        format!("the schema is {number}, for versions that know {needs} or more; this one knows {known}");
    if needs > known {
        return Symptom::failing("schema", detail, "run the newer version");
    }
    Symptom::fine("schema", detail)
}

async fn tables(client: &Client, target: &Target) -> Result<Vec<Symptom>> {
    let schema = target.schema().to_owned();
    let sql = "SELECT relname::text, n_dead_tup::float8, n_live_tup::float8 FROM pg_stat_user_tables
        WHERE schemaname = $1 AND relname IN ('deliveries', 'dedupe')";
    let rows = client.query(sql, &[&schema]).await.map_err(failed)?;
    if rows.is_empty() {
        let detail = format!("there are no tables in the schema {schema} yet; the first start makes them");
        return Ok(vec![Symptom::fine("tables", detail)]);
    }
    for row in &rows {
        let (name, dead, live): (String, f64, f64) = (row.get(0), row.get(1), row.get(2));
        if dead > DEAD_ROWS_MANY && dead > live * DEAD_SHARE_MAX {
            let detail =
                format!("{name} has {dead:.0} dead rows beside {live:.0}: cleaning up does not keep pace");
            let remedy =
                format!("look for old transactions and replication slots, then VACUUM {schema}.{name}");
            return Ok(vec![Symptom::warning("tables", detail, remedy)]);
        }
    }
    Ok(vec![lives(client, &schema).await?])
}

async fn lives(client: &Client, schema: &str) -> Result<Symptom> {
    client.batch_execute("SET lock_timeout = '2s'").await.map_err(failed)?;
    let sql = format!("SELECT count(*)::float8 FROM {schema}.beats");
    match number(client, &sql).await {
        Ok(count) => {
            Ok(Symptom::fine("tables", format!("in the schema {schema}; {count:.0} processes share them")))
        }
        Err(Error::Unavailable(text)) => {
            let remedy = match text.contains("lock timeout") {
                true => {
                    "somebody has locked a table of the servers: see pg_locks and pg_stat_activity for who"
                }
                false => "connect as the role that the servers use",
            };
            Ok(Symptom::warning("tables", format!("the schema {schema}: {text}"), remedy))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;

    #[test]
    fn clocks_that_differ_are_told() {
        let at = Timestamp::from_ms;
        assert_eq!(skew(at(1_000), at(1_500), at(1_100)).severity, Severity::Fine);
        assert_eq!(
            skew(at(1_000), at(9_000), at(60_000)).severity,
            Severity::Fine,
            "a slow answer is no skew"
        );
        let ahead = skew(at(1_000), at(9_000), at(1_100));
        assert!(ahead.severity == Severity::Warning && ahead.detail.contains("7.9 s"), "{ahead:?}");
        assert_eq!(skew(at(9_000), at(1_000), at(9_100)).severity, Severity::Warning);
    }

    #[test]
    fn a_standby_that_nobody_waits_for_is_told_honestly() {
        let standby = |sync_state: &str| Standby {
            name: Some("b".into()),
            sync_state: sync_state.into(),
            behind: Some(512.0),
        };
        let judge = |standbys: &[Standby], waits| judge_standbys(standbys, waits, "", "tide");
        assert_eq!(judge(&[], "on").severity, Severity::Fine);
        let found = judge(&[standby("async")], "on");
        assert!(found.severity == Severity::Warning && found.detail.contains("512 bytes"), "{found:?}");
        assert_eq!(judge(&[standby("async"), standby("sync")], "on").severity, Severity::Fine);
        assert_eq!(judge(&[standby("quorum")], "local").severity, Severity::Warning);
        assert!(judge(&[standby("")], "on").detail.contains("may not see"));
        for standbys in [vec![], vec![standby("async")]] {
            let stuck = judge_standbys(&standbys, "on", "ANY 1 (b, c)", "tide");
            assert!(stuck.severity == Severity::Failing && stuck.remedy.is_some(), "{stuck:?}");
            assert_ne!(
                judge_standbys(&standbys, "local", "b", "tide").severity,
                Severity::Failing,
                "nobody waits"
            );
        }
        assert_eq!(judge_standbys(&[standby("sync")], "on", "b", "tide").severity, Severity::Fine);
    }

    #[test]
    fn what_can_not_be_seen_is_not_taken_for_nothing() {
        let fine = Holding { role: "tide".to_owned(), ..Holding::default() };
        assert!(judge_holding(&fine).is_empty());
        let hidden = judge_holding(&Holding { hidden: 2, ..fine.clone() });
        assert_eq!(hidden[0].remedy.as_deref(), Some("GRANT pg_read_all_stats TO \"tide\""));
        for old in [Holding { transaction: 301.0, ..fine.clone() }, Holding { prepared: 301.0, ..fine }] {
            let [found] = &judge_holding(&old)[..] else { panic!("one is old") };
            assert!(found.severity == Severity::Warning && found.detail.contains("301 s"), "{found:?}");
        }
    }

    #[test]
    fn a_schema_that_is_too_new_is_told() {
        let at = |number, needs| judge_schema(Recorded { number, needs }, 18).severity;
        assert_eq!((at(18, 16), at(19, 18), at(20, 19)), (Severity::Fine, Severity::Fine, Severity::Failing));
    }

    #[test]
    fn room_for_one_more_process_is_wanted() {
        assert_eq!(room(97.0, 20.0).severity, Severity::Fine);
        assert_eq!(room(97.0, 90.0).severity, Severity::Warning);
    }
}
