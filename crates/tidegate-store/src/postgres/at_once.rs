//! An ordinary group as one statement: results and events, with nothing to decide on the way.
//!
//! Each statement that is sent by itself costs both sides a message, and its answer another. So every session that writes
//! is given a function of its own, made of the very statements that `write.rs` otherwise sends one by one: they see each
//! other's work and what was committed meanwhile, as those do, and the call is a transaction by itself.

use std::sync::LazyLock;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::db::{Asked, Conn};
use super::deliveries::{self, Results};
use super::held;
use super::lanes::{self, Lanes};
use super::submit::{self, Columns, Stamp};
use super::write;

/// The statements in their order, each with the types of its values and what is done with its answer.
fn parts() -> [(String, &'static [&'static str], Part); 9] {
    [
        (write::entering().into_owned(), &write::ENTER_TYPES, Part::Always("nothing, nothing, nothing")),
        (write::CHECK.to_owned(), &["bigint"], Part::With("events", "nothing")),
        (lanes::LOCK.to_owned(), &["int", "int[]"], Part::Locks),
        (String::new(), &Results::TYPES, Part::Results),
        (write::DRAW.to_owned(), &[], Part::With("events", "block")),
        (String::new(), &submit::TAKE_IDS_TYPES, Part::Ids),
        (submit::INSERT_EVENTS.to_owned(), &submit::INSERT_EVENTS_TYPES, Part::With("events", "")),
        (String::new(), &submit::INSERT_DELIVERIES_TYPES, Part::Deliveries),
        (held::NAME_BLOCKS.to_owned(), &held::NAME_BLOCKS_TYPES, Part::With("deliveries", "")),
    ]
}

/// When a statement runs, and where its answer goes.
enum Part {
    Always(&'static str),
    /// Only if the group has some of these.
    With(&'static str, &'static str),
    Locks,
    Results,
    Ids,
    Deliveries,
}

/// What the group has, before the values of the statements.
const FLAGS: [&str; 6] = ["events", "results", "failures", "deliveries", "lanes", "repeats"];

/// Makes the function for a session.
pub(super) fn definition() -> String {
    let mut types: Vec<&str> = FLAGS.iter().map(|_| "boolean").collect();
    let mut body = String::new();
    for (sql, values, part) in parts() {
        let from = types.len();
        types.extend(values);
        body += &match part {
            Part::Always(into) => format!("{};\n", into_vars(&shifted(&sql, from), into)),
            Part::With(flag, into) => {
                format!("IF has_{flag} THEN {}; END IF;\n", into_vars(&shifted(&sql, from), into))
            }
            Part::Locks => format!("IF has_lanes THEN PERFORM * FROM ({}) l; END IF;\n", shifted(&sql, from)),
            Part::Results => format!(
                "IF has_failures THEN {}; ELSIF has_results THEN {}; END IF;\n",
                into_vars(&shifted(&deliveries::finishing(true), from), "finished"),
                into_vars(&shifted(&deliveries::finishing(false), from), "finished"),
            ),
            Part::Ids => take_ids(from),
            Part::Deliveries => insert_deliveries(from),
        };
    }
    let flags = FLAGS.iter().enumerate().map(|(index, flag)| format!("has_{flag} ALIAS FOR ${};", index + 1));
    format!(
        "CREATE OR REPLACE FUNCTION pg_temp.write_group({}, OUT block bigint, OUT taken bigint[], OUT places bigint[],
            OUT statuses smallint[], OUT finished bigint[]) LANGUAGE plpgsql AS $$
         #variable_conflict use_column
         DECLARE nothing text; {}
         BEGIN {body} END $$",
        types.join(", "),
        flags.collect::<Vec<_>>().join(" "),
    )
}

/// Nearly always all ids are new, and a plain insert, which fails if one is not, costs little more than half of one that
/// looks first. What it had taken until then is free again before the ids are taken the other way.
fn take_ids(from: usize) -> String {
    let carefully = into_vars(&shifted(&submit::take_ids(), from), "taken, nothing");
    let all_new = shifted(submit::TAKE_NEW_IDS, from);
    let told = shifted("set_config('tidegate.taken', cardinality($3)::text, TRUE)", from);
    format!(
        "IF has_events AND has_repeats THEN {carefully};
         ELSIF has_events THEN
            BEGIN {all_new}; nothing := {told};
            EXCEPTION WHEN unique_violation THEN {carefully};
            END;
         END IF;\n"
    )
}

