//! An ordinary group as one statement: results and events, with nothing to decide on the way.
//!
//! Each statement that is sent by itself costs both sides a message, and its answer another. So every session that writes
//! is given a function of its own, whose call is a transaction by itself. Where all attempts succeeded, all ids are new and nobody
//! has a lane, which is how nearly all groups are, it has little to do: two updates and one statement with three inserts. For
//! the rest it has the statements that `write.rs` otherwise sends one by one.

use std::sync::LazyLock;

use bytes::BytesMut;
use tokio_postgres::Row;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::db::{Asked, Conn};
use super::deliveries::{self, Results};
use super::lanes;
use super::submit::{self, Columns, Stamp};
use super::write::Entering;
use crate::sabotage::{self, Line};

/// What the function is given: first what the group has, then the values, with their types.
const ARGUMENTS: [(&str, &str); 51] = [
    ("has_events", "boolean"),
    ("has_results", "boolean"),
    ("has_failures", "boolean"),
    ("has_deliveries", "boolean"),
    ("has_lanes", "boolean"),
    ("has_repeats", "boolean"),
    ("_life", "bigint"),
    ("_session", "bigint"),
    ("_written", "bigint"),
    ("_space", "int"),
    ("_configuration", "int"),
    ("_horizon", "bigint"),
    ("_now", "bigint"),
    ("_version", "bigint"),
    ("_blocks", "bigint[]"),
    ("_locks", "int[]"),
    ("_finished", "bigint[]"),
    ("_claims", "bigint[]"),
    ("_attempts", "int[]"),
    ("_records", "bytea[]"),
    ("_statuses", "smallint[]"),
    ("_due", "bigint[]"),
    ("_failures", "int[]"),
    ("_ended", "bigint[]"),
    ("_reasons", "text[]"),
    ("_began", "bigint[]"),
    ("_codes", "int[]"),
    ("_errors", "text[]"),
    ("_taken_places", "bigint[]"),
    ("_taken_high", "bigint[]"),
    ("_taken_low", "bigint[]"),
    ("_prints", "bytea[]"),
    ("_places", "bigint[]"),
    ("_projects", "bigint[]"),
    ("_times", "bigint[]"),
    ("_high", "bigint[]"),
    ("_low", "bigint[]"),
    ("_sources", "bytea[]"),
    ("_ids", "bytea[]"),
    ("_types", "bytea[]"),
    ("_subjects", "bytea[]"),
    ("_bodies", "bytea[]"),
    ("_delivery_places", "bigint[]"),
    ("_delivery_events", "bigint[]"),
    ("_delivery_projects", "bigint[]"),
    ("_delivery_high", "bigint[]"),
    ("_delivery_low", "bigint[]"),
    ("_subscribers", "bigint[]"),
    ("_lanes", "bigint[]"),
    ("_wanted", "smallint[]"),
    ("_nonce", "int"),
];

/// Takes part in the configuration and in what readers must wait for, draws numbers, and renews this life: after the locks, so
/// that the configuration it sees stays until the group has ended, and before any lock of a lane. These locks answer with
/// nothing, which is not `NULL`; asked this way they need no statement of their own.
fn enter() -> String {
    let fenced = if sabotage::is(Line::Fencing) { "FALSE" } else { "current IS NULL" };
    format!(
        "IF pg_advisory_xact_lock_shared(_space, _configuration) IS NULL
            OR pg_advisory_xact_lock_shared(_horizon | coalesce(pg_sequence_last_value('numbers'), 1)) IS NULL THEN
            RETURN;
        END IF;
        IF has_events THEN block := nextval('numbers') << 20; END IF;
        UPDATE replicas SET written = _written, at = _now,
                held = CASE WHEN has_deliveries THEN _blocks || block ELSE _blocks END
            WHERE incarnation = _life AND session = _session
            RETURNING (SELECT version FROM installation) INTO current;
        IF {fenced} THEN PERFORM refuse('tidegate: this process was taken over', 'TG002'); END IF;
        IF has_events AND current <> _version THEN
            PERFORM refuse('tidegate: the configuration moved to ' || current, 'TG001');
        END IF;
        IF has_lanes THEN PERFORM * FROM ({}) l; END IF;",
        named(lanes::LOCK, &["_space", "_locks"])
    )
}

fn finish() -> String {
    let common = ["_life", "_finished", "_claims", "_attempts", "_records"];
    let rest = ["_statuses", "_due", "_failures", "_ended", "_reasons", "_began", "_codes", "_errors"];
    format!(
        "IF has_failures THEN {} INTO finished;
        ELSIF has_results THEN {}; GET DIAGNOSTICS delivered = ROW_COUNT;
        END IF;",
        named(&deliveries::finished_somehow(), &[&common[..], &rest].concat()),
        named(&deliveries::delivered(), &[&common[..], &["_now"]].concat()),
    )
}

fn take_in() -> String {
    let ids = ["block", "_taken_places", "_taken_high", "_taken_low", "_prints"];
    let stamp = ["block", "_life", "_written", "_version", "_now"];
    let events = [
        "_places",
        "_projects",
        "_times",
        "_high",
        "_low",
        "_sources",
        "_ids",
        "_types",
        "_subjects",
        "_bodies",
    ];
    let events = [&stamp[..], &events].concat();
    let new = [
        "block",
        "_life",
        "_written",
        "_now",
        "_delivery_places",
        "_delivery_events",
        "_delivery_projects",
        "_subscribers",
        "_wanted",
        "_nonce",
    ];
    let keyed = [
        "_delivery_high",
        "_delivery_low",
        "_subscribers",
        "_lanes",
        "_wanted",
        "cardinality(_places)",
        "_nonce",
    ];
    let deliveries = [&new[..7], &keyed].concat();
    let made = |sql: String| {
        let sql = named(&sql, &deliveries);
        format!(
            "WITH made AS ({sql}) SELECT coalesce(array_agg(m.place), '{{}}'), coalesce(array_agg(m.status), '{{}}')
            FROM made m INTO places, statuses"
        )
    };
    let take_new = named(submit::TAKE_NEW_IDS, &ids);
    let insert_new = named(submit::INSERT_NEW_EVENTS, &events);
    format!(
        "IF has_repeats THEN
            {} INTO taken, nothing;
            {};
            IF has_lanes THEN {}; ELSIF has_deliveries THEN {}; END IF;
        ELSIF has_deliveries THEN WITH ids AS ({take_new}), kept AS ({insert_new}) {};
        ELSIF has_events THEN WITH ids AS ({take_new}) {insert_new};
        END IF;",
        named(&submit::take_ids(), &ids),
        named(&submit::insert_events(), &events),
        made(submit::insert_laned()),
        made(submit::insert_plain()),
        named(submit::INSERT_NEW_DELIVERIES, &new),
    )
}

/// Makes the function for a session.
pub(super) fn definition() -> String {
    let arguments: Vec<String> = ARGUMENTS.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
    format!(
        "CREATE OR REPLACE FUNCTION pg_temp.write_group({}, OUT block bigint, OUT taken bigint[], OUT places bigint[],
            OUT statuses smallint[], OUT finished bigint[], OUT delivered bigint) LANGUAGE plpgsql AS $$
        #variable_conflict use_column
        DECLARE current bigint; nothing text;
        BEGIN
        {}
        {}
        {}
        END $$",
        arguments.join(", "),
        enter(),
        finish(),
        take_in(),
    )
}

/// The call, with as many values as the function takes.
pub(super) static CALL: LazyLock<String> = LazyLock::new(|| {
    let values: Vec<String> = (1..=ARGUMENTS.len()).map(|number| format!("${number}")).collect();
    format!("SELECT * FROM pg_temp.write_group({})", values.join(", "))
});

/// A statement with these names in the place of its values.
fn named(sql: &str, names: &[&str]) -> String {
    let mut pieces = sql.split('$');
    let mut named = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let digits = piece.len() - piece.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
        let number: usize = piece[..digits].parse().unwrap_or_default();
        named += names[number - 1];
        named += &piece[digits..];
    }
    named
}