/// What comes of them needs no answer where all events are new and no lane has a say.
fn insert_deliveries(from: usize) -> String {
    let made = |sql: String| format!("WITH made AS ({}) {MADE}", shifted(&sql, from));
    format!(
        "IF has_deliveries AND has_lanes THEN {}; ELSIF has_deliveries AND taken IS NULL THEN {};
         ELSIF has_deliveries THEN {}; END IF;\n",
        made(submit::insert_laned()),
        shifted(&submit::insert_as_wanted(), from),
        made(submit::insert_plain()),
    )
}

const MADE: &str = "SELECT coalesce(array_agg(m.place), '{}'), coalesce(array_agg(m.status), '{}') FROM made m INTO places, statuses";

fn into_vars(sql: &str, vars: &str) -> String {
    if vars.is_empty() { sql.to_owned() } else { format!("{sql} INTO {vars}") }
}

/// The call, with as many values as the function takes.
pub(super) static CALL: LazyLock<String> = LazyLock::new(call);

fn call() -> String {
    let count = FLAGS.len() + parts().iter().map(|(_, values, _)| values.len()).sum::<usize>();
    let values: Vec<String> = (1..=count).map(|number| format!("${number}")).collect();
    format!("SELECT * FROM pg_temp.write_group({})", values.join(", "))
}

/// A statement whose values begin behind `by` others.
fn shifted(sql: &str, by: usize) -> String {
    let mut pieces = sql.split('$');
    let mut shifted = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let digits = piece.len() - piece.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
        let number: usize = piece[..digits].parse().unwrap_or_default();
        shifted += &format!("${}{}", number + by, &piece[digits..]);
    }
    shifted
}

/// What the call did.
#[derive(Default)]
pub(super) struct Done {
    pub(super) block: i64,
    /// Places of events whose ids were free; not told when all were.
    pub(super) taken: Option<Vec<i64>>,
    /// Places of deliveries, and what became of each; not told when all are as they were wanted.
    pub(super) made: Option<Vec<(i64, i16)>>,
    /// Deliveries whose results counted.
    pub(super) finished: Vec<i64>,
}

/// Writes the group; it is on disk when this returns.
pub(super) async fn write(
    conn: &Conn,
    enter: &[&(dyn ToSql + Sync)],
    (stamp, blocks): (&Stamp, &Vec<i64>),
    (results, columns): (&Results, &Columns<'_>),
    (space, lanes): (i32, &Lanes),
    has_repeats: bool,
) -> Asked<Done> {
    let locks = lanes::locks(lanes);
    let (ids, routes, count) = (columns.sorted_ids(), columns.routes(), columns.count());
    let (has_events, has_lanes) = (!columns.is_empty(), !lanes.is_empty());
    let has_failures = results.has_failures();
    let flags =
        [has_events, !results.is_empty(), has_failures, columns.has_deliveries(), has_lanes, has_repeats];
    let mut values: Vec<&(dyn ToSql + Sync)> = flags.iter().map(|flag| flag as &(dyn ToSql + Sync)).collect();
    values.extend(enter);
    values.push(&stamp.version);
    values.push(&space);
    values.push(&locks);
    values.extend(results.values(&stamp.incarnation));
    values.extend(ids.values());
    values.extend(columns.event_values(stamp, &count));
    values.extend(columns.delivery_values(stamp, &routes, &count, &true));
    values.push(&stamp.incarnation);
    values.push(blocks);
    let row = conn.only(&CALL, &values).await?;
    Ok(done(&row))
}

fn done(row: &Row) -> Done {
    let (places, statuses): (Option<Vec<i64>>, Option<Vec<i16>>) = (row.get(2), row.get(3));
    Done {
        block: row.get::<_, Option<_>>(0).unwrap_or_default(),
        taken: row.get(1),
        made: places.zip(statuses).map(|(places, statuses)| places.into_iter().zip(statuses).collect()),
        finished: row.get::<_, Option<_>>(4).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_renumbered() {
        assert_eq!(shifted("SELECT $1, $12::int[] + $2", 10), "SELECT $11, $22::int[] + $12");
        assert_eq!(shifted("SELECT 1", 10), "SELECT 1");
    }

    #[test]
    fn a_function_takes_what_its_call_gives() {
        let (definition, call) = (definition(), call());
        let last = call.rsplit('$').next().and_then(|rest| rest.trim_end_matches(')').parse::<usize>().ok());
        let last = last.expect("a call has values");
        assert!(definition.contains(&format!("${last}")) && !definition.contains(&format!("${}", last + 1)));
        assert!(last <= 100, "PostgreSQL allows no more");
    }
}