/// What a group does not have, whatever it would be.
#[derive(Debug)]
struct Null;

impl ToSql for Null {
    fn to_sql(&self, _: &Type, _: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        Ok(IsNull::Yes)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A group, ready to be written.
pub(super) struct Call<'a> {
    pub(super) entering: Entering,
    pub(super) stamp: Stamp,
    pub(super) blocks: &'a Vec<i64>,
    pub(super) results: &'a Results,
    pub(super) columns: &'a Columns<'a>,
}

/// What the call did.
#[derive(Default)]
pub(super) struct Done {
    pub(super) block: i64,
    /// Places of events whose ids were free; not told when all were.
    pub(super) taken: Option<Vec<i64>>,
    /// Places of deliveries, and what became of each; not told when all are as they were wanted.
    pub(super) made: Option<Vec<(i64, i16)>>,
    /// Deliveries whose results counted, if some attempts did not succeed.
    pub(super) finished: Option<Vec<i64>>,
    /// How many results counted, if all succeeded.
    pub(super) delivered: u64,
}

impl Call<'_> {
    /// Writes the group; it is on disk when this returns. Unless it `expects_repeats`, it fails when an id is known.
    pub(super) async fn run(&self, conn: &Conn, expects_repeats: bool) -> Asked<Done> {
        let (columns, results) = (self.columns, self.results);
        let (ids, routes) = (columns.ids(), columns.routes());
        let locks = lanes::locks(&columns.lanes());
        let has_events = !columns.is_empty();
        let flags = [
            has_events,
            !results.is_empty(),
            results.has_failures(),
            columns.has_deliveries(),
            columns.has_lanes(),
            has_events && expects_repeats,
        ];
        let mut values: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(ARGUMENTS.len());
        values.extend(flags.iter().map(|flag| flag as &(dyn ToSql + Sync)));
        values.extend(self.entering.values());
        values.extend([&self.stamp.version as &(dyn ToSql + Sync), self.blocks]);
        values.push(if columns.has_lanes() { &locks } else { &Null });
        values.extend(&results.values(&self.stamp.incarnation)[1..5]);
        let absent: [&(dyn ToSql + Sync); 8] = [&Null; 8];
        values.extend(if results.has_failures() { results.rest() } else { absent });
        values.extend(ids.values());
        values.extend(columns.events());
        values.extend([&routes.places as &(dyn ToSql + Sync), &routes.events, &routes.projects]);
        let keys: [&(dyn ToSql + Sync); 2] = [&routes.high, &routes.low];
        values.extend(if expects_repeats { &keys } else { &absent[..2] });
        values.push(&routes.subscribers);
        values.push(if columns.has_lanes() { &routes.lanes } else { &Null });
        values.push(&routes.wanted);
        let nonce = conn.nonce();
        values.push(&nonce);
        let row = conn.only(&CALL, &values).await?;
        Ok(done(&row))
    }
}

fn done(row: &Row) -> Done {
    let (places, statuses): (Option<Vec<i64>>, Option<Vec<i16>>) = (row.get(2), row.get(3));
    Done {
        block: row.get::<_, Option<_>>(0).unwrap_or_default(),
        taken: row.get(1),
        made: places.zip(statuses).map(|(places, statuses)| places.into_iter().zip(statuses).collect()),
        finished: row.get(4),
        delivered: row.get::<_, Option<i64>>(5).unwrap_or_default().unsigned_abs(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_get_their_names() {
        assert_eq!(named("SELECT $1, $2::int[] + $1", &["a", "b"]), "SELECT a, b::int[] + a");
        assert_eq!(named("SELECT 1", &[]), "SELECT 1");
    }

    #[test]
    fn a_function_takes_no_more_than_it_may_and_uses_what_it_takes() {
        assert!(ARGUMENTS.len() <= 100, "PostgreSQL allows no more");
        let body = [enter(), finish(), take_in()].concat();
        for (name, _) in ARGUMENTS {
            assert!(body.contains(name), "nobody looks at {name}");
        }
    }
}
